"""What a plan must respect, chips among it, and what it leaves a model of a size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fit.aliases import Array, Json, Numbers, Opt
from fit.planning import memory
from fit.planning.clock import Clock
from fit.shape.architecture import INFERENCE, TRAINING, Architecture

GiB = 2**30
ROOM = 0.85  # share of a device's memory that a step on a chosen mesh may take, whose estimate is within 15%


@dataclasses.dataclass(frozen=True)
class Chip:
    """flops: bfloat16 FLOP/s, dense. memory: bytes. bandwidth: bytes a second of that memory. network: bytes a second
    that leave over all fast links (ICI, NVLink), one way."""

    flops: float
    memory: float
    bandwidth: float
    network: float = math.inf


# One chip each, by the makers' data sheets: cloud.google.com/tpu/docs, NVIDIA's A100, H100, H200, DGX B200 (an eighth
# of it) and GB200 NVL72 (a 72nd).
CHIPS = {
    "H100": Chip(989e12, 80 * GiB, 3350e9, 450e9),
    "H200": Chip(989e12, 141e9, 4800e9, 450e9),
    "B200": Chip(2250e12, 180e9, 8000e9, 900e9),
    "GB200": Chip(2500e12, 186e9, 8000e9, 900e9),
    "A100": Chip(312e12, 80 * GiB, 2039e9, 300e9),
    "v4": Chip(275e12, 32 * GiB, 1228e9, 300e9),
    "v5e": Chip(197e12, 16 * GiB, 819e9, 200e9),
    "v5p": Chip(459e12, 95 * GiB, 2765e9, 600e9),
    "v6e": Chip(918e12, 32 * GiB, 1638e9, 400e9),
    "tpu7x": Chip(2307e12, 192 * GiB, 7380e9, 600e9),
}
DEVICES_OF_CHIP = {"tpu7x": 2}  # devices that the trainer sees in a chip, where these are more than one


@dataclasses.dataclass(frozen=True)
class Mesh:
    """How the chips share the training: `expert` and `model` are sizes of these axes, the data axis has the rest.
    remat: a name in memory.REMAT."""

    expert: int = 1
    model: int = 1
    remat: str = "full"


@dataclasses.dataclass(frozen=True)
class Chips:
    """`count` chips of a kind to train on. mfu: a number, or {n_experts: number}. dollars_per_hour: of one chip, or
    None. devices: chips of the same kind that serve the trained model together. mesh: what to cost the training on.
    room: the share of their memory that training may take."""

    kind: str
    count: int
    mfu: float | dict
    dollars_per_hour: float | None = None
    devices: int = 1
    mesh: Mesh | None = None
    room: float = 1.0

    @property
    def chip(self) -> Chip:
        """The Chip of this kind."""
        return CHIPS[self.kind]

    @property
    def n_devices(self) -> int:
        """The devices of a mesh of all of them."""
        return self.count * DEVICES_OF_CHIP.get(self.kind, 1)

    @property
    def device_memory(self) -> float:
        """Bytes of one such device."""
        return self.chip.memory / DEVICES_OF_CHIP.get(self.kind, 1)

    @property
    def memory(self) -> float:
        """Bytes of all of them."""
        return self.count * self.chip.memory

    def least_bytes(self, architecture: Architecture, d_model: Numbers, n_parameters: Numbers) -> Numbers:
        """Bytes over all chips of the smallest step: ROW tokens on each, GROUP in all."""
        blocks, n_tokens = d_model / architecture.width_per_block, memory.least_tokens(self.count, 1)
        return memory.step_bytes(n_parameters, d_model, blocks, blocks, n_tokens, memory.ROW)

    def holding(self, architecture: Architecture, d_model: float, n_parameters: float) -> int | None:
        """The fewest chips that hold the training of so many parameters; None where no number does."""
        blocks = d_model / architecture.width_per_block
        token = memory.token_bytes(memory.REMAT["full"], d_model, blocks, blocks, memory.ROW, 1)
        number = memory.fewest(memory.state_bytes(0, n_parameters, 0, 1, 1), token, self.room * self.chip.memory, 1)
        return int(number) if math.isfinite(number) else None

    def rate(self, n_experts: int | None) -> float:
        """FLOP/s that training a model of so many experts reaches on all of them."""
        mfu = self.mfu
        if isinstance(mfu, dict):
            near = n_experts if n_experts in mfu else min(mfu, key=lambda e: abs(math.log(e / n_experts)))
            return self.count * self.chip.flops * mfu[near]
        return self.count * self.chip.flops * mfu

    def flops(self, hours: float) -> float | dict[int, float]:
        """FLOPs that training does in so many hours; {n_experts: FLOPs} where mfu is by n_experts."""
        of = lambda e: 3600 * hours * self.rate(e)
        return {e: of(e) for e in self.mfu} if isinstance(self.mfu, dict) else of(None)

    def price(self, flops: float, n_experts: int, name: str = "") -> dict[str, float | None]:
        """{NAMEhours, NAMEdollars} of so many FLOPs; dollars are None where no price is given."""
        return self.price_of_hours(flops / self.rate(n_experts) / 3600, name)

    def price_of_hours(self, hours: float, name: str = "") -> dict[str, float | None]:
        """{NAMEhours, NAMEdollars}; dollars are None where no price is given."""
        dollars = None if self.dollars_per_hour is None else hours * self.count * self.dollars_per_hour
        return {f"{name}hours": hours, f"{name}dollars": dollars}


@dataclasses.dataclass(frozen=True)
class Constraints:
    """What a plan must respect; any may be None. Numbers, or arrays that broadcast with the number of experts.

    flops: training, 6 N D, plus 2 N inference_tokens; or {n_experts: FLOPs}, of which `at` takes one. memory_bytes:
    weights and key-value cache, over all devices. kv_tokens: tokens in the cache. max_tokens: the training tokens there
    are. epochs: how often each of them may be read, once where it is None. chips: those that must hold the training.
    budget: the flags that gave the FLOPs. clock: hours on the chips as the budget, instead of FLOPs.
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
    clock: Clock | None = None

    @property
    def has_budget(self) -> bool:
        """Whether FLOPs or hours bound size and tokens."""
        return self.flops is not None or self.clock is not None

    @property
    def amount(self) -> Any:
        """The budget: hours by the clock, else FLOPs."""
        return self.flops if self.clock is None else self.clock.hours

    def with_amount(self, amount: Any) -> Constraints:
        """With another budget of the same kind."""
        if self.clock is None:
            return dataclasses.replace(self, flops=amount)
        return dataclasses.replace(self, clock=dataclasses.replace(self.clock, hours=amount))

    @property
    def cap(self) -> Opt:
        """The most tokens to train on, None without a limit."""
        return None if self.max_tokens is None else self.max_tokens * (self.epochs or 1)

    @property
    def given(self) -> Json:
        """{name: value} of those that are not None, ready for JSON; the chips have their own place in a plan."""
        apart = ("chips", "budget", "clock")
        given = {name: value for name, value in vars(self).items() if value is not None and name not in apart}
        return given if self.clock is None else dict(hours=self.clock.hours) | given

    def sizes(self, architecture: Architecture) -> list[tuple[str, Callable[[Numbers, Numbers], Numbers], Numbers]]:
        """[(name, bytes, limit)] of what bounds a model's size: bytes is a function of d_model and n_experts."""
        found = []
        if self.memory_bytes is not None:
            found.append(("memory", lambda d, e: self.memory(architecture, d, e), self.memory_bytes))
        if chips := self.chips:
            of_steps = lambda d, e: chips.least_bytes(architecture, d, architecture.n_total(d, e))
            found.append(("chips", of_steps, chips.room * chips.memory))
        return found

    def at(self, n_experts: Numbers) -> Constraints:
        """The constraints of models of n_experts, a number or an array: with their own flops."""
        if self.clock is not None:
            return dataclasses.replace(self, clock=self.clock.at(n_experts))
        if not isinstance(self.flops, dict):
            return self
        return dataclasses.replace(self, flops=np.vectorize(self.flops.get, otypes=[float])(n_experts)[()])

    def memory(self, architecture: Architecture, d_model: Numbers, n_experts: Numbers) -> Numbers:
        """Bytes of weights and cache."""
        weights = self.bytes_per_parameter * architecture.n_total(d_model, n_experts)
        return weights + self.bytes_per_kv_element * architecture.kv_elements(d_model, self.kv_tokens)

    def size(self, n_tokens: Numbers) -> Numbers:
        """n_active of the model that the budget leaves so many training tokens for, infinite without a budget."""
        if self.clock is not None:
            return self.clock.size(n_tokens, self.inference_tokens)
        return np.inf if self.flops is None else self.flops / (TRAINING * n_tokens + INFERENCE * self.inference_tokens)

    def tokens(self, n_active: Numbers) -> Array:
        """Training tokens that are left for a model of n_active parameters; may be 0 or negative."""
        left: Any = np.inf
        if self.clock is not None:
            left = self.clock.tokens(n_active, self.inference_tokens)
        elif self.flops is not None:
            left = self.flops / (TRAINING * n_active) - INFERENCE / TRAINING * self.inference_tokens
        return self._capped(left)

    def tokens_at(self, tokens_per_second: Numbers) -> Array:
        """Training tokens that the clock leaves for a model that trains so fast; may be 0 or negative."""
        assert self.clock is not None
        return self._capped(self.clock.tokens_at(tokens_per_second, self.inference_tokens))

    def _capped(self, n_tokens: Numbers) -> Array:
        return np.minimum(n_tokens, np.inf if self.cap is None else self.cap)
