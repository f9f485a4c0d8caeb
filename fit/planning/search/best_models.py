"""The best models as arrays: what a search by FLOPs (by_flops.py) and one by hours (by_hours.py) both give."""

import dataclasses
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from fit.aliases import Json
from fit.planning.space.candidates import BestCandidate

MODEL_COLUMNS = ("n_active", "n_total", "n_tokens", "loss", "d_model")  # numbers of BestModels


@dataclasses.dataclass(frozen=True)
class BestModels:
    """The best models. All attributes are arrays of one shape; numbers are NaN where no model is feasible.

    Attributes:
      n_experts: as the law counts them.
      n_active, n_total: parameters, real numbers.
      n_tokens: training tokens.
      loss: nats per token.
      d_model: width, a real number.
      size_bound: what fixed n_active: "" (the optimum is free), "memory", "chips" (which hold no larger model in
        training), "serving" (larger models decode too slowly), "tokens" (all tokens are used), "plateau" (larger models
        gain nothing) or "smallest".
      feasible: whether the constraints leave any model.
      candidates: by hours, the candidate that each model is, flat, None where none is feasible; else None.
    """

    n_experts: np.ndarray
    n_active: np.ndarray
    n_total: np.ndarray
    n_tokens: np.ndarray
    loss: np.ndarray
    d_model: np.ndarray
    size_bound: np.ndarray
    feasible: np.ndarray
    candidates: list[BestCandidate | None] | None = None

    def candidate(self, i: int) -> BestCandidate | None:
        """The candidate that the i-th model is; None by FLOPs, or where none is feasible."""
        return self.candidates[i] if self.candidates else None

    def row(self, i: SupportsIndex | tuple[()] = (), names: Sequence[str] = ("n_active", "n_tokens", "loss")) -> Json:
        """The i-th optimum as a dictionary of plain numbers: n_experts and these names."""
        return dict(n_experts=int(self.n_experts[i])) | {name: float(getattr(self, name)[i]) for name in names}
