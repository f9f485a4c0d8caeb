"""What trainers print: a log for each job on the machine that trains it, its tries one after another."""

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
    """The time now, to the second, as logs write it."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def log(job: Job, attempt: int | None = None) -> bytes:
    """What the job's trainers on this machine printed; with `attempt`, one try alone: 1 is the first, -1 the last.
    UserError where there is no log, or no such try."""
    if not job.log.exists():
        raise UserError(f"job {job.name} has not started on this machine: there is no {job.log}")
    text = job.log.read_bytes()
    return text if attempt is None else one_try([part for part in BEGINNING.split(text) if part], attempt, job)


def one_try(tries: list, attempt: int, job: Job) -> Any:
    """The try that `attempt` names: 1 is the first, -1 the last. UserError if there is no such try."""
    if not attempt or abs(attempt) > len(tries):
        n = len(tries)
        raise UserError(f"--attempt={attempt}: job {job.name} has {n} tries, 1 to {n}, or -1 for the last")
    return tries[attempt - (attempt > 0)]


def tail(paths: Callable[[], Iterable[str | os.PathLike[str]]], over: Callable[[], bool]) -> Iterator[bytes]:
    """Yields what the files of paths(), which need not exist yet, hold and what is added, in whole lines, until over()
    tells that nothing will be added any more; a header marks each change of file."""
    read, shown, ended = {}, None, False
    while not ended:
        ended = over()  # asked before the files are read, so that nothing is missed
        for path in (os.fspath(path) for path in paths()):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                file.seek(read.get(path, 0))
                text = file.read()
                text = text if ended else text[: text.rfind(b"\n") + 1]
                read[path] = read.get(path, 0) + len(text)
                if text and path != shown and shown is not None:
                    yield f"==> {path} <==\n".encode()
                if text:
                    shown = path
                    yield text
        time.sleep(0.5 * (not ended))
