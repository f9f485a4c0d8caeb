"""Bootstrap intervals of a law's compute-optimal models, and how often each number of experts is the best in its draws.

Table 5 of the joint law's paper shows them.
"""

import dataclasses

import numpy as np

from fit.aliases import Floats
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture
from fit.planning.search import unconstrained


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimumInterval:
    """The interval of the compute-optimal model with one number of experts.

    Attributes:
      n_experts: Experts of a layer.
      n_active: (low, high) of active parameters.
      n_tokens: (low, high) of training tokens.
      draws_without_optimum: Draws by which the loss has no optimum; the interval is of the others.
      best_in_draws: Draws by which this number of experts is the best.
      draws: All draws.
    """

    n_experts: int
    n_active: tuple[float, float]
    n_tokens: tuple[float, float]
    draws_without_optimum: int
    best_in_draws: int
    draws: int


def optimum_intervals(law: Law, architecture: Architecture, experts: Floats, flops: float) -> list[OptimumInterval]:
    """The interval of the compute-optimal model with each number of experts, at the law's percentiles.

    Args:
      flops: Of training.

    Raises:
      UserError: The law has no draws.
    """
    law.check_has_draws()
    assert law.draws is not None
    optima = [unconstrained.optima(law, n_experts, architecture, flops, law.draws) for n_experts in experts]
    losses = np.array([loss for _, _, loss in optima])  # [n_experts, n_draws]
    best = np.argmin(np.where(np.isnan(losses), np.inf, losses), axis=0)
    intervals = []
    for i, (n_experts, (sizes, tokens, _)) in enumerate(zip(experts, optima, strict=True)):
        size_low, size_high = np.nanpercentile(sizes, law.percentiles, method="weibull").tolist()
        tokens_low, tokens_high = np.nanpercentile(tokens, law.percentiles, method="weibull").tolist()
        interval = OptimumInterval(
            n_experts=int(n_experts),
            n_active=(size_low, size_high),
            n_tokens=(tokens_low, tokens_high),
            draws_without_optimum=int(np.isnan(sizes).sum()),
            best_in_draws=int(np.sum(best == i)),
            draws=len(best),
        )
        intervals.append(interval)
    return intervals
