"""One run as several processes: they join, stop after the same step when a signal reaches one of them, leave together.

With one process the same functions only turn signals into an orderly stop.
"""

import contextlib
import itertools
import os
import signal
import sys
import traceback

import jax
from jax.experimental import multihost_utils

from jmoe.cli import Interrupted, UserError, disk_error, unavailable

# Seconds until a silent process counts as dead, which ends the others; and how long one that is done waits for them.
PATIENCE = {"heartbeat_timeout_seconds": 60, "shutdown_timeout_seconds": 60}


@contextlib.contextmanager
def joined():
    """Joins the other processes of this run, and leaves with them: those that JAX_COORDINATOR_ADDRESS,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID name, else a Slurm job's tasks, which jax finds by itself.

    The first process to exit alone would abort the others in what they still do, so the exit waits for them; after an
    error that is no user's mistake they may be gone or stuck, and it does not.

    Raises:
      UserError: the environment variables are not whole numbers.
    """
    _join()
    try:
        yield
    except (UserError, Interrupted):
        _leave()
        raise
    except Exception as error:
        if jax.process_count() == 1 or disk_error(error) or unavailable(error):
            raise
        traceback.print_exc()
        print("this process failed, or lost another one of its run; the same command resumes", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    _leave()


def _join() -> None:
    if address := os.environ.get("JAX_COORDINATOR_ADDRESS"):
        try:
            place = int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
        except (KeyError, ValueError) as error:
            raise UserError(
                f"JAX_COORDINATOR_ADDRESS={address} needs whole numbers in JAX_NUM_PROCESSES and "
                f"JAX_PROCESS_ID: {error}"
            ) from None
        jax.distributed.initialize(address, *place, **PATIENCE)
    elif int(os.environ.get("SLURM_NTASKS", 1)) > 1:
        jax.distributed.initialize(**PATIENCE)


def _leave() -> None:
    if jax.process_count() > 1:
        with contextlib.suppress(Exception):  # one that waited in vain still tells its own error
            jax.distributed.shutdown()


@contextlib.contextmanager
def stop_signal():
    """A function to call once a step, which gives the number of the signal after which to save and stop, or 0.

    The signals are SIGTERM and Ctrl-C. Several processes must call it in the same steps; each of them is told SIGTERM
    in the same call, whichever signal came to whichever process: jax hands the news round and picks the step. Where
    there is one process, a second signal stops at once.
    """
    received, calls = [], itertools.count()

    def ask(signum, _):
        if received:
            os._exit(128 + signum)
        received.append(signum)
        if jax.process_count() > 1:
            signal.raise_signal(signal.SIGTERM)

    if jax.process_count() > 1:  # jax listens to SIGTERM since the processes joined
        handled = [signal.SIGINT]
        asked = lambda: signal.SIGTERM if multihost_utils.reached_preemption_sync_point(next(calls)) else 0
    else:
        handled = [signal.SIGINT, signal.SIGTERM]
        asked = lambda: received[0] if received else 0
    before = {signum: signal.signal(signum, ask) for signum in handled}
    try:
        yield asked
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
