"""Work, traffic and memory of one device in a training step, counted from a shape and a layout before anything runs.

The constants describe the trainer (jmoe/): how often a token's row travels to experts (TRIPS), how often a weight is
gathered (GATHERS), the bytes of a parameter (KEPT). benchmarks/step_time.py compares the counts with compiled programs.

Counts are of one device and one step unless a name says otherwise. They may be arrays: all fields of shape and layout
broadcast together.
"""

import dataclasses
from typing import Any

import numpy as np

from fit.aliases import Array, Numbers
from fit.model.layout import Layout
from fit.model.shape import ModelShape

BF16 = 2  # bytes of a bfloat16
FP32 = 4  # bytes of a float32

# What is sent
TRIPS = {"full": 5, "dots": 4, "none": 4}  # of a token's row between devices of the expert axis
GATHERS = {"full": 2, "dots": 2, "none": 1}  # of a block's weight in a microbatch: forward, and again backward
NARROWEST = 128  # numbers of a row of the embedding that devices exchange, at least
EXACT_UP_TO = 8  # devices that sum gradients in bfloat16; more sum in float32 (docs/explanation/trainer.md)

# What is computed
PASSES = {"full": 4, "dots": 3, "none": 3}  # of a block's products: forward, forward again, two backward
FLASH_BLOCK = 512  # positions beyond the diagonal that flash attention works on
INTERLEAVED = 4  # pipeline chunks per stage, by which the bubble is shorter; where a source does not say

# What is read or written of main memory
UPDATE = 34  # bytes of a parameter: weight and two moments in float32, gradient, norm of gradients, weight in bfloat16
SAVED = 4  # reads and writes, beside the products, of activations that blocks save for the backward pass
LOGITS = 2**26  # bytes of the logits that the loss makes at a time, at least (jmoe/model/loss.py)
# How often a hidden unit is read or written beside the operands of products, forward and backward. Products of a dense
# layer are fused with most of SwiGLU. Experts with slots multiply by gates, too. Kernels of products by rows fuse
# nothing.
SWIGLU = 7
SWIGLU_OF_SLOTS = 10
SWIGLU_OF_ROWS = 14
# Bytes of a weight whose gradient kernels of products by rows sum in float32: zeroed, added to, cast
GRADIENT_OF_ROWS = 14

# What is kept: read off compiled programs (tests/fit/model/test_step_counts.py)
KEPT = 18  # bytes of a parameter: weight and two moments in float32, gradient in float32, weight in bfloat16
ACCUMULATED = 4  # where a batch comes in parts: the sum of their gradients in float32
# Bytes of a token that a block leaves for the backward pass: for each unit of width, on each device of the model axis
# and divided over it, and for each score of attention
LEFT_WHOLE = {"full": 4, "dots": 5, "none": 34}
LEFT_SPREAD = {"full": 0, "dots": 32, "none": 36}
LEFT_SCORES = {"full": 0, "dots": 0, "none": 12}
# Bytes of a token in the block at work, for each unit of: width, queries and keys, hidden units of layers that all
# tokens use, a row's width and hidden units on its way through an expert, scores of attention
WIDTH_AT_WORK = 5
HEADS_AT_WORK = 4
HIDDEN_AT_WORK = 12
ROW_AT_WORK = 5
EXPERT_AT_WORK = 16
SCORES_AT_WORK = 8


@dataclasses.dataclass(frozen=True)
class StepCounts:
    """Work, traffic and memory of a device in a step.

    Attributes:
      shape, layout: what is counted.
      large: FLOPs of projections, dense layers and head.
      grouped: FLOPs of routed experts.
      attention: FLOPs of scores and values.
      large_width, grouped_width: the narrowest sides of these products.
      main_memory: bytes of main memory read or written.
      weights: bytes that leave the device as gathered weights.
      gradients: bytes that leave it as gradients summed over the data axis.
      copies: bytes that leave it as gradients of weights of which each device of the expert axis has a copy.
      all_to_all: bytes of tokens to experts and back, over the fast network.
      all_to_all_between: the same, over the network between domains.
      sums: bytes that leave it as activations summed over the model axis.
      between: bytes of weights, gradients and copies that leave the fast network.
      layers: blocks times microbatches.
      mixture_layers: those of them with a mixture.
      bubble: idle time of the pipeline over working time.
    """

    shape: ModelShape
    layout: Layout
    large: Numbers
    grouped: Numbers
    attention: Numbers
    large_width: Numbers
    grouped_width: Numbers
    main_memory: Numbers
    weights: Numbers
    gradients: Numbers
    copies: Numbers
    all_to_all: Numbers
    all_to_all_between: Numbers
    sums: Numbers
    between: Numbers
    layers: Numbers
    mixture_layers: Numbers
    bubble: Numbers

    @property
    def flops(self) -> Numbers:
        """FLOPs of all products."""
        return self.large + self.grouped + self.attention

    @property
    def sent_bytes(self) -> Numbers:
        """Bytes that leave a device, by any network."""
        tokens = self.all_to_all + self.all_to_all_between + self.sums
        return self.weights + self.gradients + self.copies + tokens

    @property
    def device_bytes(self) -> Numbers:
        """Memory of a device: of parameters, of what blocks leave for the backward pass, of what is at work."""
        return memory_of(self.shape, self.layout)


