"""The Slurm backend: one job array for a sweep, one array task for each job, or group of jobs trained together.

Slurm's own queue is the record of what was submitted: array tasks carry the sweep's id as their name, and as their
comment the list of jobs that their index looks up. The batch script is fixed; names and flags pass through argument
lists and JSON only, and of the environment only the variables of EXPORT reach a job. Ask for GPUs by node
(--gpus-per-node): jax does not find its processes where --gpus-per-task binds them.
"""

import datetime
import json
import os
import subprocess
import sys
import time

from jmoe.cli import UserError
from jmoe.storage import is_remote, write_whole
from launch import trainer
from launch.jobs import jobs_of

SCRIPT = '#!/bin/sh\nexec "$@"\n'
STEP = ("srun", "--export=ALL", "--kill-on-bad-exit=1")  # one trainer process for each task of the job
SECONDS_TO_SAVE = 120  # SIGTERM comes this long before the time limit
OURS = ("--array", "--comment", "--job-name", "-a", "-J", "--parsable", "--wrap")
LARGEST_ARRAY = 1_000  # Slurm's default MaxArraySize is 1,001
EXPORT = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR", "SLURM_CONF")
EXPORT_PREFIXES = ("PYTHON", "JAX_", "XLA_", "JMOE_", "XDG_", "TPU_", "CUDA_", "NCCL_", "TENSORSTORE_")
EXPORT_GCS = ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST")  # where a key lies, never a key


def submit(sweep) -> str:
    """Queues every job that is neither finished nor queued, and a collect after them; returns what it did.

    Raises:
      UserError: Slurm is missing or refuses, or an option of --sbatch is not the user's.
    """
    if wrong := [option for option in sweep.options["sbatch"] if option.split("=")[0] in OURS]:
        raise UserError(f"--sbatch={wrong[0]}: {', '.join(OURS)} are set by the sweep itself")
    queued = states(sweep)
    todo = [group for group in sweep.groups() if not group.done() and not any(job.name in queued for job in group.jobs)]
    if not todo:
        return f"nothing to submit: {len(queued)} jobs are queued or running, the others done"
    todo.sort(key=lambda group: -group.flops)
    folder = _folder(sweep)
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
        arrays.append(_sbatch(sweep, folder, script, sweep.id, [*options, *sweep.options["sbatch"]], task))
    after = [sys.executable, "-m", "launch.collect", f"--workdir={os.fspath(sweep.workdir)}"]
    waits = [f"--dependency=afterany:{':'.join(arrays)}", "--ntasks=1"]
    _sbatch(sweep, folder, script, f"{sweep.id}-collect", [*_only_where(sweep.options["sbatch"]), *waits], after)
    return (
        f"submitted {len(jobs_of(todo))} jobs as array {', '.join(arrays)}; {len(queued)} were queued or running before"
    )


def states(sweep) -> dict[str, str]:
    """Jobs in Slurm's queue, with their state there and, while waiting, the reason."""
    lists, found = {}, {}
    for line in _call("squeue", "-h", "-r", "--me", f"--name={sweep.id}", "-o", "%K|%k|%T|%r").splitlines():
        index, comment, state, reason = line.split("|", 3)
        if comment not in lists:
            lists[comment] = json.loads((_folder(sweep) / f"{comment}.json").read_text())
        waits = "" if state == "RUNNING" or reason == "None" else f" ({reason})"
        found |= dict.fromkeys(lists[comment][int(index)], state.lower() + waits)
    return found


def cancel(sweep) -> str:
    """Takes the sweep's jobs off the queue; running trainers get SIGTERM first and Slurm's KillWait to save."""
    n_jobs = len(states(sweep))
    _call("scancel", f"--name={sweep.id}")
    _call("scancel", f"--name={sweep.id}-collect")
    return f"cancelled {n_jobs} jobs"


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


def _sbatch(sweep, folder, script, name, options, command) -> str:
    output = str(folder).replace("%", "%%") + f"/{'%A_%a' if name == sweep.id else '%A-collect'}.txt"
    exported = [v for v in os.environ if v in EXPORT + EXPORT_GCS or v.startswith(EXPORT_PREFIXES)]
    fixed = ["--parsable", f"--job-name={name}", f"--output={output}", "--open-mode=append"]
    return (
        _call("sbatch", *fixed, f"--export={','.join(exported)}", *options, str(script), *command).split(";")[0].strip()
    )


def _only_where(options) -> list[str]:
    """Of extra sbatch options, those that say where and for whom; the collect needs none of the resources."""
    kept = ("--partition", "--account", "--qos", "--reservation", "-p", "-A", "-q")
    return [option for option in options if option.split("=")[0] in kept]


def _folder(sweep):
    """Lists, the batch script and Slurm's own output: in the workdir, or here if that is on gs://."""
    here = sweep.jobs[0].here.parent / "slurm" if is_remote(sweep.workdir) else sweep.workdir / "slurm"
    here.mkdir(parents=True, exist_ok=True)
    return here


def _call(*command) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UserError(f"--backend=slurm needs {command[0]}, which is not on this machine's PATH") from None
    if done.returncode:
        raise UserError(f"{command[0]}: {' '.join(done.stderr.split())}")
    return done.stdout
