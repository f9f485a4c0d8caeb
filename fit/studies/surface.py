"""IsoFLOP surfaces of the loss over parameters and sparsity, Abnar et al. (2025, arXiv 2501.12370).

At each budget

  L = a_1 x + a_2 x^2 + b_1 z + b_2 z^2 + c_1 x z + c_2 (x z)^2 + d,  x = ln n_total, z = -ln(1 - sparsity)

At a fixed sparsity it is a parabola in x, at a fixed size one in z. So the best x or z alone, within the range that was
run, is the parabola's lowest point or an end. For the best of both, z is searched, with the best size at each z in
closed form. Refits to random parts of the runs show how sure it is. Each refit also predicts the runs that it has not
seen.

Axes: n runs; 7 coefficients, in the order above; refits.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fit.aliases import Array, Json, Numbers
from fit.errors import UserError
from fit.fitting.isoflop import budgets, least_squares
from fit.messages.lines import Line
from fit.messages.units import amount
from fit.table import validate
from fit.table.runs import Runs, read_runs
from fit.table.table import Table, read

REFITS = 100
FITTED_SHARE = 0.8  # of the runs, in each refit
LEAST = 9  # runs at a budget: the coefficients and two more
GRID = 257  # points of the search over z
REFINED = 6  # how often these are laid around the best one


def _z_of(sparsity: Numbers) -> Array:
    """-ln(1 - sparsity)."""
    return -np.log1p(-np.asarray(sparsity, float))


def _sparsity_of(z: Numbers) -> Array:
    """1 - e^-z."""
    return -np.expm1(-np.asarray(z, float))


@dataclasses.dataclass(frozen=True)
class Surface:
    """A fitted surface.

    Attributes:
      coefficients: [7].
      size, sparsity: (lowest, highest) that were run.
    """

    coefficients: np.ndarray
    size: tuple
    sparsity: tuple

    def loss(self, n_total: Numbers, sparsity: Numbers) -> Array:
        """Loss in nats per token; the arguments broadcast together."""
        return self._at(np.log(n_total), _z_of(sparsity))

    def _at(self, x: Array, z: Array) -> Array:
        """Loss at x and z."""
        a1, a2, b1, b2, c1, c2, d = self.coefficients
        return (a1 + a2 * x) * x + (b1 + b2 * z) * z + (c1 + c2 * x * z) * x * z + d

    def best_size(self, sparsity: Numbers) -> tuple[Array, Array]:
        """(n_total, loss) of the best size at each sparsity."""
        z = _z_of(sparsity)
        a1, a2, _, _, c1, c2, _ = self.coefficients
        x = _lowest(a2 + c2 * z**2, a1 + c1 * z, np.log(self.size), lambda x: self._at(x, z))
        return np.exp(x), self._at(x, z)

    def best_sparsity(self, n_total: Numbers, within: Sequence[Numbers] | None = None) -> tuple[Array, Array]:
        """(sparsity, loss) of the best sparsity at each size.

        Args:
          n_total: the sizes.
          within: (lowest, highest) sparsity, instead of those of the runs.
        """
        x = np.log(np.asarray(n_total, float))
        ends = _z_of(np.array(within or self.sparsity))
        _, _, b1, b2, c1, c2, _ = self.coefficients
        z = _lowest(b2 + c2 * x**2, b1 + c1 * x, ends, lambda z: self._at(x, z))
        return _sparsity_of(z), self._at(x, z)

    def best(self) -> Json:
        """{n_total, sparsity, loss, at_edge} of the best of both; at_edge names what lies at the end of its range."""
        z_ends = _z_of(np.array(self.sparsity))
        low, high = z_ends
        for _ in range(REFINED):
            z = np.linspace(low, high, GRID)
            i = int(np.argmin(self.best_size(_sparsity_of(z))[1]))
            low = z[max(i - 1, 0)]
            high = z[min(i + 1, GRID - 1)]
        sparsity = float(np.clip(_sparsity_of(z[i]), *self.sparsity))
        n_total, loss = map(float, self.best_size(sparsity))
        at_edge = []
        if _is_at_end(np.log(n_total), np.log(self.size)):
            at_edge.append("n_total")
        if _is_at_end(z[i], z_ends):
            at_edge.append("sparsity")
        return dict(n_total=n_total, sparsity=sparsity, loss=loss, at_edge=at_edge)


def _is_at_end(value: float, ends: Array | Sequence[float]) -> bool:
    """Whether a value is one of the ends, but for rounding."""
    return min(abs(value - end) for end in ends) < 1e-6 * max(1.0, abs(value))


def _lowest(square: Array, slope: Array, ends: Array, value: Callable[[Array], Array]) -> Array:
    """Where square v^2 + slope v is least for v within ends: the lowest point, or an end.

    Args:
      square, slope: of the parabolas; they broadcast together.
      ends: [2, ...].
      value: the parabolas' values, of v.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        vertex = np.where(square > 0, -slope / (2 * square), ends[0])
    candidates = np.stack(np.broadcast_arrays(np.clip(vertex, *ends), ends[0], ends[1]))
    return np.take_along_axis(candidates, np.argmin(value(candidates), axis=0)[None], axis=0)[0]


