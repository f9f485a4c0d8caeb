"""Run a sweep: python -m launch.sweep --sweep=configs/sweeps/NAME.py --workdir=DIR --backend=local|slurm|gke.

Given again, the command skips the runs that are done, leaves alone what is queued or running, and resumes the rest. The
local backend trains until all runs are done, and writes DIR/runs.csv. slurm and gke submit the jobs and return. After
that, use launch.status, launch.logs, launch.cancel and launch.collect, each with --workdir=DIR.

--config.FIELD=VALUE sets a field of the config in every job, as if the sweep file set it. Give it at each start. A
field that the sweep file sets too is refused.

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
from etils import epath
from ml_collections import ConfigDict

from jmoe import cli
from jmoe.config import counts
from jmoe.errors import Unavailable, UserError
from jmoe.storage import files as storage
from jmoe.storage import ownership
from launch import accelerators, collect, hooks, preflight, sweepfile, trust, varied
from launch import backend as backend_lib
from launch.backend import SECONDS_TO_SUBMIT, Sweep
from launch.jobs import MIXABLE, files_of, load
from launch.prices import price_of, summary

SWEEP = flags.DEFINE_string("sweep", None, "Sweep file, such as configs/sweeps/quickstart.py.")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of the sweep, for jobs, logs and runs.csv: a folder or gs://..."
)
BACKEND = flags.DEFINE_string(
    "backend", "local", f"Where the jobs run: {', '.join(backend_lib.BACKENDS)}, or a Python file with a backend."
)
RETRIES = flags.DEFINE_integer(
    "retries", 1, "Number of further tries of a job that died. The count restarts with progress.", lower_bound=0
)
STALL_MINUTES = flags.DEFINE_float(
    "stall_minutes", 60.0, "Minutes without a sign of life until a trainer is stopped and tried again. 0: never.", 0
)
WORKERS = flags.DEFINE_integer("workers", None, "Maximum number of trainers, or scheduler tasks, to run at once.", 1)
flags.DEFINE_string(
    "on_done",
    None,
    "Command to run once every job is done or has failed for good. It is split into words as in a shell, but run "
    "without one. Its environment has JMOE_WORKDIR and JMOE_RUNS_MISSING.",
)
flags.DEFINE_string(
    "on_failure",
    None,
    "Command to run for each job that failed for good. Its environment has JMOE_WORKDIR, JMOE_JOB and JMOE_CAUSE.",
)
MIX = flags.DEFINE_multi_enum("mix", [], MIXABLE, "Let the sweep mix versions of this, at later starts too.")
DRY_RUN = flags.DEFINE_bool(
    "dry_run",
    False,
    "Print what would run and what it costs. Start and write nothing. Exit code 2 if a start would be refused.",
)
TEXT_ELSEWHERE = flags.DEFINE_bool(
    "text_elsewhere", False, "Leave the text unchecked in a --dry_run, because it is on another machine."
)
ACCELERATOR = flags.DEFINE_string(
    "accelerator", None, f"What a job runs on, such as v5e:4x4 or H100:2x8. Kinds: {', '.join(accelerators.GKE)}."
)
MFU = flags.DEFINE_float(
    "mfu",
    None,
    "Model FLOPs utilisation to assume for the costs. Default: the modelled speed of each job on --accelerator.",
    1e-6,
    1,
)
DOLLARS = flags.DEFINE_float(
    "dollars_per_hour", None, "Hourly price of one accelerator (chip), for --dry_run and launch.status.", 0
)


def main(config_flags: list[str]) -> None:
    """Starts or submits the sweep, or with --dry_run prints what a start would do.

    Args:
      config_flags: The --config.FIELD flags of the command line.
    """
    folder = WORKDIR.value or ""  # required
    workdir = storage.absolute(folder)
    engine = backend_lib.backend(BACKEND.value)
    sweep, configs = _sweep_of_flags(engine, workdir, config_flags)
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
    patience = 0.0 if engine.ON_THIS_MACHINE else SECONDS_TO_SUBMIT
    try:
        with ownership.hold(sweep.lock, f"launch.sweep --backend={sweep.backend}", patience):
            print(start(sweep, configs))
    except ownership.Taken as error:
        raise UserError(
            f"another launch.sweep works on {os.fspath(workdir)}: {error.owner}; launch.status shows its progress, "
            "launch.cancel stops it"
        ) from None


def _sweep_of_flags(
    engine: backend_lib.Backend, workdir: epath.Path, config_flags: list[str]
) -> tuple[Sweep, dict[str, ConfigDict]]:
    """The sweep that the flags describe, and the config of each job by the job's name."""
    file = SWEEP.value or ""  # required
    jobs, configs = load(file, workdir, config_flags)
    refusal = ""
    if not (engine.ON_THIS_MACHINE or engine.CALLS_ON_DONE):
        refusal = (
            f": with --backend={BACKEND.value} nothing of the sweep is left to call it; give it to "
            "launch.status --watch=60, which waits for the end"
        )
    options = engine.options() | {"workers": WORKERS.value, "dollars_per_hour": DOLLARS.value} | hooks.commands(refusal)
    sweep = Sweep(workdir, file, BACKEND.value, RETRIES.value, MIX.value, options, jobs, STALL_MINUTES.value)
    return sweep, configs


