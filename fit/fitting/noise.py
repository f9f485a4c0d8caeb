"""How far runs scatter around a law: a part that the runs of a trunk share, and a part of each run's own; and the
coefficients' errors that follow from it.

Axes: n coefficients; n_runs runs; p entries of the prior; draws of a bootstrap.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from fit.aliases import Array
from fit.fitted_law.parts import LEVEL, Growth
from fit.fitting.problem import Data, Problem, place, prepare
from fit.fitting.search import Fit
from fit.form import Form

MOST_GROWTH = 1.0  # of the scatter with lower compute, a power of it
POWERS = 201  # that are tried
# Robust standard deviations at which a residual is cut off, so that one failed run does not count as everybody's noise.
CLIP = 4.0
SOURCES_OF_SCATTER = 4.0  # degrees of freedom of a scatter that comes from other sweeps
ROBUST = 1.4826  # standard deviation over median absolute deviation of a normal distribution


@dataclasses.dataclass
class Noise:
    """Standard deviations in log loss.

    Attributes:
      run: of each run's own error.
      trunk: of the error that a trunk's runs share.
      degrees_of_freedom: how many independent errors each was estimated from (Satterthwaite), (run, trunk).
      total: of a new run on a trunk of its own.
      freedom: how many independent errors the sum of both variances was estimated from (Satterthwaite).
    """

    run: float
    trunk: float
    degrees_of_freedom: tuple[float, float]

    def __post_init__(self) -> None:
        self.total = float(np.hypot(self.run, self.trunk))
        variances = np.square([self.run, self.trunk])
        spread = np.sum(variances**2 / self.degrees_of_freedom)
        self.freedom = float(variances.sum() ** 2 / spread) if spread > 0 else self.degrees_of_freedom[0]

    def draw(self, rng: np.random.Generator, draws: int, labels: Array) -> Array:
        """Errors [draws, n_runs] of runs whose trunks are `labels` [n_runs].

        The standard deviations are drawn too, for they were estimated from few errors: this turns the normal
        distribution into Student's t.
        """
        run_freedom, trunk_freedom = self.degrees_of_freedom
        run = self.run * np.sqrt(run_freedom / rng.chisquare(run_freedom, size=(draws, 1)))
        trunk = self.trunk * np.sqrt(trunk_freedom / rng.chisquare(trunk_freedom, size=(draws, 1)))
        run_errors = run * rng.normal(size=(draws, len(labels)))
        trunk_errors = trunk * rng.normal(size=(draws, labels.max() + 1))
        return run_errors + trunk_errors[:, labels]


@functools.cache
def _sensitivity(form: Form) -> Callable[[Array, Data], tuple]:
    """Compiled: log loss [r] and its Jacobian [r, n] at the solver's x [n]."""

    def predicted(x: Any, data: Data) -> Any:
        return form.log_loss(place(form, x, data), data["columns"], jnp)

    return jax.jit(lambda x, data: (predicted(x, data), jax.jacfwd(predicted)(x, data)))


def sensitivity(problem: Problem, params: Array) -> tuple[Array, Array]:
    """Log loss [n_runs] at `params` [n], and its Jacobian [n_runs, n] by the solver's x."""
    log_loss, jacobian = _sensitivity(problem.form)(problem.centre(params[None])[0], problem.data)
    n_runs = len(problem)
    return np.asarray(log_loss)[:n_runs], np.asarray(jacobian)[:n_runs] * problem.data["moving"]


def noise_of(problem: Problem, params: Array, shared: bool = True) -> Noise:
    """The Noise of the runs around the fit `params` [n].

    The residuals of a fit are M e, M = 1 - J (J'WJ)^-1 J'W with the fit's own weights W. So sums of their squares, run
    by run and trunk by trunk, have expectations linear in both variances: two equations. A variance that comes out
    negative is 0.

    Args:
      shared: separate the error that a trunk's runs share.

    Returns:
      The Noise of the runs; that of the form's prior where this knows it.
    """
    prior = problem.form.prior
    if prior and prior.scatter:
        return Noise(prior.scatter, 0.0, (SOURCES_OF_SCATTER, 1.0))
    trunks = problem.runs.trunks if shared else None
    n_runs = len(problem)
    data = problem.data
    log_loss, jacobian = sensitivity(problem, params)
    residual = data["log_loss"][:n_runs] - log_loss
    root_weight = data["root_weight"][:n_runs]
    weight = root_weight**2 * np.minimum(1, data["delta"] / np.maximum(np.abs(residual), 1e-300))
    used = root_weight > 0
    regularization = _regularization(problem, params)
    if trunks is None:
        freedom = max(_freedom(jacobian[used], weight[used], regularization), 1.0)
        clipped = _clipped(residual[used], freedom)
        return Noise(float(np.sqrt(np.sum(clipped**2) / freedom)), 0.0, (freedom, 1.0))
    residual_maker = (np.eye(n_runs) - projection(jacobian, weight, regularization))[used][:, used]
    freedom = max(float(np.sum(residual_maker**2)), 1.0)
    membership = np.eye(trunks.max() + 1)[trunks[used]]
    return _shared_noise(_clipped(residual[used], freedom), residual_maker, membership, freedom)


