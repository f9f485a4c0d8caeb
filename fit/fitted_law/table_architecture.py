"""The architecture of a table's models: the entries `architecture`, `shares` and `assumed` of models.py.

They follow from the columns of shapes, from the column overrides, or from top_k, n_total and the like.

Axes: n runs of the table; m of them mixtures.
"""

import collections
import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.fitted_law import expert_widths
from fit.fitted_law.bounds import Rule, between
from fit.fitted_law.expert_widths import Shares
from fit.messages.finding import Finding, finding
from fit.model.architecture import ROUNDED, Architecture
from fit.results import Record
from fit.table.selection import text_of
from fit.table.spelled import is_yes
from fit.table.table import Table, shown, to_numbers

OFF = 0.02  # counts further off than this share are reported
SMALLEST_VOCABULARY = 64
OFF_TOTAL = 0.1  # ratios of n_total to n_active: those of whole models, whose embedding may not be known
DENSE_RATIOS = ("kv_share", "attention", "ff", "tied", "n_dense", "head_dim")  # that dense models have too
# how each follows from the trainer's fields
NAMES = dict(
    kv_share="n_kv_heads / n_heads",
    attention="n_heads head_dim / d_model",
    ff="d_ff / d_model",
    tied="tied_embeddings",
    granularity="d_ff / d_expert",
    shared="n_shared_experts",
    n_dense="n_dense_blocks",
)
Columns = Mapping[str, Array]  # by name, float64 [n]
# {ratio: (column, default)} of those that a table without columns of shapes may have
RATIO_COLUMNS = dict(top_k=("top_k", 1), shared=("n_shared_experts", 0), granularity=("granularity", 1))
MIXTURE_FIELDS = ("top_k", "d_expert", "granularity")  # by which a table says how wide its mixtures are
# Fields with a default, each after those that its default reads.
WITH_DEFAULT = ("n_heads", "n_kv_heads", "head_dim", "d_ff", "d_expert", "top_k", "n_shared_experts", "n_dense_blocks")


def _up_to(low: float, high: float) -> Rule:
    """The rule of ratios and counts from low to high."""
    return between(low, high, f"a number from {low:g} to {high:g}")


