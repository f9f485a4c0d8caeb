"""Who owns a workdir: at most one process at a time works in it, and every other process can see which one.

On a file system the owner holds an exclusive lock (flock) on a file, and writes into it who it is. The lock ends with
the process. It belongs to the file and not to its name: a link to the folder, another spelling of the path and another
mount lead to the same owner, on this machine and on others that share the folder. A lock can be lost: the file is
deleted, or a server of NFS gives it to another machine while this one is cut off. So before each write (files.ask) the
owner opens the file by its name and looks whether it still says who it is.

On gs:// the owner holds a lease (lease.py).

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

from etils import epath

from jmoe.errors import Taken, UserError
from jmoe.storage import durable
from jmoe.storage.files import asked_by_writes, is_remote
from jmoe.storage.lease import Lease, end


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
        boot, pid = _text("/proc/sys/kernel/random/boot_id"), pid or os.getpid()
        return cls(socket.gethostname(), boot, namespace, pid, _started(pid), what)

    @classmethod
    def read(cls, text: str) -> "Owner":
        """The owner that text() describes; NOBODY where the text is another."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError):
            return NOBODY

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def is_near(self) -> bool:
        """Whether it runs, or ran, on this machine and in this process's namespace of process ids."""
        here = Owner.of()
        same = (self.boot, self.namespace) == (here.boot, here.namespace)
        return same and (bool(here.boot) or self.host == here.host)

    def lives_here(self) -> bool:
        """Whether it runs on this machine, so that a signal to its process id reaches it."""
        return self.is_near() and bool(self.started) and _started(self.pid) == self.started

    def has_ended(self) -> bool:
        """Whether it was a process of this machine and has ended; False for those of other machines."""
        return self.is_near() and not self.lives_here()

    def send(self, signum: int) -> bool:
        """Sends the process a signal; returns False, and sends nothing, if it does not run on this machine."""
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            kill = lambda: os.kill(self.pid, signum)
            if hasattr(os, "pidfd_open"):  # while this handle is open, the process id is not reused
                handle = os.pidfd_open(self.pid)
                stack.callback(os.close, handle)
                kill = lambda: signal.pidfd_send_signal(handle, signum)
            if self.lives_here():
                kill()
                return True
        return False

    def __str__(self) -> str:
        if not self.pid:
            return "a process that did not say who it is"
        place = f"on {self.host}"
        if not self.is_near() and self.host == socket.gethostname():
            place = f"of another container, or machine of that name, {self.host}"
        return f"{self.what or 'a process'} (process {self.pid} {place})"


NOBODY = Owner("", "", "", 0, "")


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
    """The open file, locked until this process and those that inherit it close it; None if another process holds it.
    UserError where it is a symbolic link: its owner would be written into a file elsewhere."""
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


def sign(file, owner: Owner) -> None:
    """Writes the owner of a locked file into it."""
    with durable.named(file.name):
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
        with durable.named(path):
            return Owner.read(pathlib.Path(path).read_text(errors="replace"))
    except FileNotFoundError:
        return None


def _ask_file(path, me: Owner) -> float:
    """Ends this process unless the file of its lock still says that it holds it."""
    if (found := _in_file(path)) != me:
        how = "was deleted" if found is None else f"now says {found}" if found.pid else "was overwritten"
        end(f"{os.fspath(path)}, the lock that this process held, {how}")
    return math.inf


def stop(owners, patience: float) -> int:
    """Asks processes of this machine to save and stop (SIGTERM, and SIGCONT for those that are halted), and kills those
    that still run after `patience` seconds; returns how many it killed."""
    asked = [owner for owner in owners if owner.send(signal.SIGTERM)]
    for owner in asked:
        owner.send(signal.SIGCONT)
    deadline = time.monotonic() + patience
    while any(owner.lives_here() for owner in asked) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed = [owner for owner in asked if owner.send(signal.SIGKILL)]
    while any(owner.lives_here() for owner in killed):
        time.sleep(0.05)
    return len(killed)


def _started(pid: int) -> str:
    """When the process was started, as the kernel or ps writes it; empty where no such process runs."""
    if text := _text(f"/proc/{pid}/stat"):
        state, *fields = text.rpartition(")")[2].split()
        return fields[18] if state not in "ZX" else ""  # a zombie has ended
    if os.path.exists("/proc/self/stat"):
        return ""
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return " ".join(done.stdout.split())


def _text(path: str) -> str:
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return ""
