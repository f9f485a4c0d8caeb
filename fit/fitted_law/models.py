"""The models that a law was fitted to: their shape, training and text, from the table of runs.

A table names a field of the trainer's config.model where some of its runs differ from the paper's recipe: in a column,
or in the column overrides.

Axes: n runs.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np

from fit.aliases import Array
from fit.fitted_law import batches, overrides, table_architecture, table_experts
from fit.fitted_law.architecture_ratios import BY_FIELDS, PAPERS_RATIOS, ArchitectureRatios
from fit.fitted_law.batches import Batches
from fit.fitted_law.bounds import MOST_COUNT, Count, Rule
from fit.fitted_law.expert_widths import ExpertShares
from fit.fitted_law.model_fields import cells, majority, positive_numbers, width_per_block_of
from fit.fitted_law.overrides import Overrides
from fit.messages.finding import Finding, finding
from fit.messages.printable import printable
from fit.results import Record, optional
from fit.table.runs import corpora
from fit.table.spelled import is_yes
from fit.table.table import BOUNDS, Table, to_numbers

MOST_EXPERTS = 16  # numbers of experts that a plan compares by default
MOST_NAMED = 64  # numbers of experts that a law names; a plan asks each of them
# Fields that a plan chooses anew, or that do not belong to the models: never copied from the runs.
CHOSEN = (
    "model.d_model",
    "model.n_blocks",
    "model.n_heads",
    "model.d_ff",
    "model.vocab_size",
    "model.n_experts",
    "n_tokens",
    "seed",
    "data.fingerprint",
)
# and these where the table has a column of them
BUILT = ("n_kv_heads", "head_dim", "tied_embeddings", "top_k", "d_expert", "n_shared_experts", "n_dense_blocks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateLaw(Record):
    """Eq. 10 of the joint law's paper: ln of the peak learning rate is linear in ln(n_active) and ln(n_experts).

    Attributes:
      constant: ln of the rate of a model of one active parameter and one expert.
      n_active, n_experts: The slopes, of ln(rate) for each factor of e.
    """

    constant: float
    n_active: float
    n_experts: float


def _can_be_compared(numbers: tuple[int, ...]) -> bool:
    """Whether a plan can compare these numbers of experts."""
    return 1 <= len(numbers) <= MOST_NAMED and all(1 <= number <= BOUNDS["n_experts"][1] for number in numbers)


NumbersOfExperts = Annotated[
    tuple[int, ...], Rule(_can_be_compared, f"a list of 1 to {MOST_NAMED} whole numbers from 1 to 1,000,000")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Models(Record):
    """The models that a law was fitted to. A field is None, or empty, where it is not known.

    Attributes:
      vocab_size, width_per_block: Values of most runs (width_per_block = d_model / n_blocks).
      architecture: The ratios of heads, experts and ends where they are not the paper's; a plan's models have them too.
      miscounted: The share by which counts of that architecture miss the runs' n_active, where they do.
      shares: The shares of experts, where their width changes with the size.
      assumed: Findings on what the table does not say of mixtures, and what we assume.
      seq_len: Tokens in a row of training text.
      final_norm: Whether all of them have a norm before the head.
      n_experts: The numbers of experts that were fitted, ascending.
      base_config, overrides: The config file of the runs, and the fields that all of them override in it alike, each
        value as Python source.
      batches: The batches of the runs, which grow with their tokens alone: one, or a ramp.
      learning_rate: Eq. 10 where it gives every run's peak_learning_rate.
      corpus, unique_tokens: Fingerprint of the text, and how many training tokens it has.
      repeats: (how many runs saw text more than once, the most epochs), where the table has epochs.
      differing: {column: its values} of columns that should have one value and have several.
    """

    vocab_size: Count | None = optional()
    width_per_block: Count | None = optional()
    architecture: ArchitectureRatios | None = optional()
    miscounted: float | None = optional()
    shares: ExpertShares | None = optional()
    assumed: tuple[Finding, ...] = ()
    seq_len: Count | None = optional()
    final_norm: bool = False
    n_experts: NumbersOfExperts | None = optional()
    base_config: str | None = optional()
    overrides: Overrides = dataclasses.field(default_factory=dict)
    batches: Batches | None = optional()
    learning_rate: RateLaw | None = optional()
    corpus: str | None = optional()
    unique_tokens: Count | None = optional()
    repeats: tuple[int, float] | None = optional()
    differing: dict[str, tuple[float | str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def text_overrides(self) -> dict[str, str]:
        """The override by which the trainer accepts only the runs' text; {} where that is unknown."""
        corpus = self.corpus or ""
        is_name_of_text = re.fullmatch("[0-9a-f]{16}", corpus)  # as jmoe names a text
        return {"data.fingerprint": repr(corpus)} if is_name_of_text else {}

    @property
    def overrides_with_text(self) -> dict[str, str]:
        """The overrides that a new model for this law has in common with its runs."""
        return self.overrides | self.text_overrides

    def findings(self) -> Iterator[Finding]:
        """Findings on repeated text, and on columns that should have one value for all runs but have several."""
        if self.repeats:
            count, most_epochs = self.repeats
            yield finding("text_repeated", count=count, epochs=most_epochs)
        for name, values in self.differing.items():
            if self.architecture and name in self.architecture:
                continue
            most = self.get(name) or self.overrides.get(name)
            shown = first_values(values)
            yield finding("values_differ", count=len(values), column=name, values=shown, most=most or None)
        yield from self.architecture_findings()

    def architecture_findings(self) -> Iterator[Finding]:
        """Findings on how the models are built, where they differ in it or their table does not say all of it."""
        for name, values in self.differing.items():
            if self.architecture and name in self.architecture:
                column = BY_FIELDS.get(name, name)
                shown = first_values([f"{v:.4g}" for v in values])
                planned = float(self.architecture[name])
                yield finding("shapes_differ", count=len(values), column=column, values=shown, planned=planned)
        if self.miscounted:
            yield finding("miscounted", off=self.miscounted)
        yield from self.assumed


