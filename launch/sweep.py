"""Runs a sweep: python -m launch.sweep --sweep=configs/sweeps/NAME.py --workdir=DIR --backend=local|slurm|gke.

Started again, it skips the runs that are done, leaves alone what is queued or running, and resumes the rest. The local
backend works until all is done and writes DIR/runs.csv; slurm and gke submit the jobs and return. After that, use
launch.status, launch.logs, launch.cancel and launch.collect, each with --workdir=DIR.

--config.FIELD=VALUE sets a field of the config in every job, as if the sweep file said it; give it at each start. A
field that the sweep file sets itself is refused.

One launch.sweep at a time owns a workdir (jmoe/storage/ownership.py): it takes DIR/sweep.lock before it changes
anything there. With the local backend it keeps the lock until it ends, with slurm or gke while it submits.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import argparse
import contextlib
import os
import sys

from absl import flags
from ml_collections import ConfigDict

from jmoe import cli
from jmoe.config import counts
from jmoe.errors import Unavailable, UserError
from jmoe.storage import files as storage
from jmoe.storage import ownership
from launch import accelerators, collect, hooks, preflight, sweepfile, trust, varied
from launch import backend as backend_lib
from launch.backend import SECONDS_TO_SUBMIT, Sweep
from launch.jobs import MIXABLE, Job, files_of, load

SWEEP = flags.DEFINE_string("sweep", None, "Sweep file, e.g. configs/sweeps/quickstart.py.")
WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep: jobs, logs, runs.csv; a folder or gs://...")
BACKEND = flags.DEFINE_string(
    "backend", "local", f"Where the jobs run: {', '.join(backend_lib.BACKENDS)}, or a Python file with a backend."
)
RETRIES = flags.DEFINE_integer(
    "retries", 1, "How many times a job that died is tried again; the count restarts with progress.", lower_bound=0
)
STALL_MINUTES = flags.DEFINE_float(
    "stall_minutes", 60.0, "Minutes without a sign of life until a trainer is stopped and tried again; 0: never.", 0
)
WORKERS = flags.DEFINE_integer("workers", None, "Most trainers, or scheduler tasks, to run at once.", 1)
at_the_end = "Command to run once every job is done or has failed for good. It is split into words as in a shell, but "
at_the_end += "run without one; JMOE_WORKDIR and JMOE_RUNS_MISSING are set in its environment."
flags.DEFINE_string("on_done", None, at_the_end)
for_each = "Command to run, likewise, for each job that failed for good; JMOE_WORKDIR, JMOE_JOB and JMOE_CAUSE are set."
flags.DEFINE_string("on_failure", None, for_each)
MIX = flags.DEFINE_multi_enum("mix", [], MIXABLE, "Let the sweep mix versions of this; it is remembered.")
DRY_RUN = flags.DEFINE_bool(
    "dry_run",
    False,
    "Print what would run, and what it costs; start and write nothing. Exit code 2 where it would be refused.",
)
TEXT_ELSEWHERE = flags.DEFINE_bool(
    "text_elsewhere", False, "With --dry_run: leave the text unchecked, because it is on another machine."
)
ACCELERATOR = flags.DEFINE_string(
    "accelerator", None, f"What a job runs on, such as v5e:4x4 or H100:2x8; kinds: {', '.join(accelerators.GKE)}."
)
MFU = flags.DEFINE_float("mfu", 0.4, "Model FLOPs utilisation assumed for the costs.", 1e-6, 1)
DOLLARS = flags.DEFINE_float(
    "dollars_per_hour", None, "Hourly price of one accelerator (chip), for --dry_run and launch.status.", 0
)


def main(config_flags: list[str]) -> None:
    file, folder = SWEEP.value or "", WORKDIR.value or ""  # both are required
    workdir = storage.absolute(folder)
    engine = backend_lib.backend(BACKEND.value)
    jobs, configs = load(file, workdir, config_flags)
    own = {"workers": WORKERS.value, "dollars_per_hour": DOLLARS.value}
    called = engine.ON_THIS_MACHINE or engine.CALLS_ON_DONE
    left = f": with --backend={BACKEND.value} nothing of the sweep is left to call it; give it to "
    left += "launch.status --watch=60, which waits for the end"
    options = engine.options() | own | hooks.given("" if called else left)
    sweep = Sweep(workdir, file, BACKEND.value, RETRIES.value, MIX.value, options, jobs, STALL_MINUTES.value)
    engine.check(sweep)
    n_devices, memory = engine.devices(sweep, ACCELERATOR.value)
    sweep.options["n_chips"] = accelerators.n_chips(ACCELERATOR.value, n_devices)  # of a job, for launch.status
    n_slices = accelerators.tpu_slices(ACCELERATOR.value, sweep.options.get("n_slices", 1))
    impossible = preflight.places(sweep, configs, n_devices, memory, n_slices)
    if DRY_RUN.value:
        dry_run(sweep, configs, impossible, check_text=not TEXT_ELSEWHERE.value)
        return
    if TEXT_ELSEWHERE.value:
        raise UserError("--text_elsewhere is for --dry_run: a start checks the text")
    preflight.check(impossible)
    engine.ready(sweep)
    storage.make_workdir(folder)
    wait = 0.0 if engine.ON_THIS_MACHINE else SECONDS_TO_SUBMIT
    try:
        with ownership.hold(sweep.lock, f"launch.sweep --backend={sweep.backend}", wait):
            print(start(sweep, configs))
    except ownership.Taken as error:
        raise UserError(
            f"another launch.sweep works on {os.fspath(workdir)}: {error.owner}; launch.status shows its progress, "
            "launch.cancel stops it"
        ) from None


def start(sweep: Sweep, configs: dict[str, ConfigDict]) -> str:
    """Starts or submits what is not done, and returns a report; the caller owns the workdir. UserError where the sweep
    cannot be started, or runs are missing at its end; Interrupted where a signal stopped it."""
    files = files_of(sweep.workdir)
    sweepfile.resume(sweep, files)
    preflight.tokens(sweep, configs, preflight.pin_corpus(sweep, configs), files)
    if not sweep.engine.ON_THIS_MACHINE:
        return f"{_submit(sweep)}\npython -m launch.status --workdir={os.fspath(sweep.workdir)}"
    sweep.write()
    if report := sweep.engine.submit(sweep):
        print(report)
    report, n_missing = collect.write(sweep)
    hooks.run("on_done", sweep.options.get("on_done"), sweep.workdir, JMOE_RUNS_MISSING=n_missing)
    if n_missing:
        raise UserError(f"{report}\nThe same command tries them again.")
    return report


def _submit(sweep: Sweep) -> str:
    """Writes sweep.json, which submitted jobs read, and submits; undoes the writing if the backend takes no job."""
    before_states = sweep.engine.states(sweep)  # a backend that cannot be asked raises before anything is written
    path = sweep.workdir / "sweep.json"
    before = path.read_text() if path.exists() else None
    was_own = before is not None and trust.is_own(sweep.workdir, before)
    sweep.write()
    try:
        return sweep.engine.submit(sweep)
    except (UserError, Unavailable):
        with contextlib.suppress(UserError, Unavailable):  # if it cannot be asked any more, it may have taken some jobs
            if not before_states and not sweep.engine.states(sweep):
                path.unlink() if before is None else storage.write_whole(path, before)
                if before is not None and was_own:
                    trust.keep(sweep.workdir, before)
        raise


def dry_run(sweep: Sweep, configs: dict[str, ConfigDict], impossible: list[str], check_text: bool) -> None:
    """Prints what would run and what it costs, as comments before the backend's preview where it has one.

    impossible: what preflight.places says. UserError where a start would be refused: for that, for the text unless
    check_text is False, or for what is in the workdir already (not on gs://, which is not asked).
    """
    lines = describe(sweep.jobs)
    if manifests := sweep.engine.preview(sweep):
        lines = [f"# {line}" for line in lines] + [manifests]
    print("\n".join(lines))
    if check_text:
        reasons, notes = preflight.text(sweep, configs)
        for note in notes:
            print(note, file=sys.stderr)
        impossible = [*impossible, *reasons]
    try:
        preflight.check(impossible)
        if not storage.is_remote(os.fspath(sweep.workdir)) and (sweep.workdir / "sweep.json").exists():
            sweepfile.read(sweep.workdir)  # a damaged one would be moved aside
            sweepfile.resume(sweep, files_of(sweep.workdir))
    except UserError as error:
        raise UserError(f"this would be refused: {error}") from None


def describe(jobs: list[Job]) -> list[str]:
    """Lines on each job and on all, in the paper's counts (6 N_active D), with hours and price where asked for."""
    cost = lambda flops: ""
    if ACCELERATOR.value:
        kind = accelerators.chip(ACCELERATOR.value)
        peak = accelerators.peak_flops(kind)
        hours = lambda flops: flops / (peak * MFU.value * 3600)
        price = lambda flops: f", ${hours(flops) * DOLLARS.value:,.2f}" if DOLLARS.value is not None else ""
        cost = lambda flops: f"  {hours(flops):,.2f} {kind}-hours{price(flops)}"
    elif DOLLARS.value is not None:
        raise UserError("--dollars_per_hour needs --accelerator: the price is that of one of them")
    lines = [f"{'job':24} {'n_active':>13} {'n_total':>14} {'flops':>9}  n_tokens"]
    for job in jobs:
        budgets = ", ".join(f"{budget:,}" for budget in job.budgets.values())
        lines.append(f"{job.name:24} {job.n_active:13,} {job.n_total:14,} {job.flops:9.2e}  {budgets}{cost(job.flops)}")
    flops, runs = sum(job.flops for job in jobs), [(job, branch) for job in jobs for branch in job.budgets]
    alone = sum(counts.training_flops(job.n_active, job.segments[branch][1]) for job, branch in runs)
    saved = f"one by one {alone:.3e}: sharing trunks saves {1 - flops / alone:.0%}"
    lines.append(f"{len(runs)} runs in {len(jobs)} jobs, {flops:.3e} FLOPs; {saved}")
    if ACCELERATOR.value:
        lines.append(f"at {MFU.value:.0%} of {peak:.3g} FLOP/s:{cost(flops)}")
    return lines


def run() -> None:
    chosen = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chosen.add_argument("--backend", "-backend", nargs="?")
    for backend in (*backend_lib.BACKENDS, chosen.parse_known_args()[0].backend or "local"):
        with contextlib.suppress(UserError):  # main reports it
            flags.adopt_module_key_flags(backend_lib.module(backend))
    flags.mark_flags_as_required(["sweep", "workdir"])
    sys.argv[1:], config_flags = varied.split(sys.argv[1:])
    cli.run(lambda _: main(config_flags))


if __name__ == "__main__":
    run()
