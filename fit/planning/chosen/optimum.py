"""The best model with each number of experts."""

import dataclasses

from fit.fitted_law.extrapolation import Outside
from fit.model.shape import ModelShape
from fit.planning.chosen.cost import Cost
from fit.planning.chosen.modelled_speed import Speed
from fit.planning.space.candidates import BestCandidate
from fit.results import NOT_IN_JSON, Record, optional


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
      chips: How many of the chips train it, where the others stand idle.
      cost: What it costs; only where chips are given.
      candidate: By hours, the candidate that it is, which is built as it is; None by FLOPs.
      shape: Its shape: by FLOPs of the architecture's own depth at its size.
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
    shape: ModelShape = dataclasses.field(compare=False, repr=False, metadata=NOT_IN_JSON)

    @property
    def law_experts(self) -> int:
        """The number of experts as the law counts them."""
        return self.n_experts


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestOfWidth(Record):
    """The best model whose tokens use experts of one width, in widths of the dense layer."""

    active_width: float
    n_experts: int
    n_active: float
    n_total: float
    n_tokens: float
    loss: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Infeasible(Record):
    """A number of experts with which no model is feasible, and why."""

    n_experts: int
    why: str
