"""The start of a command: Ctrl-C or a missing package while it imports its modules ends in one sentence.

Garbage collection is off meanwhile: it would free nothing and take a sixth of the startup time.

A command's first lines call `begin`, before it imports anything else. jmoe/cli.py calls `over` when the imports are
done. This module imports only the standard library.
"""

import ctypes
import gc
import glob
import importlib.util
import os
import runpy
import signal
import sys
import time
from types import TracebackType
from typing import Any, NoReturn

from jmoe.errors import missing_package

# files of accelerators in /dev
DEVICES = ("accel*", "vfio/[0-9]*", "nvidia[0-9]*", "kfd", "dxg")
# variables of the environment that say that there is a TPU
TPU_VARIABLES = ("TPU_NAME", "TPU_WORKER_ID", "JAX_FORCE_TPU_INIT")

# options of glibc's mallopt, from malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
LARGEST_INT = 2**31 - 1

_began: list[float] = []  # the time of `begin`, by time.monotonic()


def begin() -> None:
    """Handles Ctrl-C and missing packages, and keeps libtpu silent, for the imports that follow."""
    _began[:] = [time.monotonic()]
    sys.excepthook = _excepthook
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    leave_absent_tpus_alone()


def began_at() -> float | None:
    """When the command began, by time.monotonic(); None in a program that imports it."""
    return _began[0] if _began else None


def over() -> None:
    """Called when the imports are done: Python handles Ctrl-C again, and collects garbage among later objects only."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def train() -> None:
    """The command jmoe-train, as python -m jmoe.train."""
    runpy.run_module("jmoe.train", run_name="__main__", alter_sys=True)


def sweep() -> None:
    """The command jmoe-sweep, as python -m launch.sweep."""
    runpy.run_module("launch.sweep", run_name="__main__", alter_sys=True)


def leave_absent_tpus_alone() -> None:
    """Selects the CPU where libtpu is installed but there is no TPU or GPU: libtpu would print pages of warnings."""
    if os.environ.get("JAX_PLATFORMS") or any(variable in os.environ for variable in TPU_VARIABLES):
        return
    if _has_accelerator():
        return
    if importlib.util.find_spec("libtpu"):
        os.environ["JAX_PLATFORMS"] = "cpu"


def _has_accelerator() -> bool:
    return any(glob.glob(f"/dev/{name}") for name in DEVICES)


def keep_freed_memory() -> None:
    """Has the C library keep the memory that XLA frees after each step on a CPU, for the next step.

    It would return it to the system, which hands it out again page by page, filled with zeros. In a small step that is
    a third of the CPU time. Only glibc has these options.
    """
    if _has_accelerator() and os.environ.get("JAX_PLATFORMS") != "cpu":
        return
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    mallopt = getattr(library, "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)  # the arenas of other threads cannot hold large blocks
        mallopt(M_MMAP_THRESHOLD, LARGEST_INT)
        mallopt(M_TRIM_THRESHOLD, LARGEST_INT)


def _interrupted(*_: Any) -> NoReturn:
    """Handles Ctrl-C."""
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ends the process in one sentence for a missing package, and in a traceback for any other error."""
    sentence = missing_package(error)
    if sentence:
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        os._exit(2)
    sys.__excepthook__(kind, error, trace)
