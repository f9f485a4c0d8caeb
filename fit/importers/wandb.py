"""A table of runs as Weights & Biases exports it: CSV or Parquet, a row for each run with its config and last values.

On the project's page choose the table of runs, then Export. Its columns Name and State become run and state, and row
is where a run stands in the file.
"""

from fit.aliases import Json
from fit.data.table import read

OURS = {"Name": "run", "State": "state"}


def rows(paths: list[str]) -> list[Json]:
    found = []
    for path in paths:
        table = read(path)
        names = [OURS.get(name, name) for name in table.columns]
        found += [dict(zip(names, values)) | {"row": row} for row, *values in zip(table.rows, *table.columns.values())]
    return found
