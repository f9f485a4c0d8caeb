"""The law of routed models at a fixed number of tokens, Clark et al. (2022, arXiv 2202.01169), Eq. 3 of
Ludziejewski et al.; no n_tokens column is needed.

  log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d,  Ê as in the joint law (Eq. 4)

L is the loss in nats per token, N = n_active, E = n_experts. All models must have seen the same number of tokens.
"""

from types import ModuleType

import numpy as np

from fit.aliases import Array, ByName, Numbers
from fit.form import Coefficient
from fit.laws.joint import log_expert_scale
from fit.table.runs import Runs

_LN10 = np.log(10.0)

COLUMNS = ("n_active", "n_experts")
COEFFICIENTS = dict(
    a=Coefficient((-0.2, -0.1, -0.05)),
    b=Coefficient((-0.2, -0.1, 0), slopes={"n_active": ("c", _LN10)}),
    c=Coefficient((-0.02, 0, 0.02)),
    d=Coefficient((0.8, 1.1, 1.4), bounds=(-100, 100), slopes={"n_active": ("a", _LN10)}),
    E_start=Coefficient(
        (1.5, 2, 4), positive=True, bounds=(-14, 14), identified_by={"n_experts": 0}, tried=(1e-5, 1e6)
    ),
    E_max=Coefficient((30.0, 150, 500), above="E_start", identified_by={"n_experts": 8}, tried=(1e-5, 1e12)),
)


def log_loss(xp: ModuleType, c: ByName, x: ByName) -> Numbers:
    """ln L of coefficients c and columns x by name: the law in natural logarithms."""
    e = log_expert_scale(xp, x["n_experts"], c["ln E_start"], c["ln(E_max / E_start - 1)"])
    return c["a"] * x["ln n_active"] + c["b"] * e + c["c"] * x["ln n_active"] * e / _LN10 + c["d"] * _LN10


def scaled_starts(rng: np.random.Generator, count: int, runs: Runs) -> dict[str, Array]:
    """Scaled to the runs: d such that the mean loss is right."""
    a = rng.uniform(-0.3, -0.02, count)
    b = rng.uniform(-0.3, 0.05, count)
    c = rng.uniform(-0.03, 0.03, count)
    log_start = rng.uniform(np.log(1.2), np.log(5), count)
    t = rng.uniform(1.5, 6, count)
    e = np.mean(log_expert_scale(np, runs.columns["n_experts"], log_start[:, None], t[:, None]), axis=1)
    d = (np.mean(np.log(runs.loss)) - b * e) / _LN10
    return {"a": a, "b": b, "c": c, "d": d, "ln E_start": log_start, "ln(E_max / E_start - 1)": t}


_PAPER = dict(
    source="Clark et al. 2022, arXiv 2202.01169, Table 3; every model saw 130B tokens",
    runs=dict(ranges=dict(n_active=[1.5e7, 1.3e9], n_experts=[1, 512])),
)
_S_BASE = dict(a=-0.082, b=-0.108, c=0.009, d=1.104, E_start=1.847, E_max=314.478)
_RL_R = dict(a=-0.083, b=-0.126, c=0.012, d=1.111, E_start=1.880, E_max=469.982)
_HASH = dict(a=-0.087, b=-0.136, c=0.012, d=1.157, E_start=4.175, E_max=477.741)
PRESETS = {
    "clark-2022-sbase": _PAPER | dict(coefficients=_S_BASE, note="S-BASE"),
    "clark-2022-rl": _PAPER | dict(coefficients=_RL_R, note="RL-R"),
    "clark-2022-hash": _PAPER | dict(coefficients=_HASH, note="HASH"),
}
