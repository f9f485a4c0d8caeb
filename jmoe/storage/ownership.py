"""Who owns a workdir: at most one process at a time works in it, and every other process can see which one.

On a file system the owner holds an exclusive lock (flock) on a file, and writes into it who it is. The lock ends with
the process. It belongs to the file and not to its name: a symlink, another spelling of the path and another mount lead
to the same owner, on this machine and on others that share the folder. A lock can be lost: the file is deleted, or a
server of NFS gives it to another machine while this one is cut off. So before each write (files.ask) the owner opens
the file by its name and looks whether it still says who it is.

On gs:// the owner holds a lease (lease.py).
"""

import contextlib
import errno
import fcntl
import math
import os
import pathlib
import sys
import time

from etils import epath

from jmoe.errors import UserError
from jmoe.storage.files import asked_by_writes, is_remote
from jmoe.storage.identity import NOBODY, Owner, Taken
from jmoe.storage.lease import Lease, end


@contextlib.contextmanager
def hold(path: epath.Path, what: str, wait: float = 0.0):
    """Makes this process the owner of what the file or object `path` stands for, until the block is left.

    `path` is an object on gs://, else a file, which is created if missing; `what` names the program. Raises Taken if
    another process remains the owner for more than `wait` seconds, and UserError if the file system has no locks.
    """
    me = Owner.of(what=what)
    if is_remote(path):
        with Lease(path, me).held(wait):
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
            said = f"waiting{limit} for {owner(path) or NOBODY}, which holds {os.fspath(path)}"
            print(said, file=sys.stderr, flush=True)
        time.sleep(0.05)
    with file:
        sign(file, me)
        try:
            with asked_by_writes(lambda: _ask_file(path, me)):
                yield
        finally:
            if _in_file(path) == me:
                file.truncate(0)


@contextlib.contextmanager
def followed(path: epath.Path):
    """For the other processes of a run whose first process has just made itself the owner of `path`: until the block is
    left, each of them ends, like the first one, once that may no longer be the owner."""
    if is_remote(path):
        with Lease(path, NOBODY).followed():
            yield
        return
    first = _in_file(path)
    with asked_by_writes(lambda: _ask_file(path, first)):
        yield


def owner(path) -> Owner | None:
    """Who holds `path`; looks once and writes nothing. An owner that did not write who it is has the pid 0. A lease
    whose owner has ended still counts as held until another process takes it."""
    try:
        if is_remote(path):
            return Owner.read(epath.Path(path).read_text())
        with open(path, errors="replace") as file:
            return None if _acquire(file, fcntl.LOCK_SH) else Owner.read(file.read())
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
    file.write(owner.text())
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


def _in_file(path) -> Owner | None:
    """Who wrote into the file of a lock; None if there is no such file."""
    try:
        return Owner.read(pathlib.Path(path).read_text(errors="replace"))
    except FileNotFoundError:
        return None


def _ask_file(path, me: Owner) -> float:
    """Ends this process unless the file of its lock still says that it holds it."""
    if (found := _in_file(path)) != me:
        how = "was deleted" if found is None else f"now says {found}" if found.pid else "was overwritten"
        end(f"{os.fspath(path)}, the lock that this process held, {how}")
    return math.inf
