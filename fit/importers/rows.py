"""Rows of imported runs, a dictionary for each run: which of them count, and columns that follow from others."""

import collections
from collections.abc import Collection, Mapping

from fit.aliases import Json
from fit.data.table import shown
from fit.errors import UserError
from fit.importers.questions import STEPS


def names_of(rows: list[Json]) -> list[str]:
    """The names of all columns of the rows, in the order in which they first stand there.

    `row`, the number of a row in its file, is not a column.
    """
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name != "row"]


def where(rows: list[Json], conditions: Mapping[str, str]) -> tuple[list[Json], dict[str, int]]:
    """Selects rows by the values of columns.

    Args:
      conditions: {column: value}, or {column!: value} for all other values; upper and lower case are one.

    Returns:
      The rows that meet all conditions, and {condition that failed, in words: how many rows failed it}.

    Raises:
      UserError: for a column that no row has.
    """
    selected = []
    dropped = collections.Counter()
    names = {name.lower(): name for row in rows for name in row}
    for row in rows:
        for column, value in conditions.items():
            key = column.removesuffix("!").lower()
            if key not in names:
                raise UserError(f"--where={column}={value}: no such column; columns found: {', '.join(names.values())}")
            cell = row.get(names[key])
            row_value = "" if cell is None else str(cell)
            is_equal = row_value.lower() == value.lower()
            is_excluded = is_equal if column.endswith("!") else not is_equal
            if is_excluded:
                dropped[f"{names[key]} {row_value or 'empty'}"] += 1
                break
        else:
            selected.append(row)
    return selected, dropped


def count_tokens(source: str, rows: list[Json], tokens_per_step: float) -> None:
    """Adds n_tokens to rows, None where a row has no step.

    Raises:
      UserError: for a step that is no number, or where no row has one.
    """
    steps = [next((row[name] for name in STEPS if row.get(name) not in (None, "")), None) for row in rows]
    has_steps = any(step is not None for step in steps)
    for row, step in zip(rows, steps, strict=True):
        if step is None and has_steps:
            row["n_tokens"] = None
            continue
        try:
            row["n_tokens"] = float(str(step)) * tokens_per_step
        except ValueError:
            raise UserError(f"--tokens_per_step: {source}: run {row.get('run')} has no number as its step") from None


def products(source: str, rows: list[Json], values: Mapping[str, str]) -> dict[str, str]:
    """Adds the columns to the rows that are products of other columns and numbers: n_tokens=step*batch*1024.

    Args:
      source: the file or folder that the rows come from, for errors.
      values: {name: product, or value of every run}.

    Returns:
      Those of `values` that are the same for all runs.

    Raises:
      UserError: for a factor that is neither a column nor a number, or a run without a number in one.
    """
    constants = {}
    names = names_of(rows)
    for name, value in values.items():
        factors = [factor.strip() for factor in str(value).split("*")]
        if len(factors) == 1 or value in names:
            constants[name] = value
            continue
        for row in rows:
            row[name] = 1.0
            for factor in factors:
                row[name] *= _factor(source, f"--set={name}={value}", row, factor, names)
    return constants


def _factor(source: str, flag: str, row: Json, factor: str, names: Collection[str]) -> float:
    """A factor's number, or that of the column of this name in a row."""
    value = row.get(factor) if factor in names else factor
    try:
        return float(str(value))
    except ValueError:
        if factor in names:
            raise UserError(f"{flag}: {source}: run {row.get('run')} has {shown(value)} as {factor}") from None
        raise UserError(
            f"{flag}: {source} has no column {factor}, nor is it a number; columns found: {', '.join(names)}"
        ) from None
