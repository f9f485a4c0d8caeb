"""From a width and a number of experts to counts: parameters, cache, FLOPs.

The paper's decoder has an untied embedding and head, multi-head attention (4 d^2 weights a block) and a SwiGLU
feed-forward layer of width 3 d (9 d^2 weights an expert), one expert active (App. A):

  n_active = 2 d V + 13 n_blocks d^2     n_total = 2 d V + (4 + 9 E) n_blocks d^2     n_blocks = d / width_per_block

Other decoders have narrow and shared experts, leading dense blocks, grouped queries and so on.

Axes: all numbers may be arrays; those of one call broadcast together, and results have their common shape.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fit.aliases import Array, Json, Numbers, Opt
from fit.model.shape import ModelShape

FLOAT = np.finfo(float)
TRAINING = 6  # FLOPs of a training token for each active parameter
INFERENCE = 2  # FLOPs of a served token for each active parameter
ATTENTION = 4  # weights of a block's attention, in d^2
EXPERT = 9  # weights of one of a block's experts, in d^2
EXPERTS = (1, 2, 4, 8, 16, 32)  # the paper's
ANY_MIXTURE = 2.0  # experts of a mixture, where their number makes no difference
ROUNDED = 0.15  # two ratios within this share of each other may be one ratio, rounded to whole widths
OF_EXPERTS = ("n_experts", "n_total", "sparsity")  # columns that change with the number of experts
# Columns of the architecture, where a token uses one expert as wide as the dense layer, and no expert is shared.
WHOLE_EXPERTS = dict(top_k=1.0, granularity=1.0, shared_share=0.0)
Ramp = tuple[tuple[int, int], ...]  # ((from this many tokens seen, tokens in a batch), ...)
BATCH_RAMP: Ramp = ((0, 65_536), (500_000_000, 131_072), (1_000_000_000, 262_144))  # Sec. 5.1.1


def training_flops(n_active: Any, n_tokens: Any) -> Any:
    """Training FLOPs, 6 N D, of numbers or arrays."""
    return TRAINING * n_active * n_tokens


def root(function: Callable[[Numbers], Numbers], low: Numbers, high: Numbers) -> Array:
    """Finds where a function changes sign, for all elements at once, by Chandrupatla's method.

    Each step goes where an inverse parabola through the last three points crosses zero, if that is safe, and to the
    middle otherwise. A smooth function takes some ten steps, for which bisection takes fifty.

    Args:
      function: takes and returns arrays of one shape.
      low, high: ends of the interval, which broadcast together.

    Returns:
      The roots, to the last bits of a float64. NaN where the signs at both ends do not differ.
    """
    with np.errstate(all="ignore"):
        last, other, f_last, f_other = map(np.array, np.broadcast_arrays(low, high, function(low), function(high)))
        brackets = np.sign(f_last) * np.sign(f_other) <= 0
        share = np.full(last.shape, 0.5)  # of the way from the last point to the one with the other sign
        while True:
            best = np.where(np.abs(f_last) < np.abs(f_other), last, other)
            f_best = np.fmin(np.abs(f_last), np.abs(f_other))
            tolerance = 2 * FLOAT.eps * np.abs(best) + FLOAT.smallest_subnormal
            least_share = tolerance / np.abs(other - last)
            if np.all((least_share > 0.5) | (f_best == 0) | (other == last) | ~brackets):
                return np.where(brackets, best, np.nan)
            least_share = np.fmin(least_share, 0.5)  # those that are done stay between their ends
            x = last + np.clip(share, least_share, 1 - least_share) * (other - last)
            f_x = function(x)
            same_side = np.sign(f_x) == np.sign(f_last)
            before = np.where(same_side, last, other)
            f_before = np.where(same_side, f_last, f_other)
            other = np.where(same_side, other, last)
            f_other = np.where(same_side, f_other, f_last)
            last = x
            f_last = f_x
            xi = (last - other) / (before - other)
            phi = (f_last - f_other) / (f_before - f_other)
            is_safe = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
            of_other = f_last / (f_other - f_last) * f_before / (f_other - f_before)
            of_before = f_last / (f_before - f_last) * f_other / (f_before - f_other)
            inverse_parabola = of_other + of_before * (before - last) / (other - last)
            share = np.where(is_safe, inverse_parabola, 0.5)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How models of all sizes are built. The defaults are the paper's.

    Counts hold for any width, whole blocks or not, unless a method is given n_blocks. Where a method is given
    n_experts=None, it counts any mixture.

    Attributes:
      vocab_size: tokens of the vocabulary.
      width_per_block: d_model / n_blocks.
      final_norm: whether a norm precedes the head.
      granularity: into how many narrow experts each expert as wide as the dense layer is split. Dense models, of one
        expert, are not split.
      shared: how many of a token's narrow experts are the same for all tokens.
      n_dense: blocks before the mixtures that are dense.
      kv_share: heads of keys and values over heads of queries.
      active_width: width of a token's experts, shared ones included, over the width of the dense layer.
      attention: n_heads head_dim / d_model.
      head_dim: units of a head; 0 means width_per_block.
      ff: d_ff / d_model.
      tied: whether the head is the embedding.
      counts_routed_experts: whether n_experts counts the narrow experts that a token chooses from, as the trainer and
        its table of runs do. Otherwise it counts experts as wide as the dense layer, the shared ones included.
    """

    vocab_size: int = 50257
    width_per_block: int = 64
    final_norm: bool = False
    granularity: float = 1
    shared: int = 0
    n_dense: int = 0
    kv_share: float = 1.0
    active_width: float = 1.0
    attention: float = 1.0
    head_dim: int = 0
    ff: float = EXPERT / 3
    tied: bool = False
    counts_routed_experts: bool = False

    @property
    def has_paper_blocks(self) -> bool:
        """Whether models differ from the paper's in vocabulary, width per block and final norm at most."""
        return self == Architecture(self.vocab_size, self.width_per_block, self.final_norm)

    def to_json(self) -> Json:
        """The fields that a plan tells: all of them, or the first three of an architecture with the paper's blocks."""
        if self.has_paper_blocks:
            return dict(vocab_size=self.vocab_size, width_per_block=self.width_per_block, final_norm=self.final_norm)
        return dataclasses.asdict(self)

    @property
    def embedding_and_head_rows(self) -> int:
        """Rows of d_model weights in embedding and head together."""
        return self.vocab_size * (1 if self.tied else 2)

    @property
    def smallest(self) -> float:
        """d_model of the smallest model, which has one block with a mixture."""
        return float(self.width_per_block) * (1 + self.n_dense)

    @property
    def top_k(self) -> int:
        """How many narrow experts a token chooses, beside the shared ones."""
        return round(self.active_width * self.granularity) - self.shared

    def widths(self, n_blocks: int) -> list[int]:
        """Lists the widths that a model of n_blocks may have.

        These are n_blocks width_per_block, whole heads or not, and all widths of whole heads whose width per block is
        within ROUNDED of the architecture's.
        """
        width = n_blocks * self.width_per_block
        width_of_a_head = (self.head_dim or self.width_per_block) / self.attention
        fewest = math.ceil(width / (1 + ROUNDED) / width_of_a_head)
        most = math.floor(width * (1 + ROUNDED) / width_of_a_head)
        of_whole_heads = [round(n_heads * width_of_a_head) for n_heads in range(fewest, most + 1) if n_heads]
        return sorted({width, *of_whole_heads})

    def has_enough_experts(self, n_experts: ArrayLike) -> Array:
        """Whether there are as many experts as a token uses, for each number of experts. Dense models always have."""
        n_experts = np.asarray(n_experts, float)
        needed = self.top_k if self.counts_routed_experts else self.active_width
        return (n_experts == 1) | (n_experts >= needed)

    def routed_experts(self, n_experts: Numbers) -> Array:
        """Narrow experts that tokens choose from, for each number of experts: a real number, 1 for dense models."""
        n_experts = np.asarray(n_experts, float)
        if self.counts_routed_experts:
            return n_experts
        return np.where(n_experts > 1, n_experts * self.granularity - self.shared, 1.0)

    def shape(self, d_model: Numbers, n_experts: Opt, n_blocks: Opt = None) -> ModelShape:
        """The shape of models of any width and number of experts, in real numbers."""
        if n_experts is None:
            n_experts = ANY_MIXTURE
        if n_blocks is None:
            n_blocks = d_model / self.width_per_block
        head_dim = self.head_dim or self.width_per_block
        n_heads = self.attention * d_model / head_dim
        return ModelShape(
            d_model=d_model,
            n_blocks=n_blocks,
            n_heads=n_heads,
            n_kv_heads=self.kv_share * n_heads,
            head_dim=head_dim,
            d_ff=self.ff * d_model,
            vocab_size=self.vocab_size,
            n_experts=self.routed_experts(n_experts)[()],
            d_expert=self.ff * d_model / self.granularity,
            top_k=self.active_width * self.granularity - self.shared,
            n_shared_experts=self.shared,
            n_dense_blocks=np.minimum(self.n_dense, n_blocks) if self.n_dense else 0,
            tied_embeddings=self.tied,
        )

    def n_active(self, d_model: Numbers, n_experts: Opt = None, n_blocks: Opt = None) -> Numbers:
        """Active parameters (Eq. 12), without norms and routers."""
        return self.shape(d_model, n_experts, n_blocks).n_active

    def n_total(self, d_model: Numbers, n_experts: Numbers, n_blocks: Opt = None) -> Numbers:
        """All parameters (Eq. 11), without norms and routers."""
        return self.shape(d_model, n_experts, n_blocks).n_total

    def _active_widths(self, n_experts: Opt) -> Numbers:
        """Width of a token's experts over that of the dense layer; 1 for a dense model."""
        if n_experts is None or self.active_width == 1:
            return self.active_width
        return np.where(np.asarray(n_experts) > 1, self.active_width, 1.0)

    @property
    def _attention_weights(self) -> float:
        """Weights of a block's attention, in d_model^2."""
        return ATTENTION / 2 * (1 + self.kv_share) * self.attention

    def d_model(self, n_active: Numbers, n_experts: Opt = None) -> Array:
        """Inverts Eq. 12: the width, a real number, of models with n_active active parameters.

        Without dense blocks the width is the positive root of a cubic, by Cardano's formula. With dense blocks whose
        weights differ from a mixture's active ones, it is found by bisection.
        """
        # t^3 + p t = q with one real root; in hyperbolic form it loses no digits.
        block_weights = self._attention_weights + 3 * self.ff * self._active_widths(n_experts)  # in d_model^2
        p = self.embedding_and_head_rows * self.width_per_block / block_weights
        q = np.asarray(n_active, float) * self.width_per_block / block_weights
        width = 2 * np.sqrt(p / 3) * np.sinh(np.arcsinh(1.5 * q / p * np.sqrt(3 / p)) / 3)
        if self.n_dense == 0 or self.active_width == 1:
            return width

        def excess(log_d: Numbers) -> Numbers:
            """Active parameters above n_active at this logarithm of the width."""
            return self.n_active(np.exp(log_d), n_experts) - n_active

        return np.exp(root(excess, np.log(width) - 5, np.log(width) + 5))

    def kv_elements(self, d_model: Numbers, kv_tokens: Numbers) -> Numbers:
        """Elements of the key-value cache of kv_tokens tokens: 2 T n_blocks d_model (Sec. 4.3), for grouped queries
        times the share of heads that have keys."""
        return self.shape(d_model, None).kv_elements(kv_tokens)

    def columns(self, d_model: Numbers, n_experts: Numbers, embedding: bool = True) -> dict[str, Numbers]:
        """All that a law may read of models, by column.

        Args:
          d_model, n_experts: of the models; they broadcast together.
          embedding: whether n_active and n_total include embedding and head.

        Returns:
          {column: value}: n_active, n_total and the columns of `structure`.
        """
        n_experts = np.asarray(n_experts, float)
        left_out = 0 if embedding else self.embedding_and_head_rows * d_model
        n_active = self.n_active(d_model, n_experts) - left_out
        n_total = self.n_total(d_model, n_experts) - left_out
        return dict(n_active=n_active, n_total=n_total) | self.structure(n_experts)

    def structure(self, n_experts: Numbers) -> dict[str, Numbers]:
        """The columns of models of any size: n_experts, sparsity, top_k, granularity and shared_share.

        Where n_experts counts routed experts, the columns are those of a table of runs: top_k leaves the shared experts
        out, and dense models have the values of WHOLE_EXPERTS.
        """
        narrow = float(self.active_width * self.granularity)  # experts of a token, shared ones included
        columns = dict(top_k=narrow, granularity=float(self.granularity), shared_share=self.shared / narrow)
        if not self.counts_routed_experts:
            sparsity = 1 - self._active_widths(n_experts) / n_experts
            return dict(n_experts=n_experts, sparsity=sparsity) | columns
        columns["top_k"] = float(self.top_k)
        is_mixture = np.asarray(n_experts) > 1
        columns = {name: np.where(is_mixture, value, WHOLE_EXPERTS[name]) for name, value in columns.items()}
        return dict(n_experts=n_experts, sparsity=1 - columns["top_k"] / n_experts) | columns

    def fields(self, d_model: int, n_experts: int) -> dict[str, int]:
        """The fields of the trainer's config.model beyond the paper's shape, as whole numbers.

        They are the nearest that can be built, n_experts among them where the trainer counts other experts than the
        law. An architecture with the paper's blocks has none: d_model, n_blocks, a head for each width_per_block and
        d_ff = 3 d_model determine its models.
        """
        if self.has_paper_blocks:
            return {}
        is_mixture = n_experts > 1  # a dense model has no fields of experts
        head_dim = self.head_dim or self.width_per_block
        n_heads = max(1, round(self.attention * d_model / head_dim))
        divisors = [n for n in range(1, n_heads + 1) if n_heads % n == 0]
        n_kv_heads = min(divisors, key=lambda n: abs(np.log(n / (self.kv_share * n_heads))))
        d_ff = round(self.ff * d_model)
        fields = dict(n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, d_ff=d_ff, tied_embeddings=self.tied)
        if not self.counts_routed_experts and self.granularity != 1:
            fields["n_experts"] = round(n_experts * self.granularity) - self.shared if is_mixture else 1
        return fields | dict(
            top_k=self.top_k if is_mixture else 1,
            d_expert=max(1, round(self.ff * d_model / self.granularity)) if is_mixture else 0,
            n_shared_experts=self.shared if is_mixture else 0,
            n_dense_blocks=self.n_dense if is_mixture else 0,
        )


