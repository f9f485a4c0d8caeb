"""Finds rows that are checkpoints of one run: before the learning rate has decayed, losses are too high for a law.

Axes: n runs of the table; k rows of one run.
"""

from collections.abc import Iterator

import numpy as np

from fit.aliases import Array
from fit.messages.finding import Finding, finding
from fit.table.column_guesses import snake_case
from fit.table.known_columns import count_of, known_columns, models_of, rows_in_words
from fit.table.problems import Problem
from fit.table.selection import LAST, progress, steps_of, text_of
from fit.table.table import Table

# columns that name a run, in snake case
RUN_COLUMNS = (
    "run",
    "run_name",
    "run_id",
    "runid",
    "runs",
    "experiment",
    "experiment_name",
    "experiment_id",
    "exp",
    "exp_name",
    "exp_id",
    "job",
    "job_name",
    "job_id",
    "trial",
    "trial_id",
    "wandb_id",
)
# Columns that may name a model, which may have been trained several times. Rows of one name are checkpoints of one run
# if they have steps or evenly spaced tokens.
MODEL_COLUMNS = ("name", "model", "model_name", "model_id", "size", "size_name", "id", "label")
FEWEST_OF_A_LAW = 5  # runs: as many as the dense law has coefficients
FEWEST_NAMED = 4  # rows of one model's name; fewer are not said to be checkpoints
EVEN = 1.25  # evenly spaced: the largest step between rows over the smallest is at most this
FEWEST_EVEN = 5  # rows of one run; fewer may be evenly spaced by chance
FEWEST_CURVED = 5  # rows of one size; the losses of fewer show no shape
ABOVE = 0.01  # a loss that exceeds one of fewer tokens by this share does so by more than noise
CLOSE_TOKENS = 0.02  # numbers of tokens less than this share apart count as the same
FEWEST_ABOVE = 3  # rows; a single one may have crashed
FALLS = 4e-3  # the last loss falls faster if it lies this share below the line through the earlier losses,
FALLS_SCATTERS = 4.0  # and this many of their standard deviations around the line


def named_histories(table: Table, bootstrap_by: str = "") -> Iterator[Problem]:
    """Yields a problem where rows of one name rise in tokens or steps at one size.

    Args:
      table: the runs.
      bootstrap_by: a column whose rows of one name the user wants fitted as they are.
    """
    steps = steps_of(table)
    if "n_active" not in table or not ("n_tokens" in table or steps):
        return
    for column in table.columns:
        name = snake_case(column)
        is_size = column == table.names.get("n_active", "n_active")
        if column == bootstrap_by or is_size or name not in (*RUN_COLUMNS, *MODEL_COLUMNS):
            continue
        needs_even_steps = name in MODEL_COLUMNS and not steps
        histories = [rows for rows in _groups(table, column) if _rises(table, rows, needs_even_steps)]
        if histories:
            yield _history_problem(table, column, histories)
            return


def _history_problem(table: Table, column: str, histories: list[Array]) -> Problem:
    """The problem of rows that are checkpoints.

    Args:
      table: the runs.
      column: the column that names the runs.
      histories: the rows of each such run, [k], in the order of their progress.
    """
    earlier = np.zeros(len(table), bool)
    for rows in histories:
        earlier[rows] = True
        earlier[rows[np.argmax(progress(table)[rows])]] = False
    first = text_of(table.columns[column][histories[0][0]])
    by_group = f"--bootstrap_by={column}"
    if _suffice_for_a_law(table, ~earlier):
        hint = (
            f"--where={column}={LAST} keeps the last row of each; if each row is the end of its own decay, {by_group} "
            "fits all of them"
        )
        flags = {"where": {f"{column}={LAST}": ""}}
    else:
        hint = (
            f"--where={column}={LAST} keeps the last row of each, which are too few or too much alike for a law; "
            f"{by_group} fits all rows as if each were the end of its own decay"
        )
        flags = {"bootstrap_by": {"": column}}
    runs = "1 run" if len(histories) == 1 else f"{len(histories)} runs"
    return Problem(
        f"{earlier.sum()} of {len(table)} rows are earlier points of {runs}, such as {first} "
        f"({rows_in_words(table, earlier)}): their tokens rise at one size, and before the learning rate has "
        f"decayed the loss is higher than that of a finished run of as many tokens; {hint}",
        f"column {column}",
        flags,
    )


def _suffice_for_a_law(table: Table, rows: Array) -> bool:
    """Whether rows, bool [n], are enough and differ enough for a law of size and data."""
    runs = np.stack([table.values("n_active")[rows], progress(table)[rows]])
    differ = all(len(np.unique(values)) > 1 for values in runs)
    return differ and len(np.unique(runs, axis=1).T) >= FEWEST_OF_A_LAW


def columns_of_repeated_names(table: Table) -> list[str]:
    """The columns by which named_histories sees that rows are of one run: those of names that repeat, and of steps."""
    columns = []
    for column in table.columns:
        if snake_case(column) in (*RUN_COLUMNS, *MODEL_COLUMNS):
            names = [text_of(value) for value in table.columns[column]]
            if 1 < len(set(names)) < len(names):
                columns.append(column)
    return columns + steps_of(table) if columns else []


