"""Reasons to doubt a best model: its number of experts is at the edge of those compared, or nothing bounds that number,
or most of its active parameters are in embedding and head."""

import numpy as np

from fit.aliases import Floats
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture
from fit.planning.inputs.problem import BAND, Problem
from fit.planning.search import solver

MOSTLY = 0.5  # share of the active parameters in embedding and head from which a plan says so


def embedding_share(architecture: Architecture, d_model: float, n_active: float) -> float:
    """Share of a model's active parameters that are in embedding and head."""
    return architecture.embedding_and_head_rows * d_model / n_active


def is_best_at_edge(law: Law, experts: Floats, n_experts: float) -> bool:
    """As is_at_edge, for a law that reads the number of experts; False for others."""
    return law.reads_n_experts and is_at_edge(experts, n_experts)


def is_at_edge(experts: Floats, n_experts: float) -> bool:
    """Whether a number is the largest or the smallest of several numbers of experts, and others may lie beyond it."""
    return bool(len(experts) > 1 and (n_experts == max(experts) or n_experts == min(experts) > 1))


def not_bounded(problem: Problem) -> bool:
    """Whether, without a limit on memory, the loss still falls at numbers of experts far beyond any that can be built.

    A requirement of serving is such a limit. False for laws with a closed form, and under a budget of hours: such
    models are not timed.
    """
    constraints = problem.constraints
    if problem.law.reduces_to_chinchilla or problem.law.has_fixed_n_experts or problem.is_by_hours:
        return False
    if constraints.memory_bytes is not None or constraints.serving is not None or not constraints.has_budget:
        return False
    many, more = solver.best_models(problem.within(chips=None), np.array([1e6, 1e7])).loss
    return bool(more < many * (1 - BAND))
