"""Which form is fitted unless the user names one.

`fit law` takes the coupled law, or the additive one where that predicts the fitted runs of more compute from those of
less much better. The coupled law is fitted with the weights DEFAULT_WEIGHTS, so that it is best at the runs of most
compute and beyond. The additive one is fitted as it is published: to all runs alike and without a prior.

The exponents have no prior from other sweeps, but where dense runs are so few that they do not show their own scatter
(few_runs.need_prior). With more runs no such prior was better on every table that it was not made from
(benchmarks/README.md, "The default prior").

Which form is right is itself uncertain, and the forms part beyond the runs. So the bootstrap's draws are of both: each
form has a share in inverse proportion to its error on the runs of more compute, or half where the runs are too few to
tell. Squared errors, by which Bates and Granger (1969) combine forecasts, would leave so few draws to one form that
what the forms disagree about is outside an 80% interval. benchmarks/README.md says what all this is worth.

Axes: draws of a bootstrap; n coefficients.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.parts import Beyond, Choice, HoldOut, Tried
from fit.fitted_law.settings import Settings
from fit.fitting import few_runs, fitting, population, rolling, uncertainty
from fit.fitting.law_prior import NO_PRIOR, with_law_prior, with_prior
from fit.form import Form
from fit.laws import FORMS
from fit.laws._coupled import SUFFIX
from fit.messages.finding import Finding, finding
from fit.table.runs import Runs
from fit.table.table import Table

DEFAULT_WEIGHTS = "compute^0.6"
# The additive law is chosen if its error is below this share of the coupled law's: the coupled law contains it, as
# k = 1, and over few runs the smaller of two such errors is often so by chance (benchmarks/README.md).
BETTER = 0.7
SAME_ERROR = 5e-5  # difference of two errors of log loss that are told as one
__all__ = ["BETTER", "DEFAULT_WEIGHTS", "fit_best", "with_prior"]


class _Both(NamedTuple):
    """The same runs fitted by both forms."""

    additive: fitting.FittedLaw
    coupled: fitting.FittedLaw


class _Draws(NamedTuple):
    """How many of a bootstrap's draws are of each form."""

    additive: int
    coupled: int


def as_it_is(form: Form) -> Form:
    """The form itself."""
    return form


def additive_form(table: Table) -> Form:
    """The additive form that suits the runs of a table, by whether they differ in the number of experts."""
    is_mixed = "n_experts" in table and len(np.unique(table.numbers("n_experts"))) > 1
    return FORMS["joint" if is_mixed else "chinchilla"]


def fit_best(
    runs: Runs,
    settings_of: Callable[[Form], Settings],
    prior: Law | str | None = None,
    complete: Callable[[Form], Form] = as_it_is,
) -> Law:
    """Fits both forms to runs, which have the columns of `additive_form`.

    A law as prior makes the choice of the form by its k, or lack of one; so does a k that is fixed. Where the user asks
    for the population's prior, fewer runs than coefficients get the coupled law of few_runs.py.

    Args:
      settings_of: the Settings for a Form.
      prior: as law_prior.with_prior takes it; None for the default.
      complete: makes of a form with its prior the one that is fitted, such as that with learning rates.

    Returns:
      The coupled law, or the additive one written as the coupled one with k = 1. Its bootstrap's draws are of both, and
      `choice` says which forms were tried and why this one was chosen.

    Raises:
      UserError: where the runs cannot determine a law.
    """
    additive = additive_form(runs.table)
    coupled = FORMS[additive.name + SUFFIX]
    has_few_runs = complete is as_it_is and few_runs.suits(runs, coupled, settings_of(coupled))
    if has_few_runs and isinstance(prior, str) and prior != NO_PRIOR:
        law = few_runs.law_of(runs, coupled, settings_of(coupled), population.left_out_of(prior))
        return few_runs.with_note(law, by_default=False)
    hint = few_runs.HINT if prior is None and has_few_runs else ""
    needs_prior = prior is None and complete is as_it_is and few_runs.need_prior(runs, coupled, settings_of(coupled))
    if prior is None:
        prior = population.NAME if needs_prior else NO_PRIOR
    law = _fit_both(runs, additive, coupled, settings_of, prior, complete, hint)
    return few_runs.with_note(law, needs_prior)


