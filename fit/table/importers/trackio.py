"""Trackio's projects: its SQLite files (~/.cache/huggingface/trackio/PROJECT.db), or the Parquet files that it makes of
them for a Space (PROJECT.parquet beside PROJECT_configs.parquet).

A project has a row for each call of trackio.log, with the metrics of this call, and one for the config of each run.
"""

import collections
import contextlib
import json
import os
import pathlib
import sqlite3
from collections.abc import Iterator, Sequence

from fit.aliases import Json
from fit.table.importers.nested import flat
from fit.table.table import read

LOG_COLUMNS = {"run_name", "step", "timestamp"}  # of each row of metrics
# Columns of trackio itself, which are neither metrics nor settings.
OWN_COLUMNS = {"id", "run_id", "run_name", "timestamp", "step", "log_id", "space_id", "created_at"}
SQLITE = b"SQLite format 3\0"  # the first bytes of every SQLite file


def is_project(path: str) -> bool:
    """Whether a .db or .parquet file holds the metrics of a project."""
    if path.endswith(".parquet"):
        import pyarrow.parquet

        with contextlib.suppress(pyarrow.ArrowException):
            return set(pyarrow.parquet.read_schema(path).names) >= LOG_COLUMNS
        return False
    with open(path, "rb") as f:
        if f.read(len(SQLITE)) != SQLITE:
            return False
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_connection(path)) as connection:
        return {"metrics", "configs"} <= set(_names_of_tables(connection))
    return False


def trackio(paths: list[str]) -> list[Json]:
    """The runs of projects: `run` and `project`, the config, the last value of each metric, and `step`, the last one.

    Nested settings are named like optimizer.lr. A project that has both kinds of file is read from its .db. Runs of one
    name get trackio's id behind it.
    """
    databases = {os.path.splitext(path)[0] for path in paths if path.endswith(".db")}
    rows = []
    for path in paths:
        stem, ending = os.path.splitext(path)
        if ending == ".parquet" and stem in databases:
            continue
        logs, configs = _of_parquet(path) if ending == ".parquet" else _of_database(path)
        rows += _runs(os.path.basename(stem), logs, configs)
    return rows


def _runs(project: str, logs: Sequence[Json], configs: Sequence[Json]) -> list[Json]:
    """A dictionary for each run of a project.

    Args:
      project: its name.
      logs: the columns of each row of metrics, with the metrics as `values`.
      configs: those of each config, with its settings as `values`.
    """
    runs: dict[str, Json] = {}
    for log in (*configs, *sorted(logs, key=lambda log: (log["step"], log.get("id", 0)))):
        key = log.get("run_id") or log["run_name"]
        row = runs.setdefault(key, {"run": log["run_name"], "project": project})
        row |= {name: value for name, value in flat(log["values"], ".").items() if value is not None}
        if "step" in log:
            row["step"] = log["step"]
    n_of_name = collections.Counter(row["run"] for row in runs.values())
    for key, row in runs.items():
        if n_of_name[row["run"]] > 1:
            row["run"] = f"{row['run']} ({key})"
    return list(runs.values())


def _of_database(path: str) -> tuple[list[Json], list[Json]]:
    """(the rows of metrics, those of configs) of an SQLite file, with their JSON as `values`."""
    with contextlib.closing(_connection(path)) as connection:
        logs = [row | {"values": json.loads(row.pop("metrics"))} for row in _rows_of(connection, "metrics")]
        configs = [
            row | {"values": _settings(json.loads(row.pop("config")))} for row in _rows_of(connection, "configs")
        ]
    return logs, configs


def _of_parquet(path: str) -> tuple[list[Json], list[Json]]:
    """(the rows of metrics, those of configs) of a Parquet file and of the file of configs beside it."""
    logs = list(_rows_of_parquet(path))
    path_of_configs = path.removesuffix(".parquet") + "_configs.parquet"
    configs = list(_rows_of_parquet(path_of_configs)) if os.path.exists(path_of_configs) else []
    return logs, configs


def _rows_of_parquet(path: str) -> Iterator[Json]:
    """The rows of a Parquet file, with all columns that are not trackio's as `values`."""
    columns = read(path).columns
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        logged = {name: value for name, value in row.items() if name not in OWN_COLUMNS}
        yield {name: row[name] for name in row.keys() & OWN_COLUMNS} | {"values": _settings(logged)}


def _settings(values: Json) -> Json:
    """The values that the user gave: those of trackio itself begin with an underscore (_Username, _Created)."""
    return {name: value for name, value in values.items() if not name.startswith("_")}


def _connection(path: str) -> sqlite3.Connection:
    """A connection that cannot write."""
    return sqlite3.connect(f"{pathlib.Path(path).absolute().as_uri()}?mode=ro", uri=True)


def _names_of_tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def _rows_of(connection: sqlite3.Connection, table: str) -> list[Json]:
    """The rows of a table of an SQLite file as dictionaries. Versions of trackio differ in their columns."""
    cursor = connection.execute(f"SELECT * FROM {table}")  # noqa: S608  the name is one of ours
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, values, strict=True)) for values in cursor]
