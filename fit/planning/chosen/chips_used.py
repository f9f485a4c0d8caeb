"""The chips of a plan, and how many of them train the model to build."""

import dataclasses

from fit.results import Record, optional


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChipsUsed(Record):
    """The chips of a plan.

    Attributes:
      count: How many there are.
      used: How many train the model to build, where the others stand idle.
      mfu: Model FLOPs utilisation, or {n_experts: utilisation}, each of the chips that train it.
      mfu_is_assumed: True where a price is by an MFU that nobody gave.
      dollars_per_hour: Price of one chip.
      devices: Chips that serve the trained model together.
    """

    kind: str
    count: int
    used: int | None = optional()
    mfu: float | dict[int, float]
    mfu_is_assumed: bool | None = optional()
    dollars_per_hour: float | None
    devices: int

    @property
    def n_used(self) -> int:
        """How many train the model to build."""
        return self.count if self.used is None else self.used
