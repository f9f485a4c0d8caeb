"""Problems of a table of runs: their sentences, the flags that settle them, and one error for all of them."""

import dataclasses
from collections.abc import Mapping, Sequence

from fit.errors import TableError
from fit.table.table import Table

NO_NAME = "COLUMN"  # in a flag, for a column that the user has to name


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem of a table.

    Attributes:
      what: the sentence.
      where: the row or column that it is about, such as "column loss"; "" for the whole table.
      flags: {flag: {name: value}} that settles it; empty where no flag does.
      is_settled: whether the table can be read with these flags. A doubt does not keep it from being read.
      placeholder: a word in the flags that the user has to replace; "" where there is none.
      lists_columns: whether the error lists the columns of the table.
      rivals: a clause on other columns that could hold what is missing; "" where none could.
    """

    what: str
    where: str = ""
    flags: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    is_settled: bool = True
    placeholder: str = ""
    lists_columns: bool = False
    rivals: str = ""


def error_of(table: Table, problems: Sequence[Problem]) -> TableError:
    """One error for all problems of a table.

    Args:
      table: the table.
      problems: at least one.
    """
    columns = ", ".join(table.columns) or "none"
    lines = []
    for problem in problems:
        where = f"{problem.where}: " if problem.where else ""
        lines.append(f"{where}{problem.what}{problem.rivals}")
    if len(problems) == 1:
        comma = ", " if problems[0].where else ": "
        sentence = f"{table.path}{comma}{lines[0]}"
        if problems[0].lists_columns:
            sentence += f"; columns found: {columns}"
    else:
        if any(problem.lists_columns for problem in problems):
            lines.append(f"columns found: {columns}")
        sentence = f"{table.path}: {len(problems)} things are wrong or doubtful\n  " + "\n  ".join(lines)
    is_settled = all(problem.is_settled for problem in problems)
    words = "this works" if is_settled else "after fixing the errors above, run"
    placeholders = list(dict.fromkeys(problem.placeholder for problem in problems if problem.placeholder))
    if placeholders:
        words += f", with your own {' and '.join(placeholders)}"
    return TableError(sentence, _flags(table, problems), words)


def _flags(table: Table, problems: Sequence[Problem]) -> dict[str, dict[str, str]]:
    """The flags that settle all problems, with those by which the table was read; {} where none do."""
    flags: dict[str, dict[str, str]] = {}
    for problem in problems:
        for flag, values in problem.flags.items():
            flags.setdefault(flag, {}).update(values)
    if set(flags) == {"columns"} and set(flags["columns"].values()) == {NO_NAME}:
        return {}
    if "columns" in flags:
        flags["columns"] = dict(table.names) | flags["columns"]
    if table.units and flags:
        flags["units"] = dict(table.units) | flags.get("units", {})
    if table.computed and flags:
        flags["set"] = dict(table.computed) | flags.get("set", {})
    if table.where and flags:
        flags["where"] = dict.fromkeys(table.where, "") | flags.get("where", {})
    return flags
