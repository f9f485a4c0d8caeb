"""The rows of results/runs.csv: read, grouped by model, and what seeds make of their losses."""

import collections
import csv
import math
import pathlib

import numpy as np

from configs.sweeps import bytes_2026_memory

HERE = pathlib.Path(__file__).parent
TABLE = HERE / "runs.csv"
POSITIONS = HERE / "positions.csv"  # losses by the position in a row


def parts_of(table) -> dict:
    """{part of the study: its rows}; a part that has none is an empty list."""
    parts = collections.defaultdict(list)
    for row in read(table):
        parts[row["part"]].append(row)
    return parts


def texts(path) -> list[dict]:
    """The rows of a table as they stand there; none where there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read(path) -> list[dict]:
    """The rows of a table, numbers as numbers."""

    def value(text):
        try:
            return float(text)
        except ValueError:
            return text

    return [{name: value(text) for name, text in row.items()} for row in texts(path)]


def write(path, rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(
            file, list(dict.fromkeys(name for row in rows for name in row)), restval="", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)


def fitted_runs(parts) -> list[dict]:
    return weighted(parts["fit"] + parts["seeds"])


def memory_runs(parts) -> list[dict]:
    """The runs of equal memory; the fit has trained one of their models with other seeds."""
    models = {(d_model, n_experts, n_tokens) for d_model, _, _, n_experts, n_tokens, _ in bytes_2026_memory.MODELS}
    return parts["memory"] + [row for row in parts["fit"] if model(row) in models]


def model(row) -> tuple:
    """What runs that differ only in their seed have in common."""
    return row["d_model"], row["n_experts"], row["n_tokens"]


def by_model(rows) -> dict:
    """{(d_model, n_experts, n_tokens): rows}, sorted."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[model(row)].append(row)
    return dict(sorted(groups.items()))


def weighted(rows) -> list[dict]:
    """The rows with a column `weight`, so that a model counts once however many seeds it was trained with."""
    groups = by_model(rows)
    return [row | {"weight": 1 / len(groups[model(row)])} for row in rows]


def noise(rows, d_model=None) -> float:
    """The standard deviation of ln(loss) from seed to seed, over all models of width `d_model` that have several
    seeds; if there are none, over all models that have several."""
    several = [group for group in by_model(rows).values() if len(group) > 1]
    own = [group for group in several if group[0]["d_model"] == d_model]
    groups = [[math.log(row["loss"]) for row in group] for group in own or several]
    return math.sqrt(sum(np.var(group) * len(group) for group in groups) / sum(len(group) - 1 for group in groups))
