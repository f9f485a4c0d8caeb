"""The best models as arrays: what a search by FLOPs (by_flops.py) and one by hours (by_hours.py) both give."""

import dataclasses
import math
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from fit.aliases import Array, Json
from fit.planning.space.candidates import BestCandidate

MODEL_COLUMNS = ("n_active", "n_total", "n_tokens", "loss", "d_model")  # numbers of BestModels
GAIN = 0.01  # share of tokens more that says what tokens are worth


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

    @property
    def best(self) -> int:
        """The flat index of the model of the least loss, where any is feasible."""
        return int(np.nanargmin(self.loss))

    def row(self, i: SupportsIndex | tuple[()] = (), names: Sequence[str] = ("n_active", "n_tokens", "loss")) -> Json:
        """The i-th optimum as a dictionary of plain numbers: n_experts and these names."""
        return dict(n_experts=int(self.n_experts[i])) | {name: float(getattr(self, name)[i]) for name in names}


@dataclasses.dataclass(frozen=True)
class BestInDraws:
    """The best models in draws: arrays of one shape, such as [n_draws] or [n_experts, n_draws].

    Attributes:
      loss: Nats per token.
      gain: How much ln loss falls with ln tokens.
      n_active, n_tokens, d_model: Of these models.
    """

    loss: Array
    gain: Array
    n_active: Array
    n_tokens: Array
    d_model: Array

    @classmethod
    def names(cls) -> list[str]:
        """The names of the arrays."""
        return [field.name for field in dataclasses.fields(cls)]


def gain_of_tokens(loss: Array, loss_on_more: Array) -> Array:
    """How much ln loss falls with ln tokens, by the loss on a share GAIN more tokens."""
    return np.log(loss / loss_on_more) / math.log1p(GAIN)
