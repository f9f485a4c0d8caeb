"""The output of trainers: each job has a log on the machine that trains it, with its tries one after another."""

import contextlib
import datetime
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jmoe.errors import UserError
from launch.jobs import Job

BEGINNING = re.compile(rb"^(?===> \S+Z, a trainer on .* <==$)", re.MULTILINE)


def header() -> str:
    """The line that begins a try."""
    return f"==> {now()}, a trainer on {socket.gethostname()} <==\n"


def now() -> str:
    """The time now in UTC, to the second, as logs write it."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def log(job: Job, attempt: int | None = None) -> bytes:
    """The output of the job's trainers on this machine.

    Args:
      job: The job.
      attempt: Only this try: 1 is the first, -1 the last.

    Raises:
      UserError: There is no log, or no such try.
    """
    if not job.log.exists():
        raise UserError(f"job {job.name} has not started on this machine: there is no {job.log}")
    text = job.log.read_bytes()
    if attempt is None:
        return text
    tries = [part for part in BEGINNING.split(text) if part]
    return one_try(tries, attempt, job)


def one_try(tries: list, attempt: int, job: Job) -> Any:
    """The try that `attempt` names: 1 is the first, -1 the last. UserError if there is no such try."""
    if not attempt or abs(attempt) > len(tries):
        n = len(tries)
        raise UserError(f"--attempt={attempt}: job {job.name} has {n} tries, 1 to {n}, or -1 for the last")
    index = attempt - 1 if attempt > 0 else attempt
    return tries[index]


def tail(paths: Callable[[], Iterable[str | os.PathLike[str]]], over: Callable[[], bool]) -> Iterator[bytes]:
    """Yields what files hold and what is added to them, in whole lines; a header marks each change of file.

    Args:
      paths: Returns the paths of the files, which need not exist yet.
      over: Returns whether nothing will be added any more.
    """
    n_read: dict[str, int] = {}  # bytes of each file
    newest = None  # the file that was shown last
    ended = False
    while not ended:
        ended = over()  # called before the files are read, so that nothing is missed
        for path in [os.fspath(path) for path in paths()]:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                file.seek(n_read.get(path, 0))
                text = file.read()
                if not ended:
                    text = text[: text.rfind(b"\n") + 1]
                if not text:
                    continue
                n_read[path] = n_read.get(path, 0) + len(text)
                if newest not in (None, path):
                    yield f"==> {path} <==\n".encode()
                newest = path
                yield text
        if not ended:
            time.sleep(0.5)
