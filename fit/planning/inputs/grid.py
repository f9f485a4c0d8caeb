"""The shapes and layouts that plans on chips choose from.

The lists are fixed, so that a larger budget has all candidates of a smaller one.

Axes: [n_shapes], of one number of experts.
"""

import dataclasses
import functools
import math

import numpy as np

from fit.model import hardware
from fit.model.architecture import Architecture
from fit.model.chips import Chip
from fit.model.layout import REMATS
from fit.model.shape import ModelShape

MODEL_AXES = (1, 2, 4, 8)  # devices of the model axis: within a machine, whose links are fast
MOST_DEPTHS = 5  # numbers of blocks of a width
ASPECT_RANGE = 1.25  # factor between d_model / n_blocks of a candidate and the preferred one
SIGNIFICANT = 16  # numbers of machines have four significant bits
MOST_MACHINES = 2**16
TPU_SLICES = (64, 256)  # chips from which slices grow in steps of as many: three-dimensional, two-dimensional ones
# Tokens of the largest batch over the fewest that a mesh divides. Two of these, or more, lie in each factor of two.
BATCHES = tuple(sorted({*(2**i for i in range(15)), *(3 * 2**i for i in range(14))}))
SHAPE_FIELDS = ("d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "d_expert")  # that follow from the width


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


def meshes(
    n_devices: int, models: tuple[int, ...], expert: int | None, model: int | None
) -> list[tuple[int, int, int]]:
    """All meshes (data, expert, model) of n_devices; `expert` and `model` fix the size of an axis."""
    all_meshes = []
    for model_size in models if model is None else (model,):
        rest = n_devices // model_size
        if n_devices % model_size:
            continue
        for expert_size in divisors(rest) if expert is None else (expert,):
            if rest % expert_size == 0:
                all_meshes.append((rest // expert_size, expert_size, model_size))
    return all_meshes


@functools.cache
def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


@functools.cache
def shapes(grid: Grid, architecture: Architecture, style: hardware.Style, routed: int) -> ModelShape:
    """The shapes of a style with `routed` experts as the trainer counts them: arrays [n_shapes], widths ascending."""
    padded = dataclasses.replace(architecture, vocab_size=hardware.padded(architecture.vocab_size))
    rows = []
    n_blocks: list[int] = []
    counts = []
    fields: dict = {}
    for width, depths in _depths_of_widths(grid, style, architecture.n_dense):
        fields = hardware.fields(padded, style, width, routed)
        of_width = ModelShape.of_config(fields | dict(n_blocks=depths[0], vocab_size=padded.vocab_size))
        rows.append([getattr(of_width, name) for name in SHAPE_FIELDS])
        n_blocks += depths
        counts.append(len(depths))
    if not rows:
        return ModelShape(*(np.empty(0) for _ in range(6)), vocab_size=padded.vocab_size)
    columns = np.repeat(np.array(rows, float), counts, axis=0).T
    any_of_them = ModelShape.of_config(fields | dict(n_blocks=1, vocab_size=padded.vocab_size))
    arrays = dict(zip(SHAPE_FIELDS, columns, strict=True)) | dict(n_blocks=np.array(n_blocks, float))
    return dataclasses.replace(any_of_them, **arrays)


@functools.cache
def _depths_of_widths(grid: Grid, style: hardware.Style, n_dense: int) -> list[tuple[int, list[int]]]:
    """[(width, its numbers of blocks)], both ascending. n_dense: blocks without a mixture, beside which one has one."""
    depths = [(width, _depths(grid, style, n_dense, width)) for width in grid.widths]
    return [(width, of_width) for width, of_width in depths if of_width]


def _depths(grid: Grid, style: hardware.Style, n_dense: int, width: int) -> list[int]:
    """The numbers of blocks of a width, ascending."""
    preferred = width / style.aspects[1]
    allowed = hardware.depths(style, width)
    fewest = max(allowed.start, n_dense + 1)
    most = allowed.stop - 1
    least_near = max(fewest, math.ceil(preferred / ASPECT_RANGE))
    most_near = min(most, math.floor(preferred * ASPECT_RANGE))
    near = _spread(least_near, most_near, grid.most_depths)
    if not near:  # of small widths no whole number may be near enough
        nearest = max(round(preferred), n_dense + 1)
        near = [nearest] if nearest in allowed else []
    return sorted({*near, *_spread(fewest, most, grid.more_depths)})


def _spread(least: int, most: int, count: int) -> list[int]:
    """At most `count` whole numbers, evenly spread over those from `least` to `most`."""
    if count < 1 or most < least:
        return []
    n_steps = min(count - 1, most - least)
    if n_steps < 1:
        return [least]
    return [least + round(i * (most - least) / n_steps) for i in range(n_steps + 1)]
