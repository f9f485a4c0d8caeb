"""From a table of runs to a Law: hold-out, weights, the fit, its errors and its uncertainty."""

import dataclasses
import importlib.metadata
import platform

import numpy as np

from fit.aliases import Array
from fit.fitted_law import models
from fit.fitted_law.law import Law
from fit.fitted_law.model_fields import positive_numbers
from fit.fitted_law.parts import SHAPE, FittedRuns, HoldOut, Starts
from fit.fitted_law.settings import Settings
from fit.fitting import rolling, search, solvers, uncertainty, with_rate
from fit.fitting.fit_warnings import far_off, of_table, refusals
from fit.fitting.noise import misfit, noise_of
from fit.fitting.problem import Problem, near_part, prepare
from fit.fitting.with_rate import RatedForm
from fit.form import Form, PriorSummary
from fit.messages.finding import Finding, finding
from fit.table.runs import ROLLING, Runs, corpora, errors, rms, split

# Up to FEW_RUNS runs, the default weight decay is this share of the runs' variance around the law: as if every
# parameter, a logarithm or an exponent, were known to lie within some 10 of zero. For noise of 1% it is 1e-6.
FEW_RUNS = 60
DECAY_PER_VARIANCE = 0.01
LARGEST_DECAY = 1e-5
SMALLEST_DECAY = 1e-14
FIRST_DECAY = 1e-6  # before the runs' variance is known
SMALLEST_VARIANCE = 1e-20  # of noise-free runs
FIRST_VARIANCE = 1e-4  # of runs around the law, against which priors are weighed at first
LEAST_FREEDOM = 3  # with fewer degrees of freedom the variance of the runs counts as FIRST_VARIANCE at least
PULL_ROUNDS = 6  # at most, of a Student-t prior
SAME_PULL = 0.01  # relative change of the pull at which the rounds end
MOST_COST = 1.0  # a Student-t prior may raise the sum of squares by this many variances of a run
VARIANCE_ROUNDS = 3  # the first fits may have bent the law by more than the noise
COST = 1.01  # the decay may raise the root mean square of the residuals by this factor; else a tenth of it is tried


@dataclasses.dataclass(frozen=True)
class FittedLaw:
    """A law fitted to the runs of a table.

    Attributes:
      runs: all runs of the table.
      validation: those kept out of the fit.
      fit: the best fit.
      problem: what was fitted; problem.runs are the runs of the fit.
      decay_default: whether the weight decay is the default of few runs.
      findings: about the table, and about a prior that yielded.
      prior: the prior that the user or the default chose; None without one.
    """

    runs: Runs
    validation: Runs
    fit: search.Fit
    problem: Problem
    decay_default: bool
    findings: list[Finding]
    prior: PriorSummary | None


def fit(runs: Runs, form: Form, settings: Settings) -> FittedLaw:
    """Fits a law of this form to runs, which have its columns.

    Args:
      settings: for a weight_decay of None see `fit_by_default`.

    Raises:
      UserError: where the runs cannot determine the law.
    """
    findings = of_table(form, runs, is_rated=isinstance(form, RatedForm))
    train, validation = split(runs, settings.holdout, settings.weights, settings.bootstrap_by)
    decay_default = _has_default_decay(settings, train)
    if isinstance(form, RatedForm):
        fit, problem = fit_by_default(form, with_rate.first_weights(form, train), settings)
        fit, problem = with_rate.reweighted(fit, problem, train.weights)
        findings += with_rate.extrapolated(form, fit.params, problem.runs)
    else:
        fit, problem = fit_by_default(form, train, settings)
    if settings.select == "rmse":
        fit = _with_least_rmse(fit, train, validation)
    prior = form.prior.summary if form.prior else None
    yielded = problem.settings.yielded
    if prior and yielded is not None:
        prior = dataclasses.replace(prior, yielded=yielded)
        findings.append(finding("prior_yields", prior=prior.law, cost=yielded, accepted=MOST_COST))
    return FittedLaw(runs, validation, fit, problem, decay_default, findings, prior)


def _with_least_rmse(fit: search.Fit, train: Runs, validation: Runs) -> search.Fit:
    """The Fit at the start of least RMSE on fitted plus held-out runs, as in the joint law's paper."""
    finite = np.flatnonzero(fit.objectives < np.inf)
    rmses = []
    for i in finite:
        params = fit.start_params[i]
        rmses.append(_rmse_nats(fit.form, params, train) + _rmse_nats(fit.form, params, validation))
    best = finite[int(np.argmin(rmses))]
    return dataclasses.replace(fit, params=fit.start_params[best], objective=float(fit.objectives[best]))


