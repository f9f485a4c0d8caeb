"""Validate the counts of a table of runs: parameters, tokens and FLOPs, and the units that would fit.

Axes: n runs of the table.
"""

import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.messages.finding import Finding, finding
from fit.model.architecture import training_flops
from fit.table.column_guesses import snake_case
from fit.table.known_columns import FEWEST_TOKENS, MOST_TOKENS, Columns, units_are_open
from fit.table.problems import Problem
from fit.table.table import COUNT_UNITS, Table

USUAL_TOKENS = 20.0  # for each parameter
# tokens for each parameter of the median run
FEWEST_POSSIBLE_TOKENS = 1e-3
MOST_POSSIBLE_TOKENS = 1e6
SMALLEST = dict(n_active=3e3, n_tokens=3e4)  # of the median run
USUAL = dict(n_active=5e8, n_tokens=1e10)  # what most tables of runs are about
# names of columns of training FLOPs
FLOPS = (
    "flops",
    "training_flops",
    "train_flops",
    "total_flops",
    "flops_budget",
    "flop_budget",
    "train_compute",
    "training_compute",
    "compute",
    "budget",
    "c",
)
# A column of FLOPs leaves out embedding and head if it counts less than MOST_COUNTED of the smallest model's
# parameters, and a share of the largest model's that is more than GROWS times as large.
MOST_COUNTED = 0.85
GROWS = 1.1
DECADES_OFF = 2.5  # how far log10 of such a column may be from that of 6 N D
# Losses must fall with compute if a table has at least this many runs over at least this factor of compute.
FEW = 8
SAME_COMPUTE = 4.0
RISES = 0.5  # rank correlation of loss and compute that no sweep has


def total_problems(table: Table, known: Columns) -> Iterator[Problem]:
    """Yields a problem where a run has fewer parameters in total than active ones."""
    if not {"n_total", "n_active"} <= known.keys():
        return
    fewer = known["n_total"] < known["n_active"] * 0.99
    if fewer.any():
        first = int(np.argmax(fewer))
        yield Problem(
            f"n_total {known['n_total'][first]:g} is below n_active {known['n_active'][first]:g}, in {fewer.sum()} of "
            f"{len(table)} rows: are the columns exchanged?",
            f"row {table.rows[first]}",
            is_settled=False,
        )


def rising_problems(table: Table, known: Columns) -> Iterator[Problem]:
    """Yields a problem where losses rise with compute."""
    correlation = loss_against_compute(known)
    if correlation > RISES:
        yield Problem(
            f"the losses rise with compute (rank correlation {correlation:.2f}), so no law of losses holds: is the "
            "column an accuracy, or the compute another's?",
            f"column {table.names.get('loss', 'loss')}",
            is_settled=False,
        )


def unit_problems(table: Table, known: Columns) -> Iterator[Problem]:
    """Yields a problem where sizes and tokens are possible in other units alone, unless the user named their units."""
    if not units_are_open(table, "n_active", "n_tokens"):
        return
    if not {"n_active", "n_tokens"} <= known.keys():
        yield from single_unit_problems(table, known)
        return
    ratio = float(np.median(known["n_tokens"] / known["n_active"]))
    size = float(np.median(known["n_active"]))
    tokens = float(np.median(known["n_tokens"]))
    flops = flops_column(table, known)
    decades_off = None if flops is None else float(np.median(flops[1])) / math.log(10)
    flops_fit = decades_off is None or abs(decades_off) < DECADES_OFF
    is_possible = FEWEST_POSSIBLE_TOKENS <= ratio <= MOST_POSSIBLE_TOKENS
    is_possible &= size >= SMALLEST["n_active"] and tokens >= SMALLEST["n_tokens"]
    if is_possible and flops_fit:
        return
    units = _likely_units(ratio, size, tokens, decades_off)
    if units is None:
        return
    flag = ",".join(f"{name}:{unit}" for name, unit in units.items())
    of_flops = ""
    if flops and not flops_fit:
        of_flops = f", and column {flops[0]} is 10^{decades_off:.1f} times 6 N D"
    yield Problem(
        f"the median run has n_active {size:g} and n_tokens {tokens:g}, {ratio:.3g} tokens for each "
        f"parameter{of_flops}, which no language model has: if they are counts of {' and '.join(units.values())}, say "
        f"--units={flag}; if they are what they seem, --units=n_active:ones",
        flags={"units": units},
    )


