"""The surface of each budget of a table of runs: what `fit surface` and `fit.surface` do, and their options."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.fitting.isoflop import budgets
from fit.options import Options, whole
from fit.studies.surfaces import surface
from fit.studies.surfaces.answer import answer
from fit.studies.surfaces.results import BestIntervals, BestSparsity, BudgetSurface, Surfaces
from fit.studies.surfaces.surface import FEWEST_RUNS, Surface
from fit.studies.surfaces.within_runs import sizes_within, sparsity_range
from fit.table import validate
from fit.table.runs import Runs, read_runs
from fit.table.table import Table, read

FEWEST_VALUES = 3  # of sizes and of sparsities at a budget
PERCENTILES = (10, 90)  # ends of intervals


@dataclasses.dataclass(kw_only=True)
class SurfaceOptions(Options):
    """How the surface of each budget is fitted."""

    seed: int = whole("Seed of the refits.", 0)


def fit_surfaces(runs: object, options: SurfaceOptions) -> Surfaces:
    """Fits a surface to each budget of a table of runs.

    Args:
      runs: What `read` takes, with n_active, n_total, n_tokens, loss and sparsity (or n_experts and top_k).
      options: The seed.

    Raises:
      UserError: No budget has FEWEST_RUNS runs with FEWEST_VALUES sizes and sparsities.
    """
    table = read(runs)
    validate.require(table, ("n_active", "n_total", "n_tokens", "sparsity", "loss"))
    all_runs = read_runs(table, ("n_total", "n_tokens", "sparsity"))
    is_like_most = _are_like_most(table)
    surfaces = []
    for budget in budgets(all_runs.flops):
        fitted = budget[is_like_most[budget]]
        if _are_enough(all_runs, fitted):
            surfaces.append(_of_budget(all_runs, fitted, len(budget) - len(fitted), options.seed))
    if not surfaces:
        raise UserError(
            f"{table.path}: no budget has {FEWEST_RUNS} runs with {FEWEST_VALUES} values each of n_total and sparsity"
        )
    return Surfaces(budgets=surfaces, answer_of=answer)


def _are_like_most(table: Table) -> Array:
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


def _are_enough(runs: Runs, fitted: Array) -> bool:
    """Whether a surface can be fitted to the runs of these indices."""
    n_values = [len(np.unique(runs.columns[name][fitted])) for name in ("n_total", "sparsity")]
    return len(fitted) >= FEWEST_RUNS and min(n_values) >= FEWEST_VALUES


def _of_budget(runs: Runs, fitted: Array, left_out: int, seed: int) -> BudgetSurface:
    """The surface of one budget.

    Args:
      runs: Those of all budgets.
      fitted: Indices of the runs to fit.
      left_out: How many other runs the budget has.
      seed: Of the refits.
    """
    n_total = runs.columns["n_total"][fitted]
    sparsity = runs.columns["sparsity"][fitted]
    loss = runs.loss[fitted]
    of_all = surface.fit(n_total, sparsity, loss)
    refits, correlation = surface.refits(n_total, sparsity, loss, seed)
    bests = [refit.best() for refit in refits]
    return BudgetSurface(
        flops=float(np.exp(np.mean(np.log(runs.flops[fitted])))),
        runs=len(fitted),
        left_out=left_out,
        surface=of_all,
        n_total=n_total,
        sparsity=sparsity,
        coefficients=of_all.coefficients.tolist(),
        rmse=float(np.sqrt(np.mean((of_all.loss(n_total, sparsity) - loss) ** 2))),
        correlation=float(np.nanmean(correlation)) if np.isfinite(correlation).any() else None,
        best=of_all.best(),
        intervals=BestIntervals(
            n_total=_interval([best.n_total for best in bests]), sparsity=_interval([best.sparsity for best in bests])
        ),
        at_sizes=_at_sizes(of_all, refits, n_total, sparsity),
    )


def _at_sizes(of_all: Surface, refits: Sequence[Surface], n_total: Array, sparsity: Array) -> list[BestSparsity]:
    """The best sparsity at some sizes between the runs.

    Args:
      of_all: The surface of all runs.
      refits: Those of parts of them.
      n_total, sparsity: Of the runs, [n].
    """
    sizes = sizes_within(n_total, sparsity)
    within = sparsity_range(n_total, sparsity, sizes)
    best, _ = of_all.best_sparsity(sizes, within)
    lows, highs = _interval([refit.best_sparsity(sizes, within)[0] for refit in refits])
    at_edge = np.min(abs(best - np.array(within)), axis=0) < 1e-6
    return [
        BestSparsity(n_total=float(size), sparsity=float(value), interval=[low, high], at_edge=bool(edge))
        for size, value, low, high, edge in zip(sizes, best, lows, highs, at_edge, strict=True)
    ]


def _interval(values: Sequence) -> list:
    """[low, high]: PERCENTILES over the refits, the first axis."""
    return np.percentile(values, PERCENTILES, axis=0).tolist()
