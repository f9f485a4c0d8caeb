"""The law of sparse mixtures at a number of total parameters, Abnar et al. (2025, arXiv 2501.12370).

  L = a / N^alpha + b / D^beta + c / (1 - S)^lam + d / ((1 - S)^delta N^gamma) + e

L is the loss in nats per token, N = n_total, D = n_tokens, S = sparsity: the share of a layer's experts that a token
does not use. e is the irreducible loss. The paper writes lambda for lam; it is negative, so that the third term falls
with S.

Over N and S together the loss has no interior minimum: at any budget it falls on as S goes to 1 and N grows. A plan
needs a limit on the number of experts (the paper's data end at S = 0.98, 50 experts) or on memory.
"""

from types import ModuleType

import numpy as np

from fit.aliases import Array, ByName
from fit.form import Coefficient
from fit.table.runs import Runs

COLUMNS = ("n_total", "n_tokens", "sparsity")
# Starts: the paper's, 3^4 6^3 5^2 = 437,400.
_SIZES = np.exp((0, 10, 20))
_EXPONENTS = (0, 0.25, 0.5, 0.75, 1, 1.25)
_SHIFTS = (-1, -0.5, 0, 0.5, 1)
COEFFICIENTS = dict(
    a=Coefficient(_SIZES, positive=True, slopes={"n_total": ("alpha", -1)}),
    b=Coefficient(_SIZES, positive=True, slopes={"n_tokens": ("beta", -1)}),
    c=Coefficient(_SIZES, positive=True),
    d=Coefficient(_SIZES, positive=True, slopes={"n_total": ("gamma", -1)}),
    e=Coefficient((np.exp(1.5),), positive=True, bounds=(-30, 7), identified_by={"n_total": 10, "n_tokens": 10}),
    alpha=Coefficient(_EXPONENTS),
    beta=Coefficient(_EXPONENTS),
    lam=Coefficient(_SHIFTS),
    delta=Coefficient(_SHIFTS),
    gamma=Coefficient(_EXPONENTS),
)


def log_loss(xp: ModuleType, c: ByName, x: ByName) -> Array:
    """ln L of coefficients c and columns x by name."""
    used = xp.log1p(-x["sparsity"])
    size = c["ln a"] - c["alpha"] * x["ln n_total"]
    data = c["ln b"] - c["beta"] * x["ln n_tokens"]
    sparse = c["ln c"] - c["lam"] * used
    both = c["ln d"] - c["delta"] * used - c["gamma"] * x["ln n_total"]
    return xp.logaddexp(xp.logaddexp(size, data), xp.logaddexp(xp.logaddexp(sparse, both), c["ln e"]))


# The same for the planner page: c and x by name, numbers.
JAVASCRIPT = """{
  log_loss(c, x) {
    const used = Math.log1p(-x.sparsity);
    const size = c["ln a"] - c.alpha * x["ln n_total"];
    const data = c["ln b"] - c.beta * x["ln n_tokens"];
    const sparse = c["ln c"] - c.lam * used;
    const both = c["ln d"] - c.delta * used - c.gamma * x["ln n_total"];
    return logaddexp(logaddexp(size, data), logaddexp(logaddexp(sparse, both), c["ln e"]));
  },
}"""


def scaled_starts(rng: np.random.Generator, count: int, runs: Runs) -> dict[str, Array]:
    """Scaled to the runs: the five terms share the loss at the mean run."""
    loss = np.exp(np.mean(np.log(runs.loss)))
    used = np.mean(np.log1p(-runs.columns["sparsity"]))
    a, b, c, d, e = np.log(np.maximum(rng.dirichlet((1, 1, 1, 1, 2), count).T, 1e-3) * loss)
    alpha, beta, gamma = np.exp(rng.uniform(np.log(0.05), np.log(0.8), (3, count)))
    lam = rng.uniform(-0.4, 0.1, count)
    delta = rng.uniform(-0.3, 0.3, count)
    terms = {"ln a": a, "ln b": b, "ln c": c + lam * used, "ln d": d + delta * used, "ln e": e}
    return terms | dict(alpha=alpha, beta=beta, lam=lam, delta=delta, gamma=gamma)


_PRINTED = dict(a=16612.50, b=5455.67, c=0.4598, d=17.26, e=0.94)
_PRINTED |= dict(alpha=0.5962, beta=0.3954, lam=-0.1666, delta=0.1603, gamma=0.1595)
PRESETS = {
    "sparsity-2025": dict(
        coefficients=_PRINTED,
        source="Abnar et al. 2025, arXiv 2501.12370, section 5",
        note="its N is all parameters; its training FLOPs are the paper's own count, not 6 N D",
        # the smallest and largest N are in figures only
        runs=dict(ranges=dict(sparsity=[0, 0.98], training_flops=[3e19, 1e21])),
        models=dict(vocab_size=50432, seq_len=2048, n_experts=[1, 2, 4, 10, 20, 50]),
        no_draws="no table of its runs is public",
    )
}
