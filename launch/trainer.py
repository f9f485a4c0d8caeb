"""Trainer processes: at most one for each job, with a log. When one fails, failure.json records the cause.

Each job has a lock file, which its trainer inherits locked: the job is locked as long as the trainer lives, whatever
happens to the process that started it. When the starting process dies, the kernel sends the trainer SIGTERM.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from jmoe.errors import Unavailable, UserError
from jmoe.printable import printable
from jmoe.storage import durable, ownership
from jmoe.storage.files import cache_dir, write_whole
from jmoe.version import code_version
from launch import output, sweepfile
from launch.jobs import Files, Job, config_of

STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of a trainer that saved and stopped on request
FAILED_FOR_GOOD = 2  # exit code of launch.task where another try would not help
SECONDS_TO_SAVE = 300.0  # that a trainer gets between SIGTERM and SIGKILL
SLURM_PREFIXES = ("srun:", "slurmstepd")  # beginnings of the lines that Slurm adds to a trainer's log
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Trainer:
    """A running trainer of a job; `start` creates it.

    A trainer that shows no sign of life (steps, results, or anything printed) for some time gets SIGTERM, to save and
    stop, and later SIGKILL.

    Attributes:
      job: The job that it trains.
      process: The trainer's process.
      stalled: Why it was stopped, if it showed no sign of life; else "".
    """

    def __init__(
        self, job: Job, process: subprocess.Popen, log_start: int, stall_minutes: float, keeps_time: bool = False
    ) -> None:
        """Watches a process.

        Args:
          job: The job that the process trains.
          process: The trainer's process.
          log_start: The byte of the job's log where this trainer's output begins.
          stall_minutes: Minutes without a sign of life after which the trainer is stopped; 0: never.
          keeps_time: Whether this trainer writes time.json; of a job on several machines, one does.
        """
        self.job = job
        self.process = process
        self.stalled = ""
        self._log_start = log_start
        self._patience = 60 * stall_minutes  # seconds
        self._began = time.monotonic()
        self._next_look = 0.0
        self._last_sign: tuple[int, int, int] | None = None  # of life
        self._last_sign_at = self._began
        self._stopped_at: float | None = None
        # seconds of the job's earlier trainers; None if this one keeps no time, or has ended
        self._seconds_before = (job.seconds() or 0.0) if keeps_time else None

    def poll(self) -> int | None:
        """Its exit code; None while it runs. Also stops it if it shows no sign of life."""
        code = self.process.poll()
        now = time.monotonic()
        if code is None and now < self._next_look:
            return None
        self._next_look = now + min(60.0, self._patience / 4 or 60.0)
        self._write_time(now)
        if code is not None:
            self._seconds_before = None
            return code
        if self._patience:
            self._stop_if_stalled(now)
        return None

    def _write_time(self, now: float) -> None:
        """Writes the job's seconds of training, with those of earlier trainers, to time.json."""
        if self._seconds_before is None:
            return
        text = json.dumps({"seconds": round(self._seconds_before + now - self._began, 1)})
        with contextlib.suppress(OSError, Unavailable, UserError):  # only people read it: no reason for a sweep to end
            self.job.refuse_links()
            write_whole(self.job.folder / "time.json", text)

    def _stop_if_stalled(self, now: float) -> None:
        """Stops the trainer if it has shown no sign of life for too long; kills it if it does not stop."""
        with contextlib.suppress(Unavailable):  # a store that cannot be read says nothing of the trainer
            log = self.job.log
            log_size = log.stat().st_size if log.exists() else 0
            sign = (log_size, self.job.progress()[0], len(self.job.results()))
            if sign != self._last_sign:
                self._last_sign = sign
                self._last_sign_at = now
        if self._stopped_at is None:
            if now - self._last_sign_at > self._patience:
                self.stalled = f"stopped after {self._patience / 60:g} minutes without a sign of life"
                self._stopped_at = now
                _ask_to_stop(self.process)
        elif now - self._stopped_at > min(SECONDS_TO_SAVE, self._patience):
            _kill(self.process)

    def wait(self) -> int:
        """Waits until the trainer has ended; returns its exit code."""
        while (code := self.poll()) is None:
            time.sleep(0.2)
        return code

    def lines(self) -> list[str]:
        """The lines that the trainer, and srun if that started it, have printed, without srun's labels."""
        with open(self.job.log, "rb") as log:
            log.seek(self._log_start)
            text = re.sub(r"^ *\d+: ", "", log.read().decode(errors="replace"), flags=re.MULTILINE)
            return [line.strip() for line in text.splitlines() if line.strip()]

    def cause(self, code: int) -> str:
        """Why it ended with exit code `code`: its last error line, else the last line that it printed."""
        lines = [line for line in self.lines() if not line.startswith(SLURM_PREFIXES)]
        errors = [line for line in lines if re.match(r"error: |([\w.]+\.)?\w*(Error|Exception|Interrupt)\b", line)]
        message = (errors or lines or ["no output"])[-1].removeprefix("error: ")
        return f"{message[:2000]} ({self._how_it_ended(code)}; {self.job.log})"

    def _how_it_ended(self, code: int) -> str:
        if self.stalled:
            return self.stalled
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
            how += ", which is also how a machine out of memory ends a process"
        return how


def end(processes: list[subprocess.Popen], hurry: Callable[[], bool] = lambda: False) -> None:
    """Asks trainers to save and stop; kills those that still run after SECONDS_TO_SAVE, or once hurry() is true."""
    for process in processes:
        _ask_to_stop(process)
    deadline = time.monotonic() + SECONDS_TO_SAVE
    while any(process.poll() is None for process in processes):
        if time.monotonic() > deadline or hurry():
            for process in processes:
                _kill(process)
        time.sleep(0.1)


