"""The best peak learning rate of each model in a table of runs, and the law of these rates.

The law is Eq. 10, fitted by least squares with intervals:

  ln LR = constant + a ln n_active + b ln n_experts   (+ c ln n_tokens + d ln batch_tokens, which Eq. 10 lacks)

The best rate is the lowest point of a parabola, in ln LR, through the best run and its two neighbours; the paper takes
the best run itself. If the best run is at the end of its grid, the best rate lies beyond it. It is marked as such, and
no law is fitted to it. Runs of too high a rate diverge; they say nothing of the parabola, and are left out.

Axes: n models; k coefficients; r rates of a model, ascending.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fit.aliases import Array, Numbers
from fit.errors import UserError
from fit.messages.units import counted
from fit.table import validate
from fit.table.table import Table

TERMS = {"n_active": "size", "n_experts": "experts", "n_tokens": "tokens", "batch_tokens": "batch"}  # each in words
FACTORS = (0.25, 0.5, 0.71, 1.41, 2.0, 4.0)  # of the best rate, whose costs are told
# A run diverged where its rate is above the best and its loss exceeds the best by more than a share of it, and by so
# many times what a parabola through the runs nearer to the best gives; without such runs, by the larger share.
DIVERGED = 0.08
DIVERGED_TIMES = 4.0
DIVERGED_ALONE = 0.3
LEVEL = 0.8  # of all intervals: 10th to 90th percentile


@dataclasses.dataclass(eq=False, frozen=True)
class BestRate:
    """One model's best rate.

    Attributes:
      n_active, n_experts, n_tokens: of the model.
      rate: its best peak learning rate.
      loss: at that rate, nats per token.
      curvature: of its loss in ln LR, half of the second derivative; NaN where the best rate is at an edge.
      at_edge: whether the best run is at the end of its grid.
      batch_tokens: tokens in a batch; None where the table does not say it.
      diverged: {rate: loss} of the runs that are left out, which diverged.
      lost: nats above the best loss at those FACTORS of the rate that lie within its grid, each by the parabola
        through the three nearest runs.
    """

    n_active: float
    n_experts: float
    n_tokens: float
    rate: float
    loss: float
    curvature: float
    at_edge: bool
    batch_tokens: float | None = None
    lost: dict[float, float] = dataclasses.field(default_factory=dict)
    diverged: dict[float, float] = dataclasses.field(default_factory=dict)


def best_rates(table: Table, with_batch: bool = False) -> tuple[list[BestRate], int]:
    """The best rate of each (n_experts, n_active, n_tokens, batch_tokens) of a table, in that order.

    Losses at equal rates (seeds) are averaged. Runs count as of one batch where the table does not say it of all.

    Args:
      table: the runs.
      with_batch: whether the table must say the batch.

    Returns:
      (best rates, how many models are left out because they were tried at fewer than three rates).

    Raises:
      UserError: where a column is missing or bad, or no model was tried at three rates.
    """
    names = ["n_experts", "n_active", "n_tokens"]
    if not with_batch and "batch_tokens" in table:
        with_batch = all(cell not in ("", None) for cell in table.column("batch_tokens"))
    if with_batch:
        names.append("batch_tokens")
    validate.require(table, (*names, "peak_learning_rate", "loss"))
    model_of_run = np.stack([table.numbers(name, (1, 1e18)) for name in names], axis=1)
    rates = table.numbers("peak_learning_rate", (1e-12, 1e3))
    losses = table.numbers("loss")
    models = np.unique(model_of_run, axis=0)
    optima = []
    for model in models:
        runs = (model_of_run == model).all(axis=1)
        tried = np.unique(rates[runs])
        if len(tried) >= 3:
            loss = np.array([losses[runs & (rates == rate)].mean() for rate in tried])
            columns = dict(zip(names, map(float, model), strict=True))
            optima.append(_optimum(columns, np.log(tried), loss))
    if not optima:
        last = ", ".join(f"{name} {value:,.0f}" for name, value in zip(names, model, strict=True))
        rates_tried = counted(len(tried), "learning rate")
        raise UserError(f"{table.path}: {last} was tried at {rates_tried}, expected 3 or more")
    return optima, len(models) - len(optima)


def _optimum(model: dict[str, float], x: Array, loss: Array) -> BestRate:
    """The best rate of a model, whose columns are `model`, from its losses [r] at ln LR = x [r]."""
    is_diverged = diverged(x, loss)
    left_out = dict(zip(np.exp(x[is_diverged]).tolist(), loss[is_diverged].tolist(), strict=True))
    x = x[~is_diverged]
    loss = loss[~is_diverged]
    i = int(np.argmin(loss))
    best = x[i]
    lowest_loss = loss[i]
    curvature = np.nan
    lost = {}
    at_edge = i in (0, len(x) - 1)
    if not at_edge:
        square, slope, _ = np.polyfit(x[i - 1 : i + 2] - x[i], loss[i - 1 : i + 2], 2)
        if square > 0:  # else three equal losses
            best = best - slope / (2 * square)
            lowest_loss = lowest_loss - slope**2 / (4 * square)
            curvature = square
            within = [factor for factor in FACTORS if x[0] <= best + np.log(factor) <= x[-1]]
            for factor in within:
                lost[factor] = max(loss_at(best + np.log(factor), x, loss) - float(lowest_loss), 0.0)
    return BestRate(
        **model,
        rate=float(np.exp(best)),
        loss=float(lowest_loss),
        curvature=float(curvature),
        at_edge=at_edge,
        lost=lost,
        diverged=left_out,
    )


def diverged(x: Array, loss: Array) -> Array:
    """Which of a model's runs diverged, boolean [r].

    Args:
      x: ln LR, ascending, [r].
      loss: at these rates, [r].
    """
    i = int(np.argmin(loss))
    excess = loss - loss[i]
    for j in range(i + 1, len(x)):
        near = np.concatenate([np.arange(i), np.arange(i + 1, j)])  # runs nearer to the best, or below it
        limit = DIVERGED_ALONE * loss[i]
        if len(near):
            curvature = np.max(excess[near] / (x[near] - x[i]) ** 2)
            limit = max(DIVERGED * loss[i], DIVERGED_TIMES * curvature * (x[j] - x[i]) ** 2)
        if excess[j] > limit:
            return np.arange(len(x)) >= j
    return np.zeros(len(x), bool)


def loss_at(target: float, x: Array, loss: Array) -> float:
    """The loss at x = target, by the parabola through the three nearest of the points x, loss [r]."""
    near = np.argsort(np.abs(x - target))[:3]
    return float(np.polyfit(x[near] - target, loss[near], 2)[-1])


def fit(
    optima: Sequence[BestRate], where: str = "the runs", with_tokens: bool = False, with_batch: bool = False
) -> dict[str, float]:
    """Fits Eq. 10 by least squares in ln LR.

    Args:
      optima: the best rates.
      where: the table's name in errors.
      with_tokens, with_batch: whether to add the exponents of n_tokens and batch_tokens.

    Returns:
      Coefficients by name. Those of n_active and n_experts are 0 where all optima have the same.

    Raises:
      UserError: where the optima do not identify all others.
    """
    added = []
    if with_tokens:
        added.append("n_tokens")
    if with_batch:
        added.append("batch_tokens")
    names = [*varied(optima), *added]
    design = _design(optima, names)
    if np.linalg.matrix_rank(design - np.append(0, design[:, 1:].mean(axis=0))) <= len(names):
        kinds = " from ".join(TERMS[name] for name in dict.fromkeys(["n_active", *names]))
        raise UserError(f"{where}: {len(optima)} models cannot tell {kinds}, expected two or more of each")
    values = np.linalg.lstsq(design, np.log([best.rate for best in optima]), rcond=None)[0]
    zeros = dict.fromkeys(["constant", "n_active", "n_experts", *added], 0.0)
    return zeros | dict(zip(["constant", *names], map(float, values), strict=True))


def varied(optima: Sequence[BestRate]) -> list[str]:
    """Those of n_active and n_experts that differ between the optima."""
    return [name for name in ("n_active", "n_experts") if len({getattr(best, name) for best in optima}) > 1]


def _design(models: Sequence[BestRate], names: Sequence[str]) -> Array:
    """[n, k]: 1 and the logarithms of these columns."""
    return np.array([[1.0, *(np.log(getattr(model, name)) for name in names)] for model in models])


def predict(
    law: Mapping[str, float],
    n_active: Numbers,
    n_experts: Numbers,
    n_tokens: Numbers = 1.0,
    batch_tokens: Numbers = 1.0,
) -> Numbers:
    """The law's peak learning rate, of numbers or arrays.

    n_tokens and batch_tokens matter to a law that has an exponent for them.
    """
    added = law.get("n_tokens", 0.0) * np.log(n_tokens) + law.get("batch_tokens", 0.0) * np.log(batch_tokens)
    return np.exp(law["constant"] + law["n_active"] * np.log(n_active) + law["n_experts"] * np.log(n_experts) + added)


def rate_of(law: Mapping[str, float], model: BestRate) -> float:
    """The law's rate of a model."""
    batch_tokens = model.batch_tokens or 1.0
    return float(predict(law, model.n_active, model.n_experts, model.n_tokens, batch_tokens))


