"""Laws of few runs: hardly more than coefficients, or fewer, such as the three anchors of a planned run.

Dense runs that are at most FEW_FREEDOM more than the coefficients do not show how far they scatter. They get the
population's prior by default (need_prior). Fewer runs than coefficients get a law where the user asks for that prior
(law_of). The prior of other sweeps then fills in what such runs cannot determine (population.py).

  alpha, beta, k, floor   a joint prior; the floor as a share of the lowest loss
  size over data          a guess of how the two terms share the loss
  scatter                 of a run around a law: the median of the sources'
  drift                   of a law beyond its runs: for each draw that of a source at random

The form is the coupled one. The runs then mostly scale the law, and its intervals are mostly the population's.
"""

import dataclasses

import numpy as np

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.parts import Choice
from fit.fitted_law.settings import Settings
from fit.fitting import fitting, population, rolling
from fit.form import Form
from fit.messages.finding import finding
from fit.messages.units import counted
from fit.table.runs import Runs, split

FEW_FREEDOM = 2
FEWEST_RUNS = 3  # two would leave scale and floor to one another
HINT = f"; --prior={population.NAME} takes the rest from other sweeps"


def distinct_runs(runs: Runs, form: Form) -> int:
    """The number of runs that differ in the columns which a form reads."""
    columns = np.stack([runs.columns[name] for name in form.columns])
    return np.unique(columns, axis=1).shape[1]


def suits(runs: Runs, form: Form, settings: Settings) -> bool:
    """Whether runs are too few for a form, and enough for it with the population's prior."""
    if settings.fix or "n_experts" in form.columns:
        return False
    return FEWEST_RUNS <= distinct_runs(runs, form) < len(form.names)


def need_prior(runs: Runs, form: Form, settings: Settings) -> bool:
    """Whether the runs to fit are enough for a form of one number of experts, but at most FEW_FREEDOM more."""
    if "n_experts" in form.columns:
        return False
    try:
        runs, _ = split(runs, settings.holdout, settings.weights, settings.bootstrap_by)
    except UserError:  # the usual fit says what is wrong
        return False
    to_fit = len(form.names) - len(settings.fix)
    return to_fit <= distinct_runs(runs, form) and len(runs) <= to_fit + FEW_FREEDOM


def with_note(law: Law, by_default: bool) -> Law:
    """The law with a note whether the population's prior was the default, and a finding where it was and counts."""
    prior = law.settings.prior
    if prior is None or prior.law != population.NAME:
        return law
    settings = dataclasses.replace(law.settings, prior=dataclasses.replace(prior, by_default=by_default))
    findings = law.findings
    if by_default and prior.yielded is None:
        findings = (*findings, finding("prior_by_default", prior=population.NAME))
    return dataclasses.replace(law, settings=settings, findings=findings)


def law_of(runs: Runs, form: Form, settings: Settings, left_out: str | None) -> Law:
    """The law of runs that are fewer than its coefficients.

    Args:
      form: the coupled one.
      left_out: a source of the population that does not count.

    Raises:
      UserError: where the runs cannot determine a law even so.
    """
    form = population.with_floor(form, runs, left_out)
    prior = form.prior
    assert prior is not None and prior.scatter is not None
    if settings.weight_decay is None:
        settings = dataclasses.replace(settings, weight_decay=fitting.DECAY_PER_VARIANCE * prior.scatter**2)
    law = fitting.law_of(fitting.fit(runs, form, settings))
    drifts = population.values_of("drift", left_out)
    bootstrap = law.bootstrap
    if bootstrap:
        beyond = rolling.beyond(1.0, runs.flops.max(), law.n_draws, settings.seed)
        sources = np.random.default_rng([settings.seed, 7]).permutation(np.arange(law.n_draws) % len(drifts))
        beyond = dataclasses.replace(beyond, drift=tuple((drifts[sources] * beyond.drift).tolist()))
        bootstrap = dataclasses.replace(bootstrap, beyond=beyond)
    count = distinct_runs(runs, form)
    fewer = finding(
        "fewer_runs_than_coefficients",
        runs=count,
        coefficients=len(form.names),
        form=form.name,
        prior=population.NAME,
        scatter=prior.scatter,
        least_drift=float(drifts.min()),
        most_drift=float(drifts.max()),
    )
    choice = Choice(reason=finding("form_of_few_runs", runs=counted(count, "run")))
    return dataclasses.replace(law, bootstrap=bootstrap, findings=(*law.findings, fewer), choice=choice)
