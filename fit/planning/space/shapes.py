"""The shapes of a grid: widths, with the depths and heads that a style allows.

Axes: [n_shapes], of one number of experts.
"""

import dataclasses
import functools
import math

import numpy as np

from fit.model import hardware
from fit.model.architecture import Architecture
from fit.model.shape import ModelShape
from fit.planning.inputs.grid import Grid

ASPECT_RANGE = 1.25  # factor between d_model / n_blocks of a candidate and the preferred one
SHAPE_FIELDS = ("d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "d_expert")  # that follow from the width


@functools.cache
def shapes(grid: Grid, architecture: Architecture, style: hardware.Style, routed: int) -> ModelShape:
    """The shapes of a style with `routed` experts as the trainer counts them: arrays [n_shapes], widths ascending."""
    rows = []
    n_blocks: list[int] = []
    counts = []
    fields: dict = {}
    for width, depths in _depths_of_widths(grid, style, architecture.n_dense):
        fields = hardware.fields(architecture, style, width, routed)
        of_width = ModelShape.of_config(fields | dict(n_blocks=depths[0], vocab_size=architecture.vocab_size))
        rows.append([getattr(of_width, name) for name in SHAPE_FIELDS])
        n_blocks += depths
        counts.append(len(depths))
    if not rows:
        return ModelShape(*(np.empty(0) for _ in range(6)), vocab_size=architecture.vocab_size)
    columns = np.repeat(np.array(rows, float), counts, axis=0).T
    any_of_them = ModelShape.of_config(fields | dict(n_blocks=1, vocab_size=architecture.vocab_size))
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
