"""The answer of `fit lr`: the best rates beside the law's, what a wrong rate costs, and the coefficients."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fit.fitting.fit_rates import RateFit
from fit.fitting.learning_rate import FACTORS, BestRate, rate_of, spread, varied
from fit.messages import lines, units
from fit.messages.lines import Line

COUNTS = "{n_experts:g:>9} {n_active:,.0f:>13} {n_tokens:,.0f:>15}"
RATES = " {rate:.3e:>10} {law:.3e:>10} {ratio:.2f:>8}  {lost:.5f:>9} {note}"


def of_fit(rates: RateFit) -> list[Line]:
    """The lines of `fit lr`: those of `answer`, the models that are left out, and the rate of the model asked for."""
    of_rates = [*answer(rates.law, rates.optima, rates.fitted)]
    if rates.left_out:
        of_rates.insert(0, Line("left out", f"{rates.left_out} models that were tried at fewer than three rates"))
    if rates.model:
        of_rates.append(of_model(rates.law, rates.model, rates.fitted))
    return of_rates


def answer(law: Mapping[str, float], optima: Sequence[BestRate], fitted: Sequence[BestRate]) -> Iterator[Line]:
    """The best rates beside the law's, what a wrong rate costs, the coefficients as the trainer's fields with their
    intervals, and the law's errors.

    Args:
      law: coefficients by name.
      optima: all best rates.
      fitted: those that the law was fitted to.
    """
    yield lines.rows(_table_of_rates(law, optima, fitted))
    yield from _not_fitted(optima)
    yield from _diverged(optima)
    yield from (lines.BLANK, _costs(law, optima), lines.BLANK)
    yield from _coefficients(law, fitted)
    error = f"{_rms_log_ratio(law, fitted):.4f} on {len(fitted)} fitted models"
    checked = [best for best in optima if best not in fitted and not best.at_edge]
    of_others = (f"  {_rms_log_ratio(law, checked):.4f} on {len(checked)} not fitted",) if checked else ()
    yield Line("root mean square error of ln LR", error, of_others)


def of_model(law: Mapping[str, float], model: BestRate, fitted: Sequence[BestRate]) -> Line:
    """The law's rate of one model, its interval, and what the ends of that would cost.

    Args:
      law: coefficients by name.
      model: the model; its rate and loss are not read.
      fitted: the best rates that the law was fitted to.
    """
    rate = rate_of(law, model)
    _, half_of_model = spread(law, fitted)
    if not half_of_model:
        return Line("", f"rate {rate:.4e}")
    half = half_of_model(model)
    curvatures = [best.curvature for best in fitted if np.isfinite(best.curvature)]
    cost = np.mean(curvatures) * half**2 if curvatures else np.nan
    interval = f"10% to 90%: {rate * np.exp(-half):.3e} to {rate * np.exp(half):.3e}"
    ends = f"  if the best is at an end of that, this rate costs {cost:.5f} nats per token"
    return Line("", f"rate {rate:.4e}, {interval}", (ends,))


def _log_ratio(law: Mapping[str, float], model: BestRate) -> float:
    """ln of the law's rate over the model's best one."""
    return float(np.log(rate_of(law, model) / model.rate))


def _lost(law: Mapping[str, float], model: BestRate) -> float:
    """Nats that the law's rate costs, by the model's parabola; NaN at the end of a grid."""
    return float(model.curvature * _log_ratio(law, model) ** 2)


def _rms_log_ratio(law: Mapping[str, float], models: Sequence[BestRate]) -> float:
    """Root mean square error of ln LR over these models."""
    return np.sqrt(np.mean(np.square([_log_ratio(law, model) for model in models])))


def _table_of_rates(law: Mapping[str, float], optima: Sequence[BestRate], fitted: Sequence[BestRate]) -> list[str]:
    """The best rates beside the law's."""
    rows = []
    for best in optima:
        note = ""
        if best.at_edge and best.diverged:
            note = "beside diverged rates"
        elif best.at_edge:
            note = "at the end of its grid"
        elif best not in fitted:
            note = "not fitted"
        rate = rate_of(law, best)
        comparison = dict(law=rate, ratio=rate / best.rate, lost=_lost(law, best), note=note)
        rows.append(vars(best) | comparison)
    columns = COUNTS
    if len({best.batch_tokens for best in optima}) > 1 or "batch_tokens" in law:
        columns += " {batch_tokens:,.0f:>12}"
    return units.table(columns + RATES, rows, rate="best LR", ratio="law/best", lost="loss lost", note="")


def _not_fitted(optima: Sequence[BestRate]) -> Iterator[Line]:
    """Lines on the models whose best rate lies beyond what was tried."""
    beside_diverged = sum(best.at_edge and bool(best.diverged) for best in optima)
    at_end = sum(best.at_edge for best in optima) - beside_diverged
    if at_end:
        yield Line("not fitted", f"{units.counted(at_end, 'model')} at the end of the grid: widen it")
    if beside_diverged:
        yield Line("not fitted", f"{units.counted(beside_diverged, 'model')} beside diverged rates: try rates between")


def _diverged(optima: Sequence[BestRate]) -> Iterator[Line]:
    """A line for each model with runs that are left out because they diverged."""
    for best in optima:
        if best.diverged:
            model = f"n_experts {best.n_experts:g}, n_active {best.n_active:,.0f}, n_tokens {best.n_tokens:,.0f}"
            runs = ", ".join(f"{rate:.3g} (loss {loss:.4g})" for rate, loss in best.diverged.items())
            yield Line(f"left out as diverged, of {model}", f"rates {runs}")


def _costs(law: Mapping[str, float], optima: Sequence[BestRate]) -> Line:
    """The cost of a wrong rate, in nats per token."""
    means = "mean over the models whose grids reach so far, least, most"
    rows = []
    costs = {f"{factor:4g} times the best": [best.lost.get(factor, np.nan) for best in optima] for factor in FACTORS}
    costs["the law's rate"] = [_lost(law, best) for best in optima]
    for name, values in costs.items():
        known = [value for value in values if np.isfinite(value)]
        if known:
            models = units.counted(len(known), "model")
            rows.append(f"  {name:>19}  {np.mean(known):8.5f}  {min(known):8.5f}  {max(known):8.5f}  of {models}")
    return Line("what a wrong rate costs, in nats per token", means, tuple(rows))


def _coefficients(law: Mapping[str, float], fitted: Sequence[BestRate]) -> Iterator[Line]:
    """The coefficients as the trainer's fields, with their intervals."""
    intervals, _ = spread(law, fitted)
    in_models = varied(fitted)
    for name, value in law.items():
        note = ""
        if name in intervals:
            note = "  # 10% to 90%: {:.4f} to {:.4f}".format(*intervals[name])
        elif name in ("n_active", "n_experts") and name not in in_models:
            note = f"  # all fitted models have {name} = {getattr(fitted[0], name):,.0f}: the law holds there alone"
        yield Line("", f"config.optimizer.lr_law.{name} = {value:.6f}{note}")
    if not intervals:
        yield Line("no intervals", f"{len(fitted)} models are as many as the coefficients")
