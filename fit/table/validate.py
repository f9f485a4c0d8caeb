"""Validate the numbers of a table of runs: their units, repeated rows, crashed runs.

`check` refuses what cannot be, `doubts` names what is suspicious. Nothing is converted unless the user says so
(--units). The checks of counts are in validate_counts.py, those of losses in validate_losses.py.

Axes: n runs of the table.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.messages.finding import Finding, finding
from fit.table.bad_cells import cell_problems, header_problems, header_rows
from fit.table.column_guesses import guess, is_actual, is_without_embedding, rivals
from fit.table.computed import with_columns
from fit.table.known_columns import (
    FEWEST_TOKENS,
    MOST_TOKENS,
    NAMES,
    Columns,
    count_of,
    known_columns,
    rows_in_words,
)
from fit.table.missing_columns import missing_columns
from fit.table.problems import Problem, error_of
from fit.table.table import BOUNDS, Table, with_rows
from fit.table.validate_counts import (
    flops_column,
    left_out_of_flops,
    loss_against_compute,
    rising_problems,
    single_unit_problems,
    total_problems,
    unit_problems,
)
from fit.table.validate_losses import crashed_doubts, loss_problems, unit_doubts, unit_problem

FAR_OFF = 100  # times outside FEWEST_TOKENS and MOST_TOKENS a single run is named
CAN_BE = (1e-12, 1e30)  # counts and losses in any unit
ODD_SHARE = 0.02  # of the runs outside these, from which on they are named


Check = Callable[[Table], Iterable[Problem]]  # a check of a table by our names


def check(table: Table, needed: Sequence[str] = (), further_checks: Sequence[Check] = ()) -> None:
    """Checks that the table has columns, and that its counts and losses can be numbers, tokens and nats per token.

    Args:
      table: the runs.
      needed: the columns that it must have, with a number in each row.
      further_checks: those of the caller.

    Raises:
      TableError: names all that is wrong, the units that are doubtful, and the flags that settle them.
    """
    result = problems(table, needed, further_checks)
    if result:
        raise error_of(table, result)


def require(table: Table, needed: Sequence[str]) -> None:
    """Raises TableError where the table lacks one of these columns, or a number in one. The error names all that is
    wrong with it, too."""
    require_columns(table, needed)
    bad = [problem for name in needed if name in BOUNDS and name in table for problem in cell_problems(table, name)]
    if bad:
        raise error_of(table, bad)


def require_columns(table: Table, needed: Sequence[str]) -> None:
    """Raises TableError where the table lacks one of these columns. The error names all that is wrong with it, too."""
    if not all(table.can_give(name) for name in needed):
        check(table, needed)


def impossible(table: Table) -> list[str]:
    """A sentence for each thing for which `check` refuses the table."""
    refusals, _ = _refusals(table, ())
    return [error_of(table, [problem]).sentence for problem in refusals]


def likely_units(table: Table) -> dict[str, str]:
    """{column: unit} under which `check` accepts a table that it refuses, with the units that the user named."""
    result = problems(table)
    if not result:
        return {}
    return dict(error_of(table, result).flags.get("units", {}))


def problems(table: Table, needed: Sequence[str] = (), further_checks: Sequence[Check] = ()) -> list[Problem]:
    """All that `check` refuses, and with it the units that are doubtful.

    A trial table has guesses for missing columns and likely units for impossible ones. So problems that these would
    hide are listed, too.
    """
    result, trial = _refusals(table, needed)
    for further_check in further_checks:
        result += further_check(_whole_runs(trial, needed))
    if result:
        whole = _whole_runs(trial, needed)
        result += [unit_problem(doubt) for doubt in unit_doubts(whole, _known_values(whole))]
    return result


def _refusals(table: Table, needed: Sequence[str]) -> tuple[list[Problem], Table]:
    """(all that `check` refuses, the table by the names and units that settle it)."""
    result = list(header_problems(table, [name for name in needed if name in table]))
    trial = _without_headers(table) if result else table
    missing = missing_columns(trial, needed)
    result += missing
    trial = _with_flags(trial, missing)
    computed = [problem for problem in missing if "set" in problem.flags]
    if computed:  # formulas read sizes, so their units are settled first
        result += single_unit_problems(trial, _known_values(_whole_runs(trial, ("n_active",))))
        trial = _with_computed(_with_flags(trial, result), computed)
    for check_columns in (total_problems, unit_problems, loss_problems, rising_problems):
        whole = _whole_runs(trial, needed)
        new = list(check_columns(whole, _known_values(whole)))
        trial = _with_flags(trial, new)
        result += new
    for name in needed:
        if name in BOUNDS and trial.can_give(name):
            result += cell_problems(trial, name)
    return result, trial


def _without_headers(table: Table) -> Table:
    """The table without the rows that repeat its header."""
    return with_rows(table, np.flatnonzero(~header_rows(table)))


def _with_flags(table: Table, problems: Sequence[Problem]) -> Table:
    """The table by the names and units that the flags of these problems say."""
    names = dict(table.names)
    units = dict(table.units)
    for problem in problems:
        for name, column in problem.flags.get("columns", {}).items():
            if column in table.columns:
                names[name] = column
        units |= problem.flags.get("units", {})
    if names != table.names or units != table.units:  # a copy loses the columns that are parsed
        table = dataclasses.replace(table, names=names, units=units)
    return table


def _with_computed(table: Table, problems: Sequence[Problem]) -> Table:
    """The table with the columns that the flags of these problems compute."""
    for problem in problems:
        with contextlib.suppress(UserError):  # a bad cell, which cell_problems names
            table = with_columns(table, problem.flags["set"])
    return table


def _whole_runs(table: Table, needed: Sequence[str]) -> Table:
    """The rows of the table that have a number in each needed column."""
    is_whole = np.ones(len(table), bool)
    for name in needed:
        if name in BOUNDS and name in table:
            is_whole &= _are_numbers(table.values(name))
    if is_whole.all() or not is_whole.any():
        return table
    return with_rows(table, np.flatnonzero(is_whole))


def _known_values(table: Table) -> Columns:
    """The columns that checks look at and whose values are all numbers, whatever their bounds."""
    known: Columns = {}
    for name in NAMES:
        if name in table:
            values = table.values(name)
            if len(values) and _are_numbers(values).all():
                known[name] = values
    return known


def _are_numbers(values: Array) -> Array:
    """bool [n]: whether each value can be a count or a loss, in whatever unit."""
    smallest, largest = CAN_BE
    return np.isfinite(values) & (values >= smallest) & (values <= largest)


def doubts(table: Table, crashed: bool = True) -> list[Finding]:
    """Findings on what is suspicious in a table of runs that `check` lets pass.

    Args:
      crashed: whether runs of a far too high loss are suspicious: not where rates are tried until training diverges.
    """
    known = known_columns(table)
    findings = [*_expert_doubts(table, known), *_token_doubts(table, known), *_flops_doubts(table, known)]
    findings += [*_embedding_doubts(table), *_rival_doubts(table)]
    correlation = loss_against_compute(known)
    if correlation > 0:
        findings.append(finding("losses_do_not_fall", correlation=correlation))
    findings += unit_doubts(table, known)
    if crashed:
        findings += crashed_doubts(table, known)
    return [*findings, *_repetition_doubts(table, known)]


def _token_doubts(table: Table, known: Columns) -> Iterator[Finding]:
    """A finding on runs with far too few or too many tokens for each parameter."""
    size = known.get("n_active", known.get("n_total"))
    if size is None or "n_tokens" not in known:
        return
    ratio = known["n_tokens"] / size
    odd = (ratio < FEWEST_TOKENS) | (ratio > MOST_TOKENS)
    far = (ratio < FEWEST_TOKENS / FAR_OFF) | (ratio > MOST_TOKENS * FAR_OFF)
    if not far.any() and odd.mean() <= ODD_SHARE:
        return
    named = far if far.any() else odd
    first = float(ratio[named][0])
    yield finding("tokens_of_runs", **count_of(table, named), ratio=first, rows=rows_in_words(table, named))


def _flops_doubts(table: Table, known: Columns) -> Iterator[Finding]:
    """A finding where a column of training FLOPs leaves out part of the parameters, or is ten times off 6 N D."""
    flops = flops_column(table, known)
    if flops is None:
        return
    name, log_ratio = flops
    median = float(np.median(log_ratio))
    left_out = left_out_of_flops(name, known, log_ratio)
    if left_out:
        yield left_out
    elif abs(median) > math.log(10):
        yield finding("flops_far_off", column=name, times=math.exp(median))


def _embedding_doubts(table: Table) -> Iterator[Finding]:
    """A finding for each count of parameters whose column says, by its name, that it leaves out the embedding."""
    for name in ("n_active", "n_total"):
        column = table.names.get(name)
        if column in table.columns and is_without_embedding(column):
            yield finding("counts_without_embedding", column=column, name=name)


def _rival_doubts(table: Table) -> Iterator[Finding]:
    """A finding for each column of ours beside which another one says, by its name, what was trained."""
    if not any(map(is_actual, table.columns)):
        return
    for name in ("n_active", "n_total", "n_tokens", "loss"):
        if name in table.names or name not in table.columns:
            continue
        for other, apart in rivals(name, name, table.columns).items():
            if is_actual(other):
                yield finding("rival_column", column=name, rival=other, apart=float(apart))


def _expert_doubts(table: Table, known: Columns) -> Iterator[Finding]:
    """A finding where the numbers of experts are missing, or are below the number that a token uses."""
    if "n_experts" not in table:
        larger = 0
        if {"n_total", "n_active"} <= known.keys():
            larger = int(np.sum(known["n_total"] > 1.05 * known["n_active"]))
        yield finding("no_n_experts", column=guess("n_experts", table.columns), larger=larger or None)
    elif {"n_experts", "top_k"} <= known.keys():
        too_many = (known["top_k"] > known["n_experts"]) & (known["n_experts"] > 1)
        if too_many.any():
            rows = rows_in_words(table, too_many)
            yield finding("top_k_above_n_experts", count=int(too_many.sum()), rows=rows)


def _repetition_doubts(table: Table, known: Columns) -> Iterator[Finding]:
    """Findings on rows that repeat others, and on runs of one name with several losses."""
    import pandas

    names = [name for name in ("n_active", "n_tokens", "n_experts", "n_total", "loss") if name in known]
    if "loss" not in known or len(names) < 2:
        return
    seeds = table.column_or("seed", "")
    frame = pandas.DataFrame({name: known[name] for name in names})
    frame["seed"] = pandas.Series(seeds, dtype=object).map(str)
    repeated = frame.duplicated().to_numpy()
    if repeated.any():
        yield finding("rows_repeated", **count_of(table, repeated), rows=rows_in_words(table, repeated))
    if "run" not in table or not {"n_active", "n_tokens"} <= known.keys():
        return
    frame["run"] = pandas.Series(table.column("run"), dtype=object).map(str)
    same_run = frame.duplicated(["run", "n_active", "n_tokens"]).to_numpy()
    same_run = same_run & ~repeated & (frame["run"] != "").to_numpy()
    if same_run.any():
        yield finding("run_twice", **count_of(table, same_run), rows=rows_in_words(table, same_run))
