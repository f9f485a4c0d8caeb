"""One run as several processes: they join, all stop after the same step when a signal reaches one, and leave together.

With one process the same functions only turn signals into an orderly stop.
"""

import contextlib
import functools
import importlib.util
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from tqdm import tqdm

from jmoe.cli import disk_error, unavailable
from jmoe.errors import Failure, Interrupted, Unavailable, UserError
from jmoe.storage import ownership

# Seconds until a silent process counts as dead, which ends the others; and for which a finished one waits for them.
PATIENCE: dict[str, Any] = {"heartbeat_timeout_seconds": 60, "shutdown_timeout_seconds": 60}
MEETING_MS = 3_600_000  # longest wait at a meeting; a process that died is noticed long before
PLUGINS = {"cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"), "tpu": ("libtpu",)}  # modules by extra


@contextlib.contextmanager
def joined() -> Generator[None]:
    """Joins the other processes of this run, and leaves with them.

    They are those that JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID name, else a Slurm job's tasks,
    which jax finds by itself.

    A process that exits alone makes jax abort the others. So a process that is done, or that stops for a UserError or a
    signal, waits for the others before it exits. After any other error it exits at once: the others may have died, or
    may wait for this process for ever.

    Raises:
      UserError: The environment variables are not whole numbers.
    """
    _join()
    devices()
    try:
        yield
    except (UserError, Interrupted):
        _leave()
        raise
    except Exception as error:
        if jax.process_count() == 1 or isinstance(error, Failure) or disk_error(error) or unavailable(error):
            raise
        message = "this process failed, or lost another one of its run; the same command resumes"
        print(traceback.format_exc() + message, file=sys.stderr, flush=True)
        os._exit(1)
    _leave()


def devices() -> list[jax.Device]:
    """jax.devices().

    Raises:
      UserError: JAX_PLATFORMS names devices that this machine does not have.
    """
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # jax asserts where it knows no plugin of the platform
        platform = jax.config.jax_platforms or ""
        reason = " ".join(str(error).split()).partition(" (set JAX_PLATFORMS=")[0]
        hint = "JAX_PLATFORMS is cpu, cuda or tpu, and this machine must have such a device"
        for extra, modules in PLUGINS.items():
            if extra in platform and not any(map(importlib.util.find_spec, modules)):
                hint = f"install the [{extra}] extra, pip install -e '.[{extra}]'"
        because = f": {reason}" if reason else ""
        raise UserError(f"JAX_PLATFORMS={platform}: jax has no such device here{because}; {hint}") from None


def log(text: str, by_all: bool = False) -> None:
    """Prints a line to stderr, above any progress bar, in the first process or `by_all`."""
    if by_all or jax.process_index() == 0:
        tqdm.write(text, file=sys.stderr)


_meetings = itertools.count()


def meet() -> None:
    """Waits until every process is here; every process must call it.

    Where devices are CPUs, their collectives (Gloo) end a run whose processes begin one more than 30 seconds apart. So
    processes meet after whatever may take one of them longer: compiling, writing, waiting for a lock.
    """
    if jax.process_count() > 1:
        ocp.multihost.get_barrier_sync_fn()(key=f"jmoe.meet.{next(_meetings)}", timeout_ms=MEETING_MS)


def compiled_together(function: jax.stages.Wrapped) -> Callable[..., Any]:
    """A jitted function that no process runs on arguments of new shapes before all have compiled it for them."""
    if jax.process_count() == 1:
        return function
    compiled = set()

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(arguments))
        if shapes not in compiled:
            function.lower(*arguments).compile()  # the call below finds it
            compiled.add(shapes)
            meet()
        return function(*arguments)

    return run


def anywhere(condition: bool) -> bool:
    """Whether a condition holds in any process; every process must call it."""
    if jax.process_count() == 1:
        return condition
    meet()
    return bool(np.any(multihost_utils.process_allgather(np.array(condition))))


