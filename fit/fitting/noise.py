"""How far runs scatter around a law: a part that the runs of a trunk share, and a part of each run's own; and the
coefficients' errors that follow from it."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from fit.aliases import Array
from fit.fitted_law.law_check import LEVEL
from fit.fitting.problem import Data, Problem, place, prepare
from fit.fitting.search import Fit
from fit.form import Form

MOST_GROWTH = 1.0  # of the scatter with lower compute, a power of it
CLIP = 4.0  # robust standard deviations at which a residual is cut off, lest one failed run counts as everybody's noise


@dataclasses.dataclass
class Noise:
    """Standard deviations in log loss: `run` of each run's own error, `trunk` of the one that a trunk's runs share.

    degrees_of_freedom: how many independent errors each was estimated from (Satterthwaite), (run, trunk).
    """

    run: float
    trunk: float
    degrees_of_freedom: tuple[float, float]

    def __post_init__(self) -> None:
        self.total = float(np.hypot(self.run, self.trunk))  # standard deviation of a new run on a trunk of its own
        parts = np.square([self.run, self.trunk])
        spread = np.sum(parts**2 / self.degrees_of_freedom)
        # how many independent errors the sum of both variances was estimated from (Satterthwaite)
        self.freedom = float(parts.sum() ** 2 / spread) if spread > 0 else self.degrees_of_freedom[0]

    def draw(self, rng: np.random.Generator, draws: int, labels: Array) -> Array:
        """Errors [draws, n_runs] of runs whose trunks are `labels` [n_runs]. The standard deviations are drawn too, for
        they were estimated from few errors: this turns the normal distribution into Student's t."""
        n = len(labels)
        of_runs, of_trunks = self.degrees_of_freedom
        run, trunk = (
            size * np.sqrt(freedom / rng.chisquare(freedom, size=(draws, 1)))
            for size, freedom in ((self.run, of_runs), (self.trunk, of_trunks))
        )
        return run * rng.normal(size=(draws, n)) + (trunk * rng.normal(size=(draws, labels.max() + 1)))[:, labels]


@functools.cache
def _sensitivity(form: Form) -> Callable[[Array, Data], tuple]:
    def predicted(x: Any, data: Data) -> Any:
        """Log loss [n_runs] at the solver's x [n]."""
        return form.log_loss(place(form, x, data), data["columns"], jnp)

    return jax.jit(lambda x, data: (predicted(x, data), jax.jacfwd(predicted)(x, data)))


def sensitivity(problem: Problem, free: Array) -> tuple[Array, Array]:
    """(log loss [n_runs], its Jacobian [n_runs, n] by the solver's x) at the law's own parameters `free` [n]."""
    log_loss, jacobian = _sensitivity(problem.form)(problem.centre(free[None])[0], problem.data)
    n = len(problem)
    return np.asarray(log_loss)[:n], np.asarray(jacobian)[:n] * problem.data["moving"]


