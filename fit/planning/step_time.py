"""How long a training step takes on chips that need not be present: counts of a step, and seconds from them.

The model, for one chip and one step:

  work     = products / (peak x efficiency) + attention / (peak x efficiency) + memory traffic / bandwidth
  exposed  = all-to-alls of the experts, which the next product waits for
  hidden   = gathers of weights and sums of gradients, of which OVERLAP hides behind the work
  seconds  = (work + exposed + what of `hidden` is not hidden + fixed cost of layers and step) x (1 + pipeline bubble)

A product's efficiency is that of large products times w / (w + half_width), where w is its narrowest side. So narrow
experts, and few rows per expert, are slower. The busiest device of the expert axis sets the pace of the mixtures:
their products take `imbalance` times as long as with a balanced load.

Counts are per chip and step unless a name says otherwise. FLOPs are floating-point operations, times are seconds.
"""

import dataclasses

from fit.shape.chips import Chip

BF16 = 2  # bytes of a bfloat16
FP32 = 4  # bytes of a float32
OVERLAP = 0.8  # share of the gathers and sums that hides behind work; XLA and FSDP prefetch one layer ahead
INTERLEAVED = 4  # pipeline chunks per stage, by which the bubble is shorter; where a source does not say
MICROBATCH_TOKENS = 8192  # tokens a chip works on at once, where a source does not say
# Busiest device over its fair share, once a router is trained without forced balance. Measured with 128 experts over
# 64 GB200 (github.com/marin-community/marin/issues/7668: worst rank after 18 steps).
IMBALANCE = 1.724
STATE_BYTES = 34  # of a parameter: weight and two moments in float32, gradient, norm of gradients, weight in bfloat16
LOGITS = 2**26  # bytes of the logits that the loss makes at a time, at least (jmoe/model/loss.py)
# How often a hidden unit is read or written beside the operands of products, forward and backward: of a dense layer,
# whose products contain most of SwiGLU; of experts with slots, which multiply by gates; of kernels of products by rows,
# which contain nothing
SWIGLU = 7
SWIGLU_OF_SLOTS = 9
SWIGLU_OF_ROWS = 12
PASSES = {"full": 4, "dots": 3, "none": 3}  # of a block's products: forward, forward again, two backward
FLASH_BLOCK = 512  # positions beyond the diagonal that flash attention works on
GATHERS = 2  # of each weight in a microbatch: forward and backward
EXACT_UP_TO = 8  # devices that sum gradients in bfloat16; more sum in float32 (docs/explanation/trainer.md)
TRAVELS = {"full": 5, "dots": 4, "none": 4}  # of a token's row between devices of the expert axis


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model.

    Attributes:
      d_model, n_blocks, vocab_size: as in config.model.
      attention_weights: parameters of one block's projections.
      attention_width: units of all heads of queries.
      d_ff: hidden units of a dense layer.
      d_expert: hidden units of a routed expert.
      n_experts: routed experts of a mixture; 1 is a dense model.
      n_experts_per_token: routed experts that a token chooses.
      n_shared_experts: in widths of a routed expert; need not be whole.
      n_dense_blocks: blocks without a mixture.
      matrices: of a feed-forward layer, 3 (SwiGLU) or 2.
    """

    d_model: int
    n_blocks: int
    attention_weights: float
    attention_width: float
    d_ff: int
    vocab_size: int
    d_expert: int = 0
    n_experts: int = 1
    n_experts_per_token: int = 1
    n_shared_experts: float = 0
    n_dense_blocks: int = 0
    matrices: int = 3

    @property
    def n_mixtures(self) -> int:
        """Blocks that have a mixture."""
        return self.n_blocks - self.n_dense_blocks if self.n_experts > 1 else 0

    @property
    def expert_weights(self) -> float:
        """Parameters of one routed expert of one block."""
        return self.matrices * self.d_model * self.d_expert

    @property
    def routed_weights(self) -> float:
        """Parameters of all routed experts of all blocks."""
        return self.n_mixtures * self.n_experts * self.expert_weights

    @property
    def dense_weights(self) -> float:
        """Parameters of all blocks but for the routed experts and routers."""
        feed_forward = self.matrices * self.d_model * self.d_ff * (self.n_blocks - self.n_mixtures)
        shared = self.n_mixtures * self.n_shared_experts * self.expert_weights
        return self.attention_weights * self.n_blocks + feed_forward + shared

    @property
    def head_weights(self) -> float:
        """Parameters of the output head."""
        return self.d_model * self.vocab_size

    def flops_per_token(self, sequence: int) -> float:
        """Model FLOPs of a token, as MFU counts them here.

        These are 6 for each active parameter but the embedding's, and causal attention. Nothing is computed again, and
        there is no padding.
        """
        active = self.dense_weights + self.head_weights
        active += self.n_mixtures * self.n_experts_per_token * self.expert_weights
        return 6 * active + 6 * self.n_blocks * self.attention_width * sequence


@dataclasses.dataclass(frozen=True)
class Setup:
    """How a model is trained.

    Attributes:
      n_chips: all chips.
      batch_tokens: tokens of a step.
      sequence: tokens in a row.
      microbatch_tokens: tokens that a chip holds at once. 0 stands for MICROBATCH_TOKENS, or for the chip's share of
        the batch where that is less.
      data, expert, model, pipeline: devices of the mesh's axes.
      remat: "full", "dots" or "none".
      slots: slots of the experts over tokens' choices: the capacity factor, 1 where no token is dropped.
      buffer: where no token is dropped, rows of the arrays that are sent to experts over tokens' choices; 0 stands for
        experts with `slots`.
      imbalance: load of the busiest device over its fair share.
      flash: whether attention keeps no scores.
      domain: chips that the fast network joins; 0 stands for as many as the chip's kind has.
    """

    n_chips: int
    batch_tokens: float
    sequence: int
    microbatch_tokens: float = 0
    data: int = 1
    expert: int = 1
    model: int = 1
    pipeline: int = 1
    remat: str = "full"
    slots: float = 1.0
    buffer: float = 0.0
    imbalance: float = 1.0
    flash: bool = True
    domain: int = 0

    @property
    def tokens_per_chip(self) -> float:
        """Tokens of a step over chips: each chip's share of the work, whatever axis divides it."""
        return self.batch_tokens / self.n_chips

    @property
    def n_microbatches(self) -> float:
        """Parts of a batch that a chip works on one after the other."""
        share = self.tokens_per_chip * self.model * self.pipeline
        tokens_at_once = self.microbatch_tokens or min(MICROBATCH_TOKENS * self.model, share)
        return max(1.0, share / tokens_at_once)


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a chip does in a step.

    Attributes:
      large: FLOPs of projections, dense layers and head.
      grouped: FLOPs of routed experts.
      attention: FLOPs of scores and values.
      large_width, grouped_width: the narrowest sides of these products.
      memory: bytes of main memory read or written.
      weights: bytes that leave the chip as gathered weights.
      gradients: bytes that leave it as gradients summed over the data axis.
      copies: bytes that leave it as gradients of what each device of the expert axis has a copy of.
      all_to_all: bytes of tokens to experts and back, over the fast network.
      all_to_all_between: the same, over the network between domains.
      sums: bytes that leave it as activations summed over the model axis.
      between: bytes of weights and gradients that leave the fast network.
      layers: blocks times microbatches.
      mixture_layers: those of them with a mixture.
      bubble: idle time of the pipeline over working time.
    """

    large: float
    grouped: float
    attention: float
    large_width: float
    grouped_width: float
    memory: float
    weights: float
    gradients: float
    copies: float
    all_to_all: float
    all_to_all_between: float
    sums: float
    between: float
    layers: float
    mixture_layers: float
    bubble: float

    @property
    def flops(self) -> float:
        """FLOPs of all products."""
        return self.large + self.grouped + self.attention

    @property
    def sent(self) -> float:
        """Bytes that leave a chip, by any network."""
        return self.weights + self.gradients + self.copies + self.all_to_all + self.sums


def leaving(n: float) -> float:
    """The share of what n devices exchange that leaves a device."""
    return (n - 1) / n


def summed_bytes(n: float) -> int:
    """Bytes of a number of a gradient that n devices sum."""
    return BF16 if n <= EXACT_UP_TO else FP32


def counts(shape: Shape, setup: Setup, domain: int, gathers_between: bool) -> Counts:
    """Counts what a chip does in a step.

    Args:
      shape: the model.
      setup: how it is trained.
      domain: chips that the fast network joins.
      gathers_between: whether weights are gathered over all chips, and not only over those of a fast network.
    """
    large, grouped, attention = _product_flops(shape, setup)
    large_width, grouped_width = _product_widths(shape, setup)
    n_microbatches = setup.n_microbatches
    layers = shape.n_blocks / setup.pipeline * n_microbatches
    return Counts(
        large=large,
        grouped=grouped,
        attention=attention,
        large_width=large_width,
        grouped_width=grouped_width,
        memory=_memory_bytes(shape, setup),
        **vars(_traffic(shape, setup, domain, gathers_between)),
        layers=layers,
        mixture_layers=layers * shape.n_mixtures / shape.n_blocks,
        bubble=(setup.pipeline - 1) / n_microbatches / INTERLEAVED,
    )


def _choices(shape: Shape, setup: Setup) -> float:
    """Rows of the routed experts' products for a chip's tokens: choices, or slots where these are more."""
    return setup.tokens_per_chip * shape.n_experts_per_token * setup.slots


def _product_flops(shape: Shape, setup: Setup) -> tuple[float, float, float]:
    """FLOPs of (projections, dense layers and head; routed experts; scores and values) of a chip in a step."""
    tokens = setup.tokens_per_chip
    n_recomputed = PASSES[setup.remat] - 3  # forward passes that are computed again
    # Of a layer's forward pass, the last product is not needed again.
    dense_layers = shape.matrices * shape.d_model * shape.d_ff * (shape.n_blocks - shape.n_mixtures)
    shared = shape.n_mixtures * shape.n_shared_experts * shape.expert_weights
    last_products = (dense_layers + shared) / shape.matrices
    routers = shape.n_mixtures * shape.d_model * shape.n_experts
    recomputed = n_recomputed * (shape.dense_weights + routers - last_products)
    large = 2 * tokens * (3 * (shape.dense_weights + routers + shape.head_weights) + recomputed)

    one_expert = shape.n_mixtures * shape.expert_weights  # one in each mixture
    grouped = 2 * _choices(shape, setup) * one_expert * (3 + n_recomputed * (1 - 1 / shape.matrices))

    # Flash attention: 2 products forward and 5 backward on half of the scores. Otherwise 2 and 4 on all of them.
    products = (2 + 2 * n_recomputed + 5) / 2 if setup.flash else 2 + 2 * n_recomputed + 4
    positions = setup.sequence + FLASH_BLOCK if setup.flash else setup.sequence
    attention = 2 * products * tokens * shape.n_blocks * shape.attention_width * positions
    return large, grouped, attention


def _product_widths(shape: Shape, setup: Setup) -> tuple[float, float]:
    """The narrowest sides of (large products; those of routed experts)."""
    hidden = shape.d_ff or shape.d_model * 4
    large_width = min(shape.d_model, hidden / setup.model, shape.attention_width / setup.model)
    rows_of_chip = _choices(shape, setup) / setup.n_microbatches
    rows_of_expert = rows_of_chip * setup.expert * setup.model * setup.pipeline / shape.n_experts
    expert_width = max(1.0, shape.d_expert / setup.model)
    return large_width, min(shape.d_model, expert_width, max(1.0, rows_of_expert))


def _memory_bytes(shape: Shape, setup: Setup) -> float:
    """Bytes of main memory that a chip reads or writes in a step.

    Each product reads its two operands and writes its result. What no compiler joins with a product comes on top.
    """
    units = shape.n_blocks * _attention_units(shape, setup)
    units += (shape.n_blocks - shape.n_mixtures) * _layer_units(shape, setup, 1, shape.d_ff, SWIGLU)
    units += shape.n_mixtures * _mixture_units(shape, setup)
    activations = BF16 * units
    if not setup.flash:
        n_heads = shape.attention_width / 64
        n_recomputed = PASSES[setup.remat] - 3
        activations += (2 + 2 * n_recomputed + 7) * FP32 * shape.n_blocks * n_heads * setup.sequence
    stored = shape.routed_weights + (shape.dense_weights + 2 * shape.head_weights) * setup.expert
    moved = setup.tokens_per_chip * activations + _moved_weights(shape, setup) + _moved_logits(shape, setup)
    return moved + STATE_BYTES * stored / setup.n_chips


def _attention_units(shape: Shape, setup: Setup) -> float:
    """Units of one token that attention, norms and residuals of a block read or write in a step."""
    n_recomputed = PASSES[setup.remat] - 3
    whole_width = shape.d_model * setup.model  # each device of the model axis has all of it
    queries = shape.attention_width
    keys = shape.attention_weights / (2 * shape.d_model) - queries
    projections = PASSES[setup.remat] * (2 * whole_width + 2 * queries + 2 * keys)
    # split into heads, then halves of queries and keys turned and joined; backward turned and joined
    turned = 4 * (queries + keys)
    laid_out = (1 + n_recomputed) * (2 * (queries + 2 * keys) + turned) + turned
    # the kernel: queries, keys, values and what comes out; backward also their gradients
    kernel = (1 + n_recomputed) * (2 * queries + 2 * keys) + 3 * queries + 4 * keys
    product_of_gradient = 2 * queries  # row sums of the result times its gradient
    # two norms, two sums with the residual, the block's input kept; again without the sums; backward
    residual = (9 + 6 * n_recomputed + 13) * whole_width
    kernel = kernel + product_of_gradient if setup.flash else 0.0
    return projections + laid_out + kernel + residual


def _layer_units(shape: Shape, setup: Setup, rows: float, hidden: float, elementwise: int) -> float:
    """Units of one token that a feed-forward layer reads or writes in a step.

    Args:
      shape, setup: the model and how it is trained.
      rows: of a token in the layer.
      hidden: units of the layer.
      elementwise: how often a hidden unit is read or written beside the products.
    """
    n_recomputed = PASSES[setup.remat] - 3
    n_products = 3 * shape.matrices + n_recomputed * (shape.matrices - 1)  # the last one is not needed again
    return rows * (n_products * (shape.d_model * setup.model + hidden) + elementwise * hidden)


def _mixture_units(shape: Shape, setup: Setup) -> float:
    """Units of one token that a mixture reads or writes in a step: its experts, and rows on their way to them."""
    n_recomputed = PASSES[setup.remat] - 3
    rows = shape.n_experts_per_token * (setup.buffer or setup.slots)
    elementwise = SWIGLU_OF_ROWS if setup.buffer else SWIGLU_OF_SLOTS
    experts = _layer_units(shape, setup, rows, shape.d_expert, elementwise)
    if shape.n_shared_experts:
        experts += _layer_units(shape, setup, 1, shape.d_expert * shape.n_shared_experts, SWIGLU)
    # a token is copied to its rows: forward, again, and its gradient backward
    dispatched = (2 + n_recomputed) * (1 + rows)
    # each row is gathered and added up, forward and in the gradient of dispatch; gate and up add their gradients
    combined = (3 + 3 + 3) * rows
    exchanged = 0.0
    if setup.expert > 1:
        exchanged = 2 * TRAVELS[setup.remat] * rows  # read and written
    if shape.n_experts > setup.expert or setup.buffer:  # a device sorts what it receives by expert, and back
        exchanged *= 2
    return experts + shape.d_model * (dispatched + combined + exchanged)


def _moved_weights(shape: Shape, setup: Setup) -> float:
    """Bytes of weights of blocks that a chip reads or writes in a step: of products, gathers and sums of gradients."""
    split = setup.pipeline * setup.model
    weights = (shape.dense_weights + shape.routed_weights / setup.expert) / split
    of_a_weight = BF16 * PASSES[setup.remat]
    if setup.data > 1:
        of_a_weight += BF16 * GATHERS + 2 * summed_bytes(setup.data)
    return of_a_weight * weights * setup.n_microbatches


def _moved_logits(shape: Shape, setup: Setup) -> float:
    """Bytes of logits, head and embedding that a chip reads or writes in a step."""
    split = setup.pipeline * setup.model
    tokens_at_once = setup.tokens_per_chip * split / setup.n_microbatches
    rows = max(LOGITS / (FP32 * shape.vocab_size), 2 * shape.d_model)
    n_parts = max(1.0, tokens_at_once / rows) * setup.n_microbatches
    # logits: written, read for their sum, and for the gradients of head and input
    logits = 4 * FP32 * shape.vocab_size * setup.tokens_per_chip
    # each part reads the head twice, and adds to its gradient in float32
    of_parts = (2 * BF16 + 2 * FP32) * n_parts
    # gradients of head and embedding: zeroed, added to, cast, summed, each in float32
    of_gradients = 2 * 5 * FP32 * setup.n_microbatches
    return logits + (of_parts + of_gradients) * shape.head_weights / split


@dataclasses.dataclass(frozen=True)
class _Traffic:
    """Bytes that leave a chip in a step, as Counts has them."""

    weights: float
    gradients: float
    copies: float
    all_to_all: float
    all_to_all_between: float
    sums: float
    between: float


def _traffic(shape: Shape, setup: Setup, domain: int, gathers_between: bool) -> _Traffic:
    """Counts what leaves a chip in a step. The arguments are those of `counts`."""
    n_recomputed = PASSES[setup.remat] - 3
    split = setup.pipeline * setup.model  # devices that each keep a part of a block, whatever the data axis
    embedding_and_head = 2 * shape.head_weights
    at_expert = shape.routed_weights / (setup.expert * split)
    # what all devices of the expert axis work with, each gathering it over the data axis
    common = (shape.dense_weights + embedding_and_head) / split
    leaving_data = leaving(setup.data)
    gathered = (at_expert + common) * leaving_data
    weights = GATHERS * BF16 * gathered * setup.n_microbatches
    gradients = summed_bytes(setup.data) * gathered
    copies = 2 * summed_bytes(setup.expert) * common / setup.data * leaving(setup.expert)

    rows_sent = setup.tokens_per_chip * shape.n_experts_per_token * (setup.buffer or setup.slots)
    row_bytes = TRAVELS[setup.remat] * BF16 * shape.d_model
    all_to_all = row_bytes * rows_sent * shape.n_mixtures * leaving(setup.expert)
    activations = (4 + n_recomputed * 2) * BF16 * shape.d_model * setup.tokens_per_chip
    sums = activations * setup.model * shape.n_blocks * leaving(setup.model)

    crossing = _crossing(setup, domain)
    between = gradients * crossing * (1 if gathers_between else 2)
    if gathers_between:
        between += weights * crossing
    # the share of the expert axis that lies in other domains
    outside = max(0.0, 1 - domain / (setup.expert * setup.model)) if setup.expert > 1 else 0.0
    return _Traffic(
        weights=weights,
        gradients=gradients,
        copies=copies,
        all_to_all=all_to_all * (1 - outside),
        all_to_all_between=all_to_all * outside,
        sums=sums,
        between=between,
    )


def _crossing(setup: Setup, domain: int) -> float:
    """The share of what is exchanged over the data axis that leaves a chip's domain."""
    n_domains = max(1.0, setup.n_chips / domain)
    if n_domains <= 1 or setup.data <= 1:
        return 0.0
    # devices of the data axis within a domain, which share what they exchange with others
    group = max(1.0, min(domain, setup.n_chips) / (setup.expert * (setup.pipeline * setup.model)))
    return leaving(n_domains) / max(leaving(setup.data), 1e-9) / group


