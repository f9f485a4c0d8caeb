"""Runs a sweep: python -m launch.sweep --sweep=configs/sweeps/NAME.py --workdir=DIR --backend=local [--dry_run].

Started again it skips the runs that are done and resumes the others. Ends by writing DIR/runs.csv.
"""

import json
import pathlib

from absl import flags

from jmoe import cli, corpus, counts, storage
from launch import collect, local
from launch import jobs as jobs_lib

SWEEP = flags.DEFINE_string("sweep", None, "Sweep file, e.g. configs/sweeps/quickstart.py.")
WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep: jobs, logs, runs.csv.")
BACKEND = flags.DEFINE_enum("backend", "local", ["local"], "Where the jobs run.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print what would run and its FLOPs; start and write nothing.")


def main(_):
    workdir = pathlib.Path(WORKDIR.value).absolute()
    jobs = jobs_lib.load(SWEEP.value, workdir)
    if DRY_RUN.value:
        return describe(jobs)
    storage.make_workdir(WORKDIR.value)
    fingerprints = pin_corpus(jobs, workdir / "sweep.json")
    failed = local.run(jobs, fingerprints)
    n_rows, missing = collect.collect(jobs, workdir / "runs.csv")
    print(f"{workdir / 'runs.csv'}: {n_rows} runs")
    if missing:
        raise cli.UserError(
            f"{len(missing)} of {n_rows + len(missing)} runs are missing from {workdir / 'runs.csv'}: "
            f"{', '.join(missing)}; {'; '.join(failed.values())}"
        )


def describe(jobs) -> None:
    """Prints each job and the totals, in the paper's counts (6 N_active D)."""
    print(f"{'job':24} {'n_active':>12} {'n_total':>13} {'flops':>9}  n_tokens")
    for job in jobs:
        model = job.config.model
        budgets = ", ".join(f"{job.schedule.tokens_at(branch.stop):,}" for branch in job.branches)
        print(f"{job.name:24} {counts.n_active(model):12,} {counts.n_total(model):13,} {job.flops:9.2e}  {budgets}")
    flops = sum(job.flops for job in jobs)
    alone = sum(
        counts.training_flops(job.config.model, job.schedule.tokens_at(b.stop)) for job in jobs for b in job.branches
    )
    print(
        f"{sum(len(job.branches) for job in jobs)} runs in {len(jobs)} jobs, {flops:.3e} FLOPs; "
        f"one by one {alone:.3e}: sharing trunks saves {1 - flops / alone:.0%}"
    )


def pin_corpus(jobs, path: pathlib.Path) -> dict[str, str]:
    """Prepares the corpus once and writes down its fingerprint, so that all runs, later ones too, see the same text."""
    pinned = json.loads(path.read_text())["jobs"] if path.exists() else {}
    prepared = {}
    for job in jobs:
        data = job.config.data.copy_and_resolve_references()
        if job.name in pinned:
            data.fingerprint = pinned[job.name]
        key = (data.path, data.validation_path, data.fingerprint)
        if key not in prepared:
            prepared[key] = corpus.load(data).fingerprint
        pinned[job.name] = prepared[key]
    storage.write_whole(path, json.dumps({"sweep": SWEEP.value, "jobs": pinned}, indent=1))
    return pinned


def run():
    flags.mark_flags_as_required(["sweep", "workdir"])
    cli.run(main)


if __name__ == "__main__":
    run()
