"""How a law counts the models of an architecture: with the vocabulary of its own runs, or without embedding and head.

Embedding and head grow with the vocabulary and the loss hardly changes, so a law says what a model's blocks are worth
beside the embedding that its own runs had. What a model costs follows from its real vocabulary.
"""

import dataclasses

import numpy as np

from fit.aliases import Array, Json, Numbers
from fit.data.table import Table
from fit.fitted_law.law import Law, outside_range
from fit.fitted_law.table_architecture import positive_numbers
from fit.shape import hardware
from fit.shape.architecture import PAPER, Architecture

COUNTS = ("n_active", "n_total")


def own_vocabulary(law: Law) -> int | None:
    """The vocabulary of the law's runs; of a published law that does not say it, the one that plans assume.

    None where nobody knows it: models are then counted as they are.
    """
    own = law.models["vocab_size"]
    if own is None and law.published:
        return PAPER.vocab_size
    return own


def counted_as_they_are(law: Law) -> list[int]:
    """Vocabularies that are the law's own, too: all that its runs had, and its own with padding."""
    own = own_vocabulary(law)
    of_runs = [round(size) for size in (law.models["differing"] or {}).get("vocab_size", ())]
    return of_runs if own is None else [*of_runs, own, hardware.padded(own)]


def seen_by(law: Law, architecture: Architecture) -> Architecture:
    """The architecture with the vocabulary that the law counts."""
    own = own_vocabulary(law)
    if own is None or architecture.vocab_size in counted_as_they_are(law):
        return architecture
    return dataclasses.replace(architecture, vocab_size=own)


def foreign_rows(law: Law, architecture: Architecture) -> int:
    """Rows of embedding and head beyond those that the law counts them with; negative where they are fewer."""
    return architecture.embedding_and_head_rows - seen_by(law, architecture).embedding_and_head_rows


def uncounted_rows(law: Law, architecture: Architecture) -> int:
    """Rows of embedding and head that the law does not count: all of them, or the foreign ones."""
    if law.counts_embedding:
        return foreign_rows(law, architecture)
    return architecture.embedding_and_head_rows


def size(law: Law, architecture: Architecture, n_active: Numbers, d_model: Numbers) -> Numbers:
    """Active parameters with embedding and head, as many as the blocks would have with the law's own vocabulary."""
    return n_active - foreign_rows(law, architecture) * d_model


def size_at(law: Law, architecture: Architecture, n_active: Numbers, n_experts: Numbers) -> Numbers:
    """As `size`, of models with the architecture's own width at their size."""
    if foreign_rows(law, architecture) == 0:
        return n_active
    return size(law, architecture, n_active, architecture.d_model(n_active, n_experts))


def has_closed_form(law: Law, architecture: Architecture) -> bool:
    """Whether models of the architecture have a best size in closed form: the law has, and counts what they have."""
    return law.closed_form and foreign_rows(law, architecture) == 0


def columns_of_table(law: Law, table: Table, columns: dict[str, Array]) -> dict[str, Array]:
    """Columns of a table of models, with the parameters that their blocks would have with the law's own vocabulary.

    Args:
      law: What predicts their losses.
      table: The models; unless vocab_size and d_model are known of all, their parameters stay as they are.
      columns: {column: values [n]} that the law reads.
    """
    is_known = law.counts_embedding and law.models["vocab_size"] is not None
    vocabularies = positive_numbers(table, "vocab_size")
    widths = positive_numbers(table, "d_model")
    if not is_known or vocabularies is None or widths is None:
        return columns
    tied = [str(value).lower() in ("true", "1") for value in table.columns.get("tied_embeddings", [""] * len(table))]
    foreign = np.zeros(len(table))
    for i, (vocab_size, is_tied) in enumerate(zip(vocabularies, tied, strict=True)):
        foreign[i] = foreign_rows(law, Architecture(vocab_size=round(vocab_size), tied=is_tied)) * widths[i]
    return {name: values - foreign if name in COUNTS else values for name, values in columns.items()}


def shape_outside(law: Law, architecture: Architecture, d_model: float, n_blocks: float) -> list[Json]:
    """Width and depth outside those of the law's runs, as Law.extrapolation lists values."""
    if not law.shape_ranges and architecture.width_per_block == law.models["width_per_block"]:
        return []  # then width and depth follow from the size, and n_active says it
    values = dict(d_model=d_model, n_blocks=n_blocks)
    rows = [outside_range(name, values[name], *ends) for name, ends in shape_ranges(law).items()]
    return [row for row in rows if row is not None]


def shape_ranges(law: Law) -> dict[str, tuple[float, float]]:
    """{d_model and n_blocks: their ends in the law's runs}, where these are known.

    Runs of one width per block, whose table has no widths, had those that follow from their sizes.
    """
    if law.shape_ranges:
        return law.shape_ranges
    own = law.models["width_per_block"]
    sizes = law.ranges.get("n_active")
    is_known = own is not None and law.models["vocab_size"] is not None and law.counts_embedding
    if not is_known or sizes is None:
        return {}
    low, high = (float(law.architecture.d_model(end)) for end in sizes)
    return dict(d_model=(low, high), n_blocks=(low / own, high / own))
