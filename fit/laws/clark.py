"""The law of routed models at a fixed number of tokens, Clark et al. (2022, arXiv 2202.01169), Eq. 3 of
Ludziejewski et al.; no n_tokens column is needed.

  log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d,  Ê as in the joint law (Eq. 4)

L is the loss in nats per token, N = n_active, E = n_experts. All models must have seen the same number of tokens.
"""

import itertools

import numpy as np

from fit.arrays import array_module
from fit.laws import joint

COLUMNS = ("n_active", "n_experts")
COEFFICIENTS = ("a", "b", "c", "d", "E_start", "E_max")
FREE = ("a", "b", "c", "d", "ln E_start", "t")

BOUNDS = (*[(-20, 20)] * 3, (-100, 100), (-14, 14), (-14, 30))  # of the search, as in the joint law

PROFILED = ("E_start", "E_max")
PINNED_BY = {name: joint.PINNED_BY[name] for name in PROFILED}

_LN10 = np.log(10.0)


def log_loss(free, ln_n, ln_d, n_experts):
    """ln L; `free` [6] in the order of FREE, ln_n and n_experts broadcast together; ln_d is not used."""
    a, b, c, d, log_start, t = free
    e = joint.log_expert_scale(n_experts, log_start, t)
    return a * ln_n + b * e + c * ln_n * e / _LN10 + d * _LN10


def recentre(free, shift_n, shift_d):
    """The same law with ln N measured from shift_n."""
    a, b, c, d, log_start, t = free
    return array_module(a).stack([a, b + c * shift_n / _LN10, c, d + a * shift_n / _LN10, log_start, t])


def to_free(c):
    """Coefficients (a dictionary) to the solver's vector [6]."""
    return np.array([c["a"], c["b"], c["c"], c["d"], np.log(c["E_start"]), np.log(c["E_max"] / c["E_start"] - 1)])


def to_coefficients(free):
    """The solver's vector [..., 6] to coefficients [..., 6] in the order of COEFFICIENTS."""
    xp = array_module(free)
    log_start, t = free[..., 4:5], free[..., 5:]
    return xp.concatenate([free[..., :4], xp.exp(log_start), xp.exp(log_start + xp.logaddexp(0.0, t))], axis=-1)


def hold(free, held):
    """`free` [6, ...] with coefficients held: `held` [6, ...] in the order of COEFFICIENTS, NaN where one is free."""
    xp = array_module(free, held)
    exponents = xp.where(xp.isnan(held), free, held)
    return xp.stack([*exponents[:4], *joint.hold_expert_scale(free[4], free[5], held[4], held[5])])


def start(free, held):
    """`free` [6, ...] as a search with coefficients held begins from it; `held` as in hold."""
    return np.stack([*free[:5], joint.start_expert_scale(free[4], free[5], held[4], held[5])])


def moving(held):
    """bool [6, ...]: which entries of FREE the search still moves when `held` are held."""
    free = np.isnan(held)
    return np.stack([*free[:4], free[4] & free[5], free[4] | free[5]])


def starts():
    """Start grid of 3^6 = 729 rows of FREE."""
    return np.array(
        list(
            itertools.product(
                [-0.2, -0.1, -0.05],
                [-0.2, -0.1, 0],
                [-0.02, 0, 0.02],
                [0.8, 1.1, 1.4],
                np.log([1.5, 2, 4]),
                np.log([30.0, 150, 500]),
            )
        )
    )


def scaled_starts(rng, count, runs):
    """`count` random starts in the measure of the runs, for centred columns, as in the joint law."""
    a, b = rng.uniform(-0.3, -0.02, count), rng.uniform(-0.3, 0.05, count)
    c = rng.uniform(-0.03, 0.03, count)
    log_start, t = rng.uniform(np.log(1.2), np.log(5), count), rng.uniform(1.5, 6, count)
    e = np.mean(joint.log_expert_scale(runs.n_experts, log_start[:, None], t[:, None]), axis=1)
    return np.stack([a, b, c, (np.mean(np.log(runs.loss)) - b * e) / _LN10, log_start, t], axis=1)


_SOURCE = "Clark et al. 2022, arXiv 2202.01169, Table 3; every model saw 130B tokens"
_RUNS = dict(ranges=dict(n_active=[1.5e7, 1.3e9], n_experts=[1, 512]))
PRESETS = {
    "clark-2022-sbase": dict(
        coefficients=dict(a=-0.082, b=-0.108, c=0.009, d=1.104, E_start=1.847, E_max=314.478),
        source=_SOURCE,
        note="S-BASE",
        runs=_RUNS,
    ),
    "clark-2022-rl": dict(
        coefficients=dict(a=-0.083, b=-0.126, c=0.012, d=1.111, E_start=1.880, E_max=469.982),
        source=_SOURCE,
        note="RL-R",
        runs=_RUNS,
    ),
    "clark-2022-hash": dict(
        coefficients=dict(a=-0.087, b=-0.136, c=0.012, d=1.157, E_start=4.175, E_max=477.741),
        source=_SOURCE,
        note="HASH",
        runs=_RUNS,
    ),
}
