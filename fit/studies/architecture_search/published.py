"""What Wan et al. (2026, arXiv 2603.21862) publish: their laws, their grid, and their choices at six budgets.

Their search: 16 dimensions become (M, N_a, N, d) by the algebra of triads.py. Phase 1 sets d to the median of its
feasible range and sweeps M/N_a and N/N_a at six budgets; phase 2 sweeps d at the six optima.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array
from fit.model.shape import ModelShape
from fit.results import Record
from fit.studies.architecture_search import triads

BUDGETS = (1e18, 3e18, 1e19, 3e19, 1e20, 3e20)
# phase 1's grid
M_OVER_ACTIVE = (7, 8, 9, 11, 14, 17)
TOTAL_OVER_ACTIVE = (12, 16, 20, 22, 26, 30)
# Table 2 and App. F.1, a column for each budget
HEAD_DIM = (64, 64, 64, 128, 128, 128)
N_HEADS = (4, 8, 8, 8, 8, 16)
LEARNING_RATE = (1.20e-3, 1.00e-3, 8.28e-4, 6.95e-4, 5.74e-4, 4.82e-4)
BATCH_ROWS = (64, 80, 128, 160, 208, 288)
RATIO_USED = (19, 20, 21, 21, 22, 22)  # N/N_a
FLAT = (18, 25)  # N/N_a within which the loss is within 1% of the best, by the paper
# Eq. 2: D_opt and M_opt, a C^b
TOKENS = (22.8929, 0.4563)
FLOPS_PER_TOKEN = (0.04368, 0.5437)
# M/N_a - 6 of the paper's tables of configurations, a C^b: 2% off at most. The paper shows this law only in a figure.
RECOVERED = (1479.0, -0.1394)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantity(Record):
    """A quantity that determines an architecture.

    Attributes:
      value: None if it is missing.
      origin: "published", "recovered" from tables of configurations, "missing", or "fitted" to the user's runs.
      low, high: Ends of the near-optimal band; None where they are not known.
    """

    value: float | None
    origin: str = "published"
    low: float | None = None
    high: float | None = None

    @property
    def known(self) -> float:
        """The value of a quantity that is not missing. Raises ValueError where it is."""
        if self.value is None:
            raise ValueError("this quantity is missing")
        return self.value


def power(law: Sequence[float], flops: float) -> float:
    """a C^b of (a, b)."""
    return law[0] * flops ** law[1]


def nearest_budget(flops: float) -> int:
    """Index of the nearest of BUDGETS."""
    return int(np.argmin(np.abs(np.log(BUDGETS) - math.log(flops))))


def family_at(flops: float) -> ModelShape:
    """The heads and experts that the paper has at the nearest of its budgets."""
    i = nearest_budget(flops)
    return triads.family(N_HEADS[i], HEAD_DIM[i], N_HEADS[i] // 2)


def triad_at(flops: float, m_over_active: float, total_over_active: float) -> triads.Triad:
    """(M, N_a, N) at a budget by Eq. 2 and the two ratios."""
    return triads.of_ratios(power(FLOPS_PER_TOKEN, flops), m_over_active, total_over_active)


def quantities(flops: float) -> dict[str, Quantity]:
    """The quantities that determine the architecture for a budget, by name.

    Between the six budgets, values of the paper's table are interpolated in ln C. Beyond them they keep the value at
    the end. Only the learning rate and the batch continue from there along the power laws through the table.
    """
    log_flops = math.log(flops)
    grid = np.log(BUDGETS)
    fixed = family_at(flops)

    def of_table(values: Sequence[float] | Array) -> float:
        """The table's value at the budget, that at the nearer end beyond it."""
        return float(np.interp(log_flops, grid, values))

    def extended(values: Sequence[float]) -> float:
        """The table's value, continued beyond it by the power law through the table."""
        slope = np.polyfit(grid, np.log(values), 1)[0]
        beyond = log_flops - np.clip(log_flops, grid[0], grid[-1])
        return math.exp(of_table(np.log(values)) + slope * beyond)

    low, high = FLAT
    return dict(
        n_tokens=Quantity(value=power(TOKENS, flops)),
        flops_per_token=Quantity(value=power(FLOPS_PER_TOKEN, flops)),
        m_over_active=Quantity(value=6 + power(RECOVERED, flops), origin="recovered"),
        total_over_active=Quantity(value=of_table(RATIO_USED), low=low, high=high),
        d_model=Quantity(value=None, origin="missing"),
        n_heads=Quantity(value=int(fixed.n_heads)),
        n_kv_heads=Quantity(value=int(fixed.n_kv_heads)),
        head_dim=Quantity(value=int(fixed.head_dim)),
        n_experts=Quantity(value=int(fixed.n_experts)),
        top_k=Quantity(value=int(fixed.top_k)),
        n_shared=Quantity(value=int(fixed.n_shared_experts)),
        learning_rate=Quantity(value=extended(LEARNING_RATE)),
        batch_rows=Quantity(value=round(extended(BATCH_ROWS))),
    )
