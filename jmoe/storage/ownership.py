"""Who owns a workdir: at most one process at a time works in it, and every other process can see which one.

docs/explanation/owners.md says who may write when. On a file system the owner holds an exclusive lock (flock) on a
file, and writes into it who it is; before each write (owner_check.py) it looks whether the file still says so. On
gs:// the owner holds a lease (lease.py).

An owner has an identity which no other process ever has, so that signals reach that process and no other.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from typing import IO, Any

from etils import epath

from jmoe.errors import Taken, UserError
from jmoe.printable import printable
from jmoe.storage import durable
from jmoe.storage.files import is_remote
from jmoe.storage.lease import Lease, State, end
from jmoe.storage.owner_check import checking_owner


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process that owns something, distinct from every other process of any machine."""

    host: str
    boot: str  # the machine's boot id: it differs on another machine of that name, and after a restart
    namespace: str  # of process ids: each container has its own
    pid: int
    started: str  # when, by the kernel's clock: the kernel reuses process ids
    what: str = ""  # the program, for people

    @classmethod
    def of(cls, pid: int | None = None, what: str = "") -> "Owner":
        """The process `pid` of this machine, by default this one."""
        try:
            namespace = os.readlink("/proc/self/ns/pid")
        except OSError:
            namespace = ""
        boot = _text("/proc/sys/kernel/random/boot_id")
        pid = pid or os.getpid()
        return cls(socket.gethostname(), boot, namespace, pid, _started(pid), what)

    @classmethod
    def read(cls, text: str) -> "Owner":
        """The owner that text() describes; NOBODY for any other text."""
        try:
            owner = cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError):
            return NOBODY
        for field in dataclasses.fields(cls):  # JSON may hold values of any type
            if type(getattr(owner, field.name)) is not (int if field.name == "pid" else str):
                return NOBODY
        return owner

    def text(self) -> str:
        """The owner as JSON, for read()."""
        return json.dumps(dataclasses.asdict(self))

    def is_near(self) -> bool:
        """Whether it runs, or ran, on this machine and in this process's namespace of process ids."""
        me = Owner.of()
        if (self.boot, self.namespace) != (me.boot, me.namespace):
            return False
        return bool(me.boot) or self.host == me.host  # macOS has no boot id here: the name of the host decides

    def lives_here(self) -> bool:
        """Whether it runs on this machine, so that a signal to its process id reaches it."""
        return self.is_near() and bool(self.started) and _started(self.pid) == self.started

    def has_ended(self) -> bool:
        """Whether it was a process of this machine and has ended; False for those of other machines."""
        return self.is_near() and not self.lives_here()

    def send(self, signum: int) -> bool:
        """Sends the process a signal; returns False, and sends nothing, if it does not run on this machine."""
        with contextlib.suppress(OSError), _signals_to(self.pid) as send:
            if self.lives_here():
                send(signum)
                return True
        return False

    def __str__(self) -> str:
        if not self.pid:
            return "a process that did not say who it is"
        place = f"on {self.host}"
        if not self.is_near() and self.host == socket.gethostname():
            place = f"of another container, or machine of that name, {self.host}"
        return printable(f"{self.what or 'a process'} (process {self.pid} {place})")


_NO_LOCK = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)  # what open answers where the path is no file
SECONDS_OF_A_LOOK = 0.5  # owner() locks the file while it looks; a lock that lasts longer is an owner's
NOBODY = Owner("", "", "", 0, "")


@contextlib.contextmanager
def _signals_to(pid: int) -> Generator[Callable[[int], None]]:
    """Yields a function that sends a signal to a process, whose id is not reused meanwhile where the system allows."""
    if not hasattr(os, "pidfd_open"):
        yield lambda signum: os.kill(pid, signum)
        return
    handle = os.pidfd_open(pid)  # while this is open, the process id is not reused
    try:
        yield lambda signum: signal.pidfd_send_signal(handle, signum)
    finally:
        os.close(handle)


@contextlib.contextmanager
def hold(path: str | os.PathLike, what: str, wait: float = 0.0) -> Generator[None]:
    """Makes this process the owner of what a file or object stands for, within the `with` block.

    Args:
      path: An object on gs://, else a file, which is created if missing.
      what: Names the program, for people.
      wait: Seconds to wait for another owner.

    Raises:
      Taken: Another process is still the owner after `wait` seconds.
      UserError: The file system has no locks.
    """
    me = Owner.of(what=what)
    if is_remote(path):
        with Lease(path, me).hold(wait):
            yield
        return
    with _lock_within(path, wait) as file:
        sign(file, me)
        try:
            with checking_owner(lambda: _check_file(path, me)):
                yield
        finally:
            if _state(_in_file(path), me) is State.OWNED:
                file.truncate(0)


