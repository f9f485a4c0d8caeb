"""The fit of a law with its best rates and batches (rated.py): how much each run counts, and its law.

It is iteratively reweighted. The penalty is the first term of an expansion around the optimum, so its error grows with
it. A run of penalty P therefore has the Cauchy weight 1 / (1 + (P / scale)^2). `scale` is NEAR_OPTIMAL or the scatter
of the runs, whichever is larger. Weights and fit alternate for ROUNDS rounds. Intervals use only runs with P at most
FAR times the scale.

Axes: n_runs runs.
"""

import dataclasses

import numpy as np
import scipy.special

from fit.aliases import Array
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.tuning import BATCH, RATE, Tuning
from fit.fitting import search
from fit.fitting.noise import noise_of
from fit.fitting.problem import Problem, prepare
from fit.fitting.rated import FEWEST_VALUES, RatedForm
from fit.laws import FORMS
from fit.table.runs import Runs, subset

NEAR_OPTIMAL = 0.0025  # of the loss: how far a run may lie above the best and count as near-optimal, as in DeepSeek LLM
FAR = 6.0  # times the scale
ROUNDS = 8
FOLLOWED = search.BATCH - 1  # starts that each round follows, beside the best: one batch
RUNS_OF_SHIFT = 2  # for each coefficient of a model's own shifts, at least
SIMULATED = 400  # grids of each model, for the errors of its best runs
BY_CHANCE = 0.05  # probability below which chance does not explain a scatter
ODD_SHARE = 0.5  # of the models, whose best rate lies outside what was tried


def first_weights(form: RatedForm, runs: Runs) -> Runs:
    """The runs with weights by how far their losses lie above the best of the same model, and groups that share errors.

    Runs of one model share the error of the law there, unless they share trunks already.
    """
    model_of_run = _models(form, runs)
    best = np.full(model_of_run.max() + 1, np.inf)
    np.minimum.at(best, model_of_run, np.log(runs.loss))
    weighted = _weighted(runs, runs.weights, np.log(runs.loss) - best[model_of_run], NEAR_OPTIMAL)
    if runs.trunks is None and 1 < len(best) < len(runs):
        weighted = dataclasses.replace(weighted, trunks=model_of_run, shared_by="groups of equal model")
    return weighted


def _weighted(runs: Runs, weights: Array, penalty: Array, scale: float) -> Runs:
    """The runs with weights [n_runs] made smaller by their penalties [n_runs]."""
    share = 1 / (1 + (penalty / scale) ** 2)
    return dataclasses.replace(runs, weights=weights * share, near=penalty <= FAR * scale)


def reweighted(fit: search.Fit, problem: Problem, weights: Array) -> tuple[search.Fit, Problem]:
    """The fit with weights that follow from its own penalties.

    Args:
      fit, problem: with the weights of `first_weights`.
      weights: of the runs before those, [n_runs].
    """
    form = problem.form
    assert isinstance(form, RatedForm)
    best = np.argsort(fit.objectives, kind="stable")[:FOLLOWED]
    few = dataclasses.replace(fit, start_params=fit.start_params[best], objectives=fit.objectives[best])
    for _ in range(ROUNDS):
        scatter = noise_of(near_part(problem), few.params, shared=False).run
        scale = max(NEAR_OPTIMAL, scatter)
        runs = _weighted(problem.runs, weights, form.penalty(few.params, problem.runs.columns), scale)
        settings = dataclasses.replace(problem.settings, variance=scatter**2)
        problem = prepare(form, runs, settings)
        few = search.again(problem, few)
    return search.again(problem, dataclasses.replace(fit, params=few.params)), problem


def near_part(problem: Problem) -> Problem:
    """The problem with the runs that lie near their optimum alone.

    Raises:
      UserError: where they are too few for the coefficients.
    """
    near = problem.runs.near
    if near is None:
        return problem
    if near.sum() <= len(problem.form.names):
        raise UserError(
            f"{problem.runs.path}: found {near.sum()} runs near their best rate, expected more than the "
            f"{len(problem.form.names)} coefficients of the law with its rates"
        )
    runs = dataclasses.replace(subset(problem.runs, np.flatnonzero(near)), near=None)
    return prepare(problem.form, runs, problem.settings)


