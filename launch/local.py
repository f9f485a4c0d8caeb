"""The embedded backend: a pool of trainer processes on this machine, one for each GPU or share of the cores."""

import glob
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from jmoe import cli
from jmoe.errors import UNAVAILABLE, Interrupted, Unavailable, UserError
from jmoe.storage import files as storage
from jmoe.storage import lease, ownership
from launch import accelerators, hooks, output, trainer
from launch.backend import Backend, Sweep
from launch.jobs import Job, files_of

POLL_SECONDS = 0.3


class Local(Backend):
    """Trains on this machine: one process for each GPU or share of the cores."""

    ON_THIS_MACHINE = True

    def devices(self, sweep: Sweep, accelerator: str | None) -> tuple[int, float | None]:
        n_devices, memory = accelerators.devices(accelerator)
        (place,) = workers(1)
        return n_devices or place["n_devices"], memory or place["memory"]

    def submit(self, sweep: Sweep) -> str:
        """Trains every job that is not finished, largest first. Interrupted on Ctrl-C or SIGTERM, once the trainers
        have saved and stopped; UserError where code or config was edited; Unavailable if the store is away."""
        files = files_of(sweep.workdir)
        todo = sorted((job for job in sweep.trained if not job.over(files)), key=lambda job: job.flops)
        if not todo:
            n_runs = sum(len(job.budgets) for job in sweep.trained)
            failed = [job for job in sweep.trained if job.given_up(files)]
            n_done = n_runs - sum(len(job.budgets) - len(job.results(files)) for job in failed)
            accepted = f", and the failure of {len(failed)} job{'s' * (len(failed) != 1)} was accepted" * bool(failed)
            return f"{n_done} of {n_runs} runs were done before{accepted}: this sweep is finished, nothing was trained"
        for job in todo:
            trainer.forget_cause(job, files)
        if not sweep.options.get("threads"):  # rounding depends on it, so it stays, whatever is left to train
            n_jobs, n_cores = len(sweep.trained), len(cli.cores())
            sweep.options["threads"] = n_cores // min(n_jobs, sweep.options.get("workers") or n_jobs, n_cores)
            sweep.write()
        received = []

        def stop(signum: int, _: object) -> None:
            received.append(signum)
            storage.wait_no_more()

        pool = _Pool(sweep, todo)
        before = {signum: signal.signal(signum, stop) for signum in (signal.SIGINT, signal.SIGTERM)}
        try:
            while (pool.todo or pool.running) and not received:
                pool.start()
                time.sleep(POLL_SECONDS)
                pool.look()
        except Unavailable:
            if not received:
                raise
        finally:
            pool.close(received)
            for signum, handler in before.items():
                signal.signal(signum, handler)
        if received:
            raise Interrupted("stopped; what is trained is saved, and the same command goes on from there", received[0])
        return ""

    def states(self, sweep: Sweep) -> dict[str, str]:
        return {job.name: "running" for job in sweep.jobs if ownership.owner(job.lock) is not None}

    def logs(self, sweep: Sweep, job: Job, rank: int | None = None, attempt: int | None = None) -> bytes:
        if rank:
            raise UserError(f"--rank={rank}: a local job is one process, of rank 0")
        return output.log(job, attempt)

    def cancel(self, sweep: Sweep, patience: float) -> str:
        """Asks launch.sweep on this machine, and trainers that outlived one, to save and stop; kills those that have
        not stopped after `patience` seconds. UserError where they run elsewhere; nothing is signalled then."""
        n_asked, n_killed = 0, 0
        for paths in ([sweep.lock], [job.lock for job in sweep.jobs]):  # a sweep stops its own trainers
            owners = {owner for path in paths if (owner := ownership.owner(path)) and not owner.has_ended()}
            if away := [owner for owner in owners if not owner.lives_here()]:
                where = f"{os.fspath(sweep.workdir)}: {away[0]} works on it and can only be stopped from there"
                expiry = f"; if it is gone, the next start finds out within {lease.EXPIRY:.0f} s"
                raise UserError(where + expiry * storage.is_remote(sweep.workdir))
            n_asked, n_killed = n_asked + len(owners), n_killed + ownership.stop(owners, patience)
        killed = f"; {n_killed} did not within {patience:.0f} s and had to be killed" * bool(n_killed)
        return f"asked {n_asked} process{'es' * (n_asked != 1)} to save and stop{killed}"

    def cancel_job(self, sweep: Sweep, job: Job, patience: float) -> str:
        if (owner := ownership.owner(job.lock)) is None or owner.has_ended():
            return "it was not running"
        if not owner.lives_here():
            raise UserError(f"job {job.name}: {owner} trains it and can only be stopped from there")
        return "its trainer had to be killed" if ownership.stop({owner}, patience) else "its trainer saved and stopped"

    def follow(self, sweep: Sweep, job: Job, rank: int | None) -> Iterator[bytes]:
        """Yields the job's log until no trainer writes it and none will."""

        def over() -> bool:
            owner = ownership.owner(sweep.lock)
            comes = owner and not owner.has_ended() and not job.stands_still()
            return not comes and ownership.owner(job.lock) is None

        if rank:
            self.logs(sweep, job, rank)  # refuses the rank
        yield from output.tail(lambda: [job.log], over)


