"""Makes workdirs of sweeps as trainers leave them, but without training, to test what is read, kept and refused."""

import concurrent.futures
import csv
import json

from etils import epath

from jmoe.config.schema import record_of
from jmoe.storage import files as storage
from jmoe.version import code_version
from launch import jobs as jobs_lib
from launch import sweepfile
from launch.backend import Sweep

OLD = "0ld0c0de-jax0.9"
CORPUS = "c" * 16


def write_sweep(folder, config, varied) -> str:
    """A sweep file over `config`; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sweep.py"
    path.write_text(f"def get_sweep():\n    return {str(config)!r}, {varied!r}\n")
    return str(path)


def begin(path: str, workdir, backend: str = "local", code: str = "", corpus: str = CORPUS, **options) -> Sweep:
    """Writes sweep.json and each job's job.json for the sweep file at `path`; trains nothing."""
    jobs, _ = jobs_lib.load(path, epath.Path(workdir))
    code = code or code_version()
    for job in jobs:
        job.code = [code]
        job.corpus = corpus
        sweepfile.write_job(job)
    sweep = Sweep(epath.Path(workdir), path, backend, 1, [], {"sbatch": []} | options, jobs)
    sweep.write()
    return sweep


def train(job, share: float = 1.0, **fields) -> None:
    """Writes metrics for `share` of each segment's tokens and, if that is all, results with `fields` added."""
    config = record_of(jobs_lib.config_of(job))
    for segment, (first, last) in job.segments.items():
        folder = job.folder / segment
        folder.mkdir(parents=True, exist_ok=True)
        line = {"n_tokens": first + int(share * (last - first)), "cross_entropy": 3.5}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        if segment not in job.budgets or share < 1:
            continue
        result = {
            "n_active": job.n_active,
            "n_total": job.n_total,
            "n_tokens": last,
            "n_experts": job.n_experts,
            "loss": 3.25,
            "d_model": job.d_model,
            "corpus_fingerprint": job.corpus,
            "jmoe_version": "1",
            "jax_version": "1",
            **fields,
            "record": {"config": config},
        }
        storage.write_whole(folder / "result.json", json.dumps(storage.sealed(result)))


def rows(workdir) -> list[dict[str, str]]:
    """Those of runs.csv."""
    with (epath.Path(workdir) / "runs.csv").open() as file:
        return list(csv.DictReader(file))


def steps(workdir) -> int:
    """Steps logged so far, those that a kill took back included."""
    return sum(path.read_bytes().count(b"\n") for path in workdir.glob("jobs/*/*/metrics.jsonl"))


def edit(sweep: Sweep, change) -> None:
    """Has `change` alter the fields of sweep.json, as somebody else may."""
    path = sweep.workdir / "sweep.json"
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def started_twice_at_once(run, *start) -> list[str]:
    """What two starts at once print, sorted: one submits, the other waits for it."""
    with concurrent.futures.ThreadPoolExecutor(2) as both:
        started = list(both.map(lambda _: run(*start), range(2)))
    assert [done.returncode for done in started] == [0, 0], started
    return sorted(done.stdout for done in started)
