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

BF16, FP32 = 2, 4  # bytes of a number
OVERLAP = 0.8  # share of the gathers and sums that hides behind work; XLA and FSDP prefetch one layer ahead
INTERLEAVED = 4  # pipeline chunks per stage, which divide the bubble; where a source does not say
MICROBATCH_TOKENS = 8192  # tokens a chip works on at once, where a source does not say
# Busiest device over its fair share, once a router is trained without forced balance. Measured with 128 experts over
# 64 GB200 (github.com/marin-community/marin/issues/7668: worst rank after 18 steps).
IMBALANCE = 1.724
STATE_BYTES = 32  # read and written for each parameter in an update: weight, two moments, gradient, in float32
TOUCHES = 8  # times that a unit of a layer is read or written, forward and backward, between products
PASSES = {"full": 4, "dots": 3, "none": 3}  # of a block's products: forward, forward again, two backward
FLASH_BLOCK = 512  # positions beyond the diagonal that flash attention works on
GATHERS = 2  # of each weight in a microbatch: forward and backward
EXACT_UP_TO = 8  # devices that sum gradients in bfloat16; more sum in float32 (docs/train.md)
TRAVELS = {"full": 5, "dots": 4, "none": 4}  # of a token's row between devices of the expert axis


@dataclasses.dataclass(frozen=True)
class Chip:
    """A kind of chip.

    flops: bfloat16 FLOP/s, dense. bandwidth: bytes/s of main memory. network: bytes/s that leave over the fast links
    (ICI, NVLink), one way. domain: chips that the fast links join. between: bytes/s of a chip to another domain.
    source: of domain and between; those of TPUs between slices are assumed, as the source says.
    """

    flops: float
    bandwidth: float
    network: float
    domain: int
    between: float
    source: str


_TPU = "docs.cloud.google.com/tpu/docs/system-architecture; network between slices assumed: 100 Gbit/s for a host of 4"
CHIPS = {
    "A100": Chip(312e12, 2039e9, 300e9, 8, 25e9, "NVIDIA DGX A100 data sheet: 8 x 200 Gbit/s"),
    "H100": Chip(989e12, 3350e9, 450e9, 8, 50e9, "NVIDIA DGX H100 data sheet: 8 x 400 Gbit/s"),
    "H200": Chip(989e12, 4800e9, 450e9, 8, 50e9, "NVIDIA DGX H200 data sheet: 8 x 400 Gbit/s"),
    "B200": Chip(2250e12, 8000e9, 900e9, 8, 50e9, "NVIDIA DGX B200 data sheet: 8 x 400 Gbit/s"),
    "GB200": Chip(2500e12, 8000e9, 900e9, 72, 50e9, "NVIDIA GB200 NVL72 data sheet: 72 in an NVLink domain"),
    "v4": Chip(275e12, 1228e9, 300e9, 4096, 3.1e9, _TPU),
    "v5e": Chip(197e12, 819e9, 200e9, 256, 3.1e9, _TPU),
    "v5p": Chip(459e12, 2765e9, 600e9, 8960, 3.1e9, _TPU),
    "v6e": Chip(918e12, 1638e9, 400e9, 256, 6.2e9, _TPU),
    "tpu7x": Chip(2307e12, 7380e9, 600e9, 9216, 6.2e9, _TPU),
}
GPUS = ("A100", "H100", "H200", "B200", "GB200")  # weights are gathered between machines, too (one FSDP group)


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model.

    attention_weights: of one block's projections. attention_width: units of all heads of queries. matrices: of a
    feed-forward layer, 3 (SwiGLU) or 2. d_expert, n_experts and so on: of mixtures; n_experts 1 is dense.
    n_shared_experts: in widths of a routed expert, need not be whole. n_dense_blocks: blocks without a mixture.
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
        """Model FLOPs of a token, as MFU counts them here: 6 per active parameter but for the embedding, and causal
        attention. Nothing computed again, no padding."""
        active = self.dense_weights + self.head_weights
        active += self.n_mixtures * self.n_experts_per_token * self.expert_weights
        return 6 * active + 6 * self.n_blocks * self.attention_width * sequence


