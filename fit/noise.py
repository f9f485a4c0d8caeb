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

    degrees_of_freedom: of the residuals in all. residuals [n_runs]: measured less fitted log loss.
    """

    run: float
    trunk: float
    degrees_of_freedom: float
    residuals: np.ndarray

    @property
    def total(self):
        """Of a new run on a trunk of its own."""
        return float(np.hypot(self.run, self.trunk))


@functools.lru_cache(maxsize=None)
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

    The residuals of a fit are M e, M = 1 - J (J'WJ)^-1 J'W with the fit's own weights W, so sums of their squares, run by
    run and trunk by trunk, have expectations linear in both variances: two equations. A variance that comes out negative is 0.
    """
    log_loss, jacobian = sensitivity(form, free, data, n)
    r = data["log_loss"][:n] - log_loss
    weight = data["root_weight"][:n] ** 2 * np.minimum(1, data["delta"] / np.maximum(np.abs(r), 1e-300))
    used = data["root_weight"][:n] > 0
    m = np.eye(n) - projection(jacobian, weight, data["weight_decay"])
    m, shown = m[used][:, used], r[used]
    freedom = max(float(np.sum(m**2)), 1e-9)
    spread = 1.4826 * np.median(np.abs(shown)) * np.sqrt(len(shown) / min(freedom, len(shown)))
    shown = np.clip(shown, -CLIP * spread, CLIP * spread) if spread > 0 else shown
    run, trunk = np.sum(shown**2) / freedom, 0.0
    if trunks is not None:
        z = np.eye(trunks.max() + 1)[trunks[used]]
        mz, zm = m @ z, z.T @ m
        equations = np.array([[freedom, np.sum(mz**2)], [np.sum(zm**2), np.sum((z.T @ mz) ** 2)]])
        run, trunk = np.linalg.lstsq(equations, [np.sum(shown**2), np.sum((z.T @ shown) ** 2)], rcond=None)[0]
        if trunk < 0:
            run, trunk = np.sum(shown**2) / freedom, 0.0
        elif run < 0:
            run, trunk = 0.0, np.sum(shown**2) / np.sum(mz**2)
    return Noise(float(np.sqrt(run)), float(np.sqrt(trunk)), freedom, r)


def projection(jacobian, weight, decay):
    """[n, n]: what a change of each measured log loss does to each fitted one."""
    root = np.sqrt(weight)[:, None]
    gram = (jacobian * root).T @ (jacobian * root) + decay * np.eye(jacobian.shape[1])
    return jacobian @ np.linalg.pinv(gram, rcond=1e-13, hermitian=True) @ (jacobian.T * weight)
