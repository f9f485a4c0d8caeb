"""The local backend: a pool of trainer processes on this machine, one for each GPU or share of the cores."""

import dataclasses
import glob
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator

from tqdm import tqdm

from jmoe import cli
from jmoe.errors import UNAVAILABLE, Interrupted, Unavailable, UserError
from jmoe.storage import files as storage
from jmoe.storage import lease, ownership, retries
from launch import accelerators, hooks, output, trainer
from launch.backend import Backend, Sweep
from launch.jobs import Files, Job, files_of
from launch.progress import Progress

SECONDS_BETWEEN_POLLS = 0.3


class Local(Backend):
    """Trains each job in a process of its own on this machine, on one GPU or a share of the cores."""

    ON_THIS_MACHINE = True

    def devices(self, sweep: Sweep, accelerator: str | None) -> tuple[int, float | None]:
        n_devices, memory = accelerators.devices(accelerator)
        (worker,) = workers(1)
        return n_devices or worker.n_devices, memory or worker.memory

    def submit(self, sweep: Sweep) -> str:
        """Trains every job that is not finished, largest first.

        Raises:
          Interrupted: On Ctrl-C or SIGTERM, once the trainers have saved and stopped.
          UserError: Code or config was edited.
          Unavailable: The store is away.
        """
        files = files_of(sweep.workdir)
        # smallest first: _Pool takes jobs from the end
        todo = sorted((job for job in sweep.trained if not job.over(files)), key=lambda job: job.flops)
        if not todo:
            return _nothing_to_train(sweep, files)
        for job in todo:
            job.refuse_links()  # before any of them is trained
            trainer.forget_cause(job, files)
        if not sweep.options.get("threads"):  # rounding depends on it, so it stays, whatever is left to train
            n_cores = len(cli.cores())
            n_jobs = len(sweep.trained)
            n_workers = min(n_jobs, sweep.options.get("workers") or n_jobs, n_cores)
            sweep.options["threads"] = n_cores // n_workers
            sweep.write()
        _train(sweep, todo)
        return ""

    def states(self, sweep: Sweep) -> dict[str, str]:
        """The state "running" of each job that has a trainer on this machine, by the job's name."""
        return {job.name: "running" for job in sweep.jobs if ownership.owner(job.lock) is not None}

    def logs(self, sweep: Sweep, job: Job, rank: int | None = None, attempt: int | None = None) -> bytes:
        if rank:
            raise UserError(f"--rank={rank}: a local job is one process, of rank 0")
        return output.log(job, attempt)

    def cancel(self, sweep: Sweep, patience: float) -> str:
        """Stops launch.sweep on this machine, and trainers that outlived one; they save first.

        Kills those that have not stopped after `patience` seconds.

        Raises:
          UserError: They run elsewhere; nothing is signalled then.
        """
        n_signalled = 0
        n_killed = 0
        for paths in ([sweep.lock], [job.lock for job in sweep.jobs]):  # a launch.sweep stops its trainers itself
            owners = {owner for owner in map(ownership.owner, paths) if owner and not owner.has_ended()}
            elsewhere = [owner for owner in owners if not owner.lives_here()]
            if elsewhere:
                message = f"{os.fspath(sweep.workdir)}: {elsewhere[0]} works on it and can only be stopped from there"
                if storage.is_remote(sweep.workdir):
                    message += f"; if it is gone, the next start finds out within {lease.EXPIRY:.0f} s"
                raise UserError(message)
            n_signalled += len(owners)
            n_killed += ownership.stop(owners, patience)
        report = f"asked {n_signalled} {_plural('process', n_signalled, 'es')} to save and stop"
        if n_killed:
            report += f"; {n_killed} did not within {patience:.0f} s and had to be killed"
        return report

    def cancel_job(self, sweep: Sweep, job: Job, patience: float) -> str:
        owner = ownership.owner(job.lock)
        if owner is None or owner.has_ended():
            return "it was not running"
        if not owner.lives_here():
            raise UserError(f"job {job.name}: {owner} trains it and can only be stopped from there")
        return "its trainer had to be killed" if ownership.stop({owner}, patience) else "its trainer saved and stopped"

    def follow(self, sweep: Sweep, job: Job, rank: int | None) -> Iterator[bytes]:
        """Yields the job's log until no trainer writes it and none will."""

        def over() -> bool:
            owner = ownership.owner(sweep.lock)
            sweep_runs = owner is not None and not owner.has_ended()
            will_start = sweep_runs and not job.has_ended()
            return not will_start and ownership.owner(job.lock) is None

        if rank:
            self.logs(sweep, job, rank)  # raises UserError for this rank
        yield from output.tail(lambda: [job.log], over)


