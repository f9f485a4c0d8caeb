"""The width of the experts of a table's mixtures, from its columns n_total, top_k, n_shared_experts and granularity.

This is for tables that do not tell the whole shape, so that n_total of a plan's models is that of the table. A mixture
of E experts, of which a token uses k and s more are shared, has (n_total - n_active) / (E - k) weights in an expert.
Their share of the active parameters, (k + s) (n_total - n_active) / ((E - k) n_active), fixes how wide an expert of an
architecture is at a size. Its granularity says it: how many times narrower it is than the dense layer.

Axes: n runs, all of mixtures.
"""

import dataclasses
import math
from typing import Annotated, Self

import numpy as np

from fit.aliases import Array, Numbers
from fit.fitted_law.bounds import between
from fit.model.architecture import PAPER, Architecture, root
from fit.results import Record

# Between these the granularity of an expert is looked for.
SMALLEST_GRANULARITY = 1e-3
LARGEST_GRANULARITY = 1e6
SMALLEST_SHARE = 1e-12  # of experts in the parameters
USUAL_TOP_K = (1, 2, 4, 6, 8, 10, 12, 16, 32, 64)  # those that are tried where a table does not say it
GROUPS = 8  # of sizes, for which the share of experts is recorded


@dataclasses.dataclass(frozen=True)
class Mixtures:
    """The mixtures of a table.

    Attributes:
      n_active: active parameters, float64 [n].
      n_experts: experts of a layer, [n].
      n_total: all parameters, [n].
      top_k: experts that a token chooses.
      shared: experts that every token uses.
    """

    n_active: Array
    n_experts: Array
    n_total: Array
    top_k: int
    shared: int

    def part(self, rows: Array) -> Self:
        """Those of `rows`, boolean [n]."""
        return dataclasses.replace(
            self, n_active=self.n_active[rows], n_experts=self.n_experts[rows], n_total=self.n_total[rows]
        )

    @property
    def ratio(self) -> Array:
        """n_total over n_active, [n]."""
        return self.n_total / self.n_active

    @property
    def possible(self) -> Array:
        """Whether experts can make up this ratio, all weights being those of experts at most; bool [n]."""
        used = self.top_k + self.shared
        return (self.ratio > 1) & (self.ratio < (self.n_experts + self.shared) / used)

    @property
    def share(self) -> Array:
        """The share of the active parameters that is of experts, [n]."""
        return (self.ratio - 1) * (self.top_k + self.shared) / (self.n_experts - self.top_k)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shares(Record):
    """The shares of experts in the active parameters at rising sizes, medians over equal parts of the runs by size."""

    n_active: tuple[Annotated[float, between(1, math.inf, "a number from 1 up")], ...]
    share: tuple[Annotated[float, between(SMALLEST_SHARE, 1, "a share, above 0 and up to 1")], ...]


def with_granularity(architecture: Architecture, granularity: float, top_k: int, shared: int) -> Architecture:
    """The Architecture with experts a number of times narrower than the dense layer.

    Args:
      top_k: experts that a token chooses.
      shared: experts that every token uses.
    """
    return dataclasses.replace(
        architecture,
        granularity=granularity,
        active_width=(top_k + shared) / granularity,
        shared=shared,
        counts_routed_experts=True,
    )


def ratio_of(architecture: Architecture, n_active: Numbers, n_experts: Numbers) -> Array:
    """n_total over n_active of an architecture's models of these sizes."""
    d_model = architecture.d_model(n_active, n_experts)
    return np.asarray(architecture.n_total(d_model, n_experts)) / n_active


def granularity_of(architecture: Architecture, mixtures: Mixtures) -> float | None:
    """The granularity with which the models of an architecture have the ratios of `mixtures`, at the median of these.

    Returns:
      None where none has them.
    """
    possible = mixtures.possible
    if 2 * possible.sum() <= len(possible):
        return None
    known = mixtures.part(possible)

    def excess(log_granularities: Numbers) -> Array:
        """Of the ratio at these granularities: falling, for narrower experts are fewer weights."""
        medians = []
        for log_granularity in np.atleast_1d(log_granularities):
            candidate = with_granularity(architecture, float(np.exp(log_granularity)), mixtures.top_k, mixtures.shared)
            ratio = ratio_of(candidate, known.n_active, known.n_experts)
            medians.append(np.median(np.log(ratio / known.ratio)))
        return np.array(medians)

    bounds = np.log(np.atleast_2d((SMALLEST_GRANULARITY, LARGEST_GRANULARITY)).T)
    log_granularity = float(root(excess, *bounds)[0])
    return math.exp(log_granularity) if math.isfinite(log_granularity) else None


def likely_top_k(architecture: Architecture, n_active: Array, n_experts: Array, n_total: Array, shared: int) -> int:
    """The likely top_k of a table that does not say it.

    With it a token's experts together are nearest to as wide as the dense layer, which most models have.
    """
    most = max(int(n_experts.min() - 1), 1)
    tried = []
    for top_k in USUAL_TOP_K:
        if top_k <= most:
            candidate = with_granularity(architecture, top_k + shared, top_k, shared)
            error = np.median(np.log(ratio_of(candidate, n_active, n_experts) * n_active / n_total))
            tried.append((abs(float(error)), top_k))
    _, best = min(tried)
    return best


def shares_of(mixtures: Mixtures) -> Shares:
    """The share of experts in the active parameters at several sizes."""
    order = np.argsort(mixtures.n_active, kind="stable")
    sizes = []
    shares = []
    for part in np.array_split(order, min(GROUPS, len(np.unique(mixtures.n_active)))):
        size = float(np.median(mixtures.n_active[part]))
        if not sizes or size > sizes[-1]:
            sizes.append(size)
            shares.append(float(np.median(mixtures.share[part])))
    return Shares(n_active=tuple(sizes), share=tuple(shares))


def at_size(architecture: Architecture, shares: Shares, n_active: float, n_experts: int) -> Architecture:
    """The Architecture with experts as wide as the table's at this size.

    Returns:
      The same Architecture where the table says nothing of such a model.
    """
    top_k = architecture.top_k
    if n_experts <= max(1, top_k):
        return architecture
    share = np.interp(np.log(n_active), np.log(shares.n_active), shares.share)
    n_total = n_active * (1 + share * (n_experts - top_k) / (top_k + architecture.shared))
    model = Mixtures(
        np.array([n_active], float),
        np.array([n_experts], float),
        np.array([n_total], float),
        top_k,
        architecture.shared,
    )
    granularity = granularity_of(architecture, model)
    if granularity is None:
        return architecture
    return with_granularity(architecture, granularity, top_k, architecture.shared)


def assumed_shape(vocab_size: int | None, width_per_block: int | None) -> Architecture:
    """The paper's Architecture with these, or its own where they are not known."""
    return Architecture(
        vocab_size or PAPER.vocab_size, width_per_block or PAPER.width_per_block, counts_routed_experts=True
    )
