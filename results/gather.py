"""Adds the finished runs under runs/bytes_2026 to results/runs.csv, with the part of the study that each belongs to.

    python -m results.gather

Rows of the table stay, so that runs from several machines can be collected in one table.
"""

import pathlib
import subprocess
import sys

from jmoe import cli
from results.rows import TABLE, texts, write

PARTS = ("lr", "seeds", "fit", "tests", "memory")
WORKDIRS = pathlib.Path("runs/bytes_2026")


def main(_: object) -> None:
    """Writes the table, and prints the number of runs in each part."""
    rows = {(row["part"], row["run"]): row for row in texts(TABLE)}
    for part in PARTS:
        workdir = WORKDIRS / part
        if not (workdir / "sweep.json").exists():
            continue
        subprocess.run([sys.executable, "-m", "launch.collect", f"--workdir={workdir}"], capture_output=True)
        for row in texts(workdir / "runs.csv"):
            rows.setdefault((part, row["run"]), {"part": part} | row)
    write(TABLE, [rows[key] for key in sorted(rows, key=lambda key: (PARTS.index(key[0]), key[1]))])
    print(f"{TABLE}: {len(rows)} runs; " + ", ".join(f"{part} {sum(key[0] == part for key in rows)}" for part in PARTS))


if __name__ == "__main__":
    cli.run(main)
