"""The best model under the other budget: FLOPs in place of hours, or hours in place of FLOPs."""

import dataclasses
import math

import numpy as np

from fit.aliases import Floats, Json
from fit.model.architecture import INFERENCE, TRAINING
from fit.planning.chosen import optima
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.planning.space import size_speeds
from fit.planning.uncertainty.odds import Ranking
from fit.results import Record, optional


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherBudget(Record):
    """The choice of FLOPs in place of hours or, where FLOPs are the budget, hours in place of FLOPs.

    Attributes:
      hours: The budget; where that is FLOPs, what the best model takes.
      label: How the speeds are known.
      by_flops: The best number of experts by FLOPs, as many as the best model in these hours takes.
      by_time: The best number of experts in these hours.
      n_active: Size at which the two numbers of experts are compared: of the best model in these hours or, if that is
        less, of the largest one that the chips train with `by_flops` experts.
      largest: That size, where it is less.
      ratio: How fast that model trains over the best one: [10th percentile, median, 90th percentile].
    """

    hours: float
    label: str
    by_flops: int
    by_time: int
    n_active: float
    largest: float | None = optional()
    ratio: list[float]


def against_other_budget(ranking: Ranking) -> OtherBudget | None:
    """The best number of experts under the other budget: the FLOPs of the best model in place of hours, or its hours.

    Both are the best by the medians.

    Args:
      ranking: The best models of a problem, whose numbers of experts are those to choose from.

    Returns:
      The comparison; None where no speed is modelled, no model is feasible under the other budget, or the chips train
      none with one of the two numbers of experts.
    """
    problem = ranking.problem
    if not problem.has_modelled_speeds:
        return None
    best = ranking.best_by_median
    experts = [row.n_experts for row in ranking.optima]
    if problem.is_by_hours:
        inference_tokens = problem.constraints.inference_tokens
        flops = best.n_active * (TRAINING * best.n_tokens + INFERENCE * inference_tokens)
        by_flops = _best(problem.within(flops=flops, hours=None), experts)
        if by_flops is None:
            return None
        hours = problem.budget_hours
        return _comparison(problem, hours, by_flops["n_experts"], best.n_experts, best.n_active, best.n_tokens)
    if best.speed is None:
        return None
    hours = float(problem.hours(best.n_tokens, 1 / best.speed.tokens_per_second[1]))
    by_time = _best(problem.within(flops=None, hours=hours), experts)
    return None if by_time is None else _comparison(problem, hours, best.n_experts, **by_time)


def _best(problem: Problem, experts: Floats) -> Json | None:
    """{n_experts, n_active, n_tokens} of the best model with one of these experts; None where none is feasible."""
    solved = solver.best_models(problem, np.asarray(experts, float))
    feasible = [i for i in np.flatnonzero(solved.feasible).tolist() if optima.built_as(solved, i) is None]
    if not feasible:
        return None
    return solved.row(min(feasible, key=lambda i: solved.loss[i]), ("n_active", "n_tokens"))


def _comparison(
    problem: Problem, hours: float, by_flops: int, n_experts: int, n_active: float, n_tokens: float
) -> OtherBudget | None:
    """The best numbers of experts by FLOPs and by hours, beside each other; None where the chips train none with one.

    Args:
      problem: The problem.
      hours: As in OtherBudget.
      by_flops: The best number of experts by FLOPs.
      n_experts, n_active, n_tokens: The best model by hours.
    """
    calibration = problem.calibration
    assert calibration is not None
    largest = math.inf if by_flops == n_experts else size_speeds.largest_on_tokens(problem, by_flops, n_tokens)
    size = min(n_active, largest)
    ratio = 1.0
    if by_flops != n_experts:
        of_flops = size_speeds.speed_of_size(problem, by_flops, size, n_tokens)
        of_time = size_speeds.speed_of_size(problem, n_experts, size, n_tokens)
        if of_flops is None or of_time is None:
            return None
        ratio = of_flops.tokens_per_second / of_time.tokens_per_second
    return OtherBudget(
        hours=hours,
        label=calibration.label,
        by_flops=by_flops,
        by_time=n_experts,
        n_active=size,
        largest=largest if largest < n_active else None,
        ratio=[ratio * factor for factor in calibration.factors(of_ratio=True)],
    )
