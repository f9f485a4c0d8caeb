"""Trainer processes: at most one for each job, with a log; when one fails, the cause is kept.

Each job has a lock file, which its trainer inherits locked: the job is locked as long as the trainer lives, whatever
becomes of the process that started it. When the starting process dies, the kernel sends the trainer SIGTERM.
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
from jmoe.storage import durable, ownership
from jmoe.storage.files import cache_dir, write_whole
from jmoe.version import code_version
from launch import output, sweepfile
from launch.jobs import Files, Job, config_of

STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of a trainer that saved and stopped when asked
SECONDS_TO_SAVE = 300.0  # that a trainer gets between SIGTERM and SIGKILL
SLURMS_OWN = ("srun:", "slurmstepd")  # beginnings of the lines that Slurm adds to a trainer's log
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Trainer:
    """A running trainer of `job`; start() makes it. If it shows no sign of life (steps, results, or anything printed)
    for `stall_minutes`, it gets SIGTERM, to save and stop, and later SIGKILL. With 0 minutes it is never stopped."""

    def __init__(
        self, job: Job, process: subprocess.Popen, log_start: int, stall_minutes: float, keeps_time: bool = False
    ) -> None:
        self.job, self.process, self._log_start = job, process, log_start
        self._patience, self._began, self._next_look = 60 * stall_minutes, time.monotonic(), 0.0
        self._sign, self._moved = None, self._began  # its last sign of life, and when that was
        self._asked = None  # when it was asked to stop
        # of a job on several machines, one trainer keeps the time; None: not this one, or it has ended
        self._before = (job.seconds() or 0.0) if keeps_time else None
        self.stalled = ""  # why it was asked to stop, if it showed no sign of life

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        code, now = self.process.poll(), time.monotonic()
        if code is None and now < self._next_look:
            return None
        self._next_look = now + min(60.0, self._patience / 4 or 60.0)
        if self._before is not None:
            text = json.dumps({"seconds": round(self._before + now - self._began, 1)})  # with those of earlier trainers
            with contextlib.suppress(OSError, Unavailable):  # only people read it: no reason for a sweep to end
                write_whole(self.job.folder / "time.json", text)
        if code is not None:
            self._before = None
        if code is not None or not self._patience:
            return code
        with contextlib.suppress(Unavailable):  # a store that cannot be read says nothing of the trainer
            log = self.job.log
            sign = log.stat().st_size if log.exists() else 0, self.job.progress()[0], len(self.job.results())
            if sign != self._sign:
                self._sign, self._moved = sign, now
        if self._asked is None and now - self._moved > self._patience:
            self.stalled = f"stopped after {self._patience / 60:g} minutes without a sign of life"
            self._asked = now
            _ask(self.process)
        elif self._asked is not None and now - self._asked > min(SECONDS_TO_SAVE, self._patience):
            _kill(self.process)
        return None

    def wait(self) -> int:
        """Its exit code, when it has ended."""
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
        """Why it ended with `code`: its own error line, else the last thing it printed."""
        lines = [line for line in self.lines() if not line.startswith(SLURMS_OWN)]
        errors = [line for line in lines if re.match(r"error: |([\w.]+\.)?\w*(Error|Exception|Interrupt)\b", line)]
        how = self.stalled or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL) and not self.stalled:
            how += ", which is also how a machine out of memory ends a process"
        said = (errors or lines or ["no output"])[-1].removeprefix("error: ")
        return f"{said[:2000]} ({how}; {self.job.log})"


def end(processes: list[subprocess.Popen], hurry: Callable[[], bool] = lambda: False) -> None:
    """Asks trainers to save and stop; kills those still running after SECONDS_TO_SAVE, or once hurry() is true."""
    for process in processes:
        _ask(process)
    deadline = time.monotonic() + SECONDS_TO_SAVE
    while any(process.poll() is None for process in processes):
        if time.monotonic() > deadline or hurry():
            for process in processes:
                _kill(process)
        time.sleep(0.1)


def _ask(process: subprocess.Popen) -> None:
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
    """Starts the trainer of `job`, on these CPU `cores` and with `env` beyond this process's environment; its argument
    list is appended to the command `prefix`, such as srun's. None if an earlier one still runs. UserError where the
    config file or the code has changed since the job was made."""
    if (version := code_version()) != job.code[-1]:
        raise UserError(f"job {job.name} belongs to code {job.code[-1]}, this machine has {version}")
    config_of(job)
    if (lock := ownership.lock(job.lock)) is None:
        return None
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "compiled"),  # kept from one job of a sweep to the next
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JMOE_OWNER_PATIENCE": str(2 * SECONDS_TO_SAVE),  # an earlier trainer, perhaps elsewhere, may be saving
        **os.environ,
        **(env or {}),
    }
    with lock, durable.open_here(job.log, "ab") as log:
        sweepfile.write_job(job)
        log.write(output.header().encode())
        log.flush()
        parent, log_start = os.getpid(), log.tell()

        def prepare() -> None:
            if _libc:
                _libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
                if os.getppid() != parent:  # the parent died before prctl
                    os._exit(128 + signal.SIGTERM)
            if cores and hasattr(os, "sched_setaffinity"):  # macOS has none
                os.sched_setaffinity(0, cores)

        process = subprocess.Popen(
            [*prefix, *job.command()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            preexec_fn=prepare,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )
        ownership.sign(lock, ownership.Owner.of(process.pid, f"the trainer of {job.name}"))
        return Trainer(job, process, log_start, stall_minutes, keeps_time=env.get("JAX_PROCESS_ID", "0") == "0")


def start_when_free(job: Job, stall_minutes: float, **options: Any) -> Trainer:
    """Waits until an earlier trainer of the job, which may be saving, has ended; then does what `start` does."""
    while not (started := start(job, stall_minutes, **options)):
        time.sleep(1)
    return started


def explained(code: int, cause: str) -> bool:
    """Whether another try would end the same way: a user's mistake, or a model that does not fit in memory."""
    return code == 2 or "out of memory allocating" in cause.lower()