@dataclasses.dataclass(frozen=True)
class Efficiencies:
    """What chips reach, as shares of their peaks, and fixed costs.

    Attributes:
      products: of large products, over the chip's peak.
      grouped: of products by expert, over large ones.
      attention: of scores and values, over large products.
      half_width: narrowest side at which a product is half as efficient as a large one.
      memory: of the peak of main memory; above 1 where traffic hides behind products.
      inside, between: of the peaks of the fast network and of the one between domains.
      layer: seconds that a block of a microbatch takes beside all this.
      mixture: seconds that a block with a mixture takes on top.
    """

    products: float
    grouped: float
    attention: float
    half_width: float
    memory: float
    inside: float
    between: float
    layer: float
    mixture: float

    def of_width(self, width: float) -> float:
        """Efficiency of a product whose narrowest side is `width`, over that of a large one."""
        return width / (width + self.half_width)


def seconds(counted: Counts, chip: Chip, reached: Efficiencies, imbalance: float = 1.0) -> float:
    """How long a step takes.

    Args:
      counted: what a chip does in it.
      chip: its peaks.
      reached: what it reaches of them.
      imbalance: load of the busiest device of the expert axis over its fair share.
    """
    peak = chip.flops * reached.products
    work = counted.large / (peak * reached.of_width(counted.large_width))
    work += counted.attention / (peak * reached.attention)
    if counted.grouped:
        grouped_peak = peak * reached.grouped * reached.of_width(counted.grouped_width)
        work += counted.grouped * imbalance / grouped_peak
    work += counted.memory / (chip.bandwidth * reached.memory)
    fast = chip.network * reached.inside
    slow = chip.between * reached.between
    exposed = (counted.all_to_all / fast + counted.all_to_all_between / slow) * imbalance
    exposed += counted.sums / fast
    inside = (counted.weights + counted.gradients + counted.copies) / fast
    sending = max(inside, counted.between / slow)
    hidden = OVERLAP * min(sending, work)
    fixed = counted.layers * reached.layer + counted.mixture_layers * reached.mixture
    return (work + exposed + sending - hidden + fixed) * (1 + counted.bubble)
