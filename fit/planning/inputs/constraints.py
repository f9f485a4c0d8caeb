"""The constraints of a plan, and what they leave to a model of a size.

Axes: numbers may be arrays that broadcast with the numbers of experts; results have their common shape.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fit.aliases import Array, Json, Numbers, Opt
from fit.model.architecture import INFERENCE, TRAINING, Architecture
from fit.model.serving import Requirement, Served
from fit.model.shape import ModelShape
from fit.planning.inputs.requests import PAPER_SHAPE, ShapeRequest
from fit.planning.inputs.training_chips import Chips


@dataclasses.dataclass(frozen=True)
class Constraints:
    """The constraints of a plan; any may be None.

    Attributes:
      flops: training, 6 N D, plus 2 N inference_tokens; or {n_experts: FLOPs}, of which `at` takes one.
      memory_bytes: limit of weights and key-value cache, over all devices.
      bytes_per_parameter, bytes_per_kv_element: of a weight and of an element of the cache.
      kv_tokens: tokens in the cache.
      inference_tokens: tokens to serve, which share the budget.
      max_tokens: the training tokens there are.
      epochs: how often each training token may be read; None stands for once.
      chips: those that must hold the training.
      budget_flag: the flags that gave the budget, for errors.
      hours: on the chips, as the budget instead of FLOPs: each model trains at its own modelled speed.
      serving: how fast the model must decode, and on which chips.
      request: what the user fixes of shape and mesh.
    """

    flops: Any = None  # Numbers, or a dictionary by number of experts
    memory_bytes: Opt = None
    bytes_per_parameter: float = 2.0
    kv_tokens: float = 0.0
    bytes_per_kv_element: float = 2.0
    inference_tokens: float = 0.0
    max_tokens: Opt = None
    epochs: float | None = None
    chips: Chips | None = None
    budget_flag: str = "--flops"
    hours: Opt = None
    serving: Requirement | None = None
    request: ShapeRequest = PAPER_SHAPE

    @property
    def has_budget(self) -> bool:
        """Whether FLOPs or hours bound size and tokens."""
        return self.flops is not None or self.hours is not None

    @property
    def has_paper_shape(self) -> bool:
        """Whether models have whole blocks and heads of the paper's shape, not widths and meshes that are chosen."""
        return self.request.is_paper

    @property
    def budget(self) -> Any:
        """The budget: hours where these are it, else FLOPs."""
        return self.flops if self.hours is None else self.hours

    @property
    def max_tokens_read(self) -> Opt:
        """The most tokens to train on; None without a limit."""
        return None if self.max_tokens is None else self.max_tokens * (self.epochs or 1)

    def to_json(self) -> Json:
        """{name: value} of those that are not None, ready for JSON. The chips have their own place in a plan."""
        left_out = ("chips", "budget_flag", "hours", "serving", "request")
        fields = {name: value for name, value in vars(self).items() if value is not None and name not in left_out}
        if self.serving is not None:
            fields["serve_tokens_per_second"] = self.serving.tokens_per_second
            fields["serve_batch"] = self.serving.batch
        return fields if self.hours is None else dict(hours=self.hours) | fields

    def at(self, n_experts: Numbers) -> Constraints:
        """The constraints of models of n_experts, a number or an array: with the FLOPs of these."""
        if not isinstance(self.flops, dict):
            return self
        return dataclasses.replace(self, flops=np.vectorize(self.flops.get, otypes=[float])(n_experts)[()])

    def cache_bytes(self, shape: ModelShape) -> Numbers:
        """Bytes of the key-value cache."""
        return self.bytes_per_kv_element * shape.kv_elements(self.kv_tokens)

    def memory(self, architecture: Architecture, d_model: Numbers, n_experts: Numbers) -> Numbers:
        """Bytes of weights, without norms and routers, and of the key-value cache."""
        weights = self.bytes_per_parameter * architecture.n_total(d_model, n_experts)
        return weights + self.bytes_per_kv_element * architecture.kv_elements(d_model, self.kv_tokens)

    def served(self, shape: ModelShape) -> Served:
        """What serving reads of models."""
        return Served.of(shape, self.bytes_per_parameter, self.cache_bytes(shape))

    def size(self, n_tokens: Numbers) -> Numbers:
        """n_active of the model for which FLOPs leave n_tokens of training; infinite without FLOPs."""
        if self.flops is None:
            return np.inf
        return self.flops / (TRAINING * n_tokens + INFERENCE * self.inference_tokens)

    def tokens_within_flops(self, n_active: Numbers) -> Array:
        """Training tokens that FLOPs and the cap leave for a model of n_active parameters; may be 0 or negative."""
        left: Any = np.inf
        if self.flops is not None:
            left = self.flops / (TRAINING * n_active) - INFERENCE / TRAINING * self.inference_tokens
        return np.minimum(left, np.inf if self.max_tokens_read is None else self.max_tokens_read)
