"""Fields of the models of a table of runs, from its columns or else from its overrides.

Axes: n runs; m of them mixtures.
"""

import collections
from collections.abc import Mapping

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.fitted_law import overrides
from fit.table.selection import text_of
from fit.table.spelled import is_yes
from fit.table.table import Table, to_numbers

# Fields of config.model with a default, each after those that its default reads.
WITH_DEFAULT = ("n_heads", "n_kv_heads", "head_dim", "d_ff", "d_expert", "top_k", "n_shared_experts", "n_dense_blocks")
Columns = Mapping[str, Array]  # by name, float64 [n]


def positive_numbers(table: Table, name: str) -> Array | None:
    """A column as numbers; None where it is missing or not all positive numbers: no law needs it."""
    if name not in table:
        return None
    try:
        return table.numbers(name, (1e-12, 1e18))
    except UserError:
        return None


def majority(values: Array) -> float | None:
    """The value that more than half of them are; None where there is none."""
    value, count = collections.Counter(values.tolist()).most_common(1)[0]
    return value if 2 * count > len(values) else None


def width_per_block_of(table: Table) -> int | None:
    """d_model / n_blocks as most runs have it, where it is a whole number."""
    d_model = positive_numbers(table, "d_model")
    n_blocks = positive_numbers(table, "n_blocks")
    if d_model is None or n_blocks is None:
        return None
    value = majority(d_model / n_blocks) or 0
    return int(value) if value >= 1 and value == int(value) else None


def cells(table: Table, name: str, section: str = "model") -> list:
    """A field of a config in each run, as written in its column or else in the overrides; None where neither has it.

    Args:
      name: Of the field.
      section: Of the config that has it.
    """
    of_column = table.column_or(name, None)
    of_runs = overrides.of_runs(table)
    either = [of_runs[i].get(f"{section}.{name}") if _is_blank(cell) else cell for i, cell in enumerate(of_column)]
    return [None if _is_blank(cell) else cell for cell in either]


def _is_blank(cell: object) -> bool:
    """Whether a cell holds nothing; frames of pandas have NaN there."""
    return text_of(cell).lower() in ("", "nan")


def _numbers(table: Table, name: str) -> Array | None:
    """A field of config.model, or granularity, in each run, float64 [n], NaN where nothing says it.

    Returns:
      None where a value is no number: no law needs it.
    """
    if name not in table and "overrides" not in table:
        return np.full(len(table), np.nan)
    written = cells(table, name)
    values = to_numbers(written)
    is_said = np.array([cell is not None for cell in written])
    return None if np.any(is_said & ~np.isfinite(values)) else values


def are_mixtures(table: Table) -> Array | None:
    """Whether each model is a mixture, bool [n]; None where the table does not say its numbers of experts."""
    n_experts = positive_numbers(table, "n_experts")
    return None if n_experts is None else n_experts > 1


def numbers_of_mixtures(table: Table, name: str) -> Array | None:
    """A field of config.model, or granularity, of each mixture, float64 [m], NaN where nothing says it.

    Returns:
      None where nothing says it of any mixture, or a value is no number: no law needs it.
    """
    is_mixture = are_mixtures(table)
    values = _numbers(table, name)
    if is_mixture is None or values is None or not np.isfinite(values[is_mixture]).any():
        return None
    return values[is_mixture]


def are_tied(table: Table) -> Array:
    """Whether embedding and head of each model are one matrix, bool [n]; False where nothing says it."""
    return np.array([is_yes(cell) for cell in cells(table, "tied_embeddings")])


def default_of(name: str, columns: Columns) -> Array | float:
    """The default of granularity or of a field of WITH_DEFAULT, where a table has no value or 0.

    Args:
      columns: Of the table: d_model, n_blocks, granularity where it is known, and the fields before this one.
    """
    if name == "n_heads":
        return columns["n_blocks"]
    if name == "n_kv_heads":
        return columns["n_heads"]
    if name == "head_dim":
        return columns["d_model"] / columns["n_heads"]
    if name == "d_ff":
        return 3 * columns["d_model"]
    if name == "d_expert":
        return columns["d_ff"] / columns.get("granularity", 1.0)
    return 1.0 if name in ("top_k", "granularity") else 0.0


def shapes(table: Table) -> Columns | None:
    """The columns that tell the shape of each model.

    Returns:
      {name: float64 [n]} of d_model, n_blocks, n_experts, n_active, granularity, WITH_DEFAULT and tied; None where the
      table lacks one of the first four or a value is not a number.
    """
    columns: dict[str, Array] = {}
    for name in ("d_model", "n_blocks", "n_experts", "n_active"):
        if name not in table or table.bad_cells(name, (1, 1e18)):
            return None
        columns[name] = table.numbers(name, (1, 1e18))
    for name in ("granularity", *WITH_DEFAULT):
        values = _numbers(table, name)
        if values is None:
            return None
        columns[name] = np.where(values > 0, values, default_of(name, columns))
    columns["tied"] = are_tied(table).astype(float)
    return columns