def leaving(n: Numbers) -> Numbers:
    """The share of what n devices exchange that leaves a device."""
    return (n - 1) / n


def summed_bytes(n: Numbers) -> Numbers:
    """Bytes of a number of a gradient that n devices sum."""
    return np.where(np.less_equal(n, EXACT_UP_TO), BF16, FP32)[()]


def count(shape: ModelShape, layout: Layout, domain: Numbers, gathers_between: Any) -> StepCounts:
    """Counts what a device does in a step.

    Args:
      shape: the model.
      layout: how it is trained.
      domain: devices that the fast network joins.
      gathers_between: whether weights are gathered over all devices, not only over those of a fast network.
    """
    large, grouped, attention = _product_flops(shape, layout)
    large_width, grouped_width = _product_widths(shape, layout)
    n_microbatches = layout.n_microbatches
    layers = shape.n_blocks / layout.pipeline * n_microbatches
    return StepCounts(
        shape=shape,
        layout=layout,
        large=large,
        grouped=grouped,
        attention=attention,
        large_width=large_width,
        grouped_width=grouped_width,
        main_memory=_main_memory(shape, layout),
        **_traffic(shape, layout, domain, gathers_between),
        layers=layers,
        mixture_layers=layers * shape.n_mixtures / shape.n_blocks,
        bubble=(layout.pipeline - 1) / n_microbatches / INTERLEAVED,
    )


def _again(layout: Layout) -> Numbers:
    """Forward passes of a block that are computed again."""
    return layout.of_remat(PASSES) - 3


def _choices(shape: ModelShape, layout: Layout) -> Numbers:
    """Rows of the routed experts' products for a device's tokens: choices, or slots where these are more."""
    return layout.tokens_per_device * shape.top_k * layout.slots


def _product_flops(shape: ModelShape, layout: Layout) -> tuple[Numbers, Numbers, Numbers]:
    """FLOPs of (projections, dense layers and head; routed experts; scores and values) of a device in a step."""
    tokens = layout.tokens_per_device
    again = _again(layout)
    # Of a layer's forward pass, the last product is not needed again.
    last_products = (shape.dense_layers + shape.shared_weights) / shape.matrices
    recomputed = again * (shape.dense_weights + shape.routers - last_products)
    large = 2 * tokens * (3 * (shape.dense_weights + shape.routers + shape.head) + recomputed)

    one_expert = shape.n_mixtures * shape.expert_weights  # one in each mixture
    grouped = 2 * _choices(shape, layout) * one_expert * (3 + again * (1 - 1 / shape.matrices))

    # Flash attention: 2 products forward and 5 backward on half of the scores. Otherwise 2 and 4 on all of them.
    products = np.where(layout.flash, (2 + 2 * again + 5) / 2, 2 + 2 * again + 4)
    positions = np.where(layout.flash, np.add(layout.sequence, FLASH_BLOCK), layout.sequence)
    attention = 2 * products * tokens * shape.n_blocks * shape.query_units * positions
    return large, grouped, attention


def _product_widths(shape: ModelShape, layout: Layout) -> tuple[Numbers, Numbers]:
    """The narrowest sides of (large products; those of routed experts)."""
    hidden = np.where(np.greater(shape.d_ff, 0), shape.d_ff, 4 * shape.d_model)
    spread = np.minimum(hidden, shape.query_units) / layout.model
    large_width = np.minimum(shape.d_model, spread)
    rows_at_once = _choices(shape, layout) / layout.n_microbatches
    rows_of_expert = rows_at_once * layout.expert * layout.model * layout.pipeline / shape.n_experts
    expert_width = np.minimum(shape.d_expert / layout.model, rows_of_expert)
    return large_width, np.minimum(shape.d_model, np.maximum(1.0, expert_width))


