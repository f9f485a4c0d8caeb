"""Text that is read several times, by the law of Muennighoff et al. 2023 (arXiv 2305.16264), Eq. 5 and App. A.

A repeated token, or a parameter beyond those that the unique tokens call for, is worth less than the one before:

  D' = U_D + U_D R_D* (1 - exp(-R_D / R_D*)),  U_D = min(D, unique tokens),       R_D = D / U_D - 1
  N' = U_N + U_N R_N* (1 - exp(-R_N / R_N*)),  U_N = min(N, best size for U_D),   R_N = N / U_N - 1

The law then reads N' and D' in place of N and D. Its constants were fitted to dense models of 7M to 9B parameters on up
to 500 epochs of text; nobody has published them for mixtures, whose active parameters take the place of N.
"""

import dataclasses

import numpy as np

from fit.aliases import Array, ByName, Numbers
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.form import Reduced
from fit.messages import sentences

R_D = 15.387756
R_N = 5.309743
SOURCE = "Muennighoff et al. 2023, arXiv 2305.16264, App. A; fitted on dense models"


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Repeated(Law):
    """A law of text that is read several times.

    Attributes:
      fresh: The same law for text that is read once.
      unique_tokens: Tokens of the text.
    """

    fresh: Law
    unique_tokens: float

    def loss(self, coefficients: ByName, columns: ByName) -> Array:
        """Loss in nats per token; all arguments broadcast together."""
        n_active = np.asarray(columns.get("n_active", 1.0), float)
        n_tokens = np.asarray(columns.get("n_tokens", 1.0), float)
        n_experts = np.asarray(columns.get("n_experts", 1.0), float)
        reduced = self.fresh.chinchilla_coefficients_at(n_experts, coefficients)
        return reduced.loss(*self.effective(reduced, n_active, n_tokens))

    def effective(self, reduced: Reduced, n_active: Numbers, n_tokens: Numbers) -> tuple[Array, Array]:
        """(N', D'), what size and tokens are worth. `reduced`: the law at a number of experts. All broadcast."""
        m, mu, n, nu = reduced[:4]
        unique = np.minimum(n_tokens, self.unique_tokens)
        with np.errstate(all="ignore"):  # where a draw of the bootstrap has no optimum, no parameter is in excess
            best = (n * nu * unique**nu / (m * mu)) ** (1 / mu)
            needed = np.fmin(n_active, np.where((mu < 0) & (nu < 0), best, np.inf))
        return _worth(n_active, needed, R_N), _worth(n_tokens, unique, R_D)


def _worth(amount: Numbers, unique: Numbers, decay: float) -> Array:
    """The worth of an amount of which `unique` is not repeated: N' or D' of the docstring above."""
    return unique * (1 - decay * np.expm1((1 - amount / unique) / decay))


def of_law(law: Law, unique_tokens: float) -> Repeated:
    """The Repeated law; UserError where `law` is no Chinchilla law at each number of experts, or counts otherwise than
    a plan."""
    law.check_plannable()
    if not law.form.chinchilla_coefficients_at:
        raise UserError(sentences.NO_REPEATS.format(form=law.form.name))
    if not law.counts_embedding:
        raise UserError(sentences.REPEATS_OWN_COUNTS.format(law=law.name))
    values = {field.name: getattr(law, field.name) for field in dataclasses.fields(law)}
    values["form"] = law.form.of_loss_alone()
    return Repeated(**values, fresh=law, unique_tokens=unique_tokens)
