"""From a width and a number of experts to counts: parameters, cache, FLOPs.

The paper's decoder has an untied embedding and head, multi-head attention (4 d^2 weights a block) and a SwiGLU
feed-forward layer of width 3 d (9 d^2 weights an expert), one expert active (App. A):

  n_active = 2 d V + 13 n_blocks d^2     n_total = 2 d V + (4 + 9 E) n_blocks d^2     n_blocks = d / width_per_block

Others have narrow and shared experts, leading dense blocks, grouped queries and so on.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fit.aliases import Array, Numbers, Opt

TRAINING, INFERENCE = 6, 2  # FLOPs of one token for each active parameter
ATTENTION, EXPERT = 4, 9  # weights of a block's attention and of one of its experts, in d^2
EXPERTS = (1, 2, 4, 8, 16, 32)  # the paper's
ROUNDED = 0.15  # ratios within this share of each other are taken for one that was rounded to whole widths
OF_EXPERTS = ("n_experts", "n_total", "sparsity")  # columns that change with the number of experts
# columns of the architecture: a token uses one expert, as wide as the dense layer, and none that all tokens use
WHOLE_EXPERTS = dict(top_k=1.0, granularity=1.0, shared_share=0.0)
# Sec. 5.1.1: (from this many tokens seen, tokens in a batch)
BATCH_RAMP = ((0, 65_536), (500_000_000, 131_072), (1_000_000_000, 262_144))


def training_flops(n_active: Any, n_tokens: Any) -> Any:
    """6 N D, numbers or arrays."""
    return TRAINING * n_active * n_tokens


def root(function: Callable[[Numbers], Numbers], low: Numbers, high: Numbers) -> Array:
    """Where function(x) changes sign between low and high, elementwise, to the last bits of a float64, by bisection of
    all elements at once. NaN where the signs at both ends do not differ."""
    with np.errstate(all="ignore"):
        low, high, at_low, at_high = map(np.array, np.broadcast_arrays(low, high, function(low), function(high)))
        brackets = np.sign(at_low) * np.sign(at_high) <= 0
        low, high = np.where(at_high == 0, high, low), np.where(at_low == 0, low, high)  # a root at an end is the end
        falls = at_low > at_high
        while True:
            x = (low + high) / 2
            if np.all((x == low) | (x == high) | ~brackets):
                return np.where(brackets, x, np.nan)
            below = (function(x) > 0) == falls
            low, high = np.where(below, x, low), np.where(below, high, x)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How models of all sizes are built. Defaults: the paper's.

    vocab_size in tokens; width_per_block: d_model / n_blocks; final_norm: whether a norm stands before the head. Every
    expert as wide as the dense layer is split into `split` narrower ones, of which a token uses `used` times as many
    (used = 1: as much width as the dense layer has); `shared` of those are the same for all tokens. Dense models, of 1
    expert, are not split. n_dense: blocks before the mixture that are dense. kv_share: heads of keys and values over
    heads of queries. attention: n_heads head_dim / d_model. head_dim: size of a head; 0: width_per_block. ff: d_ff /
    d_model. tied: the head is the embedding. trained: n_experts counts the narrow experts that a token chooses from, as
    the trainer and its table of runs do. Otherwise it counts experts as wide as the dense layer, whatever the split,
    the shared ones included.

    Counts hold for any width, whole blocks or not, unless n_blocks is given. n_experts None: of any mixture.
    """

    vocab_size: int = 50257
    width_per_block: int = 64
    final_norm: bool = False
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
    def plain(self) -> bool:
        """Whether models differ from the paper's in vocabulary, width per block and final norm at most."""
        return self == Architecture(self.vocab_size, self.width_per_block, self.final_norm)

    def said(self) -> dict[str, Any]:
        """The fields by name; of a plain architecture those three."""
        return dict(list(vars(self).items())[: 3 if self.plain else None])

    @property
    def ends(self) -> int:
        """Weights of embedding and head for each unit of width."""
        return self.vocab_size * (1 if self.tied else 2)

    @property
    def smallest(self) -> float:
        """Width of the smallest model: one block of the mixture."""
        return float(self.width_per_block) * (1 + self.n_dense)

    @property
    def top_k(self) -> int:
        """How many narrow experts a token chooses, beside the shared ones."""
        return round(self.used * self.split) - self.shared

    def widths(self, n_blocks: int) -> list[int]:
        """The widths that n_blocks may have: of whole heads, with a width per block within ROUNDED of the
        architecture's; and, whole heads or not, exactly that width per block."""
        own, step = n_blocks * self.width_per_block, (self.head_dim or self.width_per_block) / self.attention
        heads = range(math.ceil(own / (1 + ROUNDED) / step), math.floor(own * (1 + ROUNDED) / step) + 1)
        return sorted({own, *(round(n * step) for n in heads if n)})

    def enough(self, n_experts: ArrayLike) -> Array:
        """For each number of experts: whether there are as many as a token uses."""
        n_experts = np.asarray(n_experts, float)
        return (n_experts == 1) | (n_experts >= (self.top_k if self.trained else self.used))

    def n_active(self, d_model: Numbers, n_experts: Opt = None, n_blocks: Opt = None) -> Numbers:
        """Active parameters (Eq. 12): no norms, no router."""
        return self._count(d_model, self._used(n_experts), n_blocks)

    def n_total(self, d_model: Numbers, n_experts: Numbers, n_blocks: Opt = None) -> Numbers:
        """All parameters (Eq. 11)."""
        if self.trained:
            n_experts = np.asarray(n_experts, float)
            n_experts = np.where(n_experts > 1, (n_experts + self.shared) / self.split, 1.0)
        return self._count(d_model, n_experts, n_blocks)

    def _used(self, n_experts: Opt) -> Numbers:
        """How many dense layers' weights of these experts a token uses."""
        if n_experts is None or self.used == 1:
            return self.used
        return np.where(np.asarray(n_experts) > 1, self.used, 1.0)

    def _count(self, d_model: Numbers, experts: Numbers, n_blocks: Opt) -> Numbers:
        """Parameters, with so many dense layers' weights in each mixture."""
        n_blocks = d_model / self.width_per_block if n_blocks is None else n_blocks
        expert = 3 * self.ff
        counted = self.ends * d_model + (self._attention + expert * experts) * n_blocks * d_model**2
        if self.n_dense:  # what dense blocks lack
            counted = counted - expert * (experts - 1) * np.minimum(self.n_dense, n_blocks) * d_model**2
        return counted

    @property
    def _attention(self) -> float:
        """Weights of a block's attention, in d_model^2."""
        return ATTENTION / 2 * (1 + self.kv_share) * self.attention

    def d_model(self, n_active: Numbers, n_experts: Opt = None) -> Array:
        """The (real) width whose n_active this is, any shape: the positive root of Eq. 12, by Cardano's formula, unless
        dense blocks have other weights."""
        # t^3 + p t = q with one real root; in hyperbolic form it loses no digits.
        weights = self._attention + 3 * self.ff * self._used(n_experts)  # of a block, in d_model^2
        p = self.ends * self.width_per_block / weights
        q = np.asarray(n_active, float) * self.width_per_block / weights
        width = 2 * np.sqrt(p / 3) * np.sinh(np.arcsinh(1.5 * q / p * np.sqrt(3 / p)) / 3)
        if self.n_dense == 0 or self.used == 1:
            return width

        def excess(log_d: Numbers) -> Numbers:
            """Active parameters above n_active at this logarithm of the width."""
            return self.n_active(np.exp(log_d), n_experts) - n_active

        return np.exp(root(excess, np.log(width) - 5, np.log(width) + 5))

    def kv_elements(self, d_model: Numbers, kv_tokens: Numbers) -> Numbers:
        """Elements of the key-value cache of kv_tokens tokens: 2 T n_blocks d_model (Sec. 4.3) of the heads with
        keys."""
        return self.kv_share * self.attention * (2 * kv_tokens * (d_model / self.width_per_block) * d_model)

    def columns(self, d_model: Numbers, n_experts: Numbers, embedding: bool = True) -> dict[str, Numbers]:
        """{column: value} of all that a law may read of a model; shapes broadcast together. embedding: whether the
        counts include embedding and head."""
        n_experts = np.asarray(n_experts, float)
        less = 0 if embedding else self.ends * d_model
        active, total = self.n_active(d_model, n_experts), self.n_total(d_model, n_experts)
        return dict(n_active=active - less, n_total=total - less) | self.structure(n_experts)

    def structure(self, n_experts: Numbers) -> dict[str, Numbers]:
        """What a law may read of a mixture of whatever size: n_experts, sparsity, top_k, granularity, shared_share; if
        `trained`, as in a table of runs: top_k without the shared experts."""
        top_k = float(self.used * self.split)
        fine = dict(top_k=top_k, granularity=float(self.split), shared_share=self.shared / top_k)
        if not self.trained:
            return dict(n_experts=n_experts, sparsity=1 - self._used(n_experts) / n_experts) | fine
        fine |= dict(top_k=float(self.top_k))
        fine = {name: np.where(np.asarray(n_experts) > 1, v, WHOLE_EXPERTS[name]) for name, v in fine.items()}
        return dict(n_experts=n_experts, sparsity=1 - fine["top_k"] / n_experts) | fine

    def fields(self, d_model: int, n_experts: int) -> dict[str, int]:
        """The fields of the trainer's config.model beyond the paper's shape, whole numbers: the nearest that can be
        built. A plain architecture has none: d_model, n_blocks, a head for each width_per_block and d_ff = 3 d_model
        say all."""
        if self.plain:
            return {}
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


