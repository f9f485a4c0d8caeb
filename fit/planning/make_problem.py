"""From the options of a plan to its problem, complete."""

from fit.fitted_law import repeated
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture
from fit.planning.inputs.options import PlanOptions, experts_to_compare
from fit.planning.inputs.problem import AS_GOOD, Problem
from fit.planning.space import calibration


def problem_of(law: Law, options: PlanOptions, architecture: Architecture) -> Problem:
    """The problem of models of one architecture.

    Raises:
      UserError: An option does not suit the law, or a table of speeds cannot be read.
    """
    experts = experts_to_compare(law, options.experts)
    plateau_tolerance = 0.0
    if options.epochs is not None and options.max_tokens is not None:
        law = repeated.of_law(law, options.max_tokens)
        plateau_tolerance = AS_GOOD if options.target_loss is None else 0.0  # a target is met exactly
    problem = Problem(law, architecture, options.constraints(experts), experts, plateau_tolerance=plateau_tolerance)
    if options.has_modelled_speeds:
        return calibration.at_modelled_speeds(problem, options.speeds)
    return problem