def fit(n_total: Array, sparsity: Array, loss: Array) -> Surface:
    """Fits a Surface to runs [n] by least squares."""
    x = np.log(n_total)
    z = _z_of(sparsity)
    coefficients, _ = least_squares((x, x**2, z, z**2, x * z, (x * z) ** 2, np.ones(1)), loss)
    return Surface(coefficients, (n_total.min(), n_total.max()), (sparsity.min(), sparsity.max()))


def sparsity_range(n_total: Array, sparsity: Array, sizes: Array) -> tuple[Array, Array]:
    """The sparsities at which runs lie on both sides of each size.

    Between the sparsities that were run, the smallest and the largest size follow a line in z.

    Args:
      n_total, sparsity: [n], of the runs.
      sizes: n_total in question.

    Returns:
      (lowest, highest) sparsity of each size; NaN where there is none.
    """
    x = np.log(n_total)
    z = _z_of(sparsity)
    levels = np.unique(z)
    grid = np.union1d(np.linspace(levels[0], levels[-1], GRID), levels)[:, None]
    smallest = np.interp(grid, levels, [np.min(x[z == level]) for level in levels])
    largest = np.interp(grid, levels, [np.max(x[z == level]) for level in levels])
    inside = (np.log(sizes) >= smallest - 1e-9) & (np.log(sizes) <= largest + 1e-9)
    exists = inside.any(axis=0)
    low = np.where(exists, np.min(np.where(inside, grid, np.inf), axis=0), np.nan)
    high = np.where(exists, np.max(np.where(inside, grid, -np.inf), axis=0), np.nan)
    return _sparsity_of(low), _sparsity_of(high)


def sizes_within(n_total: Array, sparsity: Array) -> Array:
    """Five sizes from the smallest to the largest that lies between the runs of 3 or more sparsities.

    Args:
      n_total, sparsity: [n], of the runs.

    Returns:
      n_total [5], or [0] where no size does.
    """
    every = np.geomspace(n_total.min(), n_total.max(), GRID)
    groups = [n_total[sparsity == level] for level in np.unique(sparsity)]
    ends = np.array([(group.min(), group.max()) for group in groups])
    enough = ((ends[:, :1] <= every) & (every <= ends[:, 1:])).sum(axis=0) >= 3
    if not enough.any():
        return np.array([])
    smallest, largest = every[enough][[0, -1]]
    return np.geomspace(smallest, largest, 5)


def refits(n_total: Array, sparsity: Array, loss: Array, seed: int = 0) -> tuple[list[Surface], Array]:
    """Fits surfaces to random parts of the runs [n].

    Returns:
      (surfaces fitted to FITTED_SHARE of the runs, [REFITS] correlation of predicted and measured loss on the others;
      NaN where fewer than 3 are left).
    """
    rng = np.random.default_rng(seed)
    surfaces = []
    correlation = []
    n_fitted = max(LEAST - 2, round(FITTED_SHARE * len(loss)))
    for _ in range(REFITS):
        fitted, left_out = np.split(rng.permutation(len(loss)), [n_fitted])
        surface = dataclasses.replace(
            fit(n_total[fitted], sparsity[fitted], loss[fitted]),
            size=(n_total.min(), n_total.max()),
            sparsity=(sparsity.min(), sparsity.max()),
        )
        surfaces.append(surface)
        predicted = surface.loss(n_total[left_out], sparsity[left_out])
        enough = len(left_out) > 2 and np.ptp(predicted) > 0 and np.ptp(loss[left_out]) > 0
        correlation.append(np.corrcoef(predicted, loss[left_out])[0, 1] if enough else np.nan)
    return surfaces, np.array(correlation)


def _alike(table: Table) -> Array:
    """bool [n]: the dense models, and the mixtures whose experts are as narrow as most mixtures'.

    Size and sparsity do not tell finer experts apart.
    """
    if not all(name in table for name in ("d_expert", "d_model", "n_experts")):
        return np.ones(len(table), bool)
    is_mixture = table.numbers("n_experts") > 1
    granularity = np.round(table.numbers("granularity"))
    if not is_mixture.any():
        return ~is_mixture
    values, counts = np.unique(granularity[is_mixture], return_counts=True)
    return ~is_mixture | (granularity == values[np.argmax(counts)])


def _interval(values: Sequence[Any]) -> list:
    """[low, high]: the 10th and 90th percentile over the refits, the first axis."""
    return np.percentile(values, (10, 90), axis=0).tolist()


