"""The operations of a search for the best models, each by FLOPs (by_flops.py) or by hours (by_hours.py).

FLOPs by number of experts become those of the models that are asked for, here and nowhere below.

Axes: n_experts, coefficients and constraints broadcast together; results have their common shape.
"""

from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, ByName, Floats, Numbers
from fit.fitted_law.law import Law
from fit.planning.inputs.problem import BAND, Problem
from fit.planning.search import by_flops, by_hours, infeasible
from fit.planning.search.best_models import BestInDraws, BestModels
from fit.planning.search.infeasible import NoModel


def best_models(problem: Problem, n_experts: Numbers, coefficients: ByName | None = None) -> BestModels:
    """The best model at each number of experts.

    Args:
      problem: What the models must respect, and what tells their losses.
      n_experts: As the law counts them.
      coefficients: By name, in place of the law's; not under hours.

    Raises:
      UserError: The constraints leave size or tokens without a bound, or the law has no optimum.
    """
    problem.law.check_plannable()
    if problem.is_by_hours:
        return by_hours.best_models(problem, n_experts)
    return by_flops.best_models(problem.at(n_experts), n_experts, coefficients or problem.law.coefficients)


def best_architecture(problems: Sequence[Problem]) -> Problem:
    """The problem whose best model has the lowest loss, of several that differ in their architecture.

    Both searches approximate: by hours the grid is coarse, by FLOPs chips hold the sizes of the paper's shapes. The
    first is chosen where none is feasible.
    """
    first = problems[0]
    if len(problems) == 1:
        return first
    first.law.check_plannable()
    experts = allowed_experts(first.law, first.experts)
    if first.is_by_hours:
        return by_hours.best_architecture(problems, experts)
    losses = [by_flops.lowest_loss(problem.at(experts), experts) for problem in problems]
    return problems[int(np.argmin(losses))]


def near_optimal(problem: Problem, solved: BestModels) -> tuple[Array, Array]:
    """The sizes whose loss is within BAND of the best.

    Args:
      problem: The problem.
      solved: Its optima.

    Returns:
      (smallest, largest n_active), arrays of the shape of `solved`; NaN where no size of that number of experts is
      within the band.
    """
    target = np.nanmin(solved.loss) * (1 + BAND)
    if problem.is_by_hours:
        return by_hours.near_optimal(problem, solved, target)
    return by_flops.near_optimal(problem.at(solved.n_experts), solved, target)


def in_draws(problem: Problem, e: float, speeds: Array, coefficients: ByName) -> BestInDraws:
    """The best model with one number of experts in each of several draws.

    Args:
      problem: The problem.
      e: The number of experts, as the law counts them.
      speeds: Over the modelled speed, [n_draws]; by FLOPs they make no difference.
      coefficients: By name, in place of the law's, [n_draws] each; empty for the law's own.
    """
    if problem.is_by_hours:
        return by_hours.in_draws(problem, e, speeds, coefficients)
    return by_flops.in_draws(problem.at(e), e, len(speeds), coefficients)


def least_budget(problem: Problem, e: float, loss: float, times: float = 1e12) -> float | None:
    """The least budget, from that of the problem up, with which models of one number of experts reach a loss.

    Args:
      problem: The problem.
      e: The number of experts, as the law counts them.
      loss: The loss to reach, in nats per token.
      times: The largest budget to look at, over that of the problem.

    Returns:
      FLOPs, or hours where these are the budget; None where no such budget reaches the loss.
    """
    problem.law.check_plannable()
    if problem.is_by_hours:
        return by_hours.least_budget(problem, e, loss, times)
    return by_flops.least_budget(problem.at(e), e, loss, times)


def best_of_each_number(problem: Problem) -> BestModels:
    """The best model at each allowed number of the problem's experts.

    Raises:
      NoModel: None is feasible; it names the constraint that binds.
      UserError: As best_models.
    """
    experts = allowed_experts(problem.law, problem.experts)
    best = best_models(problem, experts)
    if not best.feasible.any():
        raise NoModel(infeasible.reason(problem, experts))
    return best


def allowed_experts(law: Law, experts: Floats) -> Array:
    """The numbers of experts that a plan compares, ascending.

    These are `experts`, or those of the law's own models where it does not choose among numbers: 1 alone for a law of
    dense models.
    """
    return np.array(sorted(experts if law.chooses_experts else law.experts), float)
