"""Hours as the budget of a plan: how many tokens chips train in them, for each size and number of experts.

A Curve is the speed of models of one number of experts as a function of their size. It goes straight, in logarithms,
between models of the grid of hardware.py that were timed one by one (by_time.py). A smaller model is never slower.
Below the smallest of them the speed stays, above the largest the MFU does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence, Set

import numpy as np

from fit.aliases import Array, Numbers
from fit.planning.speed import Calibration
from fit.shape.architecture import INFERENCE, TRAINING

SECONDS = 3600  # of an hour
STEEPER = 1e-9  # by which ln speed falls at least from one timed model to the next, so that each speed has one size


@dataclasses.dataclass(frozen=True)
class Curve:
    """Tokens per second of all chips by active parameters. Arrays [n_models]: ln sizes rise, ln speeds fall. bounded:
    whether the chips train no larger model."""

    log_sizes: Array
    log_speeds: Array
    bounded: bool = False

    @classmethod
    def of(cls, sizes: Sequence[float], speeds: Sequence[float], bounded: bool = False) -> Curve:
        """Through models of these sizes and speeds, in any order."""
        order = np.argsort(sizes)
        rising = np.log(np.asarray(sizes, float)[order])
        # a smaller model is at least as fast as each larger one
        falling = np.maximum.accumulate(np.log(np.asarray(speeds, float)[order])[::-1])[::-1]
        return cls(rising, falling - STEEPER * np.arange(len(rising)), bounded)

    @property
    def largest(self) -> float:
        """Active parameters of the largest model that the chips train, perhaps infinite."""
        return float(np.exp(self.log_sizes[-1])) if self.bounded else math.inf

    def speed(self, n_active: Numbers) -> Array:
        """Tokens per second of models of these sizes, any shape."""
        size = np.log(n_active)
        beyond = np.maximum(size - self.log_sizes[-1], 0)
        return np.exp(np.interp(size, self.log_sizes, self.log_speeds) - beyond)

    def size(self, tokens_per_second: Numbers) -> Array:
        """Active parameters of the largest model that trains so fast; 0 where none does."""
        wanted = np.log(tokens_per_second)
        inside = np.interp(-wanted, -self.log_speeds, self.log_sizes)
        beyond = np.maximum(self.log_speeds[-1] - wanted, 0)
        return np.where(wanted > self.log_speeds[0], 0.0, np.exp(inside + beyond))


@dataclasses.dataclass(frozen=True)
class Clock:
    """A budget of hours on chips.

    hours: a number, or an array that broadcasts with n_experts. curves: by number of experts, as the law counts them.
    calibration: what the chips reach. n_experts: that the models asked about have, a number or an array; `at` sets it.
    untrainable: numbers of experts of which the chips train no model.
    """

    hours: Numbers
    curves: dict[float, Curve]
    calibration: Calibration
    n_experts: Numbers | None = None
    untrainable: Set[float] = frozenset()

    def at(self, n_experts: Numbers) -> Clock:
        """The clock of models of n_experts."""
        return dataclasses.replace(self, n_experts=n_experts)

    def speed(self, n_active: Numbers) -> Array:
        """Tokens per second of models of n_active parameters and the clock's n_experts, which broadcast."""
        return self._each("speed", n_active)

    def tokens(self, n_active: Numbers, inference_tokens: float) -> Array:
        """Training tokens that the hours leave beside the inference tokens, which cost a third of a trained one each;
        may be 0 or negative."""
        return self.tokens_at(self.speed(n_active), inference_tokens)

    def tokens_at(self, tokens_per_second: Numbers, inference_tokens: float) -> Array:
        """`tokens` of models that train so fast."""
        return np.multiply(SECONDS * self.hours, tokens_per_second) - INFERENCE / TRAINING * inference_tokens

    def size(self, n_tokens: Numbers, inference_tokens: float) -> Array:
        """n_active of the largest model that the hours leave so many training tokens; 0 where none has so many."""
        trained = n_tokens + INFERENCE / TRAINING * inference_tokens
        return self._each("size", trained / (SECONDS * np.asarray(self.hours)))

    def largest(self) -> Array:
        """n_active of the largest models of n_experts that the chips train: infinite without a bound, 0 for none."""
        experts = np.asarray(self.n_experts, float)
        found = [0.0 if e in self.untrainable else self.curve(float(e)).largest for e in experts.ravel()]
        return np.reshape(found, experts.shape)[()]

    def _each(self, name: str, values: Numbers) -> Array:
        """A method of the curve of each number of experts, at values that broadcast with n_experts."""
        at, experts = np.broadcast_arrays(np.asarray(values, float), np.asarray(self.n_experts, float))
        found = np.empty(at.shape)
        for e in np.unique(experts):
            of_these = experts == e
            found[of_these] = getattr(self.curve(float(e)), name)(at[of_these])
        return found[()]

    def curve(self, n_experts: float) -> Curve:
        """The curve of a number of experts, or of the nearest that there is."""
        if n_experts in self.curves:
            return self.curves[n_experts]
        return self.curves[min(self.curves, key=lambda known: abs(math.log(known / n_experts)))]
