"""What every speed benchmark shares: arms run in turn, medians, ratios, a table and a JSON file."""

import datetime
import json
import os
import platform
import statistics
import time

import jax
from absl import flags

from jmoe import cli

ROUNDS = flags.DEFINE_integer("rounds", 11, "How often the arms take turns.")
JSON = flags.DEFINE_string("json", None, "Also write the figures to this file.")


def in_turn(arms: dict, rounds: int, settle: bool = False) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each call of each arm, and CPU seconds of this process in it (on an accelerator only the host's).

    A round calls every arm once, so that a busy machine slows all of them alike; CPU seconds feel it less. An arm is
    a function that starts its work and returns arrays to wait for; each is called once before, to compile. `settle`
    calls an arm untimed before each timed call; otherwise it pays for memory that a larger arm before it gave back.
    """
    for arm in arms.values():
        jax.block_until_ready(arm())
    wall, cpu = {name: [] for name in arms}, {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            if settle:
                jax.block_until_ready(arm())
            begin, begin_cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(arm())
            wall[name].append(time.perf_counter() - begin)
            cpu[name].append(time.process_time() - begin_cpu)
    return wall, cpu


def ratio(seconds: dict[str, list[float]], arm: str, base: str) -> float:
    """Median over the rounds of arm / base."""
    return statistics.median(a / b for a, b in zip(seconds[arm], seconds[base]))


def machine() -> dict:
    """What the benchmark runs on, and when: device, cores, load beforehand, version, date."""
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


def show(rows: list[dict], notes: str, path: str | None) -> None:
    """Prints rows of equal keys as a table under the machine's line, then the notes; writes all of it to `path`."""
    on = machine()
    print(", ".join(f"{name} {value}" for name, value in on.items()))
    text = [list(rows[0])] + [
        ["-" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*text)]
    for line in text:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))
    print(notes)
    if path:
        with open(path, "w") as file:
            json.dump({"machine": on, "rows": rows, "notes": notes}, file, indent=1)
