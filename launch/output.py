"""What trainers print: a log for each job on the machine that trains it, its tries one after another."""

import contextlib
import datetime
import os
import re
import socket
import time

from jmoe.errors import UserError

BEGINNING = re.compile(rb"^(?===> \S+Z, a trainer on .* <==$)", re.MULTILINE)


def header() -> str:
    """The line that begins a try."""
    return f"==> {now()}, a trainer on {socket.gethostname()} <==\n"


def now() -> str:
    """This second, as logs name it."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def log(job, attempt: int | None = None) -> bytes:
    """What the job's trainers on this machine printed; of one try alone where `attempt` counts it, from 1, or from -1
    backwards.

    Raises:
      UserError: there was none, or not that many.
    """
    if not job.log.exists():
        raise UserError(f"job {job.name} has not started on this machine: there is no {job.log}")
    text = job.log.read_bytes()
    return text if attempt is None else one_try([part for part in BEGINNING.split(text) if part], attempt, job)


def one_try(tries: list, attempt: int, job):
    """That of the tries which `attempt` counts; UserError where it counts none."""
    if not attempt or abs(attempt) > len(tries):
        raise UserError(
            f"--attempt={attempt}: job {job.name} has {len(tries)} tries, 1 to {len(tries)}, or -1 for the last"
        )
    return tries[attempt - (attempt > 0)]


def tail(paths, over):
    """Yields what stands in files and is added to them, whole lines, until over(); a header names one of several.

    Args:
      paths, over: functions without arguments: the files, which may come to be later; and whether nothing will be
        added any more.
    """
    read, shown, ended = {}, None, False
    while not ended:
        ended = over()  # asked before the files are read, so that nothing is missed
        for path in map(os.fspath, paths()):
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
