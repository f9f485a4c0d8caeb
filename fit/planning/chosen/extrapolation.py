"""The parts of a planned model that lie outside the runs of its law."""

from fit.aliases import Json
from fit.fitted_law import law_counts
from fit.planning.inputs.problem import Problem


def extrapolation_of(
    problem: Problem,
    n_experts: float,
    n_active: float,
    n_tokens: float,
    n_total: float | None = None,
    shape: tuple[float, float] | None = None,
) -> list[Json]:
    """The model's values outside what the law was fitted to, as Law.extrapolation lists them.

    Parameters and FLOPs are those that the blocks would have with the law's own vocabulary.

    Args:
      problem: With the law, and how the model is built.
      n_experts: As the law counts them.
      n_active: Active parameters, with embedding and head.
      n_tokens: Training tokens.
      n_total: All parameters, with embedding and head; None where they do not matter.
      shape: (d_model, n_blocks); None takes those of the architecture's models of this size.
    """
    law = problem.law
    architecture = problem.architecture
    if shape is None:
        width = float(architecture.d_model(n_active, n_experts))
        shape = (width, width / architecture.width_per_block)
    d_model, n_blocks = shape
    if n_total:
        n_total -= d_model * law_counts.uncounted_rows(law, architecture)
    counted = law_counts.counted_n_active(law, architecture, n_active, d_model)
    structure = architecture.structure(n_experts) | dict(n_total=n_total, n_active=counted)
    outside = law.extrapolation(n_tokens=n_tokens, **structure)
    return [*outside, *law_counts.shape_outside(law, architecture, d_model, n_blocks)]
