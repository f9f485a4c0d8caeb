"""What a table's columns n_total, top_k, n_shared_experts and granularity say of its mixtures, where it does not tell
their whole shape: how wide their experts are, so that n_total of a plan's models is that of the table.

A mixture of E experts, of which a token uses k and s more are shared, has (n_total - n_active) / (E - k) weights in an
expert. Their share of the active parameters, (k + s) (n_total - n_active) / ((E - k) n_active), fixes how wide an
expert of an architecture is at a size, which its `split` says: how many times narrower than the dense layer.

Axes: n runs, all of mixtures.
"""

import dataclasses
import math
from typing import Self

import numpy as np

from fit.aliases import Array, Json, Numbers
from fit.shape.architecture import PAPER, Architecture, root

SPLITS = 1e-3, 1e6  # between which the split of an expert is looked for
USUAL_TOP_K = (1, 2, 4, 6, 8, 10, 12, 16, 32, 64)  # those that are tried where a table does not say it
GROUPS = 8  # of sizes, for which the share of experts is kept


@dataclasses.dataclass(frozen=True)
class Mixtures:
    """The mixtures of a table: n_active, n_experts and n_total, float64 [n]; top_k and shared, of a token."""

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
        """[n]: n_total over n_active."""
        return self.n_total / self.n_active

    @property
    def possible(self) -> Array:
        """bool [n]: whether experts can make up this ratio, all weights being those of experts at most."""
        chosen = self.top_k + self.shared
        return (self.ratio > 1) & (self.ratio < (self.n_experts + self.shared) / chosen)

    @property
    def share(self) -> Array:
        """[n]: of the active parameters, those of experts."""
        return (self.ratio - 1) * (self.top_k + self.shared) / (self.n_experts - self.top_k)


def with_split(architecture: Architecture, split: float, top_k: int, shared: int) -> Architecture:
    """The Architecture with experts `split` times narrower than the dense layer, of which a token uses these."""
    return dataclasses.replace(
        architecture,
        granularity=split,
        active_width=(top_k + shared) / split,
        shared=shared,
        counts_routed_experts=True,
    )


def ratio_of(architecture: Architecture, n_active: Numbers, n_experts: Numbers) -> Array:
    """n_total over n_active of its models of these sizes."""
    d_model = architecture.d_model(n_active, n_experts)
    return np.asarray(architecture.n_total(d_model, n_experts)) / n_active


def split_of(architecture: Architecture, mixtures: Mixtures) -> float | None:
    """The split with which the models of this architecture have the ratios of `mixtures`, at the median of these; None
    where none has."""
    possible = mixtures.possible
    if 2 * possible.sum() <= len(possible):
        return None
    n_active, n_experts, wanted = (
        values[possible] for values in (mixtures.n_active, mixtures.n_experts, mixtures.ratio)
    )

    def excess(log_split: Numbers) -> Array:
        """Of the ratio at these splits: falling, for narrower experts are fewer weights."""
        of_each = []
        for one in np.atleast_1d(log_split):
            built = with_split(architecture, float(np.exp(one)), mixtures.top_k, mixtures.shared)
            of_each.append(np.median(np.log(ratio_of(built, n_active, n_experts) / wanted)))
        return np.array(of_each)

    found = float(root(excess, *np.log(np.atleast_2d(SPLITS).T))[0])
    return math.exp(found) if math.isfinite(found) else None


def likely_top_k(architecture: Architecture, n_active: Array, n_experts: Array, n_total: Array, shared: int) -> int:
    """The top_k with which a token's experts together are nearest to as wide as the dense layer, which most models
    have: for tables that do not say it."""
    most = int(n_experts.min() - 1)
    tried = []
    for top_k in (k for k in USUAL_TOP_K if k <= max(most, 1)):
        built = with_split(architecture, top_k + shared, top_k, shared)
        off = np.median(np.log(ratio_of(built, n_active, n_experts) * n_active / n_total))
        tried.append((abs(float(off)), top_k))
    return min(tried)[1]


def shares_of(mixtures: Mixtures) -> Json:
    """{n_active, share}: rising sizes, and at each of them the share of experts in the active parameters; medians over
    equal parts of the runs by size."""
    order = np.argsort(mixtures.n_active, kind="stable")
    sizes, shares = [], []
    for part in np.array_split(order, min(GROUPS, len(np.unique(mixtures.n_active)))):
        size, share = float(np.median(mixtures.n_active[part])), float(np.median(mixtures.share[part]))
        if not sizes or size > sizes[-1]:
            sizes.append(size)
            shares.append(share)
    return dict(n_active=sizes, share=shares)


def at_size(architecture: Architecture, shares: Json, n_active: float, n_experts: int) -> Architecture:
    """The Architecture with experts as wide as the table's at this size, by what shares_of found; itself where the
    table says nothing of such a model."""
    chosen = architecture.top_k + architecture.shared
    if n_experts <= max(1, architecture.top_k):
        return architecture
    share = np.interp(np.log(n_active), np.log(shares["n_active"]), shares["share"])
    n_total = n_active * (1 + share * (n_experts - architecture.top_k) / chosen)
    one = (np.array([value], float) for value in (n_active, n_experts, n_total))
    split = split_of(architecture, Mixtures(*one, architecture.top_k, architecture.shared))
    return architecture if split is None else with_split(architecture, split, architecture.top_k, architecture.shared)


def assumed_shape(vocab_size: int | None, width_per_block: int | None) -> Architecture:
    """The paper's Architecture with these, or its own where they are not known."""
    return Architecture(
        vocab_size or PAPER.vocab_size, width_per_block or PAPER.width_per_block, counts_routed_experts=True
    )
