"""The Slurm backend: one job array for a sweep, one array task for each job.

Slurm's own queue is the record of what was submitted. An array task's name is the sweep's id. Its comment names a list,
slurm/COMMENT.json, in which the task's index finds its job. Slurm and launch.task print to slurm/COMMENT_INDEX.txt.
launch/slurm_task.py is what a task does on its nodes. The batch script is fixed: names and flags pass through argument
lists and JSON only, and only the variables of EXPORT and EXPORT_PREFIXES reach a job. Request GPUs by node
(--gpus-per-node): jax does not find its processes where --gpus-per-task binds them.
"""

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import re
import shlex
import sys
import time
from collections.abc import Iterator

from absl import flags

from jmoe.errors import UserError
from jmoe.printable import printable
from jmoe.storage import durable
from jmoe.storage.files import cache_dir, is_remote, write_whole
from launch import accelerators, output, slurm_task, trainer
from launch.backend import Backend, Sweep
from launch.jobs import Job, files_of
from launch.slurm_task import call, read_list

SECONDS_BETWEEN_LOOKS = 5.0
SCRIPT = '#!/bin/sh\nexec "$@"\n'
SECONDS_TO_SAVE = 120  # SIGTERM comes this long before the time limit
# sbatch's options that a sweep sets itself: in long form, and the letters of the same
RESERVED = ("--array", "--comment", "--error", "--job-name", "--open-mode", "--output", "--parsable", "--wrap")
RESERVED_LETTERS = "aeJo"
WITHOUT_VALUE = "hHIkOQsvVW"  # sbatch's one-letter options without a value: another may follow at once, as in -HJx
# the options of --sbatch that the job of launch.collect gets too: where a job may run
COLLECT_OPTIONS = ("--partition", "--account", "--qos", "--reservation", "-p", "-A", "-q")
LARGEST_ARRAY = 1_000  # Slurm's default MaxArraySize is 1,001
EXPORT = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "TMPDIR",
    "SLURM_CONF",
    "GOOGLE_APPLICATION_CREDENTIALS",  # the path of a key, never a key
    "STORAGE_EMULATOR_HOST",
)
EXPORT_PREFIXES = ("PYTHON", "JAX_", "XLA_", "JMOE_", "XDG_", "TPU_", "CUDA_", "NCCL_", "TENSORSTORE_")

flags.DEFINE_multi_string("sbatch", [], "slurm: Additional option for sbatch, such as --sbatch=--partition=gpu.")


