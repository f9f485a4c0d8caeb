"""The width of the experts of mixtures, by their n_total.

A mixture of E experts, of which a token uses k and s more are shared, has (n_total - n_active) / (E - k) weights in an
expert. Their share of the active parameters, (k + s) (n_total - n_active) / ((E - k) n_active), fixes how wide an
expert of an architecture is at a size. Its granularity says it: how many times narrower it is than the dense layer.

Axes: m mixtures.
"""

import dataclasses
import math
from typing import Annotated, Self

import numpy as np

from fit.aliases import Array, Numbers
from fit.fitted_law.bounds import between
from fit.model.architecture import Architecture, root
from fit.results import Record

# Between these the granularity of an expert is looked for.
SMALLEST_GRANULARITY = 1e-3
LARGEST_GRANULARITY = 1e6
SMALLEST_SHARE = 1e-12  # of experts in the parameters
USUAL_TOP_K = (1, 2, 4, 6, 8, 10, 12, 16, 32, 64)  # those that are tried where a table does not say it
GROUPS = 8  # of sizes, for which the share of experts is recorded


@dataclasses.dataclass(frozen=True)
class MixtureSizes:
    """The sizes of mixtures.

    Attributes:
      n_active: active parameters, float64 [m].
      n_experts: experts of a layer, [m].
      n_total: all parameters, [m].
    """

    n_active: Array
    n_experts: Array
    n_total: Array

    def part(self, rows: Array) -> Self:
        """Those of `rows`, boolean [m]."""
        return dataclasses.replace(
            self, n_active=self.n_active[rows], n_experts=self.n_experts[rows], n_total=self.n_total[rows]
        )

    @property
    def ratio(self) -> Array:
        """n_total over n_active, [m]."""
        return self.n_total / self.n_active


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertShares(Record):
    """The shares of experts in the active parameters at rising sizes, medians over equal parts of the runs by size."""

    n_active: tuple[Annotated[float, between(1, math.inf, "a number from 1 up")], ...]
    share: tuple[Annotated[float, between(SMALLEST_SHARE, 1, "a share, above 0 and up to 1")], ...]


def with_experts(architecture: Architecture, top_k: int, granularity: float) -> Architecture:
    """The Architecture with other experts beside its shared ones.

    Args:
      top_k: experts that a token chooses.
      granularity: how many times narrower they are than the dense layer.
    """
    return dataclasses.replace(
        architecture,
        granularity=granularity,
        active_width=(top_k + architecture.shared) / granularity,
        counts_routed_experts=True,
    )


def ratio_of(architecture: Architecture, n_active: Numbers, n_experts: Numbers) -> Array:
    """n_total over n_active of an architecture's models of these sizes."""
    d_model = architecture.d_model(n_active, n_experts)
    return np.asarray(architecture.n_total(d_model, n_experts)) / n_active


def _possible(architecture: Architecture, mixtures: MixtureSizes) -> MixtureSizes:
    """Those mixtures whose experts can make up the ratio, all weights being those of experts at most."""
    most = (mixtures.n_experts + architecture.shared) / (architecture.top_k + architecture.shared)
    return mixtures.part((mixtures.ratio > 1) & (mixtures.ratio < most))


def granularity_of(architecture: Architecture, mixtures: MixtureSizes) -> float | None:
    """The granularity with which models have the ratios n_total / n_active of `mixtures`, at the median of these.

    Args:
      architecture: how they are built, but for the granularity.
      mixtures: of a table.

    Returns:
      None where none has them.
    """
    known = _possible(architecture, mixtures)
    if 2 * len(known.ratio) <= len(mixtures.ratio):
        return None

    def excess(log_granularities: Numbers) -> Array:
        """Of the ratio at these granularities: falling, for narrower experts are fewer weights."""
        medians = []
        for log_granularity in np.atleast_1d(log_granularities):
            candidate = with_experts(architecture, architecture.top_k, float(np.exp(log_granularity)))
            ratio = ratio_of(candidate, known.n_active, known.n_experts)
            medians.append(np.median(np.log(ratio / known.ratio)))
        return np.array(medians)

    bounds = np.log(np.atleast_2d((SMALLEST_GRANULARITY, LARGEST_GRANULARITY)).T)
    log_granularity = float(root(excess, *bounds)[0])
    return math.exp(log_granularity) if math.isfinite(log_granularity) else None


def likely_top_k(architecture: Architecture, mixtures: MixtureSizes) -> int:
    """The likely top_k of a table that does not say it.

    With it a token's experts together are nearest to as wide as the dense layer, which most models have.
    """
    most = max(int(mixtures.n_experts.min() - 1), 1)
    tried = []
    for top_k in USUAL_TOP_K:
        if top_k <= most:
            candidate = with_experts(architecture, top_k, top_k + architecture.shared)
            ratio = ratio_of(candidate, mixtures.n_active, mixtures.n_experts)
            error = np.median(np.log(ratio / mixtures.ratio))
            tried.append((abs(float(error)), top_k))
    _, best = min(tried)
    return best


def shares_of(architecture: Architecture, mixtures: MixtureSizes) -> ExpertShares:
    """The share of experts in the active parameters at several sizes.

    Args:
      architecture: what tells how many experts a token uses.
      mixtures: of a table; those of an impossible ratio do not count.
    """
    mixtures = _possible(architecture, mixtures)
    used = architecture.top_k + architecture.shared
    share = (mixtures.ratio - 1) * used / (mixtures.n_experts - architecture.top_k)
    order = np.argsort(mixtures.n_active, kind="stable")
    sizes = []
    shares = []
    for part in np.array_split(order, min(GROUPS, len(np.unique(mixtures.n_active)))):
        size = float(np.median(mixtures.n_active[part]))
        if not sizes or size > sizes[-1]:
            sizes.append(size)
            shares.append(float(np.median(share[part])))
    return ExpertShares(n_active=tuple(sizes), share=tuple(shares))


def at_size(architecture: Architecture, shares: ExpertShares, n_active: float, n_experts: int) -> Architecture:
    """The Architecture with experts as wide as the table's at this size.

    Returns:
      The same Architecture where the table says nothing of such a model.
    """
    top_k = architecture.top_k
    if n_experts <= max(1, top_k):
        return architecture
    share = np.interp(np.log(n_active), np.log(shares.n_active), shares.share)
    n_total = n_active * (1 + share * (n_experts - top_k) / (top_k + architecture.shared))
    model = MixtureSizes(np.array([n_active], float), np.array([n_experts], float), np.array([n_total], float))
    granularity = granularity_of(architecture, model)
    return architecture if granularity is None else with_experts(architecture, top_k, granularity)
