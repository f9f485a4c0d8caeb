"""Laws of few runs: hardly more than coefficients, or fewer, such as the three anchors of a planned run.

Dense runs that are at most FEW_FREEDOM more than the coefficients do not show how far they scatter. They get the
population's prior by default (need_prior). Fewer runs than coefficients get a law where the user asks for that prior
(record_of). The prior of other sweeps then fills in what such runs cannot determine (population.py).

  alpha, beta, k, floor   a joint prior; the floor as a share of the lowest loss
  size over data          a guess of how the two terms share the loss
  scatter                 of a run around a law: the median of the sources'
  drift                   of a law beyond its runs: for each draw that of a source at random

The form is the coupled one. The runs then mostly scale the law, and its intervals are mostly the population's.
"""

import dataclasses

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.fitting import fitting, population, rolling
from fit.fitting.problem import Settings
from fit.form import Form
from fit.table.runs import Runs, read_runs, split
from fit.table.table import Table

FEW_FREEDOM = 2
FEWEST_RUNS = 3  # two would leave scale and floor to one another
HINT = f"; --prior={population.NAME} takes the rest from other sweeps"


def distinct_runs(runs: Runs, form: Form) -> int:
    """The number of runs that differ in the columns which a form reads."""
    columns = np.stack([runs.columns[name] for name in form.columns])
    return np.unique(columns, axis=1).shape[1]


def suits(table: Table, form: Form, settings: Settings) -> bool:
    """Whether the runs of a table are too few for a form, and enough for it with the population's prior."""
    if settings.fix or "n_experts" in form.columns:
        return False
    try:
        runs = read_runs(table, form.columns, settings.mix_corpora)
    except UserError:  # the usual fit says what is wrong
        return False
    return FEWEST_RUNS <= distinct_runs(runs, form) < len(form.names)


def need_prior(table: Table, form: Form, settings: Settings) -> bool:
    """Whether the runs to fit are enough for a form of one number of experts, but at most FEW_FREEDOM more."""
    if "n_experts" in form.columns:
        return False
    try:
        runs = read_runs(table, form.columns, settings.mix_corpora)
        runs, _ = split(runs, settings.holdout, settings.weights, settings.bootstrap_by)
    except UserError:  # the usual fit says what is wrong
        return False
    to_fit = len(form.names) - len(settings.fix)
    return to_fit <= distinct_runs(runs, form) and len(runs) <= to_fit + FEW_FREEDOM


def with_note(record: Json, by_default: bool) -> Json:
    """The record with a note whether the population's prior was the default, and a sentence where it was and counts."""
    prior = record["settings"].get("prior")
    if prior and prior["law"] == population.NAME:
        prior["by_default"] = by_default
        if by_default and "yielded" not in prior:
            record["warnings"].append(
                "the runs are hardly more than the law's coefficients: what other sweeps have is the prior of its "
                f"exponents and k (--prior={population.NAME}; --prior=none turns it off)"
            )
    return record


def record_of(table: Table, form: Form, settings: Settings, left_out: str | None) -> Json:
    """The record of the law.

    Args:
      form: the coupled one.
      left_out: a source of the population that does not count.

    Raises:
      UserError: where the runs cannot determine a law even so.
    """
    runs = read_runs(table, form.columns, settings.mix_corpora)
    form = population.with_floor(form, runs, left_out)
    prior = form.prior
    assert prior is not None and prior.scatter is not None
    if settings.weight_decay is None:
        settings = dataclasses.replace(settings, weight_decay=fitting.DECAY_PER_VARIANCE * prior.scatter**2)
    record = fitting.record_of(fitting.fit_table(table, form, settings))
    drifts = population.values_of("drift", left_out)
    if "bootstrap" in record:
        draws = len(record["bootstrap"]["draws"])
        beyond = rolling.beyond(1.0, runs.flops.max(), draws, settings.seed)
        sources = np.random.default_rng([settings.seed, 7]).permutation(np.arange(draws) % len(drifts))
        beyond["drift"] = (drifts[sources] * beyond["drift"]).tolist()
        record["bootstrap"]["beyond"] = beyond
    count = distinct_runs(runs, form)
    record["warnings"].append(
        f"{count} runs are fewer than the {len(form.names)} coefficients of {form.name}: other sweeps say the rest "
        f"(--prior={population.NAME}). Exponents, k, floor and the share of size have their prior; we assume that a "
        f"run scatters by {prior.scatter:.2%}, and that the law drifts by {drifts.min():.1%} to {drifts.max():.1%} for "
        "each factor of e in compute beyond the runs"
    )
    record["choice"] = dict(tried=[], why=f"{count} runs are fewer than its coefficients; other sweeps say the rest")
    return record
