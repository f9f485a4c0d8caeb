"""A clock that continues while a process is halted or a machine sleeps, and a deadline by it that kills the process."""

import ctypes
import signal
import struct
import time

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds by CLOCK."""
    return time.clock_gettime(CLOCK)


class Deadline:
    """A time at which the kernel kills this process, also while it is halted (SIGSTOP, a frozen container).

    A thread that watches the time would wake no earlier than the threads that write. There is no deadline at first, and
    never one on systems without such timers (macOS).
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._timer = ctypes.c_void_p()
        # struct sigevent of 64 bytes: value, signal, SIGEV_SIGNAL (0)
        event = struct.pack("Pii48x", 0, signal.SIGKILL, 0)
        create = getattr(libc, "timer_create", None)
        has_timer = create is not None and create(CLOCK, event, ctypes.byref(self._timer)) == 0
        self._libc = libc if has_timer else None

    def set(self, seconds: float | None) -> None:
        """Resets the kill timer to fire `seconds` from now; None stops it."""
        if self._libc:
            seconds = 0.0 if seconds is None else max(seconds, 1e-6)
            interval_and_value = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))  # seconds, nanoseconds
            self._libc.timer_settime(self._timer, 0, interval_and_value, None)
