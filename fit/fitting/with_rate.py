"""The fit of loss, learning rate and batch at once: `fit law --with_rate`.

A RatedForm is a law's form with the penalty of fit/fitted_law/tuning.py added to its log loss, so a run far from its
best rate says something of the law too. The fit is iteratively reweighted. The penalty is the first term of an
expansion around the optimum, so its error grows with it. A run of penalty P therefore has the Cauchy weight
1 / (1 + (P / scale)^2). `scale` is NEAR_OPTIMAL or the scatter of the runs, whichever is larger. Weights and fit
alternate for ROUNDS rounds. Intervals use only runs with P at most FAR times the scale.

Axes: n_runs runs; n coefficients.
"""

import dataclasses
import types
from collections.abc import Mapping
from types import ModuleType

import numpy as np

from fit.aliases import Array, ByName
from fit.errors import UserError
from fit.fitted_law import tuning
from fit.fitted_law.batches import ramp_of
from fit.fitted_law.law import Law
from fit.fitted_law.tuning import BATCH, OF_MODELS, RATE, Tuning
from fit.fitting import search
from fit.fitting.noise import noise_of
from fit.fitting.problem import Problem, near_part, prepare
from fit.form import Coefficient, Form
from fit.laws import FORMS
from fit.messages.finding import Finding, finding
from fit.table.runs import Runs, subset
from fit.table.table import Table

FEWEST_VALUES = 3  # of rates, or of batches
SMALLEST_SPREAD = 0.05  # of ln rate or ln batch around a power law of the models, below which it follows from them
# Normal priors of entries of `params`, weighed against the scatter of the runs: a few runs overrule them.
EXPONENT_PRIOR = (0.0, 1.0)
COST_PRIOR = (-4.0, 1.5)  # of ln rate_cost and ln batch_cost
SKEW_PRIOR = (0.2, 0.5)
TILT_PRIOR = (0.3, 1.0)
NO_GRID = (1.0,)  # no published values of these coefficients are starts
NEAR_OPTIMAL = 0.0025  # of the loss: how far a run may lie above the best and count as near-optimal, as in DeepSeek LLM
FAR = 6.0  # times the scale
ROUNDS = 8
FOLLOWED = search.BATCH - 1  # starts that each round follows, beside the best: one batch
RUNS_OF_SHIFT = 2  # for each coefficient of a model's own shifts, at least
ODD_SHARE = 0.5  # of the models, whose best rate lies outside what was tried


class RatedForm(Form):
    """A law's form with a best rate, a best batch, and what others cost.

    Attributes:
      base: the form without.
      reference: {column: value} of the model at which the optima are `rate` and `batch`.
      with_batch: whether it has a best batch.
      rate_names: its coefficients beside those of the base, which come first among its `names`.
    """

    def __init__(self, base: Form, reference: Mapping[str, float], with_batch: bool) -> None:
        self.base = base
        self.reference = dict(reference)
        self.with_batch = with_batch
        coefficients = _coefficients(self.reference, with_batch)
        self.rate_names = tuple(coefficients)
        columns = (RATE, BATCH) if with_batch else (RATE,)

        def log_loss(xp: ModuleType, c: ByName, x: ByName) -> Array:
            return base.page.log_loss(xp, c, x) + tuning.penalty(xp, c, x, self.reference, with_batch)

        page = types.SimpleNamespace(**vars(base.page))
        page.NAME = base.name
        page.COLUMNS = (*base.columns, *columns)
        page.COEFFICIENTS = coefficients | base.coefficients
        page.SEPARATE = None
        page.log_loss = log_loss
        page.scaled_starts = self._scaled_starts
        super().__init__(page)

    def penalty(self, params: Array, columns: ByName) -> Array:
        """The excess of ln L of runs over that at their models' best rate and batch, [n_runs].

        Args:
          params: [n].
          columns: of the runs by name.
        """
        x = {f"ln {name}": np.log(columns[name]) for name in self.columns if name in (*OF_MODELS, RATE, BATCH)}
        return tuning.penalty(np, self._by_name(params, np), x, self.reference, self.with_batch)

    def optimum(self, params: Array, columns: ByName, name: str) -> Array:
        """The best rate or batch of the models of runs, [n_runs].

        Args:
          params: [n].
          columns: of the runs by name.
          name: rate or batch.
        """
        x = {f"ln {column}": np.log(columns[column]) for column in self.reference}
        log_optimum = tuning.log_optimum(self._by_name(params, np), x, self.reference, name)
        return np.broadcast_to(np.exp(log_optimum), np.shape(columns[RATE]))

    def _scaled_starts(self, rng: np.random.Generator, count: int, runs: Runs) -> dict[str, Array]:
        """Starts of the base around the runs near their optimum, and optima around the best runs of the models."""
        near = runs if runs.near is None else subset(runs, np.flatnonzero(runs.near))
        base = self.base.scaled_starts(rng, count, near)
        starts = dict(zip(self.base.param_names, base.T, strict=True))
        for name in self.rate_names:
            if name in ("rate", "batch"):
                column = RATE if name == "rate" else BATCH
                middle = np.log(near.columns[column]).mean()
                starts[f"ln {name}"] = middle + rng.normal(0, 0.7, count)
            elif name.endswith("_cost"):
                starts[f"ln {name}"] = rng.normal(*COST_PRIOR, count)
            elif name in ("skew", "tilt"):
                starts[name] = rng.uniform(0.05, 0.6, count)
            else:
                starts[name] = rng.normal(0, 0.4, count)
        return starts


