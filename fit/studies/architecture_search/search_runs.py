"""The runs of a search, read from a table, and the budgets that they are of."""

import dataclasses
from collections.abc import Iterator
from typing import Self

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.fitted_law import model_fields
from fit.fitting import isoflop
from fit.model.shape import ModelShape
from fit.studies.architecture_search import triads
from fit.table import table as tables
from fit.table import validate

REQUIRED = ("n_heads", "n_experts", "n_blocks", "seq_len")  # fields of the shape that have no default here


@dataclasses.dataclass(frozen=True)
class SearchRuns:
    """Runs of a search.

    Attributes:
      path: the table's name in errors.
      flops: [n], budgets M D.
      m: [n], FLOPs per token.
      active, total: [n], N_a and N.
      width: [n], d_model.
      loss: [n], nats per token.
      y_max: the largest N/N_a that experts can make up.
    """

    path: str
    flops: np.ndarray
    m: np.ndarray
    active: np.ndarray
    total: np.ndarray
    width: np.ndarray
    loss: np.ndarray
    y_max: float

    @property
    def x(self) -> Array:
        """[n]: M/N_a."""
        return self.m / self.active

    @property
    def y(self) -> Array:
        """[n]: N/N_a."""
        return self.total / self.active

    @property
    def budget(self) -> float:
        """FLOPs of runs of one budget."""
        return float(np.exp(np.mean(np.log(self.flops))))

    def part(self, rows: Array) -> Self:
        """The runs that bool [n] selects."""
        arrays = (self.flops, self.m, self.active, self.total, self.width, self.loss)
        return type(self)(self.path, *(array[rows] for array in arrays), self.y_max)

    def by_label(self, labels: Array) -> Iterator[tuple[int, Self]]:
        """(label, its runs) of each label of budget_labels, int [n], ascending; runs of no budget are left out."""
        for label in np.unique(labels[labels >= 0]).tolist():
            yield label, self.part(labels == label)

    def by_budget(self) -> Iterator[tuple[Self, Array]]:
        """(the runs of a budget, bool [n]: which of these they are) of each budget, ascending."""
        labels = budget_labels(self.flops)
        for label, runs in self.by_label(labels):
            yield runs, labels == label


def budget_labels(flops: Array) -> Array:
    """int [n], equal for runs of one budget, as isoflop.budgets groups them: 0, 1, ... with rising FLOPs.

    A run of no budget has a negative label of its own.
    """
    labels = -1 - np.arange(len(flops))
    for label, rows in enumerate(isoflop.budgets(flops)):
        labels[rows] = label
    return labels


def read(runs: object) -> SearchRuns:
    """Reads the runs of a search.

    Args:
      runs: a table as launch.collect writes it, what fit.read takes for one, or SearchRuns. It needs d_model, n_blocks,
        n_heads, n_experts, seq_len, n_tokens and loss. Where they differ from the value in brackets it also needs
        head_dim (d_model / n_heads), n_kv_heads (n_heads), top_k (1), n_shared_experts (0), d_ff (3 d_model), d_expert
        (d_ff) and n_dense_blocks (0). Each is a column or a field of the column overrides.

    Raises:
      UserError: where a value is missing or bad.
    """
    if isinstance(runs, SearchRuns):
        return runs
    table = tables.read(runs)
    c = _shape_columns(table)
    shape = ModelShape(
        d_model=c["d_model"],
        n_blocks=c["n_blocks"],
        n_heads=c["n_heads"],
        n_kv_heads=c["n_kv_heads"],
        head_dim=c["head_dim"],
        d_ff=c["d_ff"],
        vocab_size=0,
        n_experts=c["n_experts"],
        d_expert=c["d_expert"],
        top_k=c["top_k"],
        n_shared_experts=c["n_shared_experts"],
        n_dense_blocks=c["n_dense_blocks"],
    )
    m, n_active, n_total = (np.asarray(count) for count in triads.of_shape(shape, c["seq_len"]))
    return SearchRuns(
        path=table.path,
        flops=m * table.numbers("n_tokens"),
        m=m,
        active=n_active,
        total=n_total,
        width=c["d_model"],
        loss=table.numbers("loss"),
        y_max=float(np.max(triads.largest_total_over_active(shape))),
    )


def _shape_columns(table: tables.Table) -> dict[str, Array]:
    """d_model, REQUIRED, and the fields of the shape that have a default, of each run [n], by name.

    A value comes from a column, else from the overrides, else from the field's default. Raises UserError if there is
    none.
    """
    validate.require(table, ("d_model", "n_tokens", "loss"))
    columns = dict(d_model=table.numbers("d_model", (1, 1e7)))
    if "granularity" in table:
        columns["granularity"] = table.numbers("granularity", (1, 1e4))
    for name in dict.fromkeys((*model_fields.WITH_DEFAULT, *REQUIRED)):
        least = 0 if name in ("n_dense_blocks", "n_shared_experts") else 1
        values = model_fields.cells(table, name)
        values = [None if least and str(value) in ("0", "0.0") else value for value in values]  # the default
        default = None if name in REQUIRED else model_fields.default_of(name, columns)
        if default is None and None in values:
            row = table.rows[values.index(None)]
            raise UserError(f"{table.path}, row {row}: {name} is neither a column nor in overrides")
        defaults = np.broadcast_to(np.nan if default is None else default, len(table)).tolist()
        filled = [defaults[i] if value is None else value for i, value in enumerate(values)]
        column = dataclasses.replace(table, columns={name: filled}, names={})
        columns[name] = column.numbers(name, (least, 1e9))
    return columns
