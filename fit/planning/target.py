"""The other way round: the least budget that reaches a loss, and the front of loss against cost around it.

The cost is that of training and of the inference tokens together (Sardana et al. 2024, arXiv 2401.00448). The best loss
under a budget only falls as the budget grows, so the least budget is where it meets the target.
"""

import dataclasses
import operator
from typing import SupportsIndex

import numpy as np

from fit.aliases import Array, Floats, Numbers
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences, units
from fit.model.architecture import INFERENCE, Architecture, training_flops
from fit.planning import by_hours, optimum
from fit.planning.constraints import Constraints
from fit.planning.results import Target, TargetRow

FRONT = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # budgets of the front, as multiples of the least cost


def least_flops(
    law: Law,
    n_experts: float,
    architecture: Architecture,
    constraints: Constraints,
    loss: float,
    least: float | None = None,
    times: float = 1e12,
) -> float | None:
    """The least budget with which models of one number of experts reach a loss.

    Args:
      law: The law that plans.
      n_experts: A number.
      architecture: How models are built.
      constraints: The other constraints; their budget is replaced.
      loss: The loss to reach, in nats per token.
      least: The least budget to look at. Default: that of the constraints.
      times: The largest budget to look at, over the least.

    Returns:
      FLOPs, or hours where these are the budget; None where no such budget reaches the loss.
    """
    if constraints.time_budget is not None:
        return by_hours.least_hours(law, n_experts, architecture, constraints, loss)
    least = constraints.amount if least is None else least

    def excess(log_amount: Numbers) -> Array:
        """By how much the best loss under budgets lies above the loss to reach."""
        best = optimum.solve(law, n_experts, architecture, constraints.with_amount(np.exp(log_amount)))
        return np.where(best.feasible, best.loss - loss, np.inf)

    low = np.log(least)
    high = low + np.log(times)
    if excess(low) <= 0:
        return least
    if excess(high) > 0:
        return None
    for _ in range(8):  # 64 parts each time: to 1e-13
        grid = np.linspace(low, high, 65)
        first = int(np.argmax(excess(grid) <= 0))
        low = grid[first - 1]
        high = grid[first]
    return float(np.exp(high))


def reach(
    law: Law, architecture: Architecture, constraints: Constraints, experts: Floats, loss: float
) -> tuple[Constraints, Target]:
    """The constraints with the least budget that reaches a loss, and what that costs.

    Where the MFU of the chips differs by number of experts, the hours are made least, else the FLOPs.

    Args:
      law: The law that plans.
      architecture: How models are built.
      constraints: Without FLOPs.
      experts: The numbers of experts to compare.
      loss: The loss to reach, in nats per token.

    Raises:
      UserError: No budget reaches the loss.
    """
    smallest = float(np.min(architecture.n_active(architecture.smallest, optimum.allowed_experts(law, experts))))
    least = float(training_flops(smallest, 1) + INFERENCE * smallest * constraints.inference_tokens)
    rows: list[TargetRow] = []
    for e in optimum.allowed_experts(law, experts):
        flops = least_flops(law, e, architecture, constraints, loss, least, units.LARGEST / least)
        if flops is None:
            rows.append(TargetRow(n_experts=int(e), flops=None))
            continue
        solved = optimum.solve(law, e, architecture, dataclasses.replace(constraints, flops=flops))
        rows.append(_row(solved, (), constraints))
    reached = [row for row in rows if row.flops is not None]
    if not reached:
        every = dataclasses.replace(constraints, flops=units.LARGEST)
        solved = optimum.optima(law, architecture, every, experts)
        raise UserError(sentences.OUT_OF_REACH.format(loss=loss, least=np.nanmin(solved.loss)))
    chips = constraints.chips
    if chips and isinstance(chips.mfu, dict):
        best = min(reached, key=operator.attrgetter("hours"))
        budget = chips.flops(best["hours"])
    else:
        best = min(reached, key=operator.attrgetter("flops"))
        budget = best.flops
    constraints = dataclasses.replace(constraints, flops=budget)
    rows_of_front = front(law, architecture, constraints, experts)
    return constraints, Target(loss=loss, optima=rows, best=best, front=rows_of_front)


def front(law: Law, architecture: Architecture, constraints: Constraints, experts: Floats) -> list[TargetRow]:
    """The best models under budgets of FRONT times that of the constraints."""
    rows = []
    for share in FRONT:
        flops = constraints.flops
        flops = {e: share * f for e, f in flops.items()} if isinstance(flops, dict) else share * flops
        within = dataclasses.replace(constraints, flops=flops)
        try:
            solved = optimum.optima(law, architecture, within, experts)
        except UserError:  # too small to train and serve any model
            continue
        rows.append(_row(solved, int(np.nanargmin(solved.loss)), within))
    return rows


def _row(solved: optimum.Optima, i: SupportsIndex | tuple[()], constraints: Constraints) -> TargetRow:
    """The i-th optimum with its FLOPs and, on chips, its hours and dollars."""
    model = solved.row(i)
    training = float(training_flops(model["n_active"], model["n_tokens"]))
    inference = float(INFERENCE * model["n_active"] * constraints.inference_tokens)
    price = {}
    if constraints.chips:
        price = constraints.chips.price(training + inference, model["n_experts"])
    return TargetRow(
        **model,
        flops=training + inference,
        training_flops=training,
        inference_flops=inference,
        **price,
        explicit=tuple(price),
    )
