"""Hours as the budget of a plan: how many tokens chips train in them, for each size and number of experts.

A Curve is the speed of models of one number of experts as a function of their size. It is linear, in logarithms,
between models of the grid of hardware.py, which are all timed (by_time.py). A smaller model is never slower.
Below the smallest timed model the speed stays the same, above the largest the MFU does.

Axes: [n_models] timed models; all else broadcasts with the numbers of experts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence, Set

import numpy as np

from fit.aliases import Array, Numbers
from fit.model.efficiencies import Calibration
from fit.shape.architecture import INFERENCE, TRAINING

SECONDS = 3600  # of an hour
BETWEEN = 8  # parts into which a search divides the sizes between two timed models
STEEPER = 1e-9  # by which ln speed falls at least from one timed model to the next, so that each speed has one size


@dataclasses.dataclass(frozen=True)
class Curve:
    """Tokens per second of all chips by active parameters.

    Attributes:
      log_sizes: ln n_active of the timed models, rising.
      log_speeds: ln tokens per second of these, falling.
      bounded: whether the chips train no model that is larger than these.
    """

    log_sizes: Array
    log_speeds: Array
    bounded: bool = False

    @classmethod
    def of(cls, sizes: Sequence[float], speeds: Sequence[float], bounded: bool = False) -> Curve:
        """The Curve through timed models.

        Args:
          sizes: their active parameters, in any order.
          speeds: their tokens per second.
          bounded: whether the chips train no larger model.
        """
        order = np.argsort(sizes)
        log_sizes = np.log(np.asarray(sizes, float)[order])
        # a smaller model is at least as fast as each larger one
        log_speeds = np.maximum.accumulate(np.log(np.asarray(speeds, float)[order])[::-1])[::-1]
        return cls(log_sizes, log_speeds - STEEPER * np.arange(len(log_sizes)), bounded)

    def sizes(self) -> Array:
        """Active parameters of the timed models, with BETWEEN - 1 sizes between each two, ascending: [n_sizes].

        Speed has a kink at each timed model, so losses have minima between them.
        """
        steps = np.arange(BETWEEN * (len(self.log_sizes) - 1) + 1) / BETWEEN
        return np.exp(np.interp(steps, np.arange(len(self.log_sizes)), self.log_sizes))

    @property
    def largest(self) -> float:
        """Active parameters of the largest model that the chips train, perhaps infinite."""
        return float(np.exp(self.log_sizes[-1])) if self.bounded else math.inf

    def speed(self, n_active: Numbers) -> Array:
        """Tokens per second of models of these sizes, any shape."""
        log_size = np.log(n_active)
        above_largest = np.maximum(log_size - self.log_sizes[-1], 0)
        return np.exp(np.interp(log_size, self.log_sizes, self.log_speeds) - above_largest)

    def size(self, tokens_per_second: Numbers) -> Array:
        """Active parameters of the largest model that trains at this speed; 0 where none does."""
        log_speed = np.log(tokens_per_second)
        within_timed = np.interp(-log_speed, -self.log_speeds, self.log_sizes)
        above_largest = np.maximum(self.log_speeds[-1] - log_speed, 0)
        return np.where(log_speed > self.log_speeds[0], 0.0, np.exp(within_timed + above_largest))


@dataclasses.dataclass(frozen=True)
class Clock:
    """A budget of hours on chips.

    Attributes:
      hours: a number, or an array that broadcasts with n_experts.
      curves: by number of experts, as the law counts them.
      calibration: what the chips reach.
      n_experts: of the models in question, a number or an array; `at` sets it.
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
        return self._on_curves("speed", n_active)

    def tokens(self, n_active: Numbers, inference_tokens: float) -> Array:
        """Training tokens that the hours leave beside the inference tokens; may be 0 or negative.

        An inference token costs a third of a training token.
        """
        return self.tokens_at(self.speed(n_active), inference_tokens)

    def tokens_at(self, tokens_per_second: Numbers, inference_tokens: float) -> Array:
        """`tokens` of models that train at this speed."""
        return np.multiply(SECONDS * self.hours, tokens_per_second) - INFERENCE / TRAINING * inference_tokens

    def size(self, n_tokens: Numbers, inference_tokens: float) -> Array:
        """n_active of the largest model that the hours leave so many training tokens; 0 where none has so many."""
        needed = n_tokens + INFERENCE / TRAINING * inference_tokens
        return self._on_curves("size", needed / (SECONDS * np.asarray(self.hours)))

    def largest(self) -> Array:
        """n_active of the largest models of n_experts that the chips train: infinite without a bound, 0 for none."""
        experts = np.asarray(self.n_experts, float)
        sizes = [0.0 if e in self.untrainable else self.curve(float(e)).largest for e in experts.ravel()]
        return np.reshape(sizes, experts.shape)[()]

    def sizes(self) -> Array:
        """Curve.sizes of each of n_experts, [n_sizes, *shape]; shorter ones end in repeats of the largest."""
        experts = np.asarray(self.n_experts, float)
        of_each = {float(e): self.curve(float(e)).sizes() for e in np.unique(experts)}
        longest = max(len(sizes) for sizes in of_each.values())
        results = np.empty((longest, *experts.shape))
        for e, sizes in of_each.items():
            padded = np.pad(sizes, (0, longest - len(sizes)), mode="edge")
            results[:, experts == e] = padded[:, None]
        return results

    def _on_curves(self, method: str, values: Numbers) -> Array:
        """A method of each number of experts' curve, at values that broadcast with n_experts."""
        arguments, experts = np.broadcast_arrays(np.asarray(values, float), np.asarray(self.n_experts, float))
        results = np.empty(arguments.shape)
        for e in np.unique(experts):
            rows = experts == e
            results[rows] = getattr(self.curve(float(e)), method)(arguments[rows])
        return results[()]

    def curve(self, n_experts: float) -> Curve:
        """The curve of a number of experts, or of the nearest that there is."""
        if n_experts in self.curves:
            return self.curves[n_experts]
        return self.curves[min(self.curves, key=lambda known: abs(math.log(known / n_experts)))]
