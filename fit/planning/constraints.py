"""What a plan must respect, and what it leaves a model of a size."""

import dataclasses

import numpy as np

from fit.shape.architecture import INFERENCE, TRAINING


@dataclasses.dataclass(frozen=True)
class Constraints:
    """What a plan must respect; any may be None. Numbers, or arrays that broadcast with the number of experts.

    flops: training, 6 N D, plus 2 N inference_tokens; or {n_experts: FLOPs}, of which `at` takes one. memory_bytes:
    weights and key-value cache, over all devices. kv_tokens: tokens in the cache. max_tokens: the training tokens there
    are. epochs: how often each of them may be read, once where it is None. chips: those that must hold the training.
    budget: the flags that gave the FLOPs.
    """

    flops: float | dict | None = None
    memory_bytes: float | None = None
    bytes_per_parameter: float = 2.0
    kv_tokens: float = 0.0
    bytes_per_kv_element: float = 2.0
    inference_tokens: float = 0.0
    max_tokens: float | None = None
    epochs: float | None = None
    chips: object = None  # a cost.Chips
    budget: str = "--flops"

    @property
    def cap(self):
        """The most tokens to train on, None without a limit."""
        return None if self.max_tokens is None else self.max_tokens * (self.epochs or 1)

    @property
    def given(self):
        """{name: value} of those that are not None, ready for JSON; the chips have their own place in a plan."""
        return {
            name: value for name, value in vars(self).items() if value is not None and name not in ("chips", "budget")
        }

    def sizes(self, architecture):
        """[(name, bytes, limit)] of what bounds a model's size: bytes is a function of d_model and n_experts."""
        memory = "memory", lambda d, e: self.memory(architecture, d, e), self.memory_bytes
        chips = "chips", lambda d, e: self.chips.least_bytes(architecture, d, e), self.chips and self.chips.memory
        return [one for one in (memory, chips) if one[2] is not None]

    def at(self, n_experts):
        """The constraints of models of n_experts, a number or an array: with their own flops."""
        if not isinstance(self.flops, dict):
            return self
        return dataclasses.replace(self, flops=np.vectorize(self.flops.get, otypes=[float])(n_experts)[()])

    def memory(self, architecture, d_model, n_experts):
        """Bytes of weights and cache."""
        weights = self.bytes_per_parameter * architecture.n_total(d_model, n_experts)
        return weights + self.bytes_per_kv_element * architecture.kv_elements(d_model, self.kv_tokens)

    def tokens(self, n_active):
        """Training tokens that are left for a model of n_active parameters; may be 0 or negative."""
        left = np.inf
        if self.flops is not None:
            left = self.flops / (TRAINING * n_active) - INFERENCE / TRAINING * self.inference_tokens
        return np.minimum(left, np.inf if self.cap is None else self.cap)
