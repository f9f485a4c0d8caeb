"""What `fit import` asks for: all that a source does not say, in one error, with the command that would work."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array
from fit.data.known_columns import rows_in_words
from fit.data.problems import Problem, error_of
from fit.data.table import BOUNDS, Table
from fit.errors import TableError

STEPS = ("step", "_step", "global_step", "trainer/global_step")  # what tools call a run's last step
STATES = ("state", "status")
FINISHED = "finished"  # the state of runs that belong into a law
SIZES = "SIZES.csv"  # stands in a command for a table that the user has to write
TOKENS = "TOKENS"  # and for the tokens of a batch


def error_of_source(runs: Table, problems: Sequence[Problem], sizes: str | None) -> TableError:
    """The error for what a source does not say, with the flags of `fit import`.

    Args:
      runs: the source, with the columns that the user added.
      problems: what is wrong with it, as fit.data.sense finds it.
      sizes: the table of sizes that the user gave.
    """
    missing = [problem for problem in problems if "columns" in problem.flags]
    unknown = [name for problem in missing if problem.placeholder for name in problem.flags["columns"]]
    questions = _of_unknown(runs, unknown, sizes) if unknown else []
    for problem in problems:
        if problem in missing:
            if not problem.placeholder:
                questions.append(_of_column(problem))
        elif "column" in problem.where and not problem.is_settled:
            questions.append(_of_cells(runs, problem, problems))
        else:
            questions.append(problem)
    return error_of(runs, questions)


def _of_column(problem: Problem) -> Problem:
    """The question whether a column of the source is the one that it lacks by our name."""
    ((name, column),) = problem.flags["columns"].items()
    what = f"does not say {name}: give --columns={name}:{column} if column {column} holds it"
    return dataclasses.replace(problem, what=what)


def _of_unknown(runs: Table, names: Sequence[str], sizes: str | None) -> list[Problem]:
    """The question for what no column of the source looks like, with the flags that give it.

    Args:
      runs: the source.
      names: our names of these columns.
      sizes: the table of sizes that the user gave.
    """
    name = names[0]
    what = (
        f"does not say {', '.join(names)}: give --columns={name}:COLUMN for one of its columns, --set={name}=NUMBER "
        f"for all runs, or --sizes=TABLE with the columns {', '.join(('run', *names))}"
    )
    flags: dict[str, dict[str, str]] = {}
    placeholders = []
    if "n_experts" in names:
        what += "; --set=n_experts=1 if all models are dense"
        flags["set"] = {"n_experts": "1"}
    if "n_tokens" in names and any(step in runs for step in STEPS):
        what += f"; --tokens_per_step={TOKENS} says the tokens of a batch"
        flags["tokens_per_step"] = {"": TOKENS}
        placeholders.append(TOKENS)
    elif "n_tokens" in names:
        flags["sizes"] = {"": SIZES}
    if "n_active" in names or "loss" in names:
        flags["sizes"] = {"": SIZES}
    if "sizes" in flags and sizes is not None:
        what += f"; {sizes} has none of them"
        flags["sizes"] = {"": sizes}
    elif "sizes" in flags:
        placeholders.append(SIZES)
    is_settled = sizes is None or "sizes" not in flags
    placeholder = " and ".join(placeholders)
    return [Problem(what, "", flags, is_settled, placeholder, lists_columns=True)]


def _of_cells(runs: Table, problem: Problem, problems: Sequence[Problem]) -> Problem:
    """The problem of cells without a number, with the condition that leaves their runs out, where one does."""
    column = problem.where.partition("column ")[2]
    name = next((ours for ours, theirs in runs.names.items() if theirs == column), column)
    for other in problems:
        for ours, theirs in other.flags.get("columns", {}).items():
            if theirs == column:
                name = ours
    if column not in runs.columns or name not in BOUNDS:
        return problem
    is_bad = _is_bad(runs, column)
    condition = _condition(runs, column, is_bad)
    if condition is None:
        return problem
    key, value = condition
    what = f"{problem.what}; --where={key}={value} leaves out {rows_in_words(runs, is_bad)}"
    return dataclasses.replace(problem, what=what, flags={"where": {key: value}}, is_settled=True)


def _is_bad(runs: Table, column: str) -> Array:
    """bool [n_runs]: the cells of a column that hold no positive number."""
    values = dataclasses.replace(runs, names={}, units={}).values(column)
    return ~(np.isfinite(values) & (values > 0))


def _condition(runs: Table, column: str, is_bad: Array) -> tuple[str, str] | None:
    """(column, value) of a --where that leaves out just the runs with bad cells and unfinished ones; None if none does.

    Args:
      runs: the source.
      column: that of the cells.
      is_bad: bool [n_runs].
    """
    if not is_bad.any() or is_bad.all():
        return None
    for state in runs.columns:
        if state.lower() in STATES:
            is_finished = np.array([str(value).lower() == FINISHED for value in runs.columns[state]])
            if is_finished.any() and not (is_finished & is_bad).any():
                return state, FINISHED
    cells = {
        "" if value is None else str(value) for value, bad in zip(runs.columns[column], is_bad, strict=True) if bad
    }
    if len(cells) > 1:
        return None
    (cell,) = cells
    return f"{column}!", cell
