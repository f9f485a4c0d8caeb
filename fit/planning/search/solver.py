"""The best models of a problem with each number of experts, as arrays: by FLOPs (by_flops.py), by hours (by_hours.py).

Axes: n_experts, coefficients and constraints broadcast together; results have their common shape.
"""

import numpy as np

from fit.aliases import Array, ByName, Floats, Numbers
from fit.errors import UserError
from fit.fitted_law import law_counts
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import BAND, Problem
from fit.planning.search import by_flops, by_hours, infeasible
from fit.planning.search.best_models import BestModels


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
        return by_hours.best_within_hours(problem, n_experts)
    return by_flops.best_within_flops(problem, n_experts, coefficients or problem.law.coefficients)


def best_of_each_number(problem: Problem) -> BestModels:
    """The best model at each allowed number of the problem's experts.

    Raises:
      UserError: None is feasible; it names the constraint that binds.
    """
    experts = allowed_experts(problem.law, problem.experts)
    best = best_models(problem.at(experts), experts)
    if not best.feasible.any():
        raise UserError(infeasible.reason(problem.at(np.min(experts)), experts))
    return best


def allowed_experts(law: Law, experts: Floats) -> Array:
    """The numbers of experts that a plan compares, ascending.

    These are `experts`, or those of the law's own models where its formula does not read the number: 1 alone for a law
    of dense models.
    """
    return np.array(sorted(experts if law.reads_n_experts else law.experts), float)


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
        return by_hours.near_optimal(problem, solved.n_experts, target)
    return by_flops.near_optimal(problem, solved, target)


def unconstrained(
    law: Law, n_experts: Numbers, architecture: Architecture, flops: Numbers, coefficients: ByName | None = None
) -> tuple[Array, Array, Array]:
    """The compute-optimal models of a law, however small.

    Args:
      law: The law.
      n_experts: As the law counts them.
      architecture: How the models are built.
      flops: Of training; it broadcasts with n_experts and the coefficients.
      coefficients: By name, in place of the law's.

    Returns:
      (n_active, n_tokens, loss); NaN where there is no optimum.
    """
    if law_counts.closed_form_holds_for(law, architecture):
        reduced = law.chinchilla_coefficients_at(n_experts, coefficients)
        size, tokens = by_flops.compute_optimal(*reduced[:4], flops)
        return size, tokens, reduced.loss(size, tokens)
    best = best_models(Problem(law, architecture, Constraints(flops=flops)), n_experts, coefficients)
    return best.n_active, best.n_tokens, best.loss


def usable_draws(law: Law, experts: Floats) -> Array:
    """bool [n_draws]: which of the bootstrap's draws have an optimum at every one of `experts`."""
    count = law.n_draws
    if not law.reduces_to_chinchilla:
        return np.ones(count, bool)
    reduced = [law.chinchilla_coefficients_at(e, law.draws) for e in experts]
    return np.all([np.broadcast_to((at.mu < 0) & (at.nu < 0), count) for at in reduced], axis=0)
