"""Intervals of predictions: the draws of a law's bootstrap, its form's own error beyond the runs, a new run's scatter.

Beyond the largest training FLOPs C that a law was fitted to, the log loss of each draw changes by its drift times
ln(FLOPs / C) (fit/fitting/rolling.py): the error of the form itself that rolling hold-outs showed, mean and spread. A
law without them has none. A new run scatters by the law's noise; around a law fitted with weights, small runs by more
(fit/fitting/noise.py, growth). A law is a lawfile.Law, whose module imports this one.
"""

import math
import statistics
from typing import Any

import numpy as np

from fit.aliases import Array, Numbers
from fit.errors import UserError
from fit.shape.architecture import training_flops


def log_change(law: Any, flops: Numbers, draws: slice | Array = slice(None)) -> np.ndarray:
    """By how much the form's own error changes the log loss of some of the draws (those are the first axis) of models
    trained with these FLOPs, numbers that broadcast with [n_draws, 1] or one for each draw, [n_draws]."""
    beyond = law.record["bootstrap"].get("beyond")
    if not beyond:
        return np.zeros(np.shape(flops))
    drift = np.array(beyond["drift"])[draws].reshape(-1, *[1] * (np.ndim(flops) - 1))
    with np.errstate(invalid="ignore", divide="ignore"):  # of what is no model, or has no optimum
        return drift * np.log(np.maximum(np.asarray(flops) / beyond["training_flops"], 1))


def interval(law: Any, columns: dict, new_run: bool) -> np.ndarray:
    """[2, ...]: low and high percentiles of the loss of models, in nats per token; columns: arrays by name. UserError
    for a law without draws, or for a new run without noise."""
    if not law.draws:
        raise UserError(f"--law={law.name}: holds no draws, so it has no intervals; fit it with --bootstrap=100")
    if new_run and law.noise is None:
        raise UserError(f"--law={law.name}: does not say how runs scatter around it; no interval of a new run")
    arrays = dict(zip(columns, np.broadcast_arrays(*columns.values())))
    shape = next(iter(arrays.values())).shape
    draws = {name: values[:, None] for name, values in law.draws.items()}
    count = len(law.record["bootstrap"]["draws"])
    errors = np.zeros((count, 1))
    if new_run:  # 20 quantiles of the error for each draw, different for every draw
        at = (np.arange(20) + (np.arange(count)[:, None] + 0.5) / count) / 20
        errors = law.noise * np.vectorize(statistics.NormalDist().inv_cdf)(at)
    # plain percentiles of so few draws are too narrow: Weibull's positions reach as far out as they claim to
    levels = np.clip([(p * (count + 1) - 50) / count for p in law.percentiles], 0, 100)
    ends = np.empty((2, math.prod(shape)))
    for part in range(0, ends.shape[1], 4096):  # draws times errors times models would not fit at once
        some = {name: values.ravel()[part : part + 4096] for name, values in arrays.items()}
        of_draws = np.log(law.loss(draws, some))  # [draws, models]
        scale = np.ones(of_draws.shape[1])
        if {"n_active", "n_tokens"} <= some.keys():
            flops = training_flops(some["n_active"], some["n_tokens"])
            of_draws = of_draws + log_change(law, flops[None])
            if grows := law.record["noise"].get("growth") if new_run else None:
                scale = np.maximum(grows["training_flops"] / flops, 1) ** grows["power"]
        runs = (of_draws[:, None] + errors[:, :, None] * scale).reshape(-1, of_draws.shape[1])
        (low, high), of_law = (np.percentile(v, levels, axis=0, method="hazen") for v in (runs, of_draws))
        ends[:, part : part + 4096] = np.minimum(low, of_law[0]), np.maximum(high, of_law[1])
    return np.exp(ends).reshape(2, *shape)
