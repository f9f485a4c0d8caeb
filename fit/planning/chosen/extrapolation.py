"""The parts of a planned model that lie outside the runs of its law."""

from fit.aliases import Json
from fit.fitted_law import law_counts
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture


def extrapolation_of(
    law: Law,
    architecture: Architecture,
    n_experts: float,
    n_active: float,
    n_tokens: float,
    n_total: float | None = None,
    shape: tuple[float, float] | None = None,
) -> list[Json]:
    """The model's values outside what the law was fitted to, as Law.extrapolation lists them.

    Parameters and FLOPs are those that the blocks would have with the law's own vocabulary.

    Args:
      law: The law that plans.
      architecture: How the model is built.
      n_experts: As the law counts them.
      n_active: Active parameters, with embedding and head.
      n_tokens: Training tokens.
      n_total: All parameters, with embedding and head; None takes those of the architecture's models of this size.
      shape: (d_model, n_blocks); None takes those of the architecture's models of this size.
    """
    if shape is None:
        width = float(architecture.d_model(n_active, n_experts))
        shape = (width, width / architecture.width_per_block)
    d_model, n_blocks = shape
    columns = law_counts.ranged_columns(law, architecture, n_active, n_experts, d_model, n_total)
    outside = law.extrapolation(n_tokens=n_tokens, **columns)
    return [*outside, *law_counts.shape_outside(law, architecture, d_model, n_blocks)]
