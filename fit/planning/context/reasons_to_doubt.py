"""Reasons to doubt a best model: its number of experts is at the edge of those compared, or nothing bounds that number,
or most of its active parameters are in embedding and head."""

from typing import Literal

import numpy as np

from fit.aliases import Floats
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture
from fit.planning.inputs.problem import BAND, Problem
from fit.planning.search import solver

Edge = Literal["largest", "smallest"]
MOSTLY = 0.5  # share of the active parameters in embedding and head from which a plan says so


def embedding_share(architecture: Architecture, d_model: float, n_active: float) -> float:
    """Share of a model's active parameters that are in embedding and head."""
    return architecture.embedding_and_head_rows * d_model / n_active


def is_at_edge(experts: Floats, n_experts: float) -> bool:
    """Whether a number is the largest or the smallest of several numbers of experts, and others may lie beyond it."""
    return edge_of(experts, n_experts) is not None


def edge_of(experts: Floats, n_experts: float) -> Edge | None:
    """The edge of several numbers of experts that a number is at, where others may lie beyond it; None for none."""
    if len(experts) < 2:
        return None
    if n_experts == max(experts):
        return "largest"
    if n_experts == min(experts) and n_experts > 1:
        return "smallest"
    return None


def edge_of_best(law: Law, experts: Floats, n_experts: float) -> Edge | None:
    """As edge_of, for a law that reads the number of experts; None for others."""
    return edge_of(experts, n_experts) if law.reads_n_experts else None


def not_bounded(problem: Problem, n_experts: float) -> bool:
    """Whether nothing but the numbers compared bounds the best number of experts.

    It is the largest of several, and the loss still falls at numbers far beyond any that can be built. A limit on
    memory or a requirement of serving is a bound. False for laws with a closed form, and under a budget of hours: such
    models are not timed.

    Args:
      problem: The problem.
      n_experts: The best number of experts.
    """
    if edge_of_best(problem.law, problem.experts, n_experts) != "largest":
        return False
    problem = problem.at(n_experts)
    constraints = problem.constraints
    if problem.law.reduces_to_chinchilla or problem.is_by_hours:
        return False
    if constraints.memory_bytes is not None or constraints.serving is not None or not constraints.has_budget:
        return False
    many, more = solver.best_models(problem.within(chips=None), np.array([1e6, 1e7])).loss
    return bool(more < many * (1 - BAND))