def _main_memory(shape: ModelShape, layout: Layout) -> Numbers:
    """Bytes of main memory that a device reads or writes in a step.

    Each product reads its two operands and writes its result. Other reads and writes, not fused with it, come on top.
    """
    units = shape.n_blocks * _attention_units(shape, layout)
    units = units + (shape.n_blocks - shape.n_mixtures) * _layer_units(shape, layout, 1, shape.d_ff, SWIGLU)
    units = units + shape.n_mixtures * _mixture_units(shape, layout)
    scores = (2 + 2 * _again(layout) + 7) * FP32 * shape.n_blocks * _scores(shape, layout)
    # the inputs of blocks are counted with the residual; the rest is copied to where it is kept, and back
    saved = _left_bytes(shape, layout) - LEFT_WHOLE["full"] * shape.n_blocks * shape.d_model
    activations = BF16 * units + scores + SAVED * layout.model * saved
    stored = shape.routed_weights + (shape.dense_weights + shape.embedding_and_head) * _spread(shape, layout).copies
    moved = layout.tokens_per_device * activations + _moved_weights(shape, layout) + _moved_logits(shape, layout)
    return moved + UPDATE * stored / layout.n_devices


def _attention_units(shape: ModelShape, layout: Layout) -> Numbers:
    """Units of one token that attention, norms and residuals of a block read or write in a step."""
    again = _again(layout)
    whole_width = shape.d_model * layout.model  # each device of the model axis has all of it
    queries = shape.query_units
    keys = shape.key_units
    projections = layout.of_remat(PASSES) * (2 * whole_width + 2 * queries + 2 * keys)
    # split into heads, then halves of queries and keys turned and joined; backward turned and joined
    turned = 4 * (queries + keys)
    laid_out = (1 + again) * (2 * (queries + 2 * keys) + turned) + turned
    # the kernel: queries, keys, values and what comes out; backward also their gradients, and the row sums of the
    # result times its gradient
    kernel = (1 + again) * (2 * queries + 2 * keys) + 3 * queries + 4 * keys + 2 * queries
    # two norms, two sums with the residual, the block's input kept; again without the sums; backward
    residual = (9 + 6 * again + 13) * whole_width
    return projections + laid_out + np.where(layout.flash, kernel, 0.0) + residual


def _layer_units(shape: ModelShape, layout: Layout, rows: Numbers, hidden: Numbers, elementwise: Numbers) -> Numbers:
    """Units of one token that a feed-forward layer reads or writes in a step.

    Args:
      shape, layout: the model and how it is trained.
      rows: of a token in the layer.
      hidden: units of the layer.
      elementwise: how often a hidden unit is read or written beside the products.
    """
    # the last product is not needed again
    n_products = 3 * shape.matrices + _again(layout) * (shape.matrices - 1)
    return rows * (n_products * (shape.d_model * layout.model + hidden) + elementwise * hidden)


def _mixture_units(shape: ModelShape, layout: Layout) -> Numbers:
    """Units of one token that a mixture reads or writes in a step: its experts, and rows on their way to them."""
    again = _again(layout)
    by_rows = np.greater(layout.buffer, 0)
    rows = shape.top_k * np.where(by_rows, layout.buffer, layout.slots)
    elementwise = np.where(by_rows, SWIGLU_OF_ROWS, SWIGLU_OF_SLOTS)
    experts = _layer_units(shape, layout, rows, shape.d_expert, elementwise)
    shared_units = shape.d_expert * shape.n_shared_experts
    shared = _layer_units(shape, layout, 1, shared_units, SWIGLU)
    experts = experts + np.where(np.greater(shape.n_shared_experts, 0), shared, 0.0)
    # a token is copied to its rows: forward, again, and its gradient backward
    dispatched = (2 + again) * (1 + rows)
    # each row is gathered and added up, forward and in the gradient of dispatch; gate and up add their gradients
    combined = (3 + 3 + 3) * rows
    exchanged = np.where(np.greater(layout.expert, 1), 2 * layout.of_remat(TRIPS) * rows, 0.0)  # read and written
    # a device sorts what it receives by expert, and back
    sorts = np.logical_or(np.greater(shape.n_experts, layout.expert), by_rows)
    exchanged = np.where(sorts, 2 * exchanged, exchanged)
    return experts + shape.d_model * (dispatched + combined + exchanged)


