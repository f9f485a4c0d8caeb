"""The results of `fit surface`: the surface of each budget, its best model, and the best sparsity of some sizes.

Fields stand in the order of the JSON that `fit surface --json` prints.
"""

import dataclasses

from fit.aliases import Array, Json
from fit.results import NOT_IN_JSON, Record, Result
from fit.studies.surfaces.surface import BestModel, Surface


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestIntervals(Record):
    """[low, high] of the best model's size and sparsity: the 10th and the 90th percentile over the refits."""

    n_total: list[float]
    sparsity: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestSparsity(Record):
    """The best sparsity of models of one size.

    Attributes:
      n_total: The size.
      sparsity: The best of those between the runs.
      interval: [low, high] of it over the refits.
      at_edge: Whether it lies at the end of those that were run.
    """

    n_total: float
    sparsity: float
    interval: list[float]
    at_edge: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetSurface(Record):
    """The surface of the runs of one budget.

    Attributes:
      flops: Training FLOPs, the geometric mean of the runs.
      runs: How many runs it is fitted to.
      left_out: How many other runs of the budget have finer or coarser experts than most.
      surface: The surface itself.
      n_total, sparsity: Of each run, [runs].
      coefficients: Those of the surface.
      rmse: Root mean square of the runs' distances from the surface, in nats per token.
      correlation: Of predicted and measured losses that refits have not seen, at the mean; None for too few runs.
      best: The best model.
      intervals: Those of the best model.
      at_sizes: The best sparsity of some sizes between the runs.
    """

    flops: float
    runs: int
    left_out: int
    surface: Surface = dataclasses.field(compare=False, metadata=NOT_IN_JSON)
    n_total: Array = dataclasses.field(compare=False, metadata=NOT_IN_JSON)
    sparsity: Array = dataclasses.field(compare=False, metadata=NOT_IN_JSON)
    coefficients: list[float]
    rmse: float
    correlation: float | None
    best: BestModel
    intervals: BestIntervals
    at_sizes: list[BestSparsity]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Surfaces(Result):
    """The loss over total parameters and sparsity at equal FLOPs.

    Attributes:
      budgets: The surface of each budget.
    """

    budgets: list[BudgetSurface]

    @property
    def title(self) -> str:
        """The result's title."""
        return "surface"

    def rows(self) -> list[Json]:
        """One row for each budget."""
        return [budget.to_dict() for budget in self.budgets]
