"""Shapes that people build, for plans: widths, heads and experts in the multiples that hardware likes.

d_model is a multiple of 128, of 64 below 1,024; a head has 64 or 128 units; above d_model 2,048 the heads are a
multiple of 8; d_ff and d_expert are multiples of 128; experts are a power of two or a multiple of 8. Depth follows
from d_model / n_blocks of published models, or of the law's own runs at their sizes.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

from fit.model.architecture import ROUNDED, Architecture, Model

# d_model / n_blocks of published models, by their config.json (docs/reference/published-models.md).
# TYPICAL_ASPECT is its median.
LEAST_ASPECT = 42.0
TYPICAL_ASPECT = 116.0
MOST_ASPECT = 131.0
NARROW = 256  # d_model below which no width is rounded: such models are for study
TILE = 128  # of widths: what a matrix unit multiplies at once
HEADS = 8  # heads are a multiple of this in wide models, so that a machine's 8 devices can share them
WIDE = 2048  # d_model above which they are
KV_HEADS = 8  # of keys and values in Llama 3, Mixtral and gpt-oss
MOST_PADDING = 0.01  # share by which a vocabulary may grow to a multiple of TILE


@dataclasses.dataclass(frozen=True)
class Style:
    """How the models of a plan are shaped.

    Attributes:
      aspects: least, preferred and largest d_model / n_blocks.
      head_dim: units of a head; 0 means 128 in wide models and 64 in others.
      kv_heads: heads of keys and values; 0 means the architecture's share of the heads.
      as_published: whether models are shaped, and trained, like published ones, not like the law's runs.
    """

    aspects: tuple[float, float, float]
    head_dim: int = 0
    kv_heads: int = 0
    as_published: bool = False


def style_of(architecture: Architecture, as_published: bool, fixed: frozenset[str]) -> Style:
    """How to shape models.

    Args:
      architecture: the ratios that the law was asked for.
      as_published: whether like published ones, not like the law's runs.
      fixed: fields of the architecture that the user gave, which are kept.
    """
    width_per_block = architecture.width_per_block
    around = (width_per_block / (1 + ROUNDED), width_per_block, width_per_block * (1 + ROUNDED))
    if not as_published:
        head_dim = architecture.head_dim
        if not head_dim and "width_per_block" not in fixed:
            head_dim = width_per_block
        return Style(around, head_dim)
    aspects = around if "width_per_block" in fixed else (LEAST_ASPECT, TYPICAL_ASPECT, MOST_ASPECT)
    kv_heads = 0 if "kv_share" in fixed or architecture.kv_share != 1 else KV_HEADS
    return Style(aspects, architecture.head_dim, kv_heads, as_published=True)


def step(d_model: float) -> int:
    """The number that widths around d_model are multiples of."""
    return TILE if d_model >= 1024 else TILE // 2


def widths(least: float, most: float) -> Sequence[int]:
    """All widths of the grid from `least` to `most`, ascending."""
    if least >= 1024:
        return range(TILE * math.ceil(least / TILE), math.floor(most) + 1, TILE)
    fine = range(TILE // 2 * math.ceil(max(least, 1) / (TILE // 2)), 1024, TILE // 2)
    coarse = range(TILE * math.ceil(max(least, 1024) / TILE), math.floor(most) + 1, TILE)
    return [d for d in (*fine, *coarse) if d <= most]


def depths(style: Style, d_model: int) -> range:
    """The numbers of blocks that a width may have."""
    least, _, most = style.aspects
    return range(max(1, math.ceil(d_model / most)), math.floor(d_model / least) + 1)


def padded(vocab_size: int) -> int:
    """The vocabulary as a multiple of TILE, unless that is much larger."""
    wide = TILE * math.ceil(vocab_size / TILE)
    return wide if wide <= vocab_size * (1 + MOST_PADDING) else vocab_size


def multiple(value: float, divisor: int) -> int:
    """The nearest multiple of a divisor, at least the divisor itself."""
    return divisor * max(1, round(value / divisor))


def whole_experts(architecture: Architecture, n_experts: float) -> list[int]:
    """Numbers of experts near n_experts that devices share evenly.

    Args:
      architecture: how the law counts experts.
      n_experts: as the law counts them.

    Returns:
      The numbers to choose from, as the trainer counts them, ascending.
    """
    if n_experts <= 1:
        return [1]
    routed = n_experts
    if not architecture.counts_routed_experts:
        routed = n_experts * architecture.granularity - architecture.shared
    if routed == round(routed) and _is_even(round(routed)):
        return [round(routed)]
    near = {2 ** math.floor(math.log2(routed)), 2 ** math.ceil(math.log2(routed))}
    near |= {8 * math.floor(routed / 8), 8 * math.ceil(routed / 8)}
    return sorted(e for e in near if e >= max(2, architecture.top_k))


def _is_even(n_experts: int) -> bool:
    """Whether devices can share this number of experts evenly: a power of two, or a multiple of 8."""
    return n_experts & (n_experts - 1) == 0 or n_experts % 8 == 0


def law_experts(architecture: Architecture, routed: int) -> float:
    """The number that a law counts as n_experts where the trainer has `routed` experts."""
    if routed == 1 or architecture.counts_routed_experts:
        return routed
    return (routed + architecture.shared) / architecture.granularity


def built(architecture: Architecture, style: Style, d_model: int, n_blocks: int, routed: int) -> Model:
    """The model of a width, depth and number of experts.

    Args:
      architecture: its ratios.
      style: how it is shaped.
      d_model, n_blocks: its width and depth.
      routed: its experts as the trainer counts them.
    """
    return Model(architecture, n_blocks, routed, d_model, fields=fields(architecture, style, d_model, routed))


def fields(architecture: Architecture, style: Style, d_model: int, routed: int) -> dict[str, int]:
    """The fields of config.model that follow from a width. The arguments are those of `built`."""
    is_mixture = routed > 1
    head_dim = style.head_dim
    if not head_dim:
        head_dim = TILE if d_model >= WIDE else TILE // 2
    heads = multiple(architecture.attention * d_model, head_dim) // head_dim
    if d_model > WIDE:
        heads = multiple(heads, HEADS)
    d_ff = multiple(architecture.ff * d_model, TILE)
    d_expert = 0
    if is_mixture and architecture.granularity != 1:
        d_expert = multiple(architecture.ff * d_model / architecture.granularity, TILE)
    found = dict(d_model=d_model, n_experts=routed, n_heads=heads, d_ff=d_ff)
    kv_heads = _kv_heads(architecture, style, heads)
    if style.kv_heads or not architecture.has_paper_blocks or heads * head_dim != d_model:
        found |= dict(n_kv_heads=kv_heads, head_dim=head_dim, tied_embeddings=architecture.tied)
        found |= dict(
            top_k=architecture.top_k if is_mixture else 1,
            d_expert=d_expert,
            n_shared_experts=architecture.shared if is_mixture else 0,
            n_dense_blocks=architecture.n_dense if is_mixture else 0,
        )
    return found


def _kv_heads(architecture: Architecture, style: Style, heads: int) -> int:
    """Heads of keys and values: of the style, or the divisor of the heads nearest to the architecture's share."""
    if style.kv_heads:
        return style.kv_heads if heads > style.kv_heads and heads % style.kv_heads == 0 else heads
    return _nearest_divisor(heads, architecture.kv_share)


@functools.cache
def _nearest_divisor(n: int, share: float) -> int:
    """The divisor of n that is nearest to a share of n."""
    divisors = [k for k in range(1, n + 1) if n % k == 0]
    return min(divisors, key=lambda k: abs(math.log(k / (share * n))))
