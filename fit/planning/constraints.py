"""The constraints of a plan, and what they leave to a model of a size.

Axes: numbers may be arrays that broadcast with the numbers of experts; results have their common shape.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fit.aliases import Array, Json, Numbers, Opt
from fit.model.architecture import INFERENCE, TRAINING, Architecture
from fit.model.efficiencies import Calibration
from fit.planning.grid import Grid, ShapeRequest
from fit.planning.serving import Requirement, Served
from fit.planning.training_chips import Chips


@dataclasses.dataclass(frozen=True)
class TimeBudget:
    """Hours on chips as the budget of a plan: each model trains at its own modelled speed.

    Attributes:
      hours: the budget.
      calibration: the efficiencies of the chips.
      grid: shapes and layouts to choose from.
      at_most: a loss that is reached otherwise: the search may skip models that lose more.
    """

    hours: Numbers
    calibration: Calibration
    grid: Grid = Grid()
    at_most: float = math.inf


@dataclasses.dataclass(frozen=True)
class SizeLimit:
    """The bounds on the size of a model.

    Attributes:
      name: "memory" of the served model, "chips" that hold its training, or "serving", how fast it decodes.
      needed: what a model needs, a function of d_model and n_experts: bytes, for "serving" seconds of a step.
      limit: what there is of it.
      flag: the flag that gives a limit of memory, for errors.
    """

    name: str
    needed: Callable[[Numbers, Numbers], Numbers]
    limit: Numbers
    flag: str = "--memory_gb"


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
      budget: the flags that gave the FLOPs, for errors.
      time_budget: hours on the chips as the budget, instead of FLOPs.
      serving: how fast the model must decode, and on which chips.
      calibration: what the chips reach, where FLOPs are the budget and hours are priced at modelled speeds.
      request: what the user fixes of shape and mesh; None stands for whole blocks and heads of the paper's shape.
      cache: models and candidates that were evaluated, and the chips' limits on sizes (by_hours.py, optimum.py).
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
    budget: str = "--flops"
    time_budget: TimeBudget | None = None
    serving: Requirement | None = None
    calibration: Calibration | None = None
    request: ShapeRequest | None = None
    cache: dict[tuple, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def has_budget(self) -> bool:
        """Whether FLOPs or hours bound size and tokens."""
        return self.flops is not None or self.time_budget is not None

    @property
    def amount(self) -> Any:
        """The budget: hours where these are it, else FLOPs."""
        return self.flops if self.time_budget is None else self.time_budget.hours

    def with_amount(self, amount: Any) -> Constraints:
        """These constraints with another budget of the same kind."""
        if self.time_budget is not None:
            return self.with_time_budget(hours=amount)
        return dataclasses.replace(self, flops=amount)

    @property
    def hours(self) -> Numbers:
        """The budget of constraints in hours."""
        assert self.time_budget is not None
        return self.time_budget.hours

    def with_time_budget(self, **changes: Any) -> Constraints:
        """These constraints, whose budget is hours, with other fields of TimeBudget."""
        assert self.time_budget is not None
        return dataclasses.replace(self, time_budget=dataclasses.replace(self.time_budget, **changes))

    def in_hours(self, hours: Numbers, calibration: Calibration) -> Constraints:
        """These constraints, which have chips, with hours as their budget in place of FLOPs.

        calibration: the efficiencies of the chips.
        """
        time_budget = TimeBudget(hours, calibration)
        return dataclasses.replace(self, time_budget=time_budget, flops=None, calibration=None, cache={})

    @property
    def cap(self) -> Opt:
        """The most tokens to train on; None without a limit."""
        return None if self.max_tokens is None else self.max_tokens * (self.epochs or 1)

    def to_json(self) -> Json:
        """{name: value} of those that are not None, ready for JSON. The chips have their own place in a plan."""
        left_out = ("chips", "budget", "time_budget", "serving", "calibration", "request", "cache")
        fields = {name: value for name, value in vars(self).items() if value is not None and name not in left_out}
        if self.serving is not None:
            fields["serve_tokens_per_second"] = self.serving.tokens_per_second
            fields["serve_batch"] = self.serving.batch
        return fields if self.time_budget is None else dict(hours=self.time_budget.hours) | fields

    def size_limits(self, architecture: Architecture) -> list[SizeLimit]:
        """The bounds on the size of models of an architecture, beside the budget.

        That is the chips' memory for models of the paper's shape alone: of other shapes it depends on their meshes.
        """
        limits = []
        if self.memory_bytes is not None:
            limits.append(SizeLimit("memory", lambda d, e: self.memory(architecture, d, e), self.memory_bytes))
        chips = self.chips
        if chips and self.request is None:

            def training_bytes(d_model: Numbers, n_experts: Numbers) -> Numbers:
                """Bytes of the smallest step."""
                return chips.least_bytes(architecture.shape(d_model, n_experts))

            limits.append(SizeLimit("chips", training_bytes, chips.memory_share * chips.memory))
        serving = self.serving
        if serving:

            def step_seconds(d_model: Numbers, n_experts: Numbers) -> Numbers:
                """Seconds of a step of decoding."""
                return serving.step_seconds(self.served(architecture, d_model, n_experts))

            flag = f"--serve=tokens_per_second on {serving.chips.count} x {serving.chips.kind}"
            limits.append(SizeLimit("memory", lambda d, e: self.memory(architecture, d, e), serving.chips.memory, flag))
            limits.append(SizeLimit("serving", step_seconds, serving.most_seconds))
        return limits

    def at(self, n_experts: Numbers) -> Constraints:
        """The constraints of models of n_experts, a number or an array: with the FLOPs of these."""
        if not isinstance(self.flops, dict):
            return self
        return dataclasses.replace(self, flops=np.vectorize(self.flops.get, otypes=[float])(n_experts)[()])

    def memory(self, architecture: Architecture, d_model: Numbers, n_experts: Numbers) -> Numbers:
        """Bytes of weights and key-value cache."""
        weights = self.bytes_per_parameter * architecture.n_total(d_model, n_experts)
        return weights + self.bytes_per_kv_element * architecture.kv_elements(d_model, self.kv_tokens)

    def served(self, architecture: Architecture, d_model: Numbers, n_experts: Numbers) -> Served:
        """The fields of models of an architecture that serving reads."""
        shape = architecture.shape(d_model, n_experts)
        cache_bytes = self.bytes_per_kv_element * shape.kv_elements(self.kv_tokens)
        return Served.of(shape, self.bytes_per_parameter, cache_bytes)

    def size(self, n_tokens: Numbers) -> Numbers:
        """n_active of the model for which FLOPs leave so many training tokens; infinite without FLOPs."""
        if self.flops is None:
            return np.inf
        return self.flops / (TRAINING * n_tokens + INFERENCE * self.inference_tokens)

    def tokens(self, n_active: Numbers) -> Array:
        """Training tokens that FLOPs and the cap leave for a model of n_active parameters; may be 0 or negative."""
        left: Any = np.inf
        if self.flops is not None:
            left = self.flops / (TRAINING * n_active) - INFERENCE / TRAINING * self.inference_tokens
        return np.minimum(left, np.inf if self.cap is None else self.cap)
