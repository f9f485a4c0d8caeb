"""What of a model lies outside the runs of a law: by what factor, and in words."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fit.aliases import Array, Numbers, Opt
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.units import amount, say
from fit.model.architecture import Architecture, training_flops
from fit.results import Record

ROUNDING = 5e-3  # a value outside a range by less than this share counts as inside: three digits hide it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outside(Record):
    """A value of a model outside the range of a law's runs.

    Attributes:
      column: Its name. unique_tokens is n_tokens against the tokens of the text that the law was fitted on (low is 0).
      value: The model's, as the law counts it.
      low, high: The range.
      factor: How many times above or below the range it is, > 1; None where the value or the end of the range is 0.
    """

    column: str
    value: float
    low: float
    high: float
    factor: float | None

    @property
    def is_above(self) -> bool:
        """Whether the value is above the range."""
        return self.value > self.high

    @property
    def side(self) -> str:
        """On which side of the range the value is: "above" or "below"."""
        return "above" if self.is_above else "below"

    @property
    def in_words(self) -> str:
        """The value with the end of the range that it passes: "n_tokens 7 times above 1.31M"."""
        end = self.high if self.is_above else self.low
        shown = f"{end:.3g}" if self.column == "training_flops" else amount(end)
        if self.factor is None:
            return f"{self.column} {self.value:.3g}, {self.side} {shown}"
        factor = amount(self.factor)
        if self.column == "unique_tokens":
            return f"n_tokens {factor} times the {shown} of the text"
        return f"{self.column} {factor} times {self.side} {shown}"

    @property
    def in_short(self) -> str:
        """The value without the end of the range: "n_tokens 7 times above"."""
        sentence = sentences.SHORT_SIDE if self.factor is None else sentences.SHORT_FACTOR
        return say(sentence, **self, side=self.side)

    def is_farther_than(self, other: "Outside") -> bool:
        """Whether this value is farther outside than another of its column; one without a factor is the farthest."""
        if self.factor is None or other.factor is None:
            return self.factor is None
        return self.factor > other.factor


def outside(law: Law, **values: Opt) -> list[Outside]:
    """The values of a model outside the fitted range.

    Args:
      law: The law.
      values: By column, as the law counts them; None where one is not known. training_flops are by default
        6 n_active n_tokens.

    Returns:
      Empty inside.
    """
    return _rows(_with_ranges(law, values))


def are_inside(law: Law, **values: Opt) -> Array:
    """Whether models lie inside the fitted range, where `outside` is empty. Their values broadcast."""
    fine = [_is_inside(*value_and_range) for value_and_range in _with_ranges(law, values).values()]
    known = [value for value in values.values() if value is not None]
    return np.logical_and.reduce(np.broadcast_arrays(True, *fine, *known)[: 1 + len(fine)])


def _with_ranges(law: Law, values: Mapping[str, Opt]) -> dict[str, tuple[Any, float, float]]:
    """{column: (value, low, high)} of the values that are not None and have a known range."""
    known = {name: value for name, value in values.items() if value is not None}
    if {"n_active", "n_tokens"} <= known.keys():
        known.setdefault("training_flops", training_flops(known["n_active"], known["n_tokens"]))
    ranges = law.ranges
    with_ranges = {}
    for name in (*law.form.columns, *law.fixed, "training_flops"):
        if name in known and name in ranges:
            with_ranges[name] = (known[name], *ranges[name])
    if "n_tokens" in law.form.columns and "n_tokens" in known and law.models.unique_tokens:
        with_ranges["unique_tokens"] = (known["n_tokens"], 0, law.models.unique_tokens)
    return with_ranges


def _is_inside(value: Any, low: float, high: float) -> Any:
    """Whether values lie within a range, or off it by ROUNDING at most."""
    return (low * (1 - ROUNDING) <= value) & (value <= high * (1 + ROUNDING))


def _rows(with_ranges: dict[str, tuple[Any, float, float]]) -> list[Outside]:
    """Those values that are outside their range."""
    rows = []
    for column, (value, low, high) in with_ranges.items():
        if not _is_inside(value, low, high):
            larger, smaller = (value, high) if value > high else (low, value)
            factor = float(larger / smaller) if smaller else None
            rows.append(Outside(column=column, value=float(value), low=low, high=high, factor=factor))
    return rows


def of_model(
    law: Law,
    architecture: Architecture,
    n_experts: float,
    n_active: float,
    n_tokens: float,
    n_total: float | None = None,
    shape: tuple[float, float] | None = None,
) -> list[Outside]:
    """What is outside of a model of an architecture, as `outside` lists it, its width and depth last.

    Parameters and FLOPs are those that the law counts.

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
    columns = columns_of_sizes(law, architecture, n_active, n_experts, d_model, n_total)
    rows = outside(law, n_tokens=n_tokens, **columns)
    if not law.runs.shape_ranges and architecture.width_per_block == law.models.width_per_block:
        return rows  # width and depth follow from the size, whose range n_active shows
    values = dict(d_model=d_model, n_blocks=n_blocks)
    return rows + _rows({name: (values[name], *ends) for name, ends in shape_ranges(law).items()})


def columns_of_sizes(
    law: Law,
    architecture: Architecture,
    n_active: Numbers,
    n_experts: Numbers,
    d_model: Opt = None,
    n_total: Opt = None,
) -> dict[str, Numbers]:
    """The columns of models that have ranges, all but their tokens, as the law counts them.

    Args:
      law: The law of the ranges.
      architecture: How the models are built.
      n_active: Active parameters, with embedding and head.
      n_experts: As the law counts them.
      d_model: Their width; None takes that of the architecture's models of this size.
      n_total: All parameters, with embedding and head; None takes those of the architecture's models of this size.
    """
    if d_model is None:
        d_model = architecture.d_model(n_active, n_experts)
    if n_total is None:
        n_total = architecture.n_total(d_model, n_experts)
    counts = dict(
        n_active=law.counting.counted(architecture, n_active, d_model),
        n_total=law.counting.counted(architecture, n_total, d_model),
    )
    return architecture.structure(n_experts) | counts


def shape_ranges(law: Law) -> dict[str, tuple[float, float]]:
    """The ranges of width and depth in the law's runs: {"d_model": (low, high), "n_blocks": (low, high)}.

    Where the table of runs has no widths, they follow from sizes and width per block. {} where neither is known.
    """
    if law.runs.shape_ranges:
        return law.runs.shape_ranges
    width_per_block = law.models.width_per_block
    sizes = law.ranges.get("n_active")
    has_vocabulary = law.models.vocab_size is not None and law.counts_embedding
    if width_per_block is None or sizes is None or not has_vocabulary:
        return {}
    low, high = (float(law.architecture.d_model(end)) for end in sizes)
    return dict(d_model=(low, high), n_blocks=(low / width_per_block, high / width_per_block))


def in_words(rows: Iterable[Outside]) -> str:
    """The rows of `outside` in words: "n_tokens 7 times above 1.31M, ..."; "" if there are none."""
    return ", ".join(row.in_words for row in rows)


def warning_of(rows: list[Outside]) -> str:
    """The warning on an answer outside the fitted range; "" for one inside."""
    return f"outside the fitted range: {in_words(rows)}" if rows else ""
