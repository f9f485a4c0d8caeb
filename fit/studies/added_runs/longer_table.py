"""A table of runs with further rows, in the table's own names and units."""

import dataclasses
from typing import Any

import numpy as np

from fit.aliases import Json
from fit.table.importers import workdir
from fit.table.table import COUNT_UNITS, LOSS_UNITS, Table, to_numbers

FIRST = ("n_active", "n_total", "n_tokens", "n_experts", "loss")  # columns of a new table, before the others
# e or 2 to the power of a loss in nats; `numbers` of a table takes their logarithms
POWERS = dict(perplexity=np.exp, exp2=np.exp2)


def with_rows_added(table: Table | None, rows: list[Json], path: str) -> Table:
    """The table with the rows appended. Columns that either lacks are filled in if their values are known.

    Args:
      table: The runs so far.
      rows: The runs to add.
      path: Path of the new table, if there are no runs yet.
    """
    names_of_rows = dict.fromkeys(name for row in rows for name in row)
    if table is None:
        names = dict.fromkeys(FIRST) | names_of_rows
        return Table(path, {name: [row.get(name, "") for row in rows] for name in names}, list(range(2, 2 + len(rows))))
    our_name_of = {theirs: name for name, theirs in table.names.items()}
    before = [{our_name_of.get(name, name): value for name, value in row.items()} for row in workdir.rows_of(table)]
    names = dict.fromkeys(before[0]) | names_of_rows
    columns: dict[str, list] = {}
    for name in names:
        values = [row[name] if name in row else _filled(row, name) for row in before]
        values += [_in_unit(name, _filled(row, name), table.units.get(name)) for row in rows]
        columns[table.names.get(name, name)] = values
    last = max(table.rows)
    numbers = [*table.rows, *range(last + 1, last + 1 + len(rows))]
    return dataclasses.replace(table, columns=columns, rows=numbers, arrow=None)


def _filled(row: Json, name: str) -> Any:
    """A column of a run, with what it is where the run leaves it out; "" where nothing says it."""
    if name == "n_experts" and name not in row:
        return 1  # the runs of a table without the column are dense
    return workdir.filled(row, name)


def _in_unit(name: str, value: Any, unit: str | None) -> Any:
    """A value in nats or as a plain number in a unit of a table's column; one that is no number as it is."""
    if unit is None:
        return value
    (number,) = to_numbers([value])
    if np.isnan(number):
        return value
    if unit in POWERS:
        return float(POWERS[unit](number))
    factors = LOSS_UNITS if name == "loss" else COUNT_UNITS
    return float(number / (factors[unit] if unit in factors else float(unit)))