def _moved_weights(shape: ModelShape, layout: Layout) -> Numbers:
    """Bytes of weights of blocks that a device reads or writes in a step: of products, gathers, sums of gradients."""
    split = layout.pipeline * layout.model
    at_expert = shape.routed_weights / layout.expert / split
    dense = shape.dense_weights / split
    of_products = BF16 * layout.of_remat(PASSES)
    gathered = BF16 * layout.of_remat(GATHERS)
    of_dense = gathered + 2 * summed_bytes(layout.data * layout.expert)
    of_experts = gathered + 2 * summed_bytes(layout.data)
    moved = of_products * (dense + at_expert)
    moved = moved + np.where(np.greater(_spread(shape, layout).rows, 1), of_dense, 0) * dense
    moved = moved + np.where(np.greater(layout.data, 1), of_experts, 0) * at_expert
    moved = moved + np.where(np.greater(layout.buffer, 0), GRADIENT_OF_ROWS, 0) * at_expert
    return moved * layout.n_microbatches


def _moved_logits(shape: ModelShape, layout: Layout) -> Numbers:
    """Bytes of logits, head and embedding that a device reads or writes in a step."""
    split = layout.pipeline * layout.model
    tokens_at_once = layout.tokens_per_device * split / layout.n_microbatches
    rows = np.maximum(LOGITS / (FP32 * shape.vocab_size), 2 * shape.d_model)
    n_parts = np.maximum(1.0, tokens_at_once / rows) * layout.n_microbatches
    # logits: written, read for their sum, and for the gradients of head and input
    logits = 4 * FP32 * shape.vocab_size * layout.tokens_per_device
    # each part reads the head twice, and adds to its gradient in float32
    of_parts = (2 * BF16 + 2 * FP32) * n_parts
    # gradients of head and embedding: zeroed, added to, cast, summed, each in float32
    of_gradients = 2 * 5 * FP32 * layout.n_microbatches
    return logits + (of_parts + of_gradients) * shape.head / split


@dataclasses.dataclass(frozen=True)
class _Spread:
    """How the weights that all tokens use are stored (jmoe/config/counts.py, row_axes).

    Attributes:
      rows: devices that each store other rows of them: of data and expert axis, or of the data axis alone where the
        width does not divide over both.
      copies: devices that store the same rows.
    """

    rows: Numbers
    copies: Numbers


def _spread(shape: ModelShape, layout: Layout) -> _Spread:
    """How the weights that all tokens use are stored."""
    both = layout.data * layout.expert
    divides = np.equal(np.mod(shape.d_model, both), 0)
    return _Spread(np.where(divides, both, layout.data), np.where(divides, 1, layout.expert))


