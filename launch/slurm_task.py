"""What a task of a Slurm array does: srun starts the trainers on its nodes, as often as it takes."""

import json
import os
import pathlib
import subprocess
import time

from jmoe.errors import UNAVAILABLE, Unavailable, UserError
from launch import trainer

SLURMS_OWN = ("srun:", "slurmstepd")  # how the lines begin that Slurm adds to a trainer's log


def jobs_of_task(path: str) -> list[str]:
    """The names of this array task's jobs, from the array's list."""
    return read_list(pathlib.Path(path))[int(os.environ["SLURM_ARRAY_TASK_ID"])]


def run_task(sweep, bundle) -> int:
    """Has srun start trainers on the nodes of this array task until every job is done or has failed for good, or Slurm
    takes the nodes away; queues the task again where the trainers were asked to stop, or the store gives no answer."""
    try:
        return _train(sweep, bundle)
    except Unavailable:
        _requeue()
        raise


def _train(sweep, bundle) -> int:
    while not bundle.done():
        if bundle.stands_still():  # cancelled, or accepted, while it waited
            return 2
        started = trainer.start_when_free(bundle, sweep.stall_minutes, prefix=_step(), not_its_own=SLURMS_OWN)
        code = started.wait()
        if code == 0:
            break
        if code < 0:  # srun itself was killed
            _end_step()
        if _met_an_outage(started):
            code = UNAVAILABLE
        if code in trainer.STOPPED and not started.stalled:
            _requeue()
            return code
        if _is_ending():  # killed with its nodes: no failure of its own
            return code
        if code == UNAVAILABLE:  # nothing is wrong with the job
            print(f"{bundle.name}: {started.cause(code)}; trying again", flush=True)
            continue
        failures = trainer.failed(started, code, sweep.retries)
        for job, failure in failures.items():
            print(f"{job}: {failure['cause']}", flush=True)
        if all(failure["for_good"] for failure in failures.values()):
            return 2
    for job in bundle.jobs:
        trainer.forget_cause(job)
    return 0


def _step() -> list[str]:
    """The command that starts one trainer process for each task of the job; the log says which one printed a line."""
    several = int(os.environ.get("SLURM_NTASKS") or os.environ.get("SLURM_NNODES") or 1) > 1
    return ["srun", "--export=ALL", "--kill-on-bad-exit=1", *["--label"] * several]


def _met_an_outage(started) -> bool:
    """Whether the store ended one of the processes, on account of which srun ended the others: srun's own exit code is
    the largest of all."""
    words = f"Exited with exit code {UNAVAILABLE}"
    return any(line.startswith("srun: error:") and line.endswith(words) for line in started.lines())


def _requeue() -> None:
    if not _is_ending():
        call("scontrol", "requeue", _task())


def _is_ending() -> bool:
    """Whether Slurm is taking the nodes of this task away: cancelled, preempted, requeued, or a node lost."""
    return call("squeue", "-h", "-j", _task(), "-o", "%T").strip() != "RUNNING"


def _end_step() -> None:
    """Ends trainers of this array task that outlived their srun, and waits until they have ended."""
    steps = lambda: call("squeue", "-h", "-s", "-j", _task(), "-o", "%i").split()
    while numbered := [step for step in steps() if step[-1].isdigit()]:
        subprocess.run(["scancel", *numbered], capture_output=True)
        time.sleep(1)


def _task() -> str:
    """This array task; the id of one of them is the whole array's as well."""
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def read_list(path) -> list:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{os.fspath(path)} cannot be read ({error}), and nothing else tells which jobs that array has queued; "
            "launch.cancel takes them off"
        ) from None


def call(*command) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UserError(f"--backend=slurm needs {command[0]}, which is not on this machine's PATH") from None
    if done.returncode:
        raise UserError(f"{command[0]}: {' '.join(done.stderr.split())}")
    return done.stdout
