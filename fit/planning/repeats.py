"""Text that is read several times, by the law of Muennighoff et al. 2023 (arXiv 2305.16264), Eq. 5 and App. A.

A repeated token, or a parameter beyond those that the unique tokens call for, is worth less than the one before:

  D' = U_D + U_D R_D* (1 - exp(-R_D / R_D*)),  U_D = min(D, unique tokens),       R_D = D / U_D - 1
  N' = U_N + U_N R_N* (1 - exp(-R_N / R_N*)),  U_N = min(N, best size for U_D),   R_N = N / U_N - 1

The law then reads N' and D' in place of N and D. Its constants were fitted to dense models of 7M to 9B parameters on up
to 500 epochs of text; nobody has published them for mixtures, whose active parameters take the place of N.
"""

import dataclasses

import numpy as np

from fit.aliases import Array, ByName, Floats, Json, Numbers
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.form import Reduced
from fit.messages import sentences
from fit.planning import optimum
from fit.planning.constraints import Constraints
from fit.shape.architecture import Architecture

R_D, R_N = 15.387756, 5.309743
SOURCE = "Muennighoff et al. 2023, arXiv 2305.16264, App. A; fitted on dense models"


@dataclasses.dataclass(repr=False)
class Repeated(Law):
    """A law of text of which there are `unique_tokens`; `fresh` is the same law of text without end. On a plateau a
    plan's model is the smallest whose loss is within the share `slack` of the lowest; 0: the one of the lowest loss."""

    fresh: Law
    unique_tokens: float
    slack: float

    def loss(self, coefficients: ByName, columns: ByName) -> Array:
        """Loss in nats per token; all arguments broadcast together."""
        n_active, n_tokens, n_experts = (
            np.asarray(columns.get(name, 1.0), float) for name in ("n_active", "n_tokens", "n_experts")
        )
        reduced = self.fresh.chinchilla_coefficients_at(n_experts, coefficients)
        return reduced.loss(*self.effective(reduced, n_active, n_tokens))

    def effective(self, reduced: Reduced, n_active: Numbers, n_tokens: Numbers) -> tuple[Array, Array]:
        """(N', D') where the law is `reduced` to form.Reduced at a number of experts; all broadcast together."""
        m, mu, n, nu = reduced[:4]
        unique = np.minimum(n_tokens, self.unique_tokens)
        with np.errstate(all="ignore"):  # where a draw of the bootstrap has no optimum, no parameter is in excess
            best = (n * nu * unique**nu / (m * mu)) ** (1 / mu)
            needed = np.fmin(n_active, np.where((mu < 0) & (nu < 0), best, np.inf))
        return _worth(n_active, needed, R_N), _worth(n_tokens, unique, R_D)


def _worth(amount: Numbers, unique: Numbers, decay: float) -> Array:
    return unique * (1 - decay * np.expm1((1 - amount / unique) / decay))


def of_law(law: Law, unique_tokens: float, slack: float = optimum.NEAR) -> Repeated:
    """The Repeated law; UserError where `law` is no Chinchilla law at each number of experts, or counts otherwise than
    a plan."""
    law.check_plannable()
    if not law.form.chinchilla_coefficients_at:
        raise UserError(sentences.NO_REPEATS.format(form=law.form.name))
    if not law.counts_embedding:
        raise UserError(sentences.REPEATS_OWN_COUNTS.format(law=law.name))
    return Repeated(law.name, law.form.of_loss_alone(), law.coefficients, law.record, law, unique_tokens, slack)


def add_to(plan: Json, law: Repeated, architecture: Architecture, constraints: Constraints, experts: Floats) -> None:
    """Adds to a plan `repeats`: the constants, the unique tokens, for each optimum its epochs, what its tokens and
    parameters are worth, and how much better the best is than the best on a single epoch."""
    once = optimum.optima(law, architecture, dataclasses.replace(constraints, epochs=1.0), experts)
    rows = {}
    for row in plan["optima"]:
        reduced = law.fresh.chinchilla_coefficients_at(e := row["n_experts"])
        size, tokens = map(float, law.effective(reduced, row["n_active"], row["n_tokens"]))
        epochs = row["n_tokens"] / law.unique_tokens
        rows[e] = dict(n_experts=e, epochs=epochs, effective_n_active=size, effective_tokens=tokens)
    plan["repeats"] = dict(
        source=SOURCE,
        r_d=R_D,
        r_n=R_N,
        unique_tokens=law.unique_tokens,
        optima=list(rows.values()),
        best=rows[plan["best"]["n_experts"]],
        loss_saved=float(np.nanmin(once.loss)) - plan["best"]["loss"],
    )
    if plan["best"]["size_bound"] == "plateau":
        plan["warnings"].append(sentences.PLATEAU.format(near=law.slack))
    plan["warnings"].append(sentences.REPEATS_DENSE)
