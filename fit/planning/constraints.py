"""What a plan must respect, and what it leaves a model of a size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from fit.aliases import Array, Json, Numbers, Opt
from fit.shape.architecture import INFERENCE, TRAINING, Architecture


class Chips(Protocol):
    """What a plan asks of cost.Chips."""

    @property
    def kind(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def mfu(self) -> float | Mapping[int, float]: ...
    @property
    def memory(self) -> float: ...
    def least_bytes(self, architecture: Architecture, d_model: Numbers, n_experts: Numbers) -> Numbers: ...
    def holding(self, architecture: Architecture, d_model: float, n_parameters: float) -> int | None: ...
    def rate(self, n_experts: int) -> float: ...
    def flops(self, hours: float) -> float | dict[int, float]: ...
    def price(self, flops: float, n_experts: int) -> dict[str, float | None]: ...


@dataclasses.dataclass(frozen=True)
class Constraints:
    """What a plan must respect; any may be None. Numbers, or arrays that broadcast with the number of experts.

    flops: training, 6 N D, plus 2 N inference_tokens; or {n_experts: FLOPs}, of which `at` takes one. memory_bytes:
    weights and key-value cache, over all devices. kv_tokens: tokens in the cache. max_tokens: the training tokens there
    are. epochs: how often each of them may be read, once where it is None. chips: those that must hold the training.
    budget: the flags that gave the FLOPs.
    """

    flops: Any = None  # Numbers, or a dictionary by number of experts
    memory_bytes: Opt = None
    bytes_per_parameter: float = 2.0
    kv_tokens: float = 0.0
    bytes_per_kv_element: float = 2.0
    inference_tokens: Numbers = 0.0
    max_tokens: Opt = None
    epochs: float | None = None
    chips: Chips | None = None
    budget: str = "--flops"

    @property
    def cap(self) -> Opt:
        """The most tokens to train on, None without a limit."""
        return None if self.max_tokens is None else self.max_tokens * (self.epochs or 1)

    @property
    def given(self) -> Json:
        """{name: value} of those that are not None, ready for JSON; the chips have their own place in a plan."""
        return {
            name: value for name, value in vars(self).items() if value is not None and name not in ("chips", "budget")
        }

    def sizes(self, architecture: Architecture) -> list[tuple[str, Callable[[Numbers, Numbers], Numbers], Numbers]]:
        """[(name, bytes, limit)] of what bounds a model's size: bytes is a function of d_model and n_experts."""
        found = []
        if self.memory_bytes is not None:
            found.append(("memory", lambda d, e: self.memory(architecture, d, e), self.memory_bytes))
        if chips := self.chips:
            found.append(("chips", lambda d, e: chips.least_bytes(architecture, d, e), chips.memory))
        return found

    def at(self, n_experts: Numbers) -> Constraints:
        """The constraints of models of n_experts, a number or an array: with their own flops."""
        if not isinstance(self.flops, dict):
            return self
        return dataclasses.replace(self, flops=np.vectorize(self.flops.get, otypes=[float])(n_experts)[()])

    def memory(self, architecture: Architecture, d_model: Numbers, n_experts: Numbers) -> Numbers:
        """Bytes of weights and cache."""
        weights = self.bytes_per_parameter * architecture.n_total(d_model, n_experts)
        return weights + self.bytes_per_kv_element * architecture.kv_elements(d_model, self.kv_tokens)

    def tokens(self, n_active: Numbers) -> Array:
        """Training tokens that are left for a model of n_active parameters; may be 0 or negative."""
        left = np.inf
        if self.flops is not None:
            left = self.flops / (TRAINING * n_active) - INFERENCE / TRAINING * self.inference_tokens
        return np.minimum(left, np.inf if self.cap is None else self.cap)
