"""From the options of a plan, or the limits that several laws share, to a problem, complete."""

import dataclasses

import numpy as np

from fit.aliases import Floats
from fit.fitted_law import repeated
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.options import PlanOptions, experts_to_compare
from fit.planning.inputs.problem import AS_GOOD, Problem
from fit.planning.space import calibration


def problem_of(law: Law, options: PlanOptions, architecture: Architecture) -> Problem:
    """The problem of a plan's models of one architecture.

    Raises:
      UserError: An option does not suit the law, or a table of speeds cannot be read.
    """
    experts = experts_to_compare(law, options.experts)
    constraints = options.constraints(experts)
    problem = problem_within(
        law, architecture, constraints, experts, has_modelled_speeds=options.has_modelled_speeds, speeds=options.speeds
    )
    if options.target_loss is not None:  # a target is met exactly
        problem = dataclasses.replace(problem, plateau_tolerance=0.0)
    return problem


def problem_within(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    experts: Floats,
    *,
    has_modelled_speeds: bool = False,
    speeds: str | None = None,
) -> Problem:
    """The problem of models of one architecture within limits.

    Args:
      law: The law, of text that is read once.
      architecture: How models are built.
      constraints: The budget and the limits.
      experts: The numbers of experts to compare, as the law counts them.
      has_modelled_speeds: Whether each model has its own speed on the chips.
      speeds: Path of a table of the user's speeds, or None.

    Raises:
      UserError: The law does not say what repeated text is worth, or the table of speeds cannot be read.
    """
    law_of_text = law_for_text(law, constraints)
    plateau_tolerance = 0.0 if law_of_text is law else AS_GOOD
    problem = Problem(law_of_text, architecture, constraints, experts, plateau_tolerance=plateau_tolerance)
    if has_modelled_speeds:
        return calibration.at_modelled_speeds(problem, speeds)
    return problem


def law_for_text(law: Law, constraints: Constraints) -> Law:
    """The law itself or, where its text may be read several times, its law of repeated text.

    Raises:
      UserError: The law does not say what repeated text is worth.
    """
    unique_tokens = constraints.max_tokens
    if constraints.epochs is None or unique_tokens is None:
        return law
    return repeated.of_law(law, float(np.asarray(unique_tokens)))
