"""What the search leaves out: whether the width keeps the rank of architectures, and what M alone does not explain.

Axes: n runs.
"""

import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.fitting.isoflop import least_squares
from fit.results import Record, optional
from fit.studies.architecture_search import published
from fit.studies.architecture_search.search_runs import SearchRuns, budget_labels

SAME_M = 0.15  # values of M within this share of their median are one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranks(Record):
    """Correlations of architectures' losses at the median width with their best losses.

    Attributes:
      flops: The budget; None for runs of all budgets.
      cells, runs: Numbers of architectures with several widths, and of their runs.
      r2: Of the regression of one on the other.
      budgets: Within each budget that has enough architectures; None where the budgets are not known.
    """

    flops: float | None = optional()
    cells: int
    runs: int
    pearson: float
    spearman: float
    kendall: float
    r2: float
    budgets: list["Ranks"] | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread(Record):
    """The spread of losses that M alone does not explain, among models of one budget and one M.

    Attributes:
      flops: The budget.
      runs: Number of the models.
      spread: Standard deviation of their losses, in nats per token.
      explained: The share of their variance that ln N_a and ln N explain.
      active, total: Slopes of the loss in ln N_a and ln N.
    """

    flops: float
    runs: int
    spread: float
    explained: float
    active: float
    total: float


def cells_of(
    runs: SearchRuns,
    grid: tuple[Sequence[float], Sequence[float]] = (published.M_OVER_ACTIVE, published.TOTAL_OVER_ACTIVE),
) -> Array:
    """Labels [n], equal for runs whose architectures differ in width alone.

    Each label identifies a run's budget and the nearest point of the search's grid.

    Args:
      runs: of a search.
      grid: its values of (M/N_a, N/N_a).
    """
    of_x, of_y = grid
    return cells_of_groups(runs, _nearest(runs.x, of_x), _nearest(runs.y, of_y))


def cells_of_groups(runs: SearchRuns, *groups: Array) -> Array:
    """Labels [n], equal for runs of one budget that are in the same groups, int [n] each."""
    cells = np.stack([budget_labels(runs.flops), *groups])
    return np.unique(cells, axis=1, return_inverse=True)[1].ravel()


def _nearest(values: Array, grid: Sequence[float]) -> Array:
    """int [n]: the index of the point of the grid that is nearest to each value, by their ratio."""
    return np.argmin(np.abs(np.log(values[:, None] / np.array(grid, float))), axis=1)


def rank(cells: Array, width: Array, loss: Array, path: str = "runs") -> Ranks:
    """The correlation of architectures' losses at the median width with their best losses.

    Each cell of several widths has one loss at the middle width and one best loss.

    Args:
      cells: [n], labels of cells_of.
      width, loss: [n], of the runs.
      path: the table's name in errors.

    Raises:
      UserError: where fewer than 3 cells have several widths.
    """
    from scipy import stats

    losses_at_middle = []
    best_losses = []
    n_runs = 0
    for cell in np.unique(cells):
        rows = np.flatnonzero(cells == cell)
        if len(np.unique(width[rows])) > 1:
            by_width = rows[np.argsort(width[rows], kind="stable")]
            losses_at_middle.append(loss[by_width[(len(by_width) - 1) // 2]])
            best_losses.append(loss[rows].min())
            n_runs += len(rows)
    if len(best_losses) < 3:
        raise UserError(f"{path}: {len(best_losses)} architectures have runs at several widths; ranks need at least 3")
    pearson = float(stats.pearsonr(losses_at_middle, best_losses).statistic)
    return Ranks(
        cells=len(best_losses),
        runs=n_runs,
        pearson=pearson,
        spearman=float(stats.spearmanr(losses_at_middle, best_losses).statistic),
        kendall=float(stats.kendalltau(losses_at_middle, best_losses).statistic),
        r2=pearson**2,
    )


def rank_at_budgets(runs: SearchRuns, cells: Array) -> list[Ranks]:
    """The ranks within each budget, so that differences between budgets cannot make them agree.

    Budgets with too few architectures are left out.

    Args:
      runs: of a search.
      cells: [n], labels of cells_of.
    """
    rows = []
    for of_budget, selected in runs.by_budget():
        with contextlib.suppress(UserError):
            ranks = rank(cells[selected], of_budget.width, of_budget.loss)
            rows.append(dataclasses.replace(ranks, flops=of_budget.budget))
    return rows


def control(runs: SearchRuns) -> list[Spread]:
    """The spread that M alone does not explain, at each budget with 5 models that share one M but differ in N_a and
    N."""
    rows = []
    for of_budget, _ in runs.by_budget():
        of_one_m = of_budget.part(np.abs(np.log(of_budget.m / np.median(of_budget.m))) < SAME_M)
        log_active = np.log(of_one_m.active)
        log_total = np.log(of_one_m.total)
        if len(of_one_m.loss) < 5 or np.ptp(log_active) == 0 or np.ptp(log_total) == 0:
            continue
        (active, total, _), rmse = least_squares((log_active, log_total, np.ones(1)), of_one_m.loss)
        spread = float(of_one_m.loss.std())
        rows.append(
            Spread(
                flops=of_one_m.budget,
                runs=len(of_one_m.loss),
                spread=spread,
                explained=1 - (rmse / spread) ** 2 if spread else 0.0,
                active=float(active),
                total=float(total),
            )
        )
    return rows
