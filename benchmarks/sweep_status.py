"""How long launch.status takes on a sweep of 1,000 jobs, Python's start included: python -m benchmarks.sweep_status.

2 shared cores, otherwise idle: 0.8 s (a third of the jobs done, a third under way); the issue is not to import jax.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from etils import epath

from launch import jobs as jobs_lib
from launch import sweepfile

N_JOBS, REPEATS = 1_000, 5


def main():
    with tempfile.TemporaryDirectory() as folder:
        write_sweep(pathlib.Path(folder))
        seconds = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "launch.status", f"--workdir={folder}"], check=True, capture_output=True
            )
            seconds.append(time.perf_counter() - start)
    print(json.dumps({"n_jobs": N_JOBS, "median_seconds": statistics.median(seconds), "worst_seconds": max(seconds)}))


def write_sweep(folder: pathlib.Path) -> None:
    """A workdir as a sweep over seeds leaves it halfway."""
    sweep = folder / "sweep.py"
    sweep.write_text(f"def get_sweep():\n    return 'configs/quickstart.py', {{'seed': tuple(range({N_JOBS}))}}\n")
    jobs, _ = jobs_lib.load(str(sweep), epath.Path(folder))
    line = json.dumps({"n_tokens": 1_024, "cross_entropy": 3.0}) + "\n"
    for i, job in enumerate(jobs):
        job.code, job.corpus = ["0" * 8], "0" * 16
        if i % 3 == 0:
            continue
        for segment in job.segments:
            (job.folder / segment).mkdir(parents=True)
            (job.folder / segment / "metrics.jsonl").write_text(line * 100)
            if segment in job.budgets and i % 3 == 1:
                (job.folder / segment / "result.json").write_text('{"record": {}}')
        (job.folder / "lock").write_text("1")
    sweepfile.Sweep(epath.Path(folder), str(sweep), "local", 1, [], {}, jobs).write()


if __name__ == "__main__":
    main()
