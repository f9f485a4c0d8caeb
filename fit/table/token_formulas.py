"""Finds a formula for the tokens of runs: steps times batch times row length, or FLOPs over 6 N."""

from collections.abc import Mapping

import numpy as np

from fit.table.column_guesses import snake_case
from fit.table.selection import steps_of
from fit.table.table import Table
from fit.table.validate_counts import is_flops

BATCH_OF_TOKENS = ("batch_tokens", "tokens_per_batch", "tokens_per_step", "tokens_per_iter", "total_batch_tokens")
BATCH_OF_ROWS = ("batch_size", "global_batch_size", "train_batch_size", "total_batch_size", "batch", "gbs")
ROW_LENGTH = (
    "seq_len",
    "sequence_length",
    "seq_length",
    "seqlen",
    "context_length",
    "context_len",
    "ctx_len",
    "n_ctx",
    "context",
    "block_size",
    "max_seq_len",
    "max_seq_length",
    "max_length",
    "row_length",
    "context_size",
    "n_positions",
    "max_position_embeddings",
    "seq",
)
LARGEST_BATCH_OF_ROWS = 16_384  # at the median run; a larger batch counts tokens


def tokens_formula(table: Table, knows_size: bool) -> tuple[str, str] | None:
    """The formula of n_tokens for --set, and a sentence on its assumption; None where no columns give one.

    Args:
      table: the runs, which lack n_tokens.
      knows_size: whether the table has n_active.
    """
    names = {snake_case(name): name for name in table.columns}
    by_steps = _by_steps(table, names)
    if by_steps is not None:
        return by_steps
    if not knows_size:
        return None
    for name in table.columns:
        if is_flops(name) and _median(table, name) > 0:
            formula = f"{name}/6/n_active"
            assumption = (
                f"it takes {name} as 6 FLOPs for each of n_active parameters and token, so FLOPs of attention over the "
                "row would count as tokens, and those of an embedding or head that were not counted would be missing"
            )
            return formula, assumption
    return None


def _by_steps(table: Table, names: Mapping[str, str]) -> tuple[str, str] | None:
    """The formula of steps and batches.

    Args:
      table: the runs.
      names: {name in snake case: name in the table}.
    """
    steps = steps_of(table)
    if not steps:
        return None
    step = steps[0]
    for name in BATCH_OF_TOKENS:
        if name in names:
            return f"{step}*{names[name]}", "the tokens of a batch must be the same in all steps"
    length = next((names[name] for name in ROW_LENGTH if name in names), None)
    for name in BATCH_OF_ROWS:
        if name not in names:
            continue
        batch = names[name]
        if _median(table, batch) > LARGEST_BATCH_OF_ROWS:
            return f"{step}*{batch}", f"{batch} must count tokens"
        if length is not None:
            assumption = f"{batch} must count the rows of all devices together, the same in all steps"
            return f"{step}*{batch}*{length}", assumption
    return None


def _median(table: Table, name: str) -> float:
    """The median of a column's numbers, 0 where it has none."""
    values = table.values(name)
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else 0.0
