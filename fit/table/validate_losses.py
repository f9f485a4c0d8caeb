"""Validate the losses of a table of runs: nats per token, and no crashed runs.

The losses are set against a law of dense models on web text (Besiroglu et al. 2024, arXiv 2404.10102). Sweeps on other
text and with other tokenizers lie between 0.88 and 1.28 times its loss of equal size and tokens.

Axes: n runs of the table; m runs that can be set against the law.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array
from fit.messages.finding import Finding, finding
from fit.messages.printable import printable
from fit.model.architecture import training_flops
from fit.table.column_guesses import snake_case
from fit.table.known_columns import STATES, Columns, count_of, rows_in_words, units_are_open
from fit.table.problems import Problem
from fit.table.selection import text_of
from fit.table.spelled import YES
from fit.table.table import Table

LARGEST_VOCABULARY = 2**18  # of tokenizers in use
LARGEST_BYTE_VOCABULARY = 1024  # a vocabulary up to this size is of bytes or characters
# The least model whose loss is set against the law of web text.
LEAST_SIZE = 1e7
LEAST_FLOPS = 1e17
# Times the loss of that law: suspicious below LOW and above HIGH, impossible above TOO_HIGH.
LOW = 0.45
HIGH = 1.38
TOO_HIGH = 2.5
PERPLEXITY_LOW = 0.8  # times that law: losses that are more, read as perplexities, are perplexities
CRASHED = 0.9  # of ln(vocabulary): nothing was learnt
CRASHED_OF_MEDIAN = 2.2  # the same where the vocabulary is not known, in losses of the median run
# states of runs that ended as planned; in a column that has one, all other words are states of runs that did not
DONE = (
    "finished",
    "finish",
    "done",
    "complete",
    "completed",
    "success",
    "succeeded",
    "successful",
    "ok",
    "ended",
)
UNFINISHED = (
    "crashed",
    "failed",
    "killed",
    "running",
    "preempted",
    "unfinished",
    "preempting",
    "error",
    "oom",
    "diverged",
    "cancelled",
    "canceled",
    "aborted",
    "stopped",
    "pending",
    "timeout",
    "interrupted",
    "nan",
)
NO = ("false", "no", "0", "0.0")
# {part of a column's name: the unit that it speaks of}
UNIT_BY_NAME = dict(ppl="perplexity", perplex="perplexity", bpb="FACTOR", bpc="FACTOR", per_byte="FACTOR", bits="bits")


@dataclasses.dataclass(frozen=True)
class AgainstWebText:
    """Losses [m] of runs, and those that the law of web text gives models of their sizes and tokens, [m]."""

    loss: Array
    reference: Array

    @property
    def median_ratio(self) -> float:
        """The loss over that of the law, at the median run."""
        return float(np.median(self.loss / self.reference))


def against_web_text(known: Columns) -> AgainstWebText | None:
    """The runs set against the law of web text; None where most are too small, or tokens are bytes or characters."""
    of_bytes = "vocab_size" in known and known["vocab_size"].min() <= LARGEST_BYTE_VOCABULARY
    if of_bytes or not {"n_active", "n_tokens", "loss"} <= known.keys():
        return None
    n_active = known["n_active"]
    n_tokens = known["n_tokens"]
    large = (n_active >= LEAST_SIZE) & (training_flops(n_active, n_tokens) >= LEAST_FLOPS)
    if large.mean() <= 0.5:
        return None
    reference = 1.8172 + 482.01 / n_active[large] ** 0.3478 + 2085.43 / n_tokens[large] ** 0.3658
    return AgainstWebText(known["loss"][large], reference)


def _vocabulary(known: Columns) -> int | None:
    """The largest vocabulary of the runs; None where the table does not say it."""
    if "vocab_size" in known and np.all(known["vocab_size"] >= 2):
        return int(known["vocab_size"].max())
    return None


def _loss_of_no_knowledge(known: Columns) -> tuple[float, str]:
    """The loss in nats per token of a model that knows nothing, and what it follows from in words."""
    size = _vocabulary(known)
    if size is not None:
        return math.log(size), f"the logarithm of the vocabulary of {size:,}"
    return math.log(LARGEST_VOCABULARY), f"the logarithm of the largest vocabularies, {LARGEST_VOCABULARY:,}"


def _likely_unit(loss: Array, against: AgainstWebText | None) -> str:
    """The unit in which the losses are nearest to those of the law of web text, or else possible at all."""
    if against is None:
        return "perplexity" if np.median(loss) > 2 * math.log(LARGEST_VOCABULARY) else "bits"
    ratios = _ratios(against)
    if PERPLEXITY_LOW < ratios["perplexity"] < HIGH:
        return "perplexity"  # which is usual, while nobody means 2 to the power of nats
    return min(ratios, key=lambda unit: abs(math.log(ratios[unit])))


def _ratios(against: AgainstWebText) -> dict[str, float]:
    """{unit: the loss over that of the law of web text, at the median run, if the losses are in this unit}."""
    loss = np.maximum(against.loss, 1.0 + 1e-9)
    ratios = dict(
        bits=np.median(against.loss * math.log(2) / against.reference),
        perplexity=np.median(np.log(loss) / against.reference),
        exp2=np.median(np.log2(loss) / against.reference),
    )
    return {unit: float(ratio) for unit, ratio in ratios.items()}


def _other_units(unit: str, against: AgainstWebText | None) -> str:
    """A clause on other units that are possible, with how far they are from web text; "" where there are none."""
    if against is None:
        return ""
    ratios = _ratios(against)
    others = [other for other, ratio in ratios.items() if other != unit and LOW < ratio < HIGH]
    if not others or unit not in ratios:
        return ""
    listed = " and ".join(f"{other} ({ratios[other]:.2f} times)" for other in others)
    return f"; {unit} gives {ratios[unit]:.2f} times the losses of web text, but {listed} fits, too"


def _unit_by_name(table: Table) -> str | None:
    """The unit that the name of the column of losses speaks of, if any; FACTOR for losses per byte or character."""
    name = table.names.get("loss", "loss").lower()
    return next((unit for part, unit in UNIT_BY_NAME.items() if part in name), None)


def loss_problems(table: Table, known: Columns) -> Iterator[Problem]:
    """Yields a problem where the losses cannot be nats per token, unless the user named their unit."""
    if "loss" not in known or not units_are_open(table, "loss"):
        return
    median = float(np.median(known["loss"]))
    ceiling, follows_from = _loss_of_no_knowledge(known)
    against = against_web_text(known)
    if median > ceiling:
        why = f"above {ceiling:.2f}, {follows_from}, which a model that knows nothing has"
    elif against is not None and against.median_ratio > TOO_HIGH:
        why = f"{against.median_ratio:.2g} times what models of these sizes and tokens reach on web text"
    else:
        return
    unit = _unit_by_name(table)
    if unit in (None, "FACTOR"):
        unit = _likely_unit(known["loss"], against)
    yield Problem(
        f"the median loss is {median:.4g}, {why}: it is not in nats per token; say --units=loss:{unit} if that is its "
        "unit (nats, bits, perplexity, exp2 for 2 to the power of the loss in nats, or a number to multiply it by)"
        f"{_other_units(unit, against)}",
        f"column {table.names.get('loss', 'loss')}",
        {"units": {"loss": unit}},
    )


def unit_doubts(table: Table, known: Columns) -> Iterator[Finding]:
    """Yields a finding where the losses may not be nats per token, by the column's name or by their size."""
    if "loss" not in known or not units_are_open(table, "loss"):
        return
    unit = _unit_by_name(table)
    if unit is not None:
        named = None if unit == "FACTOR" else unit
        yield finding("losses_named_otherwise", column=table.names.get("loss", "loss"), unit=named)
        return
    against = against_web_text(known)
    if against is None:
        return
    ratio = against.median_ratio
    if ratio > HIGH:
        yield finding("losses_high", ratio=ratio, unit=_likely_unit(known["loss"], against))
    elif ratio < LOW:
        yield finding("losses_low", ratio=ratio)


