"""Whether the numbers of a table of runs make sense: units, rows that stand there twice, runs that crashed.

`check` refuses what cannot be, `doubts` names what is suspicious. Nothing is converted unless the user says so
(--units). The checks of losses are in loss_sense.py.

Axes: n runs of the table.
"""

import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array
from fit.data.known_columns import Columns, known_columns, rows_in_words, units_are_open
from fit.data.loss_sense import check_loss, crashed_doubts, unit_doubts
from fit.data.runs import FEWEST_TOKENS, MOST_TOKENS
from fit.data.table import COUNT_UNITS, Table
from fit.errors import UserError
from fit.messages import sentences
from fit.shape.architecture import training_flops

USUAL_TOKENS = 20.0  # for each parameter
# tokens for each parameter of the median run
FEWEST_POSSIBLE_TOKENS = 1e-3
MOST_POSSIBLE_TOKENS = 1e6
SMALLEST = dict(n_active=3e3, n_tokens=3e4)  # of the median run
FAR_OFF = 100  # times outside FEWEST_TOKENS and MOST_TOKENS a single run is named
ODD_SHARE = 0.02  # of the runs outside these, from which on they are named
FLOPS = ("flops", "training_flops", "train_flops", "compute", "budget", "c")  # names of columns of training FLOPs
DECADES_OFF = 2.5  # how far log10 of such a column may be from that of 6 N D
# From so many runs and such a factor of their compute on, losses must fall with it.
FEW = 8
SAME_COMPUTE = 4.0
RISES = 0.5  # rank correlation of loss and compute that no sweep has


def check(table: Table) -> None:
    """Raises UserError where counts or losses of the table cannot be numbers, tokens and nats per token."""
    known = known_columns(table)
    _check_totals(table, known)
    _check_units(table, known)
    check_loss(table, known)
    correlation = _loss_against_compute(known)
    if correlation > RISES:
        raise UserError(
            f"{table.path}, column {table.names.get('loss', 'loss')}: the losses rise with compute (rank correlation "
            f"{correlation:.2f}), so no law of losses holds: is the column an accuracy, or the compute another's?"
        )


def impossible(table: Table) -> list[str]:
    """The sentence with which `check` refuses the table, if it does."""
    try:
        check(table)
    except UserError as error:
        return [error.sentence]
    return []


def doubts(table: Table, crashed: bool = True) -> list[str]:
    """Sentences on what is suspicious in a table of runs that `check` lets pass.

    Args:
      crashed: whether runs of a far too high loss are suspicious: not where rates are tried until training diverges.
    """
    known = known_columns(table)
    sentences_found = [*_expert_doubts(table, known), *_token_doubts(table, known), *_flops_doubts(table, known)]
    correlation = _loss_against_compute(known)
    if correlation > 0:
        sentences_found.append(
            f"the losses do not fall with compute (rank correlation {correlation:+.2f}): no law is well fitted to that"
        )
    return [
        *sentences_found,
        *unit_doubts(table, known),
        *(crashed_doubts(table, known) if crashed else ()),
        *_repetition_doubts(table, known),
    ]


def _loss_against_compute(known: Columns) -> float:
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


def _flops_column(table: Table, known: Columns) -> tuple[str, Array] | None:
    """The name of the column of training FLOPs, and ln of its values over 6 N D, [n]; None where there is none."""
    if not {"n_active", "n_tokens"} <= known.keys():
        return None
    for name in table.columns:
        if name.lower() in FLOPS:
            try:
                flops = table.numbers(name, (1e8, 1e40))
            except UserError:
                continue
            return name, np.log(flops / training_flops(known["n_active"], known["n_tokens"]))
    return None


def _check_totals(table: Table, known: Columns) -> None:
    """Raises UserError where a run has fewer parameters in total than active ones."""
    if not {"n_total", "n_active"} <= known.keys():
        return
    fewer = known["n_total"] < known["n_active"] * 0.99
    if fewer.any():
        first = int(np.argmax(fewer))
        raise UserError(
            f"{table.path}, row {table.rows[first]}: n_total {known['n_total'][first]:g} is below n_active "
            f"{known['n_active'][first]:g}, in {fewer.sum()} of {len(table)} rows: are the columns exchanged?"
        )