def failed(trainer: Trainer, code: int, retries: int) -> dict:
    """Writes failure.json to the job's folder and returns what it holds; {} if the job is done all the same, or another
    trainer has taken it over because this machine was cut off: this failure is none of its."""
    job, cause = trainer.job, trainer.cause(code)
    if job.done():
        forget_cause(job)
        return {}
    if (before := job.failure()).get("for_good"):  # launch.cancel, say, marked it meanwhile
        return before
    lock = job.folder / "train.lock"
    with contextlib.suppress(ownership.Taken), ownership.hold(lock, "launch, which notes a failure"):
        return fail(job, cause, explained(code, cause), retries)
    return {}


def fail(job: Job, cause: str, for_good: bool, retries: int) -> dict:
    """Writes failure.json to the job's folder and returns what it holds: "for_good" if another try would be in vain,
    by `for_good` or because more than `retries` tries in a row got no further than those before."""
    before, tokens = job.failure(), job.progress()[0]
    tries = (before.get("tries", 0) if tokens <= before.get("tokens", -1) else 0) + 1
    tokens = max(tokens, before.get("tokens", 0))
    failure = {"cause": cause, "tries": tries, "tokens": tokens, "for_good": for_good or tries > retries}
    write_whole(job.folder / "failure.json", json.dumps(failure, indent=1))
    return failure


def give_up(job: Job, cause: str, how: str) -> None:
    """Records that a user gave the job up; `how`: "cancelled" or "accepted"."""
    before = job.failure()
    job.folder.mkdir(parents=True, exist_ok=True)  # it may not have begun
    failure = {"cause": cause, "tries": before.get("tries", 0), "tokens": before.get("tokens", 0), "for_good": True}
    write_whole(job.folder / "failure.json", json.dumps(failure | {how: True}, indent=1))


def forget_cause(job: Job, files: Files | None = None) -> None:
    """Deletes the record of the job's failure, but not that of an accepted one; `files` as in Job.results."""
    if job.has("failure.json", files) and not job.given_up(files):
        (job.folder / "failure.json").unlink(missing_ok=True)
