"""Findings on the table of runs and on the law fitted to it, as law.json has them."""

import re

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.fitting import search
from fit.form import Form
from fit.messages.finding import Finding, finding
from fit.model.architecture import EXPERTS, OF_EXPERTS
from fit.table import histories, mixed_columns, validate
from fit.table.known_columns import rows_in_words
from fit.table.runs import Runs
from fit.table.table import Table

# Two groups of runs by their gains from the text before: the least distance of their means, in nats, and the least
# share of the variance that the groups explain.
TRANSITION_NATS = 0.05
GROUPED = 0.85
# A run is far off a law beyond this many robust standard deviations, or this many times the median error.
FAR_SCATTERS = 6.0
FAR_TIMES = 10.0
SMALLEST_SCATTER = 5e-4  # of the log loss: no run is repeated more exactly
MOST_NAMED = 5


def of_table(form: Form, runs: Runs, is_rated: bool = False) -> list[Finding]:
    """Findings on doubtful runs, and on mixtures where the form does not read the number of experts.

    Args:
      form: the form to fit.
      runs: all runs of the table.
      is_rated: as of doubts_of.
    """
    table = runs.table
    findings = doubts_of(table, is_rated)
    if "n_experts" in form.columns:
        findings += lonely_experts(table)
    findings += transition(runs)
    if not set(OF_EXPERTS) & set(form.columns) and "n_experts" in table:
        findings += _mixtures_unread(form, runs)
    return findings


def doubts_of(table: Table, is_rated: bool) -> list[Finding]:
    """Findings on what is suspicious in a table, each with its file.

    Args:
      table: the runs.
      is_rated: whether the law is fitted together with the best learning rate.
    """
    findings = [*validate.doubts(table, crashed=not is_rated), *mixed_runs(table, is_rated)]
    return [doubt.of_file(table.path) for doubt in findings]


def _mixtures_unread(form: Form, runs: Runs) -> list[Finding]:
    """A finding on the mixtures of a table, for a form that does not read the number of experts."""
    experts = runs.table.numbers("n_experts")
    values = [f"{e:g}" for e in np.unique(experts)]
    if len(values) > 1:
        counts = dict(mixtures=int(np.sum(experts > 1)), runs=len(runs))
        return [finding("mixtures_unread", **counts, n_experts=", ".join(values), form=form.name)]
    if values != ["1"]:
        return [finding("one_n_experts", n_experts=values[0], form=form.name)]
    return []


def mixed_runs(table: Table, is_rated: bool) -> list[Finding]:
    """Findings on runs that do not compare: of several schedules or rates, or checkpoints of one run.

    Args:
      table: the runs.
      is_rated: whether the law is fitted together with the best learning rate.
    """
    doubts = [*mixed_columns.recipe_doubts(table), *histories.unnamed_histories(table)]
    if is_rated:
        return doubts
    of_rates = list(mixed_columns.rate_doubts(table))
    if of_rates:  # different rates explain rows that lie above others
        return doubts + of_rates
    return [*doubts, *histories.rows_above_others(table)]


def lonely_experts(table: Table) -> list[Finding]:
    """A finding for the least and the largest number of experts that a single run has."""
    if "n_experts" not in table:
        return []
    experts = table.numbers("n_experts")
    values, counts = np.unique(experts, return_counts=True)
    findings = []
    for value, count in zip(values[[0, -1]], counts[[0, -1]], strict=True):
        if count == 1 and len(values) > 1:
            row = rows_in_words(table, experts == value)
            findings.append(finding("lonely_experts", file=table.path, row=row, n_experts=float(value)))
    return findings


def transition(runs: Runs) -> list[Finding]:
    """A finding if the runs fall into two groups by their gain from the context in a row.

    Gains that grow smoothly with compute fill the range between the groups. After a transition, such as that to
    induction heads, they do not.
    """
    parts = _early_and_late_part(runs.table)
    if parts is None:
        return []
    early, late = parts
    try:
        gain = (runs.table.numbers(early) - runs.table.numbers(late))[runs.index]
    except UserError:  # rows of several lengths, or runs from before these columns: nothing to compare
        return []
    split = two_groups(gain)
    if split is None:
        return []
    across = np.flatnonzero(gain > split)
    names = [f"row {i + 1}" for i in range(len(runs.table))]
    if "run" in runs.table:
        names = runs.table.column("run")
    largest = across[np.argsort(-gain[across])][:3]
    listed = ", ".join(f"{names[runs.index[i]]} ({gain[i]:.3f})" for i in largest)
    counts = dict(across=len(across), runs=len(runs), listed=listed)
    median = float(np.median(gain[gain <= split]))
    return [finding("transition", **counts, early=early, late=late, median=median)]