PAPER = Architecture()


class Model:
    """A decoder that can be built: whole blocks, heads and experts. Counts are exact; heads of width_per_block and
    whole experts, unless the architecture's fields say otherwise. width: d_model; 0: n_blocks width_per_block. fields:
    of the trainer's config.model, instead of those that follow from the architecture; n_experts are then the trainer's.

    shape: the fields of the trainer's config.model that a plan chooses, first those that every model has.
    exact_parameters: every weight, so n_total, two norms with bias a block, perhaps one before the head, and the
    routers; without_norms: without the norms. off: the factor by which rounding to whole blocks and heads changed the
    architecture's ratios, at most: width per block, heads of keys and values per head, width of all heads; 1 where it
    changed none.
    """

    def __init__(
        self,
        architecture: Architecture,
        n_blocks: int,
        n_experts: int,
        width: int = 0,
        fields: dict[str, Any] | None = None,
    ) -> None:
        own, self.n_blocks, self.n_experts = architecture, n_blocks, n_experts
        d = self.d_model = width or n_blocks * own.width_per_block
        shape = dict(d_model=d, n_blocks=n_blocks, n_heads=d // own.width_per_block, d_ff=EXPERT // 3 * d)
        self.shape = shape | dict(vocab_size=own.vocab_size) | (own.fields(d, n_experts) if fields is None else fields)
        given = self.shape.get
        heads = self.shape["n_heads"]
        size = given("head_dim", own.width_per_block if fields is None else d // heads)
        self.attention = heads * size / d  # width of all heads
        with_keys = given("n_kv_heads", heads)
        n_moe = n_blocks - given("n_dense_blocks", 0) if n_experts > 1 else 0
        routed, shared = given("routed_experts", n_experts), given("n_shared_experts", 0)
        expert = n_moe * 3 * d * (given("d_expert") or self.shape["d_ff"])  # weights of one in each mixture
        outside = (n_blocks - n_moe) * 3 * d * self.shape["d_ff"] + own.ends * d
        outside += n_blocks * 2 * d * size * (heads + with_keys)
        self.n_active = outside + expert * (given("top_k", 1) + shared)
        self.n_total = outside + expert * (routed + shared)
        router = n_moe * d * routed
        self.without_norms = self.n_total + router
        self.exact_parameters = self.without_norms + (4 * n_blocks + own.final_norm) * d
        self.cache = n_blocks * 2 * with_keys * size  # numbers that a token leaves
        looked_up = d * (own.ends - own.vocab_size)
        self._multiplied, self._scored = self.n_active - looked_up + router, n_blocks * heads * size
        of_keys, of_heads = with_keys / heads / own.kv_share, heads * size / d / own.attention
        self.off = max(max(r, 1 / r) for r in (d / (n_blocks * own.width_per_block), of_keys, of_heads))

    def kv_elements(self, kv_tokens: float) -> float:
        """Elements of the key-value cache of kv_tokens tokens."""
        return self.cache * kv_tokens

    def exact_flops_per_token(self, sequence: int) -> int:
        """FLOPs of one token's forward pass at `sequence` tokens of context: two a weight it is multiplied with (the
        embedding is looked up, not multiplied), scores and values of attention over the whole context, and the
        router."""
        return 2 * self._multiplied + 4 * self._scored * sequence
