"""The experts of a table's mixtures, where its columns do not say how many a token chooses or how wide they are.

They follow from n_total; without it we assume what is usual.

Axes: m mixtures.
"""

import dataclasses

import numpy as np

from fit.aliases import Array
from fit.fitted_law import expert_widths
from fit.fitted_law.expert_widths import MixtureSizes
from fit.fitted_law.model_fields import are_mixtures, numbers_of_mixtures, positive_numbers
from fit.fitted_law.table_architecture import TableArchitecture
from fit.messages.finding import finding
from fit.table.table import Table

OFF = 0.02  # widths whose n_total is further off than this share do not fit a size
OFF_TOTAL = 0.1  # as that of whole models, whose embedding may not be known


def complete(table: Table, known: TableArchitecture) -> TableArchitecture:
    """Completes the architecture of a table's models by what it does not say of experts.

    Args:
      table: The table.
      known: As its columns say it.
    """
    is_mixture = are_mixtures(table)
    n_active = positive_numbers(table, "n_active")
    n_experts = positive_numbers(table, "n_experts")
    if n_active is None or n_experts is None or is_mixture is None or not is_mixture.any():
        return known
    says_top_k = numbers_of_mixtures(table, "top_k") is not None
    says_width = numbers_of_mixtures(table, "granularity") is not None
    if not says_width and numbers_of_mixtures(table, "d_expert") is not None:
        says_width = known.has_shapes
        if not known.has_shapes:  # a width is read against d_ff
            known = known.assuming(finding("d_expert_unread"))
    n_total = positive_numbers(table, "n_total")
    if n_total is None or (n_total <= n_active)[is_mixture].all():
        return _without_totals(known, says_top_k, says_width)
    mixtures = MixtureSizes(n_active, n_experts, n_total).part(is_mixture)
    return _by_totals(known, says_top_k, says_width, mixtures)


def _without_totals(known: TableArchitecture, says_top_k: bool, says_width: bool) -> TableArchitecture:
    """What is usual, for a table that does not say n_total."""
    if known.has_shapes or (says_top_k and says_width):
        return known
    if says_top_k or says_width:
        return _as_wide_as_dense(known, says_top_k)
    return known.assuming(finding("mixtures_assumed"))


def _as_wide_as_dense(known: TableArchitecture, says_top_k: bool) -> TableArchitecture:
    """Top_k or the width of experts from the other, such that those of a token are together as wide as the dense
    layer."""
    ratios = known.ratios
    if says_top_k:
        granularity = float(ratios.top_k + ratios.shared)
        return known.assuming(finding("width_assumed", used=granularity), granularity=granularity)
    top_k = max(1, round(ratios.granularity) - ratios.shared)
    return known.assuming(finding("top_k_assumed", top_k=top_k), top_k=top_k)


def _by_totals(
    known: TableArchitecture, says_top_k: bool, says_width: bool, mixtures: MixtureSizes
) -> TableArchitecture:
    """The experts by the n_total of the table's mixtures."""
    error = float(np.median(_errors(known, mixtures)))
    if known.has_shapes and error <= OFF_TOTAL:
        return known
    if not says_top_k:
        top_k = expert_widths.likely_top_k(known.architecture, mixtures)
        known = known.assuming(finding("top_k_by_totals", top_k=top_k), top_k=top_k)
    if known.has_shapes and says_top_k and says_width:
        return known.assuming(finding("totals_miscounted", off=error))
    architecture = known.architecture
    is_larger = mixtures.n_active >= np.median(mixtures.n_active)  # nearer to what is planned
    granularity = expert_widths.granularity_of(architecture, mixtures.part(is_larger))
    if granularity is None:
        used = architecture.top_k + architecture.shared
        most = float(mixtures.n_experts.max())
        ratio = float(np.median(mixtures.ratio))
        known = known.assuming(finding("n_total_unread", used=used, n_experts=most, ratio=ratio))
        if not known.has_shapes and says_top_k != says_width:
            return _as_wide_as_dense(known, says_top_k)
        return known
    known = dataclasses.replace(known, ratios=dataclasses.replace(known.ratios, granularity=granularity))
    if np.percentile(_errors(known, mixtures), 90) > OFF:
        return dataclasses.replace(known, shares=expert_widths.shares_of(architecture, mixtures))
    return known


def _errors(known: TableArchitecture, mixtures: MixtureSizes) -> Array:
    """The shares by which the architecture's n_total over n_active is off that of each mixture, [m]."""
    ratio = expert_widths.ratio_of(known.architecture, mixtures.n_active, mixtures.n_experts)
    return np.abs(ratio * mixtures.n_active / mixtures.n_total - 1)
