"""Who owns a workdir: at most one process at a time works in it, and every other process can see which one.

On a file system the owner holds an exclusive lock (flock) on a file, and writes into it who it is. The lock ends with
the process. It belongs to the file and not to its name: a symlink, another spelling of the path and another mount lead
to the same owner, on this machine and on others that share the folder. A lock can be lost: the file is deleted, or a
server of NFS gives it to another machine while this one is cut off. So before each write (files.ask) the owner opens
the file by its name and looks whether it still says who it is.

On gs:// the owner holds a lease: an object that a process writes only over the generation that it last saw, so that one
of two writers fails. The owner writes it again every BEAT seconds. A process that wants the lease watches it. A new
generation means that the owner lives. After EXPIRY seconds without one, in which the store could be read, the process
takes the lease over and says so; it never compares the clocks of two machines.

Two owners never write at the same time, since the one before has ended when the lease can be taken. All its times count
from when the newest renewal that the store confirmed was *sent*, by a clock that goes on while a process is halted or a
machine sleeps: the generation that a taker watches is no older, however late the answer came.

  2/3 EXPIRY   the owner ends itself, with exit code 75; each write asks first whether it is still earlier (files.ask)
  3/4 EXPIRY   the kernel kills the owner, also one that is halted between asking and writing (deadline.py, Linux)
  EXPIRY       the lease can be taken

The last quarter, 15 seconds, is for requests that were on their way when the owner ended. One that a network holds back
for longer still would arrive with the generation that its object had when the owner last looked at it (gcs.py): it is
refused once the new owner has written that object, and is overwritten if it has not.
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

from jmoe.errors import UNAVAILABLE, UserError
from jmoe.storage.deadline import Deadline
from jmoe.storage.files import asked_by_writes, is_remote, retried
from jmoe.storage.identity import NOBODY, Owner

BEAT = 10.0  # seconds
EXPIRY = 60.0
ENDS, KILLED = 2 / 3, 3 / 4  # of EXPIRY, without a renewal: when the owner ends itself, and when the kernel kills it
POLL = 0.02
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
        with asked_by_writes(lambda: _ask_file(path, me)):
            yield
        if _in_file(path) == me:
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
    while True:
        file = open(path, "a+")
        if not _acquire(file, fcntl.LOCK_EX):
            file.close()
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        file.close()  # deleted since it was opened: the next to come would lock another file


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


def _in_file(path) -> Owner | None:
    """Who wrote into the file of a lock; None if there is no such file."""
    try:
        return _read(pathlib.Path(path).read_text(errors="replace"))
    except FileNotFoundError:
        return None


def _ask_file(path, me: Owner) -> None:
    """Ends this process unless the file of its lock still says that it holds it."""
    if (found := _in_file(path)) != me:
        how = "was deleted" if found is None else f"now says {found}" if found.pid else "was overwritten"
        _end(f"{os.fspath(path)}, the lock that this process held, {how}")


class _Lease:
    """The lease that the object `path` stands for."""

    def __init__(self, path, me: Owner, store=None):
        import tensorstore

        bucket, _, self._key = os.fspath(path).partition("://")[2].partition("/")
        # one try for each request, as the age of a lease counts from the try that reached the store
        once = {"gcs_request_retries": {"max_retries": 1}}
        spec = {"driver": "gcs", "bucket": bucket, "context": once}
        self._store = store or tensorstore.KvStore.open(spec).result()
        self._path, self._me, self._over, self._deadline = path, me, threading.Event(), Deadline()
        self._generation, self._sent = None, math.inf  # of the lease as this process wrote it, and when that was sent
        self._tried = None  # when the first of the writes was sent that may have got through unheard

    @contextlib.contextmanager
    def held(self, wait: float):
        self._take(wait)
        heart = threading.Thread(target=self._beat, daemon=True)
        heart.start()
        try:
            with asked_by_writes(self.ask):
                yield
        finally:
            self._over.set()
            heart.join(SECONDS_TO_RELEASE)
            with contextlib.suppress(Exception):  # it expires by itself
                self._store.write(self._key, None, if_equal=self._generation).result(SECONDS_TO_RELEASE)
            self._deadline.clear()

    def ask(self) -> None:
        """Ends this process if the store has not confirmed a renewal that was sent lately enough."""
        if (age := now() - self._sent) > ENDS * EXPIRY:
            _end(
                f"{os.fspath(self._path)}: the store confirmed no renewal of this lease that was sent in the last "
                f"{age:.0f} s, and after {EXPIRY:.0f} s another process may take it"
            )

    def _take(self, wait: float) -> None:
        """Writes the lease once there is none or its owner is gone."""
        began = before = now()
        seen, watched, printed = None, 0.0, False
        while True:
            lease = retried(lambda: self._answer(self._store.read(self._key)), self._path)
            generation, looked = lease.stamp.generation, now()
            holder = _read(lease.value.decode(errors="replace")) if lease.state == "value" else None
            own = holder is not None and generation == self._generation  # written below, too long ago
            if generation == seen:
                watched += min(looked - before, 2.0)  # time in which the store can't be read does not count
            elif seen is not None and holder and not own and looked - began > wait:
                raise Taken(self._path, holder)
            else:
                watched = 0.0
            seen, before = generation, looked
            gone = holder and holder.has_ended()
            if holder is None or own or gone or watched >= EXPIRY:
                if retried(lambda: self._write(generation), self._path):
                    if holder and not own:
                        how = "which has ended" if gone else f"of which nothing was heard for {EXPIRY:.0f} s"
                        _print(f"{os.fspath(self._path)} was held by {holder}, {how}: taken over")
                    if now() - self._sent < BEAT:
                        return
                continue
            if not printed:
                printed = True
                _print(f"{os.fspath(self._path)} is held by {holder}: waiting for a sign of life, or {EXPIRY:.0f} s")
            self._over.wait(1.0)

    def _write(self, generation) -> bool:
        """Writes the lease over `generation`; False if another process was first."""
        text, sent = json.dumps(dataclasses.asdict(self._me)), now()
        self._tried = self._tried or sent
        written = self._answer(self._store.write(self._key, text, if_equal=generation)).generation
        if (
            not written
        ):  # another process was first, or the store wrote it and the answer was lost, of this or a try before
            lease = self._answer(self._store.read(self._key))
            if lease.value != text.encode():
                return False
            written, sent = lease.stamp.generation, self._tried
        self._generation, self._sent, self._tried = written, sent, None
        self._deadline.set(sent + KILLED * EXPIRY - now())
        return True

    def _answer(self, asked):
        """The store's answer; ConnectionError after BEAT seconds without one, TimeoutError once the lease is given up.

        Polls instead of waiting in TensorStore: Python would abort the process if it ended while a thread waits there.
        """
        began = now()
        while not asked.done():
            self.ask()
            if self._over.wait(POLL):
                raise TimeoutError("the lease was given up before the store answered")
            if now() - began > BEAT:
                raise ConnectionError(f"no answer in {BEAT:.0f} s")
        return asked.result()

    def _beat(self) -> None:
        pause = BEAT
        while not self._over.wait(pause):
            try:
                if not self._write(self._generation):
                    _end(f"{os.fspath(self._path)}, the lease that this process held, was taken over")
                pause = max(0.0, self._sent + BEAT - now())
            except Exception:  # noqa: BLE001  the store gave no answer
                pause = BEAT / 10
            self.ask()


def now() -> float:
    """Seconds by a clock that goes on while this process is halted or the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _end(why: str) -> None:
    """Ends this process at once, whatever its threads are doing."""
    _print(f"error: {why}: this process ends and writes nothing more; the same command goes on from what is saved")
    os._exit(UNAVAILABLE)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
