"""Intervals of losses: percentiles over a law's draws and, of a new run, over its own error."""

import statistics
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array
from fit.fitted_law.parts import Scatter

ERROR_QUANTILES = 20  # of a new run's error, for each draw


def log_interval(
    log_loss: Array, percentiles: Sequence[float], noise: Scatter | None = None, flops: Array | None = None
) -> Array:
    """(low, high) of the log loss of models, [2, models].

    Args:
      log_loss: Of the models in each draw, [draws, models].
      percentiles: The ends.
      noise: How a new run scatters around the law; None for the interval of the law.
      flops: Training FLOPs of the models [models], on which the scatter of small runs depends; None where not known.
    """
    count, n_models = log_loss.shape
    with_errors = log_loss
    if noise:
        scale = np.ones(n_models) if flops is None else noise.ratio_at(flops)
        errors = _run_errors(noise.total, count)
        with_errors = (log_loss[:, None] + errors[:, :, None] * scale).reshape(-1, n_models)
    low, high = ends_of(with_errors, percentiles, count)
    law_low, law_high = ends_of(log_loss, percentiles, count)
    return np.stack([np.minimum(low, law_low), np.maximum(high, law_high)])


def ends_of(values: Array, percentiles: Sequence[float], count: int) -> Array:
    """Percentiles of values over their first axis, [percentiles, ...].

    Plain percentiles of few draws are too narrow: these are at Weibull's positions among the draws, which reach as far
    out as they claim to.

    Args:
      values: Of draws, or of draws times equally likely errors.
      percentiles: The ends.
      count: How many draws there are.
    """
    levels = np.clip([(p * (count + 1) - 50) / count for p in percentiles], 0, 100)
    return np.percentile(values, levels, axis=0, method="hazen")


def _run_errors(deviation: float, count: int) -> Array:
    """Errors of new runs in log loss, [draws, quantiles]: of the normal distribution, other ones for each draw.

    Args:
      deviation: Their standard deviation.
      count: How many draws there are.
    """
    quantiles = (np.arange(ERROR_QUANTILES) + (np.arange(count)[:, None] + 0.5) / count) / ERROR_QUANTILES
    return deviation * np.vectorize(statistics.NormalDist().inv_cdf)(quantiles)
