"""What of a planned model lies outside the runs that its law was fitted to."""

from fit.aliases import Json
from fit.fitted_law.law import Law
from fit.shape.architecture import Architecture


def extrapolation_of(
    law: Law,
    architecture: Architecture,
    n_experts: float,
    n_active: float,
    n_tokens: float,
    n_total: float | None = None,
    d_model: float = 0.0,
) -> list[Json]:
    """The model's values outside what the law was fitted to, as Law.extrapolation lists them.

    Args:
      law: The law that plans.
      architecture: How the model is built.
      n_experts: As the law counts them.
      n_active: Active parameters, with embedding and head.
      n_tokens: Training tokens.
      n_total: All parameters, with embedding and head; None where they do not matter.
      d_model: Width; needed beside n_total.
    """
    if n_total and not law.counts_embedding:
        n_total -= d_model * architecture.embedding_and_head_rows
    structure = architecture.structure(n_experts) | dict(n_total=n_total, n_active=n_active)
    return law.extrapolation(n_tokens=n_tokens, **structure)