def scatter_of_optima(problem: Problem, params: Array) -> dict[str, float]:
    """How far models' own best rates and batches lie from the law's: standard deviations of ln rate and ln batch.

    In each model with enough runs near its optimum, the residuals are regressed on a constant and on how the penalty
    changes with ln of the best rate and batch: that gives the model's own shifts, with their errors. What the shifts
    scatter beyond these errors is by the moments of DerSimonian and Laird (1986).

    All runs near the optimum, up to FAR times the scale, make these shifts. Where the penalty's form is wrong close to
    the optimum, they do not show it. The best runs do (`_shifts_of_best_runs`). Their scatter counts where it is the
    larger one and chance does not explain it.

    Args:
      params: of the fit, [n].
    """
    form = problem.form
    assert isinstance(form, RatedForm)
    part = near_part(problem)
    runs = part.runs
    names = ["rate", "batch"] if form.with_batch else ["rate"]
    residual = np.log(runs.loss) - form.log_loss(params, runs.columns)
    design = np.stack([np.ones(len(runs)), *(_slope(form, params, runs, name) for name in names)], axis=1)
    noise = noise_of(part, params).run
    model_of_run = _models(form, runs)
    shifts = []
    errors = []
    for i in range(model_of_run.max() + 1):
        rows = design[model_of_run == i]
        if len(rows) < RUNS_OF_SHIFT * rows.shape[1]:
            continue
        inverse = np.linalg.pinv(rows.T @ rows)
        shifts.append((inverse @ rows.T @ residual[model_of_run == i])[1:])
        errors.append(noise**2 * np.diag(inverse)[1:])
    scatter = dict.fromkeys(names, 0.0)
    freedom = len(shifts) - len(form.reference) - 1  # of the models, less the coefficients of the optimum
    if freedom < 1:
        return scatter
    for i, name in enumerate(names):
        of_all, _ = _excess_scatter(np.array(shifts)[:, i], np.array(errors)[:, i], freedom)
        of_best, p_value = _excess_scatter(*_shifts_of_best_runs(part, params, name, noise), freedom)
        scatter[name] = max(of_all, of_best) if p_value < BY_CHANCE else of_all
    return scatter


def _excess_scatter(shift: Array, variance: Array, freedom: int) -> tuple[float, float]:
    """The scatter of shifts [models] in excess of their errors, and the probability of as much scatter by errors alone.

    Args:
      shift: of each model.
      variance: of its error.
      freedom: degrees of freedom of the shifts.
    """
    weight = 1 / np.maximum(variance, 1e-12)
    squares = float(np.sum(weight * shift**2))
    excess = max(squares - freedom, 0.0)
    scatter = float(np.sqrt(excess / (weight.sum() - np.sum(weight**2) / weight.sum())))
    return scatter, float(scipy.special.chdtrc(freedom, squares))


def _shifts_of_best_runs(part: Problem, params: Array, name: str, noise: float) -> tuple[Array, Array]:
    """How far the best runs of each model lie from the law's best rate or batch, in ln, with the variance of the error.

    A model's best runs are those within NEAR_OPTIMAL of its lowest loss. The mean of their rates depends on the grid
    that was tried and on the runs' noise. So we draw the law's own losses with this noise on the same grid. We
    subtract their mean, and use their variance as the error's.

    Args:
      part: the runs near the optimum.
      params: of the fit, [n].
      name: rate or batch.
      noise: standard deviation of a run's log loss.

    Returns:
      (shift, variance), each [models].
    """
    form = part.form
    assert isinstance(form, RatedForm)
    runs = part.runs
    penalty = form.penalty(params, runs.columns)
    residual = np.log(runs.loss) - form.log_loss(params, runs.columns)
    distance = np.log(runs.columns[RATE if name == "rate" else BATCH] / form.optimum(params, runs.columns, name))
    model_of_run = _models(form, runs)
    rng = np.random.default_rng([part.settings.seed, 8])
    shifts = []
    variances = []
    for i in range(model_of_run.max() + 1):
        rows = model_of_run == i
        if rows.sum() < RUNS_OF_SHIFT * (2 + form.with_batch):
            continue
        drawn = penalty[rows] + noise * rng.normal(size=(SIMULATED, rows.sum()))
        expected = _mean_of_best(drawn, distance[rows])
        (measured,) = _mean_of_best((penalty + residual)[rows][None], distance[rows])
        shifts.append(measured - expected.mean())
        variances.append(expected.var())
    return np.array(shifts), np.array(variances)


