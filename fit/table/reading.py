"""Reads a table of runs by the flags --columns, --where, --set and --units."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from fit.table import computed, selection
from fit.table.table import Table, checked_units, read


def read_with(
    runs: Any,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    where: str | Iterable[str] | None = None,
    set: Mapping[str, str] | None = None,
) -> Table:
    """Reads a table of runs, as fit.table.table.read; then selects rows and computes columns.

    Args:
      runs: the path of a file or a table of Python, as `read` accepts; a Table is returned as it is.
      columns: {name that fit reads: name in the table}.
      units: {column: unit}; of a column of `set` too.
      where: conditions, as of selection.parse.
      set: {column: formula}, as of computed.with_columns.

    Raises:
      UserError: where the table cannot be read, or a condition or formula names what it lacks.
    """
    if isinstance(runs, Table):
        return runs
    table = selection.select(read(runs, columns), selection.parse(where))
    return with_set(table, set or {}, checked_units(units))


def with_set(table: Table, formulas: Mapping[str, str], units: Mapping[str, str]) -> Table:
    """The table with units, and with the columns of --set, whose formulas read values in nats and plain numbers.

    Args:
      table: the runs, without units.
      formulas: {column: formula}, as of computed.with_columns.
      units: {column: unit}.

    Raises:
      UserError: where a formula names what the table lacks.
    """
    units_of_table = {name: unit for name, unit in units.items() if name not in formulas}
    table = computed.with_columns(dataclasses.replace(table, units=units_of_table), formulas)
    return dataclasses.replace(table, units=dict(units))
