"""Selects the rows of a table by the conditions of --where.

  COLUMN=VALUE    rows with this value; several of one column: any of them
  COLUMN!=VALUE   rows with another value; several of one column: none of them
  COLUMN=finite   rows with a finite number
  COLUMN=last     of the rows with one value of COLUMN, such as a run's name, that with the most tokens

COLUMN is the table's name or ours. VALUE is compared as a number where both are numbers, else without regard to
capitals.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.messages.printable import printable
from fit.table.table import Table, to_numbers, with_rows

FINITE = "finite"
LAST = "last"
MOST_REASONS = 8  # that are named where rows are left out
# what tools call a run's step, in lower case
STEPS = ("step", "_step", "steps", "global_step", "trainer/global_step", "iteration", "iterations", "iter", "num_steps")


@dataclasses.dataclass(frozen=True)
class Condition:
    """One condition of --where.

    Attributes:
      column: the column that it is about.
      value: a value, FINITE or LAST.
      excludes: whether rows with this value are left out, rather than all others.
    """

    column: str
    value: str
    excludes: bool = False

    def __str__(self) -> str:
        return f"{self.column}{'!=' if self.excludes else '='}{self.value}"


def parse(texts: str | Iterable[str] | None) -> tuple[Condition, ...]:
    """The conditions that a user typed, as one text with commas or as several.

    Raises:
      UserError: for a text that is no condition.
    """
    if isinstance(texts, str):
        texts = texts.split(",")
    conditions = []
    for text in texts or ():
        column, mark, value = (part.strip() for part in str(text).partition("="))
        name = column.removesuffix("!").strip()
        if not mark or not name:
            raise UserError(
                f"--where={text}: expected COLUMN=VALUE, COLUMN!=VALUE, COLUMN={FINITE} or COLUMN={LAST}, separated by "
                "commas"
            )
        conditions.append(Condition(name, value, column.endswith("!")))
    return tuple(conditions)


def select(table: Table, conditions: Sequence[Condition]) -> Table:
    """The rows of a table that meet all conditions.

    Raises:
      UserError: for a column that the table lacks, or where no row is left.
    """
    if not conditions:
        return table
    left_out: collections.Counter[str] = collections.Counter()
    for alternatives in _alternatives(table, conditions):
        column = _column(table, alternatives[0])
        is_selected = np.zeros(len(table), bool)
        for condition in alternatives:
            is_selected |= _meets(table, column, condition)
        for i in np.flatnonzero(~is_selected):
            left_out[_reason(table, column, alternatives[0], int(i))] += 1
        table = with_rows(table, np.flatnonzero(is_selected))
        if not is_selected.any():
            where = ",".join(map(str, alternatives))
            raise UserError(
                f"--where={where}: {table.path}: no run is left of {len(is_selected)}; left out: "
                f"{left_out_in_words(left_out)}"
            )
    where = (*table.where, *map(str, conditions))
    return dataclasses.replace(table, where=where, left_out=dict(left_out))


def left_out_in_words(left_out: dict[str, int]) -> str:
    """How many rows each condition left out; of many reasons the most frequent, and a count of the other rows."""
    reasons = sorted(left_out.items(), key=lambda item: -item[1])
    words = [f"{count} with {reason}" for reason, count in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        words.append(f"{sum(count for _, count in reasons[MOST_REASONS:])} with other values")
    return ", ".join(words)


def _alternatives(table: Table, conditions: Sequence[Condition]) -> list[list[Condition]]:
    """Lists of conditions, of each of which a row must meet one: the values of one column, else a single condition.

    COLUMN=last comes after all others, so that it chooses among the rows that these select.
    """
    groups: dict[tuple[str, bool], list[Condition]] = {}
    for condition in conditions:
        is_any_of = not condition.excludes and condition.value.lower() not in (FINITE, LAST)
        key = _column(table, condition) if is_any_of else str(condition)
        groups.setdefault((key, is_any_of), []).append(condition)
    return sorted(groups.values(), key=lambda group: group[0].value.lower() == LAST)


def _column(table: Table, condition: Condition) -> str:
    """The table's name of a condition's column. Raises UserError where it has none."""
    name = table.names.get(condition.column, condition.column)
    if name in table.columns:
        return name
    by_lower_case = {name.lower(): name for name in table.columns}
    if name.lower() not in by_lower_case:
        raise UserError(f"--where={condition}: no such column; columns found: {', '.join(table.columns)}")
    return by_lower_case[name.lower()]


def _meets(table: Table, column: str, condition: Condition) -> Array:
    """Whether each row meets a condition, bool [n_rows]."""
    values = table.columns[column]
    texts = np.array([text_of(value).lower() for value in values], object)
    value = condition.value.lower()
    is_equal = texts == value
    if value == FINITE and not is_equal.any():
        is_equal = np.isfinite(to_numbers(values))
    elif value == LAST and not is_equal.any():
        is_equal = _is_last(table, texts)
    else:
        (wanted,) = to_numbers([condition.value])
        if np.isfinite(wanted):
            is_equal = is_equal | (to_numbers(values) == wanted)
    return ~is_equal if condition.excludes else is_equal


def _is_last(table: Table, groups: Array) -> Array:
    """Whether each row has the most tokens of its group, else the most steps, else is its last one, bool [n_rows].

    Args:
      groups: a text for each row; an empty one is a group of its own.
    """
    order = progress(table)
    last: dict[str, int] = {}
    is_last = groups == ""
    for i, group in enumerate(groups):
        if group and (group not in last or order[i] >= order[last[group]]):
            last[group] = i
    is_last[list(last.values())] = True
    return is_last.astype(bool)


def progress(table: Table) -> Array:
    """How far each row's training went, [n_rows]: its tokens or steps, else its place in the table."""
    for name in ("n_tokens", *steps_of(table)):
        if name in table:
            values = table.values(name)
            if np.isfinite(values).any():
                return np.where(np.isfinite(values), values, -np.inf)
    return np.arange(len(table), dtype=float)


def steps_of(table: Table) -> list[str]:
    """The columns of a table that hold a run's step."""
    by_lower_case = {name.lower(): name for name in table.columns}
    return [by_lower_case[step] for step in STEPS if step in by_lower_case]


def _reason(table: Table, column: str, condition: Condition, i: int) -> str:
    """Why a row is left out, in words."""
    if condition.value.lower() == LAST and condition.value not in map(text_of, table.columns[column]):
        return f"a later row of the same {column}"
    return f"{column} {printable(text_of(table.columns[column][i])) or 'empty'}"


def text_of(value: object) -> str:
    """A cell as text, empty where it is nothing."""
    return "" if value is None else str(value).strip()
