"""IsoFLOP parabolas ("approach 2" of Hoffmann et al. 2022): at each budget a parabola of the loss in ln N, whose lowest
point is the best size; over the budgets N_opt = a C^b.

Where runs are of several numbers of experts, each number has parabolas and a power law of its own. Intervals: parabolas
drawn around the fitted one as its residuals allow (Student's t with the degrees of freedom left), their lowest points,
and power laws through those.

Axes: n runs; draws; budgets.
"""

from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Json

SPREAD = 0.1  # runs whose FLOPs lie within this share are of one budget
APART = 0.03  # a gap in FLOPs of this share separates two budgets
LEAST = 4  # fewest sizes for a parabola
DRAWS = 1000
KNOWN = 0.9  # share of the drawn parabolas that must have a lowest point


def budgets(flops: Array) -> list[Array]:
    """Index arrays of the runs of equal FLOPs [n], ascending; a run whose FLOPs no other has is in none of them."""
    order = np.argsort(flops, kind="stable")
    groups = np.split(order, 1 + np.flatnonzero(np.diff(np.log(flops[order])) > APART))
    return [group for group in groups if len(group) > 1 and np.ptp(np.log(flops[group])) <= SPREAD]


def least_squares(columns: Sequence[Array], values: Array) -> tuple[Array, float]:
    """(coefficients [k], root mean square error) of values [n] = columns [k, n] times coefficients. Columns are scaled,
    for one may be thousands of times another."""
    design = np.stack(np.broadcast_arrays(*columns), axis=1)
    scale = np.linalg.norm(design, axis=0) + 1e-300
    c = np.linalg.lstsq(design / scale, values, rcond=None)[0] / scale
    return c, float(np.sqrt(np.mean((design @ c - values) ** 2)))


def power_law(flops: Array, values: Array) -> tuple[float, float] | None:
    """(a, b) of values = a C^b by least squares in logarithms; None with fewer than 2 positive values."""
    if np.sum(values > 0) < 2:
        return None
    c, v = np.log(flops[values > 0]), np.log(values[values > 0])
    b, a = np.polyfit(c - c.mean(), v, 1)
    return float(np.exp(a - b * c.mean())), float(b)


def _parabola(size: Array, loss: Array, rng: np.random.Generator) -> tuple[float, float, Array] | None:
    """(size, loss, drawn) of the lowest point of a parabola in ln size, sizes and losses [n]; drawn: sizes of those of
    DRAWS parabolas around it, NaN where one opens downwards. None with fewer than LEAST sizes, where the parabola opens
    downwards, or where its lowest point is outside the sizes."""
    x = np.log(size)
    if len(np.unique(np.round(x, 6))) < LEAST:
        return None
    middle, free = x.mean(), len(x) - 3
    design = np.stack([(x - middle) ** 2, x - middle, np.ones(len(x))], axis=1)
    c = np.linalg.lstsq(design, loss, rcond=None)[0]
    lowest = middle - c[1] / (2 * c[0])
    if c[0] <= 0 or not x.min() <= lowest <= x.max():
        return None
    variance = np.sum((design @ c - loss) ** 2) / free
    root = np.linalg.cholesky(np.linalg.inv(design.T @ design))
    t = rng.normal(size=(DRAWS, 3)) / np.sqrt(rng.chisquare(free, (DRAWS, 1)) / free)
    some = c + np.sqrt(variance) * t @ root.T
    some[some[:, 0] <= 0] = np.nan
    drawn = np.exp(middle - some[:, 1] / (2 * some[:, 0]))
    return float(np.exp(lowest)), float(c[2] - c[1] ** 2 / (4 * c[0])), drawn


def profiles(
    size: Array,
    flops: Array,
    loss: Array,
    n_experts: Array | None = None,
    percentiles: Sequence[float] = (10, 90),
    seed: int = 0,
) -> list[Json]:
    """[{n_experts, budgets: [{flops, runs, best, interval, loss}], power: (a, b) or None, exponent: interval of b}] of
    runs [n]; empty where no budget has a parabola with a lowest point inside. An interval is None where too many of the
    drawn parabolas have no lowest point."""
    rng, out = np.random.default_rng(seed), []
    n_experts = np.ones(len(loss)) if n_experts is None else n_experts

    def ends(drawn: Array) -> list[float] | None:
        known = drawn[np.isfinite(drawn)]
        return np.percentile(known, percentiles).tolist() if len(known) > KNOWN * len(drawn) else None

    for e in np.unique(n_experts):
        rows, bests = [], []
        mine = np.flatnonzero(n_experts == e)
        for group in budgets(flops[mine]):
            rows_of = mine[group]
            if found := _parabola(size[rows_of], loss[rows_of], rng):
                best, lowest, drawn = found
                mean = float(np.exp(np.mean(np.log(flops[rows_of]))))
                rows.append(dict(flops=mean, runs=len(group), best=best, interval=ends(drawn), loss=lowest))
                bests.append(drawn)
        if rows:
            at, exponent = np.array([row["flops"] for row in rows]), None
            if power := power_law(at, np.array([row["best"] for row in rows])):
                x = np.log(at) - np.log(at).mean()
                exponent = ends(x @ np.log(bests) / (x @ x))
            out.append(dict(n_experts=int(e), budgets=rows, power=power, exponent=exponent))
    return out
