"""The batches that the runs of a law share: one batch, or a ramp by the tokens seen.

Axes: n runs.
"""

import ast
import operator
from collections.abc import Collection
from typing import Annotated

import numpy as np

from fit.aliases import Array
from fit.fitted_law.bounds import Rule
from fit.fitted_law.model_fields import positive_numbers
from fit.fitted_law.tuning import BATCH
from fit.model.architecture import BATCH_RAMP, Ramp
from fit.table.table import Table

PAPERS_CONFIG = "configs/joint_moe.py"  # its batches are BATCH_RAMP
SEQUENCE = 512  # tokens of context in training, where the law does not say
MOST_STEPS = 16  # of a ramp: runs of more batches have no ramp in common


def _is_rising(ramp: Ramp) -> bool:
    """Whether a run may have these batches: from its first token on, growing with its tokens."""
    starts = [start for start, _ in ramp]
    batches = [batch for _, batch in ramp]
    if not 1 <= len(ramp) <= MOST_STEPS or starts[0] != 0 or batches[0] < 1:
        return False
    return starts == sorted(set(starts)) and batches == sorted(set(batches))


Batches = Annotated[
    Ramp, Rule(_is_rising, f"1 to {MOST_STEPS} pairs [from token, tokens of a batch], both rising, the first from 0")
]


def from_table(
    table: Table, config: str | None, overrides: dict[str, str], differing: Collection[str], seq_len: int | None
) -> Ramp | None:
    """The batches of the runs of a table; None where runs differ in them at equal tokens, or nothing says them.

    Args:
      table: the runs. Its column batch_tokens counts more than the config, but for batches that hold no row.
      seq_len: tokens in a row; None where it is unknown.
      config, overrides, differing: as `of_config` takes them.
    """
    configured = of_config(config, overrides, differing)
    last_batches = positive_numbers(table, BATCH)
    if last_batches is None:
        return configured
    n_tokens = positive_numbers(table, "n_tokens")
    if configured and n_tokens is not None and _ends_with(configured, n_tokens, last_batches):
        return configured
    ramp = ramp_of(table, last_batches)
    if ramp is None or not _is_rising(ramp) or ramp[0][1] < (seq_len or SEQUENCE):
        return None
    return ramp


def of_config(config: str | None, overrides: dict[str, str], differing: Collection[str]) -> Ramp | None:
    """The batches that a config gives its runs; None where that is not known.

    Args:
      config: its file; None where it is unknown.
      overrides: {field: value as Python source} that all runs override in it.
      differing: the fields in which runs differ.
    """
    if BATCH in differing:
        return None
    if BATCH in overrides:
        return _read(overrides[BATCH])
    return BATCH_RAMP if config == PAPERS_CONFIG else None


def ramp_of(table: Table, last_batches: Array) -> Ramp | None:
    """The ramp of runs whose last batches are these [n]; None where more tokens do not explain the larger ones.

    A batch begins where the longest run with a smaller one ended. The runs may have had it from later tokens on.
    """
    n_tokens = positive_numbers(table, "n_tokens")
    if n_tokens is None:
        n_tokens = np.ones(len(last_batches))
    ramp = []
    for batch in np.unique(last_batches):
        start = n_tokens[last_batches < batch].max(initial=0)
        if n_tokens[last_batches == batch].min() <= start:
            return None
        ramp.append((int(start), round(batch)))
    return tuple(ramp)


def _ends_with(ramp: Ramp, n_tokens: Array, last_batches: Array) -> bool:
    """Whether runs of n_tokens [n] end with these batches [n] on a ramp, whose starts may lie within a batch."""
    starts, batches = np.array(ramp).T
    before_last = np.maximum(n_tokens - last_batches, 0)
    return np.array_equal(batches[np.searchsorted(starts, before_last, side="right") - 1], last_batches)


def _read(source: str) -> Ramp | None:
    """A ramp from its literal, as a config has it; None where its batches do not grow."""
    try:
        ramp = tuple((operator.index(start), operator.index(batch)) for start, batch in ast.literal_eval(source))
    except (TypeError, ValueError):
        return None
    return ramp if _is_rising(ramp) else None