def from_table(table: Table, rows: Array) -> Models:
    """The models of a law fitted to the runs of a table.

    Args:
      rows: indices of the runs fitted, whose numbers of experts n_experts lists.
    """
    configs = _configs(table)
    texts = corpora(table)
    config = _only(configs)
    of_overrides = _values_of_overrides(table) if config else {}
    shared = {
        field: values[0]
        for field, values in of_overrides.items()
        if len(values) == 1 and overrides.can_be_set(field, values[0])
    }
    width_per_block = width_per_block_of(table)
    if "width_per_block" in table:
        width_per_block = _most_common(positive_numbers(table, "width_per_block"))
    vocab_size = _most_common(positive_numbers(table, "vocab_size"))
    known = table_architecture.by_columns(table, vocab_size, width_per_block)
    known = table_experts.complete(table, known)
    is_papers = known.ratios == PAPERS_RATIOS and not known.differing
    sizes = {name: _numbers(table, name) for name in ("vocab_size", "width_per_block")}
    others = {"seq_len": _numbers(table, "seq_len")} | of_overrides | {"corpus_fingerprint": texts}
    differing = _several({"config": configs} | sizes) | known.differing | _several(others)
    seq_len = _most_common(to_numbers(cells(table, "seq_len", "data")))
    return Models(
        vocab_size=known.vocab_size,
        width_per_block=width_per_block,
        architecture=None if is_papers else known.ratios,
        miscounted=known.miscounted,
        shares=known.shares,
        assumed=known.assumed,
        seq_len=seq_len,
        final_norm=all(map(is_yes, cells(table, "final_norm"))),
        n_experts=_experts(table, rows),
        base_config=config,
        overrides=shared,
        batches=batches.from_table(table, config, shared, differing, seq_len),
        learning_rate=_learning_rate(table),
        corpus=_only(texts),
        unique_tokens=_unique_tokens(table),
        repeats=_repeats(table),
        differing={name: tuple(values) for name, values in differing.items()},
    )


