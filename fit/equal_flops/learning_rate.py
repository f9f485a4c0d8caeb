"""The best peak learning rate of each model in a table of runs, Eq. 10 fitted to them by least squares with intervals,
and what another rate than the best costs.

The best rate is the lowest point of a parabola, in ln LR, through the best run and its two neighbours; the paper takes
the best run itself. If the best run is at the end of its grid, the best rate lies beyond it: it is marked as such, and
no law is fitted to it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fit.aliases import Array, Numbers
from fit.data.table import Table
from fit.errors import UserError
from fit.messages import units

TERMS = {"n_active": "size", "n_experts": "experts", "n_tokens": "tokens", "batch_tokens": "batch"}  # each in words
FACTORS = (0.25, 0.5, 0.71, 1.41, 2.0, 4.0)  # of the best rate, whose costs are told
COUNTS = "{n_experts:g:>9} {n_active:,.0f:>13} {n_tokens:,.0f:>15}"
RATES = " {rate:.3e:>10} {law:.3e:>10} {ratio:.2f:>8}  {lost:.5f:>9} {notes}"
LEVEL = 0.8  # of all intervals: 10th to 90th percentile


@dataclasses.dataclass(eq=False)
class BestRate:
    """One model's best rate; `curvature` is that of its loss in ln LR, half of the second derivative. batch_tokens is
    None where the table does not say it. lost: nats above the best loss at those FACTORS of the rate that lie within
    its grid, each by the parabola through the three nearest runs."""

    n_active: float
    n_experts: float
    n_tokens: float
    rate: float
    loss: float
    curvature: float
    at_edge: bool
    batch_tokens: float | None = None
    lost: dict[float, float] = dataclasses.field(default_factory=dict)


def best_rates(table: Table, with_batch: bool = False) -> tuple[list[BestRate], int]:
    """The BestRate of each (n_experts, n_active, n_tokens, batch_tokens) in the table, in that order, and how many of
    these are left out because they were tried at fewer than three rates; means over equal rates (seeds). Runs count as
    of one batch where the table does not say it of all of them, unless `with_batch` demands it. Raises UserError where
    a column is missing or bad, or no model was tried at three rates."""
    names = ["n_experts", "n_active", "n_tokens"]
    if not with_batch and "batch_tokens" in table:
        with_batch = all(cell not in ("", None) for cell in table.column("batch_tokens"))
    if with_batch:
        names.append("batch_tokens")
    keys = np.stack([table.numbers(name, (1, 1e18)) for name in names], axis=1)
    rates, losses = table.numbers("peak_learning_rate", (1e-12, 1e3)), table.numbers("loss")
    optima, models = [], np.unique(keys, axis=0)
    for key in models:
        rows = (keys == key).all(axis=1)
        tried = np.unique(rates[rows])
        if len(tried) >= 3:
            loss = np.array([losses[rows & (rates == rate)].mean() for rate in tried])
            optima.append(_optimum(dict(zip(names, map(float, key), strict=True)), np.log(tried), loss))
    if not optima:
        model = ", ".join(f"{name} {value:,.0f}" for name, value in zip(names, key, strict=True))
        raise UserError(f"{table.path}: {model} was tried at {len(tried)} learning rates, expected 3 or more")
    return optima, len(models) - len(optima)


def _optimum(model: dict[str, float], x: Array, loss: Array) -> BestRate:
    i = int(np.argmin(loss))
    best, low, curvature, at_edge = x[i], loss[i], np.nan, i in (0, len(x) - 1)
    lost = {}
    if not at_edge:
        square, slope, _ = np.polyfit(x[i - 1 : i + 2] - x[i], loss[i - 1 : i + 2], 2)
        if square > 0:  # else three equal losses
            best, low, curvature = best - slope / (2 * square), low - slope**2 / (4 * square), square
            within = [factor for factor in FACTORS if x[0] <= best + np.log(factor) <= x[-1]]
            lost = {factor: loss_at(best + np.log(factor), x, loss) - float(low) for factor in within}
    return BestRate(
        **model, rate=float(np.exp(best)), loss=float(low), curvature=float(curvature), at_edge=at_edge, lost=lost
    )


def loss_at(target: float, x: Array, loss: Array) -> float:
    """The loss at x = target, by the parabola through the three nearest points."""
    near = np.argsort(np.abs(x - target))[:3]
    return float(np.polyfit(x[near] - target, loss[near], 2)[-1])


def fit(
    optima: Sequence[BestRate], where: str = "the runs", with_tokens: bool = False, with_batch: bool = False
) -> dict[str, float]:
    """Coefficients of Eq. 10 by name, least squares in ln LR; with_tokens and with_batch add the exponents of n_tokens
    and batch_tokens, which Eq. 10 lacks. Those of n_active and n_experts are 0 where all optima have the same.
    UserError if the optima do not fix all others."""
    asked = [name for name, added in (("n_tokens", with_tokens), ("batch_tokens", with_batch)) if added]
    law = dict.fromkeys(["constant", "n_active", "n_experts", *asked], 0.0)
    names = [*_varied(optima), *asked]
    design = _design(optima, names)
    if np.linalg.matrix_rank(design - np.append(0, design[:, 1:].mean(axis=0))) <= len(names):
        kinds = " from ".join(TERMS[name] for name in dict.fromkeys(["n_active", *names]))
        raise UserError(f"{where}: {len(optima)} models cannot tell {kinds}, expected two or more of each")
    values = np.linalg.lstsq(design, np.log([o.rate for o in optima]), rcond=None)[0]
    return law | dict(zip(["constant", *names], map(float, values), strict=True))


def _varied(optima: Sequence[BestRate]) -> list[str]:
    """Those of n_active and n_experts that differ between the optima."""
    return [name for name in ("n_active", "n_experts") if len({getattr(o, name) for o in optima}) > 1]


def _design(models: Sequence[BestRate], names: Sequence[str]) -> Array:
    return np.array([[1.0, *(np.log(getattr(o, name)) for name in names)] for o in models])


def predict(
    law: Mapping[str, float],
    n_active: Numbers,
    n_experts: Numbers,
    n_tokens: Numbers = 1.0,
    batch_tokens: Numbers = 1.0,
) -> Numbers:
    """The law's peak learning rate; numbers or arrays. n_tokens and batch_tokens matter to a law that has an exponent
    for them."""
    added = law.get("n_tokens", 0.0) * np.log(n_tokens) + law.get("batch_tokens", 0.0) * np.log(batch_tokens)
    return np.exp(law["constant"] + law["n_active"] * np.log(n_active) + law["n_experts"] * np.log(n_experts) + added)


def _of(law: Mapping[str, float], o: BestRate) -> float:
    return float(predict(law, o.n_active, o.n_experts, o.n_tokens, o.batch_tokens or 1.0))


def spread(
    law: Mapping[str, float], optima: Sequence[BestRate]
) -> tuple[dict[str, list[float]], Callable[[BestRate], float] | None]:
    """({coefficient: its interval}, half of the interval of ln LR that holds the best rate of a model that was not
    fitted), of a law fitted to these optima, from their scatter around it: by least squares' covariance and Student's t
    of the degrees of freedom left. ({}, None) where the optima are as many as the coefficients."""
    names = [*_varied(optima), *(name for name in ("n_tokens", "batch_tokens") if name in law)]
    design, freedom = _design(optima, names), len(optima) - len(names) - 1
    if freedom < 1:
        return {}, None
    errors = np.log([o.rate / _of(law, o) for o in optima])
    scatter = float(errors @ errors) / freedom  # variance of ln LR of a model around the law
    import scipy.special  # only here: plans use this module too, and do without scipy

    quantile, half = float(scipy.special.stdtrit(freedom, (1 + LEVEL) / 2)), np.linalg.pinv(design)
    covariance = half @ half.T * scatter

    def of_model(o: BestRate) -> float:
        (row,) = _design([o], names)
        return float(quantile * np.sqrt(row @ covariance @ row + scatter))

    widths = zip(["constant", *names], (quantile * np.sqrt(np.diag(covariance))).tolist(), strict=True)
    return {name: [law[name] - width, law[name] + width] for name, width in widths}, of_model


def _off(law: Mapping[str, float], o: BestRate) -> float:
    """ln of the law's rate over the best one."""
    return float(np.log(_of(law, o) / o.rate))


