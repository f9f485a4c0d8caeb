"""IsoFLOP parabolas ("approach 2" of Hoffmann et al. 2022): at each budget a parabola of the loss in ln N, whose lowest
point is the best size; over the budgets N_opt = a C^b.

Where runs are of several numbers of experts, each number has parabolas and a power law of its own. Intervals: parabolas
drawn around the fitted one as its residuals allow (Student's t with the degrees of freedom left), their lowest points,
and power laws through those.

Axes: n runs; draws; budgets.
"""

from collections.abc import Sequence
from typing import Any

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


def parabola(size: Array, loss: Array, rng: np.random.Generator | None = None) -> dict[str, Any] | None:
    """{best, loss, drawn} of a parabola in ln size, sizes and losses [n]: its lowest point, a size, and those of DRAWS
    parabolas around it, NaN where one opens downwards (drawn is None with no degree of freedom left or no rng).

    None with fewer than LEAST sizes, where it opens downwards, or where its lowest point is outside the sizes.
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
    drawn, free = None, len(x) - 3
    if free > 0 and rng is not None:
        variance = np.sum((design @ c - loss) ** 2) / free
        root = np.linalg.cholesky(np.linalg.inv(design.T @ design))
        t = rng.normal(size=(DRAWS, 3)) / np.sqrt(rng.chisquare(free, (DRAWS, 1)) / free)
        some = c + np.sqrt(variance) * t @ root.T
        some[some[:, 0] <= 0] = np.nan
        drawn = np.exp(middle - some[:, 1] / (2 * some[:, 0]))
    return dict(best=float(np.exp(lowest)), loss=float(c[2] - c[1] ** 2 / (4 * c[0])), drawn=drawn)


def profiles(
    size: Array,
    flops: Array,
    loss: Array,
    n_experts: Array | None = None,
    percentiles: Sequence[float] = (10, 90),
    seed: int = 0,
) -> list[Json]:
    """[{n_experts, budgets: [{flops, runs, best, interval, loss}], power: (a, b) or None, exponent: interval of b}] of
    runs [n]; empty where no budget has a parabola with a lowest point inside."""
    rng, out = np.random.default_rng(seed), []
    n_experts = np.ones(len(loss)) if n_experts is None else n_experts
    for e in np.unique(n_experts):
        rows, bests = [], []
        mine = np.flatnonzero(n_experts == e)
        for group in budgets(flops[mine]):
            rows_of = mine[group]
            found = parabola(size[rows_of], loss[rows_of], rng)
            if found:
                ends = None if found["drawn"] is None else _ends(found["drawn"], percentiles)
                mean = float(np.exp(np.mean(np.log(flops[rows_of]))))
                rows.append(dict(flops=mean, runs=len(group), best=found["best"], interval=ends, loss=found["loss"]))
                bests.append(np.full(DRAWS, found["best"]) if found["drawn"] is None else found["drawn"])
        if rows:
            power, exponent = _power(rows, np.array(bests), percentiles)
            out.append(dict(n_experts=int(e), budgets=rows, power=power, exponent=exponent))
    return out


def _ends(drawn: Array, percentiles: Sequence[float]) -> list[float] | None:
    """The percentiles of drawn lowest points or exponents; None where too many of the parabolas have none."""
    known = drawn[np.isfinite(drawn)]
    return np.percentile(known, percentiles).tolist() if len(known) > KNOWN * len(drawn) else None


def _power(
    rows: list[Json], bests: Array, percentiles: Sequence[float]
) -> tuple[tuple[float, float] | None, list[float] | None]:
    """((a, b), interval of b) of best = a C^b, and of the drawn bests [budgets, draws]; None with one budget."""
    if len(rows) < 2:
        return None, None
    x, y = (np.log([row[name] for row in rows]) for name in ("flops", "best"))
    slope, at = np.polyfit(x - x.mean(), y, 1)
    drawn = (x - x.mean()) @ np.log(bests) / np.sum((x - x.mean()) ** 2)
    ends = _ends(drawn, percentiles) if any(row["interval"] for row in rows) else None
    return (float(np.exp(at - slope * x.mean())), float(slope)), ends
