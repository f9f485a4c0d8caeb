"""A process's identity, which no other process ever has, and signals that reach that process and no other."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

from jmoe.errors import UserError


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
        except (ValueError, TypeError):
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


class Taken(UserError):
    """Another process, `owner`, is the owner of `path`."""

    def __init__(self, path, owner: Owner):
        super().__init__(f"{os.fspath(path)} is held by {owner}")
        self.owner = owner


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