def start(sweep: Sweep, configs: dict[str, ConfigDict]) -> str:
    """Starts or submits what is not done; the caller owns the workdir.

    Returns:
      A report, in words.

    Raises:
      UserError: The sweep cannot be started, or runs are missing at its end.
      Interrupted: A signal stopped it.
    """
    files = files_of(sweep.workdir)
    sweepfile.resume(sweep, files)
    preflight.tokens(sweep, configs, preflight.pin_corpus(sweep, configs), files)
    if not sweep.engine.ON_THIS_MACHINE:
        return f"{_submit(sweep)}\npython -m launch.status --workdir={os.fspath(sweep.workdir)}"
    sweep.write()
    trained = sweep.engine.submit(sweep)
    if trained:
        print(trained)
    report, n_missing = collect.write(sweep)
    hooks.run("on_done", sweep.options.get("on_done"), sweep.workdir, JMOE_RUNS_MISSING=n_missing)
    if n_missing:
        raise UserError(f"{report}\nThe same command tries them again.")
    return report


def _submit(sweep: Sweep) -> str:
    """Writes sweep.json, which submitted jobs read, and submits; undoes the writing if the backend takes no job."""
    states_before = sweep.engine.states(sweep)  # a backend that cannot be asked raises before anything is written
    path = sweep.workdir / "sweep.json"
    before = path.read_text() if path.exists() else None
    was_own = before is not None and trust.is_own(sweep.workdir, before)
    sweep.write()
    try:
        return sweep.engine.submit(sweep)
    except (UserError, Unavailable):
        with contextlib.suppress(UserError, Unavailable):  # if it cannot be asked any more, it may have taken some jobs
            if not states_before and not sweep.engine.states(sweep):
                _restore(sweep, before, was_own)
        raise


def _restore(sweep: Sweep, before: str | None, was_own: bool) -> None:
    """Writes the earlier sweep.json again, or removes the new one if there was none.

    Args:
      sweep: The sweep.
      before: The text of the earlier sweep.json.
      was_own: Whether a start of this user wrote that one.
    """
    path = sweep.workdir / "sweep.json"
    if before is None:
        path.unlink()
        return
    storage.write_whole(path, before)
    if was_own:
        trust.keep(sweep.workdir, before)


def dry_run(sweep: Sweep, configs: dict[str, ConfigDict], impossible: list[str], check_text: bool) -> None:
    """Prints what would run and what it costs, as comments before the backend's preview if it has one.

    Args:
      sweep: The sweep.
      configs: The config of each job, by the job's name.
      impossible: What preflight.places returned.
      check_text: Whether to check the text.

    Raises:
      UserError: A start would be refused: for an impossible job, for the text, or for what the workdir already
        holds. A workdir on gs:// is not read.
    """
    lines = describe(sweep, configs)
    preview = sweep.engine.preview(sweep)
    if preview:
        lines = [f"# {line}" for line in lines] + [preview]
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


def describe(sweep: Sweep, configs: dict[str, ConfigDict]) -> list[str]:
    """Lines on each job and on all: FLOPs as the paper counts them (6 N_active D), hours and price if known.

    Args:
      sweep: The sweep.
      configs: The config of each job, by the job's name.

    Raises:
      UserError: There is a price, but no accelerator.
    """
    accelerator = ACCELERATOR.value
    if DOLLARS.value is not None and not accelerator:
        raise UserError("--dollars_per_hour needs --accelerator: the price is that of one of them")
    jobs = sweep.jobs
    n_slices = sweep.options.get("n_slices", 1)
    prices = []
    costs = [""] * len(jobs)
    if accelerator:
        prices = [price_of(job, configs[job.name], accelerator, n_slices, MFU.value) for job in jobs]
        costs = [_cost(price.chip_hours, accelerator) for price in prices]
    lines = [f"{'job':24} {'n_active':>13} {'n_total':>14} {'flops':>9}  n_tokens"]
    for job, cost in zip(jobs, costs, strict=True):
        budgets = ", ".join(f"{budget:,}" for budget in job.budgets.values())
        sizes = f"{job.n_active:13,} {job.n_total:14,} {job.flops:9.2e}"
        lines.append(f"{job.name:24} {sizes}  {budgets}{cost}")
    flops = sum(job.flops for job in jobs)
    runs = [(job, branch) for job in jobs for branch in job.budgets]
    flops_alone = sum(counts.training_flops(job.n_active, job.segments[branch][1]) for job, branch in runs)
    saved = f"one by one {flops_alone:.3e}: sharing trunks saves {1 - flops / flops_alone:.0%}"
    lines.append(f"{len(runs)} runs in {len(jobs)} jobs, {flops:.3e} FLOPs; {saved}")
    if accelerator:
        peak = accelerators.peak_flops(accelerators.chip(accelerator))
        total = _cost(sum(price.chip_hours for price in prices), accelerator)
        lines.append(f"{summary(prices, peak)}:{total}")
    return lines


def _cost(chip_hours: float, accelerator: str) -> str:
    """Hours of one chip of an accelerator and, if known, their price."""
    price = f", ${chip_hours * DOLLARS.value:,.2f}" if DOLLARS.value is not None else ""
    return f"  {chip_hours:,.2f} {accelerators.chip(accelerator)}-hours{price}"


def run() -> None:
    """Runs the command: defines the flags of the backends, and splits --config flags from the others."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--backend", "-backend", nargs="?")
    arguments, _ = parser.parse_known_args()
    for backend in (*backend_lib.BACKENDS, arguments.backend or "local"):
        with contextlib.suppress(UserError):  # main reports it
            flags.adopt_module_key_flags(backend_lib.module(backend))
    flags.mark_flags_as_required(["sweep", "workdir"])
    sys.argv[1:], config_flags = varied.split(sys.argv[1:])
    cli.run(lambda _: main(config_flags))


if __name__ == "__main__":
    run()
