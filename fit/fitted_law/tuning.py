"""The best learning rate and batch of a model, and the cost of others, by a law that `fit law --with_rate` fitted.

  ln L       = ln L(N, D, E) + P,   P = a (w - t v)^2 + b v^2
  w          = (exp(s u) - 1) / s,   u = ln rate - ln rate*,   v = ln batch - ln batch*
  ln rate*   = ln rate_0 + r_N ln(N / N_0) + r_D ln(D / D_0) + r_E ln(E / E_0), and ln batch* likewise

P is quadratic around the optimum. The skew s > 0 says that rates above the best cost more than rates below it, and the
tilt t that the best rate rises with the batch. A law whose runs have one batch has no v.

Axes: n coefficients; models broadcast.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from fit.aliases import ByName, Numbers
from fit.fitted_law import intervals
from fit.fitted_law.bounds import (
    USUAL_PERCENTILES,
    Coefficient,
    Count,
    Draws,
    NotNegative,
    Percentiles,
    Positive,
    Range,
)
from fit.results import Record

RATE = "peak_learning_rate"
BATCH = "batch_tokens"
OF_MODELS = ("n_active", "n_tokens", "n_experts")  # that optima may depend on
BOUNDS = {RATE: (1e-12, 1e3), BATCH: (1.0, 1e12)}
POSITIVE = ("rate", "rate_cost", "batch", "batch_cost")  # coefficients
FLATTEST_SKEW = 1e-4  # a smaller skew counts as this one
LARGEST_SKEWED = 20.0  # of s u: exp of it stays finite
# of a model's own optimum around the law's, in standard deviations
NORMAL_QUANTILES = tuple(statistics.NormalDist().inv_cdf((i + 0.5) / 20) for i in range(20))


def names(reference: Iterable[str], with_batch: bool) -> list[str]:
    """The coefficients of optima that read these columns, in order."""
    listed = ["rate", *(f"rate_{column}" for column in reference), "rate_cost", "skew"]
    if with_batch:
        listed += ["batch", *(f"batch_{column}" for column in reference), "batch_cost", "tilt"]
    return listed


def log_optimum(c: ByName, x: ByName, reference: Mapping[str, float], name: str) -> Numbers:
    """ln of the best rate or batch of models.

    Args:
      c: coefficients by name, with "ln rate" and "ln batch".
      x: the models' "ln n_active" and so on.
      reference: the model at which the optimum is exp(c["ln rate"]).
      name: rate or batch.
    """
    value = c[f"ln {name}"]
    for column, at in reference.items():
        value = value + c[f"{name}_{column}"] * (x[f"ln {column}"] - np.log(at))
    return value


def penalty(xp: ModuleType, c: ByName, x: ByName, reference: Mapping[str, float], with_batch: bool) -> Any:
    """P: the excess of ln L of runs over that at their models' best rate and batch.

    Args:
      xp: numpy, or jax.numpy in compiled code.
      c: coefficients by name, with "ln rate" and "ln batch".
      x: the runs' columns, as "ln NAME".
      reference: as `log_optimum` takes it.
      with_batch: whether the law has a best batch.
    """
    skew = xp.where(xp.abs(c["skew"]) < FLATTEST_SKEW, FLATTEST_SKEW, c["skew"])
    distance = x[f"ln {RATE}"] - log_optimum(c, x, reference, "rate")
    stretched = xp.expm1(xp.clip(skew * distance, -LARGEST_SKEWED, LARGEST_SKEWED)) / skew
    if not with_batch:
        return c["rate_cost"] * stretched**2
    off_batch = x[f"ln {BATCH}"] - log_optimum(c, x, reference, "batch")
    return c["rate_cost"] * (stretched - c["tilt"] * off_batch) ** 2 + c["batch_cost"] * off_batch**2


def shift_at_batch(c: ByName, off_batch: Numbers) -> Numbers:
    """The change of ln of the best rate at a batch that is off_batch = ln batch - ln batch* off the best."""
    skew = np.where(np.abs(c["skew"]) < FLATTEST_SKEW, FLATTEST_SKEW, c["skew"])
    return np.log1p(np.maximum(skew * c["tilt"] * off_batch, -0.99)) / skew


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A best learning rate, best tokens of a batch, or relative excess of a loss, with its interval.

    Attributes:
      value: By the law's coefficients.
      low, high: The interval, at the percentiles of a Tuning; None where the law has no draws.
    """

    value: float
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning(Record):
    """The optima of a law: the entry `rates` of law.json.

    Attributes:
      coefficients: rate, rate_n_active, ... (rate_0, r_N, ...), rate_cost (a), skew; batch, batch_n_active, ...,
        batch_cost (b), tilt, where the law has a best batch.
      reference: n_active, n_tokens, n_experts of the model that has the best rate rate_0: those that the optima read.
      scatter: {rate, batch}: standard deviations of ln of the models' own optima around the law's, which intervals
        include.
      ranges: Of peak_learning_rate and batch_tokens.
      runs, near: How many runs were fitted, and how many lie so near their optimum that intervals count them.
      draws: [draws][coefficients], one for each of the law's own; () for a law without.
      intervals: {coefficient: (low, high)}, their percentiles.
      percentiles: The ends of intervals.
    """

    coefficients: dict[str, Coefficient]
    reference: dict[str, Positive]
    scatter: dict[str, NotNegative]
    ranges: dict[str, Range] = dataclasses.field(default_factory=dict)
    runs: Count
    near: Count
    draws: Draws = ()
    intervals: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    percentiles: Percentiles = USUAL_PERCENTILES

    @property
    def with_batch(self) -> bool:
        """Whether the law has a best batch."""
        return "batch" in self.coefficients

    def rate(self, batch_tokens: float | None = None, **model: float) -> Estimate:
        """The best peak learning rate of a model.

        Args:
          batch_tokens: of its batches; by default the best.
          model: n_active, n_tokens and n_experts.
        """

        def log_rate(c: ByName, shift: Numbers) -> Numbers:
            x = _logs(model)
            value = log_optimum(c, x, self.reference, "rate") + self.scatter["rate"] * shift
            if batch_tokens is None or not self.with_batch:
                return value
            off_batch = np.log(batch_tokens) - log_optimum(c, x, self.reference, "batch")
            return value + shift_at_batch(c, off_batch)

        return self._estimate(log_rate, np.exp)

    def batch(self, **model: float) -> Estimate | None:
        """The best tokens of a batch of a model; None for a law whose runs have one batch."""
        if not self.with_batch:
            return None

        def log_batch(c: ByName, shift: Numbers) -> Numbers:
            return log_optimum(c, _logs(model), self.reference, "batch") + self.scatter["batch"] * shift

        return self._estimate(log_batch, np.exp)

    def batch_line(self, **model: Numbers) -> tuple[Numbers, float]:
        """ln of the best tokens of a batch as a line in ln of the training tokens: (value at one token, slope).

        Args:
          model: n_active and n_experts, perhaps arrays.
        """
        c = _with_logs(self.coefficients)
        value = log_optimum(c, _logs(model | dict(n_tokens=1.0)), self.reference, "batch")
        return value, float(c.get("batch_n_tokens", 0.0))

    def penalty(self, peak_learning_rate: float, batch_tokens: float | None = None, **model: float) -> Estimate:
        """The relative excess of a run's loss over that at its model's best rate and batch.

        Args:
          batch_tokens: of its batches; by default the best.
          model: n_active, n_tokens and n_experts.
        """

        def log_share(c: ByName, shift: Numbers) -> Numbers:
            x = _logs(model) | {f"ln {RATE}": np.log(peak_learning_rate) - self.scatter["rate"] * shift}
            if self.with_batch:
                best = log_optimum(c, x, self.reference, "batch")
                x[f"ln {BATCH}"] = best if batch_tokens is None else np.log(batch_tokens)
            return penalty(np, c, x, self.reference, self.with_batch)

        return self._estimate(log_share, np.expm1)

    def _estimate(self, function: Any, scale: Any) -> Estimate:
        """scale(function(coefficients, 0)) with its percentiles over the draws and over models of the same size.

        Args:
          function: of coefficients and of a model's distance from the law in standard deviations of the scatter.
          scale: of its values.
        """
        value = float(scale(function(_with_logs(self.coefficients), 0.0)))
        if not self.draws:
            return Estimate(value, None, None)
        draws = dict(zip(self.coefficients, np.array(self.draws).T[:, :, None], strict=True))
        values = function(_with_logs(draws), np.array(NORMAL_QUANTILES))
        low, high = intervals.ends_of(values.ravel(), self.percentiles, len(self.draws))
        return Estimate(value, float(scale(low)), float(scale(high)))


def _logs(model: Mapping[str, Numbers]) -> dict[str, Any]:
    """The columns of a model as "ln NAME"."""
    return {f"ln {name}": np.log(value) for name, value in model.items()}


def _with_logs(c: ByName) -> dict[str, Any]:
    """Coefficients by name, with "ln rate" and "ln batch"."""
    return dict(c) | {f"ln {name}": np.log(c[name]) for name in ("rate", "batch") if name in c}