def agreed(number: int) -> int:
    """The first process's `number`, in every process; every process must call it."""
    if jax.process_count() == 1:
        return number
    meet()
    return int(multihost_utils.broadcast_one_to_all(np.int32(min(number, 2**31 - 1))))


def _join() -> None:
    """Joins the other processes, if there are any."""
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if address:
        try:
            n_processes = int(os.environ["JAX_NUM_PROCESSES"])
            process_id = int(os.environ["JAX_PROCESS_ID"])
        except (KeyError, ValueError) as error:
            needed = "whole numbers in JAX_NUM_PROCESSES and JAX_PROCESS_ID"
            raise UserError(f"JAX_COORDINATOR_ADDRESS={address} needs {needed}: {error}") from None
        jax.distributed.initialize(address, n_processes, process_id, **PATIENCE)
    elif int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        # srun sets it. SLURM_NTASKS will not do: Slurm sets it for a batch script too, whose processes run alone
        jax.distributed.initialize(**PATIENCE)


def _leave() -> None:
    """Waits for the other processes, if there are any, and leaves with them."""
    if jax.process_count() > 1:
        with contextlib.suppress(Exception):  # if the others do not come, this process still reports its own error
            jax.distributed.shutdown()


@contextlib.contextmanager
def owned(workdir: epath.Path) -> Generator[None]:
    """Keeps other trainers out of a workdir within the `with` block; the first process of a run does it for all.

    Raises:
      UserError: Another trainer is at work; every process of this run raises it, and it names that trainer.
      Unavailable: The same, if this run waited for that trainer first (JMOE_OWNER_PATIENCE), since a later try may find
        the workdir free.
    """
    path = workdir / "train.lock"
    patience = float(os.environ.get("JMOE_OWNER_PATIENCE", 0))  # launch sets it: a trainer may be saving
    refusal: UserError | None = None
    with contextlib.ExitStack() as stack:
        if jax.process_index() == 0:
            try:
                stack.enter_context(ownership.hold(path, "jmoe.train", patience))
            except UserError as error:
                refusal = error
        if anywhere(refusal is not None):
            raise _refusal(workdir, refusal or ownership.Taken(path, ownership.owner(path)), patience)
        if jax.process_index():
            stack.enter_context(ownership.follow(path))
        yield


def _refusal(workdir: epath.Path, refusal: UserError, patience: float) -> Exception:
    """The error for a workdir that this run may not work in."""
    if not isinstance(refusal, ownership.Taken):
        return refusal
    message = (
        f"another trainer is at work in {workdir}, {refusal.owner or 'which did not say who it is'}; two would "
        "overwrite each other's files: wait until it is done, or use another --workdir"
    )
    if patience:  # whoever set it is ready to wait again
        return Unavailable(f"{message} (waited {patience:.0f} s)")
    return UserError(message)


@contextlib.contextmanager
def stop_signal() -> Generator[Callable[[], int]]:
    """Yields a function to call once a step: the signal (SIGTERM, Ctrl-C) for which to save and stop, or 0.

    Several processes must call it in the same steps. When a signal reaches one of them, jax passes it on and chooses
    the step in which every process gets SIGTERM. A process that runs alone ends at once at its second signal.
    """
    several = jax.process_count() > 1
    received: list[int] = []
    calls = itertools.count()

    def receive(signum: int, _: Any) -> None:
        if received:
            os._exit(128 + signum)
        received.append(signum)
        if several:
            signal.raise_signal(signal.SIGTERM)

    def signal_to_stop() -> int:
        if several:
            return signal.SIGTERM if multihost_utils.reached_preemption_sync_point(next(calls)) else 0
        return received[0] if received else 0

    # of several processes jax has handled SIGTERM since they joined
    handled = [signal.SIGINT] if several else [signal.SIGINT, signal.SIGTERM]
    previous_handlers = {signum: signal.signal(signum, receive) for signum in handled}
    try:
        yield signal_to_stop
    finally:
        for signum, handler in previous_handlers.items():
            signal.signal(signum, handler)