class Slurm(Backend):
    """Submits one job array for a sweep, and a launch.collect after it."""

    CALLS_ON_DONE = True
    job_of_task = staticmethod(slurm_task.job_of_task)
    run_task = staticmethod(slurm_task.run_task)

    def options(self) -> dict:
        return {"sbatch": flags.FLAGS.sbatch}

    def check(self, sweep: Sweep) -> None:
        for option in sweep.options["sbatch"]:
            if not option.startswith("-"):
                raise UserError(f"--sbatch={option} is no option: give it with its value, as --sbatch=--partition=gpu")
            if _is_reserved(option):
                letters = ", ".join(f"-{letter}" for letter in RESERVED_LETTERS)
                raise UserError(f"--sbatch={option}: {', '.join(RESERVED)} and {letters} are set by the sweep itself")
            if sweep.options.get("workers") and option.startswith(("--dep", "-d")):
                raise UserError(f"--sbatch={option} and --workers exclude each other: arrays wait for others by it")

    def devices(self, sweep: Sweep, accelerator: str | None) -> tuple[int | None, float | None]:
        """As `Backend.devices`; without an accelerator, the devices that the options of --sbatch ask for."""
        n_devices, memory = accelerators.devices(accelerator)
        options = " ".join(sweep.options["sbatch"])

        def number(names: str) -> int | None:
            """The number that an option has, whose names are the alternatives of a regular expression."""
            match = re.search(rf"(?:^| )(?:{names})[= ]?(\d+)(?: |$)", options)
            return int(match[1]) if match else None

        n_nodes = number("--nodes|-N") or 1
        gpus_of_node = number("--gpus-per-node(?:=[a-z]\\w*:)?|--gres=gpu(?::[a-z]\\w*)?:")
        if gpus_of_node:
            n_devices = n_devices or gpus_of_node * n_nodes
        elif os.environ.get("JAX_PLATFORMS") == "cpu":
            n_devices = n_devices or (number("--ntasks|-n") or n_nodes) * accelerators.host_devices()
        return n_devices, memory

    def submit(self, sweep: Sweep) -> str:
        """Queues every job that is neither finished nor queued, and a launch.collect after them.

        Raises:
          UserError: Slurm refuses, or it is not known what is queued.
        """
        tasks = list(_queue(sweep))
        queued = {task.job for task in tasks}
        files = files_of(sweep.workdir)  # listed after the queue: includes those of a job that has just left it
        todo = [job for job in sweep.trained if job.name not in queued and not job.over(files)]
        if not todo:
            others = "the others are done; launch.collect writes runs.csv" if queued else "all runs are done"
            return f"nothing to submit: {len(queued)} jobs are queued or running, {others}"
        _check_arrays(sweep, todo)
        todo.sort(key=lambda job: -job.flops)
        folder = _folder(sweep)
        durable.refuse_link(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "run.sh", SCRIPT)
        cap = sweep.options.get("workers")
        arrays_before = sorted({task.array for task in tasks}) if cap else []
        arrays: list[str] = []
        for start in range(0, len(todo), LARGEST_ARRAY):
            part = todo[start : start + LARGEST_ARRAY]
            for job in part:
                trainer.forget_cause(job, files)
            # %N caps one array only, so with a cap the arrays run one after another
            after = arrays_before + arrays[-1:] if cap else []
            arrays.append(_submit_array(sweep, part, cap, after))
        _submit_collect(sweep, arrays)
        return f"submitted {len(todo)} jobs as array {', '.join(arrays)}; {len(queued)} were queued or running before"

    def states(self, sweep: Sweep) -> dict[str, str]:
        """The state of each job in Slurm's queue, by name, and the reason while it waits.

        Raises:
          UserError: Slurm cannot be asked, or a list is missing or damaged that tells which jobs are queued.
        """
        return {task.job: task.in_words() for task in _queue(sweep)}

    def logs(self, sweep: Sweep, job: Job, rank: int | None = None, attempt: int | None = None) -> bytes:
        """The output of the job's trainers, then that of Slurm and launch.task for its newest task.

        With a rank or an attempt, returns only what trainers printed.
        """
        if rank is not None or attempt is not None:
            return _lines_of_rank(output.log(job, attempt), rank)
        path = _output(sweep, job)
        if path is None:
            return output.log(job)
        text = f"==> {path} <==\n".encode() + path.read_bytes()
        return output.log(job) + text if job.log.exists() else text

    def cancel(self, sweep: Sweep, patience: float) -> str:
        """Takes the sweep's jobs off the queue. Running trainers get SIGTERM first, and Slurm's KillWait to save."""
        try:
            what = f"{len(self.states(sweep))} jobs"
        except UserError as error:
            what = f"the sweep's tasks ({error})"
        call("scancel", f"--name={sweep.id}")
        call("scancel", f"--name={sweep.id}-collect")
        return f"cancelled {what}"

    def cancel_job(self, sweep: Sweep, job: Job, patience: float) -> str:
        tasks = [task.id for task in _queue(sweep) if task.job == job.name]
        for task in tasks:
            call("scancel", task)
        return "; ".join(f"task {task} was cancelled" for task in tasks) or "it was not queued"

    def follow(self, sweep: Sweep, job: Job, rank: int | None) -> Iterator[bytes]:
        """Yields what `logs` returns and what is added to it, until the job has left the queue."""

        # The controller serves all users. So it is asked once in each SECONDS_BETWEEN_LOOKS: the cache keeps the answer
        # for as long as the number of that period stays the same.
        @functools.cache
        def has_left(period: float) -> bool:
            return job.name not in self.states(sweep)

        def over() -> bool:
            return has_left(time.monotonic() // SECONDS_BETWEEN_LOOKS)

        def paths() -> list[pathlib.Path]:
            path = _output(sweep, job)
            return [job.log, path] if path and rank is None else [job.log]

        for text in output.tail(paths, over):
            yield _lines_of_rank(text, rank)

    def reason(self, sweep: Sweep, job: Job) -> str:
        """The last error, else the last line, that the job's newest task printed; "" if it was cancelled."""
        path = _output(sweep, job)
        if path is None:
            return ""
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\berror: |Error\b", line)] or lines
        if not errors or "CANCELLED" in errors[-1]:
            return ""
        return f"{printable(errors[-1].strip()[:1000])} ({path})"


@dataclasses.dataclass(frozen=True)
class _Task:
    """One task of a job array in Slurm's queue.

    Attributes:
      array: The id of the array.
      index: The task's index in it.
      job: The name of the task's job.
      state: Slurm's word, such as "RUNNING".
      reason: Slurm's reason why the task waits, or "None".
    """

    array: str
    index: str
    job: str
    state: str
    reason: str

    @property
    def id(self) -> str:
        """The task as scancel names it."""
        return f"{self.array}_{self.index}"

    def in_words(self) -> str:
        """The state and, while the task waits, the reason."""
        if self.state == "RUNNING" or self.reason == "None":
            return self.state.lower()
        return f"{self.state.lower()} ({self.reason})"


def _queue(sweep: Sweep) -> Iterator[_Task]:
    """Yields each task of the sweep in the queue; UserError as `Slurm.states` raises it."""

    @functools.cache
    def jobs_of(comment: str) -> list:
        return read_list(_folder(sweep) / f"{comment}.json")

    for line in call("squeue", "-h", "-r", "--me", f"--name={sweep.id}", "-o", "%F|%K|%k|%T|%r").split("\n"):
        if not line:
            continue
        fields = printable(line).split("|", 4)
        fields += [""] * (5 - len(fields))  # a line that Slurm cut short
        array, index, comment, state, reason = fields
        try:
            (job,) = jobs_of(comment)[int(index)]
        except (ValueError, LookupError, TypeError):
            job = None
        if not isinstance(job, str):
            raise UserError(f"{_folder(sweep)}/{comment}.json names no job for task {index} of that array")
        yield _Task(array, index, job, state, reason)


def _check_arrays(sweep: Sweep, todo: list[Job]) -> None:
    """Raises UserError if the jobs cannot be one array, or Slurm cannot write its output."""
    folder = _folder(sweep)
    if "\\" in os.fspath(folder):  # the name of the cache has one
        raise UserError(f"Slurm can write no output to {folder}, because of the backslash; set JMOE_CACHE")
    programs = sweep.programs(todo[0])
    if any(sweep.programs(job) != programs for job in todo):
        raise UserError("the jobs have several config files, and an array has one; start the sweep again")


def _submit_array(sweep: Sweep, jobs: list[Job], cap: int | None, after: list[str]) -> str:
    """Submits an array with a task for each job; returns its id.

    Args:
      sweep: The sweep.
      jobs: At most LARGEST_ARRAY jobs with the same programs.
      cap: The most tasks to run at once; None for no limit.
      after: Ids of the arrays that must end before this one starts.
    """
    folder = _folder(sweep)
    comment = f"{datetime.datetime.now():%Y%m%d-%H%M%S-%f}"
    names = folder / f"{comment}.json"
    write_whole(names, json.dumps([[job.name] for job in jobs]))
    indices = f"0-{len(jobs) - 1}"
    options = [
        f"--job-name={sweep.id}",
        f"--output={_escaped(folder)}/{comment}_%a.txt",
        f"--comment={comment}",
        "--requeue",
        f"--signal=TERM@{SECONDS_TO_SAVE}",
        f"--array={indices}%{cap}" if cap else f"--array={indices}",
    ]
    if after:
        options.append(f"--dependency=afterany:{':'.join(after)}")
    options += sweep.options["sbatch"]
    arguments = [f"--workdir={os.fspath(sweep.workdir)}", f"--array={names}", *sweep.programs(jobs[0])]
    return _sbatch(folder, options, "launch.task", *arguments)


def _submit_collect(sweep: Sweep, arrays: list[str]) -> None:
    """Submits a launch.collect that starts when these arrays have ended."""
    folder = _folder(sweep)
    options = [
        f"--job-name={sweep.id}-collect",
        f"--output={_escaped(folder)}/%A-collect.txt",
        "--ntasks=1",
        f"--dependency=afterany:{':'.join(arrays)}",
    ]
    options += [option for option in sweep.options["sbatch"] if option.split("=")[0] in COLLECT_OPTIONS]
    arguments = [f"--workdir={os.fspath(sweep.workdir)}"]
    command = sweep.options.get("on_done")
    if command:
        arguments.append(f"--on_done={shlex.join(command)}")
    _sbatch(folder, options, "launch.collect", *arguments)


def _escaped(folder: pathlib.Path) -> str:
    """The folder's path for --output, where Slurm expands %."""
    return os.fspath(folder).replace("%", "%%")


def _sbatch(folder: pathlib.Path, options: list[str], *command: str) -> str:
    """Submits a batch job that runs python -m `command`; returns its id."""
    exported = [name for name in os.environ if name in EXPORT or name.startswith(EXPORT_PREFIXES)]
    fixed = ["--parsable", "--open-mode=append", f"--export={','.join(exported)}"]
    answer = call("sbatch", *fixed, *options, str(folder / "run.sh"), sys.executable, "-m", *command)
    number = answer.split(";")[0].strip()
    if not number.isdigit():
        raise UserError(f"sbatch queued nothing; it said: {' '.join(answer.split()) or 'nothing'}")
    return number


def _is_reserved(option: str) -> bool:
    """Whether sbatch would take the option for one of RESERVED; sbatch accepts shortened names too (--comm=x)."""
    if option.startswith("--"):
        return any(name.startswith(option.split("=")[0]) for name in RESERVED)
    return option[1:].lstrip(WITHOUT_VALUE)[:1] in tuple(RESERVED_LETTERS)


def _lines_of_rank(text: bytes, rank: int | None) -> bytes:
    """The lines that the process `rank` printed, without srun's labels; a job of one process has no labels."""
    if rank is None:
        return text
    labelled = [re.fullmatch(rb" *(\d+): (.*\n?)", line) for line in text.splitlines(keepends=True)]
    if not any(labelled):  # one process, whose rank is 0
        return text if rank == 0 else b""
    return b"".join(line[2] for line in labelled if line and int(line[1]) == rank)


def _output(sweep: Sweep, job: Job) -> pathlib.Path | None:
    """The output of the newest task that the job was given to, or None if nothing was printed."""
    folder = _folder(sweep)
    # part of the key of _outputs' cache: a new list in the folder changes it
    changed_ns = folder.stat().st_mtime_ns if folder.exists() else 0
    path = _outputs(folder, changed_ns).get(job.name)
    return path if path and path.is_file() and path.stat().st_size else None


@functools.cache
def _outputs(folder: pathlib.Path, changed_ns: int) -> dict[str, pathlib.Path]:
    """The output file of each job's newest task, from the lists in the folder as it was at its last change."""
    files = {}
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(UserError, TypeError):  # `states` reports a damaged list
            for index, jobs in enumerate(read_list(path)):
                files |= dict.fromkeys(jobs, folder / f"{path.stem}_{index}.txt")
    return files


def _folder(sweep: Sweep) -> pathlib.Path:
    """The folder of lists, batch script and Slurm's output.

    It lies in the workdir. It lies in the cache if the workdir is on gs://, or has a backslash in its name, which Slurm
    would drop from the names of its output.
    """
    if is_remote(sweep.workdir) or "\\" in os.fspath(sweep.workdir):
        return cache_dir().absolute() / "sweeps" / sweep.id.removeprefix("jmoe-") / "slurm"
    return pathlib.Path(sweep.workdir) / "slurm"
