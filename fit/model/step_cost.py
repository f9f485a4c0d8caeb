"""The cost of a training step on chips that need not be present: seconds with their parts, memory, bytes sent.

The model, for one device and one step:

  work     = products / (peak x efficiency) + attention / (peak x efficiency) + memory traffic / bandwidth
  exposed  = all-to-alls of the experts and sums of activations, which the next product waits for
  sending  = gathers of weights and sums of gradients
  hidden   = the share OVERLAP of sending, or of the work where that is shorter: it overlaps with the work
  seconds  = (work + exposed + sending - hidden + fixed cost of layers) x (1 + pipeline bubble)

A product's efficiency is that of large products times w / (w + half_width), where w is its narrowest side. So narrow
experts, and few rows per expert, are slower. The busiest device of the expert axis sets the pace of the mixtures:
their products take `imbalance` times as long as with a balanced load.

Everything may be an array: a grid of shapes on a grid of meshes is one call.
"""

import dataclasses

import numpy as np

from fit.aliases import Numbers
from fit.model import step_counts
from fit.model.chips import Chip
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from fit.model.step_counts import StepCounts

OVERLAP = 0.8  # share of the gathers and sums that hides behind work; XLA and FSDP prefetch one layer ahead
# Busiest device over its fair share, once a router is trained without forced balance. Measured with 128 experts over
# 64 GB200 (github.com/marin-community/marin/issues/7668: worst rank after 18 steps).
IMBALANCE = 1.724


@dataclasses.dataclass(frozen=True)
class Efficiencies:
    """Efficiencies of chips, as shares of their peaks, and fixed costs.

    Attributes:
      products: of large products, over the chip's peak.
      grouped: of products by expert, over large ones.
      attention: of scores and values, over large products.
      half_width: narrowest side at which a product is half as efficient as a large one.
      memory: of the peak of main memory; above 1 where traffic hides behind products.
      inside, between: of the peaks of the fast network and of the one between domains.
      layer: fixed seconds of a block of a microbatch.
      mixture: further fixed seconds of a block with a mixture.
    """

    products: Numbers
    grouped: float
    attention: float
    half_width: float
    memory: float
    inside: float
    between: float
    layer: float
    mixture: float

    def of_width(self, width: Numbers) -> Numbers:
        """Efficiency of a product whose narrowest side is `width`, over that of a large one."""
        return width / (width + self.half_width)


@dataclasses.dataclass(frozen=True)
class StepCost:
    """The cost of a step: seconds, and the counts of a device that they follow from.

    Attributes:
      counts: work, traffic and memory of a device.
      products, experts, attention, main_memory: seconds of the work's parts.
      exposed: seconds of sending that work waits for.
      sending: seconds of sending that may hide behind work.
      hidden: those of `sending` that do.
      fixed: fixed seconds of layers.
    """

    counts: StepCounts
    products: Numbers
    experts: Numbers
    attention: Numbers
    main_memory: Numbers
    exposed: Numbers
    sending: Numbers
    hidden: Numbers
    fixed: Numbers

    @property
    def work(self) -> Numbers:
        """Seconds of computing."""
        return self.products + self.experts + self.attention + self.main_memory

    @property
    def seconds(self) -> Numbers:
        """Seconds of a step."""
        return (self.work + self.exposed + self.sending - self.hidden + self.fixed) * (1 + self.counts.bubble)

    @property
    def tokens_per_second(self) -> Numbers:
        """Tokens per second of one device."""
        return self.counts.layout.tokens_per_device / self.seconds

    @property
    def device_bytes(self) -> Numbers:
        """Memory of a device."""
        return self.counts.device_bytes

    @property
    def sent_bytes(self) -> Numbers:
        """Bytes that leave a device."""
        return self.counts.sent_bytes


def step_cost(shape: ModelShape, layout: Layout, chip: Chip, efficiencies: Efficiencies) -> StepCost:
    """The cost of a step.

    Args:
      shape: the model.
      layout: how its devices train it.
      chip: the kind of chip that the devices are, or are parts of.
      efficiencies: the shares of its peaks that it reaches.
    """
    return timed(counts_on(shape, layout, chip), chip, efficiencies)


def counts_on(shape: ModelShape, layout: Layout, chip: Chip) -> StepCounts:
    """Counts of a step on a device of such a chip."""
    domain = np.where(np.greater(layout.domain, 0), layout.domain, np.multiply(chip.domain, chip.devices))
    return step_counts.count(shape, layout, domain, chip.gathers_between)


def timed(counts: StepCounts, chip: Chip, efficiencies: Efficiencies) -> StepCost:
    """The cost of a step with these counts. The arguments are those of step_cost."""
    peak = chip.flops / chip.devices * efficiencies.products
    fast = chip.network / chip.devices * efficiencies.inside
    slow = chip.between / chip.devices * efficiencies.between
    products = counts.large / (peak * efficiencies.of_width(counts.large_width))
    grouped_peak = peak * efficiencies.grouped * efficiencies.of_width(counts.grouped_width)
    experts = counts.grouped * counts.layout.imbalance / grouped_peak
    attention = counts.attention / (peak * efficiencies.attention)
    main_memory = counts.main_memory / (chip.bandwidth / chip.devices * efficiencies.memory)
    work = products + experts + attention + main_memory
    exposed = (
        counts.all_to_all / fast + counts.all_to_all_between / slow
    ) * counts.layout.imbalance + counts.sums / fast
    sending = np.maximum((counts.weights + counts.gradients + counts.copies) / fast, counts.between / slow)
    return StepCost(
        counts=counts,
        products=products,
        experts=experts,
        attention=attention,
        main_memory=main_memory,
        exposed=exposed,
        sending=sending,
        hidden=OVERLAP * np.minimum(sending, work),
        fixed=counts.layers * efficiencies.layer + counts.mixture_layers * efficiencies.mixture,
    )
