"""The law of five factors of a mixture, Zhao et al. (2025, arXiv 2509.23678).

  L = (e G + f / G + m S^2 + n S) (1 / N^alpha + k / Na^alpha + h Na / N)
      + a / N^alpha + b / D^beta + c / Na^alpha + epsilon

L is the loss in nats per token, N = n_total, Na = n_active, D = n_tokens, G = top_k, the experts that a token uses,
shared ones included, and S = shared_share, the share of those that every token uses. epsilon is the irreducible loss.

The best G is sqrt(f / e) and the best S is -n / (2 m), whatever the size and the tokens.
"""

from types import ModuleType

from fit.aliases import Array, ByName
from fit.form import Coefficient

COLUMNS = ("n_active", "n_total", "n_tokens", "top_k", "shared_share")
# Starts: ours, around the printed values, 2^7 = 128. Only D can be centred: no entry of `params` can absorb a change of
# the unit of N in n N^-alpha, for n is negative.
COEFFICIENTS = dict(
    e=Coefficient((0.1,), positive=True),
    f=Coefficient((2, 10), positive=True),
    m=Coefficient((5,), positive=True),
    n=Coefficient((-3.0,)),
    k=Coefficient((0.01,), positive=True),
    h=Coefficient((0.01, 0.1), positive=True),
    a=Coefficient((30, 300), positive=True),
    b=Coefficient((300, 30000), positive=True, slopes={"n_tokens": ("beta", -1)}),
    c=Coefficient((30,), positive=True),
    epsilon=Coefficient((0.5, 1.8), positive=True, bounds=(-30, 7), identified_by={"n_total": 10, "n_tokens": 10}),
    alpha=Coefficient((0.2, 0.4)),
    beta=Coefficient((0.3, 0.5)),
)


def log_loss(xp: ModuleType, c: ByName, x: ByName) -> Array:
    """ln L of coefficients c and columns x by name: the logarithm of the sum, for the first factor may be negative."""
    g = x["top_k"]
    s = x["shared_share"]
    total = xp.exp(-c["alpha"] * x["ln n_total"])
    active = xp.exp(-c["alpha"] * x["ln n_active"])
    structure = c["e"] * g + c["f"] / g + c["m"] * s**2 + c["n"] * s
    loss = structure * (total + c["k"] * active + c["h"] * xp.exp(x["ln n_active"] - x["ln n_total"]))
    data = xp.exp(c["ln b"] - c["beta"] * x["ln n_tokens"])
    return xp.log(xp.maximum(loss + c["a"] * total + data + c["c"] * active + c["epsilon"], 1e-300))


# The same for the planner page: c and x by name, numbers.
JAVASCRIPT = """{
  log_loss(c, x) {
    const [g, s] = [x.top_k, x.shared_share];
    const total = Math.exp(-c.alpha * x["ln n_total"]);
    const active = Math.exp(-c.alpha * x["ln n_active"]);
    const structure = c.e * g + c.f / g + c.m * s ** 2 + c.n * s;
    const mixture = structure * (total + c.k * active + c.h * Math.exp(x["ln n_active"] - x["ln n_total"]));
    const data = Math.exp(c["ln b"] - c.beta * x["ln n_tokens"]);
    return Math.log(Math.max(mixture + c.a * total + data + c.c * active + c.epsilon, 1e-300));
  },
}"""


_PRINTED = dict(e=0.1577, f=7.2446, m=5.1395, n=-3.2363, k=0.0013, h=0.0450)
_PRINTED |= dict(a=38.051, b=27129.05, c=31.096, epsilon=1.8182, alpha=0.2383, beta=0.4694)
_RANGES = dict(
    n_active=[3e7, 2.2e9], n_total=[1.33e8, 3.4e9], n_tokens=[1e10, 5e10], top_k=[1, 20], shared_share=[0, 0.7]
)
PRESETS = {
    "comprehensive-2025": dict(
        coefficients=_PRINTED,
        source="Zhao et al. 2025, arXiv 2509.23678",
        note="whether its N leaves the embedding out is not known; a dense model is read off at Na = N",
        runs=dict(ranges=_RANGES),
        no_draws="no table of its runs is public",
    )
}
