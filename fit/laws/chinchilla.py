"""The dense law of Hoffmann et al. (2022, arXiv 2203.15556), Eq. 2 of Ludziejewski et al. with the usual letters.

  L = E + A / N^alpha + B / D^beta

L is the loss in nats per token, N = n_active, D = n_tokens. E is the irreducible loss, not a number of experts.
"""

from types import ModuleType

import numpy as np

from fit.aliases import Array, ByName, Numbers
from fit.form import Coefficient
from fit.table.runs import Runs

COLUMNS = ("n_active", "n_tokens")
# Starts: the paper's values (App. B), with the larger A and B that compute-optimal data calls for; 3^5 = 243.
COEFFICIENTS = dict(
    A=Coefficient((30, 300, 3000), positive=True, slopes={"n_active": ("alpha", -1)}),
    B=Coefficient((30, 300, 3000), positive=True, slopes={"n_tokens": ("beta", -1)}),
    E=Coefficient((0.5, 1, 2), positive=True, bounds=(-30, 7), identified_by={"n_active": 10, "n_tokens": 10}),
    alpha=Coefficient((0.05, 0.25, 0.5)),
    beta=Coefficient((0.05, 0.25, 0.5)),
)
FLOOR = "E"


def log_reducible_loss(xp: ModuleType, c: ByName, x: ByName) -> Array:
    """ln of A / N^alpha + B / D^beta, the loss above the floor."""
    size = c["ln A"] - c["alpha"] * x["ln n_active"]
    data = c["ln B"] - c["beta"] * x["ln n_tokens"]
    return xp.logaddexp(size, data)


def log_loss(xp: ModuleType, c: ByName, x: ByName) -> Array:
    """ln L of coefficients c and columns x by name."""
    return xp.logaddexp(log_reducible_loss(xp, c, x), c["ln E"])


# The same for the planner page: c and x by name, numbers.
JAVASCRIPT = """{
  log_reducible_loss(c, x) {
    return logaddexp(c["ln A"] - c.alpha * x["ln n_active"], c["ln B"] - c.beta * x["ln n_tokens"]);
  },
  log_loss(c, x) {
    return logaddexp(FORMULAS.chinchilla.log_reducible_loss(c, x), c["ln E"]);
  },
  chinchilla_coefficients_at(c, n_experts) {
    return [c.A, -c.alpha, c.B, -c.beta, c.E];
  },
}"""


def chinchilla_coefficients_at(c: ByName, n_experts: Numbers) -> tuple[Numbers, ...]:
    """(m, mu, n, nu, c) of L = m N^mu + n D^nu + c; the same for every n_experts, which only gives the shape."""
    ones = np.ones_like(n_experts, dtype=float)
    return c["A"] * ones, -c["alpha"] * ones, c["B"] * ones, -c["beta"] * ones, c["E"] * ones


def scaled_starts(rng: np.random.Generator, count: int, runs: Runs) -> dict[str, Array]:
    """As in the joint law: size, data and the floor E share the loss."""
    loss = np.exp(np.mean(np.log(runs.loss)))
    floor = rng.uniform(0.2, 0.95, count) * runs.loss.min()
    size = rng.uniform(0.1, 0.9, count)
    alpha, beta = np.exp(rng.uniform(np.log(0.05), np.log(0.6), (2, count)))
    return {
        "ln A": np.log((loss - floor) * size),
        "ln B": np.log((loss - floor) * (1 - size)),
        "ln E": np.log(floor),
        "alpha": alpha,
        "beta": beta,
    }


# Eq. 1.5 of Kaplan et al. 2020, ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D, with the numbers of Eq. 1.1 and 1.2.
_KAPLAN = dict(A=8.8e13 ** (0.076 / 0.095), B=5.4e13, E=1e-12, alpha=0.076 / 0.095, beta=1.0, k=0.095)
COUPLED_PRESETS = {
    "kaplan-2020": dict(
        coefficients=_KAPLAN,
        source="Kaplan et al. 2020, arXiv 2001.08361, Eq. 1.1, 1.2 and 1.5",
        note="no floor; its N leaves the embedding out, its D is the text there is, read until the loss stops falling",
        counts="without embedding",
        no_draws="no table of its runs is public",
    )
}
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
        counts="without embedding",
        no_draws="no table of its runs is public",
    ),
}
