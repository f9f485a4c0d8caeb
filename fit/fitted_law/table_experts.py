"""The experts of a table's mixtures, where its columns do not say how many a token chooses or how wide they are.

They follow from n_total; without it we assume what is usual.

Axes: m mixtures.
"""

import dataclasses
from typing import Self

import numpy as np

from fit.aliases import Array
from fit.fitted_law import expert_widths
from fit.fitted_law.architecture_ratios import ArchitectureRatios
from fit.fitted_law.expert_widths import ExpertShares, MixtureSizes
from fit.fitted_law.model_fields import are_mixtures, numbers_of_mixtures, positive_numbers
from fit.messages.finding import Finding, finding
from fit.model.architecture import PAPER, Architecture
from fit.table.table import Table

OFF = 0.02  # widths whose n_total is further off than this share do not fit a size
OFF_TOTAL = 0.1  # as that of whole models, whose embedding may not be known


@dataclasses.dataclass(frozen=True)
class TableExperts:
    """The ratios of a table's models with those of its experts, as far as they are known.

    Attributes:
      ratios: The ratios.
      assumed: Findings on what the table does not say.
      shares: The shares of experts, where no granularity fits the n_total of all sizes.
    """

    ratios: ArchitectureRatios
    assumed: tuple[Finding, ...] = ()
    shares: ExpertShares | None = None

    def assuming(self, assumption: Finding, **ratios: float) -> Self:
        """These with a finding on what is assumed, and other values of some ratios."""
        changed = dataclasses.replace(self.ratios, **ratios)
        return dataclasses.replace(self, ratios=changed, assumed=(*self.assumed, assumption))


@dataclasses.dataclass(frozen=True)
class _Said:
    """What the columns and overrides of a table say: all shapes, top_k, the width of an expert."""

    shapes: bool
    top_k: bool
    width: bool


def complete(
    table: Table, ratios: ArchitectureRatios, has_shapes: bool, vocab_size: int | None, width_per_block: int | None
) -> TableExperts:
    """Completes the ratios of a table's models by those of its experts.

    Args:
      table: The table.
      ratios: As its columns say them, the paper's where they do not.
      has_shapes: Whether it has the columns of shapes.
      vocab_size, width_per_block: Of its models; None for the paper's.
    """
    experts = TableExperts(ratios)
    is_mixture = are_mixtures(table)
    n_active = positive_numbers(table, "n_active")
    n_experts = positive_numbers(table, "n_experts")
    if n_active is None or n_experts is None or is_mixture is None or not is_mixture.any():
        return experts
    says_granularity = numbers_of_mixtures(table, "granularity") is not None
    says_d_expert = numbers_of_mixtures(table, "d_expert") is not None
    said = _Said(
        shapes=has_shapes,
        top_k=numbers_of_mixtures(table, "top_k") is not None,
        width=says_granularity or (says_d_expert and has_shapes),
    )
    if says_d_expert and not said.width:
        experts = experts.assuming(finding("d_expert_unread"))
    n_total = positive_numbers(table, "n_total")
    if n_total is None or (n_total <= n_active)[is_mixture].all():
        return _without_totals(experts, said)
    mixtures = MixtureSizes(n_active, n_experts, n_total).part(is_mixture)
    size = (vocab_size or PAPER.vocab_size, width_per_block or PAPER.width_per_block)
    return _by_totals(experts, said, mixtures, size)


def _without_totals(experts: TableExperts, said: _Said) -> TableExperts:
    """The experts of a table that does not say n_total."""
    if said.shapes or (said.top_k and said.width):
        return experts
    if said.top_k or said.width:
        return _as_wide_as_dense(experts, said)
    return experts.assuming(finding("mixtures_assumed"))


def _as_wide_as_dense(experts: TableExperts, said: _Said) -> TableExperts:
    """Top_k or the width of experts from the other, such that those of a token are together as wide as the dense
    layer."""
    ratios = experts.ratios
    if said.top_k:
        granularity = float(ratios.top_k + ratios.shared)
        return experts.assuming(finding("width_assumed", used=granularity), granularity=granularity)
    top_k = max(1, round(ratios.granularity) - ratios.shared)
    return experts.assuming(finding("top_k_assumed", top_k=top_k), top_k=top_k)


def _by_totals(experts: TableExperts, said: _Said, mixtures: MixtureSizes, size: tuple[int, int]) -> TableExperts:
    """The experts by the n_total of mixtures.

    Args:
      experts: As the table says them.
      said: What it says.
      mixtures: Its mixtures.
      size: Vocabulary and width per block of its models.
    """
    error = float(np.median(_errors(experts.ratios.architecture(*size), mixtures)))
    if said.shapes and error <= OFF_TOTAL:
        return experts
    if not said.top_k:
        top_k = expert_widths.likely_top_k(experts.ratios.architecture(*size), mixtures)
        experts = experts.assuming(finding("top_k_by_totals", top_k=top_k), top_k=top_k)
    if said.shapes and said.top_k and said.width:
        return experts.assuming(finding("totals_miscounted", off=error))
    architecture = experts.ratios.architecture(*size)
    is_larger = mixtures.n_active >= np.median(mixtures.n_active)  # nearer to what is planned
    granularity = expert_widths.granularity_of(architecture, mixtures.part(is_larger))
    if granularity is None:
        used = architecture.top_k + architecture.shared
        most = float(mixtures.n_experts.max())
        ratio = float(np.median(mixtures.ratio))
        experts = experts.assuming(finding("n_total_unread", used=used, n_experts=most, ratio=ratio))
        if not said.shapes and said.top_k != said.width:
            return _as_wide_as_dense(experts, said)
        return experts
    ratios = dataclasses.replace(experts.ratios, granularity=granularity)
    shares = None
    if np.percentile(_errors(ratios.architecture(*size), mixtures), 90) > OFF:
        shares = expert_widths.shares_of(architecture, mixtures)
    return dataclasses.replace(experts, ratios=ratios, shares=shares)


def _errors(architecture: Architecture, mixtures: MixtureSizes) -> Array:
    """The shares by which n_total over n_active of the architecture's mixtures of these sizes are off theirs, [m]."""
    ratio = expert_widths.ratio_of(architecture, mixtures.n_active, mixtures.n_experts)
    return np.abs(ratio * mixtures.n_active / mixtures.n_total - 1)