@dataclasses.dataclass(frozen=True)
class Setup:
    """How a model is trained.

    batch_tokens: of a step. microbatch_tokens: that a chip holds at once (0: MICROBATCH_TOKENS, or its share of the
    batch if that is less). data, expert, model, pipeline: sizes of the mesh's axes. remat: "full", "dots" or "none".
    slots: slots of the experts over tokens' choices: the capacity factor, 1 where no token is dropped. buffer: rows
    sent to experts over tokens' choices, 0: as `slots`. imbalance: busiest device over its fair share. flash: whether
    attention keeps no scores. domain: chips in a fast network, 0: as many as the chip's kind has.
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
        """Tokens of a step over chips: each does so much of all blocks' work, whatever axis divides it."""
        return self.batch_tokens / self.n_chips

    @property
    def n_microbatches(self) -> float:
        """Parts of a batch that a chip works on one after the other."""
        share = self.tokens_per_chip * self.model * self.pipeline
        at_once = self.microbatch_tokens or min(MICROBATCH_TOKENS * self.model, share)
        return max(1.0, share / at_once)


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a chip does in a step.

    large, grouped, attention: FLOPs by kind of product: projections, dense layers and head; routed experts; scores and
    values. large_width, grouped_width: their narrowest sides. memory: bytes of main memory outside products. weights,
    gradients, copies, all_to_all, sums: bytes that leave a chip: gathered weights, gradients summed over data,
    gradients of what each device of the expert axis has a copy of, tokens to experts and back, activations over the
    model axis. between: those of them that leave the fast network. layers: blocks times microbatches.
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
    """The counts of a step. domain: chips of a fast network. gathers_between: weights are gathered over all chips, and
    not only over those of a fast network."""
    tokens = setup.tokens_per_chip
    d, remat = shape.d_model, setup.remat
    chosen = tokens * shape.n_experts_per_token * setup.slots
    again = PASSES[remat] - 3

    # Of a layer's forward pass, the last product is not needed again.
    feed_forward = shape.matrices * d * shape.d_ff * (shape.n_blocks - shape.n_mixtures)
    shared = shape.n_mixtures * shape.n_shared_experts * shape.expert_weights
    last = (feed_forward + shared) / shape.matrices
    router = shape.n_mixtures * d * shape.n_experts
    repeated = again * (shape.dense_weights + router - last)
    large = 2 * tokens * (3 * (shape.dense_weights + router + shape.head_weights) + repeated)
    routed = shape.n_mixtures * shape.expert_weights
    grouped = 2 * chosen * routed * (3 + again * (1 - 1 / shape.matrices))
    # Flash attention: 2 products forward and 5 backward on half of the scores. Otherwise 2 and 4 on all of them.
    products = (2 + 2 * again + 5) / 2 if setup.flash else 2 + 2 * again + 4
    positions = setup.sequence + FLASH_BLOCK if setup.flash else setup.sequence
    attention = 2 * products * tokens * shape.n_blocks * shape.attention_width * positions

    rows = chosen / setup.n_microbatches * setup.expert * setup.model * setup.pipeline / shape.n_experts
    inner = [d, shape.d_ff or d * 4, shape.attention_width]
    large_width = min(inner[0], *(width / setup.model for width in inner[1:]))
    grouped_width = min(d, max(1.0, shape.d_expert / setup.model), max(1.0, rows))

    params = shape.dense_weights + shape.routed_weights + 2 * shape.head_weights
    units = shape.n_blocks * (4 * d + 2 * shape.attention_width)
    units += (shape.n_blocks - shape.n_mixtures) * shape.matrices * shape.d_ff
    hidden = shape.n_mixtures * shape.matrices * shape.d_expert
    dispatched = shape.n_mixtures * shape.n_experts_per_token * setup.slots * d * 3
    units += hidden * (shape.n_experts_per_token * setup.slots + shape.n_shared_experts) + dispatched
    activations = TOUCHES * BF16 * units * (1 + again / 3)
    if not setup.flash:
        heads = shape.attention_width / 64
        activations += TOUCHES * FP32 * shape.n_blocks * heads * setup.sequence
    logits = 6 * FP32 * shape.vocab_size
    memory = tokens * (activations + logits) + STATE_BYTES * params / setup.n_chips

    micro = setup.n_microbatches
    held = setup.pipeline * setup.model
    ends = 2 * shape.head_weights
    at_expert = shape.routed_weights / (setup.expert * held)
    # what devices of the expert axis all work with, each gathering it over the data axis
    common = (shape.dense_weights + ends) / held
    over_data = leaving(setup.data)
    gathered = (at_expert + common) * over_data
    weights = GATHERS * BF16 * gathered * micro
    gradients = summed_bytes(setup.data) * gathered
    copies = 2 * summed_bytes(setup.expert) * common / setup.data * leaving(setup.expert)
    rows_sent = tokens * shape.n_experts_per_token * (setup.buffer or setup.slots)
    all_to_all = TRAVELS[remat] * BF16 * d * rows_sent * shape.n_mixtures * leaving(setup.expert)
    sums = (4 + again * 2) * BF16 * d * tokens * setup.model * shape.n_blocks * leaving(setup.model)

    n_domains = max(1.0, setup.n_chips / domain)
    group = max(1.0, min(domain, setup.n_chips) / (setup.expert * held))
    crossing = leaving(n_domains) / max(over_data, 1e-9) / group if n_domains > 1 and setup.data > 1 else 0.0
    between = gradients * crossing * (1 if gathers_between else 2)
    if gathers_between:
        between += weights * crossing
    apart = max(0.0, 1 - domain / (setup.expert * setup.model)) if setup.expert > 1 else 0.0
    layers = shape.n_blocks / setup.pipeline * micro
    bubble = (setup.pipeline - 1) / micro / INTERLEAVED
    return Counts(
        large=large,
        grouped=grouped,
        attention=attention,
        large_width=large_width,
        grouped_width=grouped_width,
        memory=memory,
        weights=weights,
        gradients=gradients,
        copies=copies,
        all_to_all=all_to_all * (1 - apart),
        all_to_all_between=all_to_all * apart,
        sums=sums,
        between=between,
        layers=layers,
        mixture_layers=layers * shape.n_mixtures / shape.n_blocks,
        bubble=bubble,
    )


