"""The shapes and layouts that plans on chips choose from.

The lists are fixed, so that a larger budget has all candidates of a smaller one.
"""

import dataclasses
import functools

from fit.model import hardware
from fit.model.chips import Chip
from fit.model.layout import REMATS

MODEL_AXES = (1, 2, 4, 8)  # devices of the model axis: within a machine, whose links are fast
MOST_DEPTHS = 5  # numbers of blocks of a width
SIGNIFICANT = 16  # numbers of machines have four significant bits
MOST_MACHINES = 2**16
TPU_SLICES = (64, 256)  # chips from which slices grow in steps of as many: three-dimensional, two-dimensional ones
# Tokens of the largest batch over the fewest that a mesh divides. Two of these, or more, lie in each factor of two.
BATCHES = tuple(sorted({*(2**i for i in range(15)), *(3 * 2**i for i in range(14))}))


@dataclasses.dataclass(frozen=True)
class Grid:
    """The widths, depths and layouts of candidates.

    Attributes:
      widths: d_model.
      most_depths: numbers of blocks of a width, near the preferred one.
      more_depths: numbers of blocks of a width beside these, over all that the style allows.
      counts: numbers of chips; None for those that suit the kind of chip.
      models: devices of the model axis.
      remats: as config.remat.
      batches: tokens of the largest batch over the fewest that a mesh divides.
    """

    widths: tuple[int, ...] = tuple(hardware.widths(64, 32_768))
    most_depths: int = MOST_DEPTHS
    more_depths: int = 0
    counts: tuple[int, ...] | None = None
    models: tuple[int, ...] = MODEL_AXES
    remats: tuple[str, ...] = REMATS
    batches: tuple[int, ...] = BATCHES

    def counts_of(self, chip: Chip, most: int) -> list[int]:
        """The numbers of chips, up to `most`, on which a plan may train: a fixed list, ascending."""
        counts = _suitable_counts(chip) if self.counts is None else sorted(self.counts)
        return [count for count in counts if count <= most]


@functools.cache
def _suitable_counts(chip: Chip) -> list[int]:
    """Numbers of chips, ascending.

    These are all numbers within a machine and, beyond it, whole machines. Numbers of machines have four significant
    bits. TPUs come in slices.
    """
    within = range(1, chip.machine + 1)
    unit = chip.machine
    if not chip.gathers_between:
        unit = TPU_SLICES[1] if chip.domain <= TPU_SLICES[1] else TPU_SLICES[0]
        within = (2**i for i in range(unit.bit_length()))
    units = (m << shift for m in range(1, SIGNIFICANT) for shift in range(MOST_MACHINES.bit_length()))
    return sorted({*within, *(unit * n for n in units)})
