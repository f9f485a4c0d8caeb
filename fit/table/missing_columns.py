"""Columns that a table of runs lacks: which of its columns likely hold them, or from which they can be computed."""

from collections.abc import Mapping, Sequence

import numpy as np

from fit.messages.finding import finding
from fit.table.column_guesses import USUAL_NAMES, guess, is_actual, rivals
from fit.table.problems import NO_NAME, Problem
from fit.table.table import DERIVED, Table
from fit.table.token_formulas import tokens_formula


def missing_columns(table: Table, needed: Sequence[str]) -> list[Problem]:
    """A problem for each of these columns that the table lacks, with the column that is likely to hold it."""
    missing = [name for name in dict.fromkeys(needed) if not table.can_give(name)]
    questions = []
    taken = {table.names.get(name, name) for name in needed} | _columns_of_totals(table)
    for name in missing:
        column = guess(name, table.columns, taken)
        if name == "n_tokens" and column is None:
            tokens_problem = _computable_tokens(table, questions)
            if tokens_problem is not None:
                questions.append(tokens_problem)
                continue
        hint = ""
        other_columns = ""
        if column is not None:
            other_columns = _rivals_in_words(name, column, rivals(name, column, table.columns, taken))
            taken.add(column)
            hint = f"; --columns={name}:{column} if {column} holds it"
        elif name in DERIVED:
            hint = f"; it follows from {' and '.join(DERIVED[name][0])}"
        elif name in USUAL_NAMES and name not in table.names:
            hint = f"; --columns={name}:{NO_NAME} says what the table calls it"
        flags = {"columns": {name: column or NO_NAME}} if name in USUAL_NAMES else {}
        what = f"column {table.names.get(name, name)} is missing{hint}"
        placeholder = "" if column else NO_NAME
        is_settled = bool(flags)
        questions.append(Problem(what, "", flags, is_settled, placeholder, lists_columns=True, rivals=other_columns))
    if "n_active" in missing and not table.can_give("n_experts") and "n_experts" not in missing:
        column = guess("n_experts", table.columns, taken)
        if column is not None:
            what = finding("no_n_experts", column=column)
            questions.append(Problem(str(what), flags={"columns": {"n_experts": column}}))
    return questions


def _computable_tokens(table: Table, other_problems: Sequence[Problem]) -> Problem | None:
    """The problem of missing tokens that --set can compute from other columns; None where it cannot.

    Args:
      table: the runs.
      other_problems: those of other missing columns, with the columns that likely hold them.
    """
    knows_size = "n_active" in table
    for problem in other_problems:
        knows_size |= problem.flags.get("columns", {}).get("n_active") in table.columns
    formula_and_assumption = tokens_formula(table, knows_size)
    if formula_and_assumption is None:
        return None
    formula, assumption = formula_and_assumption
    return Problem(
        f"column n_tokens is missing; --set=n_tokens={formula} computes it: {assumption}",
        flags={"set": {"n_tokens": formula}},
        lists_columns=True,
    )


def _rivals_in_words(name: str, column: str, others: Mapping[str, float]) -> str:
    """A clause on the other columns that could hold a missing one; "" where there are none.

    Args:
      name: our name of the missing column.
      column: the column that likely holds it.
      others: {other column: how far it is from that one at most, as a share}.
    """
    if not others:
        return ""
    listed = " and ".join(f"{other} (up to {apart:.0%} away)" for other, apart in others.items())
    choice = ""
    if is_actual(column):
        choice = f": {column} is what was trained, by its name"
    return f"; {listed} could hold it, too{choice}. --columns={name}:COLUMN says which does"


def _columns_of_totals(table: Table) -> set[str]:
    """Columns that repeat n_total in a table with mixtures: they hold no n_active."""
    if "n_total" not in table or "n_experts" not in table or not np.any(table.values("n_experts") > 1):
        return set()
    totals = table.column("n_total")
    return {name for name, values in table.columns.items() if values == totals}
