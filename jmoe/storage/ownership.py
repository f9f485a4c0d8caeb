"""Who owns a workdir: at most one process at a time works in it, and every other process can see which one.

On a file system the owner holds an exclusive lock (flock) on a file, and writes into it who it is. The lock ends with
the process. It belongs to the file and not to its name: a symlink, another spelling of the path and another mount lead
to the same owner, on this machine and on others that share the folder.

On gs:// the owner holds a lease: an object that a process writes only over the generation that it last saw, so that one
of two writers fails. The owner writes it again every BEAT seconds. A process that wants the lease watches it. A new
generation means that the owner lives. After EXPIRY seconds without one, in which the store could be read, the process
takes the lease over and says so; it never compares the clocks of two machines. An owner that finds its lease taken (it
was halted or cut off for that long) ends at once, since its files now belong to another process.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import pathlib
import sys
import threading
import time

from etils import epath

from jmoe.errors import UserError
from jmoe.storage.files import is_remote, retried
from jmoe.storage.identity import NOBODY, Owner

BEAT = 10.0  # seconds
EXPIRY = 60.0
SECONDS_TO_RELEASE = 3.0  # for the last heartbeat, and again for the deletion: a stopping process waits no longer


class Taken(UserError):
    """Another process, `owner`, is the owner of `path`."""

    def __init__(self, path, owner: Owner):
        super().__init__(f"{os.fspath(path)} is held by {owner}")
        self.owner = owner


@contextlib.contextmanager
def hold(path: epath.Path, what: str, wait: float = 0.0):
    """Makes this process the owner of what the file or object `path` stands for, until the block is left.

    `path` is an object on gs://, else a file, which is created if missing; `what` names the program. Raises Taken if
    another process remains the owner for more than `wait` seconds, and UserError if the file system has no locks.
    """
    me = Owner.of(what=what)
    if is_remote(path):
        with _Lease(path, me).held(wait):
            yield
        return
    began, printed = time.monotonic(), False
    while (file := lock(pathlib.Path(path))) is None:
        waited = time.monotonic() - began
        if waited > max(wait, 0.5):  # owner() holds the file for a moment while it looks
            raise Taken(path, owner(path) or NOBODY)
        if wait and waited > 0.5 and not printed:
            printed = True
            limit = f" up to {wait:.0f} s" if wait < math.inf else ""
            _print(f"waiting{limit} for {owner(path) or NOBODY}, which holds {os.fspath(path)}")
        time.sleep(0.05)
    with file:
        sign(file, me)
        try:
            yield
        finally:
            file.truncate(0)


def owner(path) -> Owner | None:
    """Who holds `path`; looks once and writes nothing. An owner that did not write who it is has the pid 0. A lease
    whose owner has ended still counts as held until another process takes it."""
    try:
        if is_remote(path):
            return _read(epath.Path(path).read_text())
        with open(path, errors="replace") as file:
            return None if _acquire(file, fcntl.LOCK_SH) else _read(file.read())
    except (FileNotFoundError, PermissionError):
        return None


def lock(path: pathlib.Path):
    """The open file, locked until this process and those that inherit it close it; None if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+")
    if _acquire(file, fcntl.LOCK_EX):
        return file
    file.close()
    return None


def sign(file, owner: Owner) -> None:
    """Writes the owner of a locked file into it."""
    file.truncate(0)
    file.write(json.dumps(dataclasses.asdict(owner)))
    file.flush()


def _acquire(file, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL):
            raise
        raise UserError(
            f"{file.name} cannot be locked ({error.strerror}), and nothing else keeps two processes apart there; mount "
            "the file system with flock, or take another folder"
        ) from None


def _read(text: str) -> Owner:
    try:
        return Owner(**json.loads(text))
    except (ValueError, TypeError):
        return NOBODY


class _Lease:
    """The lease that the object `path` stands for."""

    def __init__(self, path, me: Owner):
        import tensorstore

        bucket, _, self._key = os.fspath(path).partition("://")[2].partition("/")
        self._store = tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket}).result()
        self._path, self._me, self._over = path, me, threading.Event()

    @contextlib.contextmanager
    def held(self, wait: float):
        self._generation = self._take(wait)
        heart = threading.Thread(target=self._beat, daemon=True)
        heart.start()
        try:
            yield
        finally:
            self._over.set()
            heart.join(SECONDS_TO_RELEASE)
            with contextlib.suppress(Exception):  # it expires by itself
                self._store.write(self._key, None, if_equal=self._generation).result(SECONDS_TO_RELEASE)

    def _take(self, wait: float):
        """Writes the lease once there is none or its owner is gone; returns its generation."""
        began = before = time.monotonic()
        seen, watched, printed = None, 0.0, False
        while True:
            lease = retried(lambda: self._store.read(self._key).result(), self._path)
            generation, now = lease.stamp.generation, time.monotonic()
            holder = _read(lease.value.decode(errors="replace")) if lease.state == "value" else None
            if generation == seen:
                watched += min(now - before, 2.0)  # time in which the store can't be read does not count
            elif seen is not None and holder and now - began > wait:
                raise Taken(self._path, holder)
            else:
                watched = 0.0
            seen, before = generation, now
            gone = holder and holder.has_ended()
            if holder is None or gone or watched >= EXPIRY:
                if written := retried(lambda: self._write(generation), self._path):
                    if holder:
                        how = "which has ended" if gone else f"of which nothing was heard for {EXPIRY:.0f} s"
                        _print(f"{os.fspath(self._path)} was held by {holder}, {how}: taken over")
                    return written
                continue
            if not printed:
                printed = True
                _print(f"{os.fspath(self._path)} is held by {holder}: waiting for a sign of life, or {EXPIRY:.0f} s")
            time.sleep(1.0)

    def _write(self, generation):
        """Writes the lease over `generation`; returns the new generation, or None if another process was first."""
        text = json.dumps(dataclasses.asdict(self._me))
        written = self._answer(self._store.write(self._key, text, if_equal=generation)).generation
        if not written:  # another process was first, or the store wrote it and the answer was lost
            lease = self._answer(self._store.read(self._key))
            written = lease.stamp.generation if lease.value == text.encode() else None
        return written

    def _answer(self, asked):
        """The store's answer; TimeoutError once the lease is given up. Polls instead of waiting in TensorStore, which
        pauses for half a minute in an outage: Python would abort the process if it ended while a thread waits there."""
        while not asked.done():
            if self._over.wait(0.02):
                raise TimeoutError("the lease was given up before the store answered")
        return asked.result()

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            try:
                written = self._write(self._generation)
            except Exception:  # noqa: BLE001  the store cannot be reached; the next beat tries again
                continue
            if not written:
                _print(f"error: {os.fspath(self._path)} was taken over; this process ends at once")
                os._exit(1)
            self._generation = written


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
