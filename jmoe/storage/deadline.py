"""A time at which the kernel kills this process, also one that is halted (SIGSTOP, a frozen container) or on a machine
that slept. A thread that watches the time would run only when the threads that write run again."""

import ctypes
import signal
import time


class _Event(ctypes.Structure):  # struct sigevent, which SIGEV_SIGNAL, 0, makes the default
    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    ]


class Deadline:
    """At first there is none. Where the system has no such timers (macOS), there never is."""

    def __init__(self):
        libc, self._timer = ctypes.CDLL(None), ctypes.c_void_p()
        event = _Event(signo=signal.SIGKILL)
        create = getattr(libc, "timer_create", None)
        made = create and not create(time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer))
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
