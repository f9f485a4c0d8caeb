"""The parts of a comparison of laws: their plans and others as frozen dataclasses.

Fields stand in the order of the JSON that `fit compare --json` prints.
"""

import dataclasses
import functools
from collections.abc import Iterator

from fit.aliases import Json
from fit.fitted_law.extrapolation import Outside, in_words
from fit.messages.finding import Finding, finding
from fit.planning.chosen.cost import Serving
from fit.planning.chosen.modelled_speed import Speed
from fit.planning.context import reasons_to_doubt
from fit.planning.context.other_budget import OtherBudget
from fit.planning.context.reasons_to_doubt import Edge
from fit.planning.context.reference_model import ReferenceCounts, TrainedReference
from fit.results import NOT_IN_JSON, Record, Result, optional

AGREE = 2.0  # plans of several laws within this factor agree
LAWS = ("joint-moe-2025", "sparsity-2025", "fine-grained-2024", "comprehensive-2025", "chinchilla-refit-2024")
ABOUT = (
    "Losses are not set against each other: every law has its own text and tokenizer. Each law's best has the number "
    "of experts of the least expected loss over its draws, as in fit plan. It is measured against the best dense model "
    "by the same law under the same limits. Counts are with embedding and head, training FLOPs are 6 n_active "
    "n_tokens, for all of them."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DensePlan(Record):
    """A law's best dense model, in a comparison of laws.

    Attributes:
      law: The law that it follows: of the same paper, if not the law itself.
      loss_saved_share: Share of its loss by which the law's best model is better.
      flops_ratio: FLOPs with which a dense model reaches the best's loss, over those given; None where no budget does.
      hours_ratio: The same where hours are the budget.
    """

    n_experts: int
    n_active: float
    n_tokens: float
    loss: float
    law: str
    loss_saved_share: float
    flops_ratio: float | None = optional()
    hours_ratio: float | None = optional()

    @property
    def ratio(self) -> float | None:
        """FLOPs, or hours where these are the budget."""
        return self.hours_ratio if "hours_ratio" in self.explicit else self.flops_ratio


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vote(Record):
    """The share of a vote that a number of experts has."""

    n_experts: int
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotesOfLaw(Record):
    """How a law divides its vote among numbers of experts.

    Attributes:
      draws: How many draws; 0 where it votes by its median.
      has_law_draws: Whether the law itself has draws.
      experts: In which share of the draws each number of experts is the best.
      log_mean, log_spread: {column: mean, standard deviation} of the logarithm of n_experts, n_active and n_tokens of
        the best models in the draws.
    """

    draws: int
    has_law_draws: bool
    experts: list[Vote]
    log_mean: dict[str, float]
    log_spread: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread(Record):
    """How far the best models are spread in one column, as factors: one standard deviation of the logarithm.

    Attributes:
      column: The column.
      within: By the draws of one law; None where no law has draws.
      between: Between the means of laws.
    """

    column: str
    within: float | None
    between: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Votes(Record):
    """The votes of several laws, each with one vote.

    Attributes:
      laws: How many laws.
      with_draws: How many of them have draws.
      mixture: Share of the votes for a mixture.
      experts: The share of each number of experts, the largest first.
      spread: How far laws are spread by their draws, and beside each other.
    """

    laws: int
    with_draws: int
    mixture: float
    experts: list[Vote]
    spread: list[Spread]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LawPlan(Record):
    """The plan of one law for a budget: its best model, and its best dense model.

    As in `fit plan`, the best has the number of experts of the least expected loss over the draws of the law and, by
    hours, of the speeds. A law without draws stands at its median. Losses are those by the medians.

    Attributes:
      source, note: Where a published law comes from; None for others.
      mixtures: Whether the law is of mixtures.
      sparsity: Share of the parameters of all experts that a token does not use.
      granularity: How many narrow experts make one as wide as the dense layer.
      shared: Narrow experts that all tokens use.
      active_width: Width of experts that a token uses, in widths of the dense layer.
      chose_experts: Whether the law chose the number of experts.
      edge: Whether that is the largest or the smallest compared; None for neither.
      not_bounded: Whether still more experts would be better.
      finest: Whether its experts are the finest of the law's data.
      embedding_share: Share of its active parameters that are in embedding and head.
      not_read: {field of --shape: value}, or values, that the law has no column for and its runs did not have.
      unread: The finding on these; None without any.
      left_out: Findings on widths of experts that are not feasible.
      leverage: Efficiency leverage of the architecture; None for a dense model.
      dense: The best dense model; None where none is feasible.
      speed: Its modelled speed; only with chips, without mfu.
      speed_label: How that speed is known.
      clock: What FLOPs would choose in place of hours, or hours in place of FLOPs; None also where that is no model.
      serving: How fast the chips serve it; only where chips are given.
      like: The reference model under the same budget.
      votes: How it divides its vote among numbers of experts; None unless it chooses among several.
    """

    n_experts: int
    n_active: float
    n_total: float
    n_tokens: float
    loss: float
    d_model: float
    law: str
    form: str
    source: str | None
    note: str | None
    mixtures: bool
    sparsity: float
    granularity: float
    shared: int
    active_width: float
    size_bound: str
    memory_bytes: float
    chose_experts: bool
    edge: Edge | None = dataclasses.field(metadata=NOT_IN_JSON)
    not_bounded: bool
    finest: bool
    extrapolation: list[Outside]
    embedding_share: float
    not_read: Json
    unread: Finding | None = dataclasses.field(metadata=NOT_IN_JSON)
    left_out: tuple[Finding, ...] = dataclasses.field(metadata=NOT_IN_JSON)
    leverage: Json | None
    dense: DensePlan | None
    speed: Speed | None = optional()
    speed_label: str | None = dataclasses.field(metadata=NOT_IN_JSON)
    clock: OtherBudget | None = optional()
    serving: Serving | None = optional()
    like: TrainedReference | None = optional()
    votes: VotesOfLaw | None = optional()

    @property
    def at_edge(self) -> bool:
        """Whether the number of experts is the largest or the smallest compared."""
        return self.edge is not None

    @functools.cached_property
    def findings(self) -> list[Finding]:
        """Findings to know before trusting it."""
        return [*_findings(self)]

    def names(self) -> list[str]:
        """The fields that to_dict has."""
        names = super().names()
        names.insert(names.index("not_bounded"), "at_edge")
        names.insert(names.index("dense") + 1, "findings")
        return names


def _findings(plan: LawPlan) -> Iterator[Finding]:
    """The findings on a law's plan."""
    if plan.extrapolation:
        factors = [outside.factor for outside in plan.extrapolation if outside.factor is not None]
        factor = max(factors, default=None)
        yield finding("law_outside", outside=in_words(plan.extrapolation), factor=factor)
    if plan.embedding_share > reasons_to_doubt.MOSTLY:
        yield finding("law_mostly_embedding", share=plan.embedding_share)
    if plan.edge is not None:
        which = "more" if plan.edge == "largest" else "fewer"
        yield finding("law_at_edge", n_experts=plan.n_experts, which=which)
    if plan.not_bounded:
        yield finding("not_bounded")
    if plan.active_width != 1 and plan.n_experts > 1:
        yield finding("law_width", active_width=plan.active_width, n_experts=plan.n_experts)
    if plan.unread is not None:
        yield plan.unread
    yield from plan.left_out
    if plan.finest:
        yield finding("law_finest", granularity=plan.granularity)
    if plan.note:
        yield finding("law_note", sentence=plan.note)
    if plan.dense and plan.dense.law != plan.law:
        yield finding("law_dense", law=plan.dense.law)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoPlan(Record):
    """A law with which no model is feasible, and why."""

    law: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement(Record):
    """How far the plans of several laws lie apart in one column.

    Attributes:
      of: "best" for the best models of the laws of mixtures, "dense" for every law's best dense model.
      column: The column.
      low, high: The least and the largest value.
      low_law, high_law: The laws that give them.
      factor: high over low.
      agree: Whether the factor is at most 2.
      limit: What fixes all these values, so that they show no agreement: "memory", "experts" (those compared) or None.
    """

    of: str
    column: str
    low: float
    high: float
    low_law: str
    high_law: str
    factor: float
    agree: bool
    limit: str | None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Result):
    """The plans of several laws for one budget, each against its own best dense model.

    Attributes:
      vocab_size, width_per_block, kv_share, n_dense, granularity, shared: Of the models, as far as they are given.
      constraints: {name: value} of the limits.
      about: What is compared, in a sentence.
      laws: The plan of each law.
      infeasible: Laws with which no model is feasible.
      agreement: How far the plans lie apart.
      votes: What the laws together vote for; None where fewer than two choose a number of experts.
      findings: What the laws together say; `conclusion` in sentences.
      like: Counts of the model to start from.
    """

    vocab_size: int
    width_per_block: int
    kv_share: float | None = optional()
    n_dense: int | None = optional()
    granularity: float | None = optional()
    shared: int | None = optional()
    constraints: Json
    about: str
    laws: list[LawPlan]
    infeasible: list[NoPlan]
    agreement: list[Agreement]
    votes: Votes | None = optional()
    findings: list[Finding]
    like: ReferenceCounts | None = optional()

    @property
    def conclusion(self) -> list[str]:
        """The sentences on all laws together."""
        return [str(finding) for finding in self.findings]

    def names(self) -> list[str]:
        """The fields that to_dict has."""
        names = super().names()
        names.insert(names.index("findings"), "conclusion")
        return names

    def rows(self) -> list[Json]:
        """One row for each law."""
        return [plan.to_dict() for plan in self.laws]
