"""The results of `fit next`: the models to train, and how sure the goal is without and with them.

Fields stand in the order of the JSON that `fit next --json` prints.
"""

import dataclasses
from typing import Generic, TypeVar

from fit.aliases import Json
from fit.results import Record, Result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trunk(Record):
    """A model to train, from whose training branches end at several numbers of tokens.

    Attributes:
      n_experts: Experts in each layer, 1 for a dense model.
      d_model: Width.
      n_blocks: Depth.
      n_active: Active parameters.
      n_tokens: Training tokens of each branch.
      flops: Training FLOPs; what branches share counts once.
    """

    n_experts: int
    d_model: int
    n_blocks: int
    n_active: float
    n_tokens: list[int]
    flops: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid(Record):
    """A plain grid of runs: its training FLOPs, and how many runs and trunks it has."""

    flops: float
    runs: int
    trunks: int


T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByStage(Record, Generic[T]):
    """A value with the fitted runs alone, with the chosen ones as well, and with those of the plain grid instead."""

    before: T
    after: T
    grid: T


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpectedGap(Record):
    """How sure the gap of a number of experts to the best one is.

    Attributes:
      n_experts: The number.
      log_loss_above: How far its log loss lies above the best's.
      log_error: The standard error of that.
    """

    n_experts: int
    log_loss_above: float
    log_error: ByStage[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpectedPlan(Record):
    """How sure a plan is.

    Attributes:
      best: n_experts, n_active, n_tokens and loss of its best model.
      level: The share of cases that the interval of the loss holds.
      loss: [low, high] of the best's loss.
      log_error: The standard error of its log loss.
      others: The gaps of the other numbers of experts.
    """

    best: Json
    level: float
    loss: ByStage[list[float]]
    log_error: ByStage[float]
    others: list[ExpectedGap]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpectedCoefficient(Record):
    """How sure a coefficient is: its value and its standard error."""

    name: str
    value: float
    standard_error: ByStage[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpectedCoefficients(Record):
    """How sure the coefficients are that are the goal."""

    coefficients: list[ExpectedCoefficient]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class NextRuns(Result):
    """Which runs to train next.

    Attributes:
      law: Name of the law.
      goal: "plan" or "coefficients".
      target_flops: Training FLOPs of the plan to make surer; None where the goal is coefficients.
      budget: Training FLOPs that may be spent.
      flops: Training FLOPs of all suggested runs; a trunk that branches share counts once.
      flops_one_by_one: Training FLOPs of the same runs, each trained alone.
      seed: A seed for the runs, which none of those that the law was fitted to had.
      trunks: The models to train, each with its numbers of tokens and its FLOPs.
      grid: A plain grid of runs of at most the same budget, to compare with.
      expected: How sure the goal is, of a plan or of coefficients.
    """

    law: str
    goal: str
    target_flops: float | None
    budget: float
    flops: float
    flops_one_by_one: float
    seed: int
    trunks: list[Trunk]
    grid: Grid
    expected: ExpectedPlan | ExpectedCoefficients

    @property
    def title(self) -> str:
        """The result's title."""
        return "next"

    def rows(self) -> list[Json]:
        """One row for each trunk."""
        return [trunk.to_dict() for trunk in self.trunks]
