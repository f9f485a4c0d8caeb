"""Architectures beyond the paper's: finer experts, shared ones, dense blocks before the mixture, grouped queries, heads
of any size, tied embeddings; and the best of a grid of them.

Each architecture leaves one continuous unknown: its width, from which depth, heads and all counts follow. optimum.solve
finds each one's best size at each number of experts, whatever the law reads; the best of the grid has the least loss.

Axes: as in architecture.py; everything broadcasts with the number of experts.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from fit.aliases import Array, Numbers, Opt
from fit.shape.architecture import ATTENTION, EXPERT, WHOLE_EXPERTS, Architecture
from fit.shape.roots import root


@dataclasses.dataclass(frozen=True)
class Mixture(Architecture):
    """Every expert as wide as the dense layer is split into `split` narrower ones, of which a token uses `used` times
    as many (used = 1: as much width as the dense layer has); `shared` of those are the same for all tokens. Dense
    models, of 1 expert, are not split.

    n_dense: blocks before the mixture that are dense. kv_share: heads of keys and values over heads of queries.
    attention: n_heads head_dim / d_model. head_dim: size of a head; 0: width_per_block. ff: d_ff / d_model. tied: the
    head is the embedding. trained: n_experts counts the narrow experts that a token chooses from, as the trainer and
    its table of runs do. Otherwise it counts experts as wide as the dense layer, whatever the split, the shared ones
    included.
    """

    split: float = 1
    shared: int = 0
    n_dense: int = 0
    kv_share: float = 1.0
    used: float = 1.0
    attention: float = 1.0
    head_dim: int = 0
    ff: float = EXPERT / 3
    tied: bool = False
    trained: bool = False

    @property
    def ends(self) -> int:
        """Weights of embedding and head for each unit of width."""
        return self.vocab_size * (1 if self.tied else 2)

    @property
    def smallest(self) -> float:
        """Width of the smallest model: one block of the mixture."""
        return float(self.width_per_block) * (1 + self.n_dense)

    @property
    def width_per_head(self) -> float:
        """d_model / n_heads, any number."""
        return (self.head_dim or self.width_per_block) / self.attention

    @property
    def top_k(self) -> int:
        """How many narrow experts a token chooses, beside the shared ones."""
        return round(self.used * self.split) - self.shared

    def whole(self, n_experts: Numbers) -> Array:
        """How many dense layers' weights the experts of a mixture have."""
        n_experts = np.asarray(n_experts, float)
        return np.where(n_experts > 1, (n_experts + self.shared) / self.split, 1.0) if self.trained else n_experts

    def used_of(self, n_experts: Opt) -> Numbers:
        """How many dense layers' weights of these experts a token uses; n_experts None: in any mixture."""
        return self.used if n_experts is None else np.where(np.asarray(n_experts) > 1, self.used, 1.0)

    def enough(self, n_experts: ArrayLike) -> Array:
        """Whether a token finds as many experts as it uses."""
        n_experts = np.asarray(n_experts, float)
        return (n_experts == 1) | (n_experts >= (self.top_k if self.trained else self.used))

    def n_active(self, d_model: Numbers, n_experts: Opt = None, n_blocks: Opt = None) -> Numbers:
        """Parameters that a token uses; n_experts None: of a mixture."""
        return self._count(d_model, self.used_of(n_experts), n_blocks)

    def n_total(self, d_model: Numbers, n_experts: Numbers, n_blocks: Opt = None) -> Numbers:
        """All parameters."""
        return self._count(d_model, self.whole(n_experts), n_blocks)

    def _count(self, d_model: Numbers, experts: Numbers, n_blocks: Opt = None) -> Numbers:
        """Parameters, with so many dense layers' weights in each mixture."""
        n_blocks = d_model / self.width_per_block if n_blocks is None else n_blocks
        expert = 3 * self.ff
        mixtures = (self._attention + expert * experts) * n_blocks * d_model**2
        dense = expert * (experts - 1) * np.minimum(self.n_dense, n_blocks) * d_model**2  # what dense blocks lack
        return self.ends * d_model + mixtures - dense

    @property
    def _attention(self) -> float:
        """Weights of a block's attention, in d_model^2."""
        return ATTENTION / 2 * (1 + self.kv_share) * self.attention

    def active_weights(self, n_experts: Opt = None) -> Numbers:
        """Weights of a block of the mixture that a token uses, in d_model^2."""
        return self._attention + 3 * self.ff * self.used_of(n_experts)

    def d_model(self, n_active: Numbers, n_experts: Opt = None) -> Array:
        """The (real) width whose n_active this is, any shape: in closed form unless dense blocks have other weights."""
        near = super().d_model(n_active, n_experts)  # all blocks counted as the mixture's
        if self.n_dense == 0 or self.used == 1:
            return near
        excess = lambda log_d: self.n_active(np.exp(log_d), n_experts) - n_active
        return np.exp(root(excess, np.log(near) - 5, np.log(near) + 5))

    def kv_elements(self, d_model: Numbers, kv_tokens: Numbers) -> Numbers:
        """Elements of the cache: keys and values of the heads that have them."""
        return self.kv_share * self.attention * super().kv_elements(d_model, kv_tokens)

    def structure(self, n_experts: Numbers) -> dict[str, Numbers]:
        """What a law may read of the mixture; if `trained`, as in a table of runs: top_k without the shared experts."""
        mixture, top_k = np.asarray(n_experts) > 1, float(self.used * self.split)
        if not self.trained:
            fine = dict(top_k=top_k, granularity=float(self.split), shared_share=self.shared / top_k)
            return dict(n_experts=n_experts, sparsity=1 - self.used_of(n_experts) / n_experts) | fine
        fine = dict(top_k=float(self.top_k), granularity=float(self.split), shared_share=self.shared / top_k)
        fine = {name: np.where(mixture, value, WHOLE_EXPERTS[name]) for name, value in fine.items()}
        return dict(n_experts=n_experts, sparsity=1 - fine["top_k"] / n_experts) | fine

    def fields(self, d_model: int, n_experts: int) -> dict[str, int]:
        """The fields of the trainer's config.model, whole numbers: the nearest that can be built."""
        head_dim = self.head_dim or self.width_per_block
        n_heads = max(1, round(self.attention * d_model / head_dim))
        divisors = [n for n in range(1, n_heads + 1) if n_heads % n == 0]
        with_keys = min(divisors, key=lambda n: abs(np.log(n / (self.kv_share * n_heads))))
        d_ff = round(self.ff * d_model)
        fields = dict(n_heads=n_heads, n_kv_heads=with_keys, head_dim=head_dim, d_ff=d_ff, tied_embeddings=self.tied)
        mixture = n_experts > 1  # a dense model has none of these
        if not self.trained and self.split != 1:  # n_experts counts experts as wide as the dense layer
            fields |= dict(routed_experts=round(n_experts * self.split) - self.shared if mixture else 1)
        return fields | dict(
            top_k=self.top_k if mixture else 1,
            d_expert=max(1, round(self.ff * d_model / self.split)) if mixture else 0,
            n_shared_experts=self.shared if mixture else 0,
            n_dense_blocks=self.n_dense if mixture else 0,
        )
