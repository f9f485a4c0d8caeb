"""One trainer process: at most one for each job, with a log, and with the cause kept when it fails.

It trains a jobs.Group, most often of a single job. Each job's lock file tells whether a trainer of the job runs on this
machine. The trainer inherits the locks, so that they are held as long as the trainer lives, whatever becomes of the
process that started it; and the trainer is told to stop (SIGTERM) when that process dies.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from jmoe.errors import UNAVAILABLE, UserError
from jmoe.storage import identity, ownership
from jmoe.storage.cache import cache_dir
from jmoe.storage.files import write_whole
from jmoe.version import code_version
from launch import jobs as jobs_lib
from launch import record

STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of a trainer that saved and stopped when asked
SECONDS_TO_SAVE = 300.0  # that a trainer gets between SIGTERM and SIGKILL
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Trainer:
    """A running trainer of `group`; start() makes it."""

    def __init__(self, group, process, log_start: int):
        self.group, self.process, self._log_start = group, process, log_start
        self.stalled = ""  # why it was stopped, where that was for standing still

    def cause(self, code: int) -> str:
        """Why it ended with `code`: its own error line, else the last thing it said."""
        with open(self.group.log, "rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        lines = [line.strip() for line in lines if line.strip() and not line.startswith(("srun:", "slurmstepd"))]
        errors = [line for line in lines if re.match(r"error: |([\w.]+\.)?\w*(Error|Exception|Interrupt)\b", line)]
        how = self.stalled or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL) and not self.stalled:
            how += ", which is also how a machine out of memory ends a process"
        if len(self.group.jobs) > 1:
            how += f"; {len(self.group.jobs)} jobs together, --together takes fewer"
        return f"{(errors or lines or ['no output'])[-1][:2000]} ({how}; {self.group.log})"


class Watch:
    """A trainer under watch: one that shows no sign of life for `minutes` is asked to save and stop, and then killed.

    Signs of life are steps, results, and whatever it prints. 0 minutes: it is left alone.
    """

    def __init__(self, trainer: Trainer, minutes: float):
        self.trainer, self.group, self._seconds = trainer, trainer.group, 60 * minutes
        self._moved, self._next, self._sign, self._asked = time.monotonic(), 0.0, None, None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        code, now = self.trainer.process.poll(), time.monotonic()
        if code is not None or not self._seconds:
            return code
        if now >= self._next:
            self._next = now + min(60.0, self._seconds / 4)
            if (sign := self._sign_of_life()) != self._sign:
                self._sign, self._moved = sign, now
        if self._asked is None and now - self._moved > self._seconds:
            self.trainer.stalled = f"stopped after {self._seconds / 60:g} minutes without a sign of life"
            self._asked = now
            _ask(self.trainer.process)
        elif self._asked is not None and now - self._asked > min(SECONDS_TO_SAVE, self._seconds):
            _kill(self.trainer.process)
        return None

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        while (code := self.poll()) is None:
            time.sleep(0.2)
        return code

    def _sign_of_life(self):
        log = self.group.log
        steps = [(job.progress()[0], len(job.results())) for job in self.group.jobs]
        return log.stat().st_size if log.exists() else 0, steps


def end(processes, hurry=lambda: False) -> None:
    """Has trainers save and stop, and kills those that have not after SECONDS_TO_SAVE, or once `hurry()`."""
    for process in processes:
        _ask(process)
    deadline = time.monotonic() + SECONDS_TO_SAVE
    while any(process.poll() is None for process in processes):
        if time.monotonic() > deadline or hurry():
            for process in processes:
                _kill(process)
        time.sleep(0.1)


def _ask(process) -> None:
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)  # one that somebody halted could not save


def _kill(process) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own


def start(group, env: dict | None = None, cores: list[int] | None = None, prefix=()) -> Trainer | None:
    """Starts the trainer of `group` behind the argument list `prefix`; None if an earlier one of any job still runs.

    Raises:
      UserError: a config file or the code are not those that a job was made with.
    """
    for job in group.jobs:
        if (version := code_version()) != job.code[-1]:
            raise UserError(f"job {job.name} belongs to code {job.code[-1]}, this machine has {version}")
        jobs_lib.config_of(job)
    with contextlib.ExitStack() as files:
        locks = []
        for job in group.jobs:
            if (lock := ownership.lock(lock_path(job))) is None:
                return None
            locks.append(files.enter_context(lock))
        for job in group.jobs:
            record.write_job(job)
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
            ownership.sign(lock, identity.Owner.of(process.pid, f"the trainer of {group.name}"))
        return Trainer(group, process, log_start)


def environment() -> dict:
    """The trainers' environment: this one, with compiled steps kept from one job of a sweep to the next."""
    defaults = {
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JMOE_OWNER_PATIENCE": str(2 * SECONDS_TO_SAVE),  # an earlier trainer, perhaps elsewhere, may be saving
    }
    return defaults | os.environ


def running(job) -> identity.Owner | None:
    """The job's trainer on this machine, or on another one that shares the job's folder."""
    return ownership.owner(lock_path(job))


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
            again = code == UNAVAILABLE  # an outage of the store is no try
            failures[job.name] = (
                before if before.get("for_good") else _failed(job, cause, explained(code, cause), retries, again)
            )
    return failures


def fail(job, error: Exception) -> None:
    """Keeps what a trainer of several jobs found wrong with one of them."""
    _failed(job, str(error), True, 0)


def _failed(job, cause: str, for_good: bool, retries: int, again: bool = False) -> dict:
    before, tokens = job.failure(), job.progress()[0]
    tries = (before.get("tries", 0) if tokens <= before.get("tokens", -1) else 0) + (not again)
    failure = {
        "cause": cause,
        "tries": tries,
        "tokens": max(tokens, before.get("tokens", 0)),
        "for_good": for_good or tries > retries and not again,
    }
    write_whole(job.folder / "failure.json", json.dumps(failure, indent=1))
    return failure


def forget_cause(job) -> None:
    (job.folder / "failure.json").unlink(missing_ok=True)


def lock_path(job) -> pathlib.Path:
    return job.here / "lock"
