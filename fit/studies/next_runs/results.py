"""The results of `fit next`: the models to train, and how sure the goal is with them.

Fields stand in the order of the JSON that `fit next --json` prints.
"""

import dataclasses

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
      expected: How sure the goal is with the fitted runs alone, with these runs as well, and with the plain grid.
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
    expected: Json

    @property
    def title(self) -> str:
        """The result's title."""
        return "next"

    def rows(self) -> list[Json]:
        """One row for each trunk."""
        return [trunk.to_dict() for trunk in self.trunks]
