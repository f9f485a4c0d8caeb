"""The columns of a table of runs that checks read, as numbers, and its rows in words.

Axes: n runs of the table.
"""

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.table.table import Table

NAMES = ("n_active", "n_tokens", "n_total", "n_experts", "top_k", "loss", "vocab_size")
ACCURACY_PREFIXES = ("acc_", "accnorm_")  # of the columns that hold accuracies of tasks
# columns that say whether a run finished, in snake case
STATES = ("state", "status", "run_state", "run_status", "job_state", "job_status", "exit_status", "outcome")
FINISHED = "finished"  # the state of runs that a law is fitted to
ROWS_NAMED = 5  # in a sentence
# tokens for each parameter of any model that is trained on purpose
FEWEST_TOKENS = 0.1
MOST_TOKENS = 1e5

Columns = dict[str, Array]  # by name, float64 [n]


def known_columns(table: Table) -> Columns:
    """The columns of NAMES that the table has and whose values are all numbers."""
    known: Columns = {}
    for name in NAMES:
        if name in table:
            try:
                known[name] = table.numbers(name)
            except UserError:  # whatever reads the column says so
                continue
    return known


def models_of(known: Columns, *more: str) -> Array:
    """Labels of equal models, int [n]: runs have the same label if they agree in size, experts and columns `more`."""
    names = [name for name in ("n_active", "n_total", "n_experts", "top_k", *more) if name in known]
    return np.unique(np.stack([known[name] for name in names]), axis=1, return_inverse=True)[1].ravel()


def rows_in_words(table: Table, rows: Array) -> str:
    """Rows, boolean [n], by their numbers in the file and, where the table has them, the names of the runs."""
    places = np.flatnonzero(rows)
    named = [str(table.rows[i]) for i in places[:ROWS_NAMED]]
    if "run" in table:
        runs = table.column("run")
        named = [f"{table.rows[i]} ({runs[i]})" for i in places[:ROWS_NAMED]]
    more = ", ..." if len(places) > ROWS_NAMED else ""
    return f"{'row' if len(places) == 1 else 'rows'} {', '.join(named)}{more}"


def count_of(table: Table, rows: Array) -> dict[str, int]:
    """How many rows, boolean [n], are meant (`count`), and how many the table has (`runs`), for a finding."""
    return dict(count=int(rows.sum()), runs=len(table))


def units_are_open(table: Table, *names: str) -> bool:
    """Whether the user has not named the units of these columns."""
    return not set(names) & set(table.units)
