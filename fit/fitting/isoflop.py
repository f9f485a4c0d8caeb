"""IsoFLOP parabolas ("approach 2" of Hoffmann et al. 2022).

At each budget a parabola of the loss in ln N is fitted, whose lowest point is the best size. Over the budgets these
sizes give N_opt = a C^b. Where runs are of several numbers of experts, each number has parabolas and a power law of its
own.

Intervals come from parabolas drawn around the fitted one as its residuals allow (Student's t with the degrees of
freedom left), their lowest points, and power laws through those.

Axes: n runs; k coefficients; draws; budgets.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Json

SPREAD = 0.1  # runs whose FLOPs lie within this share are of one budget
APART = 0.03  # a gap in FLOPs of this share separates two budgets
LEAST = 4  # fewest sizes for a parabola
DRAWS = 1000
KNOWN = 0.9  # share of the drawn parabolas that must have a lowest point


def budgets(flops: Array) -> list[Array]:
    """Groups runs of equal FLOPs.

    Args:
      flops: [n], of the runs.

    Returns:
      Index arrays of the groups, in ascending order of FLOPs. A run whose FLOPs no other has is in none of them.
    """
    order = np.argsort(flops, kind="stable")
    groups = np.split(order, 1 + np.flatnonzero(np.diff(np.log(flops[order])) > APART))
    return [group for group in groups if len(group) > 1 and np.ptp(np.log(flops[group])) <= SPREAD]


def least_squares(columns: Sequence[Array], values: Array) -> tuple[Array, float]:
    """Fits values = coefficients @ columns by least squares.

    Columns are scaled, for one may be thousands of times as large as another.

    Args:
      columns: [k, n]; each broadcasts to [n].
      values: [n].

    Returns:
      (coefficients [k], root mean square error).
    """
    design = np.stack(np.broadcast_arrays(*columns), axis=1)
    scale = np.linalg.norm(design, axis=0) + 1e-300
    coefficients = np.linalg.lstsq(design / scale, values, rcond=None)[0] / scale
    return coefficients, float(np.sqrt(np.mean((design @ coefficients - values) ** 2)))


def power_law(flops: Array, values: Array) -> tuple[float, float] | None:
    """(a, b) of values = a C^b by least squares in logarithms; None with fewer than 2 positive values."""
    positive = values > 0
    if np.sum(positive) < 2:
        return None
    log_flops = np.log(flops[positive])
    middle = log_flops.mean()
    slope, intercept = np.polyfit(log_flops - middle, np.log(values[positive]), 1)
    return float(np.exp(intercept - slope * middle)), float(slope)


@dataclasses.dataclass(frozen=True)
class _Lowest:
    """The lowest point of a parabola in ln size.

    Attributes:
      size, loss: of that point.
      draws: [DRAWS], sizes of the lowest points of parabolas around it; NaN where one opens downwards.
    """

    size: float
    loss: float
    draws: Array


def _parabola(size: Array, loss: Array, rng: np.random.Generator) -> _Lowest | None:
    """Fits a parabola to sizes and losses [n].

    Returns:
      Its lowest point. None with fewer than LEAST sizes, where the parabola opens downwards, or where its lowest point
      is outside the sizes.
    """
    x = np.log(size)
    if len(np.unique(np.round(x, 6))) < LEAST:
        return None
    middle = x.mean()
    design = np.stack([(x - middle) ** 2, x - middle, np.ones(len(x))], axis=1)
    c = np.linalg.lstsq(design, loss, rcond=None)[0]
    lowest = middle - c[1] / (2 * c[0])
    if c[0] <= 0 or not x.min() <= lowest <= x.max():
        return None
    degrees_of_freedom = len(x) - 3
    variance = np.sum((design @ c - loss) ** 2) / degrees_of_freedom
    root = np.linalg.cholesky(np.linalg.inv(design.T @ design))
    normal = rng.normal(size=(DRAWS, 3))
    t = normal / np.sqrt(rng.chisquare(degrees_of_freedom, (DRAWS, 1)) / degrees_of_freedom)
    drawn = c + np.sqrt(variance) * t @ root.T
    drawn[drawn[:, 0] <= 0] = np.nan
    return _Lowest(
        size=float(np.exp(lowest)),
        loss=float(c[2] - c[1] ** 2 / (4 * c[0])),
        draws=np.exp(middle - drawn[:, 1] / (2 * drawn[:, 0])),
    )


def _interval(draws: Array, percentiles: Sequence[float]) -> list[float] | None:
    """The percentiles of draws; None where too many of them are NaN."""
    known = draws[np.isfinite(draws)]
    if len(known) <= KNOWN * len(draws):
        return None
    return np.percentile(known, percentiles).tolist()


def profiles(
    size: Array,
    flops: Array,
    loss: Array,
    n_experts: Array | None = None,
    percentiles: Sequence[float] = (10, 90),
    seed: int = 0,
) -> list[Json]:
    """Fits the parabolas and power laws of a table of runs.

    Args:
      size, flops, loss: [n], of the runs; size may be any measure of a model.
      n_experts: [n], each with parabolas of its own; None if all runs have the same number.
      percentiles: ends of the intervals.
      seed: of the drawn parabolas.

    Returns:
      [{n_experts, budgets: [{flops, runs, best, interval, loss}], power: (a, b) or None, exponent: interval of b}],
      empty where no budget has a parabola with a lowest point inside. An interval is None where too many of the drawn
      parabolas have no lowest point.
    """
    rng = np.random.default_rng(seed)
    if n_experts is None:
        n_experts = np.ones(len(loss))
    results = []
    for e in np.unique(n_experts):
        rows: list[Json] = []
        draws = []
        runs_of_e = np.flatnonzero(n_experts == e)
        for group in budgets(flops[runs_of_e]):
            runs = runs_of_e[group]
            lowest = _parabola(size[runs], loss[runs], rng)
            if lowest is None:
                continue
            mean_flops = float(np.exp(np.mean(np.log(flops[runs]))))
            interval = _interval(lowest.draws, percentiles)
            rows.append(dict(flops=mean_flops, runs=len(group), best=lowest.size, interval=interval, loss=lowest.loss))
            draws.append(lowest.draws)
        if rows:
            of_rows = np.array([row["flops"] for row in rows])
            power = power_law(of_rows, np.array([row["best"] for row in rows]))
            exponent = None
            if power:
                x = np.log(of_rows) - np.log(of_rows).mean()
                exponent = _interval(x @ np.log(draws) / (x @ x), percentiles)
            results.append(dict(n_experts=int(e), budgets=rows, power=power, exponent=exponent))
    return results
