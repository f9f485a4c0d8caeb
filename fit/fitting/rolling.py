"""Rolling hold-out by compute, within the fitted runs: how far a law is off beyond what it was fitted to.

For each of FACTORS the law is fitted again to the runs of at most 1 / factor of the largest compute, and predicts the
others. With e_i = ln(predicted / measured) of a predicted run, s_i the standard error that scatter and the fit's own
uncertainty give it, and x_i = ln(its FLOPs / the largest FLOPs fitted), a HoldOut has

  mean_error         mean e
  scatter            root mean square of s: what rmse_log would be if the form were right
  coverage           the share with |e| <= z s, z of the 80% interval of a new run
  log_compute_range  root mean square of x
  drift_mean         sum e x / sum x^2: the form's own error for each factor of e in compute (bias per e-fold), ...
  drift_rms          root of sum (e^2 - s^2) / sum x^2, at least |drift_mean|: ... and its root mean square

`beyond` turns drift_rms into the form's own error beyond the fitted runs: zero up to their largest compute, then
growing with the logarithm of compute. On the public tables the size of a drift is informative, and its sign is random
(benchmarks/README.md). So predictions are not corrected for drift. A law of one form drifts either way with equal
probability. If the draws are of both forms, those of the additive form drift up, because its losses beyond the runs are
higher, and those of the coupled form drift down.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.special

from fit.aliases import Array
from fit.errors import UserError
from fit.fitted_law.parts import LEVEL, Beyond, HoldOut
from fit.fitting import search
from fit.fitting.noise import noise_of, prediction_errors
from fit.fitting.problem import Problem, prepare
from fit.table.runs import ROLLING, errors, rms, subset

FACTORS = (2, 3, 10)  # of the largest compute
RUNS_PER_COEFFICIENT = 3  # at least, of those fitted: with fewer, errors are those of the small fits, not of the form
FEWEST_PREDICTED = 3
MOST_STARTS = 32  # of each fit
# How much of the variance of the additive form's drift counts where the draws are of both forms: most of what it is
# off beyond the runs is in the draws already, as what the forms disagree about. Chosen by the coverage on public
# tables (benchmarks/README.md).
SHARE_OF_ADDITIVE = 0.1


def rolling(problem: Problem, fewest: int = 0) -> tuple[HoldOut, ...]:
    """The rolling hold-outs of a problem, one for each factor that leaves enough runs.

    Args:
      fewest: the least number of runs to fit; RUNS_PER_COEFFICIENT for each coefficient are needed too, and
        FEWEST_PREDICTED to predict.

    Returns:
      One for each. Factors that leave the same runs count once, as the largest.

    Raises:
      UserError: where no factor leaves enough.
    """
    runs = problem.runs
    form = problem.form
    fewest = max(fewest, RUNS_PER_COEFFICIENT * (len(form.names) - len(problem.fixed)))
    steps = {}
    for factor in FACTORS:
        is_fitted = runs.flops <= runs.flops.max() / factor * (1 + 1e-9)
        count = int(is_fitted.sum())
        if count < fewest or len(runs) - count < FEWEST_PREDICTED:
            continue
        try:
            steps[count] = _hold_out(problem, is_fitted, factor)
        except UserError:  # all of one size
            continue
    if not steps:
        raise UserError(
            f"--holdout={ROLLING}: found {len(runs)} runs to fit; at half of the largest compute the {form.name} law "
            f"needs at least {fewest}, of different sizes, and {FEWEST_PREDICTED} above"
        )
    return tuple(steps.values())


def _hold_out(problem: Problem, is_fitted: Array, factor: int) -> HoldOut:
    """One hold-out: fits the runs `is_fitted`, boolean [n_runs], of at most 1 / factor of the largest compute, and
    predicts the others."""
    runs = problem.runs
    form = problem.form
    settings = dataclasses.replace(problem.settings, starts=min(problem.settings.starts or MOST_STARTS, MOST_STARTS))
    weights = runs.weights * is_fitted / runs.weights[is_fitted].mean()
    smaller = prepare(form, dataclasses.replace(runs, weights=weights), settings)
    fit = search.fit(smaller)
    noise = noise_of(smaller, fit.params)
    predicted = subset(runs, ~is_fitted)
    largest_flops = runs.flops[is_fitted].max()
    spread = np.hypot(noise.total, prediction_errors(smaller, fit, noise))[~is_fitted]
    log_loss = form.log_loss(fit.params, predicted.columns)
    error = log_loss - np.log(predicted.loss)
    log_compute = np.log(predicted.flops / largest_flops)
    bias_per_efold = np.sum(error * log_compute) / np.sum(log_compute**2)
    drift_variance = np.sum(error**2 - spread**2) / np.sum(log_compute**2)
    return HoldOut(
        factor=factor,
        fitted=int(is_fitted.sum()),
        fitted_flops=float(largest_flops),
        training_flops=(float(predicted.flops.min()), float(predicted.flops.max())),
        **errors(log_loss, predicted),
        mean_error=float(error.mean()),
        scatter=rms(spread),
        coverage=float(np.mean(np.abs(error) <= scipy.special.ndtri((1 + LEVEL) / 2) * spread)),
        log_compute_range=rms(log_compute),
        drift_mean=float(bias_per_efold),
        drift_rms=float(np.sqrt(max(drift_variance, bias_per_efold**2))),
    )


def score(steps: Sequence[HoldOut]) -> float:
    """Geometric mean of the steps' root mean square errors of log loss."""
    return float(np.exp(np.mean([np.log(step["rmse_log"]) for step in steps])))


def drift_std(steps: Sequence[HoldOut]) -> float:
    """Root mean square drift of the steps, in which all predicted runs count alike: log loss for each factor of e."""
    weight = np.array([step.runs * step.log_compute_range**2 for step in steps])
    drift = np.array([step.drift_rms for step in steps])
    return float(np.sqrt(np.sum(weight * drift**2) / np.sum(weight)))


def beyond(std: float, largest_flops: float, draws: int, seed: int = 0, only_below: bool = False) -> Beyond:
    """The form's own error in each of a bootstrap's draws.

    Drifts are normal around zero, or the negative half of that distribution.

    Args:
      std: standard deviation of the drifts, as `drift_std` gives it.
      largest_flops: the largest training FLOPs of the fitted runs.
      draws: how many there are.
      only_below: whether all draws drift towards lower losses.
    """
    normal = scipy.special.ndtri((np.arange(draws) + 0.5) / draws)
    drift = std * np.random.default_rng([seed, 5]).permutation(normal)
    if only_below:
        drift = -np.abs(drift)
    return Beyond(training_flops=float(largest_flops), drift=tuple(drift.tolist()))