def noise_of(problem: Problem, free: Array, shared: bool = True) -> Noise:
    """The Noise of the runs around the fit `free`; shared: separate the error that a trunk's runs share.

    The residuals of a fit are M e, M = 1 - J (J'WJ)^-1 J'W with the fit's own weights W, so sums of their squares, run
    by run and trunk by trunk, have expectations linear in both variances: two equations. A variance that comes out
    negative is 0.
    """
    trunks = problem.runs.trunks if shared else None
    n = len(problem)
    data = problem.data
    log_loss, jacobian = sensitivity(problem, free)
    r = data["log_loss"][:n] - log_loss
    weight = data["root_weight"][:n] ** 2 * np.minimum(1, data["delta"] / np.maximum(np.abs(r), 1e-300))
    used = data["root_weight"][:n] > 0
    pull = _pull(problem, free)
    shown = r[used]
    if trunks is None:
        freedom = max(_freedom(jacobian[used], weight[used], pull), 1.0)
    else:
        m = (np.eye(n) - projection(jacobian, weight, pull))[used][:, used]
        freedom = max(float(np.sum(m**2)), 1.0)
    spread = 1.4826 * np.median(np.abs(shown)) * np.sqrt(len(shown) / min(freedom, len(shown)))
    shown = np.clip(shown, -CLIP * spread, CLIP * spread) if spread > 0 else shown
    if trunks is None:
        return Noise(float(np.sqrt(np.sum(shown**2) / freedom)), 0.0, (freedom, 1.0))
    z = np.eye(trunks.max() + 1)[trunks[used]]
    mz, zm = m @ z, z.T @ m
    of_trunks = z.T @ mz
    equations = np.array([[freedom, np.sum(mz**2)], [np.sum(zm**2), np.sum(of_trunks**2)]])
    sums = np.sum(shown**2), np.sum((z.T @ shown) ** 2)
    run, trunk = np.linalg.lstsq(equations, sums, rcond=None)[0]
    if trunk < 0:
        run, trunk = sums[0] / freedom, 0.0
    elif run < 0:
        run, trunk = 0.0, sums[0] / np.sum(mz**2)
    # the sum over trunks is a quadratic form of the errors: twice its mean squared over its variance
    quadratic = zm @ zm.T * run + of_trunks @ of_trunks.T * trunk
    trunk_freedom = np.trace(quadratic) ** 2 / np.sum(quadratic**2) if np.any(quadratic) else 1.0
    return Noise(float(np.sqrt(run)), float(np.sqrt(trunk)), (max(freedom - trunk_freedom, 1.0), float(trunk_freedom)))


def growth(problem: Problem, free: Array, noise: Noise) -> dict[str, float] | None:
    """How a law fitted with weights is worse at small runs: {training_flops, power}, below these FLOPs, the median of
    the runs, they scatter by noise.total (training_flops / FLOPs)^power, as they do on average; None where they scatter
    no more than that, or runs count alike."""
    runs = problem.runs
    middle = float(np.median(runs.flops))
    small = runs.flops < middle
    if np.ptp(runs.weights) == 0 or not small.any():
        return None
    off = np.log(runs.loss) - problem.form.log_loss(free, runs.columns)
    relative = np.clip(off[small] / max(noise.total, 1e-12), -CLIP, CLIP)
    power = np.linspace(0, MOST_GROWTH, 201)
    left = np.mean((relative * (runs.flops[small] / middle) ** power[:, None]) ** 2, axis=1)
    power = float(power[min(np.sum(left > 1), 200)])
    return dict(training_flops=middle, power=power) if power else None


def _freedom(jacobian: Array, weight: Array, pull: Array) -> float:
    """The sum of the squares of 1 - projection(jacobian, weight, pull), without that matrix of n_runs^2 numbers."""
    root = np.sqrt(weight)[:, None]
    gram = (jacobian * root).T @ (jacobian * root) + pull
    to_free = np.linalg.pinv(gram, rcond=1e-13, hermitian=True) @ (jacobian.T * weight)
    squares = np.sum((jacobian.T @ jacobian @ to_free) * to_free)
    return float(len(jacobian) - 2 * np.sum(jacobian * to_free.T) + squares)


def projection(jacobian: Array, weight: Array, pull: Array) -> Array:
    """[n, n]: what a change of each measured log loss does to each fitted one; pull: as _pull gives it."""
    root = np.sqrt(weight)[:, None]
    gram = (jacobian * root).T @ (jacobian * root) + pull
    return jacobian @ np.linalg.pinv(gram, rcond=1e-13, hermitian=True) @ (jacobian.T * weight)


def standard_errors(
    problem: Problem, fit: Fit, noise: Noise, more: Mapping[str, Array] | None = None
) -> dict[str, float]:
    """Linearised standard errors of the coefficients of a Fit, {name: value}, 0 for those that are fixed.

    noise: the Noise of the runs. more: {column: [k]} of further runs that one might add, each on a trunk of its own.
    """
    count = len(problem)
    if more is not None:
        runs = problem.runs
        ones = np.ones(len(next(iter(more.values()))))
        columns = {name: np.concatenate([values, more[name]]) for name, values in runs.columns.items()}
        loss = np.append(runs.loss, ones)
        weights = np.append(runs.weights, ones)
        trunks = runs.trunks
        if trunks is not None:
            trunks = np.append(trunks, trunks.max() + np.cumsum(ones).astype(int))
        runs = dataclasses.replace(runs, columns=columns, loss=loss, index=None, weights=weights, trunks=trunks)
        problem = prepare(problem.form, runs, problem.settings, problem.sample_of)
    _, variance = _spread(problem, fit, noise)
    variance *= count / problem.sample_of
    to = derivative(lambda x: problem.form.to_coefficients(problem.own(x)), problem.centre(fit.free[None]))
    errors = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", to, variance, to), 0))
    return dict(zip(problem.form.names, errors.tolist(), strict=True))


