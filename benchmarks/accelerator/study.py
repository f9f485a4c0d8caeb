"""Trains the runs of results/third on one device, in one process, until its seconds are over:

    python -m benchmarks.accelerator.study --folder=DIR --json=PATH [--seconds=480] [--toy]

Runs are in the order of results/third/cells.py. jmoe.train trains a trunk up to the run at hand, and continues it when
the trunk's next run comes. While one model trains, other cores load the steps of the next ones from the files of
study_executables, or compile them. After the first run a loaded step is timed beside the same one compiled here; if it
takes 10% longer, all are compiled. After each run PATH has all results so far. Started again with the same PATH, it
trains the runs that PATH lacks, from the checkpoints of DIR if they still exist.
"""

import concurrent.futures
import json
import pathlib
import shutil
import signal
import time
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict

from benchmarks import measure
from benchmarks.accelerator import study_configs, study_executables
from benchmarks.accelerator.study_steps import Steps
from jmoe import cli
from jmoe.config import counts
from jmoe.cost import chips
from jmoe.errors import Interrupted
from jmoe.train import keep_compiled, train
from results.third.cells import Cell

FOLDER = flags.DEFINE_string("folder", None, "Folder of the runs' workdirs.", required=True)
SECONDS = flags.DEFINE_float("seconds", 480, "Seconds after which nothing more is trained.")
TOY = flags.DEFINE_bool("toy", False, "A small text and two small runs, to try this on a CPU.")
TEXT = flags.DEFINE_string("text", study_configs.TEXT, "Parquet file of results.text.")
EXECUTABLES = flags.DEFINE_string("executables", str(study_executables.FOLDER), "Folder of study_executables.")
AHEAD = 6  # runs from the present one on whose steps are loaded or compiled
LONGEST_COMPILATION = 60  # seconds; one that runs at the end cannot be stopped, and the program waits for it


def main(_: object) -> None:
    """Trains the runs that have no result yet, and writes the results."""
    assert measure.JSON.value
    deadline = time.monotonic() + SECONDS.value
    path = pathlib.Path(measure.JSON.value)
    before = json.loads(path.read_text()) if path.exists() else {"rows": []}
    keep_compiled()
    cells = study_configs.cells(TOY.value)
    rows = {row["cell"]: row for row in before["rows"]}
    todo = [cell for cell in cells if cell.name not in rows]
    with concurrent.futures.ThreadPoolExecutor(max(1, len(cli.cores()) - 2)) as pool:
        steps = Steps(pool, pathlib.Path(EXECUTABLES.value))
        for i, cell in enumerate(todo):
            if deadline - time.monotonic() > LONGEST_COMPILATION:
                ahead = todo[i : i + AHEAD]
                if i == 0:
                    steps.try_one(configs_of_steps(max(ahead, key=n_experts_of), todo)[-1])
                if i == 1:
                    steps.compare()
                for later in ahead:
                    steps.begin(later.trunk.name, configs_of_steps(later, todo))
            if time.monotonic() > deadline or not steps.has_begun(cell.trunk.name):
                break
            row = train_cell(cell, todo, steps, deadline)
            if row is None:
                break
            rows[cell.name] = row
            write(path, cells, rows, steps.comparison or before.get("loaded step"))
        pool.shutdown(wait=False, cancel_futures=True)
    write(path, cells, rows, steps.comparison or before.get("loaded step"))
    print(f"{len(rows)} of {len(cells)} runs are done")


def n_experts_of(cell: Cell) -> int:
    """The number of experts of a run."""
    return cell.trunk.n_experts


def config_of(cell: Cell, todo: list[Cell]) -> ConfigDict:
    """The config of a run's trunk with all its branches that are not done."""
    return study_configs.config_of(cell, todo, TOY.value, TEXT.value)


def configs_of_steps(cell: Cell, todo: list[Cell]) -> list[ConfigDict]:
    """The configs of the steps that a run's trunk needs compiled."""
    return study_configs.one_batch_each(config_of(cell, todo))


def train_cell(cell: Cell, todo: list[Cell], steps: Steps, deadline: float) -> dict[str, Any] | None:
    """Trains a run.

    Args:
      cell: The run.
      todo: All runs that had no result at the start.
      steps: All compiled steps; this waits for those of the run.
      deadline: When to stop, by time.monotonic().

    Returns:
      The run's row; None if the deadline came first.
    """
    begin = time.monotonic()
    compiled_steps = steps.of(cell.trunk.name)
    waited = time.monotonic() - begin
    config = config_of(cell, todo)
    workdir = pathlib.Path(FOLDER.value, f"{cell.trunk.name}-from-{config.n_tokens[0]}")
    result = workdir / f"branch-{cell.n_tokens}" / "result.json"

    def stop_signal() -> int:
        is_over = time.monotonic() > deadline or result.exists()
        return signal.SIGTERM if is_over else 0

    try:
        train(config, workdir, stop_signal, compiled_steps)
    except Interrupted:
        if not result.exists():
            return None
    shutil.rmtree(result.parent / "checkpoints", ignore_errors=True)  # nothing resumes from a finished run
    row = json.loads(result.read_text())
    seconds = time.monotonic() - begin
    chip = chips.of_device(jax.devices()[0])
    print(f"{cell.name}: loss {row['loss']:.4f}, {seconds:.0f} s, of which {waited:.0f} for compilation", flush=True)
    flops = sum(counts.matmul_flops_per_token(config.model, config.data.seq_len).values())
    rate = row.get("tokens_per_second")
    return {
        "cell": cell.name,
        "all_seconds": round(seconds, 2),
        "compile_seconds": round(waited, 2),
        "mfu": flops * rate / chip.flops if chip and rate else None,
    } | row


def write(path: pathlib.Path, cells: list[Cell], rows: dict[str, dict], loaded_step: dict | None) -> None:
    """Writes all rows, in the order of the study, whether all runs are done, and how a loaded step compared."""
    done = [rows[cell.name] for cell in cells if cell.name in rows]
    result = {"machine": measure.machine(), "rows": done, "complete": len(done) == len(cells)}
    if loaded_step:
        result["loaded step"] = loaded_step
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(result, indent=1))
    scratch.replace(path)


if __name__ == "__main__":
    cli.run(main)
