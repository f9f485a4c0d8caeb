"""Trains the runs of results/third on one device, in one process, until its seconds are over:

    python -m benchmarks.accelerator.study --folder=DIR --json=PATH [--seconds=480] [--toy]

Runs are in the order of results/third/cells.py. jmoe.train trains a trunk up to the run at hand, and continues it when
the trunk's next run comes. While one model trains, other cores compile the steps of the next ones into the compilation
cache. After each run PATH has all results so far. Started again with the same PATH, it trains the runs that PATH lacks,
from the checkpoints of DIR if they still exist.
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
from jmoe import cli
from jmoe.config import counts
from jmoe.cost import chips, memory
from jmoe.errors import Interrupted
from jmoe.train import keep_compiled, train
from results.third import cells as study
from results.third.cells import Cell

FOLDER = flags.DEFINE_string("folder", None, "Folder of the runs' workdirs.", required=True)
SECONDS = flags.DEFINE_float("seconds", 480, "Seconds after which nothing more is trained.")
TOY = flags.DEFINE_bool("toy", False, "A small text and two small runs, to try this on a CPU.")
TEXT = flags.DEFINE_string("text", study.bytes_2026_tuned.get_config().data.path, "Parquet file of results.text.")
AHEAD = 6  # runs from the present one on whose steps are compiled
LONGEST_COMPILATION = 60  # seconds; one that runs at the end cannot be stopped, and the program waits for it
TOY_TOKENS = (16_384, 32_768)


def main(_: object) -> None:
    """Trains the runs that have no result yet, and writes the results."""
    assert measure.JSON.value
    deadline = time.monotonic() + SECONDS.value
    path = pathlib.Path(measure.JSON.value)
    rows_before = json.loads(path.read_text())["rows"] if path.exists() else []
    keep_compiled()
    cells = toy_cells() if TOY.value else study.cells()
    rows = {row["cell"]: row for row in rows_before}
    todo = [cell for cell in cells if cell.name not in rows]
    with concurrent.futures.ThreadPoolExecutor(max(1, len(cli.cores()) - 2)) as pool:
        compilations: dict[str, list[concurrent.futures.Future]] = {}  # by trunk
        for i, cell in enumerate(todo):
            ahead = todo[i : i + AHEAD] if deadline - time.monotonic() > LONGEST_COMPILATION else []
            for later in ahead:
                if later.trunk.name not in compilations:
                    configs = one_batch_each(config_of(later, todo))
                    compilations[later.trunk.name] = [pool.submit(compile_step, config) for config in configs]
            if time.monotonic() > deadline or cell.trunk.name not in compilations:
                break
            row = train_cell(cell, todo, compilations[cell.trunk.name], deadline)
            if row is None:
                break
            rows[cell.name] = row
            write(path, cells, rows)
        pool.shutdown(wait=False, cancel_futures=True)
    write(path, cells, rows)
    print(f"{len(rows)} of {len(cells)} runs are done")


def toy_cells() -> list[Cell]:
    """One model with two runs."""
    return [Cell(study.Trunk(24, 4, 2), n_tokens) for n_tokens in TOY_TOKENS]


def config_of(cell: Cell, todo: list[Cell]) -> ConfigDict:
    """The config of a run's trunk with all its branches that are not done."""
    n_tokens = tuple(sorted(other.n_tokens for other in todo if other.trunk == cell.trunk))
    config = cell.trunk.config(n_tokens)
    if TOY.value:
        config.batch_tokens = ((0, 1_024), (TOY_TOKENS[0], 2_048))
        config.model.group_tokens = 1_024
        config.optimizer.warmup_tokens = 4_096
        config.data.validation_tokens = 8_192
        config.data.path = ""
        config.data.fingerprint = ""
    else:
        config.data.path = TEXT.value
    return config


def one_batch_each(config: ConfigDict) -> list[ConfigDict]:
    """A config for each size of batch that the schedule reaches: each has a step of its own to compile."""
    configs = []
    for first_token, batch_tokens in config.batch_tokens:
        if first_token < config.n_tokens[-1]:
            of_batch = config.copy_and_resolve_references()
            of_batch.batch_tokens = ((0, batch_tokens),)
            configs.append(of_batch)
    return configs


def compile_step(config: ConfigDict) -> None:
    """Compiles the step of a config into the compilation cache."""
    memory.compile_step(config, jax.devices()[:1])


def train_cell(
    cell: Cell, todo: list[Cell], compilations: list[concurrent.futures.Future], deadline: float
) -> dict[str, Any] | None:
    """Trains a run.

    Args:
      cell: The run.
      todo: All runs that had no result at the start.
      compilations: Those of the trunk's steps, for which this waits.
      deadline: When to stop, by time.monotonic().

    Returns:
      The run's row; None if the deadline came first.
    """
    begin = time.monotonic()
    for compilation in compilations:
        if compilation.exception():
            print(f"{cell.name}: its step was not compiled beforehand: {compilation.exception()}", flush=True)
    waited = time.monotonic() - begin
    config = config_of(cell, todo)
    workdir = pathlib.Path(FOLDER.value, f"{cell.trunk.name}-from-{config.n_tokens[0]}")
    result = workdir / f"branch-{cell.n_tokens}" / "result.json"

    def stop_signal() -> int:
        is_over = time.monotonic() > deadline or result.exists()
        return signal.SIGTERM if is_over else 0

    try:
        train(config, workdir, stop_signal)
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


def write(path: pathlib.Path, cells: list[Cell], rows: dict[str, dict]) -> None:
    """Writes all rows, in the order of the study, and whether all runs are done."""
    done = [rows[cell.name] for cell in cells if cell.name in rows]
    result = {"machine": measure.machine(), "rows": done, "complete": len(done) == len(cells)}
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(result, indent=1))
    scratch.replace(path)


if __name__ == "__main__":
    cli.run(main)