def prediction_errors(problem: Problem, fit: Fit, noise: Noise) -> Array:
    """Linearised standard errors [n_runs] of the log losses that a Fit predicts for all runs, those of no weight
    included; noise: the Noise of the runs."""
    jacobian, variance = _spread(problem, fit, noise)
    return np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", jacobian, variance, jacobian), 0))


def _spread(problem: Problem, fit: Fit, noise: Noise) -> tuple[Array, Array]:
    """(Jacobian [n_runs, n] of the log losses by the solver's x, linearised covariance [n, n] of x) at a Fit."""
    _, jacobian = sensitivity(problem, fit.free)
    weight = problem.data["root_weight"][: len(problem)] ** 2
    gram = (jacobian.T * weight) @ jacobian + _pull(problem, fit.free)
    inverse = np.linalg.pinv(gram, rcond=1e-14, hermitian=True)
    to_free = inverse @ (jacobian.T * weight)
    variance = noise.run**2 * to_free @ to_free.T
    trunks = problem.runs.trunks
    if trunks is not None:
        shared = to_free @ np.eye(trunks.max() + 1)[trunks]
        variance += noise.trunk**2 * shared @ shared.T
    of_prior = inverse @ _prior_slopes(problem, fit.free).T  # a prior's mean counts as one more measurement
    scale = 1.0 if problem.settings.reduction == "sum" else 1 / len(problem)
    variance += problem.settings.variance * scale * of_prior @ of_prior.T
    return jacobian, variance


def _prior_slopes(problem: Problem, free: Array) -> Array:
    """[p, n]: derivatives of the prior's residuals at free [n]; p is 0 without a prior."""
    prior = problem.form.prior
    if prior is None:
        return np.zeros((0, len(free)))
    return problem.data["prior_root"] @ prior.slopes(free)


def _pull(problem: Problem, free: Array) -> Array:
    """[n, n]: what the weight decay and the prior add to the normal equations at free [n]."""
    slopes = _prior_slopes(problem, free)
    return problem.settings.weight_decay * np.eye(len(free)) + slopes.T @ slopes


def inflation(problem: Problem, fit: Fit, noise: Noise, alone: Noise) -> dict[str, float]:
    """{coefficient: factor on a profile's threshold for the errors that runs share}, 1 where they share none.

    It is the ratio of the coefficient's variance with `noise` to that with `alone` (each run for itself), but at least
    the median ratio of all (a linearised ratio is too low for a coefficient that the runs hardly pin down), times the
    squared ratio of Student's t to normal, for trunks are few.
    """
    if problem.runs.trunks is None:
        return dict.fromkeys(fit.coefficients, 1.0)
    with_trunks = standard_errors(problem, fit, noise)
    naive = standard_errors(problem, fit, alone)
    ratio = {name: (with_trunks[name] / naive[name]) ** 2 for name in naive if naive[name] > 0}
    usual = np.median(list(ratio.values())) if ratio else 1.0
    tails = (scipy.special.stdtrit(noise.freedom, (1 + LEVEL) / 2) / scipy.special.ndtri((1 + LEVEL) / 2)) ** 2
    return {name: float(tails * max(ratio.get(name, usual), usual)) for name in naive}


def derivative(function: Callable[[Array], Array], x: Array, step: float = 1e-6) -> Array:
    """[n_out, n] of a function of rows [k, n] -> [k, n_out] at x [1, n], by central differences."""
    steps = step * np.eye(x.shape[1])
    return ((function(x + steps) - function(x - steps)) / (2 * step)).T