def of_table(runs: object, seed: int = 0) -> list[dict[str, Any]]:
    """Fits a surface to each budget of a table of runs.

    Args:
      runs: a table, or what `read` takes for one, with n_active, n_total, n_tokens, loss and sparsity (or n_experts and
        top_k).
      seed: of the refits.

    Returns:
      [{flops, runs, left_out, surface, points (n_total, sparsity), coefficients, rmse, correlation, best, intervals:
      {n_total, sparsity}, at_sizes: [{n_total, sparsity, interval, at_edge}]}]. left_out: how many of the budget's
      runs have finer or coarser experts than most.

    Raises:
      UserError: where no budget has LEAST runs, 3 sizes and 3 sparsities.
    """
    table = read(runs)
    validate.require(table, ("n_active", "n_total", "n_tokens", "sparsity", "loss"))
    fitted_runs = read_runs(table, ("n_total", "n_tokens", "sparsity"))
    alike = _alike(table)
    rows = []
    for budget in budgets(fitted_runs.flops):
        group = budget[alike[budget]]
        row = _of_budget(fitted_runs, group, len(budget) - len(group), seed)
        if row is not None:
            rows.append(row)
    if not rows:
        raise UserError(f"{table.path}: no budget has {LEAST} runs with 3 values each of n_total and sparsity")
    return rows


def _of_budget(runs: Runs, group: Array, left_out: int, seed: int) -> dict[str, Any] | None:
    """The entry of of_table of the runs `group` (indices) of one budget; None where they are too few.

    left_out: how many other runs the budget has.
    """
    n_total = runs.columns["n_total"][group]
    sparsity = runs.columns["sparsity"][group]
    loss = runs.loss[group]
    if len(group) < LEAST or len(np.unique(n_total)) < 3 or len(np.unique(sparsity)) < 3:
        return None
    surface = fit(n_total, sparsity, loss)
    drawn, correlation = refits(n_total, sparsity, loss, seed)
    bests = [refit.best() for refit in drawn]
    return dict(
        flops=float(np.exp(np.mean(np.log(runs.flops[group])))),
        runs=len(group),
        left_out=left_out,
        surface=surface,
        points=(n_total, sparsity),
        coefficients=surface.coefficients.tolist(),
        rmse=float(np.sqrt(np.mean((surface.loss(n_total, sparsity) - loss) ** 2))),
        correlation=float(np.nanmean(correlation)) if np.isfinite(correlation).any() else None,
        best=surface.best(),
        intervals={name: _interval([best[name] for best in bests]) for name in ("n_total", "sparsity")},
        at_sizes=_at_sizes(surface, drawn, n_total, sparsity),
    )


def _at_sizes(surface: Surface, drawn: Sequence[Surface], n_total: Array, sparsity: Array) -> list[Json]:
    """[{n_total, sparsity, interval, at_edge}]: the best sparsity at some sizes between the runs [n].

    Args:
      surface: the fitted one.
      drawn: its refits.
      n_total, sparsity: [n], of the runs.
    """
    sizes = sizes_within(n_total, sparsity)
    within = sparsity_range(n_total, sparsity, sizes)
    best, _ = surface.best_sparsity(sizes, within)
    of_refits = [refit.best_sparsity(sizes, within)[0] for refit in drawn]
    at_edge = np.min(abs(best - np.array(within)), axis=0) < 1e-6
    return [
        dict(n_total=float(size), sparsity=float(value), interval=[low, high], at_edge=bool(edge))
        for size, value, low, high, edge in zip(sizes, best, *_interval(of_refits), at_edge, strict=True)
    ]


def answer(result: dict) -> Iterator[Line]:
    """The lines that `fit surface` prints. result: {budgets: the rows of surface.of_table}."""
    for row in result["budgets"]:
        yield _line_of_budget(row)
    if any(size["at_edge"] for row in result["budgets"] for size in row["at_sizes"]):
        yield Line("", "* at the end of the sparsities that were run at about that size: not an optimum")


def _line_of_budget(row: Json) -> Line:
    """The fit of a budget, its best size and sparsity, and the best sparsity at some sizes."""
    best = row["best"]
    (low_n, high_n), (low_s, high_s) = row["intervals"].values()
    held_out = "" if row["correlation"] is None else f", held-out correlation {row['correlation']:.3f}"
    left_out = f" ({row['left_out']} of finer or coarser experts left out)" if row["left_out"] else ""
    ends = " and ".join(best["at_edge"])
    edge = f"; at the end of the {ends} that were run: not an optimum" if ends else ""
    head = f"{row['runs']} runs{left_out}, RMSE {row['rmse']:.4f}{held_out}"
    more = [
        f"  best: n_total {amount(best['n_total'])} [{amount(low_n)}, {amount(high_n)}], sparsity "
        f"{best['sparsity']:.3f} [{low_s:.3f}, {high_s:.3f}], loss {best['loss']:.4f}{edge}",
    ]
    at_sizes = []
    for size in row["at_sizes"]:
        low, high = size["interval"]
        star = "*" if size["at_edge"] else ""
        at_sizes.append(f"{size['sparsity']:.3f}{star} [{low:.3f}, {high:.3f}] at {amount(size['n_total'])}")
    if at_sizes:
        more.append(f"  best sparsity by n_total: {', '.join(at_sizes)}")
    return Line(f"{row['flops']:.3g} FLOPs", head, tuple(more))
