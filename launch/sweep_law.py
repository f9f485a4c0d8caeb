"""The law of a sweep's finished runs, and how its answer narrows as runs finish: `python -m fit`, as processes.

The question to the law stays the same while the sweep runs: the best model at ten times the compute of the sweep's
largest run.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from jmoe.config import counts
from launch.backend import Sweep
from launch.collect import table
from launch.job_files import is_count, is_number
from launch.jobs import Job

BEYOND = 10.0  # times the compute of the sweep's largest run, for the model that the law is asked about
JSON_VERSION = 2  # of `fit plan --json`
NEXT_SHARE = 0.5  # of the FLOPs of the whole sweep, for the runs to train next
BOOTSTRAP = 40  # draws of a law: enough for intervals to look at
FIRST_LOOKS = (0.4, 0.6, 0.8)  # shares of the finished runs that laws are fitted to at the first look


@dataclasses.dataclass(frozen=True)
class Answer:
    """The best model at `flops` by the law of the first `n_runs` finished runs.

    Attributes:
      n_runs: Runs that the law was fitted to.
      flops: Training FLOPs of the model.
      n_experts: Its best number of experts.
      n_active: The ends of the interval of its active parameters.
      loss: The ends of the interval of its loss, in nats per token.
      problem: Why there is no answer; the rest is then empty.
    """

    n_runs: int
    flops: float = 0.0
    n_experts: int = 0
    n_active: tuple[float, ...] = ()
    loss: tuple[float, ...] = ()
    problem: str = ""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Answer":
        """From JSON types.

        Raises:
          KeyError, TypeError or ValueError: The fields are of no answer.
        """
        tuples: dict[str, Any] = {name: tuple(fields[name]) for name in ("n_active", "loss")}
        answer = cls(**(fields | tuples))
        low_and_high = (*answer.n_active, *answer.loss)
        if len(low_and_high) != 4 or not all(map(is_number, (answer.flops, *low_and_high))):
            raise ValueError("an answer has its FLOPs and the ends of two intervals")
        if not is_count(answer.n_runs) or not is_count(answer.n_experts):
            raise ValueError("an answer is of a number of runs, and of a number of experts")
        return answer


@dataclasses.dataclass(frozen=True)
class SweepLaw:
    """The law of all finished runs.

    Attributes:
      answers: Those of fewer runs first.
      summary: What `fit law --verbose` prints, or why there is no law.
      next_runs: What `fit next --verbose` prints, or why it cannot say.
    """

    answers: tuple[Answer, ...]
    summary: str
    next_runs: str


def by_finish_time(sweep: Sweep, rows: Sequence[dict]) -> list[dict]:
    """The rows of finished runs, in the order in which they finished."""

    def finished(row: dict) -> float:
        try:
            return (sweep.workdir / row["run"] / "result.json").stat().mtime or 0.0
        except OSError:  # it was removed meanwhile
            return 0.0

    return sorted(rows, key=finished)


def largest_flops(jobs: Sequence[Job]) -> float:
    """Training FLOPs of the largest run that the sweep has, finished or not."""
    return float(max(counts.training_flops(job.n_active, max(job.budgets.values(), default=0)) for job in jobs))


def fit(sweep: Sweep, rows: Sequence[dict], known: Sequence[Answer]) -> SweepLaw:
    """The law of these rows, which are in the order of by_finish_time.

    Args:
      known: Answers of laws of fewer runs, which are not fitted again.
    """
    answers = {answer.n_runs: answer for answer in known if answer.n_runs <= len(rows)}
    of_fewer = [] if answers else [int(share * len(rows)) for share in FIRST_LOOKS]
    answer, summary, next_runs = _ask(sweep, rows, with_next=True)
    answers[len(rows)] = answer
    if not answer.problem:  # else fewer runs say nothing either
        for n_runs in of_fewer:
            answers[n_runs] = _ask(sweep, rows[:n_runs])[0]
    answers = {n_runs: answer for n_runs, answer in answers.items() if not answer.problem}
    return SweepLaw(tuple(answers[n] for n in sorted(answers)), summary, next_runs)


def _ask(sweep: Sweep, rows: Sequence[dict], with_next: bool = False) -> tuple[Answer, str, str]:
    """(the answer, what `fit law` prints, what `fit next` prints) for a law of these rows."""
    n_runs = len(rows)
    flops = BEYOND * largest_flops(sweep.jobs)
    with tempfile.TemporaryDirectory(prefix="jmoe-report-") as folder:
        runs = pathlib.Path(folder) / "runs.csv"
        law = pathlib.Path(folder) / "law.json"
        runs.write_text(table(rows), encoding="utf-8")
        code, summary = _fit(
            "law",
            f"--runs={runs}",
            f"--out={law}",
            f"--bootstrap={BOOTSTRAP}",
            "--verbose",
            folder=folder,
        )
        if code:
            return Answer(n_runs, problem=summary), summary, ""
        code, printed = _fit("plan", f"--law={law}", f"--flops={flops:g}", "--json", folder=folder)
        if code:
            return Answer(n_runs, problem=printed), summary, ""
        plan = json.loads(printed)
        if plan.get("version") != JSON_VERSION:
            problem = f"fit plan --json has version {plan.get('version')}, expected {JSON_VERSION}"
            return Answer(n_runs, problem=problem), summary, ""
        answer = _answer(n_runs, flops, plan)
        next_runs = ""
        if with_next:
            to_spend = NEXT_SHARE * sum(job.flops for job in sweep.jobs)
            flags = [
                f"--law={law}",
                f"--runs={runs}",
                f"--flops={to_spend:g}",
                f"--target_flops={flops:g}",
                "--verbose",
            ]
            _, next_runs = _fit("next", *flags, folder=folder)
    return answer, summary, next_runs


def _answer(n_runs: int, flops: float, plan: dict[str, Any]) -> Answer:
    """From the JSON of `fit plan`."""
    n_experts = plan["best"]["n_experts"]
    odds = plan["odds"]
    if "law" not in odds["drawn"]:
        return Answer(n_runs, problem="the law has no intervals")
    rows = [row for row in odds["experts"] if row["n_experts"] == n_experts]
    if not rows:
        return Answer(n_runs, problem=f"no interval at {n_experts} experts")
    return Answer(n_runs, flops, n_experts, tuple(rows[0]["n_active"]), tuple(rows[0]["loss"]))


def _fit(command: str, *flags: str, folder: str) -> tuple[int, str]:
    """(exit code, output) of a fit command; of one that failed, its error message. File names are shortened."""
    done = subprocess.run([sys.executable, "-m", "fit", command, *flags], capture_output=True, text=True)
    printed = done.stdout
    if done.returncode:
        last_line = done.stderr.strip().rpartition("\n")[2]
        printed = last_line.removeprefix(f"fit {command}: ")
    return done.returncode, printed.replace(f"{folder}/", "")