Size = Annotated[float, _up_to(1e-3, 1e3)]  # over d_model
WholeNumber = Annotated[int, _up_to(0, 1e6)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratios(Record):
    """How models of any size are built; the defaults are the paper's.

    Attributes:
      kv_share: n_kv_heads / n_heads.
      attention: n_heads head_dim / d_model.
      ff: d_ff / d_model.
      tied: Whether embedding and head are one matrix.
      granularity: d_ff / d_expert.
      top_k: Experts that a token chooses.
      shared: Experts that every token uses.
      n_dense: Blocks without a mixture.
      head_dim: Width of a head; 0 for the width per block.
    """

    kv_share: Annotated[float, _up_to(1e-3, 1)] = 1.0
    attention: Size = 1.0
    ff: Size = 3.0
    tied: bool = False
    granularity: Annotated[float, _up_to(1e-3, 1e6)] = 1.0
    top_k: Annotated[int, _up_to(1, 1e6)] = 1
    shared: WholeNumber = 0
    n_dense: WholeNumber = 0
    head_dim: WholeNumber = 0

    def architecture(self, vocab_size: int, width_per_block: int, final_norm: bool = False) -> Architecture:
        """The Architecture of these ratios."""
        fields = {name: value for name, value in self.items() if name != "top_k"}
        return Architecture(
            vocab_size,
            width_per_block,
            final_norm,
            active_width=(self.top_k + self.shared) / self.granularity,
            counts_routed_experts=True,
            **fields,
        )

    def in_words(self) -> str:
        """The ratios that are not the paper's: "n_kv_heads / n_heads 0.5, top_k 2"."""
        other = [f"{NAMES.get(name, name)} {self[name]:.4g}" for name in self if self[name] != PAPERS_RATIOS[name]]
        return ", ".join(other) or "in part"


PAPERS_RATIOS = Ratios()


@dataclasses.dataclass(frozen=True)
class _TableMixtures:
    """Sizes of the mixtures of a table, float64 [m]; n_total is None where the table does not have it."""

    n_active: Array
    n_experts: Array
    n_total: Array | None


def positive_numbers(table: Table, name: str) -> Array | None:
    """A column as numbers; None where it is missing or not all positive numbers: no law needs it."""
    if name not in table:
        return None
    try:
        return table.numbers(name, (1e-12, 1e18))
    except UserError:
        return None


def width_per_block_of(table: Table) -> int | None:
    """d_model / n_blocks as most runs have it, where it is a whole number."""
    d_model = positive_numbers(table, "d_model")
    n_blocks = positive_numbers(table, "n_blocks")
    if d_model is None or n_blocks is None:
        return None
    value = majority(d_model / n_blocks) or 0
    return int(value) if value >= 1 and value == int(value) else None


def model_overrides(table: Table) -> list[dict[str, str]]:
    """[{field: value as text}] of config.model in the column overrides of each run; {} where there is none."""
    texts = table.column_or("overrides", "")
    return [dict(re.findall(r"(?:^| )model\.(\w+)=(\S+)", str(text))) for text in texts]


def _field_cells(table: Table, name: str) -> list:
    """A field of config.model in each run, as written in its column or else in the overrides; None where neither has
    it."""
    cells = table.column_or(name, None)
    overrides = model_overrides(table)
    return [overrides[i].get(name) if _is_blank(cell) else cell for i, cell in enumerate(cells)]


def _is_blank(cell: object) -> bool:
    """Whether a cell holds nothing; frames of pandas have NaN there."""
    return text_of(cell).lower() in ("", "nan")


def _field_numbers(table: Table, name: str) -> Array:
    """A field of config.model, or granularity, in each run, float64 [n], NaN where nothing says it.

    Raises:
      UserError: names the first value that is no number.
    """
    if name not in table and "overrides" not in table:
        return np.full(len(table), np.nan)
    cells = _field_cells(table, name)
    values = to_numbers(cells)
    for row, cell, value in zip(table.rows, cells, values, strict=True):
        if cell is not None and not np.isfinite(value):
            raise UserError(f"{table.path}, row {row}, {name}: found {shown(cell)}, expected a number")
    return values


def _numbers_of_mixtures(table: Table, name: str) -> Array | None:
    """As `_field_numbers`, of each mixture, float64 [m].

    Returns:
      None where nothing says it of any mixture, or a value is no number: no law needs it.
    """
    is_mixture = _is_mixture(table)
    if is_mixture is None:
        return None
    try:
        values = _field_numbers(table, name)[is_mixture]
    except UserError:
        return None
    return values if np.isfinite(values).any() else None


def _is_mixture(table: Table) -> Array | None:
    """Whether each model is a mixture, bool [n]; None where the table does not say its numbers of experts."""
    n_experts = positive_numbers(table, "n_experts")
    return None if n_experts is None else n_experts > 1


def are_tied(table: Table) -> Array:
    """Whether embedding and head of each model are one matrix, bool [n]; False where nothing says it."""
    return np.array([is_yes(cell) for cell in _field_cells(table, "tied_embeddings")])


def default_of(name: str, columns: Columns) -> Array | float:
    """The default of a field of WITH_DEFAULT, where a table has no value or 0.

    Args:
      columns: Of the table: d_model, n_blocks, granularity where it is known, and the fields before this one.
    """
    if name == "n_heads":
        return columns["n_blocks"]
    if name == "n_kv_heads":
        return columns["n_heads"]
    if name == "head_dim":
        return columns["d_model"] / columns["n_heads"]
    if name == "d_ff":
        return 3 * columns["d_model"]
    if name == "d_expert":
        return columns["d_ff"] / columns.get("granularity", 1.0)
    return 1.0 if name == "top_k" else 0.0


def _shape_columns(table: Table) -> dict[str, Array] | None:
    """The columns that tell the shape of each model.

    Returns:
      {name: float64 [n]} of d_model, n_blocks, n_experts, n_active, granularity, WITH_DEFAULT and tied; None where the
      table lacks one of the first four or a value is not a number.
    """
    columns: dict[str, Array] = {}
    try:
        for name in ("d_model", "n_blocks", "n_experts", "n_active"):
            if name not in table:
                return None
            columns[name] = table.numbers(name, (1, 1e18))
        granularity = _field_numbers(table, "granularity")
        columns["granularity"] = np.where(granularity > 0, granularity, 1.0)
        for name in WITH_DEFAULT:
            values = _field_numbers(table, name)
            columns[name] = np.where(values > 0, values, default_of(name, columns))
    except UserError:
        return None
    columns["tied"] = are_tied(table).astype(float)
    return columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableArchitecture:
    """The architecture of a table's models, as far as its columns show it. The fields are those of models.Models.

    Attributes:
      vocab_size: Where it is known, or follows from the shapes.
      architecture: The ratios, where they are not all the paper's.
      miscounted: The share by which their counts miss n_active, where they do.
      shares: The shares of experts, where their width changes with the size.
      assumed: Findings on what the table does not say.
      differing: {ratio: its values} of those in which the runs differ.
    """

    vocab_size: int | None
    architecture: Ratios | None
    miscounted: float | None
    shares: Shares | None
    assumed: tuple[Finding, ...]
    differing: dict[str, list]


def architecture_of(table: Table, vocab_size: int | None, width_per_block: int | None) -> TableArchitecture:
    """The architecture of a table's models.

    If the runs differ in a field, it has the value of most runs, else their median.

    Args:
      vocab_size: of the models, where it is known.
      width_per_block: d_model / n_blocks, where it is known.
    """
    columns = _shape_columns(table)
    size_is_known = bool(vocab_size and width_per_block)
    miscounted = None
    if columns is None:
        ratios, differing = _expert_ratios(table)
    else:
        ratios, differing = _shape_ratios(columns, size_is_known, width_per_block)
        if width_per_block and "vocab_size" not in table:
            vocab_size = _vocabulary(columns, ratios, width_per_block)
            size_is_known = vocab_size is not None
        if size_is_known:
            error = _count_error(columns, ratios.architecture(vocab_size or 1, width_per_block or 1))
            miscounted = error if error > OFF else None
    mixtures = _mixtures(table)
    shares = None
    assumed: list[Finding] = []
    if mixtures is not None:
        shape = expert_widths.assumed_shape(vocab_size, width_per_block)
        reader = _TotalsReader(table, mixtures, columns, ratios, shape)
        shares = reader.complete()
        ratios = reader.ratios
        assumed = reader.assumed
    return TableArchitecture(
        vocab_size=vocab_size,
        architecture=ratios if differing or ratios != PAPERS_RATIOS else None,
        miscounted=miscounted,
        shares=shares,
        assumed=tuple(assumed),
        differing=differing,
    )


def _count_error(columns: Columns, architecture: Architecture) -> float:
    """The share by which the architecture's counts of active parameters are off the table's, at the median."""
    counted = architecture.n_active(columns["d_model"], columns["n_experts"], columns["n_blocks"])
    return float(np.median(np.abs(counted / columns["n_active"] - 1)))


def _shape_ratios(columns: Columns, size_is_known: bool, width_per_block: int | None) -> tuple[Ratios, dict[str, list]]:
    """The ratios that follow from the columns of shapes, and {ratio: its values} of those in which the runs differ."""
    differing = {}
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
    ratios: dict[str, Any] = {}
    for name, values in values_of.items():
        if len(values):
            values = np.round(values, 6)
            if values.max() > (1 + ROUNDED) * values.min():
                differing[name] = np.unique(values).tolist()
            ratios[name] = _usual(values)
    head_dim = majority(columns["head_dim"]) if size_is_known else None
    # the width per block, where nothing is known of heads
    ratios["head_dim"] = 0 if head_dim in (None, width_per_block) else head_dim
    for name in ("top_k", "shared", "n_dense", "head_dim"):
        if name in ratios:
            ratios[name] = int(ratios[name])
    ratios["tied"] = bool(ratios["tied"])
    return Ratios(**ratios), differing


def _usual(values: Array) -> float:
    """The value of most, else the median."""
    value = majority(values)
    return float(np.percentile(values, 50, method="lower")) if value is None else value


def _vocabulary(columns: Columns, ratios: Ratios, width_per_block: int) -> int | None:
    """The size of the vocabulary, where all runs' n_active leave the same for embedding and head."""
    without = ratios.architecture(0, width_per_block)
    blocks = without.n_active(columns["d_model"], columns["n_experts"], columns["n_blocks"])
    matrices = 1 if ratios.tied else 2
    sizes = (columns["n_active"] - blocks) / columns["d_model"] / matrices
    size = round(float(np.median(sizes)))
    return size if size >= SMALLEST_VOCABULARY and np.abs(sizes - size).max() < 1 else None


def _expert_ratios(table: Table) -> tuple[Ratios, dict[str, list]]:
    """top_k, shared and granularity of the mixtures of a table without columns of shapes, as far as it has their
    columns; and {ratio: its values} of those in which the runs differ."""
    ratios: dict[str, Any] = {}
    differing = {}
    for name, (column, default) in RATIO_COLUMNS.items():
        values = _numbers_of_mixtures(table, column)
        if values is None:
            continue
        values = np.where(values > 0, values, default)
        if len(np.unique(values)) > 1:
            differing[name] = np.unique(values).tolist()
        ratios[name] = _usual(values) if name == "granularity" else int(_usual(values))
    return Ratios(**ratios), differing


def _mixtures(table: Table) -> _TableMixtures | None:
    """The mixtures of a table; None where it has none."""
    n_active = positive_numbers(table, "n_active")
    n_experts = positive_numbers(table, "n_experts")
    is_mixture = _is_mixture(table)
    if n_active is None or n_experts is None or is_mixture is None or not is_mixture.any():
        return None
    n_total = positive_numbers(table, "n_total")
    return _TableMixtures(n_active[is_mixture], n_experts[is_mixture], None if n_total is None else n_total[is_mixture])


@dataclasses.dataclass
class _TotalsReader:
    """Completes the ratios of a table's mixtures by its n_total, or by what is usual.

    Attributes:
      table: the table.
      mixtures: its mixtures.
      columns: of shapes, where the table has them.
      ratios: to be completed.
      shape: the Architecture with the vocabulary and the width per block that are known, else the paper's.
      assumed: findings on what the table does not say.
    """

    table: Table
    mixtures: _TableMixtures
    columns: Columns | None
    ratios: Ratios
    shape: Architecture
    assumed: list[Finding] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        known = {name for name in MIXTURE_FIELDS if _numbers_of_mixtures(self.table, name) is not None}
        widths = {"granularity"} if self.columns is None else {"granularity", "d_expert"}
        self.says_top_k = "top_k" in known
        self.says_width = bool(known & widths)
        if "d_expert" in known and not self.says_width:
            self.assumed.append(finding("d_expert_unread"))

    def complete(self) -> Shares | None:
        """Completes the ratios; returns `shares` where the widths of experts change with the size."""
        n_total = self.mixtures.n_total
        if n_total is None or (n_total <= self.mixtures.n_active).all():
            self._complete_without_totals()
            return None
        error = self._ratio_error(n_total)
        if self.columns is not None and error <= OFF_TOTAL:  # the shapes say it all
            return None
        dense = dataclasses.replace(self.shape, **{name: self.ratios[name] for name in DENSE_RATIOS})
        if not self.says_top_k:
            self._take_likely_top_k(dense, n_total)
        if self.says_width and self.says_top_k and self.columns is not None:
            self.assumed.append(finding("totals_miscounted", off=error))
            return None
        return self._complete_by_totals(dense, n_total)

    def _complete_without_totals(self) -> None:
        if self.columns is not None:
            return
        if not self.says_top_k and not self.says_width:
            self.assumed.append(finding("mixtures_assumed"))
        elif self.says_top_k != self.says_width:
            self._as_wide_as_dense()

    def _take_likely_top_k(self, dense: Architecture, n_total: Array) -> None:
        top_k = expert_widths.likely_top_k(
            dense, self.mixtures.n_active, self.mixtures.n_experts, n_total, self.ratios.shared
        )
        self.ratios = dataclasses.replace(self.ratios, top_k=top_k)
        self.assumed.append(finding("top_k_by_totals", top_k=top_k))

    def _complete_by_totals(self, dense: Architecture, n_total: Array) -> Shares | None:
        """Choose the granularity that reproduces n_total; return `shares` if one does not fit all sizes."""
        n_active = self.mixtures.n_active
        n_experts = self.mixtures.n_experts
        runs = expert_widths.Mixtures(n_active, n_experts, n_total, self.ratios.top_k, self.ratios.shared)
        larger = n_active >= np.median(n_active)  # nearer to what is planned
        granularity = expert_widths.granularity_of(dense, runs.part(larger))
        if granularity is None:
            used = runs.top_k + runs.shared
            most = float(n_experts.max())
            self.assumed.append(
                finding("n_total_unread", used=used, n_experts=most, ratio=float(np.median(runs.ratio)))
            )
            if self.columns is None and self.says_top_k != self.says_width:
                self._as_wide_as_dense()
            return None
        self.ratios = dataclasses.replace(self.ratios, granularity=granularity)
        errors = np.abs(self._ratio() / runs.ratio - 1)
        return expert_widths.shares_of(runs) if np.percentile(errors, 90) > OFF else None

    def _ratio(self) -> Array:
        """n_total over n_active by the ratios, [m]."""
        architecture = self.ratios.architecture(self.shape.vocab_size, self.shape.width_per_block)
        return expert_widths.ratio_of(architecture, self.mixtures.n_active, self.mixtures.n_experts)

    def _ratio_error(self, n_total: Array) -> float:
        """The share by which n_total over n_active by the ratios is off the table's, at the median."""
        return float(np.median(np.abs(self._ratio() * self.mixtures.n_active / n_total - 1)))

    def _as_wide_as_dense(self) -> None:
        """Fill in top_k or the width of experts from the other, such that a token's experts are together as wide as
        the dense layer."""
        ratios = self.ratios
        if self.says_top_k:
            granularity = float(ratios.top_k + ratios.shared)
            self.ratios = dataclasses.replace(ratios, granularity=granularity)
            self.assumed.append(finding("width_assumed", used=granularity))
        else:
            top_k = max(1, round(ratios.granularity) - ratios.shared)
            self.ratios = dataclasses.replace(ratios, top_k=top_k)
            self.assumed.append(finding("top_k_assumed", top_k=top_k))


def majority(values: Array) -> float | None:
    """The value that more than half of them are; None where there is none."""
    value, count = collections.Counter(values.tolist()).most_common(1)[0]
    return value if 2 * count > len(values) else None
