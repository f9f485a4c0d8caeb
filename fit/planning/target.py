"""The other way round: the least budget that reaches a loss, and the front of loss against cost around it.

The cost is that of training and of the inference tokens together (Sardana et al. 2024, arXiv 2401.00448). The best loss
under a budget only falls as the budget grows, so the least budget is where it meets the target.
"""

import dataclasses
from typing import SupportsIndex

import numpy as np

from fit.aliases import Array, Floats, Json, Numbers
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences, units
from fit.planning import optimum
from fit.planning.constraints import Constraints
from fit.shape.architecture import INFERENCE, Architecture, training_flops

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
    """FLOPs, by the clock hours, from `least` (by default those of the constraints) to `times` times that, at which the
    best model of n_experts (a number) under the other constraints reaches `loss`; None if that takes more."""
    least = constraints.amount if least is None else least

    def excess(log_amount: Numbers) -> Array:
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
        low, high = grid[first - 1], grid[first]
    return float(np.exp(high))


def reach(
    law: Law, architecture: Architecture, constraints: Constraints, experts: Floats, loss: float
) -> tuple[Constraints, Json]:
    """(constraints with the least budget that reaches `loss`, what it costs at each number of experts).

    constraints: without flops; where the MFU of their chips differs by number of experts, hours are the cost to make
    least, else FLOPs. The second is a dictionary ready for JSON: loss; optima, a row for each number of experts with
    `flops`, of training and inference together, None where no budget reaches the loss; best, the cheapest of them.
    Raises UserError where none reaches it.
    """
    smallest = float(np.min(architecture.n_active(architecture.smallest, optimum.allowed_experts(law, experts))))
    low = float(training_flops(smallest, 1) + INFERENCE * smallest * constraints.inference_tokens)
    rows: list[Json] = []
    for e in optimum.allowed_experts(law, experts):
        flops = least_flops(law, e, architecture, constraints, loss, low, units.LARGEST / low)
        rows.append(dict(n_experts=int(e), flops=flops))
        if flops is not None:
            found = optimum.solve(law, e, architecture, dataclasses.replace(constraints, flops=flops))
            rows[-1] = _row(found, (), constraints)
    reached = [row for row in rows if row["flops"] is not None]
    if not reached:
        every = dataclasses.replace(constraints, flops=units.LARGEST)
        solved = optimum.optima(law, architecture, every, experts)
        raise UserError(sentences.OUT_OF_REACH.format(loss=loss, least=np.nanmin(solved.loss)))
    chips = constraints.chips
    by_experts = chips and isinstance(chips.mfu, dict)
    best = min(reached, key=lambda row: row["hours" if by_experts else "flops"])
    flops = chips.flops(best["hours"]) if by_experts else best["flops"]
    return dataclasses.replace(constraints, flops=flops), dict(loss=loss, optima=rows, best=best)


def front(law: Law, architecture: Architecture, constraints: Constraints, experts: Floats) -> list[Json]:
    """The best models under budgets of FRONT times that of `constraints`: rows as those of `reach`."""
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


def _row(solved: optimum.Optima, i: SupportsIndex | tuple[()], constraints: Constraints) -> Json:
    row = solved.row(i)
    training = float(training_flops(row["n_active"], row["n_tokens"]))
    inference = float(INFERENCE * row["n_active"] * constraints.inference_tokens)
    row |= dict(flops=training + inference, training_flops=training, inference_flops=inference)
    return row | (constraints.chips.price(row["flops"], row["n_experts"]) if constraints.chips else {})
