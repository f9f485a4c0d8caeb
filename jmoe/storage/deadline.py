"""How a process that must not go on ends, and a time by which it has ended, whatever its threads are doing."""

import ctypes
import os
import signal
import sys
import time

from jmoe.errors import UNAVAILABLE

# it goes on while a process is halted or a machine sleeps
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds by CLOCK."""
    return time.clock_gettime(CLOCK)


def end(why: str) -> None:
    """Ends this process at once."""
    so = "this process ends and writes nothing more; the same command goes on from what is saved"
    print(f"error: {why}: {so}", file=sys.stderr, flush=True)
    os._exit(UNAVAILABLE)


class _Event(ctypes.Structure):  # struct sigevent, which SIGEV_SIGNAL, 0, makes the default
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int)]
    _fields_ += [("rest", ctypes.c_char * 48)]


class Deadline:
    """A time at which the kernel kills this process, also while it is halted (SIGSTOP, a frozen container): a thread
    that watches the time would wake no earlier than the threads that write. There is none at first, and none on
    systems without such timers (macOS)."""

    def __init__(self):
        libc, self._timer = ctypes.CDLL(None), ctypes.c_void_p()
        event = _Event(signo=signal.SIGKILL)
        create = getattr(libc, "timer_create", None)
        made = create and not create(CLOCK, ctypes.byref(event), ctypes.byref(self._timer))
        self._libc = libc if made else None

    def set(self, seconds: float) -> None:
        """Has the process killed that many seconds from now, and not when it was to be killed before."""
        self._settime(max(seconds, 1e-6))

    def clear(self) -> None:
        self._settime(0.0)

    def _settime(self, seconds: float) -> None:
        if self._libc:
            interval_and_value = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))  # seconds, nanoseconds
            self._libc.timer_settime(self._timer, 0, interval_and_value, None)
