"""The chips to train on: what they hold, do in an hour and cost.

Axes: numbers may be arrays that broadcast with the numbers of experts; results have their common shape.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from fit.model.chips import CHIPS, Chip
from fit.model.serving import BATCHES

MFU = 0.4  # share of the chips' peak that training reaches, unless one is given
SECONDS_PER_HOUR = 3600
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
      memory_share: the share of their memory that training may take.
      serve_batch: sequences that are decoded at once, of which a plan shows the speed beside serving.BATCHES.
      mfu_is_assumed: whether nobody gave the mfu.
    """

    kind: str
    count: int
    mfu: float | dict
    dollars_per_hour: float | None = None
    devices: int = 1
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

    def with_count(self, count: int | None) -> "Chips":
        """`count` of the chips; None stands for all of them."""
        return self if count is None else dataclasses.replace(self, count=count)

    def rate(self, n_experts: float | None) -> float:
        """FLOP/s that training a model of n_experts, as the law counts them, reaches on all chips.

        Where `mfu` is by number of experts and lacks this one, the nearest number that it has counts.
        """
        mfu = self.mfu
        if isinstance(mfu, dict):
            assert n_experts is not None
            mfu = nearest_experts_value(mfu, n_experts)
        return self.count * self.chip.flops * mfu

    def flops(self, hours: float) -> float | dict[int, float]:
        """FLOPs that training does within the hours; {n_experts: FLOPs} where mfu is by number of experts."""
        if isinstance(self.mfu, dict):
            return {n_experts: SECONDS_PER_HOUR * hours * self.rate(n_experts) for n_experts in self.mfu}
        return SECONDS_PER_HOUR * hours * self.rate(None)

    def price(self, flops: float, n_experts: float, name: str = "") -> dict[str, float | None]:
        """{NAMEhours, NAMEdollars} of these FLOPs; dollars are None where no price is given."""
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
