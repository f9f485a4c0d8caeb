"""The worth to a plan of reading its text several times, by the law of fit/fitted_law/repeated.py."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from fit.fitted_law import repeated
from fit.fitted_law.repeated import Repeated
from fit.messages.finding import Finding, finding
from fit.planning.chosen.optimum import Optimum
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.results import Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepeatedRow(Record):
    """The worth of repeated text to the best model with one number of experts."""

    n_experts: int
    epochs: float
    effective_n_active: float
    effective_tokens: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repeats(Record):
    """The worth of reading the text several times.

    Attributes:
      source: Where the law of repeated text comes from.
      r_d, r_n: Its constants.
      unique_tokens: Tokens of the text.
      optima: One row for each number of experts.
      best: The row of the plan's best.
      loss_saved: Nats per token by which the best is better than the best on a single epoch.
    """

    source: str
    r_d: float
    r_n: float
    unique_tokens: float
    optima: list[RepeatedRow]
    best: RepeatedRow
    loss_saved: float


def of_fresh_text(problem: Problem) -> Problem:
    """The problem by the law for text that is read once."""
    if not isinstance(problem.law, Repeated):
        return problem
    return dataclasses.replace(problem, law=problem.law.fresh, plateau_tolerance=0.0)


def repeats_of(problem: Problem, optima: list[Optimum], best: Optimum) -> Repeats | None:
    """The worth of repeated text to the optima of a plan, and how much better its best is than the best on a single
    epoch. None for a law of text that is read once."""
    law = problem.law
    if not isinstance(law, Repeated):
        return None
    once = solver.best_of_each_number(problem.within(epochs=1.0))
    rows = {}
    for row in optima:
        reduced = law.fresh.chinchilla_coefficients_at(row.n_experts)
        counted = law.counting.counted(problem.as_counted, row.n_active, row.d_model)
        size, tokens = law.effective(reduced, counted, row.n_tokens)
        rows[row.n_experts] = RepeatedRow(
            n_experts=row.n_experts,
            epochs=row.n_tokens / law.unique_tokens,
            effective_n_active=float(size),
            effective_tokens=float(tokens),
        )
    return Repeats(
        source=repeated.SOURCE,
        r_d=repeated.R_D,
        r_n=repeated.R_N,
        unique_tokens=law.unique_tokens,
        optima=list(rows.values()),
        best=rows[best.n_experts],
        loss_saved=float(np.nanmin(once.loss)) - min(row.loss for row in optima),
    )


def findings_of(problem: Problem, best: Optimum) -> Iterator[Finding]:
    """The findings on a plan with repeated text."""
    if not isinstance(problem.law, Repeated):
        return
    if best.size_bound == "plateau":
        yield finding("plateau", near=problem.plateau_tolerance)
    yield finding("repeats_dense")
