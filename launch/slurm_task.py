"""What an array task of the Slurm backend does on its nodes: it has srun start trainers, one try after another.

When trainers end because Slurm takes the nodes away (cancelled, preempted, a node lost), the job has not failed, and
unless the task was cancelled, Slurm queues it again. When the store or Slurm's controller gives no answer, or srun
cannot start a trainer on a node (Slurm finds a node lost only minutes later), the task itself tries again.
"""

import functools
import json
import os
import pathlib
import subprocess
import time

from jmoe.errors import UNAVAILABLE, Unavailable, UserError
from launch import hooks, trainer
from launch.backend import Sweep
from launch.jobs import Job
from launch.printable import printable

AWAY = ("Unable to contact slurm controller", "Socket timed out on send/recv operation")  # it restarts, or is busy
AWAY += ("Zero Bytes were transmitted or received", "controller in standby mode")
SECONDS_TO_ANSWER = (
    40.0  # of a controller that may hang; sbatch has as long as it takes, since it may have queued a job
)
NO_NODE = ("Task launch for", "Node failure on")  # srun's words for a node that does not answer
PAUSE = 5.0  # seconds


def job_of_task(path: str) -> str:
    index = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    try:
        (name,) = read_list(pathlib.Path(path))[int(index)]
        return name
    except (ValueError, LookupError, TypeError):
        raise UserError(f"--array={path} has no job for SLURM_ARRAY_TASK_ID={index!r}") from None


def run_task(sweep: Sweep, job: Job) -> int:
    """Trains on the nodes of this array task until the job is done or has failed for good, or Slurm takes the nodes
    away; queues the task again if it was asked to stop or the store gives no answer. UserError outside of an array."""
    if not {"SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"} <= os.environ.keys():
        raise UserError("Slurm starts the tasks of this sweep: there is no SLURM_ARRAY_JOB_ID here")
    try:
        return _train(sweep, job)
    except Unavailable:
        _requeue()
        raise


def _train(sweep: Sweep, job: Job) -> int:
    several = int(os.environ.get("SLURM_NTASKS") or os.environ.get("SLURM_NNODES") or 1) > 1
    srun = ["srun", "--export=ALL", "--kill-on-bad-exit=1", *["--label"] * several]  # labels say who printed a line
    while not job.stands_still():  # it may have been cancelled, or accepted, while it waited
        started = trainer.start_when_free(job, sweep.stall_minutes, prefix=srun)
        code = started.wait()
        if code == 0:
            break
        if code < 0:  # srun itself was killed
            _end_step()
        if _is_slurms_or_the_stores(started):
            code = UNAVAILABLE
        if code in trainer.STOPPED and not started.stalled:
            _requeue()
            return code
        if _is_ending():  # killed because Slurm takes its nodes: the job has not failed
            return code
        if code == UNAVAILABLE:  # nothing is wrong with the job
            print(f"{job.name}: {started.cause(code)}; trying again", flush=True)
            time.sleep(PAUSE)
            continue
        if failure := trainer.failed(started, code, sweep.retries):
            print(f"{job.name}: {failure['cause']}", flush=True)
            hooks.failed(sweep, job)
    if not job.over():
        return 2
    trainer.forget_cause(job)
    return 0


def _is_slurms_or_the_stores(started: trainer.Trainer) -> bool:
    """Whether a trainer ended for want of the store, or did not start for want of the controller or a node. Read from
    srun's lines: its exit code is the largest of all processes' and does not tell which one ended first."""
    errors = [line for line in started.lines() if line.startswith("srun: error:")]
    reasons = *AWAY, *NO_NODE, f"Exited with exit code {UNAVAILABLE}"
    return any(reason in line for line in errors for reason in reasons)


def _requeue() -> None:
    if not _is_ending():
        call("scontrol", "requeue", _task(), patient=True)


def _is_ending() -> bool:
    """Whether Slurm is taking the nodes of this task away, or has done so unheard and started it again on others:
    cancelled, preempted, requeued, or a node lost."""
    state = call("squeue", "-h", "-j", _task(), "-O", "State,RestartCnt", patient=True).split()
    return state != ["RUNNING", os.environ.get("SLURM_RESTART_COUNT", "0")]


def _end_step() -> None:
    """Ends trainers of this array task that outlived their srun, and waits until they have ended."""
    steps = lambda: call("squeue", "-h", "-s", "-j", _task(), "-o", "%i", patient=True).split()
    while numbered := [step for step in steps() if step[-1].isdigit()]:
        subprocess.run(["scancel", *numbered], capture_output=True)
        time.sleep(1)


def _task() -> str:
    """This array task as ARRAY_INDEX: the job id of one of the tasks is also that of the whole array."""
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def read_list(path: pathlib.Path) -> list:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{os.fspath(path)} cannot be read ({error}), and nothing else tells which jobs that array has queued; "
            "launch.cancel takes them off"
        ) from None


def call(*command: str, patient: bool = False) -> str:
    """What one of Slurm's commands prints. UserError where it is not on this machine, or it failed; that quotes it.
    Unavailable where the controller is away; a `patient` call is repeated for as long: the task and its nodes work on
    without it."""
    timeout = None if command[0] == "sbatch" else SECONDS_TO_ANSWER
    run = functools.partial(subprocess.run, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    while True:
        try:
            done = run(command, timeout=timeout)
        except FileNotFoundError:
            raise UserError(f"--backend=slurm needs {command[0]}, which is not on this machine's PATH") from None
        except subprocess.TimeoutExpired:
            said = f"{command[0]}: the controller gives no answer within {SECONDS_TO_ANSWER:.0f} s"
        else:
            if not done.returncode:
                return done.stdout
            said = printable(f"{command[0]}: {' '.join(done.stderr.split())}")
            if not any(words in said for words in AWAY):
                raise UserError(said)
        if not patient:
            raise Unavailable(f"{said}; the same command goes on when it answers")
        print(f"{said}; trying again", flush=True)
        time.sleep(PAUSE)
