"""The answer of `fit surface`: for each budget the fit, its best model, and the best sparsity of some sizes."""

from collections.abc import Iterator

from fit.messages.lines import Line
from fit.messages.units import say
from fit.studies.surfaces.results import BestSparsity, BudgetSurface, Surfaces

FITTED = "{runs} runs{left_out}, RMSE {rmse:.4f}{held_out}"
LEFT_OUT = " ({count} of finer or coarser experts left out)"
HELD_OUT = ", held-out correlation {correlation:.3f}"
BEST = (
    "  best: n_total {n_total:amount} [{low_size:amount}, {high_size:amount}], sparsity {sparsity:.3f} "
    "[{low_sparsity:.3f}, {high_sparsity:.3f}], loss {loss:.4f}{edge}"
)
AT_EDGE = "; at the end of the {names} that were run: not an optimum"
AT_SIZE = "{sparsity:.3f}{star} [{low:.3f}, {high:.3f}] at {n_total:amount}"
STAR = "* at the end of the sparsities that were run at about that size: not an optimum"


def answer(result: Surfaces) -> Iterator[Line]:
    """The lines that `fit surface` prints."""
    for budget in result.budgets:
        yield _of_budget(budget)
    if any(size.at_edge for budget in result.budgets for size in budget.at_sizes):
        yield Line("", STAR)


def _of_budget(budget: BudgetSurface) -> Line:
    """The fit of a budget, and below it its best model and the best sparsity of some sizes."""
    held_out = "" if budget.correlation is None else say(HELD_OUT, correlation=budget.correlation)
    left_out = say(LEFT_OUT, count=budget.left_out) if budget.left_out else ""
    fitted = say(FITTED, runs=budget.runs, left_out=left_out, rmse=budget.rmse, held_out=held_out)
    below = [_best(budget)]
    if budget.at_sizes:
        below.append(f"  best sparsity by n_total: {', '.join(map(_at_size, budget.at_sizes))}")
    return Line(f"{budget.flops:.3g} FLOPs", fitted, tuple(below))


def _best(budget: BudgetSurface) -> str:
    """The best model of a budget, with its intervals."""
    best = budget.best
    low_size, high_size = budget.intervals.n_total
    low_sparsity, high_sparsity = budget.intervals.sparsity
    edge = say(AT_EDGE, names=" and ".join(best.at_edge)) if best.at_edge else ""
    ends = dict(low_size=low_size, high_size=high_size, low_sparsity=low_sparsity, high_sparsity=high_sparsity)
    return say(BEST, n_total=best.n_total, sparsity=best.sparsity, loss=best.loss, edge=edge, **ends)


def _at_size(size: BestSparsity) -> str:
    """The best sparsity of one size, with a star at the end of what was run."""
    low, high = size.interval
    star = "*" if size.at_edge else ""
    return say(AT_SIZE, sparsity=size.sparsity, star=star, low=low, high=high, n_total=size.n_total)
