"""The embedded backend: a pool of trainer processes on this machine, one for each GPU or share of the cores."""

import glob
import os
import pathlib
import signal
import time

from tqdm import tqdm

from jmoe import cli
from jmoe.cli import Interrupted, UserError
from jmoe.storage import is_remote
from launch import trainer
from launch.jobs import jobs_of

POLL_SECONDS = 0.3


def workers(n_jobs: int) -> list[dict]:
    """Environment and cores of each worker: one for each GPU, one for all TPU chips, else one for each core."""
    cores = cli.cores()
    platform = os.environ.get("JAX_PLATFORMS", "")
    gpus = len(glob.glob("/dev/nvidia[0-9]*")) if platform in ("", "cuda", "gpu") else 0
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES") if gpus else None:
        devices = visible.split(",")
    else:
        devices = [str(i) for i in range(gpus)]
    if devices:
        return [{"env": {"CUDA_VISIBLE_DEVICES": device}, "cores": None} for device in devices[:n_jobs]]
    if platform in ("", "tpu") and (glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")):
        return [{"env": {}, "cores": None}]
    n = min(n_jobs, len(cores))
    return [{"env": {}, "cores": cores[i::n]} for i in range(n)]


def run(sweep) -> None:
    """Runs every job that is not finished, largest first; the causes of failures are kept in the jobs' folders.

    Raises:
      Interrupted: on Ctrl-C or SIGTERM, once the trainers have saved and stopped. UserError: another launch.sweep is at
        work on this workdir, or the code or a config was edited meanwhile.
    """
    own = trainer.lock_file(_lock_path(sweep))
    if own is None:
        raise UserError(
            f"another launch.sweep works on {os.fspath(sweep.workdir)}: launch.status tells, launch.cancel stops it"
        )
    todo = sorted((group for group in sweep.groups() if not group.done()), key=lambda group: group.flops)
    for job in jobs_of(todo):
        trainer.forget_cause(job)
    places = workers(len(todo)) if todo else []
    running = {}
    progress = _Progress(sweep.jobs)
    received = []
    before = {s: signal.signal(s, lambda signum, _: received.append(signum)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        while (todo or running) and not received:
            for group in reversed(todo):
                if not places:
                    break
                if started := trainer.start(group, places[0]["env"], places[0]["cores"]):
                    running[group.name] = started, places.pop(0)
            todo = [
                group for group in todo if group.name not in running
            ]  # an earlier start's trainer may still be saving
            time.sleep(POLL_SECONDS)
            for name, (started, place) in list(running.items()):
                code = started.process.poll()
                if code is None:
                    continue
                del running[name]
                places.append(place)
                if code == 0:
                    for job in started.group.jobs:
                        trainer.forget_cause(job)
                    continue
                failures = trainer.failed(started, code, sweep.retries)
                for job, failure in failures.items():
                    how = "failed" if failure["for_good"] else "died, trying again"
                    progress.say(f"{job} {how}: {failure['cause']}")
                if not all(failure["for_good"] for failure in failures.values()):
                    todo.append(started.group)
            progress.update(jobs_of(started.group for started, _ in running.values()))
    finally:
        for started, _ in running.values():
            started.process.terminate()
        for started, _ in running.values():
            started.process.wait()
        progress.close()
        for signum, handler in before.items():
            signal.signal(signum, handler)
        own.close()
    if received:
        raise Interrupted("stopped; what is trained is saved, and the same command goes on from there", received[0])


def states(sweep) -> dict[str, str]:
    """Jobs that this machine is training now."""
    return {job.name: "running" for job in sweep.jobs if trainer.running(job) is not None}


def cancel(sweep) -> str:
    """Asks launch.sweep on this machine, and trainers that outlived one, to save and stop."""
    pids = {pid for job in sweep.jobs if (pid := trainer.running(job))}
    if pid := trainer.holder(_lock_path(sweep)):
        pids = {pid}  # it stops its own
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    return f"asked {len(pids)} process{'es' * (len(pids) != 1)} to save and stop"


def _lock_path(sweep) -> pathlib.Path:
    return sweep.jobs[0].here.parent / "sweep.lock"


class _Progress:
    """One bar over the FLOPs of the sweep, and a line for each finished run."""

    def __init__(self, jobs):
        self._jobs, self._known = jobs, {job.name: set(job.results()) for job in jobs}
        self._every = 10.0 if is_remote(jobs[0].folder) else 0.0  # seconds: objects are slow to look at
        self._next = 0.0
        self._n_runs = sum(len(job.budgets) for job in jobs)
        self._cost = {job.name: job.flops / job.training_tokens for job in jobs}
        self._last = {job.name: job.progress()[0] for job in jobs}
        self._total, self._first, self._began = sum(job.flops for job in jobs), self._flops(), time.monotonic()
        self._bar = tqdm(
            total=self._total,
            initial=self._first,
            smoothing=0.05,
            disable=None,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed} so far, {remaining} left{postfix}",
        )
        skipped = sum(map(len, self._known.values()))
        if skipped:
            self.say(f"{skipped} of {self._n_runs} runs were done before")

    def update(self, running) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        losses = []
        for job in self._jobs:
            if job not in running and self._known[job.name] == set(job.budgets):
                continue
            results = job.results()
            for name in sorted(results.keys() - self._known[job.name], key=lambda name: results[name]["n_tokens"]):
                self._known[job.name].add(name)
                run = results[name]
                self.say(
                    f"run {self._done()} of {self._n_runs}: d_model {run['d_model']}, {run['n_experts']} experts, "
                    f"{run['n_tokens']} tokens: loss {run['loss']:.4f}; {self._left()} left"
                )
            self._last[job.name], loss = job.progress()
            if job in running and loss is not None:
                losses.append(f"{job.name.rsplit('-', 1)[0]} {loss:.2f}")
        self._bar.set_description_str(f"run {min(self._done() + 1, self._n_runs)} of {self._n_runs}", refresh=False)
        self._bar.set_postfix_str("loss " + ", ".join(losses) if losses else "starting", refresh=False)
        self._bar.n = self._flops()
        self._bar.refresh()

    def say(self, text: str) -> None:
        tqdm.write(text)

    def close(self) -> None:
        self._next = 0.0
        self.update([])
        self._bar.close()

    def _done(self) -> int:
        return sum(map(len, self._known.values()))

    def _left(self) -> str:
        done = self._flops() - self._first
        seconds = (time.monotonic() - self._began) * (self._total - self._first - done) / done if done else float("inf")
        return tqdm.format_interval(seconds) if done else "unknown time"

    def _flops(self) -> float:
        return sum(self._last[name] * self._cost[name] for name in self._last)
