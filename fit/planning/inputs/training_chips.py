"""The chips to train on: what they hold, do in an hour and cost.

Axes: numbers may be arrays that broadcast with the numbers of experts; results have their common shape.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fit.aliases import Array, Numbers
from fit.model import step_counts
from fit.model.chips import CHIPS, Chip
from fit.model.layout import Layout
from fit.model.serving import BATCHES
from fit.model.shape import ModelShape
from fit.planning.inputs.grid import MODEL_AXES, divisors
from fit.planning.inputs.mesh import GROUP_TOKENS

MFU = 0.4  # share of the chips' peak that training reaches, unless one is given
SECONDS_PER_HOUR = 3600
ROW = 512  # tokens of a row of the paper's recipe
MOST_DATA = 2**40  # devices of a data axis that are tried
MEMORY_SHARE = 0.85  # share of a device's memory that a step on a chosen mesh may take, whose estimate is within 15%


@dataclasses.dataclass(frozen=True)
class Chips:
    """Chips of one kind to train on.

    Attributes:
      kind: a key of CHIPS.
      count: how many there are.
      mfu: model FLOPs utilisation that training reaches, a number or {n_experts: number}, as the law counts them.
      dollars_per_hour: price of one chip, or None.
      devices: chips of the same kind that serve the trained model together.
      mesh: the smallest step on the mesh to cost the training on.
      memory_share: the share of their memory that training may take.
      serve_batch: sequences that are decoded at once, of which a plan shows the speed beside serving.BATCHES.
      mfu_is_assumed: whether nobody gave the mfu.
    """

    kind: str
    count: int
    mfu: float | dict
    dollars_per_hour: float | None = None
    devices: int = 1
    mesh: Layout | None = None
    memory_share: float = 1.0
    serve_batch: int = BATCHES[-1]
    mfu_is_assumed: bool = False

    @property
    def chip(self) -> Chip:
        """The Chip of this kind."""
        return CHIPS[self.kind]

    @property
    def n_devices(self) -> int:
        """Devices of a mesh of all chips."""
        return self.count * self.chip.devices

    @property
    def device_memory(self) -> float:
        """Bytes of one device."""
        return self.chip.memory / self.chip.devices

    @property
    def memory(self) -> float:
        """Bytes of all chips."""
        return self.count * self.chip.memory

    def least_bytes(self, shape: ModelShape) -> Numbers:
        """Bytes over all chips of the smallest step of models in rows of ROW tokens, on a mesh of data alone."""
        return self.n_devices * step_counts.memory_of(shape, smallest_step(self.n_devices, 1, 1, "full"))

    def holding(self, shape: ModelShape, on_any_mesh: bool) -> Layout | None:
        """The smallest step of a model on the fewest devices that hold it; None where no number does.

        That is on a mesh of data alone or, `on_any_mesh`, on the one that takes fewest.
        """
        expert: Array = np.array([1])
        model: Array = np.array([1])
        if on_any_mesh:
            n_experts = max(1, round(float(shape.n_experts)))
            sizes = itertools.product(divisors(n_experts), MODEL_AXES)
            expert, model = np.array(list(sizes)).T
        return fewest_devices(shape, expert, model, "full", self.memory_share * self.device_memory)

    def with_count(self, count: int | None) -> "Chips":
        """So many of the chips; None stands for all of them."""
        return self if count is None else dataclasses.replace(self, count=count)

    def of_layout(self, layout: Layout) -> "Chips":
        """Those of the chips that a layout uses."""
        return self.with_count(int(layout.n_devices) // self.chip.devices)

    def rate(self, n_experts: int | None) -> float:
        """FLOP/s that training a model of so many experts, as the law counts them, reaches on all chips.

        Where `mfu` is by number of experts and lacks this one, the nearest number that it has counts.
        """
        mfu = self.mfu
        if isinstance(mfu, dict):
            assert n_experts is not None
            mfu = nearest_experts_value(mfu, n_experts)
        return self.count * self.chip.flops * mfu

    def flops(self, hours: float) -> float | dict[int, float]:
        """FLOPs that training does in so many hours; {n_experts: FLOPs} where mfu is by number of experts."""
        if isinstance(self.mfu, dict):
            return {n_experts: SECONDS_PER_HOUR * hours * self.rate(n_experts) for n_experts in self.mfu}
        return SECONDS_PER_HOUR * hours * self.rate(None)

    def price(self, flops: float, n_experts: int, name: str = "") -> dict[str, float | None]:
        """{NAMEhours, NAMEdollars} of so many FLOPs; dollars are None where no price is given."""
        return self.price_of_hours(flops / self.rate(n_experts) / SECONDS_PER_HOUR, name)

    def price_of_hours(self, hours: float, name: str = "") -> dict[str, float | None]:
        """{NAMEhours, NAMEdollars}; dollars are None where no price is given."""
        dollars = None if self.dollars_per_hour is None else hours * self.count * self.dollars_per_hour
        return {f"{name}hours": hours, f"{name}dollars": dollars}


def nearest_experts_value(by_experts: dict[int, float], n_experts: float) -> float:
    """The value of the number of experts that is nearest in ln. by_experts: {n_experts: value}."""
    return by_experts[nearest_number(by_experts, n_experts)]


def nearest_number(numbers: Iterable[Any], n_experts: float) -> Any:
    """Of several numbers of experts the one that is nearest to another in ln."""
    return min(numbers, key=lambda e: abs(math.log(e / n_experts)))


def smallest_step(data: Numbers, expert: Numbers, model: Numbers, remat: str) -> Layout:
    """The smallest step of the recipe of the paper's runs on a mesh: ROW tokens on each device, GROUP_TOKENS in all."""
    return Layout(
        batch_tokens=np.maximum(ROW * data * expert, GROUP_TOKENS),
        sequence=ROW,
        data=data,
        expert=expert,
        model=model,
        remat=remat,
        flash=False,
    )


def fewest_devices(shape: ModelShape, expert: Array, model: Array, remat: str, memory: float) -> Layout | None:
    """The smallest step of a model on the fewest devices that hold it; None where not even MOST_DATA rows of a mesh do.

    Args:
      shape: one model.
      expert, model: devices of these axes of the meshes to try, [n_meshes].
      remat: as config.remat.
      memory: bytes of a device.
    """
    allowed = memory * (1 + 1e-12)  # a model may be exactly as large

    def holds(data: Array) -> Array:
        """Whether data axes are long enough, for each mesh."""
        return np.less_equal(step_counts.memory_of(shape, smallest_step(data, expert, model, remat)), allowed)

    powers = 2 ** np.arange(round(math.log2(MOST_DATA)) + 1)
    fits = holds(powers[:, None])
    if not fits.any():
        return None
    expert = expert[fits.any(axis=0)]
    model = model[fits.any(axis=0)]
    most = powers[np.argmax(fits[:, fits.any(axis=0)], axis=0)]
    least = most // 2  # too short, or 0
    while np.any(most - least > 1):
        middle = np.maximum((least + most) // 2, 1)
        is_enough = holds(middle)
        most = np.where(is_enough, np.minimum(most, middle), most)
        least = np.where(is_enough, least, np.maximum(least, middle))
    best = int(np.argmin(most * expert * model))
    return smallest_step(int(most[best]), int(expert[best]), int(model[best]), remat)
