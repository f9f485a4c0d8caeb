"""The batches of a run, which rise with the tokens seen, in whole units of a mesh.

Axes: n meshes.
"""

import math

import numpy as np

from fit.aliases import Array
from fit.model.architecture import Ramp

# DeepSeek-V3 raises its batch fivefold over the first 3% of its tokens. (share of the tokens seen, share of the batch)
RAMP = ((0.0, 0.25), (0.016, 0.5), (0.032, 1.0))


def published(batch: float, n_tokens: float, sequence: int) -> Ramp:
    """The batches of a run by the recipe of published models, in whole rows, where no mesh is chosen.

    The largest batch is the power of two below `batch`, which divides over most meshes: a batch too small costs time
    and no loss.

    Args:
      batch: about the largest batch.
      n_tokens: training tokens.
      sequence: tokens in a row.
    """
    largest = 2 ** math.floor(math.log2(batch))
    ramp = tuple((round(seen * n_tokens), max(round(share * largest), 1)) for seen, share in RAMP)
    return divisible(ramp, sequence)


def divisible(batches: Ramp, multiple: int) -> Ramp:
    """The ramp with each batch rounded up to a multiple, such as the fewest tokens of a mesh.

    Args:
      batches: ((from this many tokens seen, tokens in a batch), ...).
      multiple: what batches must be multiples of.

    Returns:
      The ramp, without steps between equal batches.
    """
    rounded: list[tuple[int, int]] = []
    for start, batch in batches:
        rounded_batch = math.ceil(batch / multiple) * multiple
        if not rounded or rounded[-1][1] != rounded_batch:
            rounded.append((start, rounded_batch))
    return tuple(rounded)


def first_batch(batch: Array, unit: Array, ramp: Ramp | None) -> Array:
    """The batch at the beginning of a run: of published models a quarter of the largest, or a third, in whole units.

    Args:
      batch: the largest batch, of whole units.
      unit: the fewest tokens that a mesh divides.
      ramp: the batches by the recipe of the law's runs; None by that of published models.
    """
    if ramp is None:
        parts = np.where(batch / unit % 3 == 0, 3, 4)
        return unit * np.maximum(batch / unit // parts, 1)
    return on_mesh(ramp, unit)[:, 0].astype(float)


def on_mesh(ramp: Ramp, unit: Array) -> Array:
    """The batches of a ramp as multiples of a unit and of the first of them, [n, n_batches]; 0 for none."""
    first = ramp[0][1] // unit * unit
    divisor = np.maximum(first, 1)
    batches = [tokens // divisor * first for _, tokens in ramp]
    return np.stack(batches, axis=1)


def ramp_on_mesh(batch: int, unit: int, n_tokens: int, ramp: Ramp | None) -> Ramp:
    """The batches of a run of n_tokens, by its largest batch.

    Args:
      batch, unit, ramp: as `first_batch` takes them.
      n_tokens: training tokens.
    """
    if ramp is None:
        first = int(first_batch(np.array(batch), np.array(unit), ramp))
        batches = [first, min(2 * first, batch), batch]
        steps = [(round(seen * n_tokens), tokens) for (seen, _), tokens in zip(RAMP, batches, strict=True)]
    else:
        (batches,) = on_mesh(ramp, np.array([unit])).tolist()
        steps = [(start, tokens) for (start, _), tokens in zip(ramp, batches, strict=True) if start < n_tokens]
    rising: list[tuple[int, int]] = []
    for start, tokens in steps:
        if not rising or tokens > rising[-1][1]:
            rising.append((start, tokens))
    return tuple(rising)


def steps_of(batches: Ramp, n_tokens: float) -> int:
    """How many steps n_tokens take with a ramp of batches."""
    steps = 0
    ends = [start for start, _ in batches[1:]] + [n_tokens]
    for (start, batch), end in zip(batches, ends, strict=True):
        if start < n_tokens:
            steps += math.ceil((min(end, n_tokens) - start) / batch)
    return steps
