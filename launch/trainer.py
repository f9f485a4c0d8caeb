"""One trainer process: at most one for each job, with a log, and with the cause kept when it fails.

It trains a jobs.Group, most often of a single job. Each job's lock file tells whether a trainer of the job runs on this
machine. The trainer inherits the locks, so that they are held as long as the trainer lives, whatever becomes of the
process that started it; and the trainer is told to stop (SIGTERM) when that process dies.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

from jmoe.corpus import cache_dir
from jmoe.storage import write_whole
from launch import jobs as jobs_lib

STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of a trainer that saved and stopped when asked
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Trainer:
    """A running trainer of `group`; start() makes it."""

    def __init__(self, group, process, log_start: int):
        self.group, self.process, self._log_start = group, process, log_start

    def cause(self, code: int) -> str:
        """Why it ended with `code`: its own error line, else the last thing it said."""
        with open(self.group.log, "rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        lines = [line.strip() for line in lines if line.strip() and not line.startswith(("srun:", "slurmstepd"))]
        errors = [line for line in lines if re.match(r"error: |([\w.]+\.)?\w*(Error|Exception|Interrupt)\b", line)]
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
            how += ", which is also how a machine out of memory ends a process"
        if len(self.group.jobs) > 1:
            how += f"; {len(self.group.jobs)} jobs together, --together takes fewer"
        return f"{(errors or lines or ['no output'])[-1][:2000]} ({how}; {self.group.log})"


def start(group, env: dict | None = None, cores: list[int] | None = None, prefix=()) -> Trainer | None:
    """Starts the trainer of `group` behind the argument list `prefix`; None if an earlier one of any job still runs.

    Raises:
      UserError: a config file or the code are not those that a job was made with.
    """
    for job in group.jobs:
        if (version := jobs_lib.code_version()) != job.code[-1]:
            raise jobs_lib.UserError(f"job {job.name} belongs to code {job.code[-1]}, this machine has {version}")
        jobs_lib.config_of(job)
        job.here.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as files:
        locks = [files.enter_context(open(_lock_path(job), "a+")) for job in group.jobs]
        if not all(map(_acquire, locks)):
            return None
        for job in group.jobs[1:]:
            with open(job.log, "a") as log:
                log.write(f"trained together with {group.name}; the log is {group.log}\n")
        log = files.enter_context(open(group.log, "ab"))
        parent, log_start = os.getpid(), log.tell()

        def prepare():
            if _libc:
                _libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
                if os.getppid() != parent:  # it died before that
                    os._exit(128 + signal.SIGTERM)
            if cores and hasattr(os, "sched_setaffinity"):  # macOS has none
                os.sched_setaffinity(0, cores)

        process = subprocess.Popen(
            [*prefix, *group.command()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment() | (env or {}),
            preexec_fn=prepare,
            pass_fds=[lock.fileno() for lock in locks],
            start_new_session=True,
        )
        for lock in locks:
            lock.truncate(0)
            lock.write(str(process.pid))
        return Trainer(group, process, log_start)


def environment() -> dict:
    """The trainers' environment: this one, with compiled steps kept from one job of a sweep to the next."""
    defaults = {
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return defaults | os.environ


def running(job) -> int | None:
    """The process id of the job's trainer on this machine, or None."""
    return holder(_lock_path(job))


def explained(code: int, cause: str) -> bool:
    """Whether another try would end the same way: a mistake that the trainer told, or a model that does not fit."""
    return code == 2 or "out of memory allocating" in cause.lower()


def failed(trainer: Trainer, code: int, retries: int) -> dict[str, dict]:
    """Keeps the cause in the folder of each job that is not done, and returns it by job.

    "for_good" tells that another try would be in vain: the cause is explained, perhaps by the trainer itself for one of
    its jobs, or more than `retries` tries in a row got no further than those before.
    """
    cause = trainer.cause(code)
    failures = {}
    for job in trainer.group.jobs:
        if job.done():
            forget_cause(job)
        else:
            before = job.failure()
            failures[job.name] = (
                before if before.get("for_good") else _failed(job, cause, explained(code, cause), retries)
            )
    return failures


def fail(job, error: Exception) -> None:
    """Keeps what a trainer of several jobs found wrong with one of them."""
    _failed(job, str(error), True, 0)


def _failed(job, cause: str, for_good: bool, retries: int) -> dict:
    before, tokens = job.failure(), job.progress()[0]
    tries = before.get("tries", 0) + 1 if tokens <= before.get("tokens", -1) else 1
    failure = {
        "cause": cause,
        "tries": tries,
        "tokens": max(tokens, before.get("tokens", 0)),
        "for_good": for_good or tries > retries,
    }
    write_whole(job.folder / "failure.json", json.dumps(failure, indent=1))
    return failure


def forget_cause(job) -> None:
    (job.folder / "failure.json").unlink(missing_ok=True)


def lock_file(path: pathlib.Path):
    """The open file, locked until it is closed or this process ends; None if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open(path, "a+")
    if _acquire(lock):
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock
    lock.close()
    return None


def holder(path: pathlib.Path) -> int | None:
    """Who holds the lock file: a process id, 0 if it has not said yet, or None."""
    try:
        with open(path, "r+") as lock:
            return None if _acquire(lock) else int(lock.read() or 0)
    except FileNotFoundError:
        return None


def _lock_path(job) -> pathlib.Path:
    return job.here / "lock"


def _acquire(lock) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
