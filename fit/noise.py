"""How far runs scatter around a law: a part that the runs of a trunk share, and a part of each run's own."""

import dataclasses
import functools

import jax
import numpy as np

from fit import regress
from fit.laws import FORMS

CLIP = 4.0  # robust standard deviations at which a residual is cut off: one run gone wrong is not everybody's noise


@dataclasses.dataclass
class Noise:
    """Standard deviations in log loss: `run` of each run's own error, `trunk` of the one that a trunk's runs share.

    degrees_of_freedom: how many independent errors each was estimated from (Satterthwaite), (run, trunk).
    """

    run: float
    trunk: float
    degrees_of_freedom: tuple

    @property
    def total(self):
        """Of a new run on a trunk of its own."""
        return float(np.hypot(self.run, self.trunk))

    @property
    def freedom(self):
        """How many independent errors the sum of both variances was estimated from (Satterthwaite)."""
        parts = np.square([self.run, self.trunk])
        spread = np.sum(parts**2 / self.degrees_of_freedom)
        return float(parts.sum() ** 2 / spread) if spread > 0 else self.degrees_of_freedom[0]

    def draw(self, rng, draws, labels):
        """Errors [draws, n_runs] of runs whose trunks are `labels` [n_runs]. The sizes of the errors are drawn too,
        for they were estimated from few: this is what makes Student's t of a normal distribution."""
        n, (of_runs, of_trunks) = len(labels), self.degrees_of_freedom
        run, trunk = (
            size * np.sqrt(freedom / rng.chisquare(freedom, size=(draws, 1)))
            for size, freedom in ((self.run, of_runs), (self.trunk, of_trunks))
        )
        return run * rng.normal(size=(draws, n)) + (trunk * rng.normal(size=(draws, labels.max() + 1)))[:, labels]


@functools.cache
def _sensitivity(form):
    law = FORMS[form]

    def predicted(x, data):
        columns = data["ln_n"] + data["shift_n"], data["ln_d"] + data["shift_d"], data["n_experts"]
        return law.log_loss(regress.place(form, x, data), *columns)

    return jax.jit(lambda x, data: (predicted(x, data), jax.jacfwd(predicted)(x, data)))


def sensitivity(form, free, data, n):
    """(log loss [n], its Jacobian [n, n_free] by the solver's x) of the first n runs of prepared data."""
    log_loss, jacobian = _sensitivity(form)(regress.centre(form, free[None], data)[0], data)
    return np.asarray(log_loss)[:n], np.asarray(jacobian)[:n] * data["moving"]


def noise(form, free, data, n, trunks=None):
    """The Noise of n runs around the fit `free` to prepared data; trunks: labels [n], or None where none are shared.

    The residuals of a fit are M e, M = 1 - J (J'WJ)^-1 J'W with the fit's own weights W, so sums of their squares, run
    by run and trunk by trunk, have expectations linear in both variances: two equations. A variance that comes out
    negative is 0.
    """
    log_loss, jacobian = sensitivity(form, free, data, n)
    r = data["log_loss"][:n] - log_loss
    weight = data["root_weight"][:n] ** 2 * np.minimum(1, data["delta"] / np.maximum(np.abs(r), 1e-300))
    used = data["root_weight"][:n] > 0
    m = np.eye(n) - projection(jacobian, weight, data["weight_decay"])
    m, shown = m[used][:, used], r[used]
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
    form = zm @ zm.T * run + of_trunks @ of_trunks.T * trunk
    trunk_freedom = np.trace(form) ** 2 / np.sum(form**2) if np.any(form) else 1.0
    return Noise(float(np.sqrt(run)), float(np.sqrt(trunk)), (max(freedom - trunk_freedom, 1.0), float(trunk_freedom)))


def projection(jacobian, weight, decay):
    """[n, n]: what a change of each measured log loss does to each fitted one."""
    root = np.sqrt(weight)[:, None]
    gram = (jacobian * root).T @ (jacobian * root) + decay * np.eye(jacobian.shape[1])
    return jacobian @ np.linalg.pinv(gram, rcond=1e-13, hermitian=True) @ (jacobian.T * weight)