def misfit(problem: Problem, params: Array) -> float:
    """The weighted sum of squares of the residuals of log loss at `params` [n], Huber's beyond the settings' delta.

    It is twice the objective without weight decay and priors, summed over the runs.
    """
    runs = problem.runs
    size = np.abs(problem.form.log_loss(params, runs.columns) - np.log(runs.loss))
    delta = problem.settings.huber_delta
    return float(np.sum(runs.weights * np.where(size > delta, 2 * delta * size - delta**2, size**2)))


def _clipped(residual: Array, freedom: float) -> Array:
    """Residuals cut off at CLIP robust standard deviations."""
    spread = ROBUST * np.median(np.abs(residual)) * np.sqrt(len(residual) / min(freedom, len(residual)))
    return np.clip(residual, -CLIP * spread, CLIP * spread) if spread > 0 else residual


def _shared_noise(residual: Array, residual_maker: Array, membership: Array, freedom: float) -> Noise:
    """The Noise of runs that share errors.

    Args:
      residual: [n_runs].
      residual_maker: M of `noise_of`, [n_runs, n_runs].
      membership: [n_runs, n_trunks], 1 where a run is of a trunk.
      freedom: the sum of the squares of M.
    """
    by_trunk = residual_maker @ membership
    of_trunk_sums = membership.T @ residual_maker
    both = membership.T @ by_trunk
    equations = np.array([[freedom, np.sum(by_trunk**2)], [np.sum(of_trunk_sums**2), np.sum(both**2)]])
    sums = np.sum(residual**2), np.sum((membership.T @ residual) ** 2)
    run, trunk = np.linalg.lstsq(equations, sums, rcond=None)[0]
    if trunk < 0:
        run = sums[0] / freedom
        trunk = 0.0
    elif run < 0:
        run = 0.0
        trunk = sums[0] / np.sum(by_trunk**2)
    # the sum over trunks is a quadratic form of the errors: twice its mean squared over its variance
    quadratic = of_trunk_sums @ of_trunk_sums.T * run + both @ both.T * trunk
    trunk_freedom = np.trace(quadratic) ** 2 / np.sum(quadratic**2) if np.any(quadratic) else 1.0
    run_freedom = max(freedom - trunk_freedom, 1.0)
    return Noise(float(np.sqrt(run)), float(np.sqrt(trunk)), (run_freedom, float(trunk_freedom)))


def growth(problem: Problem, params: Array, noise: Noise) -> Growth | None:
    """How a law that was fitted with weights is worse at small runs.

    Returns:
      Below these FLOPs, the median of the runs, they scatter by noise.total (training_flops / FLOPs)^power, as they do
      on average. None where they scatter no more than noise.total, or runs count alike.
    """
    runs = problem.runs
    middle = float(np.median(runs.flops))
    small = runs.flops < middle
    if np.ptp(runs.weights) == 0 or not small.any():
        return None
    residual = np.log(runs.loss) - problem.form.log_loss(params, runs.columns)
    relative = np.clip(residual[small] / max(noise.total, 1e-12), -CLIP, CLIP)
    powers = np.linspace(0, MOST_GROWTH, POWERS)
    remaining = np.mean((relative * (runs.flops[small] / middle) ** powers[:, None]) ** 2, axis=1)
    power = float(powers[min(np.sum(remaining > 1), POWERS - 1)])
    return Growth(training_flops=middle, power=power) if power else None


def _freedom(jacobian: Array, weight: Array, regularization: Array) -> float:
    """The sum of the squares of 1 - projection(...), without that matrix of n_runs^2 numbers."""
    root = np.sqrt(weight)[:, None]
    normal = (jacobian * root).T @ (jacobian * root) + regularization
    to_x = np.linalg.pinv(normal, rcond=1e-13, hermitian=True) @ (jacobian.T * weight)
    squares = np.sum((jacobian.T @ jacobian @ to_x) * to_x)
    return float(len(jacobian) - 2 * np.sum(jacobian * to_x.T) + squares)


def projection(jacobian: Array, weight: Array, regularization: Array) -> Array:
    """The derivative of each fitted log loss by each measured one, [n_runs, n_runs].

    Args:
      jacobian: of the fitted log losses, [n_runs, n].
      weight: of the runs, [n_runs].
      regularization: the terms of weight decay and prior in the normal equations, [n, n].
    """
    root = np.sqrt(weight)[:, None]
    normal = (jacobian * root).T @ (jacobian * root) + regularization
    return jacobian @ np.linalg.pinv(normal, rcond=1e-13, hermitian=True) @ (jacobian.T * weight)