def _traffic(shape: ModelShape, layout: Layout, domain: Numbers, gathers_between: Any) -> dict[str, Numbers]:
    """Bytes that leave a device in a step, as StepCounts has them. The arguments are those of `count`."""
    again = _again(layout)
    split = layout.pipeline * layout.model  # devices that each keep a part of a block, whatever the data axis
    spread = _spread(shape, layout)
    at_expert = shape.routed_weights / (layout.expert * split) * leaving(layout.data)
    blocks = shape.dense_weights / split * leaving(spread.rows)
    head = shape.head / layout.pipeline * leaving(spread.rows)  # once: its loss and gradients follow one another
    summed = summed_bytes(layout.data * layout.expert)
    table = np.where(shape.tied_embeddings, 0.0, _embedding_numbers(shape, layout, spread))
    gathers = layout.of_remat(GATHERS) * BF16
    weights = gathers * (at_expert + blocks) + BF16 * (head + table)
    expert_gradients = summed_bytes(layout.data) * at_expert
    gradients = expert_gradients + summed * (blocks + head) + BF16 * table
    common = (shape.dense_weights + shape.embedding_and_head) / split
    copies = 2 * summed * common / spread.rows * leaving(spread.copies)

    rows = shape.top_k * np.where(np.greater(layout.buffer, 0), layout.buffer, layout.slots)
    row_bytes = layout.of_remat(TRIPS) * BF16 * shape.d_model
    rows_sent = layout.tokens_per_device * rows * shape.n_mixtures
    all_to_all = row_bytes * rows_sent * leaving(layout.expert)
    activations = (4 + again * 2) * BF16 * shape.d_model * layout.tokens_per_device
    sums = activations * layout.model * shape.n_blocks * leaving(layout.model)

    n_microbatches = layout.n_microbatches  # each gathers weights and sums gradients
    # routed weights are exchanged over the data axis, all others over the devices that store their rows
    sent_by_expert = np.where(gathers_between, gathers * at_expert + expert_gradients, 2 * expert_gradients)
    sent = np.where(gathers_between, weights + gradients, 2 * gradients)
    over_data = sent_by_expert * _crossing(layout.n_devices, domain, layout.data)
    over_rows = (sent - sent_by_expert) * _crossing(layout.n_devices, domain, spread.rows)
    # copies lie next to each other on the expert axis, which is inside of the data axis
    over_copies = copies * _crossing(layout.expert * layout.model, domain, spread.copies)
    # the share of the expert axis that lies in other domains
    beyond = np.maximum(0.0, 1 - domain / (layout.expert * layout.model))
    outside = np.where(np.greater(layout.expert, 1), beyond, 0.0)
    return dict(
        weights=weights * n_microbatches,
        gradients=gradients * n_microbatches,
        copies=copies * n_microbatches,
        all_to_all=all_to_all * (1 - outside),
        all_to_all_between=all_to_all * outside,
        sums=sums,
        between=(over_data + over_rows + over_copies) * n_microbatches,
    )


def _embedding_numbers(shape: ModelShape, layout: Layout, spread: _Spread) -> Numbers:
    """Numbers that leave a device to look up a microbatch's tokens; as many leave it for the embedding's gradient.

    Devices gather the table or, where that is less, exchange slices of their tokens' rows (jmoe/model/embedding.py).
    """
    tokens = layout.batch_tokens / layout.n_microbatches / (layout.data * layout.expert)
    exchanging = np.minimum(spread.rows, np.maximum(1.0, shape.d_model / NARROWEST))
    slices = shape.d_model * tokens * leaving(exchanging)
    slices = slices + shape.head / spread.rows * (spread.rows / exchanging - 1)
    return np.minimum(shape.head * leaving(spread.rows), slices) / layout.pipeline


def _crossing(n_devices: Numbers, domain: Numbers, axis: Numbers) -> Numbers:
    """The share of what is exchanged over an axis that leaves a device's domain.

    Args:
      n_devices: devices of the axis and of all axes inside of it.
      domain: devices that the fast network joins.
      axis: devices of the axis; those of one place on it are neighbours.
    """
    n_domains = np.maximum(1.0, n_devices / domain)
    neighbours = n_devices / axis
    # devices of the axis within a domain, which share what they exchange with others
    group = np.maximum(1.0, np.minimum(domain, n_devices) / neighbours)
    share = leaving(n_domains) / np.maximum(leaving(axis), 1e-9) / group
    return np.where(np.greater(axis, 1), share, 0.0)


def memory_of(shape: ModelShape, layout: Layout) -> Numbers:
    """Memory of a device in a step, as StepCounts.device_bytes has it."""
    memory = memory_by_tokens(shape, layout)
    tokens = layout.batch_tokens / layout.n_microbatches / (layout.data * layout.expert)
    return memory.state(layout.n_microbatches > 1) + memory.activations(tokens) + memory.at_work(tokens)