def single_unit_problems(table: Table, known: Columns) -> Iterator[Problem]:
    """Yields a problem where only sizes or only tokens are known, and are too small to be plain numbers."""
    for name, smallest in SMALLEST.items():
        if name not in known or not units_are_open(table, name):
            continue
        median = float(np.median(known[name]))
        if median >= smallest:
            continue

        def decades_off(unit: str, median: float = median, name: str = name) -> float:
            return abs(math.log10(median * COUNT_UNITS[unit] / USUAL[name]))

        unit = min(COUNT_UNITS, key=decades_off)
        yield Problem(
            f"the median run has {name} {median:g}, fewer than any language model has: if they are {unit}, say "
            f"--units={name}:{unit}; if they are what they seem, --units={name}:ones",
            flags={"units": {name: unit}},
        )


def _likely_units(ratio: float, size: float, tokens: float, decades_off: float | None) -> dict[str, str] | None:
    """{column: unit} of the units that are possible, nearest to USUAL_TOKENS; None where none do.

    Args:
      ratio: tokens for each parameter of the median run, by the numbers in the table.
      size: its n_active.
      tokens: its n_tokens.
      decades_off: log10 of the table's training FLOPs over 6 N D, where it has such a column.
    """
    best = None
    best_key = None
    for size_unit, size_factor in COUNT_UNITS.items():
        for token_unit, token_factor in COUNT_UNITS.items():
            units = dict(n_active=size_unit, n_tokens=token_unit)
            units = {name: unit for name, unit in units.items() if unit != "ones"}
            new_ratio = ratio * token_factor / size_factor
            is_sensible = FEWEST_TOKENS <= new_ratio <= MOST_TOKENS
            is_sensible &= 1e4 <= size * size_factor <= 1e13 and 1e5 <= tokens * token_factor <= 1e16
            factor = size_factor * token_factor
            flops_agree = decades_off is None or abs(decades_off - math.log10(factor)) < 1
            if not units or not is_sensible or not flops_agree:
                continue
            key = abs(math.log(ratio * token_factor / size_factor / USUAL_TOKENS)), factor
            if best_key is None or key < best_key:
                best = units
                best_key = key
    return best


def is_flops(column: str) -> bool:
    """Whether a column's name says that it holds training FLOPs."""
    return snake_case(column) in FLOPS


def flops_column(table: Table, known: Columns) -> tuple[str, Array] | None:
    """The name of the column of training FLOPs, and ln of its values over 6 N D, [n]; None where there is none."""
    if not {"n_active", "n_tokens"} <= known.keys():
        return None
    for name in table.columns:
        if is_flops(name):
            try:
                flops = table.numbers(name, (1e8, 1e40))
            except UserError:
                continue
            return name, np.log(flops / training_flops(known["n_active"], known["n_tokens"]))
    return None


def left_out_of_flops(column: str, known: Columns, log_ratio: Array) -> Finding | None:
    """A finding on the embedding or head that a column of training FLOPs leaves out; None where it leaves out none.

    Such a column counts fewer parameters than a model has, and a smaller share of them the smaller the model.

    Args:
      column: its name.
      known: the columns of the table.
      log_ratio: ln of the column's FLOPs over 6 N D, [n].
    """
    n_active = known["n_active"]
    share = np.exp(log_ratio)  # of the parameters that the FLOPs count
    smallest = share[np.argmin(n_active)]
    largest = share[np.argmax(n_active)]
    if not (smallest < MOST_COUNTED and np.all(share < 1.05) and largest > smallest * GROWS):
        return None
    vocab_size = None
    if "vocab_size" in known:
        rows_of_width = (1 - share) * n_active / known["vocab_size"]  # of one matrix or of two
        is_whole = np.abs(rows_of_width - np.round(rows_of_width)) < 1e-3 * rows_of_width
        if is_whole.all():
            vocab_size = int(known["vocab_size"].max())
    shares = dict(smallest=float(smallest), largest=float(largest))
    return finding("flops_leave_out", column=column, **shares, vocab_size=vocab_size)


def loss_against_compute(known: Columns) -> float:
    """The rank correlation of loss and training FLOPs, or of loss and size where tokens are not known.

    -1 for few runs, or for runs of about the same compute.
    """
    import pandas

    if not {"n_active", "loss"} <= known.keys():
        return -1.0
    compute = known["n_active"] * known.get("n_tokens", np.ones(1))
    loss = known["loss"]
    if len(compute) < FEW or compute.max() < SAME_COMPUTE * compute.min() or np.ptp(loss) == 0:
        return -1.0
    middle = (len(compute) + 1) / 2
    compute_rank = pandas.Series(compute).rank(method="first").to_numpy() - middle
    loss_rank = pandas.Series(loss).rank(method="first").to_numpy() - middle
    return float(np.sum(compute_rank * loss_rank) / np.sum(compute_rank**2))
