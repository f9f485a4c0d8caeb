"""Shared by the speed benchmarks: arms run in turn, medians, ratios, a table and a JSON file."""

import collections
import contextlib
import datetime
import json
import os
import pathlib
import platform
import statistics
import time

import jax
from absl import flags

from jmoe import cli

ROUNDS = flags.DEFINE_integer("rounds", 11, "Number of rounds, in which each arm runs once.")
JSON = flags.DEFINE_string("json", None, "File to write the figures to as well.")


def in_turn(arms: dict, rounds: int, settle: bool = False) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Times arms in turn.

    A round calls every arm once, so that a busy machine slows all of them alike. CPU seconds depend on it less.

    Args:
        arms: functions by name. Each starts its work and returns arrays to wait for. Each is called once before, to
            compile.
        rounds: number of rounds.
        settle: whether to call an arm untimed before each timed call. Otherwise it pays for memory that a larger arm
            before it released.

    Returns:
        Seconds of each call of each arm by the clock, and CPU seconds of this process (on an accelerator only the
        host's).
    """
    for arm in arms.values():
        jax.block_until_ready(arm())
    wall = {name: [] for name in arms}
    cpu = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            if settle:
                jax.block_until_ready(arm())
            begin = time.perf_counter()
            begin_cpu = time.process_time()
            jax.block_until_ready(arm())
            wall[name].append(time.perf_counter() - begin)
            cpu[name].append(time.process_time() - begin_cpu)
    return wall, cpu


def thread_seconds() -> collections.Counter:
    """Returns the CPU seconds of this process's threads so far, by their names: "main", XLA's "tf_XLAEigen", ...

    Linux alone says them; elsewhere there are none.
    """
    seconds = collections.Counter()
    for thread in pathlib.Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread that has ended
            name = "main" if thread.name == str(os.getpid()) else (thread / "comm").read_text().strip()
            seconds[name] += int((thread / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def ratio(seconds: dict[str, list[float]], arm: str, base: str) -> float:
    """Returns the median over the rounds of the seconds of `arm` over those of `base`."""
    return statistics.median(a / b for a, b in zip(seconds[arm], seconds[base], strict=True))


def machine() -> dict:
    """Returns what the benchmark runs on, and when: device, cores, load beforehand, version, date."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind if device.platform != "cpu" else platform.processor() or platform.machine(),
        "platform": device.platform,
        "n_devices": jax.device_count(),
        "cores": len(cli.cores()),
        "load": round(os.getloadavg()[0], 1),
        "jax_version": jax.__version__,
        "date": datetime.date.today().isoformat(),
    }


def cell(value: object) -> str:
    """Returns a value as a cell of the table."""
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def show(rows: list[dict], notes: str, path: str | None) -> None:
    """Prints rows of equal keys as a table under the machine's line, then the notes; writes all of it to `path`."""
    on = machine()
    print(", ".join(f"{name} {value}" for name, value in on.items()))
    lines = [list(rows[0])] + [[cell(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    print(notes)
    if path:
        with open(path, "w") as file:
            json.dump({"machine": on, "rows": rows, "notes": notes}, file, indent=1)
