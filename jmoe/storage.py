"""Files of a workdir, on a local disk or in object storage (gs://BUCKET/FOLDER). A workdir is always an epath.Path.

A store that does not answer is asked again with growing pauses, for JMOE_STORE_PATIENCE seconds (300); then Unavailable
ends the process with an exit code that means "try again". jmoe/gcs.py does so for every single request, `retried` for
what other libraries ask.
"""

import json
import logging
import os
import pathlib
import random
import re
import socket
import sys
import time
import uuid

import fsspec
from etils import epath

from jmoe.cli import Unavailable, UserError

# other processes write beside this one, and what gcsfs once listed it would not look up again
fsspec.config.conf.setdefault("gs", {})["use_listings_cache"] = False
for scheme in ("gs", "gcs"):
    fsspec.register_implementation(scheme, "jmoe.gcs.Store", clobber=True)
# gcsfs asks for a bucket's type by credentials that anonymous or emulated access has not, and warns at every call
logging.getLogger("gcsfs").addFilter(lambda record: "Could not determine bucket type" not in record.getMessage())


CLIENTS = ("aiohttp", "gcsfs", "google", "requests", "urllib3")  # packages whose errors are the store's
PASSING = (401, 408, 429)  # HTTP: a token about to be renewed, and too slow or too many requests; and all from 500
# what TensorStore says of the same; it calls a 401 and a 403 alike
WORDS = "UNAVAILABLE|DEADLINE_EXCEEDED|UNAUTHENTICATED|PERMISSION_DENIED|ABORTED|INTERNAL|UNKNOWN"


def passes(error: BaseException) -> bool:
    """Whether an error says that the store gave no answer; "there is no such object" and "forbidden" are answers."""
    code = next((c for name in ("code", "status") if isinstance(c := getattr(error, name, None), int)), None)
    if type(error).__module__.partition(".")[0] in CLIENTS and type(error).__name__ != "DefaultCredentialsError":
        return code is None or code >= 500 or code in PASSING
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    return re.match(rf"({WORDS})\b", str(error)) is not None and "http_response_code='403'" not in str(error)


class Patience:
    """The pauses between tries of one thing, which grow to half a minute and end after JMOE_STORE_PATIENCE seconds."""

    _told = 0.0  # when this process last told that it waits: many requests may wait at once

    def __init__(self, what: str):
        self._what, self._began, self._n_tries = what, time.monotonic(), 0
        try:
            self._seconds = float(os.environ.get("JMOE_STORE_PATIENCE", "300"))
        except ValueError as error:
            raise UserError(f"JMOE_STORE_PATIENCE must be a number of seconds: {error}") from None

    def pause(self, error: Exception) -> float:
        """Seconds to wait after `error`.

        Raises:
          Unavailable: it has been long enough.
        """
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        waited, unit = time.monotonic() - self._began, self._seconds / 300
        if waited >= self._seconds:
            raise Unavailable(
                f"{self._what}: the store gave no answer for {waited:.0f} s ({reason}); the same command goes on from "
                "what is saved"
            ) from error
        pause = min(2**self._n_tries, 32) * unit * random.uniform(0.75, 1)  # not all hosts of a run at once
        self._n_tries += 1
        now = time.monotonic()
        if self._n_tries > 1 and now - Patience._told > 10 * unit:
            Patience._told = now
            left = self._seconds - waited
            print(f"{self._what} does not answer ({reason}); trying on for {left:.0f} s", file=sys.stderr, flush=True)
        return min(pause, self._seconds - waited)


def retried(call, what: str):
    """`call()`, made again with growing pauses while the store gives no answer; it must be safe to repeat.

    Raises:
      Unavailable: after JMOE_STORE_PATIENCE seconds. Whatever else `call` raises.
    """
    patience = None
    while True:
        try:
            return call()
        except Exception as error:  # noqa: BLE001  each layer of storage raises its own
            if not passes(error):
                raise
            patience = patience or Patience(what)
            time.sleep(patience.pause(error))


def is_remote(path) -> bool:
    """Whether `path` names objects (gs://...), which appear whole but can't be appended to or renamed in one go."""
    return "://" in os.fspath(path)


def absolute(path: str) -> epath.Path:
    """What a flag names, independent of the folder that the program runs in."""
    return epath.Path(path if is_remote(path) else os.path.abspath(os.path.expanduser(path)))


def make_workdir(path: str) -> epath.Path:
    """`path` made absolute, created, and proved to be writable before any work is done.

    Raises:
      UserError: naming the path and the reason. Unavailable: a store that does not answer.
    """
    folder = absolute(path)
    probe = folder / f".probe-{uuid.uuid4().hex}"  # hosts may share it, and have processes of the same number
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("0" * 4096)
        probe.unlink()
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001  object stores raise their clients' own
        if not is_remote(path) and not isinstance(error, OSError):
            raise
        reason = os.strerror(error.errno) if getattr(error, "errno", None) else " ".join(str(error).split())
        raise UserError(f"--workdir={path} cannot be written: {reason or type(error).__name__}") from None
    return folder


def write_whole(path: pathlib.Path | epath.Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all, whatever kills the process or fills the disk."""
    if is_remote(path):
        path.write_text(text)  # an object appears when its upload is complete
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_lines(path: pathlib.Path | epath.Path) -> list[dict]:
    """Whole lines of a JSONL file; a last line that a kill cut short is left out, and a missing file has none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