def _fit_both(  # noqa: PLR0913  all are parts of one fit
    runs: Runs,
    additive: Form,
    coupled: Form,
    settings_of: Callable[[Form], Settings],
    prior: Law | str,
    complete: Callable[[Form], Form],
    hint: str,
) -> Law:
    """The law of the better of two forms, as `fit_best` returns it.

    Args:
      additive: the additive form.
      coupled: the coupled form.
      prior: of the coupled form.
      hint: what the error ends with where the runs are too few for the additive form.

    Raises UserError as fit_best.
    """
    if isinstance(prior, Law):
        form = with_law_prior(coupled if prior.form.shares else additive, prior)
        reason = finding("form_of_prior", prior=prior.name, has="a" if form.shares else "no")
        return _single(fitting.fit(runs, complete(form), _weighted(settings_of(form))), reason)
    settings = settings_of(coupled)
    coupled = complete(with_prior(coupled, prior))
    if "k" in settings.fix:
        return _single(fitting.fit(runs, coupled, _weighted(settings)), finding("form_of_fixed_k"))
    # the additive law as it is published: no prior and all runs alike, unless the user asks for other weights
    try:
        additive_law = fitting.fit(runs, complete(additive), settings)
    except UserError as error:
        raise UserError(f"{error.sentence}{hint}") from None
    try:
        coupled_law = fitting.fit(runs, coupled, _weighted(settings))
    except UserError:  # too few distinct runs
        return _single(additive_law, finding("form_of_enough_runs", other=coupled.name))
    return _better_law(_Both(additive_law, coupled_law))


def _weighted(settings: Settings) -> Settings:
    """The settings with the default weights, unless the user asks for others."""
    return dataclasses.replace(settings, weights=settings.weights or DEFAULT_WEIGHTS)


def _single(law: fitting.FittedLaw, reason: Finding) -> Law:
    """A law that is not compared with another form."""
    return dataclasses.replace(fitting.law_of(law), choice=Choice(reason=reason))


def _better_law(both: _Both) -> Law:
    """The better of two laws of the same runs, with draws of both."""
    additive_name = both.additive.fit.form.name
    coupled_name = both.coupled.fit.form.name
    fewest = rolling.RUNS_PER_COEFFICIENT * len(both.coupled.fit.form.names)
    try:
        coupled_steps = rolling.rolling(uncertainty.sampled(both.coupled.problem), fewest)
        additive_steps = rolling.rolling(uncertainty.sampled(both.additive.problem), fewest)
    except UserError:  # too few runs of little compute
        reason = finding(
            "form_not_compared",
            form=coupled_name,
            other=additive_name,
            fewest=fewest,
            fewest_above=rolling.FEWEST_PREDICTED,
        )
        counts = _draws_of_each(both.coupled.problem.settings.bootstrap, 0.5)
        law = fitting.law_of(_with_draws(both.coupled, counts.coupled))
        law = dataclasses.replace(law, choice=Choice(reason=reason))
        return _with_draws_of_both(law, both, counts, (), ())
    additive_error = rolling.score(additive_steps)
    coupled_error = rolling.score(coupled_steps)
    additive_share = coupled_error / (additive_error + coupled_error)
    counts = _draws_of_each(both.coupled.problem.settings.bootstrap, additive_share)
    if additive_error < BETTER * coupled_error:
        law = fitting.law_of(_with_draws(both.additive, counts.additive), additive_steps)
    else:
        law = fitting.law_of(_with_draws(both.coupled, counts.coupled), coupled_steps)
    reason = reason_of(additive_name, additive_error, coupled_name, coupled_error)
    tried = (
        Tried(form=additive_name, rmse_log=additive_error, rolling=additive_steps),
        Tried(form=coupled_name, rmse_log=coupled_error, rolling=coupled_steps),
    )
    law = dataclasses.replace(law, choice=Choice(tried=tried, reason=reason))
    return _with_draws_of_both(law, both, counts, additive_steps, coupled_steps)


