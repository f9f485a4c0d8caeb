"""The Slurm backend: one job array for a sweep, one array task for each job.

Slurm's own queue is the record of what was submitted. An array task's name is the sweep's id; its comment names a list,
slurm/COMMENT.json, where the task's index finds its job. Slurm and launch.task print to slurm/COMMENT_INDEX.txt;
launch/slurm_task.py is what a task does on its nodes. The batch script is fixed; names and flags pass through argument
lists and JSON only, and only the variables of EXPORT and EXPORT_PREFIXES reach a job. Ask for GPUs by node
(--gpus-per-node): jax does not find its processes where --gpus-per-task binds them.
"""

import contextlib
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
from jmoe.storage.files import cache_dir, is_remote, write_whole
from launch import accelerators, output, slurm_task, trainer
from launch.backend import Backend, Sweep
from launch.jobs import Job, files_of
from launch.printable import printable
from launch.slurm_task import call, read_list

SECONDS_BETWEEN_LOOKS = 5.0
SCRIPT = '#!/bin/sh\nexec "$@"\n'
SECONDS_TO_SAVE = 120  # SIGTERM comes this long before the time limit
OURS = ("--array", "--comment", "--error", "--job-name", "--open-mode", "--output", "--parsable", "--wrap")
OURS_SHORT = "aeJo"
WITHOUT_VALUE = "hHIkOQsvVW"  # sbatch's one-letter options without a value: another may follow at once, as in -HJx
COLLECT_TOO = ("--partition", "--account", "--qos", "--reservation", "-p", "-A", "-q")  # where a job may run
LARGEST_ARRAY = 1_000  # Slurm's default MaxArraySize is 1,001
EXPORT = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR", "SLURM_CONF")
EXPORT += ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST")  # where a key lies, never a key
EXPORT_PREFIXES = ("PYTHON", "JAX_", "XLA_", "JMOE_", "XDG_", "TPU_", "CUDA_", "NCCL_", "TENSORSTORE_")

flags.DEFINE_multi_string("sbatch", [], "slurm: an additional option for sbatch, e.g. --sbatch=--partition=gpu.")


