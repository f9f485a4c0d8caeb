"""Models of an architecture, in real numbers, as a law reads them: their columns and losses."""

from fit.aliases import Array, ByName, Numbers
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture


def closed_form_holds_for(law: Law, architecture: Architecture) -> bool:
    """Whether the best size has a closed form: the law's does, and it counts all parameters of the architecture."""
    return law.reduces_to_chinchilla and law.counting.extra_rows(architecture) == 0


def loss_of_sizes(
    law: Law,
    architecture: Architecture,
    n_experts: Numbers,
    n_active: Numbers,
    n_tokens: Numbers,
    coefficients: ByName | None = None,
) -> Array:
    """Loss of models of an architecture in real numbers of parameters, in nats per token, whatever the law reads.

    It applies where no shape is known: n_active has the architecture's own vocabulary, and the width follows from it.
    For shapes of whole blocks, whose vocabulary may be padded, see model_grid.loss_of_shapes.

    Args:
      n_experts, n_active, n_tokens: of the models; they broadcast together.
      coefficients: by name, in place of the law's.
    """
    coefficients = coefficients or law.coefficients
    if closed_form_holds_for(law, architecture):
        return law.chinchilla_coefficients_at(n_experts, coefficients).loss(n_active, n_tokens)
    d_model = architecture.d_model(n_active, n_experts)
    return law.loss(coefficients, columns_of(law, architecture, d_model, n_experts, n_tokens))


def columns_of(
    law: Law, architecture: Architecture, d_model: Numbers, n_experts: Numbers, n_tokens: Numbers
) -> dict[str, Numbers]:
    """The columns that the law reads of such models.

    Raises:
      UserError: where the law reads a column that no architecture determines.
    """
    counted = law.counting.with_vocabulary(architecture)
    known = counted.columns(d_model, n_experts, law.counts_embedding) | dict(n_tokens=n_tokens)
    unknown = [name for name in law.form.columns if name not in known]
    if unknown:
        raise UserError(
            f"--law={law.name}: the {law.form.name} law reads {', '.join(unknown)}, which a plan's models do not have"
        )
    return {name: known[name] for name in law.form.columns}
