"""The results of `fit add`: the added runs beside their predictions, and the plans before and after.

Fields stand in the order of the JSON that `fit add --json` prints.
"""

import dataclasses

from fit.aliases import Json
from fit.results import Record, WithFindings, optional


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddedRun(Record):
    """An added run, and the law's prediction for it.

    Attributes:
      run: Its name; None where it has none.
      loss: Measured, in nats per token.
      predicted_loss: By the law before the run was added.
      low, high: Ends of the interval of a run; None for a law without draws.
      inside: Whether the loss lies in the interval; None without one.
      outside_fitted_range: What of the run lies outside the fitted range, in words.
      refitted_loss: By the law fitted again; None for a published law.
    """

    run: str | None
    loss: float
    predicted_loss: float
    low: float | None
    high: float | None
    n_active: float
    n_tokens: float
    n_experts: float
    inside: bool | None
    outside_fitted_range: str
    refitted_loss: float | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedModel(Record):
    """The best model of a law for a budget."""

    n_experts: int
    n_active: float
    n_tokens: float
    loss: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanChange(Record):
    """The best model for a budget of training FLOPs, by the law before and after the runs were added."""

    flops: float
    before: PlannedModel
    after: PlannedModel


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AddedRuns(WithFindings):
    """Runs added to a table, and the law's predictions for them.

    Attributes:
      law: Name of the law that predicted them.
      table: Path of the table.
      n_runs: Runs in the table now.
      runs: For each added run its predicted and measured loss, whether that lies in the interval, and refitted_loss,
        by the law fitted again.
      known: Runs that the table had already, each by its name, or by its model where it has none.
      plans: The best model of the run's budget and of ten times that, before and after.
      percentiles: Ends of the interval, in percent; [] for a law without draws.
      next: What to do next, and the command to type.
    """

    law: str
    table: str
    n_runs: int
    runs: list[AddedRun]
    known: list[str]
    plans: list[PlanChange]
    percentiles: list[float]
    next: str

    @property
    def title(self) -> str:
        """The result's title."""
        return "add"

    def rows(self) -> list[Json]:
        """One row for each added run."""
        return [run.to_dict() for run in self.runs]
