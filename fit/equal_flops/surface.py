"""IsoFLOP surfaces of the loss over parameters and sparsity, Abnar et al. (2025, arXiv 2501.12370): at each budget

  L = a_1 x + a_2 x^2 + b_1 z + b_2 z^2 + c_1 x z + c_2 (x z)^2 + d,  x = ln n_total, z = -ln(1 - sparsity)

At a fixed sparsity it is a parabola in x, at a fixed size one in z, so the best x or z alone, within the range that was
run, is the parabola's lowest point or an end. For the best of both, z is searched, with the best size at each z in
closed form. Refits to random parts of the runs show how sure it is; each also predicts the runs that it has not seen.

Axes: n runs; 7 coefficients, in the order above.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fit.aliases import Array, Json, Numbers
from fit.data.runs import read_runs
from fit.data.table import Table, read
from fit.equal_flops.isoflop import budgets, least_squares
from fit.errors import UserError
from fit.messages.units import amount

REFITS, KEPT = 100, 0.8  # refits, and the share of the runs in each
LEAST = 9  # runs at a budget: the coefficients and two more
GRID, REFINED = 257, 6  # of the search over z: points, and how often they are laid around the best one


@dataclasses.dataclass
class Surface:
    """coefficients [7]; size and sparsity: (low, high) that were run."""

    coefficients: np.ndarray
    size: tuple
    sparsity: tuple

    def loss(self, n_total: Numbers, sparsity: Numbers) -> Array:
        """In nats per token; broadcasts."""
        return self._at(np.log(n_total), -np.log1p(-np.asarray(sparsity, float)))

    def _at(self, x: Array, z: Array) -> Array:
        a1, a2, b1, b2, c1, c2, d = self.coefficients
        return (a1 + a2 * x) * x + (b1 + b2 * z) * z + (c1 + c2 * x * z) * x * z + d

    def best_size(self, sparsity: Numbers) -> tuple[Array, Array]:
        """(n_total, loss) of the best size at each sparsity."""
        z, ends = -np.log1p(-np.asarray(sparsity, float)), np.log(self.size)
        a1, a2, _, _, c1, c2, _ = self.coefficients
        x = _lowest(a2 + c2 * z**2, a1 + c1 * z, ends, lambda x: self._at(x, z))
        return np.exp(x), self._at(x, z)

    def best_sparsity(self, n_total: Numbers, within: Sequence[Numbers] | None = None) -> tuple[Array, Array]:
        """(sparsity, loss) of the best sparsity at each size; within: (low, high), other than those that were run."""
        x, ends = np.log(np.asarray(n_total, float)), -np.log1p(-np.array(within or self.sparsity))
        _, _, b1, b2, c1, c2, _ = self.coefficients
        z = _lowest(b2 + c2 * x**2, b1 + c1 * x, ends, lambda z: self._at(x, z))
        return -np.expm1(-z), self._at(x, z)

    def best(self) -> Json:
        """{n_total, sparsity, loss, at_edge} of the best of both; at_edge names what lies at the end of its range."""
        low, high = first, last = -np.log1p(-np.array(self.sparsity))
        for _ in range(REFINED):
            z = np.linspace(low, high, GRID)
            i = int(np.argmin(self.best_size(-np.expm1(-z))[1]))
            low, high = z[max(i - 1, 0)], z[min(i + 1, GRID - 1)]
        sparsity = float(np.clip(-np.expm1(-z[i]), *self.sparsity))
        n_total, loss = map(float, self.best_size(sparsity))
        within = dict(n_total=(np.log(n_total), np.log(self.size)), sparsity=(z[i], (first, last)))
        edge = [name for name, (value, ends) in within.items() if _is_at_end(value, ends)]
        return dict(n_total=n_total, sparsity=sparsity, loss=loss, at_edge=edge)


def _is_at_end(value: float, ends: Array | Sequence[float]) -> bool:
    return min(abs(value - end) for end in ends) < 1e-6 * max(1.0, abs(value))


def _lowest(square: Array, slope: Array, ends: Array, value: Callable[[Array], Array]) -> Array:
    """Where square v^2 + slope v is least for v within ends, given its value(v): the lowest point, or an end."""
    with np.errstate(divide="ignore", invalid="ignore"):
        vertex = np.where(square > 0, -slope / (2 * square), ends[0])
    tried = np.stack(np.broadcast_arrays(np.clip(vertex, *ends), ends[0], ends[1]))
    return np.take_along_axis(tried, np.argmin(value(tried), axis=0)[None], axis=0)[0]


def fit(n_total: Array, sparsity: Array, loss: Array) -> Surface:
    """The Surface by least squares."""
    x, z = np.log(n_total), -np.log1p(-sparsity)
    c, _ = least_squares((x, x**2, z, z**2, x * z, (x * z) ** 2, np.ones(1)), loss)
    return Surface(c, (n_total.min(), n_total.max()), (sparsity.min(), sparsity.max()))


def reach(n_total: Array, sparsity: Array, sizes: Array) -> tuple[Array, Array]:
    """(low, high) of the sparsities at which runs lie on both sides of each size, NaN where none do; between the
    sparsities of the runs (n_total, sparsity) the smallest and largest size follow a line in z."""
    z, x = -np.log1p(-sparsity), np.log(n_total)
    at = np.unique(z)
    grid = np.union1d(np.linspace(at[0], at[-1], GRID), at)[:, None]
    least, most = (np.interp(grid, at, [end(x[z == level]) for level in at]) for end in (np.min, np.max))
    inside = (np.log(sizes) >= least - 1e-9) & (np.log(sizes) <= most + 1e-9)
    known = inside.any(axis=0)
    low = np.where(known, np.min(np.where(inside, grid, np.inf), axis=0), np.nan)
    high = np.where(known, np.max(np.where(inside, grid, -np.inf), axis=0), np.nan)
    return -np.expm1(-low), -np.expm1(-high)


def sizes_within(n_total: Array, sparsity: Array) -> Array:
    """Five sizes from the smallest to the largest that lies between the runs of 3 or more sparsities."""
    every = np.geomspace(n_total.min(), n_total.max(), GRID)
    ends = np.array([(n_total[sparsity == s].min(), n_total[sparsity == s].max()) for s in np.unique(sparsity)])
    enough = ((ends[:, :1] <= every) & (every <= ends[:, 1:])).sum(axis=0) >= 3
    return np.geomspace(*every[enough][[0, -1]], 5) if enough.any() else np.array([])


def refits(n_total: Array, sparsity: Array, loss: Array, seed: int = 0) -> tuple[list[Surface], Array]:
    """(Surfaces fitted to KEPT of the runs, correlation [REFITS] of predicted and measured loss on the others; NaN
    where fewer than 3 are left)."""
    rng, surfaces, correlation = np.random.default_rng(seed), [], []
    ends = dict(size=(n_total.min(), n_total.max()), sparsity=(sparsity.min(), sparsity.max()))
    for _ in range(REFITS):
        kept, out = np.split(rng.permutation(len(loss)), [max(LEAST - 2, round(KEPT * len(loss)))])
        one = fit(n_total[kept], sparsity[kept], loss[kept])
        surfaces.append(dataclasses.replace(one, **ends))
        predicted = one.loss(n_total[out], sparsity[out])
        enough = len(out) > 2 and np.ptp(predicted) > 0 and np.ptp(loss[out]) > 0
        correlation.append(np.corrcoef(predicted, loss[out])[0, 1] if enough else np.nan)
    return surfaces, np.array(correlation)


def _alike(table: Table) -> Array:
    """bool [n_runs]: the dense models, and the mixtures whose experts are as narrow as most mixtures'. Size and
    sparsity do not tell finer experts apart."""
    if not {"d_expert", "d_model", "n_experts"} <= set(table.columns):
        return np.ones(len(table), bool)
    mixture, split = table.numbers("n_experts") > 1, np.round(table.numbers("granularity"))
    if not mixture.any():
        return ~mixture
    values, counts = np.unique(split[mixture], return_counts=True)
    return ~mixture | (split == values[np.argmax(counts)])


def _interval(values: Sequence[Any]) -> list:
    """[low, high]: the 10th and 90th percentile over the refits, the first axis."""
    return np.percentile(values, (10, 90), axis=0).tolist()


def of_table(runs: object, seed: int = 0) -> list[dict[str, Any]]:
    """[{flops, runs, left_out, surface, points (n_total, sparsity), coefficients, rmse, correlation, best, intervals:
    {n_total, sparsity}, at_sizes: [{n_total, sparsity, interval, at_edge}]}] for each budget of a table of runs with
    n_active, n_total, n_tokens, loss and sparsity (or n_experts and top_k); left_out: how many of the budget's runs
    have finer or coarser experts than most. UserError where no budget has LEAST runs, 3 sizes and 3 sparsities."""
    table = read(runs)
    runs, path = read_runs(table, ("n_total", "n_tokens", "sparsity")), table.path
    if "n_active" not in table:
        raise UserError(f"{path}: column n_active is missing: budgets are of 6 n_active n_tokens FLOPs")
    n_total, sparsity, alike = runs.columns["n_total"], runs.columns["sparsity"], _alike(table)
    rows = []
    for every in budgets(runs.flops):
        group = every[alike[every]]
        n, s, loss = n_total[group], sparsity[group], runs.loss[group]
        if len(group) < LEAST or len(np.unique(n)) < 3 or len(np.unique(s)) < 3:
            continue
        surface = fit(n, s, loss)
        drawn, correlation = refits(n, s, loss, seed)
        bests = [one.best() for one in drawn]
        sizes = sizes_within(n, s)
        reached = reach(n, s, sizes)
        best, *others = (one.best_sparsity(sizes, reached)[0] for one in (surface, *drawn))
        at_edge = np.min(abs(best - np.array(reached)), axis=0) < 1e-6
        rows.append(
            dict(
                flops=float(np.exp(np.mean(np.log(runs.flops[group])))),
                runs=len(group),
                left_out=len(every) - len(group),
                surface=surface,
                points=(n, s),
                coefficients=surface.coefficients.tolist(),
                rmse=float(np.sqrt(np.mean((surface.loss(n, s) - loss) ** 2))),
                correlation=float(np.nanmean(correlation)) if np.isfinite(correlation).any() else None,
                best=surface.best(),
                intervals={name: _interval([b[name] for b in bests]) for name in ("n_total", "sparsity")},
                at_sizes=[
                    dict(n_total=float(a), sparsity=float(b), interval=[c, d], at_edge=bool(edge))
                    for a, b, c, d, edge in zip(sizes, best, *_interval(others), at_edge, strict=True)
                ],
            )
        )
    if not rows:
        raise UserError(f"{path}: no budget has {LEAST} runs with 3 values each of n_total and sparsity")
    return rows


def text(found: dict) -> str:
    """Of {budgets: what surface.of_table found}."""
    rows, lines = found["budgets"], []
    for row in rows:
        best, (low_n, high_n), (low_s, high_s) = row["best"], *row["intervals"].values()
        held = "" if row["correlation"] is None else f", held-out correlation {row['correlation']:.3f}"
        fine = f" ({row['left_out']} of finer or coarser experts left out)" if row["left_out"] else ""
        lines.append(f"{row['flops']:.3g} FLOPs: {row['runs']} runs{fine}, RMSE {row['rmse']:.4f}{held}")
        ends = " and ".join(best["at_edge"])
        edge = f"; at the end of the {ends} that were run: not an optimum" if ends else ""
        lines.append(
            f"  best: n_total {amount(best['n_total'])} [{amount(low_n)}, {amount(high_n)}], sparsity "
            f"{best['sparsity']:.3f} [{low_s:.3f}, {high_s:.3f}], loss {best['loss']:.4f}{edge}"
        )
        at = ", ".join(
            f"{size['sparsity']:.3f}{'*' if size['at_edge'] else ''} [{size['interval'][0]:.3f}, "
            f"{size['interval'][1]:.3f}] at {amount(size['n_total'])}"
            for size in row["at_sizes"]
        )
        lines += [f"  best sparsity by n_total: {at}"] if at else []
    if any(size["at_edge"] for row in rows for size in row["at_sizes"]):
        lines.append("* at the end of the sparsities that were run at about that size: not an optimum")
    return "\n".join(lines)
