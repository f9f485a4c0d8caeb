"""The law of fine-grained mixtures, Krajewski et al. (2024, arXiv 2402.07871).

  L = c + (g / G^gamma + a) / N^alpha + b / D^beta

L is the loss in nats per token, N = n_total without embedding and head, D = n_tokens, G = granularity: how many times
narrower an expert is than the dense feed-forward layer; a token uses as many times more experts. c is the irreducible
loss. The number of experts is not in the law: all its mixtures have 64 times the dense layer's weights. The dense
models of the same paper follow the dense law, `fine-grained-dense-2024`.

That N counts all experts is inferred: with N as 43 times the active parameters (64 experts over 12 d^2 weights a block)
the law gives the paper's printed losses within 0.9%, and the sizes of its runs, 129M to 3.7B, are 43 times its 3M to
86M of active parameters. The ranges are those that summaries of the paper give: G from 1 to 16, N without the
embedding, 16B to 130B tokens.
"""

from types import ModuleType

import numpy as np

from fit.aliases import Array, ByName
from fit.form import Coefficient
from fit.table.runs import Runs

COLUMNS = ("n_total", "n_tokens", "granularity")
# Starts: ours, 2^2 3^5 = 972.
COEFFICIENTS = dict(
    a=Coefficient((3, 30, 300), positive=True, slopes={"n_total": ("alpha", -1)}),
    b=Coefficient((3, 30, 300), positive=True, slopes={"n_tokens": ("beta", -1)}),
    c=Coefficient((0.5, 1, 2), positive=True, bounds=(-30, 7), identified_by={"n_total": 10, "n_tokens": 10}),
    g=Coefficient((0.5, 5), positive=True, slopes={"n_total": ("alpha", -1)}),
    alpha=Coefficient((0.05, 0.25, 0.5)),
    beta=Coefficient((0.05, 0.25, 0.5)),
    gamma=Coefficient((0.3, 1.0)),
)


def log_loss(xp: ModuleType, c: ByName, x: ByName) -> Array:
    """ln L of coefficients c and columns x by name."""
    size = xp.logaddexp(c["ln a"], c["ln g"] - c["gamma"] * x["ln granularity"]) - c["alpha"] * x["ln n_total"]
    return xp.logaddexp(xp.logaddexp(size, c["ln b"] - c["beta"] * x["ln n_tokens"]), c["ln c"])


# The same for the planner page: c and x by name, numbers.
JAVASCRIPT = """{
  log_loss(c, x) {
    const granular = c["ln g"] - c.gamma * x["ln granularity"];
    const size = logaddexp(c["ln a"], granular) - c.alpha * x["ln n_total"];
    const data = c["ln b"] - c.beta * x["ln n_tokens"];
    return logaddexp(logaddexp(size, data), c["ln c"]);
  },
}"""


def scaled_starts(rng: np.random.Generator, count: int, runs: Runs) -> dict[str, Array]:
    """Scaled to the runs: size, granularity, data and the floor c share the loss at the mean run."""
    loss = np.exp(np.mean(np.log(runs.loss)))
    terms = np.log(np.maximum(rng.dirichlet((1, 0.3, 1, 2), count).T, 1e-3) * loss)
    alpha, beta = np.exp(rng.uniform(np.log(0.05), np.log(0.6), (2, count)))
    gamma = rng.uniform(0.2, 1.5, count)
    terms[1] += gamma * np.mean(np.log(runs.columns["granularity"]))
    return dict(zip(("ln a", "ln g", "ln b", "ln c"), terms, strict=True)) | dict(alpha=alpha, beta=beta, gamma=gamma)


PRESETS = {
    "fine-grained-2024": dict(
        coefficients=dict(a=18.1, b=30.8, c=0.47, g=2.1, alpha=0.115, beta=0.147, gamma=0.58),
        source="Krajewski et al. 2024, arXiv 2402.07871, the law of mixtures",
        note="its N is all experts without the embedding (inferred); every mixture has 64 experts' weights",
        counts="without embedding",
        dense="fine-grained-dense-2024",
        fixed=("n_experts",),
        no_draws="no table of its runs is public",
        runs=dict(
            ranges=dict(n_experts=[64, 64], granularity=[1, 16], n_total=[1.29e8, 3.7e9], n_tokens=[1.6e10, 1.3e11])
        ),
        models=dict(n_experts=[64]),
    )
}
