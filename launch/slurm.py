"""The Slurm backend: one job array for a sweep, one array task for each job, or group of jobs trained together.

Slurm's own queue is the record of what was submitted: array tasks carry the sweep's id as their name, and as their
comment the list of jobs that their index looks up, slurm/COMMENT.json; what Slurm and a task's launch.task print is
slurm/COMMENT_INDEX.txt. The batch script is fixed; names and flags pass through argument lists and JSON only, and of
the environment only the variables of EXPORT reach a job. Ask for GPUs by node (--gpus-per-node): jax does not find its
processes where --gpus-per-task binds them.
"""

import contextlib
import datetime
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from jmoe.errors import UserError
from jmoe.storage.cache import cache_dir
from jmoe.storage.files import is_remote, write_whole
from launch import trainer
from launch.jobs import jobs_of

SCRIPT = '#!/bin/sh\nexec "$@"\n'
STEP = ("srun", "--export=ALL", "--kill-on-bad-exit=1")  # one trainer process for each task of the job
SECONDS_TO_SAVE = 120  # SIGTERM comes this long before the time limit
OURS = ("--array", "--comment", "--error", "--job-name", "--open-mode", "--output", "--parsable", "--wrap")
OURS_SHORT = "aeJo"
WITHOUT_VALUE = "hHIkOQsvVW"  # sbatch's options of one letter that may stand before another one, as -HJx
LARGEST_ARRAY = 1_000  # Slurm's default MaxArraySize is 1,001
EXPORT = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR", "SLURM_CONF")
EXPORT_PREFIXES = ("PYTHON", "JAX_", "XLA_", "JMOE_", "XDG_", "TPU_", "CUDA_", "NCCL_", "TENSORSTORE_")
EXPORT_GCS = ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST")  # where a key lies, never a key


def check(sweep) -> None:
    """Raises UserError for an option of --sbatch that is not the user's."""
    for option in sweep.options["sbatch"]:
        if not option.startswith("-"):
            raise UserError(f"--sbatch={option} is no option: give each with its value, as --sbatch=--partition=gpu")
        if _is_ours(option):
            short = ", ".join(f"-{letter}" for letter in OURS_SHORT)
            raise UserError(f"--sbatch={option}: {', '.join(OURS)} and {short} are set by the sweep itself")


def _is_ours(option: str) -> bool:
    """Whether sbatch would take it for one of OURS, which it also does where a name is cut short (--comm=x)."""
    if option.startswith("--"):
        return any(name.startswith(option.split("=")[0]) for name in OURS)
    letters = option[1:].lstrip(WITHOUT_VALUE)
    return letters[:1] in tuple(OURS_SHORT)


def submit(sweep) -> str:
    """Queues every job that is neither finished nor queued, and a collect after them; returns what it did.

    Raises:
      UserError: Slurm refuses, or it is not known what is queued.
    """
    queued = states(sweep)
    todo = [group for group in sweep.groups() if not group.done() and not any(job.name in queued for job in group.jobs)]
    if "\\" in os.fspath(_folder(sweep)):
        raise UserError(f"Slurm can write no output to {_folder(sweep)}, because of the backslash; set JMOE_CACHE")
    if not todo:
        others = "the others are done; launch.collect writes runs.csv" if queued else "all runs are done"
        return f"nothing to submit: {len(queued)} jobs are queued or running, {others}"
    todo.sort(key=lambda group: -group.flops)
    folder = _folder(sweep)
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "run.sh"
    write_whole(script, SCRIPT)
    arrays = []
    for start in range(0, len(todo), LARGEST_ARRAY):
        part = todo[start : start + LARGEST_ARRAY]
        for job in jobs_of(part):
            trainer.forget_cause(job)
        comment = f"{datetime.datetime.now():%Y%m%d-%H%M%S-%f}"
        names = folder / f"{comment}.json"
        write_whole(names, json.dumps([[job.name for job in group.jobs] for group in part]))
        task = [sys.executable, "-m", "launch.task", f"--workdir={os.fspath(sweep.workdir)}", f"--array={names}"]
        options = [
            f"--array=0-{len(part) - 1}",
            f"--comment={comment}",
            "--requeue",
            f"--signal=TERM@{SECONDS_TO_SAVE}",
        ]
        options = [f"--job-name={sweep.id}", f"--output={_literal(folder)}/{comment}_%a.txt", *options]
        options += sweep.options["sbatch"]
        arrays.append(_sbatch(script, options, task))
    after = [sys.executable, "-m", "launch.collect", f"--workdir={os.fspath(sweep.workdir)}"]
    options = [f"--job-name={sweep.id}-collect", f"--output={_literal(folder)}/%A-collect.txt"]
    options += _only_where(sweep.options["sbatch"])
    _sbatch(script, [*options, f"--dependency=afterany:{':'.join(arrays)}", "--ntasks=1"], after)
    return (
        f"submitted {len(jobs_of(todo))} jobs as array {', '.join(arrays)}; {len(queued)} were queued or running before"
    )