def _check_units(table: Table, known: Columns) -> None:
    """Raises UserError where sizes and tokens make sense in other units alone, unless the user named their units."""
    if not {"n_active", "n_tokens"} <= known.keys() or not units_are_open(table, "n_active", "n_tokens"):
        return
    ratio = float(np.median(known["n_tokens"] / known["n_active"]))
    size = float(np.median(known["n_active"]))
    tokens = float(np.median(known["n_tokens"]))
    flops = _flops_column(table, known)
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
    raise UserError(
        f"{table.path}: the median run has n_active {size:g} and n_tokens {tokens:g}, {ratio:.3g} tokens for each "
        f"parameter{of_flops}, which no language model has: if they are so many {' and '.join(units.values())}, say "
        f"--units={flag}; if they are what they seem, --units=n_active:ones"
    )


def _likely_units(ratio: float, size: float, tokens: float, decades_off: float | None) -> dict[str, str] | None:
    """{column: unit} of the units that would make sense, nearest to USUAL_TOKENS; None where none do.

    Args:
      ratio: tokens for each parameter of the median run, as the numbers stand in the table.
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


def _token_doubts(table: Table, known: Columns) -> Iterator[str]:
    """A sentence on runs with far too few or too many tokens for each parameter."""
    size = known.get("n_active", known.get("n_total"))
    if size is None or "n_tokens" not in known:
        return
    ratio = known["n_tokens"] / size
    odd = (ratio < FEWEST_TOKENS) | (ratio > MOST_TOKENS)
    far = (ratio < FEWEST_TOKENS / FAR_OFF) | (ratio > MOST_TOKENS * FAR_OFF)
    if not far.any() and odd.mean() <= ODD_SHARE:
        return
    named = far if far.any() else odd
    what = f"{named.sum():,} of {len(table):,} models, the first of them with"
    words = sentences.TOKENS_PER_PARAMETER.format(what=what, ratio=ratio[named][0])
    yield f"{words} {rows_in_words(table, named)}"


def _flops_doubts(table: Table, known: Columns) -> Iterator[str]:
    """A sentence where a column of training FLOPs is more than ten times off 6 N D."""
    flops = _flops_column(table, known)
    if flops is None:
        return
    name, log_ratio = flops
    median = float(np.median(log_ratio))
    if abs(median) > math.log(10):
        yield (
            f"the column {name} is {math.exp(median):.3g} times 6 n_active n_tokens at the median run: are these "
            "columns what they are called?"
        )


def _expert_doubts(table: Table, known: Columns) -> Iterator[str]:
    """A sentence where the numbers of experts are missing, or are below the number that a token uses."""
    if "n_experts" not in table:
        sentence = "the table has no column n_experts: all its runs are taken as dense (n_experts = 1)"
        if {"n_total", "n_active"} <= known.keys():
            larger = known["n_total"] > 1.05 * known["n_active"]
            if larger.any():
                sentence += f", but n_total is above n_active in {larger.sum()} of them, as in mixtures: give n_experts"
        yield sentence
    elif {"n_experts", "top_k"} <= known.keys():
        too_many = (known["top_k"] > known["n_experts"]) & (known["n_experts"] > 1)
        if too_many.any():
            rows = rows_in_words(table, too_many)
            yield f"{too_many.sum()} runs use more experts than they have ({rows}): top_k above n_experts"


def _repetition_doubts(table: Table, known: Columns) -> Iterator[str]:
    """Sentences on rows that repeat others, and on runs of one name that stand there with several losses."""
    import pandas

    names = [name for name in ("n_active", "n_tokens", "n_experts", "n_total", "loss") if name in known]
    if "loss" not in known or len(names) < 2:
        return
    seeds = table.columns.get("seed") or [""] * len(table)
    frame = pandas.DataFrame({name: known[name] for name in names})
    frame["seed"] = pandas.Series(seeds, dtype=object).map(str)
    repeated = frame.duplicated().to_numpy()
    if repeated.any():
        yield (
            f"{repeated.sum()} of {len(table)} rows repeat others ({rows_in_words(table, repeated)}): they count twice "
            "and make intervals too narrow; leave them out"
        )
    if "run" not in table or not {"n_active", "n_tokens"} <= known.keys():
        return
    frame["run"] = pandas.Series(table.column("run"), dtype=object).map(str)
    same_run = frame.duplicated(["run", "n_active", "n_tokens"]).to_numpy()
    same_run = same_run & ~repeated & (frame["run"] != "").to_numpy()
    if same_run.any():
        yield (
            f"{same_run.sum()} of {len(table)} rows have the name, size and tokens of others but another loss "
            f"({rows_in_words(table, same_run)}): was a run exported twice?"
        )