def _several(values_of: Mapping[str, list]) -> dict[str, list]:
    """Those columns that have several values."""
    return {name: values for name, values in values_of.items() if len(values) > 1}


def _only(values: list[str]) -> str | None:
    """The one value; None where there is none or several."""
    return values[0] if len(values) == 1 else None


def _configs(table: Table) -> list[str]:
    """The config files of the runs, each once; [] where the table has none."""
    return sorted({printable(str(v)) for v in table.column_or("config", "") if v not in (None, "")})


def _numbers(table: Table, name: str) -> list[float]:
    """The values of a column of positive numbers, each once; [] where there is no such column."""
    values = positive_numbers(table, name)
    return [] if values is None else np.unique(values).tolist()


def _most_common(values: Array | None) -> int | None:
    """The whole number that more than half of the runs have; None without values, or with one that is no count."""
    if values is None or not np.all((values > 0) & (values <= MOST_COUNT)):
        return None
    value = round(majority(values) or 0)
    return value if value >= 1 else None


def _values_of_overrides(table: Table) -> dict[str, list[str]]:
    """{field: its values, each once, "" for runs without it} of the overrides that a plan does not choose anew."""
    of_runs = overrides.of_runs(table)
    values_of = {}
    for field in overrides.fields_of(of_runs):
        column = field.removeprefix("model.")
        has_column = column in BUILT and column in table
        if field not in CHOSEN and not has_column:
            values_of[field] = sorted({run.get(field, "") for run in of_runs})
    return values_of


def _unique_tokens(table: Table) -> int | None:
    """Tokens of the text, by n_tokens and by epochs, the number of times that these read it."""
    n_tokens = positive_numbers(table, "n_tokens")
    epochs = positive_numbers(table, "epochs")
    if n_tokens is None or epochs is None:
        return None
    return max(1, round(float(np.median(n_tokens / epochs))))


def _repeats(table: Table) -> tuple[int, float] | None:
    """(how many runs saw text more than once, the most epochs)."""
    epochs = positive_numbers(table, "epochs")
    if epochs is None or positive_numbers(table, "n_tokens") is None:
        return None
    is_repeated = epochs > 1 + 1e-9
    return (int(is_repeated.sum()), float(epochs.max())) if is_repeated.any() else None


def _experts(table: Table, rows: Array) -> tuple[int, ...] | None:
    """At most MOST_EXPERTS of the numbers of experts of these rows, spread over all of them."""
    values = positive_numbers(table, "n_experts")
    if values is None:
        return None
    fitted = [int(v) for v in np.unique(values[rows])]
    spread = np.linspace(0, len(fitted) - 1, min(len(fitted), MOST_EXPERTS)).round().astype(int)
    return tuple(fitted[i] for i in spread)


def _learning_rate(table: Table) -> RateLaw | None:
    """Eq. 10 where it gives every run's peak_learning_rate to 6 digits; else None."""
    read = [positive_numbers(table, name) for name in ("peak_learning_rate", "n_active", "n_experts")]
    columns = [values for values in read if values is not None]
    if len(columns) < len(read):
        return None
    rate, n_active, n_experts = np.log(columns)
    if np.ptp(n_active) == 0:
        return None  # a single size has no slope
    design = np.stack([np.ones_like(rate), n_active, n_experts], axis=1)
    law = np.linalg.lstsq(design, rate, rcond=None)[0]
    if np.abs(design @ law - rate).max() > 1e-6:
        return None
    constant, of_size, of_experts = (float(f"{value:.10g}") for value in law)
    return RateLaw(constant=constant, n_active=of_size, n_experts=of_experts)


def first_values(values: Sequence) -> str:
    """The first values of a column that has several."""
    shown = ", ".join(f"{value:.15g}" if isinstance(value, float) else str(value) for value in values[:4])
    return f"{shown}, ..." if len(values) > 4 else shown
