"""How long dry run, status and collect take on a sweep of many jobs, with the start of Python.

python -m benchmarks.many_jobs [--n_jobs=1000] [--json=PATH]

The workdir is what a sweep over models, learning rates and seeds leaves on a local disk: a third of the jobs is done, a
third has trained half, a third waits. Times are medians of three.
"""

import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags
from etils import epath
from ml_collections import ConfigDict

from jmoe.config.schema import record_of
from jmoe.storage.files import sealed
from launch import jobs as jobs_lib
from launch.backend import Sweep

N_JOBS = flags.DEFINE_integer("n_jobs", 1_000, "Number of jobs of the sweep, a multiple of 200.", 200)
REPEATS = 3
SWEEP = """
def get_sweep():
    return "configs/quickstart.py", {{
        "model.d_model": (16, 24, 32, 40, 48),
        "model.n_experts": (1, 2, 4, 8),
        "optimizer.lr_law.constant": tuple(8 + i / 100 for i in range(10)),
        "seed": tuple(range({n_seeds})),
    }}
"""
NOTES = "seconds: by the clock; CPU seconds feel other work on the machine less. Of whole commands."


def main(_: object) -> None:
    """Prints the seconds of each command."""
    with tempfile.TemporaryDirectory() as folder:
        sweep = write_sweep(pathlib.Path(folder), N_JOBS.value)
        start = ["launch.sweep", f"--sweep={sweep}", f"--workdir={folder}", "--dry_run"]
        gke = ["--backend=gke", "--image=i", "--queue=q", "--accelerator=H100:1"]
        commands = {
            "dry run": start,
            "dry run for GKE, manifests included": [*start[:2], "--workdir=gs://b/x", "--dry_run", *gke],
            "status": ["launch.status", f"--workdir={folder}"],
            "collect": ["launch.collect", f"--workdir={folder}"],
        }
        rows = [{"command": name} | measured(command) for name, command in commands.items()]
    measure.show(rows, NOTES, measure.JSON.value)


def measured(command: list[str]) -> dict[str, float]:
    """Returns the median seconds that the command takes, by the clock and of CPU time."""
    wall = []
    cpu = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall.append(time.perf_counter() - start)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"seconds": statistics.median(wall), "CPU seconds": statistics.median(cpu)}


def write_sweep(folder: pathlib.Path, n_jobs: int) -> pathlib.Path:
    """Writes the sweep's file and its half-trained workdir into `folder`; returns the file."""
    file = folder / "sweep.py"
    file.write_text(SWEEP.format(n_seeds=n_jobs // 200))
    jobs, configs = jobs_lib.load(str(file), epath.Path(folder))
    line = json.dumps({"n_tokens": 1_024, "cross_entropy": 3.0}) + "\n"
    for i, job in enumerate(jobs):
        job.code = ["0" * 8]
        job.corpus = "0" * 16
        if i % 3 == 0:
            continue
        config = configs[job.name]
        for segment in job.segments:
            place = folder / "jobs" / job.name / segment
            place.mkdir(parents=True)
            (place / "metrics.jsonl").write_text(line * 100)
            if segment in job.budgets and i % 3 == 1:
                (place / "result.json").write_text(json.dumps(sealed(_result(job, config, segment))))
        (folder / "jobs" / job.name / "lock").write_text("1")
    Sweep(epath.Path(folder), str(file), "local", 1, [], {}, jobs).write()
    return file


def _result(job: jobs_lib.Job, config: ConfigDict, branch: str) -> dict:
    """Returns a result.json of a finished branch."""
    law = {
        "n_active": job.n_active,
        "n_total": job.n_total,
        "n_tokens": job.budgets[branch],
        "n_experts": job.n_experts,
    }
    more = {"d_model": job.d_model, "seed": config.seed, "train_loss": 3.1, "drop_rate": 0.01, "seconds": 60.0}
    versions = {"jmoe_version": "0", "jax_version": "0", "corpus_fingerprint": "0" * 16, "device": "cpu"}
    return law | {"loss": 3.0} | more | versions | {"record": {"config": record_of(config)}}


if __name__ == "__main__":  # tests import this module, and must not get the flags of measure
    from benchmarks import measure

    app.run(main)