def unit_problem(doubt: Finding) -> Problem:
    """A finding of unit_doubts beside the problems of a table that is refused. It has a flag where the column's name
    says the unit."""
    by_name = doubt.code == "losses_named_otherwise" and "unit" in doubt.values
    return Problem(str(doubt), flags={"units": {"loss": doubt.values["unit"]}} if by_name else {})


def _unfinished_doubts(table: Table, column: str) -> Iterator[Finding]:
    """A finding on the runs that did not finish, by a column of their states."""
    states = [text_of(value) for value in table.columns[column]]
    done = sorted({state for state in states if state.lower() in DONE})
    unfinished = np.array([state.lower() in UNFINISHED for state in states])
    if done:
        unfinished = np.array([state != "" and state.lower() not in DONE for state in states])
    if not unfinished.any():
        return
    values = ", ".join(sorted({printable(states[i]) for i in np.flatnonzero(unfinished)}))
    where = ",".join(f"{column}={state}" for state in done) or None
    rows = rows_in_words(table, unfinished)
    yield finding("unfinished", **count_of(table, unfinished), column=column, states=values, rows=rows, where=where)


def _flag_doubts(table: Table, column: str, bad: tuple[str, ...], good: tuple[str, ...]) -> Iterator[Finding]:
    """A finding on the runs that did not finish, by a column such as finished or diverged.

    Args:
      bad: its values for runs that did not finish.
      good: its values for all others.
    """
    values = [text_of(value).lower() for value in table.columns[column]]
    if not set(values) <= {*bad, *good, ""}:
        return
    unfinished = np.array([value in bad for value in values])
    if unfinished.any() and not unfinished.all():
        example = values[int(np.argmax(unfinished))]
        rows = rows_in_words(table, unfinished)
        where = f"{column}!={example}"
        yield finding(
            "marked_unfinished", **count_of(table, unfinished), column=column, value=example, rows=rows, where=where
        )


def crashed_doubts(table: Table, known: Columns) -> Iterator[Finding]:
    """Findings on runs that did not finish, and on runs whose loss says that they learnt nothing."""
    for column in table.columns:
        name = snake_case(column)
        if name in STATES:
            yield from _unfinished_doubts(table, column)
        elif name in DONE:
            yield from _flag_doubts(table, column, NO, YES)
        elif name in UNFINISHED:
            yield from _flag_doubts(table, column, YES, NO)
    if "loss" not in known:
        return
    vocab_size = _vocabulary(known)
    limit = CRASHED_OF_MEDIAN * float(np.median(known["loss"]))
    if vocab_size is not None:
        limit = CRASHED * math.log(vocab_size)
    crashed = known["loss"] > limit
    if crashed.any():
        limits = dict(vocab_size=vocab_size, times=CRASHED_OF_MEDIAN)
        yield finding("nothing_learnt", **count_of(table, crashed), **limits, rows=rows_in_words(table, crashed))
