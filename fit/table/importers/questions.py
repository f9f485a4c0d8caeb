"""The error of `fit import` for all that a source lacks, with the command that would work."""

import dataclasses
from collections.abc import Sequence

from fit.errors import TableError
from fit.table.problems import Problem, error_of
from fit.table.selection import steps_of
from fit.table.table import Table

SIZES = "SIZES.csv"  # in a command, for a table that the user has to write
TOKENS = "TOKENS"  # and for the tokens of a batch


def error_of_source(runs: Table, problems: Sequence[Problem], sizes: str | None) -> TableError:
    """The error for what a source does not say, with the flags of `fit import`.

    Args:
      runs: the source, with the columns that the user added.
      problems: what is wrong with it, as fit.table.validate finds it.
      sizes: the table of sizes that the user gave.
    """
    missing = [problem for problem in problems if "columns" in problem.flags]
    unknown = [name for problem in missing if problem.placeholder for name in problem.flags["columns"]]
    questions = _of_unknown(runs, unknown, sizes) if unknown else []
    for problem in problems:
        if problem in missing:
            if not problem.placeholder:
                questions.append(_of_column(problem))
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
    if "n_tokens" in names and steps_of(runs):
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
