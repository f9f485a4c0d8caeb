"""The progress of a sweep that trains on this machine: a bar, and a line for each finished run."""

import time
from collections.abc import Sequence

from tqdm import tqdm

from jmoe.errors import Unavailable
from jmoe.storage import files as storage
from launch.jobs import Files, Job, files_of


class Progress:
    """The progress of `jobs`, on a terminal or in a log: one bar over their FLOPs, and a line for each finished run."""

    def __init__(self, jobs: list[Job]) -> None:
        self._seconds_between_looks = 10.0 if storage.is_remote(jobs[0].folder) else 0.0  # objects are slow to read
        self._next_look = 0.0  # time.monotonic()
        self._jobs = jobs
        files = self._files()
        self._finished = {(job.name, branch) for job in jobs for branch in job.results(files)}
        self._n_runs = sum(len(job.budgets) for job in jobs)
        self._tokens = {job.name: job.progress()[0] for job in jobs}  # at the last look
        self._total_flops = sum(job.flops for job in jobs)
        self._first_flops = self._flops()
        self._began = time.monotonic()
        line = "{desc} {percentage:3.0f}%|{bar}| {elapsed} so far, {remaining} left{postfix}"
        self._bar = tqdm(
            total=self._total_flops, initial=self._first_flops, smoothing=0.05, disable=None, bar_format=line
        )
        if self._finished:
            tqdm.write(f"{len(self._finished)} of {self._n_runs} runs were done before")

    def update(self, running: list[Job], waiting: Sequence[Job] = ()) -> None:
        """Prints which runs have ended since the last look at the jobs' folders, and updates the bar.

        Args:
          running: The jobs that run now.
          waiting: The jobs that wait for their earlier trainer.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + self._seconds_between_looks
        files = self._files()
        summaries = []
        for job in self._jobs:
            is_known = all((job.name, branch) in self._finished for branch in job.budgets)
            if is_known and job not in running:
                continue
            self._print_finished(job, files)
            self._tokens[job.name], loss = job.progress()
            if job in running:
                summaries.append(self._summary(job, loss))
        summaries += [f"{_short_name(job)} waits for its earlier trainer to save" for job in waiting]
        number = min(len(self._finished) + 1, self._n_runs)
        self._bar.set_description_str(f"run {number} of {self._n_runs}", refresh=False)
        self._bar.set_postfix_str(", ".join(summaries) or "starting", refresh=False)
        self._bar.n = self._flops()
        self._bar.refresh()

    def _print_finished(self, job: Job, files: Files | None) -> None:
        """Prints a line for each run of the job that has ended since the last look."""
        for branch, run in job.results(files).items():
            if (job.name, branch) in self._finished:
                continue
            self._finished.add((job.name, branch))
            tqdm.write(
                f"run {len(self._finished)} of {self._n_runs}: d_model {job.d_model}, {job.n_experts} experts, "
                f"{run['n_tokens']} tokens: loss {run['loss']:.4f}; {self._time_left()} left"
            )

    def _summary(self, job: Job, loss: float | None) -> str:
        """A clause on the present work of a running job."""
        if self._tokens[job.name] >= job.training_tokens:
            return f"{_short_name(job)} evaluating"
        if loss is None:
            return f"{_short_name(job)} loading and compiling"
        return f"{_short_name(job)} loss {loss:.2f}"

    def _files(self) -> Files | None:
        """Lists the sweep's files by one request; None on a disk, where looking at each file is as cheap."""
        if not self._seconds_between_looks:
            return None
        return files_of(self._jobs[0].folder.parent.parent)

    def close(self) -> None:
        """Prints which runs have ended since the last look, and closes the bar."""
        self._next_look = 0.0
        try:
            self.update([])
        except Unavailable:
            tqdm.write("the store gives no answer: launch.status says later which runs have ended")
        self._bar.close()

    def _time_left(self) -> str:
        done = self._flops() - self._first_flops
        if not done:
            return "unknown time"
        whole = self._total_flops - self._first_flops
        seconds = (time.monotonic() - self._began) * (whole / done - 1)
        return tqdm.format_interval(seconds)

    def _flops(self) -> float:
        """The FLOPs that were done up to the last look."""
        return sum(job.flops * self._tokens[job.name] / job.training_tokens for job in self._jobs)


def _short_name(job: Job) -> str:
    """The job's name without the hash of its config."""
    return job.name.rsplit("-", 1)[0]