def states(sweep) -> dict[str, str]:
    """Jobs in Slurm's queue, with their state there and, while waiting, the reason.

    Raises:
      UserError: Slurm cannot be asked, or a list is missing or damaged that tells which jobs are queued.
    """
    lists, found = {}, {}
    for line in _call("squeue", "-h", "-r", "--me", f"--name={sweep.id}", "-o", "%K|%k|%T|%r").splitlines():
        index, comment, state, reason = line.split("|", 3)
        if comment not in lists:
            lists[comment] = _list(_folder(sweep) / f"{comment}.json")
        waits = "" if state == "RUNNING" or reason == "None" else f" ({reason})"
        try:
            found |= dict.fromkeys(lists[comment][int(index)], state.lower() + waits)
        except (ValueError, LookupError, TypeError):
            raise UserError(f"{_folder(sweep)}/{comment}.json names no jobs for task {index} of that array") from None
    return found


def _list(path) -> list:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{os.fspath(path)} cannot be read ({error}), and nothing else tells which jobs that array has queued; "
            "launch.cancel takes them off"
        ) from None


def reason(sweep, job) -> str:
    """What Slurm or launch.task said last of the job's newest task; "" if nothing, or that it was cancelled."""
    if path := _output(sweep, job):
        lines = [line for line in pathlib.Path(path).read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\berror: |Error\b", line)] or lines
        if errors and "CANCELLED" not in errors[-1]:
            return f"{errors[-1].strip()[:1000]} ({path})"
    return ""


def output(sweep, job) -> str:
    """All that Slurm and launch.task said of the job's newest task."""
    path = _output(sweep, job)
    return f"==> {path} <==\n{pathlib.Path(path).read_text(errors='replace')}" if path else ""


def _output(sweep, job) -> str | None:
    """The path of what was said of the newest task that the job was given to, or None if nothing was."""
    folder = os.fspath(_folder(sweep))
    path = os.path.join(folder, _tasks(folder).get(job.name, "none"))
    return path if os.path.isfile(path) and os.path.getsize(path) else None


@functools.cache
def _tasks(folder: str) -> dict[str, str]:
    """The file of the newest task of each job, by the lists in the folder."""
    found = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if re.fullmatch(r"[\d-]+\.json", name):
            with contextlib.suppress(UserError, TypeError):  # told by whoever needs the list to know what is queued
                for index, jobs in enumerate(_list(pathlib.Path(folder, name))):
                    found |= dict.fromkeys(jobs, f"{name.removesuffix('.json')}_{index}.txt")
    return found


def cancel(sweep, patience: float) -> str:
    """Takes the sweep's jobs off the queue; running trainers get SIGTERM first and Slurm's KillWait to save."""
    try:
        told = f"{len(states(sweep))} jobs"
    except UserError as error:
        told = f"the sweep's tasks ({error})"
    _call("scancel", f"--name={sweep.id}")
    _call("scancel", f"--name={sweep.id}-collect")
    return f"cancelled {told}"


def requeue() -> None:
    """Queues this job again after its trainer saved and stopped, unless Slurm is ending it for a reason of its own."""
    if not ending():
        _call("scontrol", "requeue", _task())


def ending() -> bool:
    """Whether Slurm is taking this allocation away: cancelled, preempted, requeued, or its node lost."""
    return _call("squeue", "-h", "-j", _task(), "-o", "%T").strip() != "RUNNING"


def end_step() -> None:
    """Ends trainers of this array task that outlived their srun, and waits until they are gone."""
    while steps := [
        step for step in _call("squeue", "-h", "-s", "-j", _task(), "-o", "%i").split() if step[-1].isdigit()
    ]:
        subprocess.run(["scancel", *steps], capture_output=True)
        time.sleep(1)


def _task() -> str:
    """This array task; the id of one of them is the whole array's as well."""
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def _sbatch(script, options, command) -> str:
    """The id of the batch job."""
    exported = [v for v in os.environ if v in EXPORT + EXPORT_GCS or v.startswith(EXPORT_PREFIXES)]
    fixed = ["--parsable", "--open-mode=append", f"--export={','.join(exported)}"]
    said = _call("sbatch", *fixed, *options, str(script), *command)
    number = said.split(";")[0].strip()
    if not number.isdigit():
        raise UserError(f"sbatch queued nothing; it said: {' '.join(said.split()) or 'nothing'}")
    return number


def _only_where(options) -> list[str]:
    """Of extra sbatch options, those that say where and for whom; the collect needs none of the resources."""
    kept = ("--partition", "--account", "--qos", "--reservation", "-p", "-A", "-q")
    return [option for option in options if option.split("=")[0] in kept]


def _folder(sweep) -> pathlib.Path:
    """Lists, the batch script and Slurm's own output: in the workdir, or in the cache if that is on gs:// or its name
    has a backslash, which Slurm drops from the names of its output."""
    if is_remote(sweep.workdir) or "\\" in os.fspath(sweep.workdir):
        return cache_dir().absolute() / "sweeps" / sweep.id.removeprefix("jmoe-") / "slurm"
    return pathlib.Path(sweep.workdir) / "slurm"


def _literal(folder: pathlib.Path) -> str:
    """A folder as Slurm's --output takes it, in which % stands for other things."""
    return os.fspath(folder).replace("%", "%%")


def _call(*command) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UserError(f"--backend=slurm needs {command[0]}, which is not on this machine's PATH") from None
    if done.returncode:
        raise UserError(f"{command[0]}: {' '.join(done.stderr.split())}")
    return done.stdout