@dataclasses.dataclass(frozen=True)
class MemoryByTokens:
    """Memory of a device, by the tokens that it has at once.

    Attributes:
      stored: parameters of which it keeps weights, moments and gradients.
      gathered: bytes of gathered weights that it keeps for the backward pass.
      block: bytes of the weights of a block.
      head: bytes of the head and its gradient.
      left_bytes: bytes of a token that blocks leave for the backward pass.
      block_bytes: bytes of a token in the block at work.
      logit_bytes: bytes of a token's logits.
      most_logits: tokens whose logits are made at a time, at most.
    """

    stored: Numbers
    gathered: Numbers
    block: Numbers
    head: Numbers
    left_bytes: Numbers
    block_bytes: Numbers
    logit_bytes: Numbers
    most_logits: Numbers

    def state(self, in_parts: bool | Array) -> Numbers:
        """Bytes for parameters. in_parts: whether the batch comes in several microbatches."""
        return np.where(in_parts, KEPT + ACCUMULATED, KEPT) * self.stored

    def activations(self, tokens: Numbers) -> Numbers:
        """Bytes that blocks leave for the backward pass of a number of tokens."""
        return self.left_bytes * tokens + self.gathered

    def at_work(self, tokens: Numbers) -> Numbers:
        """Bytes of the block, or of the loss, at work on a number of tokens."""
        in_block = self.block_bytes * tokens + self.block
        in_loss = self.logit_bytes * np.minimum(tokens, self.most_logits) + self.head
        return np.maximum(in_block, in_loss)

    def most_tokens(self, limit: float, in_parts: bool) -> Array:
        """The most tokens at once that fit into a number of bytes; at most 0 where none do.

        Args:
          limit: bytes of a device.
          in_parts: whether the batch comes in several microbatches.
        """
        left = limit - self.state(in_parts) - self.gathered
        by_block = (left - self.block) / (self.left_bytes + self.block_bytes)
        by_loss = (left - self.head) / (self.left_bytes + self.logit_bytes)
        all_logits = self.logit_bytes * self.most_logits
        by_loss = np.where(by_loss <= self.most_logits, by_loss, (left - self.head - all_logits) / self.left_bytes)
        return np.minimum(by_block, by_loss)


def memory_by_tokens(shape: ModelShape, layout: Layout) -> MemoryByTokens:
    """Memory of a device by the tokens that it has at once, of which the layout's batch says nothing."""
    at_expert = shape.routed_weights / (layout.expert * layout.model)
    others = shape.dense_weights / layout.model
    gathered_once = np.equal(layout.of_remat(GATHERS), 1)  # and left for the backward pass
    return MemoryByTokens(
        stored=at_expert / layout.data + (others + shape.embedding_and_head) / _spread(shape, layout).rows,
        gathered=np.where(gathered_once, BF16 * (others + at_expert), 0),
        block=BF16 * (others / shape.n_blocks + at_expert / np.maximum(shape.n_mixtures, 1)),
        head=(BF16 + FP32) * shape.head,
        left_bytes=_left_bytes(shape, layout),
        block_bytes=_bytes_at_work(shape, layout),
        logit_bytes=FP32 * shape.vocab_size,
        most_logits=np.maximum(LOGITS / (FP32 * shape.vocab_size), 2 * shape.d_model),
    )


def _scores(shape: ModelShape, layout: Layout) -> Numbers:
    """Scores of attention of a token in a block that are kept: none by flash attention."""
    return np.where(layout.flash, 0.0, np.multiply(layout.sequence, shape.n_heads))


def _left_bytes(shape: ModelShape, layout: Layout) -> Numbers:
    """Bytes of a token that all blocks leave for the backward pass, on each device of the model axis."""
    is_mixture = np.greater(shape.n_mixtures, 0)
    hidden = np.where(is_mixture, shape.d_expert * (shape.top_k + shape.n_shared_experts), shape.d_ff)
    # the paper's block has 13 d units of queries, keys, values, their sum and the layer: more or fewer take as much
    relative_units = (2 * shape.query_units + 2 * shape.key_units + 3 * hidden) / (13 * shape.d_model)
    spread = layout.of_remat(LEFT_SPREAD) * shape.d_model * relative_units
    spread = spread + layout.of_remat(LEFT_SCORES) * _scores(shape, layout)
    return shape.n_blocks * (layout.of_remat(LEFT_WHOLE) * shape.d_model + spread / layout.model)


def _bytes_at_work(shape: ModelShape, layout: Layout) -> Numbers:
    """Bytes of a token in the block at work, a mixture where there is one, on each device of the model axis."""
    is_mixture = np.greater(shape.n_mixtures, 0)
    hidden = np.where(is_mixture, shape.d_expert * shape.n_shared_experts, shape.d_ff)
    rows = np.where(is_mixture, shape.top_k * np.where(np.greater(layout.buffer, 0), layout.buffer, layout.slots), 0)
    spread = HEADS_AT_WORK * (shape.query_units + shape.key_units) + HIDDEN_AT_WORK * hidden
    spread = spread + EXPERT_AT_WORK * rows * shape.d_expert + SCORES_AT_WORK * _scores(shape, layout)
    return (WIDTH_AT_WORK + ROW_AT_WORK * rows) * shape.d_model + spread / layout.model
