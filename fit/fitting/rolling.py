"""Rolling hold-out by compute, within the fitted runs: how far a law is off beyond what it was fitted to.

For each of FACTORS the law is fitted again to the runs of at most 1 / factor of the largest compute, and predicts the
others. With e_i = ln(predicted / measured) of a predicted run, s_i the standard error that scatter and the fit's own
uncertainty give it, and x_i = ln(its FLOPs / the largest FLOPs fitted),

  mean_error  mean e                   scatter  root mean square of s: what rmse_log would be if the form were right
  reach       root mean square of x    holds    share with |e| <= z s, z of the 80% interval of a new run
  drift       sum e x / sum x^2        the form's own error for each factor of e in compute, ...
  wander      root of sum (e^2 - s^2) / sum x^2, at least |drift|: ... and its root mean square

beyond makes of these what the form itself may be off beyond the fitted runs: none up to their largest compute, then
growing with the logarithm of compute.
"""

import dataclasses

import numpy as np
import scipy.special

from fit.data.runs import ROLLING, errors, rms, subset
from fit.errors import UserError
from fit.fitting import search
from fit.fitting.noise import noise as noise_of
from fit.fitting.noise import prediction_errors
from fit.fitting.problem import Problem, prepare
from fit.lawbook.lawcheck import LEVEL

FACTORS = (2, 3, 10)
RUNS_PER_COEFFICIENT = 3  # at least, of those fitted: with fewer, errors are those of the small fits, not of the form
FEWEST = 3  # runs predicted
STARTS = 32  # of each fit
# How much of the mean drift within the runs is taken to hold on beyond them; the rest counts as spread. Of one drift,
# measured once, half is the best guess where drifts of other tables are as large either way (benchmarks/README.md).
BELIEVED = 0.5


def rolling(problem: Problem, fewest: int = 0, quiet: bool = True) -> list[dict]:
    """A dictionary for each factor for which at least `fewest` runs, and RUNS_PER_COEFFICIENT for each coefficient, are
    left to fit and FEWEST to predict: factor, fitted (how many runs), fitted_flops, training_flops (of those
    predicted), errors as runs.errors gives them, and what this module says. Factors that leave the same runs count
    once, as the largest. Raises UserError where no factor leaves enough."""
    runs, form = problem.runs, problem.form
    fewest = max(fewest, RUNS_PER_COEFFICIENT * (len(form.names) - len(problem.fixed)))
    steps = {}
    for factor in FACTORS:
        fitted = runs.flops <= runs.flops.max() / factor * (1 + 1e-9)
        if fitted.sum() < fewest or (~fitted).sum() < FEWEST:
            continue
        try:
            steps[int(fitted.sum())] = _roll(problem, fitted, quiet) | dict(factor=factor)
        except UserError:  # all of one size
            continue
    if not steps:
        raise UserError(
            f"--holdout={ROLLING}: found {len(runs)} runs to fit; at half of the largest compute the {form.name} law "
            f"needs at least {fewest}, of different sizes, and {FEWEST} above"
        )
    return list(steps.values())


def _roll(problem: Problem, fitted: np.ndarray, quiet: bool) -> dict:
    runs, form = problem.runs, problem.form
    settings = dataclasses.replace(problem.settings, starts=min(problem.settings.starts or STARTS, STARTS))
    weights = runs.weights * fitted / runs.weights[fitted].mean()
    smaller = prepare(form, dataclasses.replace(runs, weights=weights), settings)
    fit = search.fit(smaller, quiet)
    noise, predicted, largest = noise_of(smaller, fit.free), subset(runs, ~fitted), runs.flops[fitted].max()
    spread = np.hypot(noise.total, prediction_errors(smaller, fit, noise))[~fitted]
    log_loss = form.log_loss(fit.free, predicted.columns)
    error = log_loss - np.log(predicted.loss)
    x = np.log(predicted.flops / largest)
    drift = np.sum(error * x) / np.sum(x**2)
    return dict(
        fitted=int(fitted.sum()),
        fitted_flops=float(largest),
        training_flops=[float(predicted.flops.min()), float(predicted.flops.max())],
        **errors(log_loss, predicted),
        mean_error=float(error.mean()),
        scatter=rms(spread),
        holds=float(np.mean(np.abs(error) <= scipy.special.ndtri((1 + LEVEL) / 2) * spread)),
        reach=rms(x),
        drift=float(drift),
        wander=float(np.sqrt(max(np.sum(error**2 - spread**2) / np.sum(x**2), drift**2))),
    )


def score(steps: list[dict]) -> float:
    """Geometric mean of the steps' root mean square errors of log loss."""
    return float(np.exp(np.mean([np.log(step["rmse_log"]) for step in steps])))


def beyond(steps: list[dict], largest_flops: float, draws: int, seed: int = 0) -> dict:
    """The form's own error in each of a bootstrap's draws, for law.json: {training_flops, drift [draws]}: beyond these
    FLOPs the log loss of a draw changes by its drift for each factor of e in compute. Drifts have BELIEVED of the
    steps' mean drift, taken back, and the root mean square of their wander; all predicted runs count alike."""
    weight = np.array([step["runs"] * step["reach"] ** 2 for step in steps])
    pooled = lambda values: float(np.sum(weight * values) / weight.sum())
    mean = -BELIEVED * pooled(np.array([step["drift"] for step in steps]))  # a law that was too high is corrected down
    spread = np.sqrt(max(pooled(np.array([step["wander"] ** 2 for step in steps])) - mean**2, 0))
    normal = scipy.special.ndtri((np.arange(draws) + 0.5) / draws)
    drift = mean + spread * np.random.default_rng([seed, 5]).permutation(normal)
    return dict(training_flops=float(largest_flops), drift=drift.tolist())
