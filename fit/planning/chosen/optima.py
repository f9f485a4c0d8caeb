"""From a problem to its best model with each number of experts: its counts, its speed and its cost."""

import dataclasses

import numpy as np

from fit.fitted_law import extrapolation
from fit.messages.units import say
from fit.model.architecture import INFERENCE, training_flops
from fit.planning.chosen.model_cost import cost_of
from fit.planning.chosen.modelled_speed import speed_and_chips
from fit.planning.chosen.optimum import Infeasible, Optimum
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import nearest_number
from fit.planning.search import infeasible, solver
from fit.planning.search.best_models import MODEL_COLUMNS, BestModels

BUILT_AS = "models of E = {e} would be built as those of E = {same}, which is compared"


def optima_of(problem: Problem) -> tuple[list[Optimum], list[Infeasible]]:
    """The best model with each of the problem's experts, and the numbers with which none is feasible.

    Raises:
      UserError: No model is feasible.
    """
    best_models = solver.best_of_each_number(problem)
    low, high = solver.near_optimal(problem, best_models)
    optima = []
    refused = []
    for i, e in enumerate(best_models.n_experts):
        same = built_as(best_models, i)
        if same is not None:
            refused.append(Infeasible(n_experts=int(e), why=say(BUILT_AS, e=int(e), same=same)))
        elif best_models.feasible[i]:
            near = [float(low[i]), float(high[i])] if np.isfinite(low[i]) else None
            optima.append(_optimum_at(problem, best_models, i, near))
        else:
            refused.append(Infeasible(n_experts=int(e), why=infeasible.reason(problem, e)))
    return optima, refused


def built_as(best_models: BestModels, i: int) -> int | None:
    """Another compared number of experts, nearer to that with which the i-th candidate is built; None for none."""
    candidate = best_models.candidate(i)
    if candidate is None:
        return None
    nearest = nearest_number(best_models.n_experts, candidate.models.law_experts)
    return None if nearest == best_models.n_experts[i] else int(nearest)


def _optimum_at(problem: Problem, best_models: BestModels, i: int, near: list[float] | None) -> Optimum:
    """The i-th of the optima of a problem.

    Args:
      problem: The problem.
      best_models: Its optima.
      i: Index of a feasible one.
      near: Its near_optimal_n_active.
    """
    architecture = problem.architecture
    model = best_models.row(i, MODEL_COLUMNS)
    e = model["n_experts"]
    n_active = model["n_active"]
    n_tokens = model["n_tokens"]
    candidate = best_models.candidate(i)
    if candidate is None:
        shape = architecture.shape(model["d_model"], e)
        memory_bytes = float(problem.constraints.memory(architecture, model["d_model"], e))
    else:
        shape = candidate.shape
        memory_bytes = candidate.memory_bytes
    speed, n_chips = speed_and_chips(problem, candidate, e, n_active, n_tokens)
    optimum = Optimum(
        **model,
        size_bound=str(best_models.size_bound[i]),
        memory_bytes=memory_bytes,
        training_flops=float(training_flops(n_active, n_tokens)),
        inference_flops_per_token=INFERENCE * n_active,
        near_optimal_n_active=near,
        extrapolation=extrapolation.of_model(
            problem.law,
            problem.as_counted,
            n_experts=e,
            n_active=n_active,
            n_tokens=n_tokens,
            n_total=model["n_total"],
            shape=(model["d_model"], float(shape.n_blocks)),
        ),
        speed=speed,
        chips=n_chips,
        candidate=candidate,
        shape=shape,
    )
    if problem.constraints.chips is None:
        return optimum
    return dataclasses.replace(optimum, cost=cost_of(optimum, problem.constraints))
