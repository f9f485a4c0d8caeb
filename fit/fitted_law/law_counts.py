"""Models of real size as a law reads them: their counts, columns and losses.

A law counts parameters with the vocabulary of its runs, or without embedding and head.

A larger vocabulary has a larger embedding and head, but hardly another loss. So a law predicts a model as if it had the
vocabulary of the law's runs. The cost of a model follows from its real vocabulary.
"""

import dataclasses

import numpy as np

from fit.aliases import Array, ByName, Json, Numbers, Opt
from fit.errors import UserError
from fit.fitted_law.law import Law, outside_range
from fit.fitted_law.table_architecture import are_tied, positive_numbers
from fit.model import hardware
from fit.model.architecture import PAPER, Architecture
from fit.table.column_guesses import is_without_embedding
from fit.table.table import Table

COUNTS = ("n_active", "n_total")


def law_vocabulary(law: Law) -> int | None:
    """The vocabulary of the law's runs, with which the law counts all models.

    Returns:
      Where a published law does not say it, the vocabulary that plans assume. None where it is not known: models are
      then counted as they are.
    """
    vocab_size = law.models.vocab_size
    if vocab_size is None and law.published:
        return PAPER.vocab_size
    return vocab_size


def counted_as_they_are(law: Law) -> list[int]:
    """Vocabularies with which models are counted as they are: those of the runs, and `law_vocabulary`, padded too."""
    of_runs = [round(float(size)) for size in law.models.differing.get("vocab_size", ())]
    vocab_size = law_vocabulary(law)
    if vocab_size is None:
        return of_runs
    return [*of_runs, vocab_size, hardware.padded(vocab_size)]


def with_law_vocabulary(law: Law, architecture: Architecture) -> Architecture:
    """The architecture with the vocabulary that the law counts."""
    vocab_size = law_vocabulary(law)
    if vocab_size is None or architecture.vocab_size in counted_as_they_are(law):
        return architecture
    return dataclasses.replace(architecture, vocab_size=vocab_size)


def extra_rows(law: Law, architecture: Architecture) -> int:
    """Rows of embedding and head beyond those that the law counts; negative where a model has fewer."""
    return architecture.embedding_and_head_rows - with_law_vocabulary(law, architecture).embedding_and_head_rows


def uncounted_rows(law: Law, architecture: Architecture) -> int:
    """Rows of embedding and head that the law does not count: the extra ones, or all if it counts neither matrix."""
    if law.counts_embedding:
        return extra_rows(law, architecture)
    return architecture.embedding_and_head_rows


def counted_n_active(law: Law, architecture: Architecture, n_active: Numbers, d_model: Numbers) -> Numbers:
    """Active parameters of models as if they had the law's vocabulary; embedding and head included."""
    return n_active - extra_rows(law, architecture) * d_model


def ranged_columns(
    law: Law,
    architecture: Architecture,
    n_active: Numbers,
    n_experts: Numbers,
    d_model: Opt = None,
    n_total: Opt = None,
) -> dict[str, Numbers]:
    """The columns by which `Law.inside` and `Law.extrapolation` tell models, all but their tokens.

    Args:
      law: of the ranges.
      architecture: how the models are built.
      n_active, n_experts: of the models, with embedding and head; experts as the law counts them.
      d_model, n_total: of the models; by default those of the architecture's models of this size.
    """
    if d_model is None:
        d_model = architecture.d_model(n_active, n_experts)
    if n_total is None:
        n_total = architecture.n_total(d_model, n_experts)
    counts = dict(
        n_active=counted_n_active(law, architecture, n_active, d_model),
        n_total=n_total - uncounted_rows(law, architecture) * d_model,
    )
    return architecture.structure(n_experts) | counts


def closed_form_holds_for(law: Law, architecture: Architecture) -> bool:
    """Whether the best size has a closed form: the law's does, and it counts all parameters of the architecture."""
    return law.reduces_to_chinchilla and extra_rows(law, architecture) == 0


def columns_of_table(law: Law, table: Table, columns: dict[str, Array]) -> dict[str, Array]:
    """Columns of a table of models, with their parameters counted as the law counts them: as if they had its
    vocabulary, or without embedding and head.

    Args:
      law: The law that predicts their losses.
      table: The models; unless vocab_size and d_model are known of all, their parameters stay as they are. Else they
        include embedding and head, unless their columns' names say otherwise.
      columns: {column: values [n]} that the law reads.
    """
    vocabularies = positive_numbers(table, "vocab_size")
    widths = positive_numbers(table, "d_model")
    if vocabularies is None or widths is None:
        return columns
    uncounted = np.zeros(len(table))  # of counts that include embedding and head
    left_out = np.zeros(len(table))  # by counts without them, of what the law counts
    for i, (vocab_size, is_tied) in enumerate(zip(vocabularies, are_tied(table), strict=True)):
        architecture = Architecture(vocab_size=round(vocab_size), tied=bool(is_tied))
        uncounted[i] = uncounted_rows(law, architecture) * widths[i]
        if law.counts_embedding:
            left_out[i] = with_law_vocabulary(law, architecture).embedding_and_head_rows * widths[i]
    counted = dict(columns)
    for name in columns.keys() & set(COUNTS):
        if is_without_embedding(table.names.get(name, name)):
            counted[name] = columns[name] + left_out
        else:
            counted[name] = columns[name] - uncounted
    return counted


def shape_outside(law: Law, architecture: Architecture, d_model: float, n_blocks: float) -> list[Json]:
    """The width and depth where they are outside those of the law's runs, each as a row of Law.extrapolation."""
    if not law.shape_ranges and architecture.width_per_block == law.models.width_per_block:
        return []  # width and depth follow from the size, whose range n_active shows
    values = dict(d_model=d_model, n_blocks=n_blocks)
    rows = [outside_range(name, values[name], *ends) for name, ends in shape_ranges(law).items()]
    return [row for row in rows if row is not None]


def shape_ranges(law: Law) -> dict[str, tuple[float, float]]:
    """The ranges of width and depth in the law's runs: {"d_model": (low, high), "n_blocks": (low, high)}.

    Where the table of runs has no widths, they follow from sizes and width per block. {} where neither is known.
    """
    if law.shape_ranges:
        return law.shape_ranges
    width_per_block = law.models.width_per_block
    sizes = law.ranges.get("n_active")
    has_vocabulary = law.models.vocab_size is not None and law.counts_embedding
    if width_per_block is None or sizes is None or not has_vocabulary:
        return {}
    low, high = (float(law.architecture.d_model(end)) for end in sizes)
    return dict(d_model=(low, high), n_blocks=(low / width_per_block, high / width_per_block))


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
    return law.loss(coefficients, model_columns(law, architecture, d_model, n_experts, n_tokens))


def model_columns(
    law: Law, architecture: Architecture, d_model: Numbers, n_experts: Numbers, n_tokens: Numbers
) -> dict[str, Numbers]:
    """The columns that the law reads of such models.

    Raises:
      UserError: where the law reads a column that no architecture determines.
    """
    counted = with_law_vocabulary(law, architecture)
    known = counted.columns(d_model, n_experts, law.counts_embedding) | dict(n_tokens=n_tokens)
    unknown = [name for name in law.form.columns if name not in known]
    if unknown:
        raise UserError(
            f"--law={law.name}: the {law.form.name} law reads {', '.join(unknown)}, which a plan's models do not have"
        )
    return {name: known[name] for name in law.form.columns}