@dataclasses.dataclass(frozen=True)
class Efficiencies:
    """What chips reach, as shares of their peaks, and fixed costs.

    products: of large products. grouped: of products by expert over that. attention: of scores and values over that.
    half_width: narrowest side at which a product is half as efficient as a large one. memory, inside, between: of the
    peaks of memory and networks; that of memory is above 1 where traffic hides behind products. layer, mixture:
    seconds that a block of a microbatch takes beside, and one with a mixture on top.
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


def seconds(counted: Counts, chip: Chip, reached: Efficiencies, imbalance: float = 1.0) -> float:
    """How long a step takes."""
    peak = chip.flops * reached.products
    narrow = counted.large_width / (counted.large_width + reached.half_width)
    work = counted.large / (peak * narrow) + counted.attention / (peak * reached.attention)
    if counted.grouped:
        narrow = counted.grouped_width / (counted.grouped_width + reached.half_width)
        work += counted.grouped * imbalance / (peak * reached.grouped * narrow)
    work += counted.memory / (chip.bandwidth * reached.memory)
    network = chip.network * reached.inside
    outside = chip.between * reached.between
    exposed = (counted.all_to_all / network + counted.all_to_all_between / outside) * imbalance
    exposed += counted.sums / network
    inside = (counted.weights + counted.gradients + counted.copies) / network
    sending = max(inside, counted.between / outside)
    hidden = OVERLAP * min(sending, work)
    fixed = counted.layers * reached.layer + counted.mixture_layers * reached.mixture
    return (work + exposed + sending - hidden + fixed) * (1 + counted.bubble)
