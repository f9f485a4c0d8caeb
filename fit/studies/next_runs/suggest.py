"""The runs to train next: what `fit next` and `fit.next` do."""

import dataclasses

from fit.aliases import Json
from fit.fitted_law.law import Law
from fit.fitting.float64 import float64
from fit.planning.inputs.options import experts_to_compare
from fit.results import Record, Result
from fit.studies.next_runs import next_answer
from fit.studies.next_runs.options import NextOptions


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
    d_model: float
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


def suggest(law: Law, runs: object, options: NextOptions) -> NextRuns:
    """The runs to train next.

    Args:
      law: A fitted law.
      runs: The runs that it was fitted to, as fit.table.table.read takes them.
      options: What to spend, and the goal.

    Raises:
      UserError: The law was fitted to other runs, or no run within the budget makes the goal surer.
    """
    with float64():
        from fit.studies.next_runs import next_runs

        names = options.names(law)
        experts = experts_to_compare(law, options.experts)
        architecture = options.architecture(law)
        table = law.settings.read(runs)
        suggestion: Json = next_runs.next_runs(
            law, table, architecture, experts, options.flops, options.target_flops, names
        )
    suggestion["trunks"] = [Trunk(**trunk) for trunk in suggestion["trunks"]]
    suggestion["grid"] = Grid(**suggestion["grid"])
    return NextRuns(**suggestion, answer_of=next_answer.verbose if options.verbose else next_answer.answer)
