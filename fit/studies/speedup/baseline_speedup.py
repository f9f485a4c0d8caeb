"""How many times the compute, or the hours, a baseline needs for the losses of variants that stand in the same table.

The baseline's runs at several budgets C are its frontier,

  L = c + A C^-b,

which frontier.py fits. A variant of loss L that took C has the factor C* / C, where C* is the compute at which the
baseline reaches L. Where the baseline has a run at the variant's own budget, the frontier is moved to go through that
run, as marin-community/marin does (experiments/grug/moe/agent.md).

With by="time" the factor is a ratio of hours. If the table has `hours`, the frontier is fitted over hours. Otherwise it
needs `tokens_per_second` and a baseline run of equal FLOPs: the variant's hours count as the FLOPs that the baseline
trains in them.

Intervals include the uncertainty of c, A and b, and the scatter of single runs.

Axes: n_base runs of the baseline; n_runs variants; n_draws.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.messages.finding import Finding, finding
from fit.model.architecture import training_flops
from fit.studies.speedup import baseline_answer
from fit.studies.speedup.frontier import COEFFICIENTS, DRAWS, Frontier, fit_frontier
from fit.studies.speedup.results import BaselineSpeedup, FittedFrontier, Variant
from fit.table.table import Table, with_rows

PERCENTILES = (10.0, 90.0)
BEYOND = 1.01  # times the baseline's largest cost, from which a warning says so
SAME = 1e-3  # relative difference of equal budgets
LEAST = 1e-9  # FLOPs, hours or tokens per second
NOT_LABELS = ("loss", "flops", "hours", "n_tokens", "tokens_per_second")  # columns that do not name a run


@dataclasses.dataclass(frozen=True)
class ComparedRuns:
    """The runs of a table, what each costs, and which are the baseline's.

    Attributes:
      labels: {column: values [n]} that name a run.
      loss: [n].
      cost: [n], FLOPs or hours.
      unit: which of them.
      is_baseline: boolean [n].
      pair: for each run the index of the baseline's run at the same budget, -1 for none [n].
    """

    labels: dict[str, list]
    loss: Array
    cost: Array
    unit: str
    is_baseline: Array
    pair: Array


def baseline_speedup(
    table: Table,
    baseline: Mapping[str, str],
    by: str = "flops",
    fix: Mapping[str, str] | None = None,
    seed: int = 0,
    verbose: bool = False,
) -> BaselineSpeedup:
    """How many times the compute, or the hours, a baseline needs for the losses of variants in the same table.

    Args:
      table: Runs with loss, and flops or n_active and n_tokens; by time also hours, or tokens_per_second.
      baseline: {column: value} of the baseline's runs.
      by: "flops" or "time".
      fix: {"c": floor, "b": exponent} to hold, in place of a fit to the baseline's runs.
      seed: Seed of the draws.
      verbose: Whether the text has the table of the variants.

    Raises:
      UserError: A column or value is missing, or the baseline has too few runs.
    """
    fixed = _fixed(fix or {})
    runs, findings = _read_runs(table, baseline, by)
    of_baseline = runs.is_baseline
    source = f"{table.path}: the baseline"
    lowest = float(runs.loss.min())
    frontier = fit_frontier(runs.cost[of_baseline], runs.loss[of_baseline], lowest, fixed, seed, source)
    log_factors = _log_factors(runs, frontier, seed)
    rows = _variants(runs, log_factors)
    farthest = max(row.beyond for row in rows)
    if farthest > BEYOND:
        count = sum(row.beyond > BEYOND for row in rows)
        findings.append(finding("beyond_baseline", count=count, factor=farthest))
    return BaselineSpeedup(
        baseline=dict(baseline),
        by=by,
        unit=runs.unit,
        frontier=FittedFrontier(
            c=float(frontier.floors[0]), b=float(frontier.exponents[0]), runs=int(of_baseline.sum())
        ),
        fixed=fixed,
        runs=rows,
        factor=float(np.exp(log_factors[0].mean())),
        interval=_interval(log_factors[1:].mean(axis=1)),
        percentiles=list(PERCENTILES),
        findings=findings,
        answer_of=baseline_answer.verbose if verbose else baseline_answer.answer,
    )


def _log_factors(runs: ComparedRuns, frontier: Frontier, seed: int) -> Array:
    """ln(C* / C) [1 + DRAWS, n_runs] of the variants."""
    rng = np.random.default_rng([seed, 1])
    errors = rng.standard_normal((len(runs.loss), DRAWS))  # of the baseline's runs, too
    log_cost = np.log(runs.cost)
    factors = []
    for i in np.flatnonzero(~runs.is_baseline).tolist():
        log_reducible = frontier.log_reducible(runs.loss[i], errors[i])
        pair = int(runs.pair[i])
        if pair >= 0:
            of_pair = frontier.log_reducible(runs.loss[pair], errors[pair])
            log_baseline_cost = log_cost[pair] + (of_pair - log_reducible) / frontier.exponents
        else:
            log_baseline_cost = (frontier.levels - log_reducible) / frontier.exponents
        factors.append(log_baseline_cost - log_cost[i])
    return np.stack(factors, axis=1)


def _variants(runs: ComparedRuns, log_factors: Array) -> list[Variant]:
    """The variants with their factors [1 + DRAWS, n_runs]."""
    most = float(runs.cost[runs.is_baseline].max())
    rows = []
    for column, i in enumerate(np.flatnonzero(~runs.is_baseline).tolist()):
        factor = float(np.exp(log_factors[0, column]))
        baseline_cost = factor * float(runs.cost[i])
        row = Variant(
            run={name: values[i] for name, values in runs.labels.items()},
            loss=float(runs.loss[i]),
            cost=float(runs.cost[i]),
            baseline_cost=baseline_cost,
            factor=factor,
            interval=_interval(log_factors[1:, column]),
            beyond=max(1.0, baseline_cost / most),
        )
        rows.append(row)
    return rows


def _fixed(fix: Mapping[str, str]) -> dict[str, float]:
    """The coefficients that are given. Raises UserError for a name or a number that cannot be."""
    fixed = {}
    for name, value in fix.items():
        if name not in COEFFICIENTS:
            raise UserError(f"--fix={name}={value}: with --baseline the frontier has {' and '.join(COEFFICIENTS)}")
        try:
            number = float(value)
        except ValueError:
            number = np.nan
        is_good = number >= 0 if name == "c" else number > 0
        if not (is_good and np.isfinite(number)):
            expected = "a number of at least 0" if name == "c" else "a positive number"
            raise UserError(f"--fix={name}={value}: expected {expected}")
        fixed[name] = number
    return fixed


def _read_runs(table: Table, baseline: Mapping[str, str], by: str) -> tuple[ComparedRuns, list[Finding]]:
    """(the runs that have a loss, findings). Raises UserError where a column is missing or no run is left."""
    has_loss = np.array([value not in (None, "") for value in table.column("loss")])
    findings: list[Finding] = []
    if not has_loss.all():
        findings.append(finding("rows_without_loss", count=int((~has_loss).sum())))
        table = with_rows(table, np.flatnonzero(has_loss))
    is_baseline = np.ones(len(table), bool)
    for name, value in baseline.items():
        is_baseline &= np.array([_same(cell, value) for cell in table.column(name)], bool)
    words = ",".join(f"{name}={value}" for name, value in baseline.items())
    if not is_baseline.any() or is_baseline.all():
        which = "no row" if not is_baseline.any() else "every row"
        raise UserError(f"{table.path}: --baseline={words}: {which} is such a run; expected some, and others beside")
    cost, unit, pair = _costs(table, by, is_baseline)
    return ComparedRuns(_labels(table), table.numbers("loss"), cost, unit, is_baseline, pair), findings


def _labels(table: Table) -> dict[str, list]:
    """{column: values} of the first columns that tell the runs apart."""
    measured = {*NOT_LABELS, *(table.names.get(name, name) for name in NOT_LABELS)}
    labels: dict[str, list] = {}
    n_apart = 1
    for name, values in table.columns.items():
        if name in measured:
            continue
        n_with = len(set(zip(*labels.values(), values, strict=True)))
        if n_with > n_apart:
            labels[name] = values
            n_apart = n_with
    return labels


def _costs(table: Table, by: str, is_baseline: Array) -> tuple[Array, str, Array]:
    """(cost of each run, its unit, for each run the index of the baseline's run of the same budget or -1).

    Raises:
      UserError: A column is missing, or a run has no run of the baseline to compare its speed with.
    """
    if by == "time" and "hours" in table:
        hours = table.numbers("hours", (LEAST, np.inf))
        return hours, "hours", _pairs(hours, is_baseline)
    if "flops" in table:
        compute = table.numbers("flops", (LEAST, np.inf))
    else:
        compute = training_flops(table.numbers("n_active"), table.numbers("n_tokens"))
    pair = _pairs(compute, is_baseline)
    if by == "flops":
        return compute, "FLOPs", pair
    speed = table.numbers("tokens_per_second", (LEAST, np.inf))
    alone = np.flatnonzero(~is_baseline & (pair < 0))
    if len(alone):
        raise UserError(
            f"{table.path}, row {table.rows[alone[0]]}: the baseline has no run of equal FLOPs to compare its "
            "speed with; add a column hours"
        )
    of_baseline = np.where(is_baseline, speed, speed[pair])
    return compute * of_baseline / speed, "FLOPs", pair


def _same(cell: object, value: str) -> bool:
    """Whether a cell has a value: the same text, or the same number."""
    if str(cell).strip() == value:
        return True
    try:
        return float(str(cell)) == float(value)
    except ValueError:
        return False


def _pairs(budget: Array, is_baseline: Array) -> Array:
    """For each run the index of the baseline's run of the same budget (the last such row); -1 where there is none."""
    pair = np.full(len(budget), -1)
    for i in np.flatnonzero(is_baseline):
        pair[np.abs(budget / budget[i] - 1) < SAME] = i
    return pair


def _interval(log_values: Array) -> list[float]:
    """[low, high] of the exponential of drawn values [n_draws], at PERCENTILES."""
    return np.exp(np.percentile(log_values, PERCENTILES)).tolist()
