"""Which process: an identity that means one process for ever, on one machine, and signals that reach no other."""

import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import time


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process, told apart from every other one on this machine and elsewhere."""

    host: str
    boot: str  # of the machine: tells two machines of one name, and a machine from itself before it was restarted
    namespace: str  # of process ids: a container has its own
    pid: int
    started: str  # by the kernel's clock: process ids are used again
    what: str = ""  # the program, for people

    @classmethod
    def of(cls, pid: int | None = None, what: str = "") -> "Owner":
        """The process `pid` of this machine, by default this one."""
        pid = pid or os.getpid()
        return cls(_host(), _boot(), _namespace(), pid, _started(pid), what)

    def is_near(self) -> bool:
        """Whether it runs, or ran, on this machine and under process ids that mean the same here."""
        return (self.boot, self.namespace) == (_boot(), _namespace()) and (bool(_boot()) or self.host == _host())

    def lives_here(self) -> bool:
        """Whether it runs on this machine, and a signal to its process id would reach it and no other."""
        return self.is_near() and bool(self.started) and _started(self.pid) == self.started

    def has_ended(self) -> bool:
        """Whether it was a process of this machine and is no more; of other machines' processes nothing is known."""
        return self.is_near() and not self.lives_here()

    def send(self, signum: int) -> bool:
        """Sends it a signal; False, and nothing is sent, where it does not live here."""
        try:
            handle = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        except OSError:
            return False
        try:
            if not self.lives_here():  # looked at while the handle keeps the process id from meaning another
                return False
            if handle is None:
                os.kill(self.pid, signum)
            else:
                signal.pidfd_send_signal(handle, signum)
            return True
        except ProcessLookupError:
            return False
        finally:
            if handle is not None:
                os.close(handle)

    def __str__(self) -> str:
        if not self.pid:
            return "a process that did not say who it is"
        elsewhere = f"of another container, or machine of that name, {self.host}"
        where = f"on {self.host}" if self.is_near() or self.host != _host() else elsewhere
        return f"{self.what or 'a process'} (process {self.pid} {where})"


NOBODY = Owner("", "", "", 0, "")


def stop(owners, patience: float) -> int:
    """Asks processes of this machine to save and stop (SIGTERM), also those that somebody halted (SIGCONT), and kills
    what still lives after `patience` seconds; returns how many that were."""
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


def _host() -> str:
    return socket.gethostname()


def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id")


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When the process was started, in the kernel's or ps's words; empty if there is none, or it has ended."""
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