def workers(n_jobs: int, threads: int = 1) -> list[dict]:
    """Places for trainers: one for each GPU, one for all TPU chips, else one for every `threads` cores; n_jobs at most.
    Each has a trainer's "env", with its CPU threads, and "cores", its "n_devices", and the bytes of each's "memory"."""
    cores = cli.cores()
    platform = os.environ.get("JAX_PLATFORMS", "")
    on_gpus = visible_gpus(len(glob.glob("/dev/nvidia[0-9]*"))) if platform in ("", "cuda", "gpu") else []
    if on_gpus:
        own = {"cores": None, "n_devices": 1, "memory": _gpu_memory()}
        return [own | {"env": {"CUDA_VISIBLE_DEVICES": gpu}} for gpu in on_gpus[:n_jobs]]
    if platform in ("", "tpu") and (chips := glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")):
        return [{"env": {}, "cores": None, "n_devices": len(chips), "memory": None}]
    n, n_devices = max(1, min(n_jobs, len(cores) // threads)), accelerators.host_devices()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / n_devices
    env = {"PJRT_NPROC": str(threads)}  # XLA's number of threads, whatever cores there are when it is started again
    return [{"env": env, "cores": cores[i::n], "n_devices": n_devices, "memory": memory} for i in range(n)]


def visible_gpus(n: int) -> list[str]:
    """Of `n` GPUs, those that CUDA_VISIBLE_DEVICES leaves visible, as it names them: all if it is not set, none if it
    is empty, and otherwise those before an entry that names no GPU, such as -1."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if n == 0 or visible is None:
        return [str(i) for i in range(n)]
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), map(str.strip, visible.split(","))))


def _gpu_memory() -> float | None:
    """Bytes of the smallest GPU."""
    try:
        query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        return min(float(line) * 2**20 for line in subprocess.check_output(query, text=True).split())
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


class _Pool:
    """The waiting jobs, smallest first, and the trainers of the running ones, each in its place."""

    def __init__(self, sweep: Sweep, todo: list[Job]) -> None:
        self._sweep, self.todo, self.running, self._waiting = sweep, todo, {}, []
        self._failed, self._next_look = [], 0.0  # failed jobs, which launch.retry may revive
        n_jobs = min(len(todo), sweep.options.get("workers") or len(todo))
        self._places = workers(n_jobs, sweep.options["threads"])
        self._progress = Progress(sweep.trained)

    def start(self) -> None:
        """Starts trainers in the free places; a job whose earlier trainer is still saving waits. Those that had failed
        for good and that launch.retry revived are queued again."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + (10.0 if storage.is_remote(self._sweep.workdir) else 1.0)
            self.todo += [job for job in self._failed if not job.stands_still()]
            self._failed = [job for job in self._failed if job not in self.todo]
        self._waiting = []
        for job in reversed(self.todo):
            if not self._places:
                break
            if job.stands_still():  # cancelled before its turn
                self.todo.remove(job)
                self._failed.append(job)
                continue
            env, cores = self._places[0]["env"], self._places[0]["cores"]
            if started := trainer.start(job, self._sweep.stall_minutes, env, cores):
                self.running[job.name] = started, self._places.pop(0)
            else:
                self._waiting.append(job)
        self.todo = [job for job in self.todo if job.name not in self.running]

    def look(self) -> None:
        """Handles the trainers that have ended; polling them also stops those without a sign of life."""
        for name, (ended, place) in list(self.running.items()):
            code, job = ended.poll(), ended.job
            if code is None:
                continue
            del self.running[name]
            self._places.append(place)
            asked = code in trainer.STOPPED and not ended.stalled  # to stop; if by launch.cancel, the job is marked
            if code == 0:
                trainer.forget_cause(job)
            elif code == UNAVAILABLE:  # the store did not answer: nothing is wrong with the job
                tqdm.write(f"{name}: {ended.cause(code)}; trying again")
            elif not asked and (failure := trainer.failed(ended, code, self._sweep.retries)):
                how = "failed" if failure["for_good"] else "died, trying again"
                tqdm.write(f"{name} {how}: {failure['cause']}")
                hooks.failed(self._sweep, job)
            if not job.done():
                (self._failed if job.stands_still() else self.todo).append(job)
        self._progress.update([running.job for running, _ in self.running.values()], self._waiting)

    def close(self, received: list[int]) -> None:
        """Ends the trainers once they have saved; a second signal ends them at once."""
        running = [started.process for started, _ in self.running.values()]
        if received and running:
            tqdm.write(f"asking {len(running)} trainers to save and stop; a second Ctrl-C ends them at once")
        trainer.end(running, hurry=lambda: len(received) > 1)
        self._progress.close()


class Progress:
    """The progress of `jobs`, on a terminal or in a log: one bar over their FLOPs, and a line for each finished run."""

    def __init__(self, jobs: list[Job]) -> None:
        self._every = 10.0 if storage.is_remote(jobs[0].folder) else 0.0  # seconds between looks: objects are slow
        self._jobs, self._next = jobs, 0.0
        files = self._files()
        self._known = {(job.name, branch) for job in jobs for branch in job.results(files)}
        self._n_runs = sum(len(job.budgets) for job in jobs)
        self._tokens = {job.name: job.progress()[0] for job in jobs}  # at the last look
        self._total, self._first, self._began = sum(job.flops for job in jobs), self._flops(), time.monotonic()
        line = "{desc} {percentage:3.0f}%|{bar}| {elapsed} so far, {remaining} left{postfix}"
        self._bar = tqdm(total=self._total, initial=self._first, smoothing=0.05, disable=None, bar_format=line)
        if self._known:
            tqdm.write(f"{len(self._known)} of {self._n_runs} runs were done before")

    def update(self, running: list[Job], waiting: Sequence[Job] = ()) -> None:
        """Looks at the jobs' folders: prints which runs have ended since the last look, and shows how the `running`
        jobs stand and that the `waiting` ones wait for their earlier trainer."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        standing, files = [], self._files()
        short = lambda job: job.name.rsplit("-", 1)[0]
        for job in self._jobs:
            if job not in running and all((job.name, branch) in self._known for branch in job.budgets):
                continue
            for branch, run in job.results(files).items():
                if (job.name, branch) in self._known:
                    continue
                self._known.add((job.name, branch))
                tqdm.write(
                    f"run {len(self._known)} of {self._n_runs}: d_model {run['d_model']}, {run['n_experts']} experts, "
                    f"{run['n_tokens']} tokens: loss {run['loss']:.4f}; {self._left()} left"
                )
            self._tokens[job.name], loss = job.progress()
            if job in running:
                how = "loading and compiling" if loss is None else f"loss {loss:.2f}"
                standing.append(f"{short(job)} {how if job.training_tokens > self._tokens[job.name] else 'evaluating'}")
        standing += [f"{short(job)} waits for its earlier trainer to save" for job in waiting]
        self._bar.set_description_str(f"run {min(len(self._known) + 1, self._n_runs)} of {self._n_runs}", refresh=False)
        self._bar.set_postfix_str(", ".join(standing) or "starting", refresh=False)
        self._bar.n = self._flops()
        self._bar.refresh()

    def _files(self) -> dict | None:
        """The sweep's files, listed by one request; None on a disk, where looking at each file is as cheap."""
        return files_of(self._jobs[0].folder.parent.parent) if self._every else None

    def close(self) -> None:
        self._next = 0.0
        try:
            self.update([])
        except Unavailable:
            tqdm.write("the store gives no answer: launch.status says later which runs have ended")
        self._bar.close()

    def _left(self) -> str:
        done, whole = self._flops() - self._first, self._total - self._first
        return tqdm.format_interval((time.monotonic() - self._began) * (whole / done - 1)) if done else "unknown time"

    def _flops(self) -> float:
        return sum(job.flops * self._tokens[job.name] / job.training_tokens for job in self._jobs)