def _lost(law: Mapping[str, float], o: BestRate) -> float:
    """Nats that the law's rate costs, by the model's parabola; NaN at the end of a grid."""
    return float(o.curvature * _off(law, o) ** 2)


def _rms_off(law: Mapping[str, float], models: Sequence[BestRate]) -> float:
    """Root mean square error of ln LR over these models."""
    return np.sqrt(np.mean(np.square([_off(law, o) for o in models])))


def text(law: Mapping[str, float], optima: Sequence[BestRate], fitted: Sequence[BestRate]) -> str:
    """The best rates beside the law's, what a wrong rate costs, the coefficients as the trainer's fields with their
    intervals, and the law's errors."""
    rows = []
    for o in optima:
        notes = []
        if o not in fitted:
            notes.append("not fitted")
        if o.at_edge:
            notes.append("best at the end of its grid: widen it")
        rate = _of(law, o)
        rows.append(vars(o) | dict(law=rate, ratio=rate / o.rate, lost=_lost(law, o), notes="; ".join(notes)))
    columns = COUNTS
    if len({o.batch_tokens for o in optima}) > 1 or "batch_tokens" in law:
        columns += " {batch_tokens:,.0f:>12}"
    columns += RATES
    lines = units.table(columns, rows, rate="best LR", ratio="law/best", lost="loss lost", notes="")

    means = "mean over the models whose grids reach so far, least, most"
    lines += ["", f"what a wrong rate costs, in nats per token: {means}"]
    costs = {f"{factor:4g} times the best": [o.lost.get(factor, np.nan) for o in optima] for factor in FACTORS}
    costs["the law's rate"] = [_lost(law, o) for o in optima]
    for name, values in costs.items():
        known = [x for x in values if np.isfinite(x)]
        if known:
            models = f"{len(known)} {'models' if len(known) > 1 else 'model'}"
            lines.append(f"  {name:>19}  {np.mean(known):8.5f}  {min(known):8.5f}  {max(known):8.5f}  of {models}")

    lines.append("")
    intervals, _ = spread(law, fitted)
    same = {name for name in ("n_active", "n_experts") if name not in _varied(fitted)}
    for name, value in law.items():
        note = ""
        if name in intervals:
            note = "  # 10% to 90%: {:.4f} to {:.4f}".format(*intervals[name])
        elif name in same:
            note = f"  # all fitted models have {name} = {getattr(fitted[0], name):,.0f}: the law holds there alone"
        lines.append(f"config.optimizer.lr_law.{name} = {value:.6f}{note}")
    if not intervals:
        lines.append(f"no intervals: {len(fitted)} models are as many as the coefficients")
    lines.append(f"root mean square error of ln LR: {_rms_off(law, fitted):.4f} on {len(fitted)} fitted models")
    checked = [o for o in optima if o not in fitted and not o.at_edge]
    if checked:
        lines.append(f"  {_rms_off(law, checked):.4f} on {len(checked)} not fitted")
    return "\n".join(lines)


def text_of_model(law: Mapping[str, float], model: BestRate, fitted: Sequence[BestRate]) -> str:
    """The law's rate of one model, its interval, and what the ends of that would cost."""
    rate, (_, of_model) = _of(law, model), spread(law, fitted)
    if not of_model:
        return f"rate {rate:.4e}"
    half, curvatures = of_model(model), [o.curvature for o in fitted if np.isfinite(o.curvature)]
    said = f"rate {rate:.4e}, 10% to 90%: {rate * np.exp(-half):.3e} to {rate * np.exp(half):.3e}"
    cost = np.mean(curvatures) * half**2 if curvatures else np.nan
    return f"{said}; if the best is at an end of that, this rate costs {cost:.5f} nats per token"