PAPER = Architecture()


class Model:
    """A decoder that can be built: whole blocks, heads and experts.

    Heads have width_per_block units and experts are whole, unless the architecture's fields say otherwise.

    Attributes:
      architecture: how it is built.
      fields: those of the trainer's config.model that a plan chooses, first those that every model has.
      shape: what counts it.
      rounding_factor: by what factor, at most, rounding to whole blocks and heads changed the architecture's ratios:
        width per block, heads of keys and values per head, width of all heads. 1 where it changed none.
    """

    def __init__(
        self,
        architecture: Architecture,
        n_blocks: int,
        n_experts: int,
        width: int = 0,
        fields: dict[str, Any] | None = None,
    ) -> None:
        """Counts the model.

        Args:
          architecture: the ratios that it is built by.
          n_blocks, n_experts: its size; experts as the law counts them.
          width: d_model; 0 means n_blocks width_per_block.
          fields: of the trainer's config.model, instead of those that follow from the architecture.
        """
        d_model = width or n_blocks * architecture.width_per_block
        self.architecture = architecture
        self.fields: Json = dict(
            d_model=d_model,
            n_blocks=n_blocks,
            n_heads=d_model // architecture.width_per_block,
            d_ff=EXPERT // 3 * d_model,
            vocab_size=architecture.vocab_size,
            n_experts=n_experts,
        )
        self.fields |= architecture.fields(d_model, n_experts) if fields is None else fields
        shape = ModelShape.of_config(dict(tied_embeddings=architecture.tied) | self.fields)
        self.shape = shape
        changes = (
            d_model / (n_blocks * architecture.width_per_block),
            shape.key_units / shape.query_units / architecture.kv_share,
            shape.query_units / d_model / architecture.attention,
        )
        self.rounding_factor = max(max(change, 1 / change) for change in changes)