def _rmse_nats(form: Form, params: Array, runs: Runs) -> float:
    """Root mean square error on runs, in nats, of a law with these params [n]."""
    return rms(np.exp(form.log_loss(params, runs.columns)) - runs.loss)


def law_of(fitted: FittedLaw, steps: tuple[HoldOut, ...] | None = None) -> Law:
    """The Law that was fitted, with its uncertainty.

    Args:
      steps: what rolling.rolling returns, where it is known.

    Raises:
      UserError: where the settings ask for rolling hold-outs and the runs are too few for them.
    """
    validation = fitted.validation
    fit = fitted.fit
    problem = fitted.problem
    settings = problem.settings
    form = fit.form
    train = problem.runs
    near = near_part(problem).runs
    log_loss = form.log_loss(fit.params, near.columns)
    if steps is None:
        steps = rolling.rolling(uncertainty.sampled(problem)) if settings.holdout == ROLLING else ()
    law = Law(
        name="the fitted law",
        form=form,
        coefficients=fit.coefficients,
        objective=fit.objective,
        settings=_settings_of(fitted),
        runs=described(fitted.runs, train, form),
        models=models.from_table(fitted.runs.table, train.index),
        fitted=errors(log_loss, near),
        held_out=errors(form.log_loss(fit.params, validation.columns), validation) if len(validation) else None,
        starts=Starts(
            tried=fit.tried,
            followed=len(fit.ends),  # to their end: how the others would have ended is not known
            within_1_percent=int(np.sum(fit.ends <= 1.01 * fit.objective)),
            gradient_norm=fit.gradient_norm,
        ),
        versions={name: importlib.metadata.version(name) for name in solvers.PACKAGES}
        | {"python": platform.python_version()},
        rolling=steps,
        tuning=with_rate.tuning_of(problem, fit, len(near)) if isinstance(form, RatedForm) else None,
        findings=(*fitted.findings, *far_off(log_loss, near), *refusals(fit, fitted.runs)),
    )
    law = uncertainty.with_uncertainty(law, problem, fit)
    bootstrap = law.bootstrap
    if steps and bootstrap and {"n_active", "n_tokens"} <= set(form.columns):  # whose compute is known
        drift_std = rolling.drift_std(steps)
        beyond = rolling.beyond(drift_std, train.flops.max(), law.n_draws, settings.seed)
        bootstrap = dataclasses.replace(bootstrap, beyond=beyond)
    return dataclasses.replace(
        law,
        bootstrap=bootstrap,
        separate_fitted=uncertainty.separate_errors(form, law.separate, train),
        separate_held_out=uncertainty.separate_errors(form, law.separate, validation),
    )


def _settings_of(fitted: FittedLaw) -> Settings:
    """How a law was fitted, and how its table was read."""
    settings = fitted.problem.settings
    table = fitted.runs.table
    return dataclasses.replace(
        settings,
        weight_decay_default=fitted.decay_default,
        weights=settings.weights or "none",
        columns=table.names,
        units=table.units,
        where=tuple(table.where),
        set=table.computed,
        prior=fitted.prior,
        with_rate=isinstance(fitted.fit.form, RatedForm),
    )


def fit_by_default(form: Form, runs: Runs, settings: Settings) -> tuple[search.Fit, Problem]:
    """Fits a form to runs, with the default weight decay where the settings have none (None).

    The default is 0 for more than FEW_RUNS runs. Up to that many it is DECAY_PER_VARIANCE times the variance of the
    runs around the law, less where that costs more than COST. A first fit estimates this variance. Priors are weighed
    as `_fit_with_prior` says.

    Raises:
      UserError: as search.fit.
    """
    if form.prior and form.prior.scatter is None and not isinstance(form, RatedForm):
        return _fit_with_prior(form, runs, settings)
    has_default_decay = _has_default_decay(settings, runs)
    decay = _first_decay(settings, has_default_decay)
    variance = FIRST_VARIANCE if form.prior else 0.0
    settings = dataclasses.replace(settings, weight_decay=decay, variance=variance)
    problem = prepare(form, runs, settings)
    fit = search.fit(problem)
    rounds = 0
    if has_default_decay or form.prior:
        rounds = VARIANCE_ROUNDS if len(runs) <= search.SEARCH_RUNS else 1
    for _ in range(rounds):
        variance = float(noise_of(near_part(problem), fit.params, shared=False).run ** 2)
        if has_default_decay:
            decay = _decay_of_variance(variance)
        fit, problem = _fit_again(fit, problem, decay, variance if form.prior else 0.0)
    if has_default_decay:
        without_decay, _ = _fit_again(fit, problem, 0.0, problem.settings.variance)
        affordable = COST**2 * _mean_square(without_decay, runs)
        while _mean_square(fit, runs) > affordable and problem.settings.weight_decay > SMALLEST_DECAY:
            decay = max(problem.settings.weight_decay / 10, SMALLEST_DECAY)
            fit, problem = _fit_again(fit, problem, decay, problem.settings.variance)
    return fit, problem