class Slurm(Backend):
    """One job array for a sweep."""

    CALLS_ON_DONE = True
    job_of_task, run_task = staticmethod(slurm_task.job_of_task), staticmethod(slurm_task.run_task)

    def options(self) -> dict:
        return {"sbatch": flags.FLAGS.sbatch}

    def check(self, sweep: Sweep) -> None:
        for option in sweep.options["sbatch"]:
            if not option.startswith("-"):
                raise UserError(f"--sbatch={option} is no option: give it with its value, as --sbatch=--partition=gpu")
            if _is_ours(option):
                ours = f"{', '.join(OURS)} and {', '.join('-' + letter for letter in OURS_SHORT)}"
                raise UserError(f"--sbatch={option}: {ours} are set by the sweep itself")
            if sweep.options.get("workers") and option.startswith(("--dep", "-d")):
                raise UserError(f"--sbatch={option} and --workers exclude each other: arrays wait for others by it")

    def devices(self, sweep: Sweep, accelerator: str | None) -> tuple[int | None, float | None]:
        n_devices, memory = accelerators.devices(accelerator)
        options = " ".join(sweep.options["sbatch"])

        def number(names: str) -> int | None:
            found = re.search(rf"(?:^| )(?:{names})[= ]?(\d+)(?: |$)", options)
            return found and int(found[1])

        n_nodes = number("--nodes|-N") or 1
        if of_node := number("--gpus-per-node(?:=[a-z]\\w*:)?|--gres=gpu(?::[a-z]\\w*)?:"):
            n_devices = n_devices or of_node * n_nodes
        elif os.environ.get("JAX_PLATFORMS") == "cpu":
            n_devices = n_devices or (number("--ntasks|-n") or n_nodes) * accelerators.host_devices()
        return n_devices, memory

    def submit(self, sweep: Sweep) -> str:
        """Queues every job that is neither finished nor queued, and a launch.collect after them; returns what it did.
        UserError where Slurm refuses, or it is not known what is queued."""
        tasks, folder, cap = list(_queue(sweep)), _folder(sweep), sweep.options.get("workers")
        queued = {name for _, name, _, _ in tasks}
        files = files_of(sweep.workdir)  # listed after the queue: includes those of a job that has just left it
        todo = [job for job in sweep.trained if job.name not in queued and not job.over(files)]
        if not todo:
            others = "the others are done; launch.collect writes runs.csv" if queued else "all runs are done"
            return f"nothing to submit: {len(queued)} jobs are queued or running, {others}"
        if "\\" in os.fspath(folder):  # the cache's own name has one
            raise UserError(f"Slurm can write no output to {folder}, because of the backslash; set JMOE_CACHE")
        programs = sweep.programs(todo[0])
        if any(sweep.programs(job) != programs for job in todo):
            raise UserError("the jobs have several config files, and an array has one; start the sweep again")
        todo.sort(key=lambda job: -job.flops)
        folder.mkdir(parents=True, exist_ok=True)
        written = os.fspath(folder).replace("%", "%%")  # Slurm expands % in this path
        before = sorted({task.partition("_")[0] for task, _, _, _ in tasks}) if cap else []
        script, arrays, here = folder / "run.sh", [], f"--workdir={os.fspath(sweep.workdir)}"
        write_whole(script, SCRIPT)
        for start in range(0, len(todo), LARGEST_ARRAY):
            part = todo[start : start + LARGEST_ARRAY]
            for job in part:
                trainer.forget_cause(job, files)
            comment = f"{datetime.datetime.now():%Y%m%d-%H%M%S-%f}"
            names = folder / f"{comment}.json"
            write_whole(names, json.dumps([[job.name] for job in part]))
            own = [f"--job-name={sweep.id}", f"--output={written}/{comment}_%a.txt", f"--comment={comment}"]
            own += ["--requeue", f"--signal=TERM@{SECONDS_TO_SAVE}"]
            own.append(f"--array=0-{len(part) - 1}" + f"%{cap}" * bool(cap))
            if cap and (before or arrays):  # %N caps one array only, so the arrays run one after another
                own.append(f"--dependency=afterany:{':'.join(before + arrays[-1:])}")
            task = "launch.task", here, f"--array={names}", *programs
            arrays.append(_sbatch(script, own + sweep.options["sbatch"], *task))
        own = [f"--job-name={sweep.id}-collect", f"--output={written}/%A-collect.txt", "--ntasks=1"]
        own.append(f"--dependency=afterany:{':'.join(arrays)}")
        own += [option for option in sweep.options["sbatch"] if option.split("=")[0] in COLLECT_TOO]
        on_done = [f"--on_done={shlex.join(command)}"] if (command := sweep.options.get("on_done")) else []
        _sbatch(script, own, "launch.collect", here, *on_done)
        return f"submitted {len(todo)} jobs as array {', '.join(arrays)}; {len(queued)} were queued or running before"

    def states(self, sweep: Sweep) -> dict[str, str]:
        """Jobs in Slurm's queue, with their state there and, while waiting, the reason. UserError where Slurm cannot be
        asked, or a list is missing or damaged that tells which jobs are queued."""
        waits = lambda state, reason: "" if state == "RUNNING" or reason == "None" else f" ({reason})"
        return {name: state.lower() + waits(state, reason) for _, name, state, reason in _queue(sweep)}

    def logs(self, sweep: Sweep, job: Job, rank: int | None = None, attempt: int | None = None) -> bytes:
        """What the job's trainers printed, and what Slurm and launch.task printed for its newest task; with a rank or
        an attempt, only what trainers printed."""
        if rank is not None or attempt is not None:
            return _of_rank(output.log(job, attempt), rank)
        path = _output(sweep, job)
        said = f"==> {path} <==\n".encode() + path.read_bytes() if path else b""
        return said if said and not job.log.exists() else output.log(job) + said

    def cancel(self, sweep: Sweep, patience: float) -> str:
        """Takes the sweep's jobs off the queue; running trainers get SIGTERM first and Slurm's KillWait to save."""
        try:
            what = f"{len(self.states(sweep))} jobs"
        except UserError as error:
            what = f"the sweep's tasks ({error})"
        call("scancel", f"--name={sweep.id}")
        call("scancel", f"--name={sweep.id}-collect")
        return f"cancelled {what}"

    def cancel_job(self, sweep: Sweep, job: Job, patience: float) -> str:
        tasks = [task for task, name, _, _ in _queue(sweep) if name == job.name]
        for task in tasks:
            call("scancel", task)
        return "; ".join(f"task {task} was cancelled" for task in tasks) or "it was not queued"

    def follow(self, sweep: Sweep, job: Job, rank: int | None) -> Iterator[bytes]:
        """Yields what `logs` gives and what is added to it, until the job has left the queue."""
        # not too often: the controller serves all users
        has_left = functools.cache(lambda look: job.name not in self.states(sweep))
        over = lambda: has_left(time.monotonic() // SECONDS_BETWEEN_LOOKS)
        paths = lambda: [job.log, *[path for path in [_output(sweep, job)] if path and rank is None]]
        for text in output.tail(paths, over):
            yield _of_rank(text, rank)

    def reason(self, sweep: Sweep, job: Job) -> str:
        """The last error, else last line, in the output of the job's newest task; "" if none, or cancelled."""
        if path := _output(sweep, job):
            lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
            errors = [line for line in lines if re.search(r"\berror: |Error\b", line)] or lines
            if errors and "CANCELLED" not in errors[-1]:
                return f"{printable(errors[-1].strip()[:1000])} ({path})"
        return ""


def _queue(sweep: Sweep) -> Iterator[tuple[str, str, str, str]]:
    """(task, name of its job, state, reason) of each task of the sweep in the queue. UserError as for `states`."""
    lists = functools.cache(lambda comment: read_list(_folder(sweep) / f"{comment}.json"))
    for line in call("squeue", "-h", "-r", "--me", f"--name={sweep.id}", "-o", "%F|%K|%k|%T|%r").split("\n"):
        if not line:
            continue
        array, index, comment, state, reason = [*printable(line).split("|", 4), "", "", "", ""][:5]
        try:
            (name,) = lists(comment)[int(index)]
        except (ValueError, LookupError, TypeError):
            raise UserError(f"{_folder(sweep)}/{comment}.json names no job for task {index} of that array") from None
        yield f"{array}_{index}", name, state, reason


def _is_ours(option: str) -> bool:
    """Whether sbatch would take the option for one of OURS; sbatch accepts shortened names too (--comm=x)."""
    if option.startswith("--"):
        return any(name.startswith(option.split("=")[0]) for name in OURS)
    return option[1:].lstrip(WITHOUT_VALUE)[:1] in tuple(OURS_SHORT)


def _of_rank(text: bytes, rank: int | None) -> bytes:
    """The lines that the process `rank` printed, without srun's labels; a job of one process has no labels."""
    labelled = [re.fullmatch(rb" *(\d+): (.*\n?)", line) for line in text.splitlines(keepends=True)]
    if rank is None or not any(labelled):
        return b"" if rank else text
    return b"".join(line[2] for line in labelled if line and int(line[1]) == rank)


def _output(sweep: Sweep, job: Job) -> pathlib.Path | None:
    """The output of the newest task that the job was given to, or None if nothing was printed."""
    folder = _folder(sweep)
    path = _outputs(folder, folder.stat().st_mtime_ns if folder.exists() else 0).get(job.name)
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


def _sbatch(script: pathlib.Path, options: list[str], *command: str) -> str:
    """Submits a batch job that runs python -m `command`; returns its id."""
    exported = [v for v in os.environ if v in EXPORT or v.startswith(EXPORT_PREFIXES)]
    fixed = ["--parsable", "--open-mode=append", f"--export={','.join(exported)}"]
    answer = call("sbatch", *fixed, *options, str(script), sys.executable, "-m", *command)
    if not (number := answer.split(";")[0].strip()).isdigit():
        raise UserError(f"sbatch queued nothing; it said: {' '.join(answer.split()) or 'nothing'}")
    return number


def _folder(sweep: Sweep) -> pathlib.Path:
    """The folder of lists, batch script and Slurm's own output: in the workdir; or in the cache if the workdir is on
    gs:// or has a backslash in its name, which Slurm would drop from the names of its output."""
    if is_remote(sweep.workdir) or "\\" in os.fspath(sweep.workdir):
        return cache_dir().absolute() / "sweeps" / sweep.id.removeprefix("jmoe-") / "slurm"
    return pathlib.Path(sweep.workdir) / "slurm"
