"""One run as several processes: they join, all stop after the same step when a signal reaches one, and leave together.

With one process the same functions only turn signals into an orderly stop.
"""

import contextlib
import importlib.util
import itertools
import os
import signal
import sys
import traceback

import jax
import numpy as np
from jax.experimental import multihost_utils
from tqdm import tqdm

from jmoe.cli import disk_error, unavailable
from jmoe.errors import Failure, Interrupted, Unavailable, UserError
from jmoe.storage import ownership

# Seconds until a silent process counts as dead, which ends the others; and for which a finished one waits for them.
PATIENCE = {"heartbeat_timeout_seconds": 60, "shutdown_timeout_seconds": 60}


@contextlib.contextmanager
def joined():
    """Joins the other processes of this run, and leaves with them: those that JAX_COORDINATOR_ADDRESS,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID name, else a Slurm job's tasks, which jax finds by itself.

    A process that exits alone makes jax abort the others. So a process that is done, or that stops for a UserError or a
    signal, waits for the others before it exits. After any other error it exits at once: the others may have died, or
    may wait for this process for ever. Raises UserError where the environment variables are not whole numbers.
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
        lost = "this process failed, or lost another one of its run; the same command resumes"
        print(traceback.format_exc() + lost, file=sys.stderr, flush=True)
        os._exit(1)
    _leave()


def devices() -> list:
    """jax.devices(); UserError where JAX_PLATFORMS names devices that this machine does not have."""
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # jax asserts where it knows no plugin of the platform
        platform = jax.config.jax_platforms or ""
        reason = " ".join(str(error).split()).partition(" (set JAX_PLATFORMS=")[0]
        hint = "JAX_PLATFORMS is cpu, cuda or tpu, and this machine must have such a device"
        for extra, modules in {"cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"), "tpu": ("libtpu",)}.items():
            if extra in platform and not any(map(importlib.util.find_spec, modules)):
                hint = f"install the [{extra}] extra, pip install -e '.[{extra}]'"
        said = f"jax has no such device here{': ' * bool(reason)}{reason}; {hint}"
        raise UserError(f"JAX_PLATFORMS={platform}: {said}") from None


def log(text: str, by_all: bool = False) -> None:
    """Prints a line to stderr, above any progress bar, in the first process or `by_all`."""
    if by_all or jax.process_index() == 0:
        tqdm.write(text, file=sys.stderr)


def anywhere(holds: bool) -> bool:
    """Whether it holds in any process; every process must ask."""
    return bool(np.any(multihost_utils.process_allgather(np.array(holds)))) if jax.process_count() > 1 else holds


def _join() -> None:
    if address := os.environ.get("JAX_COORDINATOR_ADDRESS"):
        try:
            number_and_id = int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
        except (KeyError, ValueError) as error:
            needed = "whole numbers in JAX_NUM_PROCESSES and JAX_PROCESS_ID"
            raise UserError(f"JAX_COORDINATOR_ADDRESS={address} needs {needed}: {error}") from None
        jax.distributed.initialize(address, *number_and_id, **PATIENCE)
    elif int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        # srun sets it. SLURM_NTASKS will not do: Slurm sets it for a batch script too, whose processes run alone
        jax.distributed.initialize(**PATIENCE)


def _leave() -> None:
    if jax.process_count() > 1:
        with contextlib.suppress(Exception):  # if the others do not come, this process still reports its own error
            jax.distributed.shutdown()


@contextlib.contextmanager
def owned(workdir):
    """Keeps other trainers out of a workdir until the block is left; the first process of a run does it for all.

    Where another trainer is at work, every process of this run raises UserError, which names that trainer. If it waited
    for that trainer first (JMOE_OWNER_PATIENCE), it raises Unavailable, since a later try may find the workdir free.
    """
    path, refused = workdir / "train.lock", None
    patience = float(os.environ.get("JMOE_OWNER_PATIENCE", 0))  # launch sets it: a trainer may be saving
    with contextlib.ExitStack() as held:
        if jax.process_index() == 0:
            try:
                held.enter_context(ownership.hold(path, "jmoe.train", patience))
            except UserError as error:
                refused = error
        if anywhere(refused is not None):
            refused = refused or ownership.Taken(path, ownership.owner(path))
            if not isinstance(refused, ownership.Taken):
                raise refused
            message = (
                f"another trainer is at work in {workdir}, {refused.owner or 'which did not say who it is'}; two would "
                "spoil each other's files: wait until it is done, or take another --workdir"
            )
            if patience:  # whoever set it is ready to wait again
                raise Unavailable(f"{message} (waited {patience:.0f} s)")
            raise UserError(message)
        if jax.process_index():
            held.enter_context(ownership.follow(path))
        yield


@contextlib.contextmanager
def stop_signal():
    """A function to call once a step: the number of the signal (SIGTERM, Ctrl-C) for which to save and stop, or 0.

    Several processes must call it in the same steps. When a signal reaches one of them, jax passes it on and chooses
    the step in which every process gets SIGTERM. A process that runs alone ends at once at its second signal.
    """
    several, received, calls = jax.process_count() > 1, [], itertools.count()

    def receive(signum, _):
        if received:
            os._exit(128 + signum)
        received.append(signum)
        if several:
            signal.raise_signal(signal.SIGTERM)

    def signal_to_stop():
        if several:
            return signal.SIGTERM if multihost_utils.reached_preemption_sync_point(next(calls)) else 0
        return received[0] if received else 0

    # of several processes jax has handled SIGTERM since they joined
    handled = [signal.SIGINT] if several else [signal.SIGINT, signal.SIGTERM]
    before = {signum: signal.signal(signum, receive) for signum in handled}
    try:
        yield signal_to_stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
