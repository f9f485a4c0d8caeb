"""Finds cells that hold no number and rows that repeat the header, and a condition that leaves such rows out."""

from collections.abc import Iterator

import numpy as np

from fit.aliases import Array
from fit.table.column_guesses import snake_case
from fit.table.known_columns import FINISHED, STATES, rows_in_words
from fit.table.problems import Problem
from fit.table.selection import FINITE, text_of
from fit.table.table import Table


def cell_problems(table: Table, name: str) -> Iterator[Problem]:
    """Yields a problem where values of a column are outside its bounds, with the --where that leaves such rows out.

    Args:
      table: the runs.
      name: one of BOUNDS.
    """
    bad = table.bad_cells(name)
    if bad is None:
        return
    condition = _condition(table, name, bad.is_bad)
    if condition is None:
        yield Problem(f"{bad.what}{bad.hint}", bad.where, is_settled=False)
        return
    what = f"{bad.what}; --where={condition} leaves out {rows_in_words(table, bad.is_bad)}"
    yield Problem(what, bad.where, {"where": {condition: ""}})


def header_rows(table: Table) -> Array:
    """Whether each row repeats the names of the columns, bool [n_rows]."""
    repeats = np.ones(len(table), bool)
    for name, values in table.columns.items():
        repeats &= np.array([text_of(value) == name for value in values])
    return repeats


def header_problems(table: Table, names: list[str]) -> Iterator[Problem]:
    """Yields a problem where rows repeat the header.

    Args:
      table: the runs.
      names: columns of numbers, by our names.
    """
    repeats = header_rows(table)
    if not repeats.any() or repeats.all() or not names:
        return
    condition = f"{names[0]}={FINITE}"
    number = "repeats" if repeats.sum() == 1 else "repeat"
    yield Problem(
        f"{rows_in_words(table, repeats)} {number} the header: were files joined? --where={condition} leaves them out",
        flags={"where": {condition: ""}},
    )


def _condition(table: Table, name: str, is_bad: Array) -> str | None:
    """A --where that leaves out all rows with bad cells, and no finished run without one; None if none does.

    Args:
      table: the runs.
      name: our name of the column.
      is_bad: bool [n_rows].
    """
    if is_bad.all():
        return None
    for state in table.columns:
        if snake_case(state) in STATES:
            is_finished = np.array([text_of(value).lower() == FINISHED for value in table.columns[state]])
            if is_finished.any() and not (is_finished & is_bad).any():
                return f"{state}={FINISHED}"
    if not np.isfinite(table.values(name)[is_bad]).any():
        return f"{name}={FINITE}"
    cells = {text_of(value) for value, bad in zip(table.column(name), is_bad, strict=True) if bad}
    if len(cells) > 1 or any("," in cell for cell in cells):
        return None
    return f"{name}!={cells.pop()}"
