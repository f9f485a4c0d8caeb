"""The compute-optimal models of a law, however small: those of tables, figures and studies, not of plans."""

from fit.aliases import Array, ByName, Numbers
from fit.fitted_law import planned_models
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import best_size, solver


def optima(
    law: Law, n_experts: Numbers, architecture: Architecture, flops: Numbers, coefficients: ByName | None = None
) -> tuple[Array, Array, Array]:
    """The compute-optimal model at each number of experts.

    Args:
      law: The law.
      n_experts: As the law counts them.
      architecture: How the models are built.
      flops: Of training; it broadcasts with n_experts and the coefficients.
      coefficients: By name, in place of the law's.

    Returns:
      (n_active, n_tokens, loss); NaN where there is no optimum.
    """
    if planned_models.closed_form_holds_for(law, architecture):
        reduced = law.chinchilla_coefficients_at(n_experts, coefficients)
        size, tokens = best_size.compute_optimal(*reduced[:4], flops)
        return size, tokens, reduced.loss(size, tokens)
    best = solver.best_models(Problem(law, architecture, Constraints(flops=flops)), n_experts, coefficients)
    return best.n_active, best.n_tokens, best.loss
