"""How far a local sweep is, while it works."""

import time
from collections.abc import Sequence

from tqdm import tqdm

from jmoe.errors import Unavailable
from jmoe.storage import files as storage
from launch.jobs import Job, files_of


class Progress:
    """The progress of `jobs`, on a terminal or in a log: one bar over their FLOPs, and a line for each finished run."""

    def __init__(self, jobs: list[Job]) -> None:
        self._every = 10.0 if storage.is_remote(jobs[0].folder) else 0.0  # seconds between looks: objects are slow
        self._jobs, self._next = jobs, 0.0
        files = self._files()
        self._known = {job.name: set(job.results(files)) for job in jobs}
        self._n_runs = sum(len(job.budgets) for job in jobs)
        self._tokens = {job.name: job.progress()[0] for job in jobs}  # at the last look
        self._total, self._first, self._began = sum(job.flops for job in jobs), self._flops(), time.monotonic()
        self._bar = tqdm(
            total=self._total,
            initial=self._first,
            smoothing=0.05,
            disable=None,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed} so far, {remaining} left{postfix}",
        )
        if n_done := self._n_done():
            self.say(f"{n_done} of {self._n_runs} runs were done before")

    def update(self, running: list[Job], waiting: Sequence[Job] = ()) -> None:
        """Looks at the jobs' folders: prints which runs have ended since the last look, and shows how the `running`
        jobs stand and that the `waiting` ones wait for their earlier trainer."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        standing, files = [], self._files()
        short = lambda job: job.name.rsplit("-", 1)[0]
        for job in self._jobs:
            if job not in running and self._known[job.name] == set(job.budgets):
                continue
            results = job.results(files)
            for name in sorted(results.keys() - self._known[job.name], key=lambda name: results[name]["n_tokens"]):
                self._known[job.name].add(name)
                run = results[name]
                self.say(
                    f"run {self._n_done()} of {self._n_runs}: d_model {run['d_model']}, {run['n_experts']} experts, "
                    f"{run['n_tokens']} tokens: loss {run['loss']:.4f}; {self._left()} left"
                )
            self._tokens[job.name], loss = job.progress()
            if job in running:
                how = "loading and compiling" if loss is None else f"loss {loss:.2f}"
                standing.append(f"{short(job)} {how if job.training_tokens > self._tokens[job.name] else 'evaluating'}")
        standing += [f"{short(job)} waits for its earlier trainer to save" for job in waiting]
        self._bar.set_description_str(f"run {min(self._n_done() + 1, self._n_runs)} of {self._n_runs}", refresh=False)
        self._bar.set_postfix_str(", ".join(standing) or "starting", refresh=False)
        self._bar.n = self._flops()
        self._bar.refresh()

    def _files(self) -> dict | None:
        """The sweep's files, listed by one request; None on a disk, where looking at each file is as cheap."""
        return files_of(self._jobs[0].folder.parent.parent) if self._every else None

    def say(self, text: str) -> None:
        tqdm.write(text)

    def close(self) -> None:
        self._next = 0.0
        try:
            self.update([])
        except Unavailable:
            self.say("the store gives no answer: launch.status says later which runs have ended")
        self._bar.close()

    def _n_done(self) -> int:
        return sum(map(len, self._known.values()))

    def _left(self) -> str:
        if not (done := self._flops() - self._first):
            return "unknown time"
        return tqdm.format_interval((time.monotonic() - self._began) * ((self._total - self._first) / done - 1))

    def _flops(self) -> float:
        return sum(job.flops * self._tokens[job.name] / job.training_tokens for job in self._jobs)