def _mean_of_best(log_loss: Array, values: Array) -> Array:
    """Means [k] of values [runs] over the runs whose log loss [k, runs] is within NEAR_OPTIMAL of the lowest."""
    is_best = log_loss <= log_loss.min(axis=1, keepdims=True) + NEAR_OPTIMAL
    return np.sum(is_best * values, axis=1) / is_best.sum(axis=1)


def _slope(form: RatedForm, params: Array, runs: Runs, name: str) -> Array:
    """Derivatives [n_runs] of the penalty by ln of the best rate or batch."""
    step = np.zeros(len(params))
    step[form.names.index(name)] = 1e-4
    difference = form.penalty(params + step, runs.columns) - form.penalty(params - step, runs.columns)
    return difference / 2e-4


def _models(form: RatedForm, runs: Runs) -> Array:
    """The model of each run, int [n_runs]: the same number for runs that agree in what the base form reads."""
    columns = np.stack([runs.columns[name] for name in form.base.columns])
    return np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)


def warnings(form: RatedForm, params: Array, runs: Runs) -> list[str]:
    """Sentences where most models' best rate or batch lies outside what was tried for them."""
    model_of_run = _models(form, runs)
    sentences = []
    for name, column in (("rate", RATE), ("batch", BATCH)):
        if column not in form.columns:
            continue
        optimum = form.optimum(params, runs.columns, name)
        outside = 0
        compared = 0
        for i in range(model_of_run.max() + 1):
            of_model = model_of_run == i
            tried = runs.columns[column][of_model]
            if len(np.unique(tried)) < FEWEST_VALUES:
                continue
            compared += 1
            outside += not tried.min() < optimum[of_model][0] < tried.max()
        if compared and outside >= ODD_SHARE * compared:
            sentences.append(
                f"the best {name} of {outside} of {compared} models lies outside what was tried for them: it is "
                f"extrapolated; widen the grids of {column}"
            )
    return sentences


def tuning_of(problem: Problem, fit: search.Fit, n_near: int) -> Tuning:
    """The optima of a fit, without draws.

    Args:
      n_near: how many runs lie near their optimum.
    """
    form = problem.form
    assert isinstance(form, RatedForm)
    return Tuning(
        coefficients={name: fit.coefficients[name] for name in form.rate_names},
        reference=form.reference,
        scatter=scatter_of_optima(problem, fit.params),
        runs=len(problem),
        near=n_near,
        percentiles=problem.settings.percentiles,
    )


def with_base_form(law: Law, runs: Runs) -> Law:
    """The law of the base form, with what belongs to rate and batch in its `tuning`.

    Args:
      law: of a RatedForm, whose first coefficients are those of rate and batch.
      runs: all runs of the table.
    """
    rates = law.tuning
    assert rates is not None
    base = FORMS[law.form.name]
    columns = {name: values for name, values in runs.columns.items() if name not in (RATE, BATCH)}
    fingerprint = dataclasses.replace(runs, columns=columns).fingerprint()
    ranges = {name: law.runs.ranges[name] for name in law.runs.ranges if name not in (RATE, BATCH)}
    rates = dataclasses.replace(
        rates, ranges={name: ends for name, ends in law.runs.ranges.items() if name not in ranges}
    )
    bootstrap = law.bootstrap
    if bootstrap:
        count = len(rates.coefficients)
        intervals = bootstrap.intervals
        rates = dataclasses.replace(
            rates,
            draws=tuple(row[:count] for row in bootstrap.draws),
            intervals={name: intervals[name] for name in rates.coefficients},
        )
        bootstrap = dataclasses.replace(
            bootstrap,
            draws=tuple(row[count:] for row in bootstrap.draws),
            intervals={name: intervals[name] for name in base.names},
        )
    return dataclasses.replace(
        law,
        form=base,
        coefficients={name: law.coefficients[name] for name in base.names},
        runs=dataclasses.replace(law.runs, ranges=ranges, fingerprint=fingerprint),
        tuning=rates,
        bootstrap=bootstrap,
    )
