"""The architecture of a table's models by its columns, or its overrides.

Axes: n runs of the table; m of them mixtures.
"""

import dataclasses
from typing import Any, Self

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.fitted_law import model_fields
from fit.fitted_law.architecture_ratios import BY_FIELDS, ArchitectureRatios
from fit.fitted_law.decoding import Invalid, fields_of
from fit.fitted_law.expert_widths import ExpertShares
from fit.fitted_law.model_fields import Columns, majority, numbers_of_mixtures
from fit.messages.finding import Finding
from fit.model.architecture import PAPER, ROUNDED, Architecture
from fit.table.table import Table

OFF = 0.02  # counts further off than this share are reported
SMALLEST_VOCABULARY = 64
# {ratio: (column, default)} of those that a table without columns of shapes may have
RATIO_COLUMNS = dict(top_k=("top_k", 1), shared=("n_shared_experts", 0), granularity=("granularity", 1))
WHOLE = ("top_k", "shared", "n_dense")  # ratios that are whole numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableArchitecture:
    """The architecture of a table's models, as far as its columns show it.

    Attributes:
      ratios: The ratios; the paper's where nothing says them.
      vocab_size: Where it is known, or follows from the shapes.
      width_per_block: Where it is known.
      has_shapes: Whether the table has the columns of shapes.
      miscounted: The share by which the ratios' counts miss n_active, where they do.
      differing: {ratio: its values} of those in which the runs differ.
      shares: The shares of experts, where no granularity fits the n_total of all sizes.
      assumed: Findings on what the table does not say.
    """

    ratios: ArchitectureRatios
    vocab_size: int | None
    width_per_block: int | None
    has_shapes: bool
    miscounted: float | None
    differing: dict[str, list]
    shares: ExpertShares | None = None
    assumed: tuple[Finding, ...] = ()

    def assuming(self, assumption: Finding, **ratios: float) -> Self:
        """This with a finding on what is assumed, and other values of some ratios."""
        changed = dataclasses.replace(self.ratios, **ratios)
        return dataclasses.replace(self, ratios=changed, assumed=(*self.assumed, assumption))

    @property
    def architecture(self) -> Architecture:
        """The Architecture of models of its ratios, vocabulary and width per block; the paper's where not known."""
        return self.ratios.architecture(
            self.vocab_size or PAPER.vocab_size, self.width_per_block or PAPER.width_per_block
        )


def by_columns(table: Table, vocab_size: int | None, width_per_block: int | None) -> TableArchitecture:
    """The architecture of a table's models by its columns of shapes, else of top_k and the like, and its overrides.

    If the runs differ in a field, it has the value of most runs, else their median.

    Args:
      vocab_size: of the models, where it is known.
      width_per_block: d_model / n_blocks, where it is known.

    Raises:
      UserError: No model has such a ratio, as with more heads of keys and values than of queries.
    """
    columns = model_fields.shapes(table)
    miscounted = None
    if columns is None:
        ratios, differing = _expert_ratios(table)
    else:
        size_is_known = bool(vocab_size and width_per_block)
        ratios, differing = _shape_ratios(columns, size_is_known, width_per_block)
        if width_per_block and "vocab_size" not in table:
            vocab_size = _vocabulary(columns, ratios, width_per_block)
        if vocab_size and width_per_block:
            error = _count_error(columns, ratios.architecture(vocab_size, width_per_block))
            miscounted = error if error > OFF else None
    _check(table, ratios)
    return TableArchitecture(
        ratios=ratios,
        vocab_size=vocab_size,
        width_per_block=width_per_block,
        has_shapes=columns is not None,
        miscounted=miscounted,
        differing=differing,
    )


def _check(table: Table, ratios: ArchitectureRatios) -> None:
    """Raises UserError where a ratio is none that a law.json may hold."""
    try:
        fields_of(ArchitectureRatios, ratios.to_dict(), "")
    except Invalid as error:
        raise UserError(f"{table.path}: {BY_FIELDS.get(error.field, error.field)} {error.reason}") from None


def _count_error(columns: Columns, architecture: Architecture) -> float:
    """The share by which the architecture's counts of active parameters are off the table's, at the median."""
    counted = architecture.n_active(columns["d_model"], columns["n_experts"], columns["n_blocks"])
    return float(np.median(np.abs(counted / columns["n_active"] - 1)))


def _shape_ratios(
    columns: Columns, size_is_known: bool, width_per_block: int | None
) -> tuple[ArchitectureRatios, dict[str, list]]:
    """The ratios that follow from the columns of shapes, and {ratio: its values} of those in which the runs differ."""
    is_mixture = columns["n_experts"] > 1
    values_of = dict(
        kv_share=columns["n_kv_heads"] / columns["n_heads"],
        attention=columns["n_heads"] * columns["head_dim"] / columns["d_model"],
        ff=columns["d_ff"] / columns["d_model"],
        tied=columns["tied"],
        granularity=(columns["d_ff"] / columns["d_expert"])[is_mixture],
        top_k=columns["top_k"][is_mixture],
        shared=columns["n_shared_experts"][is_mixture],
        n_dense=columns["n_dense_blocks"][is_mixture],
    )
    rounded = {name: np.round(values, 6) for name, values in values_of.items() if len(values)}
    ratios, differing = _usual_ratios(rounded, ROUNDED)
    head_dim = majority(columns["head_dim"]) if size_is_known else None
    if head_dim is None or head_dim == width_per_block:
        return ratios, differing
    return dataclasses.replace(ratios, head_dim=int(head_dim)), differing


def _usual_ratios(values_of: dict[str, Array], tolerance: float) -> tuple[ArchitectureRatios, dict[str, list]]:
    """The usual values, and {ratio: its values} of those that differ by more than the tolerance, a share."""
    ratios: dict[str, Any] = {}
    differing = {}
    for name, values in values_of.items():
        if values.max() > (1 + tolerance) * values.min():
            differing[name] = np.unique(values).tolist()
        ratios[name] = _usual(values)
        if name in WHOLE:
            ratios[name] = int(ratios[name])
    ratios["tied"] = bool(ratios.get("tied"))
    return ArchitectureRatios(**ratios), differing


def _usual(values: Array) -> float:
    """The value of most, else the median."""
    value = majority(values)
    return float(np.percentile(values, 50, method="lower")) if value is None else value


def _vocabulary(columns: Columns, ratios: ArchitectureRatios, width_per_block: int) -> int | None:
    """The size of the vocabulary, where all runs' n_active leave the same for embedding and head."""
    without = ratios.architecture(0, width_per_block)
    blocks = without.n_active(columns["d_model"], columns["n_experts"], columns["n_blocks"])
    matrices = 1 if ratios.tied else 2
    sizes = (columns["n_active"] - blocks) / columns["d_model"] / matrices
    size = round(float(np.median(sizes)))
    return size if size >= SMALLEST_VOCABULARY and np.abs(sizes - size).max() < 1 else None


def _expert_ratios(table: Table) -> tuple[ArchitectureRatios, dict[str, list]]:
    """top_k, shared and granularity of the mixtures of a table without columns of shapes, as far as it has their
    columns; and {ratio: its values} of those in which the runs differ."""
    values_of = {}
    for name, (column, default) in RATIO_COLUMNS.items():
        values = numbers_of_mixtures(table, column)
        if values is not None:
            values_of[name] = np.where(values > 0, values, default)
    return _usual_ratios(values_of, 0.0)