def _coefficients(reference: Mapping[str, float], with_batch: bool) -> dict[str, Coefficient]:
    """The coefficients of rate and batch."""
    exponent = Coefficient(NO_GRID, prior=EXPONENT_PRIOR)
    cost = Coefficient(NO_GRID, positive=True, prior=COST_PRIOR, bounds=(-30, 10))
    declared = dict(
        rate=Coefficient(NO_GRID, positive=True, bounds=(-40, 10)),
        rate_cost=cost,
        skew=Coefficient(NO_GRID, prior=SKEW_PRIOR, bounds=(-3, 3)),
        batch=Coefficient(NO_GRID, positive=True, bounds=(-1, 40)),
        batch_cost=cost,
        tilt=Coefficient(NO_GRID, prior=TILT_PRIOR),
    )
    return {name: declared.get(name, exponent) for name in tuning.names(reference, with_batch)}


def rated_form(base: Form, table: Table) -> RatedForm:
    """The form with the optima that the runs of a table can determine.

    Args:
      table: has peak_learning_rate and, for a best batch, batch_tokens in every row.

    Raises:
      UserError: where a column is missing or bad, or has too few values.
    """
    rates = table.numbers(RATE, tuning.BOUNDS[RATE])
    read = [column for column in OF_MODELS if column in base.columns]
    models = {column: table.numbers(column) for column in read}
    varied = {column: values for column, values in models.items() if len(np.unique(values)) > 1}
    _check_values(table, RATE, rates)
    if _spread(rates, varied) < SMALLEST_SPREAD:
        raise UserError(
            f"{table.path}, column {table.names.get(RATE, RATE)}: the rates follow from the models, so no run says "
            "what another rate costs; --with_rate expects runs of a model at several rates"
        )
    with_batch = False
    if BATCH in table:
        batches = table.numbers(BATCH, tuning.BOUNDS[BATCH])
        if ramp_of(table, batches) is None:  # batches along a ramp say nothing of others on the same tokens
            _check_values(table, BATCH, batches)
            with_batch = _spread(batches, varied) >= SMALLEST_SPREAD
    reference = {column: float(f"{np.exp(np.log(values).mean()):.3g}") for column, values in varied.items()}
    return RatedForm(base, reference, with_batch)


def _check_values(table: Table, column: str, values: Array) -> None:
    """Raises UserError where a column has too few different values."""
    count = len(np.unique(values))
    if count < FEWEST_VALUES:
        or_one = ", or one" if column == BATCH else ""
        values_word = "value" if count == 1 else "values"
        raise UserError(
            f"{table.path}, column {table.names.get(column, column)}: found {count} different {values_word}, expected "
            f"{FEWEST_VALUES} or more{or_one}: --with_rate fits a parabola through them"
        )


def _spread(values: Array, models: Mapping[str, Array]) -> float:
    """Standard deviation of ln values [n_runs] around a power law of the models' columns."""
    design = np.stack([np.ones(len(values)), *map(np.log, models.values())], axis=1)
    logs = np.log(values)
    law = np.linalg.lstsq(design, logs, rcond=None)[0]
    return float(np.std(design @ law - logs))


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


def scatter_of_optima(problem: Problem, params: Array) -> dict[str, float]:
    """How far models' own best rates and batches lie from the law's: standard deviations of ln rate and ln batch.

    In each model with enough runs near its optimum, the residuals are regressed on a constant and on how the penalty
    changes with ln of the best rate and batch: that gives the model's own shifts, with their errors. What the shifts
    scatter beyond these errors is by the moments of DerSimonian and Laird (1986).

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
    variances = []
    for i in range(model_of_run.max() + 1):
        rows = design[model_of_run == i]
        if len(rows) < RUNS_OF_SHIFT * rows.shape[1]:
            continue
        inverse = np.linalg.pinv(rows.T @ rows)
        shifts.append((inverse @ rows.T @ residual[model_of_run == i])[1:])
        variances.append(noise**2 * np.diag(inverse)[1:])
    freedom = len(shifts) - len(form.reference) - 1  # of the models, less the coefficients of the optimum
    if freedom < 1:
        return dict.fromkeys(names, 0.0)
    weight = 1 / np.maximum(variances, 1e-12)  # [models, optima]
    excess = np.maximum(np.sum(weight * np.square(shifts), axis=0) - freedom, 0.0)
    total = weight.sum(axis=0)
    scatter = np.sqrt(excess / (total - np.sum(weight**2, axis=0) / total))
    return dict(zip(names, scatter.tolist(), strict=True))


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


def extrapolated(form: RatedForm, params: Array, runs: Runs) -> list[Finding]:
    """Findings where most models' best rate or batch lies outside what was tried for them."""
    model_of_run = _models(form, runs)
    findings = []
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
            counts = dict(outside=int(outside), models=compared)
            findings.append(finding("best_outside_tried", optimum=name, **counts, column=column))
    return findings


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
    ranges = dict(law.runs.ranges)
    rates = dataclasses.replace(rates, ranges={name: ranges.pop(name) for name in (RATE, BATCH) if name in ranges})
    bootstrap = law.bootstrap
    if bootstrap:
        count = len(rates.coefficients)
        draws = bootstrap.draws
        intervals = {name: bootstrap.intervals[name] for name in law.form.names}
        of_rates = {name: intervals.pop(name) for name in rates.coefficients}
        rates = dataclasses.replace(rates, draws=tuple(row[:count] for row in draws), intervals=of_rates)
        bootstrap = dataclasses.replace(bootstrap, draws=tuple(row[count:] for row in draws), intervals=intervals)
    return dataclasses.replace(
        law,
        form=base,
        coefficients={name: law.coefficients[name] for name in base.names},
        runs=dataclasses.replace(law.runs, ranges=ranges, fingerprint=fingerprint),
        tuning=rates,
        bootstrap=bootstrap,
    )
