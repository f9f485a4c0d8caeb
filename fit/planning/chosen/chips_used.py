"""The chips of a plan, and how many of them train the model to build."""

import dataclasses

from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.optimum import Optimum
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import MFU
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


def chips_used(problem: Problem, optima: list[Optimum], best: Optimum, built: Buildable | None) -> ChipsUsed | None:
    """The chips of a plan, with the MFU of each optimum where speeds are modelled; None without chips.

    Args:
      problem: The problem.
      optima: The best model with each number of experts.
      best: The recommended one.
      built: The model to build; None where none is within the limits.
    """
    chips = problem.constraints.chips
    if chips is None:
        return None
    mfu = chips.mfu
    is_assumed = chips.mfu_is_assumed
    if problem.has_modelled_speeds:
        mfu = modelled_mfu(optima)
        is_assumed = any(model.speed is None for model in (*optima, built or best))
    return ChipsUsed(
        kind=chips.kind,
        count=chips.count,
        used=(built or best).chips,
        mfu=mfu,
        mfu_is_assumed=is_assumed or None,
        dollars_per_hour=chips.dollars_per_hour,
        devices=chips.devices,
    )


def modelled_mfu(optima: list[Optimum]) -> dict[int, float]:
    """{n_experts: MFU} of the optima: that of its speed, or the assumed one for an optimum without a speed."""
    return {row.n_experts: row.speed.mfu[1] if row.speed else MFU for row in optima}
