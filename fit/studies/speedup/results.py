"""Speed-ups by a law and beside a baseline: the runs with their factors, and their common factor.

Fields stand in the order of the JSON that `fit speedup --json` prints.
"""

import dataclasses

from fit.aliases import Json
from fit.results import Record, WithFindings, optional


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpeedup(Record):
    """A run, and how much compute the law's recipe needs for its loss.

    Attributes:
      n_active: Its active parameters, as if it had the vocabulary of the law's runs.
      flops: Its training FLOPs with these.
      speed_ratio: Its speed over that of the law's recipe; only by time.
      law_flops: FLOPs with which the recipe reaches its loss; None where no compute that is looked at does.
      factor: How many times the run's compute, or by time its hours, that is.
      interval: [low, high] of the factor; None without draws.
    """

    n_active: float
    n_tokens: float
    n_experts: float
    loss: float
    flops: float
    speed_ratio: float | None = optional()
    law_flops: float | None
    factor: float | None
    interval: list[float] | None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class WithAnswer(WithFindings):
    """A result whose JSON also has its answer, a sentence."""

    @property
    def title(self) -> str:
        """The result's title."""
        return "speedup"

    def names(self) -> list[str]:
        """The fields that to_dict has, and the answer."""
        return [*super().names(), "answer"]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Speedup(WithAnswer):
    """How many times the compute, or the hours, a law's recipe needs for the losses of other runs.

    Attributes:
      law: Name of the law.
      by: "flops" or "time".
      runs: One row for each run.
      factor: Geometric mean over the runs.
      interval: [low, high] of that; None without draws.
      per_tenfold: How many times the factor changes with ten times the compute; None for runs of one compute.
      per_tenfold_interval: [low, high] of that.
      percentiles: Ends of the intervals, in percent; None without draws.
    """

    law: str
    by: str
    runs: list[RunSpeedup]
    factor: float
    interval: list[float] | None
    per_tenfold: float | None
    per_tenfold_interval: list[float] | None
    percentiles: list[float] | None

    def rows(self) -> list[Json]:
        """One row for each run."""
        return [row.to_dict() for row in self.runs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant(Record):
    """A run beside the baseline.

    Attributes:
      run: {column: value} of what tells it from the others.
      loss: Its loss.
      cost: Its FLOPs, by time its hours or the FLOPs that the baseline trains in them.
      baseline_cost: The same of the baseline at that loss.
      factor: baseline_cost over cost.
      interval: [low, high] of the factor.
      beyond: How many times baseline_cost lies above the largest cost of the baseline's runs; 1 within them.
    """

    run: Json
    loss: float
    cost: float
    baseline_cost: float
    factor: float
    interval: list[float]
    beyond: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class FittedFrontier(Record):
    """The frontier of the baseline, loss = c + A C^-b.

    Attributes:
      c: Its floor, in nats per token.
      b: Its exponent.
      runs: How many runs of the baseline it goes through.
    """

    c: float
    b: float
    runs: int


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BaselineSpeedup(WithAnswer):
    """How many times the compute, or the hours, a baseline needs for the losses of variants.

    Attributes:
      baseline: {column: value} of the baseline's runs.
      by: "flops" or "time".
      unit: What costs are in: "FLOPs" or "hours".
      frontier: The baseline's frontier.
      fixed: Those of c and b that were given.
      runs: One row for each variant.
      factor: Geometric mean over the variants.
      interval: [low, high] of that.
      percentiles: Ends of the intervals, in percent.
    """

    baseline: dict[str, str]
    by: str
    unit: str
    frontier: FittedFrontier
    fixed: dict[str, float]
    runs: list[Variant]
    factor: float
    interval: list[float]
    percentiles: list[float]

    def rows(self) -> list[Json]:
        """One row for each variant."""
        return [variant.run | variant.to_dict() for variant in self.runs]
