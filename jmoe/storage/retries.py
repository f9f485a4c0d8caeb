"""Requests that a store does not answer are sent again, with growing pauses.

That ends after JMOE_STORE_PATIENCE seconds (300): then Unavailable ends the process with an exit code that means "try
again". An owner ends before that, when its lease is OVERDUE (jmoe/storage/lease.py). jmoe/storage/gcs.py retries its
own requests; `retried` retries those of other libraries.
"""

import asyncio
import contextlib
import os
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from jmoe.errors import Unavailable, UserError
from jmoe.storage import durable
from jmoe.storage.files import is_remote
from jmoe.storage.owner_check import check_owner

_T = TypeVar("_T")

# HTTP codes worth a retry: a token about to be renewed, a timeout, too many requests, and errors of the server
PASSING = (401, 408, 429, 500, 502, 503, 504)
# the names that TensorStore gives to the same errors; it has one name for a 401 and a 403
WORDS = "UNAVAILABLE|DEADLINE_EXCEEDED|UNAUTHENTICATED|PERMISSION_DENIED|ABORTED|INTERNAL|UNKNOWN"


def passes(error: BaseException) -> bool:
    """Whether an error means that the store gave no answer, so that a later try may succeed.

    "No such object" and "forbidden" are answers.
    """
    package = type(error).__module__.partition(".")[0]
    if package in ("gcsfs", "google"):
        code = getattr(error, "code", None)
        return code in PASSING if code else type(error).__name__ != "DefaultCredentialsError"
    if package in ("aiohttp", "requests", "urllib3") or isinstance(error, (ConnectionError, socket.gaierror)):
        return True
    forbidden = "http_response_code='403'" in str(error)
    return package == "builtins" and re.match(rf"({WORDS}): ", str(error)) is not None and not forbidden


_hurry = threading.Event()


def wait_no_more() -> None:
    """Makes requests raise Unavailable from now on if they get no answer within a second or two.

    Called when the process is asked to stop.
    """
    _hurry.set()


async def unless_hurried(work: Any) -> Any:
    """Awaits `work` and returns its result.

    Raises:
      Unavailable: It takes longer than a second or two after wait_no_more().
    """
    task = asyncio.ensure_future(work)
    n_seconds_hurried = 0
    try:
        while not (await asyncio.wait([task], timeout=1))[0]:
            if _hurry.is_set():
                n_seconds_hurried += 1
            if n_seconds_hurried > 1:
                raise Unavailable("the store gave no answer, and this process was asked to stop")
        return task.result()
    finally:
        task.cancel()  # has no effect on a task that is done


class Patience:
    """The pauses between tries of a request, which grow to half a minute and end after JMOE_STORE_PATIENCE seconds."""

    _printed = 0.0  # when this process last printed that it waits: many requests may wait at once

    def __init__(self, name: str) -> None:
        """`name`: what the request reads or writes, for people. UserError where JMOE_STORE_PATIENCE is no number."""
        self._name = name
        self._began = time.monotonic()
        self._n_tries = 0
        try:
            self._seconds = float(os.environ.get("JMOE_STORE_PATIENCE", "300"))
        except ValueError as error:
            raise UserError(f"JMOE_STORE_PATIENCE must be a number of seconds: {error}") from None

    def pause(self, error: Exception) -> float:
        """Seconds to wait after `error`.

        Raises:
          Unavailable: JMOE_STORE_PATIENCE seconds are over.
        """
        waited = time.monotonic() - self._began
        unit = self._seconds / 300  # seconds; 1 with the default patience
        if waited >= self._seconds:
            raise Unavailable(
                f"{self._name}: the store gave no answer for {waited:.0f} s ({_in_words(error)}); the same command "
                "goes on from what is saved"
            ) from error
        pause = min(2**self._n_tries, 32) * unit * random.uniform(0.75, 1)  # hosts of a run must not retry in step
        self._n_tries += 1
        now = time.monotonic()
        if self._n_tries > 1 and now - Patience._printed > 10 * unit:
            Patience._printed = now
            seconds_owned = check_owner()
            left = self._seconds - waited
            if seconds_owned is not None:  # an owner ends when its lease does
                left = min(left, seconds_owned)
            line = f"{self._name} does not answer ({_in_words(error)}); trying on for {left:.0f} s"
            print(line, file=sys.stderr, flush=True)
        return min(pause, self._seconds - waited)


def _in_words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def retried(call: Callable[[], _T], path: str | os.PathLike) -> _T:
    """Returns `call()`, retried with growing pauses while the store of `path` gives no answer.

    A `path` on a disk gets a single call.

    Raises:
      Unavailable: The store gave no answer for JMOE_STORE_PATIENCE seconds.
    """
    patience = None
    while True:
        try:
            return call()
        except Exception as error:  # noqa: BLE001  each layer of storage raises its own errors
            if not is_remote(path) or not passes(error):
                raise
            if patience is None:
                patience = Patience(os.fspath(path))
            time.sleep(patience.pause(error))


@contextlib.contextmanager
def outage_named(path: str | os.PathLike) -> Generator[None]:
    """Turns a library's error for a store that gave no answer into Unavailable, and makes one of the disk name a file.

    Args:
      path: What the block reads or writes.
    """
    try:
        with contextlib.nullcontext() if is_remote(path) else durable.named(path):
            yield
    except Exception as error:
        if not is_remote(path) or not passes(error):
            raise
        sentence = f"{os.fspath(path)}: {_in_words(error)}; the same command goes on from what is saved"
        raise Unavailable(sentence) from error