def _lock_within(path: str | os.PathLike, wait: float) -> IO[str]:
    """The locked file `path`, once no other process has locked it; Taken after `wait` seconds."""
    began = time.monotonic()
    printed = False
    while True:
        file = lock(pathlib.Path(path))
        if file is not None:
            return file
        waited = time.monotonic() - began
        if waited > max(wait, SECONDS_OF_A_LOOK):
            raise Taken(path, owner(path) or NOBODY)
        if wait and waited > SECONDS_OF_A_LOOK and not printed:
            printed = True
            limit = f" up to {wait:.0f} s" if wait < math.inf else ""
            message = f"waiting{limit} for {owner(path) or NOBODY}, which holds {os.fspath(path)}"
            print(message, file=sys.stderr, flush=True)
        time.sleep(0.05)


@contextlib.contextmanager
def follow(path: str | os.PathLike) -> Generator[None]:
    """Ends this process, within the `with` block, as soon as the first process of its run may have lost ownership.

    The other processes of a run call it when the first one has just made itself the owner of `path`.
    """
    if is_remote(path):
        with Lease(path, NOBODY).follow():
            yield
        return
    first = _in_file(path)
    with checking_owner(lambda: _check_file(path, first)):
        yield


def owner(path: str | os.PathLike) -> Owner | None:
    """The owner of `path`, None if there is none. Looks once and writes nothing.

    An owner that did not write who it is has the pid 0. The owner of a lease remains so after it ends, until another
    process takes the lease. What is no file, such as a folder, has no owner.
    """
    try:
        if is_remote(path):
            return Owner.read(epath.Path(path).read_text())
        with _open_without_waiting(path) as file:
            return None if _acquire(file, fcntl.LOCK_SH) else Owner.read(file.read())
    except OSError as error:
        if error.errno in _NO_LOCK or isinstance(error, FileNotFoundError | PermissionError):
            return None
        raise


def _open_without_waiting(path: str | os.PathLike) -> IO[str]:
    """Opens a file to read it; a pipe too, which nobody may ever write to."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.fdopen(handle, errors="replace")
    except OSError:  # it is a folder
        os.close(handle)
        raise


def lock(path: pathlib.Path) -> IO[str] | None:
    """Opens and locks a file, until this process and those that inherit the file close it.

    Returns:
      The open file; None if another process has locked it.

    Raises:
      UserError: The name is a symbolic link, so that its owner would be written into a file elsewhere; or the file
        system has no locks.
    """
    if not path.parent.is_dir():
        durable.make_folder(path.parent)
    while True:
        file = durable.open_here(path, "a+")
        if not _acquire(file, fcntl.LOCK_EX):
            file.close()
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        file.close()  # deleted since it was opened: the next to come would lock another file


def sign(file: IO[str], owner: Owner) -> None:
    """Writes the owner of a locked file into it."""
    with durable.named(file.name):
        file.truncate(0)
        file.write(owner.text())
        file.flush()


def _acquire(file: IO[Any], kind: int) -> bool:
    """Locks a file if no other process has; `kind` is fcntl.LOCK_EX or LOCK_SH. UserError if there are no locks."""
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


def _in_file(path: str | os.PathLike) -> Owner | None:
    """Who wrote into the file of a lock; None if there is no such file."""
    try:
        with durable.named(path):
            return Owner.read(pathlib.Path(path).read_text(errors="replace"))
    except FileNotFoundError:
        return None


def _check_file(path: str | os.PathLike, me: Owner | None) -> float:
    """Ends this process if the lock that `me` held is LOST; else returns infinity, since a lock has no time limit."""
    written = _in_file(path)
    if _state(written, me) is State.LOST:
        if written is None:
            how = "was deleted"
        else:
            how = f"now says {written}" if written.pid else "was overwritten"
        end(f"{os.fspath(path)}, the lock that this process held, {how}")
    return math.inf


def _state(written: Owner | None, me: Owner | None) -> State:
    """OWNED or LOST: the state of a lock that `me` held and whose file says `written`, None if it is gone."""
    return State.OWNED if written == me else State.LOST


def stop(owners: Iterable[Owner], patience: float) -> int:
    """Stops processes of this machine.

    Sends SIGTERM, on which they save and stop, and SIGCONT for those that are halted. Kills those that still run after
    `patience` seconds.

    Returns:
      The number of processes killed.
    """
    stopping = [owner for owner in owners if owner.send(signal.SIGTERM)]
    for owner in stopping:
        owner.send(signal.SIGCONT)
    deadline = time.monotonic() + patience
    while any(owner.lives_here() for owner in stopping) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed = [owner for owner in stopping if owner.send(signal.SIGKILL)]
    while any(owner.lives_here() for owner in killed):
        time.sleep(0.05)
    return len(killed)


def _started(pid: int) -> str:
    """When the process was started, as the kernel or ps writes it; empty where no such process runs."""
    stat = _text(f"/proc/{pid}/stat")
    if stat:
        state, *fields = stat.rpartition(")")[2].split()
        return fields[18] if state not in "ZX" else ""  # a zombie has ended
    if os.path.exists("/proc/self/stat"):
        return ""
    ps = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return " ".join(ps.stdout.split())


def _text(path: str) -> str:
    """The text of a file without spaces around it; empty where it can't be read."""
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return ""