def standard_errors(
    problem: Problem, fit: Fit, noise: Noise, more: Mapping[str, Array] | None = None
) -> dict[str, float]:
    """Linearised standard errors of the coefficients of a Fit, {name: value}, 0 for those that are fixed.

    Args:
      noise: of the runs.
      more: {column: [k]} of k further runs that one might add, each on a trunk of its own.
    """
    count = len(problem)
    if more is not None:
        problem = _with_more_runs(problem, more)
    _, variance = _jacobian_and_variance(problem, fit, noise)
    variance *= count / problem.sample_of

    def coefficients(x: Array) -> Array:
        return problem.form.to_coefficients(problem.params_of(x))

    slopes = derivative(coefficients, problem.centre(fit.params[None]))
    errors = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", slopes, variance, slopes), 0))
    return dict(zip(problem.form.names, errors.tolist(), strict=True))


def _with_more_runs(problem: Problem, more: Mapping[str, Array]) -> Problem:
    """The problem with further runs {column: [k]} of weight 1, each on a trunk of its own."""
    runs = problem.runs
    ones = np.ones(len(next(iter(more.values()))))
    trunks = runs.trunks
    if trunks is not None:
        trunks = np.append(trunks, trunks.max() + np.cumsum(ones).astype(int))
    runs = dataclasses.replace(
        runs,
        columns={name: np.concatenate([values, more[name]]) for name, values in runs.columns.items()},
        loss=np.append(runs.loss, ones),
        index=None,
        weights=np.append(runs.weights, ones),
        trunks=trunks,
    )
    return prepare(problem.form, runs, problem.settings, problem.sample_of)


def prediction_errors(problem: Problem, fit: Fit, noise: Noise) -> Array:
    """Linearised standard errors [n_runs] of the log losses that a Fit predicts for all runs, also those of no weight.

    Args:
      noise: of the runs.
    """
    jacobian, variance = _jacobian_and_variance(problem, fit, noise)
    return np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", jacobian, variance, jacobian), 0))


def _jacobian_and_variance(problem: Problem, fit: Fit, noise: Noise) -> tuple[Array, Array]:
    """At a Fit: the Jacobian [n_runs, n] of the log losses by the solver's x, and x's linearised covariance [n, n]."""
    _, jacobian = sensitivity(problem, fit.params)
    weight = problem.data["root_weight"][: len(problem)] ** 2
    normal = (jacobian.T * weight) @ jacobian + _regularization(problem, fit.params)
    inverse = np.linalg.pinv(normal, rcond=1e-14, hermitian=True)
    to_x = inverse @ (jacobian.T * weight)
    variance = noise.run**2 * to_x @ to_x.T
    trunks = problem.runs.trunks
    if trunks is not None:
        shared = to_x @ np.eye(trunks.max() + 1)[trunks]
        variance += noise.trunk**2 * shared @ shared.T
    of_prior = inverse @ _prior_slopes(problem, fit.params).T  # a prior's mean counts as one more measurement
    scale = 1.0 if problem.settings.reduction == "sum" else 1 / len(problem)
    variance += problem.settings.variance * scale * of_prior @ of_prior.T
    return jacobian, variance


def _prior_slopes(problem: Problem, params: Array) -> Array:
    """Derivatives [p, n] of the prior's residuals at params [n]; p is 0 without a prior."""
    prior = problem.form.prior
    if prior is None:
        return np.zeros((0, len(params)))
    return problem.data["prior_root"] @ prior.slopes(params)


def _regularization(problem: Problem, params: Array) -> Array:
    """The terms of weight decay and prior in the normal equations at params [n], [n, n]."""
    slopes = _prior_slopes(problem, params)
    return problem.settings.weight_decay * np.eye(len(params)) + slopes.T @ slopes


def inflation(problem: Problem, fit: Fit, noise: Noise, independent: Noise) -> dict[str, float]:
    """{coefficient: factor on a profile's threshold for the errors that runs share}, 1 where they share none.

    It is the ratio of the coefficient's variance with `noise` to that with `independent`, the Noise of runs that share
    no error, but at least the median ratio of all: a linearised ratio is too low for a coefficient that the runs hardly
    identify. It is multiplied by the squared ratio of Student's t to normal, for trunks are few.
    """
    if problem.runs.trunks is None:
        return dict.fromkeys(fit.coefficients, 1.0)
    with_trunks = standard_errors(problem, fit, noise)
    without = standard_errors(problem, fit, independent)
    ratio = {name: (with_trunks[name] / without[name]) ** 2 for name in without if without[name] > 0}
    usual = np.median(list(ratio.values())) if ratio else 1.0
    tails = (scipy.special.stdtrit(noise.freedom, (1 + LEVEL) / 2) / scipy.special.ndtri((1 + LEVEL) / 2)) ** 2
    return {name: float(tails * max(ratio.get(name, usual), usual)) for name in without}


def derivative(function: Callable[[Array], Array], x: Array, step: float = 1e-6) -> Array:
    """Derivatives [n_out, n] of a function of rows [k, n] -> [k, n_out] at x [1, n], by central differences."""
    steps = step * np.eye(x.shape[1])
    return ((function(x + steps) - function(x - steps)) / (2 * step)).T