def _early_and_late_part(table: Table) -> tuple[str, str] | None:
    """The columns of the losses in the part of a row that ends at its quarter, and in its last part; None without them.

    The columns loss_FIRST_LAST hold losses at these positions of a row; parts end at powers of two.
    """
    by_end = {}
    for name in table.columns:
        match = re.fullmatch(r"loss_(\d+)_(\d+)", name)
        if match:
            by_end[int(match[2])] = name
    if len(by_end) < 3:
        return None
    *_, early, _, late = (by_end[end] for end in sorted(by_end))
    return early, late


def two_groups(values: Array) -> float | None:
    """The largest value of the lower one of two groups of values [n].

    They are split where the least variance is left within them (Otsu 1979).

    Returns:
      None where the split explains less than GROUPED of the variance (evenly spread values have 0.75), or the groups'
      means are less than TRANSITION_NATS apart.
    """
    ordered = np.sort(values)
    total = np.var(ordered)
    best = 0.0
    split = None
    for count in range(1, len(ordered)):
        low = ordered[:count]
        high = ordered[count:]
        share = count * (len(ordered) - count) / len(ordered) ** 2
        apart = high.mean() - low.mean()
        explained = share * apart**2 / total if total > 0 else 0.0
        if explained > best:
            best = explained
            split = float(low[-1]) if apart >= TRANSITION_NATS and explained >= GROUPED else None
    return split


def far_off(log_loss: Array, runs: Runs) -> list[Finding]:
    """A finding on the runs that lie far off a law: by a robust z of their log loss, or by their relative error.

    The robust z is the distance from the median error over 1.4826 times the median distance. That is one standard
    deviation of normal errors. A run that the fit weighs less than the median run may lie further off, by the fourth
    root of its weight. Weights that were inverse variances would allow the square root.

    Args:
      log_loss: of the law, [n_runs].
      runs: those that it was fitted to.
    """
    error = np.log(runs.loss) - log_loss
    distance = np.abs(error - np.median(error))
    scatter = max(1.4826 * float(np.median(distance)), SMALLEST_SCATTER)
    usual = max(float(np.median(np.abs(error))), SMALLEST_SCATTER)
    share = np.minimum(runs.weights / np.median(runs.weights), 1.0) ** 0.25
    is_far = (distance * share > FAR_SCATTERS * scatter) | (np.abs(error) * share > FAR_TIMES * usual)
    if not is_far.any():
        return []
    places = np.flatnonzero(is_far)
    listed = []
    for i in places[np.argsort(-np.abs(error[places]), kind="stable")][:MOST_NAMED]:
        listed.append(f"{_run_in_words(runs, i)} {np.expm1(error[i]):+.1%} (z {distance[i] / scatter:.0f})")
    more = ", ..." if len(places) > MOST_NAMED else ""
    counts = dict(file=runs.path, count=len(places), runs=len(runs), verb="is" if len(places) == 1 else "are")
    return [finding("far_off", **counts, usual=usual, listed=", ".join(listed) + more)]


def _run_in_words(runs: Runs, i: int) -> str:
    """A run by its row in the file and, where the table has it, its name."""
    name = runs.name(i)
    words = f"row {name['row']}" if "row" in name else f"run {i + 1}"
    if "run" in name:
        words += f" ({name['run']})"
    return words


def refusals(fit: search.Fit, runs: Runs) -> list[Finding]:
    """Findings that say where fit plan would refuse this law."""
    form = fit.form
    if not form.chinchilla_coefficients_at:
        return []
    experts = np.unique([*runs.n_experts, *EXPERTS]) if "n_experts" in form.columns else np.ones(1)
    reduced = form.chinchilla_coefficients_at(fit.coefficients, experts)
    findings = []
    for name, exponent in (("n_active", reduced.mu), ("n_tokens", reduced.nu)):
        rising = exponent >= 0
        if np.any(rising):
            where = ", ".join(f"{e:g}" for e in experts[rising])
            largest = float(exponent.max())
            findings.append(finding("plan_refuses", column=name, n_experts=where, exponent=largest))
    return findings
