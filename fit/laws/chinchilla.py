"""The dense law of Hoffmann et al. (2022, arXiv 2203.15556), Eq. 2 of Ludziejewski et al. with the usual letters.

  L = E + A / N^alpha + B / D^beta

L is the loss in nats per token, N = n_active, D = n_tokens. E is the irreducible loss, not a number of experts.
"""

import itertools

import numpy as np

from fit.arrays import array_module

COLUMNS = ("n_active", "n_tokens")
COEFFICIENTS = ("A", "B", "E", "alpha", "beta")
FREE = ("ln A", "ln B", "ln E", "alpha", "beta")

BOUNDS = ((-300, 300), (-300, 300), (-30, 7), (-20, 20), (-20, 20))  # of the search, as in the joint law

PROFILED = ("E",)
PINNED_BY = {"E": {"n_active": 10, "n_tokens": 10}}  # as in the joint law


def log_loss(free, ln_n, ln_d, n_experts):
    """ln L by log-sum-exp; `free` [5] in the order of FREE, ln_n and ln_d broadcast together; n_experts is not used."""
    log_a, log_b, log_e, alpha, beta = free
    xp = array_module(log_a, ln_n)
    return xp.logaddexp(xp.logaddexp(log_a - alpha * ln_n, log_b - beta * ln_d), log_e)


def recentre(free, shift_n, shift_d):
    """The same law with ln N and ln D measured from shift_n and shift_d."""
    log_a, log_b, log_e, alpha, beta = free
    return array_module(log_a).stack([log_a - alpha * shift_n, log_b - beta * shift_d, log_e, alpha, beta])


def to_free(c):
    """Coefficients (a dictionary) to the solver's vector [5]."""
    return np.array([np.log(c["A"]), np.log(c["B"]), np.log(c["E"]), c["alpha"], c["beta"]])


def to_coefficients(free):
    """The solver's vector [..., 5] to coefficients [..., 5] in the order of COEFFICIENTS."""
    xp = array_module(free)
    return xp.concatenate([xp.exp(free[..., :3]), free[..., 3:]], axis=-1)


def hold(free, held):
    """`free` [5, ...] with coefficients held: `held` [5, ...] in the order of COEFFICIENTS, NaN where one is free."""
    xp = array_module(free, held)
    given = ~xp.isnan(held)
    scales = [xp.where(given[i], xp.log(xp.where(given[i], held[i], 1.0)), free[i]) for i in range(3)]
    return xp.stack([*scales, *xp.where(given, held, free)[3:]])


def start(free, held):
    """`free` [5, ...] as a search with coefficients held begins from it: as it is."""
    return free


def moving(held):
    """bool [5, ...]: which entries of FREE the search still moves when `held` are held."""
    return np.isnan(held)


def at_experts(c, n_experts):
    """(m, mu, n, nu, c) of L = m N^mu + n D^nu + c; the same for every n_experts, which only gives the shape."""
    one = np.ones_like(n_experts, dtype=float)
    return c["A"] * one, -c["alpha"] * one, c["B"] * one, -c["beta"] * one, c["E"] * one


def starts():
    """Start grid of 3^5 = 243 rows of FREE: the paper's values (App. B) for A, B, E, alpha and beta, with the larger A
    and B that compute-optimal data calls for."""
    return np.array(
        list(
            itertools.product(
                np.log([30, 300, 3000]),
                np.log([30, 300, 3000]),
                np.log([0.5, 1, 2]),
                [0.05, 0.25, 0.5],
                [0.05, 0.25, 0.5],
            )
        )
    )


def scaled_starts(rng, count, runs):
    """`count` random starts in the measure of the runs, for centred columns, as in the joint law."""
    loss = np.exp(np.mean(np.log(runs.loss)))
    floor = rng.uniform(0.2, 0.95, count) * runs.loss.min()
    size = rng.uniform(0.1, 0.9, count)
    alpha, beta = np.exp(rng.uniform(np.log(0.05), np.log(0.6), (2, count)))
    log_a, log_b = np.log((loss - floor) * size), np.log((loss - floor) * (1 - size))
    return np.stack([log_a, log_b, np.log(floor), alpha, beta], axis=1)


# the runs in Hoffmann et al.'s Figure 4, as Besiroglu et al. read them off, the 5 highest losses dropped
_RUNS = dict(
    ranges=dict(n_active=[5.733e7, 1.6183e10], n_tokens=[8.187e8, 3.1775e11], training_flops=[1.397e18, 1.2956e22])
)
PRESETS = {
    "chinchilla-2022": dict(
        coefficients=dict(A=406.4, B=410.7, E=1.6934, alpha=0.3392, beta=0.2849),
        source="Hoffmann et al. 2022, arXiv 2203.15556, approach 3",
        note="E, alpha and beta with the digits of its LaTeX source; the text prints 1.69, .34, .28",
        runs=_RUNS,
    ),
    "chinchilla-refit-2024": dict(
        coefficients=dict(A=482.01, B=2085.43, E=1.8172, alpha=0.3478, beta=0.3658),
        source="Besiroglu et al. 2024, arXiv 2404.10102",
        note="240 points read off Hoffmann et al.'s Figure 4, the 5 highest losses dropped",
        runs=_RUNS,
    ),
    "fine-grained-dense-2024": dict(
        coefficients=dict(A=16.3, B=26.7, E=0.47, alpha=0.126, beta=0.127),
        source="Krajewski et al. 2024, arXiv 2402.07871, the dense law",
        note="its N leaves the embedding out",
    ),
}
