"""The best model with each number of experts: its counts, its speed and its cost."""

import dataclasses

import numpy as np

from fit.fitted_law import extrapolation
from fit.fitted_law.extrapolation import Outside
from fit.messages.units import say
from fit.model.architecture import INFERENCE, training_flops
from fit.planning.chosen import cost, modelled_speed
from fit.planning.chosen.cost import Cost, CostedModel
from fit.planning.chosen.modelled_speed import Speed
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import nearest_number
from fit.planning.search import infeasible, solver
from fit.planning.search.best_models import MODEL_COLUMNS, BestModels
from fit.planning.space.candidates import BestCandidate
from fit.results import NOT_IN_JSON, Record, optional

BUILT_AS = "models of E = {e} would be built as those of E = {same}, which is compared"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimum(Record):
    """The best model with one number of experts.

    By FLOPs n_active and d_model are real numbers, not rounded to a model. By hours it is a candidate, built as it is.

    Attributes:
      n_experts: Experts in each layer, as the law counts them; 1 is a dense model.
      n_active: Parameters that a token uses, with embedding and head.
      n_total: All parameters.
      n_tokens: Training tokens.
      loss: Predicted loss.
      d_model: Width.
      size_bound: What fixes the size: "" (nothing), "memory", "chips", "serving", "tokens", "plateau" or "smallest".
      memory_bytes: Of weights and cache when the model is served.
      training_flops: 6 n_active n_tokens.
      inference_flops_per_token: 2 n_active.
      near_optimal_n_active: [least, most] n_active whose loss is within 0.1% of the best plan's; None if none is.
      extrapolation: Values outside what the law was fitted to.
      speed: Its speed; only where speeds are modelled.
      chips: The chips that train it, where some of those given stand idle.
      cost: What it costs; only where chips are given.
      candidate: By hours, the candidate that it is, which is built as it is; None by FLOPs.
    """

    n_experts: int
    n_active: float
    n_total: float
    n_tokens: float
    loss: float
    d_model: float
    size_bound: str
    memory_bytes: float
    training_flops: float
    inference_flops_per_token: float
    near_optimal_n_active: list[float] | None
    extrapolation: list[Outside]
    speed: Speed | None = optional()
    chips: int | None = optional()
    cost: Cost | None = optional()
    candidate: BestCandidate | None = dataclasses.field(default=None, compare=False, repr=False, metadata=NOT_IN_JSON)

    @property
    def experts_of_law(self) -> int:
        """The number of experts as the law counts them."""
        return self.n_experts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Infeasible(Record):
    """A number of experts with which no model is feasible, and why."""

    n_experts: int
    why: str


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
        same = _built_as(best_models, i)
        if same is not None:
            refused.append(Infeasible(n_experts=int(e), why=say(BUILT_AS, e=int(e), same=same)))
        elif best_models.feasible[i]:
            near = [float(low[i]), float(high[i])] if np.isfinite(low[i]) else None
            optima.append(_optimum_at(problem, best_models, i, near))
        else:
            refused.append(Infeasible(n_experts=int(e), why=infeasible.reason(problem, e)))
    return optima, refused


def _built_as(best_models: BestModels, i: int) -> int | None:
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
    constraints = problem.constraints
    model = best_models.row(i, MODEL_COLUMNS)
    e = model["n_experts"]
    n_active = model["n_active"]
    n_tokens = model["n_tokens"]
    speed = None
    n_chips = None
    candidate = best_models.candidate(i)
    if candidate is None:
        # of the architecture's own depth at its size
        shape = architecture.shape(float(architecture.d_model(n_active, e)), e)
        n_parameters = model["n_total"]
        memory_bytes = float(constraints.memory(architecture, best_models.d_model[i], e))
        n_blocks = model["d_model"] / architecture.width_per_block
        if problem.has_modelled_speeds:
            speed, n_chips = modelled_speed.speed_of_size(problem, e, n_active, n_tokens)
    else:
        shape = candidate.shape
        n_parameters = candidate.exact_parameters
        memory_bytes = candidate.memory_bytes
        n_blocks = candidate.n_blocks
        speed = modelled_speed.speed_of_candidate(candidate)
        n_chips = candidate.n_chips
    flops = float(training_flops(n_active, n_tokens))
    used = None
    of_model = None
    if constraints.chips is not None:
        chips = constraints.chips.with_count(n_chips)
        if chips.count != constraints.chips.count:
            used = chips.count
        price = cost.price_of(chips, flops, e) if speed is None else cost.price_of_speed(chips, speed)
        costed = CostedModel(
            shape=shape,
            n_active=n_active,
            n_total=model["n_total"],
            n_parameters=n_parameters,
            memory_bytes=memory_bytes,
            price=price,
        )
        of_model = cost.cost_of(costed, constraints, chips)
    return Optimum(
        **model,
        size_bound=str(best_models.size_bound[i]),
        memory_bytes=memory_bytes,
        training_flops=flops,
        inference_flops_per_token=float(INFERENCE * n_active),
        near_optimal_n_active=near,
        extrapolation=extrapolation.of_model(
            problem.law,
            problem.as_counted,
            n_experts=e,
            n_active=n_active,
            n_tokens=n_tokens,
            n_total=model["n_total"],
            shape=(model["d_model"], n_blocks),
        ),
        speed=speed,
        chips=used,
        cost=of_model,
        candidate=candidate,
    )
