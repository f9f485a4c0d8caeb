"""A chart of Weights & Biases as its panel exports it: one column for each run, one row for each step.

The columns are the x axis ("Step"), then for each run "RUN - METRIC", and "RUN - METRIC__MIN" and "__MAX" of the steps
that a point covers.
"""

import collections
import csv
from collections.abc import Collection, Sequence

from fit.aliases import Json
from fit.errors import UserError
from fit.table.table import Table

MARK = " - "  # between the name of a run and that of a metric
BOUNDS_OF_POINT = ("__MIN", "__MAX")
STEP = "Step"  # the x axis, unless another one was chosen


def is_chart(names: Sequence[str]) -> bool:
    """Whether a table with these columns is a chart rather than a table of runs."""
    others = names[1:]
    has_bounds = any(name + "__MIN" in others and name + "__MAX" in others for name in others)
    return has_bounds or (names[:1] == [STEP] and len(others) > 0 and all(MARK in name for name in others))


def check_header(path: str) -> None:
    """Raises UserError where two runs of a chart in a CSV file have the same name.

    `read` refuses such a file, too, but does not know that the columns are runs.
    """
    if not path.endswith(".csv"):
        return
    try:
        with open(path, newline="", encoding="utf-8-sig") as f:
            names = next(csv.reader(f), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return
    if not is_chart(names):
        return
    for name, count in collections.Counter(names).items():
        run, mark, metric = name.rpartition(MARK)
        if count > 1 and mark:
            raise UserError(
                f"{path}: {count} runs of this chart are called {run} ({metric}): give them different names in Weights "
                "& Biases and export it again, or import wandb:ENTITY/PROJECT, which tells them apart by id"
            )


def rows_of(table: Table) -> list[Json]:
    """A dictionary for each run: `run`, the last value of each metric, and the x axis there, as `step` where it is one.

    The metric of a run without any point is None.
    """
    x_name, *names = table.columns
    xs = table.columns[x_name]
    rows: dict[str, Json] = {}
    for name in names:
        if _is_bound(name, names):
            continue
        run, _, metric = name.rpartition(MARK)
        row = rows.setdefault(run, {"run": run})
        row[metric] = None
        values = table.columns[name]
        filled = [i for i, value in enumerate(values) if value not in ("", None)]
        if filled:
            row[metric] = values[filled[-1]]
            row["step" if x_name == STEP else x_name] = xs[filled[-1]]
    return list(rows.values())


def _is_bound(name: str, names: Collection[str]) -> bool:
    """Whether a column holds the least or largest values of another one."""
    return any(name.endswith(ending) and name.removesuffix(ending) in names for ending in BOUNDS_OF_POINT)