def _ask_to_stop(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)  # a halted trainer could not save


def _kill(process: subprocess.Popen) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own


def start(
    job: Job,
    stall_minutes: float,
    env: dict[str, str] | None = None,
    cores: list[int] | None = None,
    prefix: Sequence[str] = (),
) -> Trainer | None:
    """Starts the trainer of a job.

    Args:
      job: The job.
      stall_minutes: Minutes without a sign of life after which the trainer is stopped; 0: never.
      env: Environment variables beyond those of this process.
      cores: The CPU cores that the trainer may use; None for all.
      prefix: A command, such as srun's, to which the trainer's argument list is appended.

    Returns:
      The trainer; None if an earlier one still runs.

    Raises:
      UserError: The config file or the code has changed since the job was created, or what the trainer would
        write is a symbolic link.
    """
    version = code_version()
    if version != job.code[-1]:
        raise UserError(f"job {job.name} belongs to code {printable(job.code[-1])}, this machine has {version}")
    config_of(job)
    job.refuse_links()
    lock = ownership.lock(job.lock)
    if lock is None:
        return None
    env = _environment() | (env or {})
    with lock, durable.open_here(job.log, "ab") as log:
        sweepfile.write_job(job)
        log.write(output.header().encode())
        log.flush()
        log_start = log.tell()
        process = subprocess.Popen(
            [*prefix, *job.command()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            preexec_fn=_preparation(cores),
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )
        ownership.sign(lock, ownership.Owner.of(process.pid, f"the trainer of {job.name}"))
        return Trainer(job, process, log_start, stall_minutes, keeps_time=env.get("JAX_PROCESS_ID", "0") == "0")


def _environment() -> dict[str, str]:
    """This process's environment, with defaults for what every trainer needs."""
    return {
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # huge pages: a CPU step allocates its temporaries anew each time
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "compiled"),  # shared by the jobs of a sweep
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JMOE_OWNER_PATIENCE": str(2 * SECONDS_TO_SAVE),  # an earlier trainer, perhaps elsewhere, may be saving
        **os.environ,
    }


def _preparation(cores: list[int] | None) -> Callable[[], None]:
    """The function that a trainer's process calls first, so that it ends with its parent and uses only these cores."""
    parent = os.getpid()

    def prepare() -> None:
        if _libc:
            _libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:  # the parent died before prctl
                os._exit(128 + signal.SIGTERM)
        if cores and hasattr(os, "sched_setaffinity"):  # macOS has none
            os.sched_setaffinity(0, cores)

    return prepare


def start_when_free(job: Job, stall_minutes: float, **options: Any) -> Trainer:
    """Waits until an earlier trainer of the job, which may be saving, has ended; then does what `start` does."""
    while not (started := start(job, stall_minutes, **options)):
        time.sleep(1)
    return started


def would_fail_again(code: int, cause: str) -> bool:
    """Whether another try would end the same way: a user's mistake, or a model that does not fit in memory."""
    return code == 2 or "out of memory allocating" in cause.lower()


def record_failure(trainer: Trainer, code: int, retries: int) -> dict:
    """Writes failure.json after a trainer ended with exit code `code`.

    Returns:
      What failure.json holds. {} if the job is done all the same, or another trainer has taken it over because this
      machine was cut off: The failure does not concern that one.
    """
    job = trainer.job
    job.refuse_links()
    cause = trainer.cause(code)
    if job.done():
        forget_cause(job)
        return {}
    before = job.failure()
    if before.get("for_good"):  # launch.cancel, say, marked it meanwhile
        return before
    lock = job.folder / "train.lock"
    with contextlib.suppress(ownership.Taken), ownership.hold(lock, "launch, which notes a failure"):
        return write_failure(job, cause, would_fail_again(code, cause), retries)
    return {}


def write_failure(job: Job, cause: str, for_good: bool, retries: int) -> dict:
    """Writes failure.json to the job's folder.

    Args:
      job: The job.
      cause: Why it failed, in words.
      for_good: Whether another try would not help.
      retries: The failure is also for good if more than this number of tries in a row made no progress.

    Returns:
      What failure.json holds.
    """
    job.refuse_links()
    before = job.failure()
    tokens, _ = job.progress()
    made_progress = tokens > before.get("tokens", -1)
    tries = 1 if made_progress else before.get("tries", 0) + 1
    tokens = max(tokens, before.get("tokens", 0))
    failure = {"cause": cause, "tries": tries, "tokens": tokens, "for_good": for_good or tries > retries}
    write_whole(job.folder / "failure.json", json.dumps(failure, indent=1))
    return failure


def give_up(job: Job, cause: str, how: str) -> None:
    """Records that a user gave the job up; `how` is "cancelled" or "accepted"."""
    job.refuse_links()
    before = job.failure()
    job.folder.mkdir(parents=True, exist_ok=True)  # it may not have begun
    failure = {"cause": cause, "tries": before.get("tries", 0), "tokens": before.get("tokens", 0), "for_good": True}
    write_whole(job.folder / "failure.json", json.dumps(failure | {how: True}, indent=1))


def forget_cause(job: Job, files: Files | None = None) -> None:
    """Deletes the record of the job's failure, but not that of an accepted one; `files` as in the methods of Job."""
    if job.has("failure.json", files) and not job.given_up(files):
        job.refuse_links()
        (job.folder / "failure.json").unlink(missing_ok=True)