def reason_of(additive: str, additive_error: float, coupled: str, coupled_error: float) -> Finding:
    """Why one of two forms is chosen, by the errors of their hold-outs."""
    if additive_error < BETTER * coupled_error:
        return finding("form_better", best=additive, error=additive_error, other=coupled, other_error=coupled_error)
    if abs(additive_error - coupled_error) < SAME_ERROR:
        return finding("forms_tie", form=coupled, other=additive, error=coupled_error, better=BETTER)
    if additive_error < coupled_error:
        errors = dict(error=coupled_error, other_error=additive_error)
        return finding("form_kept", form=coupled, other=additive, **errors, better=BETTER)
    return finding("form_better", best=coupled, error=coupled_error, other=additive, other_error=additive_error)


def _draws_of_each(draws: int, additive_share: float) -> _Draws:
    """The number of draws of each form: at least one of each if there are two or more draws."""
    additive = round(additive_share * draws)
    if draws >= 2:
        additive = min(max(additive, 1), draws - 1)
    return _Draws(additive, draws - additive)


def _with_draws(law: fitting.FittedLaw, count: int) -> fitting.FittedLaw:
    """The law with another number of draws."""
    settings = dataclasses.replace(law.problem.settings, bootstrap=count)
    return dataclasses.replace(law, problem=dataclasses.replace(law.problem, settings=settings))


def _with_draws_of_both(
    chosen: Law,
    both: _Both,
    counts: _Draws,
    additive_steps: tuple[HoldOut, ...],
    coupled_steps: tuple[HoldOut, ...],
) -> Law:
    """One of both laws, as a coupled law with draws of both forms.

    An additive law, or draw, has k = 1. Each form's part of the draws has its own error beyond the runs, from its own
    rolling hold-outs.

    Args:
      chosen: the law, with its own draws.
      counts: how many draws are of each form.
      additive_steps: the rolling hold-outs of the additive law, () where the runs are too few.
      coupled_steps: those of the coupled law.
    """
    form = both.coupled.fit.form
    settings = both.coupled.problem.settings
    own_draws = np.array(chosen.bootstrap.draws) if chosen.bootstrap else None
    is_coupled = chosen.form.name == form.name
    law = chosen if is_coupled else _as_coupled(chosen, form)
    if not settings.bootstrap:
        return law
    rows = []
    drifts: list[float] = []
    largest_flops = float(both.coupled.problem.runs.flops.max())
    for fitted, count, steps in zip(both, counts, (additive_steps, coupled_steps), strict=True):
        if not count:
            continue
        of_coupled = fitted is both.coupled
        rows.append(_coupled_draws(fitted, count, own_draws if of_coupled == is_coupled else None, form))
        if steps:
            drift_std = rolling.drift_std(steps)
            if not of_coupled:
                drift_std *= np.sqrt(rolling.SHARE_OF_ADDITIVE)
            drifts += rolling.beyond(drift_std, largest_flops, count, settings.seed, only_below=of_coupled).drift
    order = np.random.default_rng([settings.seed, 6]).permutation(settings.bootstrap)
    beyond = None
    if drifts:
        beyond = Beyond(training_flops=largest_flops, drift=tuple(np.array(drifts)[order].tolist()))
    bootstrap = dataclasses.replace(
        uncertainty.bootstrap_of(both.coupled.problem, form, np.concatenate(rows)[order]),
        forms={both.additive.fit.form.name: counts.additive, form.name: counts.coupled},
        beyond=beyond,
    )
    return dataclasses.replace(law, bootstrap=bootstrap)


def _as_coupled(law: Law, form: Form) -> Law:
    """An additive law as a law of the coupled form, with k = 1."""
    separate = {
        n_experts: dataclasses.replace(alone, coefficients=alone.coefficients | dict(k=1.0))
        for n_experts, alone in law.separate.items()
    }
    return dataclasses.replace(law, form=form, coefficients=law.coefficients | dict(k=1.0), separate=separate)


def _coupled_draws(law: fitting.FittedLaw, count: int, known: Array | None, coupled: Form) -> Array:
    """Draws [count, n] of a law as coefficients of the coupled form: those of an additive law have k = 1.

    Args:
      known: the law's own draws, where it has them.
    """
    draws = uncertainty.draws_of(law.problem, law.fit, count) if known is None else known
    if law.fit.form.name != coupled.name:
        draws = np.column_stack([draws, np.ones(count)])
    return draws
