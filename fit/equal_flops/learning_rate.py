"""The best peak learning rate of each model in a table of runs, and Eq. 10 fitted to them by least squares.

The best rate is the lowest point of a parabola, in ln LR, through the best run and its two neighbours; the paper takes
the best run itself. If the best run is at the end of its grid, it is taken itself and marked as such.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fit.aliases import Array, Numbers
from fit.data.table import Table
from fit.errors import UserError


@dataclasses.dataclass(eq=False)
class BestRate:
    """One model's best rate; `curvature` is that of its loss in ln LR, half of the second derivative."""

    n_active: float
    n_experts: float
    n_tokens: float
    rate: float
    loss: float
    curvature: float
    at_edge: bool


def best_rates(table: Table) -> list[BestRate]:
    """The BestRate of each (n_experts, n_active, n_tokens) in the table, in that order; means over equal rates (seeds).

    Raises:
      UserError: a column is missing or bad, or a model was tried at fewer than three rates.
    """
    names = ("n_experts", "n_active", "n_tokens")
    keys = np.stack([table.numbers(name) for name in names], axis=1)
    rates, losses = table.numbers("peak_learning_rate", (1e-12, 1e3)), table.numbers("loss")
    optima = []
    for key in np.unique(keys, axis=0):
        rows = (keys == key).all(axis=1)
        tried = np.unique(rates[rows])
        if len(tried) < 3:
            model = ", ".join(f"{name} {value:,.0f}" for name, value in zip(names, key))
            raise UserError(f"{table.path}: {model} was tried at {len(tried)} learning rates, expected 3 or more")
        loss = np.array([losses[rows & (rates == rate)].mean() for rate in tried])
        optima.append(_optimum(*key, np.log(tried), loss))
    return optima


def _optimum(n_experts: float, n_active: float, n_tokens: float, x: Array, loss: Array) -> BestRate:
    i = int(np.argmin(loss))
    best, low, curvature, at_edge = x[i], loss[i], np.nan, i in (0, len(x) - 1)
    if not at_edge:
        square, slope, _ = np.polyfit(x[i - 1 : i + 2] - x[i], loss[i - 1 : i + 2], 2)
        if square > 0:  # else three equal losses
            best, low, curvature = best - slope / (2 * square), low - slope**2 / (4 * square), square
    return BestRate(n_active, n_experts, n_tokens, float(np.exp(best)), float(low), float(curvature), at_edge)


def fit(optima: Sequence[BestRate], where: str = "the runs", with_tokens: bool = False) -> dict[str, float]:
    """Coefficients of Eq. 10 by name, least squares in ln LR; with_tokens adds n_tokens, the exponent of the training
    tokens, which Eq. 10 lacks. UserError if the optima do not fix all of them."""
    names = ("constant", "n_active", "n_experts") + ("n_tokens",) * with_tokens
    design = np.array([[1, *(np.log(getattr(o, name)) for name in names[1:])] for o in optima])
    if np.linalg.matrix_rank(design - np.append(0, design[:, 1:].mean(axis=0))) < len(names):
        kinds = "size from experts from tokens" if with_tokens else "size from experts"
        raise UserError(f"{where}: {len(optima)} models cannot tell {kinds}, expected two or more of each")
    values = np.linalg.lstsq(design, np.log([o.rate for o in optima]), rcond=None)[0]
    return dict(zip(names, map(float, values)))


def predict(law: Mapping[str, float], n_active: Numbers, n_experts: Numbers, n_tokens: Numbers = 1.0) -> Numbers:
    """The law's peak learning rate; numbers or arrays. n_tokens matters to a law that has an exponent for it."""
    of_tokens = law.get("n_tokens", 0.0) * np.log(n_tokens)
    return np.exp(
        law["constant"] + law["n_active"] * np.log(n_active) + law["n_experts"] * np.log(n_experts) + of_tokens
    )


def rms_error(law: Mapping[str, float], optima: Sequence[BestRate]) -> float:
    """Root mean square of ln(law / best)."""
    errors = [np.log(predict(law, o.n_active, o.n_experts, o.n_tokens) / o.rate) for o in optima]
    return float(np.sqrt(np.mean(np.square(errors))))


def text(law: Mapping[str, float], optima: Sequence[BestRate], fitted: Sequence[BestRate]) -> str:
    """The best rates beside the law's, its coefficients as the trainer's fields, and its errors."""
    return "\n".join(_lines(law, optima, fitted))


def _lines(law: Mapping[str, float], optima: Sequence[BestRate], fitted: Sequence[BestRate]) -> Iterator[str]:
    yield f"{'n_experts':>9} {'n_active':>13} {'n_tokens':>15} {'best LR':>10} {'law':>10} {'law/best':>8}  loss lost"
    for o in optima:
        rate = predict(law, o.n_active, o.n_experts, o.n_tokens)
        lost = o.curvature * np.log(rate / o.rate) ** 2  # by the parabola; nan at the end of a grid
        notes = ["not fitted"] * (o not in fitted) + ["best at the end of its grid: widen it"] * o.at_edge
        yield (
            f"{o.n_experts:9g} {o.n_active:13,.0f} {o.n_tokens:15,.0f} {o.rate:10.3e} {rate:10.3e} {rate / o.rate:8.2f}"
            f"  {lost:9.5f} {'; '.join(notes)}".rstrip()
        )
    yield ""
    yield from (f"config.optimizer.lr_law.{name} = {law[name]:.6f}" for name in law if name != "n_tokens")
    if "n_tokens" in law:
        yield (
            f"exponent of n_tokens = {law['n_tokens']:.6f}: LR goes as n_tokens^{law['n_tokens']:.3f}. "
            f"config.optimizer.lr_law has no tokens in it: to its constant add {law['n_tokens']:.6f} ln n_tokens"
        )
    yield f"root mean square error of ln LR: {rms_error(law, fitted):.4f} on {len(fitted)} fitted models"
    if checked := [o for o in optima if o not in fitted]:
        yield f"  {rms_error(law, checked):.4f} on {len(checked)} not fitted"
