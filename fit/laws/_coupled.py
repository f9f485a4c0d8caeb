"""Size and data coupled: what any additive law becomes with one exponent around the two.

  L = (size + data)^k + c,  0 < k <= 1

With k = 1 it is the additive law, by which more tokens lower the loss of models of all sizes alike. With k < 1 they
lower that of larger models more. For dense models: Kaplan et al. 2020 (arXiv 2001.08361), Eq. 1.5, without c; Skaling
(arXiv 2608.07222) with it, k 0.31 to 0.45. For given coefficients (size + data)^k grows with size + data: the best
model under any limits is that of size + data alone.

Additive laws with the same floor hardly differ from coupled ones in the range of the runs, and beyond it they are too
high (benchmarks/README.md). Small tables leave k open: PRIOR keeps it near one half there.
"""

import types
from types import ModuleType

import numpy as np

from fit.aliases import Array, ByName, Numbers
from fit.form import Coefficient
from fit.table.runs import Runs

SUFFIX = "_coupled"
# of ln(1/k - 1), normal: k from 0.22 to 0.78 with 80%. The public tables of benchmarks/extrapolation.py have 0.24 to 1.
PRIOR = (0.0, 1.0)
K = Coefficient(
    (0.3, 0.6, 0.9), share=True, bounds=(-40, 4), prior=PRIOR, identified_by={"n_active": 10, "n_tokens": 10}
)


def coupled(page: ModuleType) -> types.SimpleNamespace:
    """The page of the coupled law of an additive one.

    Args:
      page: declares log_reducible_loss(xp, c, x), ln of size + data, and FLOOR, the name of its c.
    """

    def log_loss(xp: ModuleType, c: ByName, x: ByName) -> Array:
        """ln L of coefficients c and columns x by name."""
        return xp.logaddexp(c["k"] * page.log_reducible_loss(xp, c, x), c[f"ln {page.FLOOR}"])

    def chinchilla_coefficients_at(c: ByName, n_experts: Numbers) -> tuple[Numbers, ...]:
        """(m, mu, n, nu, c, k) of L = (m N^mu + n D^nu)^k + c."""
        return (*page.chinchilla_coefficients_at(c, n_experts), c["k"])

    def scaled_starts(rng: np.random.Generator, count: int, runs: Runs) -> dict[str, Array]:
        """Those of the additive law, with each term of size and data about its power 1 / k.

        A mean run keeps about its loss for any k, but for what the additive start takes off a coefficient for the
        experts, granularity or sparsity of the runs: it is for exponents that are not yet divided by k.
        """
        drawn = page.scaled_starts(rng, count, runs)
        k = rng.uniform(0.25, 1, count)
        log_reducible = np.log(np.exp(np.mean(np.log(runs.loss))) - np.exp(drawn[f"ln {page.FLOOR}"]))
        shift = {f"ln {name}" for name, c in page.COEFFICIENTS.items() if c.positive and c.slopes}
        steeper = {name for name, c in page.COEFFICIENTS.items() if not c.positive and not c.above}
        for name, values in drawn.items():
            if name in shift:
                values = values + (1 / k - 1) * log_reducible
            if name in steeper:
                values = values / k
            drawn[name] = values
        return drawn | {"ln(1 / k - 1)": np.log(1 / k - 1)}

    additive = page.__name__.rpartition(".")[2]
    separate = getattr(page, "SEPARATE", None)
    if separate:
        separate = separate | dict(form=separate["form"] + SUFFIX, names=separate["names"] | dict(k=("k", 1)))
    declared = dict(
        NAME=additive + SUFFIX,
        COEFFICIENTS=page.COEFFICIENTS | dict(k=K),
        PRESETS=getattr(page, "COUPLED_PRESETS", {}),
        SEPARATE=separate,
        log_loss=log_loss,
    )
    if hasattr(page, "chinchilla_coefficients_at"):
        declared["chinchilla_coefficients_at"] = chinchilla_coefficients_at
    if hasattr(page, "scaled_starts"):
        declared["scaled_starts"] = scaled_starts
    if hasattr(page, "JAVASCRIPT"):
        declared["JAVASCRIPT"] = _javascript(page, additive)
    return types.SimpleNamespace(**vars(page) | declared)


def _javascript(page: ModuleType, additive: str) -> str:
    """The coupled law for the planner page, by the formulas of the additive one, whose page is named `additive`."""
    closed_form = f"""
  chinchilla_coefficients_at(c, n_experts) {{
    return [...FORMULAS.{additive}.chinchilla_coefficients_at(c, n_experts), c.k];
  }},"""
    if not hasattr(page, "chinchilla_coefficients_at"):
        closed_form = ""
    return f"""{{
  log_loss(c, x) {{
    return logaddexp(c.k * FORMULAS.{additive}.log_reducible_loss(c, x), c["ln {page.FLOOR}"]);
  }},{closed_form}
}}"""
