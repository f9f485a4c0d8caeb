"""Tables of runs from Python: files, frames, rows and columns."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fit.data import table as tables
from fit.data.table import Table, shown
from fit.errors import UserError

LONGEST_PATH = 4096  # a longer text is none: somebody gave what is in the file


def is_table(value: object) -> bool:
    """Whether `read` takes this for a table rather than for numbers."""
    rows = isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], dict)
    return rows or isinstance(value, (Table, dict, str, os.PathLike)) or hasattr(value, "columns")


def read(runs: Any, columns: Mapping[str, str] | None = None) -> Table:
    """A table of runs: a .csv, .jsonl or .parquet file, a frame of pandas or polars, a table of pyarrow, a list of
    dictionaries (a run each) or a dictionary of columns; columns: {ours: theirs}, such as {"loss": "val_loss"}. Rows of
    what is no file count from 0. Raises UserError for what cannot be read, or has no such columns."""
    if isinstance(runs, Table):
        return runs
    if isinstance(runs, os.PathLike) or (isinstance(runs, str) and len(runs) <= LONGEST_PATH):
        return tables.read(str(runs), columns)
    if hasattr(runs, "to_pylist"):
        runs = runs.to_pylist()
    if isinstance(runs, dict):
        what, found = "the dictionary", {str(name): list(np.atleast_1d(v)) for name, v in runs.items()}
    elif isinstance(runs, (list, tuple)) and all(isinstance(run, dict) for run in runs):
        keys = dict.fromkeys(name for run in runs for name in run)
        what, found = "the list", {str(name): [run.get(name) for run in runs] for name in keys}
    elif hasattr(runs, "columns"):
        what, found = "the frame", {str(name): runs[name].to_list() for name in runs.columns}
    else:
        raise UserError(
            f"runs: found {shown(runs)} ({type(runs).__name__}), expected the path of a table, a frame, a list of "
            "dictionaries or a dictionary of columns"
        )
    found = {name: [v.item() if isinstance(v, np.generic) else v for v in values] for name, values in found.items()}
    lengths = {name: len(values) for name, values in found.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{what}: columns differ in length: {', '.join(f'{n} {k}' for n, k in lengths.items())}")
    table = Table(what, found, list(range(max(lengths.values(), default=0))), dict(columns or {}))
    for ours in table.names:
        table.column(ours)
    if not len(table):
        raise UserError(f"{what} has no runs")
    return table
