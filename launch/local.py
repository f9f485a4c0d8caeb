"""The embedded backend: a pool of trainer processes on this machine, one for each GPU or share of the cores."""

import glob
import json
import os
import signal
import subprocess
import time

from tqdm import tqdm

from jmoe.cli import Interrupted

RETRIES = 1  # of a job that died; one that explained itself (exit code 2) is not tried again


def workers(n_jobs: int) -> list[dict]:
    """Environment and cores of each worker: one for each GPU, one for all TPU chips, else one for each core."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count()))
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


def run(jobs, fingerprints: dict[str, str]) -> dict[str, str]:
    """Runs every job that is not finished, largest first; returns why by name for those that failed for good.

    Raises:
      Interrupted: on Ctrl-C or SIGTERM, once the trainers have saved and stopped.
    """
    todo = [job for job in jobs if len(job.results()) < len(job.branches)]
    todo.sort(key=lambda job: job.flops)
    places = workers(len(todo)) if todo else []
    running, tries, failed = {}, {}, {}
    progress = _Progress(jobs)
    received = []
    before = {s: signal.signal(s, lambda signum, _: received.append(signum)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        while (todo or running) and not received:
            while todo and places:
                place, job = places.pop(0), todo.pop()
                running[job.name] = (job, place, _start(job, place, fingerprints[job.name]))
            time.sleep(0.3)
            for name, (job, place, process) in list(running.items()):
                code = process.poll()
                if code is None:
                    continue
                del running[name]
                places.append(place)
                tries[name] = tries.get(name, 0) + 1
                if code == 0:
                    continue
                cause = _cause(job, code)
                if code == 2 or tries[name] > RETRIES:
                    failed[name] = cause
                    progress.say(f"{name} failed: {cause}")
                else:
                    progress.say(f"{name} died, trying again: {cause}")
                    todo.append(job)
            progress.update([job for job, _, _ in running.values()])
    finally:
        for _, _, process in running.values():
            process.terminate()
        for _, _, process in running.values():
            process.wait()
        progress.close()
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if received:
        raise Interrupted("stopped; what is trained is saved, and the same command goes on from there", received[0])
    return failed


def _start(job, place, fingerprint):
    job.folder.mkdir(parents=True, exist_ok=True)
    pin = (lambda: os.sched_setaffinity(0, place["cores"])) if place["cores"] else None
    with open(job.folder / "log.txt", "ab") as log:
        return subprocess.Popen(
            job.command(fingerprint),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | place["env"],
            preexec_fn=pin,
            start_new_session=True,
        )


def _cause(job, code: int) -> str:
    """The last line of its log, with its exit code."""
    lines = (job.folder / "log.txt").read_text(errors="replace").strip().splitlines()
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{lines[-1] if lines else 'no output'} ({how}; {job.folder / 'log.txt'})"


class _Progress:
    """One bar over the FLOPs of the sweep, and a line for each finished run."""

    def __init__(self, jobs):
        self._jobs, self._known = jobs, {job.name: set(job.results()) for job in jobs}
        self._n_runs = sum(len(job.branches) for job in jobs)
        self._cost = {job.name: job.flops / job.training_tokens for job in jobs}
        self._last = {job.name: self._tokens(job)[0] for job in jobs}
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
        losses = []
        for job in self._jobs:
            if job not in running and self._known[job.name] == {b.name for b in job.branches}:
                continue
            results = job.results()
            for name in sorted(results.keys() - self._known[job.name], key=lambda name: results[name]["n_tokens"]):
                self._known[job.name].add(name)
                run = results[name]
                self.say(
                    f"run {self._done()} of {self._n_runs}: d_model {run['d_model']}, {run['n_experts']} experts, "
                    f"{run['n_tokens']} tokens: loss {run['loss']:.4f}; {self._left()} left"
                )
            self._last[job.name], loss = self._tokens(job)
            if job in running and loss is not None:
                losses.append(f"{job.name.rsplit('-', 1)[0]} {loss:.2f}")
        self._bar.set_description_str(f"run {min(self._done() + 1, self._n_runs)} of {self._n_runs}", refresh=False)
        self._bar.set_postfix_str("loss " + ", ".join(losses) if losses else "starting", refresh=False)
        self._bar.n = self._flops()
        self._bar.refresh()

    def say(self, text: str) -> None:
        tqdm.write(text)

    def close(self) -> None:
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

    def _tokens(self, job) -> tuple[int, float | None]:
        """Tokens trained so far over trunk and branches, and the newest loss."""
        segments = {}
        for segment in job.schedule.segments:  # the trunk's pieces share a folder
            first = min(segments.get(segment.name, (segment.start,))[0], segment.start)
            segments[segment.name] = (first, segment.stop)
        tokens, newest = 0, (0.0, None)
        for name, (start, _) in segments.items():
            path = job.folder / name / "metrics.jsonl"
            try:
                with open(path, "rb") as file:
                    file.seek(max(0, path.stat().st_size - 4096))
                    line = json.loads(file.read().split(b"\n")[-2])
                tokens += line["n_tokens"] - job.schedule.tokens_at(start)
                newest = max(newest, (path.stat().st_mtime, line["cross_entropy"]))
            except (OSError, IndexError, ValueError):
                continue
        return tokens, newest[1]
