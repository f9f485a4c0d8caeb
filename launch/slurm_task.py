"""An array task of the Slurm backend on its nodes: it has srun start trainers, one try after another.

When trainers end because Slurm takes the nodes away (cancelled, preempted, a node lost), the job has not failed. Unless
the task was cancelled, Slurm queues it again. When the store or Slurm's controller gives no answer, or srun cannot
start a trainer on a node, the task itself tries again: Slurm finds a node lost only minutes later.
"""

import functools
import json
import os
import pathlib
import subprocess
import time

from jmoe.errors import UNAVAILABLE, Unavailable, UserError
from jmoe.printable import printable
from launch import hooks, trainer
from launch.backend import Sweep
from launch.jobs import Job

# Slurm's words when the controller restarts or is busy
AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out on send/recv operation",
    "Zero Bytes were transmitted or received",
    "controller in standby mode",
)
# for which a command waits for the controller, which may hang. sbatch waits without limit: if it were killed, nobody
# would know whether it queued a job.
SECONDS_TO_ANSWER = 40.0
NO_NODE = ("Task launch for", "Node failure on")  # srun's words for a node that does not answer
SECONDS_BETWEEN_TRIES = 5.0


def job_of_task(path: str) -> str:
    """The name of this array task's job from the list at `path`; UserError if the list has none."""
    index = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    try:
        (name,) = read_list(pathlib.Path(path))[int(index)]
        return name
    except (ValueError, LookupError, TypeError):
        raise UserError(f"--array={path} has no job for SLURM_ARRAY_TASK_ID={index!r}") from None


def run_task(sweep: Sweep, job: Job) -> int:
    """Trains on this array task's nodes until the job is done or failed for good, or Slurm takes the nodes away.

    Queues the task again if its trainer stopped on request, or the store gives no answer.

    Returns:
      The exit code of the task.

    Raises:
      UserError: Outside of an array.
      Unavailable: The store gives no answer.
    """
    if not {"SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"} <= os.environ.keys():
        raise UserError("Slurm starts the tasks of this sweep: there is no SLURM_ARRAY_JOB_ID here")
    try:
        return _train(sweep, job)
    except Unavailable:
        _requeue()
        raise


def _train(sweep: Sweep, job: Job) -> int:
    """Trains as `run_task` does, for as long as the store answers."""
    srun = ["srun", "--export=ALL", "--kill-on-bad-exit=1"]
    n_processes = int(os.environ.get("SLURM_NTASKS") or os.environ.get("SLURM_NNODES") or 1)
    if n_processes > 1:
        srun.append("--label")  # says which process printed a line
    while not job.has_ended():  # done or failed for good; cancelled or accepted, perhaps while it waited
        running = trainer.start_when_free(job, sweep.stall_minutes, prefix=srun)
        code = running.wait()
        if code == 0:
            break
        if code < 0:  # srun itself was killed
            _end_step()
        if _ended_unavailable(running):
            code = UNAVAILABLE
        if code in trainer.STOPPED and not running.stalled:
            _requeue()
            return code
        if _is_ending():  # killed because Slurm takes its nodes: the job has not failed
            return code
        if code == UNAVAILABLE:  # nothing is wrong with the job
            print(f"{job.name}: {running.cause(code)}; trying again", flush=True)
            time.sleep(SECONDS_BETWEEN_TRIES)
            continue
        failure = trainer.record_failure(running, code, sweep.retries)  # {} if it does not concern the job
        if failure:
            print(f"{job.name}: {failure['cause']}", flush=True)
            hooks.failed(sweep, job)
    if not job.over():
        return trainer.FAILED_FOR_GOOD
    trainer.forget_cause(job)
    return 0


def _ended_unavailable(ended: trainer.Trainer) -> bool:
    """Whether the trainer ended because the store, Slurm's controller or a node was unavailable.

    Read from srun's lines: its exit code is the largest of all processes', and does not tell which one ended first.
    """
    errors = [line for line in ended.lines() if line.startswith("srun: error:")]
    reasons = (*AWAY, *NO_NODE, f"Exited with exit code {UNAVAILABLE}")
    return any(reason in line for line in errors for reason in reasons)


def _requeue() -> None:
    """Queues this task again, unless Slurm is ending it."""
    if not _is_ending():
        call("scontrol", "requeue", _task(), patient=True)


def _is_ending() -> bool:
    """Whether Slurm is ending this task: cancelled, preempted, requeued, or a node lost.

    Slurm may also have done so unnoticed, and have started the task again on other nodes.
    """
    state = call("squeue", "-h", "-j", _task(), "-O", "State,RestartCnt", patient=True).split()
    return state != ["RUNNING", os.environ.get("SLURM_RESTART_COUNT", "0")]


def _end_step() -> None:
    """Ends trainers of this array task that outlived their srun, and waits until they have ended."""
    while True:
        steps = call("squeue", "-h", "-s", "-j", _task(), "-o", "%i", patient=True).split()
        numbered = [step for step in steps if step[-1].isdigit()]  # srun's; others end in .batch or .extern
        if not numbered:
            return
        subprocess.run(["scancel", *numbered], capture_output=True)
        time.sleep(1)


def _task() -> str:
    """This array task as ARRAY_INDEX: the job id of one of the tasks is also that of the whole array."""
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def read_list(path: pathlib.Path) -> list:
    """The list of an array's jobs; UserError if it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{os.fspath(path)} cannot be read ({error}), and nothing else tells which jobs that array has queued; "
            "launch.cancel takes them off"
        ) from None


def call(*command: str, patient: bool = False) -> str:
    """Runs one of Slurm's commands.

    Args:
      *command: The command as an argument list.
      patient: Whether to repeat the command for as long as the controller is away. A task and its nodes work on
        without the controller.

    Returns:
      What the command printed.

    Raises:
      UserError: The command is not on this machine, or failed; the error quotes it.
      Unavailable: The controller is away.
    """
    timeout = None if command[0] == "sbatch" else SECONDS_TO_ANSWER
    run = functools.partial(subprocess.run, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    while True:
        try:
            done = run(command, timeout=timeout)
        except FileNotFoundError:
            raise UserError(f"--backend=slurm needs {command[0]}, which is not on this machine's PATH") from None
        except subprocess.TimeoutExpired:
            message = f"{command[0]}: the controller gives no answer within {SECONDS_TO_ANSWER:.0f} s"
        else:
            if not done.returncode:
                return done.stdout
            message = printable(f"{command[0]}: {' '.join(done.stderr.split())}")
            if not any(words in message for words in AWAY):
                raise UserError(message)
        if not patient:
            raise Unavailable(f"{message}; the same command continues when it answers")
        print(f"{message}; trying again", flush=True)
        time.sleep(SECONDS_BETWEEN_TRIES)
