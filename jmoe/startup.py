"""The start of a command: Ctrl-C or a missing package while it imports its modules ends in one sentence.

Garbage collection is off meanwhile: it would free nothing and take a sixth of the startup time.

A command's first lines call `begin`, before it imports anything else. jmoe/cli.py calls `over` when the imports are
done. This module imports only the standard library.
"""

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
    if any(glob.glob(f"/dev/{name}") for name in DEVICES):
        return
    if importlib.util.find_spec("libtpu"):
        os.environ["JAX_PLATFORMS"] = "cpu"


def _interrupted(*_: Any) -> NoReturn:
    """Ends the process at once on Ctrl-C: a KeyboardInterrupt in an import would be a traceback, or be lost."""
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ends the process in one sentence for a missing package, and in a traceback for any other error."""
    sentence = missing_package(error)
    if sentence:
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        os._exit(2)
    sys.__excepthook__(kind, error, trace)
