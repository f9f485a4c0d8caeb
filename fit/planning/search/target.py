"""The other way round: the least budget that reaches a loss, and the front of loss against cost around it.

The cost is that of training and of the inference tokens together (Sardana et al. 2024, arXiv 2401.00448). The best loss
under a budget only falls as the budget grows, so the least budget is where it meets the target.
"""

import dataclasses
import operator
from typing import SupportsIndex

import numpy as np

from fit.aliases import Json, Numbers
from fit.errors import UserError
from fit.messages import sentences, units
from fit.messages.units import say
from fit.model.architecture import INFERENCE, training_flops
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import SECONDS_PER_HOUR
from fit.planning.search import solver
from fit.planning.search.best_models import BestModels
from fit.planning.space import size_speeds
from fit.results import NOT_IN_JSON, Record, optional

FRONT = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # budgets of the front, as multiples of the least cost


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetRow(Record):
    """The cheapest model with one number of experts that reaches a loss, or the best model under a budget.

    Attributes:
      flops: Of training and inference together; None where no budget reaches the loss. Other fields are None then.
      hours, dollars: Only where chips are given.
    """

    n_experts: int
    n_active: float | None = optional()
    n_tokens: float | None = optional()
    loss: float | None = optional()
    flops: float | None
    training_flops: float | None = optional()
    inference_flops: float | None = optional()
    hours: float | None = optional()
    dollars: float | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target(Record):
    """The least budget that reaches a loss.

    Attributes:
      loss: The loss to reach.
      optima: The cheapest model with each number of experts.
      best: The cheapest of them.
      front: The best models under budgets from 0.1 to 10 times that of the best.
      least: What is made least: "hours" where an MFU is given for each number of experts, else "flops".
    """

    loss: float
    optima: list[TargetRow]
    best: TargetRow
    front: list[TargetRow]
    least: str = dataclasses.field(default="flops", metadata=NOT_IN_JSON)

    @property
    def cost(self) -> float:
        """The least cost: FLOPs or hours, as `least` says."""
        return self.best[self.least]


def reach(problem: Problem, loss: float) -> tuple[Problem, Target]:
    """The problem with the least budget that reaches a loss, and what that costs.

    Where an MFU is given for each number of experts, the hours are made least, else the FLOPs: at modelled speeds too.

    Args:
      problem: The problem, without FLOPs.
      loss: The loss to reach, in nats per token.

    Raises:
      UserError: No budget reaches the loss.
    """
    architecture = problem.architecture
    experts = solver.allowed_experts(problem.law, problem.experts)
    smallest = float(np.min(architecture.n_active(architecture.smallest, experts)))
    least = float(training_flops(smallest, 1) + INFERENCE * smallest * problem.constraints.inference_tokens)
    rows: list[TargetRow] = []
    for e in experts:
        flops = solver.least_budget(problem.within(flops=least), e, loss, units.LARGEST / least)
        if flops is None:
            rows.append(TargetRow(n_experts=int(e), flops=None))
            continue
        solved = solver.best_models(problem.within(flops=flops), e)
        rows.append(_row(problem, solved, ()))
    reached = [row for row in rows if row.flops is not None]
    if not reached:
        solved = solver.best_of_each_number(problem.within(flops=units.LARGEST))
        raise UserError(say(sentences.OUT_OF_REACH, loss=loss, least=np.nanmin(solved.loss)))
    chips = problem.constraints.chips
    least_of = "flops"
    if chips and isinstance(chips.mfu, dict):
        least_of = "hours"
    best = min(reached, key=operator.attrgetter(least_of))
    budget: Numbers | dict[int, float] | None = best.flops
    if chips and least_of == "hours":
        budget = chips.flops(best["hours"])
    problem = problem.within(flops=budget)
    return problem, Target(loss=loss, optima=rows, best=best, front=front(problem), least=least_of)


def front(problem: Problem) -> list[TargetRow]:
    """The best models under budgets of FRONT times that of the problem."""
    rows = []
    for share in FRONT:
        flops = problem.constraints.flops
        flops = {e: share * f for e, f in flops.items()} if isinstance(flops, dict) else share * flops
        try:
            solved = solver.best_of_each_number(problem.within(flops=flops))
        except UserError:  # too small to train and serve any model
            continue
        rows.append(_row(problem, solved, solved.best))
    return rows


def _row(problem: Problem, solved: BestModels, i: SupportsIndex | tuple[()]) -> TargetRow:
    """The i-th optimum with its FLOPs and, on chips, its hours and dollars."""
    model = solved.row(i)
    training = float(training_flops(model["n_active"], model["n_tokens"]))
    inference = float(INFERENCE * model["n_active"] * problem.constraints.inference_tokens)
    price = _price(problem, model, training + inference) if problem.constraints.chips else {}
    return TargetRow(
        **model,
        flops=training + inference,
        training_flops=training,
        inference_flops=inference,
        **price,
        explicit=tuple(price),
    )


def _price(problem: Problem, model: Json, flops: float) -> dict[str, float | None]:
    """{hours, dollars} of the FLOPs of a model: at its modelled speed, or at the MFU where there is none."""
    speed = None
    if problem.has_modelled_speeds:
        speed = size_speeds.speed_of_size(problem, model["n_experts"], model["n_active"], model["n_tokens"])
    if speed is None:
        return problem.chips.price(flops, model["n_experts"])
    hours = flops / training_flops(model["n_active"], speed.tokens_per_second) / SECONDS_PER_HOUR
    return problem.chips.with_count(speed.n_chips).price_of_hours(hours)