def _fit_with_prior(form: Form, runs: Runs, settings: Settings) -> tuple[search.Fit, Problem]:
    """Fits a form with a prior, weighed against the scatter of the runs around the fit without it.

    That scatter does not contain the prior's own pull.

    A Student-t prior is fitted as a normal one whose weight follows its distance (Prior.pull). It yields if it raises
    the sum of squares by more than MOST_COST times the variance. The form is then fitted with the prior that this one
    replaced, and `yielded` in the problem's settings says by how much.

    Raises:
      UserError: as search.fit.
    """
    prior = form.prior
    assert prior is not None
    has_default_decay = _has_default_decay(settings, runs)
    decay = _first_decay(settings, has_default_decay)
    problem = prepare(form, runs, dataclasses.replace(settings, weight_decay=decay, variance=FIRST_VARIANCE))
    first = search.fit(problem)
    without, without_problem = _fit_again(first, problem, 0.0 if has_default_decay else decay, 0.0)
    misfit_without = misfit(without_problem, without.params)
    freedom = int(np.sum(runs.weights > 0)) - (len(form.names) - len(problem.fixed))
    variance = float(noise_of(without_problem, without.params, shared=False).run ** 2)
    if freedom < LEAST_FREEDOM:
        variance = max(variance, FIRST_VARIANCE)
    if has_default_decay:
        decay = _decay_of_variance(variance)
    fit, problem = _fit_again(first, problem, decay, variance)
    if prior.freedom is None:
        return fit, problem
    fixed = np.flatnonzero(np.isfinite(problem.data["fixed_values"]))
    for _ in range(PULL_ROUNDS if len(runs) <= search.SEARCH_RUNS else 1):
        pull = prior.pull(fit.params, fixed)
        change = abs(pull / problem.settings.pull - 1)
        fit, problem = _fit_again(fit, problem, decay, variance, pull)
        if change < SAME_PULL:
            break
    cost = (misfit(problem, fit.params) - misfit_without) / max(variance, SMALLEST_VARIANCE)
    if cost <= MOST_COST or form.replaced is None:
        return fit, problem
    fit, problem = fit_by_default(form.replaced, runs, settings)
    settings = dataclasses.replace(problem.settings, yielded=cost)
    return fit, dataclasses.replace(problem, settings=settings)


def _has_default_decay(settings: Settings, runs: Runs) -> bool:
    """Whether the weight decay is the default of few runs, which follows from their variance."""
    return settings.weight_decay is None and len(runs) <= FEW_RUNS


def _first_decay(settings: Settings, has_default_decay: bool) -> float:
    """The weight decay of the first fit, before the runs' variance is known."""
    if settings.weight_decay is not None:
        return settings.weight_decay
    return FIRST_DECAY if has_default_decay else 0.0


def _decay_of_variance(variance: float) -> float:
    """The default weight decay of few runs with this variance around the law."""
    return float(np.clip(DECAY_PER_VARIANCE * variance, SMALLEST_DECAY, LARGEST_DECAY))


def _fit_again(
    fit: search.Fit, problem: Problem, decay: float, variance: float, pull: float = 1.0
) -> tuple[search.Fit, Problem]:
    """The fit to the same runs with another weight decay, variance and pull, from where `fit` ended."""
    settings = dataclasses.replace(problem.settings, weight_decay=decay, variance=variance, pull=pull)
    changed = prepare(problem.form, problem.runs, settings)
    return search.again(changed, fit), changed


def _mean_square(fit: search.Fit, runs: Runs) -> float:
    """The weighted mean square of a fit's residuals of log loss."""
    residuals = fit.form.log_loss(fit.params, runs.columns) - np.log(runs.loss)
    return np.average(residuals**2, weights=runs.weights)


def described(runs: Runs, train: Runs, form: Form) -> FittedRuns:
    """File, fingerprint, corpora and ranges of the fitted runs."""
    columns = {name: train.columns[name] for name in form.columns} | dict(loss=train.loss)
    if "n_active" in runs.table:
        columns["training_flops"] = train.flops
    for name in SHAPE:
        values = positive_numbers(runs.table, name)
        if name not in columns and values is not None:
            columns[name] = values[train.index]
    ranges = {name: (float(values.min()), float(values.max())) for name, values in columns.items()}
    return FittedRuns(file=runs.path, fingerprint=runs.fingerprint(), corpora=tuple(corpora(runs.table)), ranges=ranges)