def _nothing_to_train(sweep: Sweep, files: Files) -> str:
    """The report on a sweep of which every job is done or given up."""
    n_runs = sum(len(job.budgets) for job in sweep.trained)
    given_up = [job for job in sweep.trained if job.given_up(files)]
    n_done = n_runs - sum(len(job.budgets) - len(job.results(files)) for job in given_up)
    done = f"{n_done} of {n_runs} runs were done before"
    if given_up:
        done += f", and the failure of {len(given_up)} {_plural('job', len(given_up))} was accepted"
    return f"{done}: this sweep is finished, nothing was trained"


def _plural(noun: str, n: int, ending: str = "s") -> str:
    return noun if n == 1 else noun + ending


def _train(sweep: Sweep, todo: list[Job]) -> None:
    """Trains the jobs until all have ended; raises as `Local.submit` does."""
    received: list[int] = []  # signals

    def stop(signum: int, _: object) -> None:
        received.append(signum)
        retries.wait_no_more()

    pool = _Pool(sweep, todo)
    handlers_before = {signum: signal.signal(signum, stop) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        while (pool.todo or pool.running) and not received:
            pool.start()
            time.sleep(SECONDS_BETWEEN_POLLS)
            pool.look()
    except Unavailable:
        if not received:
            raise
    finally:
        pool.close(received)
        for signum, handler in handlers_before.items():
            signal.signal(signum, handler)
    if received:
        raise Interrupted("stopped; what is trained is saved, and the same command continues from there", received[0])


@dataclasses.dataclass(frozen=True)
class Worker:
    """The devices and cores that one trainer process runs on.

    Attributes:
      env: Environment variables of the trainer.
      cores: The CPU cores that it may use; None for all.
      n_devices: The devices that it has.
      memory: Bytes of memory of each device; None if that is not known.
    """

    env: dict[str, str]
    cores: list[int] | None
    n_devices: int
    memory: float | None


def workers(n_jobs: int, threads: int = 1) -> list[Worker]:
    """A worker for each GPU, one for all TPU chips, else one for every `threads` cores; `n_jobs` at most."""
    platform = os.environ.get("JAX_PLATFORMS", "")
    if platform in ("", "cuda", "gpu"):
        gpus = visible_gpus(len(glob.glob("/dev/nvidia[0-9]*")))
        if gpus:
            memory = _gpu_memory()
            return [Worker({"CUDA_VISIBLE_DEVICES": gpu}, None, 1, memory) for gpu in gpus[:n_jobs]]
    if platform in ("", "tpu"):
        chips = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
        if chips:
            return [Worker({}, None, len(chips), None)]
    cores = cli.cores()
    n_workers = max(1, min(n_jobs, len(cores) // threads))
    n_devices = accelerators.host_devices()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / n_devices
    env = {"PJRT_NPROC": str(threads)}  # XLA's number of threads, whatever cores there are when it is started again
    return [Worker(env, cores[i::n_workers], n_devices, memory) for i in range(n_workers)]


def visible_gpus(n: int) -> list[str]:
    """Those of `n` GPUs that CUDA_VISIBLE_DEVICES leaves visible, as it names them.

    All are visible if it is not set, and none if it is empty. Otherwise, as in CUDA, those before the first entry that
    names no GPU, such as -1.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if n == 0 or visible is None:
        return [str(i) for i in range(n)]
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), map(str.strip, visible.split(","))))


def _gpu_memory() -> float | None:
    """The bytes of memory of the smallest GPU; None if nvidia-smi does not tell."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        return min(float(line) * 2**20 for line in subprocess.check_output(query, text=True).split())
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


class _Pool:
    """The jobs that wait and those that run, and the free workers.

    Attributes:
      todo: The jobs that wait for a worker, smallest first.
      running: By the name of a job, its trainer and the worker that this runs on.
    """

    def __init__(self, sweep: Sweep, todo: list[Job]) -> None:
        self.todo = todo
        self.running: dict[str, tuple[trainer.Trainer, Worker]] = {}
        self._sweep = sweep
        self._saving: list[Job] = []  # jobs that wait for their earlier trainer
        self._failed: list[Job] = []  # failed jobs, which launch.retry may revive
        self._next_look = 0.0  # at the failed jobs; time.monotonic()
        n_jobs = min(len(todo), sweep.options.get("workers") or len(todo))
        self._free_workers = workers(n_jobs, sweep.options["threads"])
        self._progress = Progress(sweep.trained)

    def start(self) -> None:
        """Starts trainers on the free workers; a job whose earlier trainer is still saving waits."""
        self._requeue_revived_jobs()
        self._saving = []
        for job in reversed(self.todo):
            if not self._free_workers:
                break
            if job.has_ended():  # cancelled before its turn
                self.todo.remove(job)
                self._failed.append(job)
                continue
            worker = self._free_workers[0]
            started = trainer.start(job, self._sweep.stall_minutes, worker.env, worker.cores)
            if started is None:
                self._saving.append(job)
                continue
            del self._free_workers[0]
            self.running[job.name] = (started, worker)
        self.todo = [job for job in self.todo if job.name not in self.running]

    def _requeue_revived_jobs(self) -> None:
        """Queues the jobs again that had failed for good and that launch.retry revived."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + (10.0 if storage.is_remote(self._sweep.workdir) else 1.0)
        self.todo += [job for job in self._failed if not job.has_ended()]
        self._failed = [job for job in self._failed if job not in self.todo]

    def look(self) -> None:
        """Handles the trainers that have ended. Polling them also stops those without a sign of life."""
        for name, (running, worker) in list(self.running.items()):
            code = running.poll()
            if code is None:
                continue
            del self.running[name]
            self._free_workers.append(worker)
            self._handle_end(running, code)
            if running.job.done():
                continue
            if running.job.has_ended():
                self._failed.append(running.job)
            else:
                self.todo.append(running.job)
        self._progress.update([running.job for running, _ in self.running.values()], self._saving)

    def _handle_end(self, ended: trainer.Trainer, code: int) -> None:
        """Records and prints how a trainer ended, if it failed."""
        job = ended.job
        if code == 0:
            self._handle_success(job)
            return
        if code == UNAVAILABLE:  # the store did not answer: nothing is wrong with the job
            tqdm.write(f"{job.name}: {ended.cause(code)}; trying again")
            return
        stopped_on_request = code in trainer.STOPPED and not ended.stalled
        if stopped_on_request:  # if by launch.cancel, failure.json says so already
            return
        failure = trainer.record_failure(ended, code, self._sweep.retries)
        if failure:
            how = "failed" if failure["for_good"] else "died, trying again"
            tqdm.write(f"{job.name} {how}: {failure['cause']}")
            hooks.failed(self._sweep, job)

    def _handle_success(self, job: Job) -> None:
        """Forgets earlier failures. A result that cannot be used, and that the trainer has left alone, is a failure."""
        odd: list[str] = []
        job.results(odd=odd)
        if not odd:
            trainer.forget_cause(job)
            return
        trainer.write_failure(job, f"{odd[0]}; delete it, and launch.retry makes it again", True, self._sweep.retries)
        tqdm.write(f"{job.name} failed: {odd[0]}")
        hooks.failed(self._sweep, job)

    def close(self, received: list[int]) -> None:
        """Ends the trainers once they have saved; a second signal in `received` ends them at once."""
        processes = [running.process for running, _ in self.running.values()]
        if received and processes:
            tqdm.write(f"asking {len(processes)} trainers to save and stop; a second Ctrl-C ends them at once")
        trainer.end(processes, hurry=lambda: len(received) > 1)
        self._progress.close()
