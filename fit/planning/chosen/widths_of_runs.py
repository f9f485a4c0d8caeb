"""Experts as wide as the law's runs had them, where their width changes with the size of the model.

The width follows from the best size, and the best size from the width: problems are solved in rounds.
"""

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from fit.fitted_law import expert_widths
from fit.model.architecture import Architecture
from fit.planning.chosen.optimum import Optimum
from fit.planning.inputs.problem import Problem

MAX_WIDTH_ROUNDS = 4  # problems solved again, with experts as wide as the law's runs had them at the best size
WIDTH_TOLERANCE = 1e-3  # relative change of these widths that ends the rounds


class Solved(Protocol):
    """A problem that is solved, and its best model."""

    @property
    def problem(self) -> Problem:
        """The problem."""
        ...

    @property
    def best(self) -> Optimum:
        """Its best model."""
        ...


S = TypeVar("S", bound=Solved)


def with_widths_of_runs(first: S, solve: Callable[[Architecture], S | None]) -> S:
    """The solution with experts as wide as the law's runs had them at the size of its best model.

    Args:
      first: The solution with experts as wide as most of the runs had them.
      solve: The solution of another architecture; None where no model is feasible.
    """
    shares = first.problem.law.models.shares
    solution = first
    if not shares:
        return solution
    for _ in range(MAX_WIDTH_ROUNDS):
        architecture = solution.problem.architecture
        best = solution.best
        wider = expert_widths.at_size(architecture, shares, best.n_active, best.n_experts)
        if math.isclose(wider.granularity, architecture.granularity, rel_tol=WIDTH_TOLERANCE):
            break
        again = solve(wider)
        if again is None:  # with experts this wide no model is within the limits: those of the round before are
            break
        solution = again
    return solution
