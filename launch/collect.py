"""runs.csv: one row for each finished branch of a sweep, the law's columns first, then what traces the run."""

import csv
import io
import pathlib

from jmoe.storage import write_whole

LAW_COLUMNS = ("n_active", "n_total", "n_tokens", "n_experts", "loss")


def collect(jobs, path: pathlib.Path) -> tuple[int, list[str]]:
    """Writes `path`, whole or not at all; returns the number of rows and the runs that are missing."""
    rows, missing = [], []
    for job in jobs:
        results = job.results()
        for branch in job.branches:
            run = f"{job.folder.parent.name}/{job.name}/{branch.name}"
            if branch.name not in results:
                missing.append(run)
                continue
            result = {name: value for name, value in results[branch.name].items() if name != "record"}
            overrides = " ".join(f"{field}={value!r}" for field, value in job.overrides.items())
            rows.append(result | {"run": run, "config": job.config_file, "overrides": overrides})
    columns = list(LAW_COLUMNS) + [name for name in (rows[0] if rows else {}) if name not in LAW_COLUMNS]
    table = io.StringIO()
    writer = csv.DictWriter(table, columns)
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, table.getvalue())
    return len(rows), missing
