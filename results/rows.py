"""The rows of results/runs.csv: reads them, groups them by model, and measures how losses vary with the seed."""

import collections
import csv
import math
import pathlib
from typing import Any

import numpy as np

from configs.sweeps import bytes_2026_memory

HERE = pathlib.Path(__file__).parent
TABLE = HERE / "runs.csv"
POSITIONS = HERE / "positions.csv"  # losses by the position in a row
Row = dict[str, Any]  # numbers as numbers
Parts = dict[str, list[Row]]  # by the part of the study


def parts_of(table: pathlib.Path) -> Parts:
    """Returns {part of the study: its rows}; a part without rows is an empty list."""
    parts = collections.defaultdict(list)
    for row in read(table):
        parts[row["part"]].append(row)
    return parts


def texts(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of a table as text; [] if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read(path: pathlib.Path) -> list[Row]:
    """Returns the rows of a table, numbers as numbers."""

    def value(text: str) -> float | str:
        try:
            return float(text)
        except ValueError:
            return text

    return [{name: value(text) for name, text in row.items()} for row in texts(path)]


def write(path: pathlib.Path, rows: list[Row]) -> None:
    """Writes a table with the columns of all rows, in the order in which they occur."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def fitted_runs(parts: Parts) -> list[Row]:
    """Returns the runs to which the law is fitted, weighted."""
    return weighted(parts["fit"] + parts["seeds"])


def memory_runs(parts: Parts) -> list[Row]:
    """Returns the runs of equal memory; the part `fit` has one of their models with other seeds."""
    models = {(d_model, n_experts, n_tokens) for d_model, _, _, n_experts, n_tokens, _ in bytes_2026_memory.MODELS}
    return parts["memory"] + [row for row in parts["fit"] if model(row) in models]


def model(row: Row) -> tuple[float, float, float]:
    """Returns (d_model, n_experts, n_tokens), which runs that differ only in their seed share."""
    return row["d_model"], row["n_experts"], row["n_tokens"]


def by_model(rows: list[Row]) -> dict[tuple[float, float, float], list[Row]]:
    """Returns {(d_model, n_experts, n_tokens): rows}, sorted."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[model(row)].append(row)
    return dict(sorted(groups.items()))


def weighted(rows: list[Row]) -> list[Row]:
    """Returns the rows with a column `weight`, so that a model counts once for any number of seeds."""
    groups = by_model(rows)
    return [row | {"weight": 1 / len(groups[model(row)])} for row in rows]


def noise(rows: list[Row], d_model: float | None = None) -> float:
    """Returns the standard deviation of ln(loss) from seed to seed.

    It is taken over all models of width `d_model` that have several seeds; if there are none, over all that have
    several.
    """
    several = [group for group in by_model(rows).values() if len(group) > 1]
    of_width = [group for group in several if group[0]["d_model"] == d_model]
    groups = [[math.log(row["loss"]) for row in group] for group in of_width or several]
    return math.sqrt(sum(np.var(group) * len(group) for group in groups) / sum(len(group) - 1 for group in groups))