def _groups(table: Table, column: str) -> list[Array]:
    """The rows of each name that a column has several times, in the order of their progress."""
    names = np.array([text_of(value) for value in table.columns[column]], object)
    order = np.argsort(progress(table), kind="stable")
    groups = [order[names[order] == name] for name in dict.fromkeys(names) if name]
    return [rows for rows in groups if len(rows) > 1]


def _rises(table: Table, rows: Array, needs_even_steps: bool) -> bool:
    """Whether rows [k], in the order of their progress, are points of one run: of one size, and never at one point."""
    sizes = table.values("n_active")[rows]
    points = progress(table)[rows]
    is_one_run = np.ptp(sizes) <= 1e-6 * sizes.max() and bool(np.all(np.diff(points) > 0))
    return is_one_run and (not needs_even_steps or _are_even(points))


def _are_even(points: Array) -> bool:
    """Whether rising points [k] are evenly spaced, as checkpoints are and budgets are not."""
    steps = np.diff(points)
    return len(points) >= FEWEST_EVEN and bool(steps.min() > 0) and bool(steps.max() <= EVEN * steps.min())


def unnamed_histories(table: Table) -> Iterator[Finding]:
    """Yields a finding where rows of one size look like points of one run.

    Their tokens are evenly spaced, or their last loss falls faster than those before it. The losses of runs that ended
    fall ever more slowly.
    """
    known = known_columns(table)
    if not {"n_active", "n_tokens", "loss"} <= known.keys():
        return
    models = models_of(known)
    even = []
    falling = []
    n_looked_at = 0
    for model in range(models.max() + 1):
        rows = np.flatnonzero(models == model)
        rows = rows[np.argsort(known["n_tokens"][rows], kind="stable")]
        tokens = known["n_tokens"][rows]
        if len(np.unique(tokens)) < len(tokens) or len(tokens) < FEWEST_CURVED:
            continue
        n_looked_at += 1
        if _are_even(tokens):
            even.append(rows)
        if _falls_at_end(np.log(tokens), np.log(known["loss"][rows])):
            falling.append(rows)
    is_falling = len(falling) >= 2 and 2 * len(falling) >= n_looked_at
    if not even and not is_falling:
        yield from _repeated_models(table, models)
        return
    histories = even or falling
    is_in_history = np.zeros(len(table), bool)
    is_in_history[np.concatenate(histories)] = True
    yield finding(
        "losses_fall_at_end" if is_falling else "tokens_even",
        **count_of(table, is_in_history),
        histories=len(histories),
        rows=rows_in_words(table, is_in_history),
        last=f"{table.names.get('n_active', 'n_active')}={LAST}",
    )


def _repeated_models(table: Table, models: Array) -> Iterator[Finding]:
    """Yields a finding where names of models repeat with rising tokens: checkpoints of one run, or several runs.

    Args:
      table: the runs.
      models: labels of equal size and experts, int [n].
    """
    for column in table.columns:
        if snake_case(column) not in MODEL_COLUMNS:
            continue
        groups = [rows for rows in _groups(table, column) if len(rows) >= FEWEST_NAMED]
        groups = [rows for rows in groups if np.ptp(models[rows]) == 0 and np.all(np.diff(progress(table)[rows]) > 0)]
        if groups:
            yield finding(
                "names_repeat",
                count=sum(map(len, groups)),
                runs=len(table),
                names=len(groups),
                column=column,
                last=f"{column}={LAST}",
            )
            return


def rows_above_others(table: Table) -> Iterator[Finding]:
    """Yields a finding where several rows have a higher loss than others of the same size with fewer tokens.

    They may be checkpoints of longer runs, before their decay, beside runs that ended.
    """
    known = known_columns(table)
    if not {"n_active", "n_tokens", "loss"} <= known.keys():
        return
    is_above = np.zeros(len(table), bool)
    models = models_of(known)
    for model in range(models.max() + 1):
        rows = np.flatnonzero(models == model)
        tokens = known["n_tokens"][rows]
        losses = known["loss"][rows]
        for row, n_tokens, loss in zip(rows, tokens, losses, strict=True):
            of_fewer_tokens = losses[tokens < n_tokens * (1 - CLOSE_TOKENS)]
            is_above[row] = len(of_fewer_tokens) > 0 and loss > of_fewer_tokens.min() * (1 + ABOVE)
    if is_above.sum() < FEWEST_ABOVE:
        return
    rows = rows_in_words(table, is_above)
    yield finding("rows_above_others", **count_of(table, is_above), share=ABOVE, rows=rows)


def _falls_at_end(log_tokens: Array, log_loss: Array) -> bool:
    """Whether the last of the losses [k] lies below the line through the later half of those before it."""
    x = log_tokens[len(log_tokens) // 2 - 1 : -1]
    y = log_loss[len(log_loss) // 2 - 1 : -1]
    if len(x) < 3:
        x = log_tokens[-4:-1]
        y = log_loss[-4:-1]
    slope, level = np.polyfit(x - x[-1], y, 1)
    scatter = np.sqrt(np.sum((level + slope * (x - x[-1]) - y) ** 2) / max(len(x) - 2, 1))
    below = level + slope * (log_tokens[-1] - x[-1]) - log_loss[-1]
    return bool(below > max(FALLS, FALLS_SCATTERS * scatter))