def spread(
    law: Mapping[str, float], optima: Sequence[BestRate]
) -> tuple[dict[str, list[float]], Callable[[BestRate], float] | None]:
    """Intervals of a law, from the scatter of the optima that it was fitted to.

    They are by least squares' covariance and Student's t of the degrees of freedom left.

    Returns:
      ({coefficient: its interval}, a function: half of the interval of ln LR that holds the best rate of a model that
      was not fitted). ({}, None) where the optima are as many as the coefficients.
    """
    names = [*varied(optima), *(name for name in ("n_tokens", "batch_tokens") if name in law)]
    design = _design(optima, names)
    degrees_of_freedom = len(optima) - len(names) - 1
    if degrees_of_freedom < 1:
        return {}, None
    errors = np.log([best.rate / rate_of(law, best) for best in optima])
    scatter = float(errors @ errors) / degrees_of_freedom  # variance of ln LR of a model around the law
    import scipy.special  # only here: plans use this module too, and do without scipy

    quantile = float(scipy.special.stdtrit(degrees_of_freedom, (1 + LEVEL) / 2))
    inverse = np.linalg.pinv(design)
    covariance = inverse @ inverse.T * scatter

    def half_of_model(model: BestRate) -> float:
        """Half of the interval of ln LR of a model."""
        (row,) = _design([model], names)
        return float(quantile * np.sqrt(row @ covariance @ row + scatter))

    halves = (quantile * np.sqrt(np.diag(covariance))).tolist()
    intervals = {
        name: [law[name] - half, law[name] + half] for name, half in zip(["constant", *names], halves, strict=True)
    }
    return intervals, half_of_model
