"""The embedded backend: a pool of trainer processes on this machine, one for each GPU or share of the cores."""

import glob
import os
import signal
import subprocess
import time

from jmoe import cli
from jmoe.errors import UNAVAILABLE, Interrupted, UserError
from jmoe.storage import identity, ownership
from jmoe.storage.files import is_remote
from launch import preflight, trainer
from launch.jobs import jobs_of
from launch.progress import Progress

POLL_SECONDS = 0.3


def workers(n_jobs: int) -> list[dict]:
    """One for each GPU, one for all TPU chips, else one for each core: "env" and "cores" of its trainers, "n_devices"
    that they will see, and the bytes of "memory" of each device, None where they are not known."""
    cores = cli.cores()
    platform = os.environ.get("JAX_PLATFORMS", "")
    on_gpus = visible_gpus(len(glob.glob("/dev/nvidia[0-9]*"))) if platform in ("", "cuda", "gpu") else []
    if on_gpus:
        own = {"cores": None, "n_devices": 1, "memory": _gpu_memory()}
        return [own | {"env": {"CUDA_VISIBLE_DEVICES": gpu}} for gpu in on_gpus[:n_jobs]]
    if platform in ("", "tpu") and (chips := glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")):
        return [{"env": {}, "cores": None, "n_devices": len(chips), "memory": None}]
    n = min(n_jobs, len(cores))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / preflight.host_devices()
    own = {"env": {}, "n_devices": preflight.host_devices(), "memory": memory}
    return [own | {"cores": cores[i::n]} for i in range(n)]


def visible_gpus(n: int) -> list[str]:
    """Of `n` GPUs, those that CUDA_VISIBLE_DEVICES leaves, as it names them: all where it is not set, none where it is
    empty, and those before an entry that names none, such as -1."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if n == 0 or visible is None:
        return [str(i) for i in range(n)]
    named = [name.strip() for name in visible.split(",")]
    return named[: next((i for i, name in enumerate(named) if name in ("", "-1")), len(named))]


def _gpu_memory() -> float | None:
    """Bytes of the smallest GPU."""
    try:
        query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        return min(float(line) * 2**20 for line in subprocess.check_output(query, text=True).split())
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def check(sweep) -> None:
    """Nothing can be wrong with the options of this backend."""


def submit(sweep) -> str:
    """Runs every job that is not finished, largest first; the causes of failures are kept in the jobs' folders.

    Raises:
      Interrupted: on Ctrl-C or SIGTERM, once the trainers have saved and stopped. UserError: the code or a config was
        edited meanwhile.
    """
    todo = sorted((group for group in sweep.groups() if not group.done()), key=lambda group: group.flops)
    if not todo:
        n_runs = sum(len(job.budgets) for job in sweep.trained)
        return f"{n_runs} of {n_runs} runs were done before: this sweep is finished, nothing was trained"
    for job in jobs_of(todo):
        trainer.forget_cause(job)
    received = []
    before = {s: signal.signal(s, lambda signum, _: received.append(signum)) for s in (signal.SIGINT, signal.SIGTERM)}
    pool = _Pool(sweep, todo)
    try:
        while pool.is_busy() and not received:
            pool.start()
            time.sleep(POLL_SECONDS)
            pool.look()
    finally:
        pool.close(received)
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if received:
        raise Interrupted("stopped; what is trained is saved, and the same command goes on from there", received[0])
    return ""


class _Pool:
    """Groups of jobs that wait, smallest first, and the trainers of those that run, each in a place."""

    def __init__(self, sweep, todo):
        self._sweep, self._todo, self._running, self._waiting = sweep, todo, {}, []
        self._places = workers(len(todo))
        self._progress = Progress(sweep.trained)

    def is_busy(self) -> bool:
        return bool(self._todo or self._running)

    def start(self) -> None:
        """Trainers in the places that are free; a group whose earlier trainer is still saving waits."""
        self._waiting = []
        for group in reversed(self._todo):
            if not self._places:
                break
            if started := trainer.start(group, self._places[0]["env"], self._places[0]["cores"]):
                self._running[group.name] = trainer.Watch(started, self._sweep.stall_minutes), self._places.pop(0)
            else:
                self._waiting += group.jobs
        self._todo = [group for group in self._todo if group.name not in self._running]

    def look(self) -> None:
        """At what has ended, and what has stopped to move."""
        for name, (watch, place) in list(self._running.items()):
            code = watch.poll()
            if code is None:
                continue
            del self._running[name]
            self._places.append(place)
            if code == 0:
                for job in watch.group.jobs:
                    trainer.forget_cause(job)
                continue
            if code == UNAVAILABLE:  # the store did not answer: nothing is wrong with the job
                self._progress.say(f"{name}: {watch.trainer.cause(code)}; trying again")
                self._todo.append(watch.group)
                continue
            failures = trainer.failed(watch.trainer, code, self._sweep.retries)
            for job, failure in failures.items():
                how = "failed" if failure["for_good"] else "died, trying again"
                self._progress.say(f"{job} {how}: {failure['cause']}")
            if not all(failure["for_good"] for failure in failures.values()):
                self._todo.append(watch.group)
        self._progress.update(jobs_of(watch.group for watch, _ in self._running.values()), self._waiting)

    def close(self, received) -> None:
        """Ends the trainers once they have saved; a second signal ends them at once."""
        trainer.end([watch.trainer.process for watch, _ in self._running.values()], hurry=lambda: len(received) > 1)
        self._progress.close()


def states(sweep) -> dict[str, str]:
    """Jobs that this machine is training now."""
    return {job.name: "running" for job in sweep.jobs if trainer.running(job) is not None}


def reason(sweep, job) -> str:
    """Why a job did not run, beyond what its own folder tells."""
    return ""


def cancel(sweep, patience: float) -> str:
    """Has launch.sweep on this machine, and trainers that outlived one, save and stop; kills what has not after
    `patience` seconds.

    Raises:
      UserError: they run elsewhere; nothing is signalled.
    """
    told, n_killed = 0, 0
    for paths in ([sweep.lock], [trainer.lock_path(job) for job in sweep.jobs]):  # a sweep stops its own trainers
        owners = {owner for path in paths if (owner := ownership.owner(path)) and not owner.has_ended()}
        if away := [owner for owner in owners if not owner.lives_here()]:
            told = f"{os.fspath(sweep.workdir)}: {away[0]} works on it and can only be stopped from there"
            gone = f"; if it is gone, the next start finds out within {ownership.EXPIRY:.0f} s"
            raise UserError(told + gone * is_remote(sweep.workdir))
        told += len(owners)
        n_killed += identity.stop(owners, patience)
    kill = f"; {n_killed} did not within {patience:.0f} s and had to be killed" * bool(n_killed)
    return f"asked {told} process{'es' * (told != 1)} to save and stop{kill}"
