"""Computes the columns of --set, such as n_tokens=step*batch*seq_len or n_tokens=flops/6/n_active."""

import dataclasses
import re
from collections.abc import Collection, Mapping

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.table.table import Table, shown


def with_columns(table: Table, formulas: Mapping[str, str]) -> Table:
    """The table with further columns.

    Args:
      table: the runs.
      formulas: {name: a value of every run, or columns and numbers with * and / between them, from left to right}.
        Columns have the table's names or ours.

    Raises:
      UserError: for a factor that is neither a column nor a number, or a row without a number in one.
    """
    if not formulas:
        return table
    columns = dict(table.columns)
    for name, formula in formulas.items():
        parts = _parts(formula, _names(table))
        has_operators = len(parts) > 1
        if has_operators or formula in _names(table):
            columns[name] = _product(table, name, formula, parts).tolist()
        else:
            columns[name] = [formula] * len(table)
    names = {ours: theirs for ours, theirs in table.names.items() if ours not in formulas}
    return dataclasses.replace(
        table, columns=columns, names=names, computed=table.computed | dict(formulas), arrow=None
    )


def _names(table: Table) -> list[str]:
    """All names of a table's columns: its own and ours."""
    return [*table.columns, *table.names]


def _parts(formula: str, names: Collection[str]) -> list[str]:
    """Factors and the operators between them, in turn. A / in a column's name, such as eval/loss, is no division."""
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True) if name)
    pattern = rf"\s*((?:{known})(?=\s*(?:[*/]|$))|[^*/]*)\s*([*/]|$)"
    parts = []
    for match in re.finditer(pattern, formula):
        parts.append(match[1].strip())
        if not match[2]:
            break
        parts.append(match[2])
    return parts


def _product(table: Table, name: str, formula: str, parts: list[str]) -> Array:
    """The values of a formula, [n_rows]."""
    flag = f"--set={name}={formula}"
    product = _factor(table, flag, parts[0])
    for operator, part in zip(parts[1::2], parts[2::2], strict=True):
        factor = _factor(table, flag, part)
        if operator == "*":
            product = product * factor
            continue
        if np.any(factor == 0):
            row = table.rows[int(np.argmax(factor == 0))]
            raise UserError(f"{flag}: {table.path}, row {row}: {part} is 0, so that it cannot be divided by")
        product = product / factor
    return product


def _factor(table: Table, flag: str, part: str) -> Array:
    """A number, or the values of a column, [n_rows]."""
    if part not in _names(table):
        try:
            return np.full(len(table), float(part))
        except ValueError:
            raise UserError(
                f"{flag}: {table.path} has no column {part or '(no name)'}, nor is it a number; columns found: "
                f"{', '.join(table.columns)}"
            ) from None
    values = table.values(part)
    if not np.isfinite(values).all():
        first = int(np.argmax(~np.isfinite(values)))
        raise UserError(
            f"{flag}: {table.path}, row {table.rows[first]}, column {part}: found {shown(table.column(part)[first])}, "
            f"expected a number; --where={part}=finite leaves such rows out"
        )
    return values
