"""Laws of loss, learning rate and batch at once: `fit law --with_rate`.

A RatedForm is a law's form with the penalty of fit/fitted_law/tuning.py added to its log loss. Both are fitted
together, so a run far from its best rate says something of the law too.

The penalty is the first term of an expansion around the optimum: its error grows with itself. So a run of penalty P has
the weight 1 / (1 + (P / scale)^2), where scale is NEAR_OPTIMAL or the scatter of the runs, if that is larger. The
weights follow from the fit, the fit from the weights, in ROUNDS rounds. Intervals count the runs whose P is at most
FAR times the scale.

Axes: n_runs runs.
"""

import dataclasses
import types
from collections.abc import Mapping
from types import ModuleType

import numpy as np

from fit.aliases import Array, ByName, Json
from fit.data.runs import Runs, read_runs, subset
from fit.data.table import Table
from fit.errors import UserError
from fit.fitted_law import tuning
from fit.fitted_law.tuning import BATCH, OF_MODELS, RATE
from fit.fitting import search
from fit.fitting.noise import noise_of
from fit.fitting.problem import Problem, prepare
from fit.form import Coefficient, Form, Prior
from fit.laws import FORMS

NEAR_OPTIMAL = 0.0025  # of the loss: how far a run may lie above the best and count as near-optimal, as in DeepSeek LLM
FAR = 6.0  # times the scale
ROUNDS = 8
FOLLOWED = search.BATCH - 1  # starts that each round follows, beside the best: one batch
FEWEST_VALUES = 3  # of rates, or of batches
SMALLEST_SPREAD = 0.05  # of ln rate or ln batch around a power law of the models, below which it follows from them
ODD_SHARE = 0.5  # of the models, whose best rate lies outside what was tried
# Normal priors of entries of `params`, weighed against the scatter of the runs: a few runs overrule them.
EXPONENT_PRIOR = (0.0, 1.0)
COST_PRIOR = (-4.0, 1.5)  # of ln rate_cost and ln batch_cost
SKEW_PRIOR = (0.2, 0.5)
TILT_PRIOR = (0.3, 1.0)
NO_GRID = (1.0,)  # no published values of these coefficients are starts


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
        self.prior = _both_priors(self._declared_prior_of_rates(), base.prior, len(self.rate_names))

    def _declared_prior_of_rates(self) -> Prior:
        """The prior of the coefficients of rate and batch."""
        entries = []
        means = []
        deviations = []
        for i, name in enumerate(self.rate_names):
            prior = self.coefficients[name].prior
            if prior:
                entries.append(i)
                means.append(prior[0])
                deviations.append(prior[1])
        return Prior(tuple(entries), (0,) * len(entries), np.array(means), np.diag(np.square(deviations)))

    def penalty(self, params: Array, columns: ByName) -> Array:
        """By how much ln L of runs lies above that of their models' best rate and batch, [n_runs].

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


def _both_priors(of_rates: Prior, of_base: Prior | None, n_rates: int) -> Prior:
    """The priors of rates and of the base, whose entries come n_rates later, as one."""
    if of_base is None:
        return of_rates
    width = len(of_rates.entries)
    size = width + len(of_base.entries)
    covariance = np.zeros((size, size))
    covariance[:width, :width] = of_rates.covariance
    covariance[width:, width:] = of_base.covariance
    return Prior(
        entries=(*of_rates.entries, *(entry + n_rates for entry in of_base.entries)),
        signs=(*of_rates.signs, *of_base.signs),
        mean=np.concatenate([of_rates.mean, of_base.mean]),
        covariance=covariance,
        record=of_base.record,
    )


def rated_form(base: Form, table: Table) -> RatedForm:
    """The form with the optima that the runs of a table can tell.

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
            f"{table.path}, column {_name(table, RATE)}: the rates follow from the models, so no run says what another "
            "rate costs; --with_rate expects runs of a model at several rates"
        )
    with_batch = False
    if BATCH in table:
        batches = table.numbers(BATCH, tuning.BOUNDS[BATCH])
        if len(np.unique(batches)) > 1:
            _check_values(table, BATCH, batches)
            with_batch = _spread(batches, varied) >= SMALLEST_SPREAD
    reference = {column: float(f"{np.exp(np.log(values).mean()):.3g}") for column, values in varied.items()}
    return RatedForm(base, reference, with_batch)


def _name(table: Table, column: str) -> str:
    """What the file calls a column."""
    return table.names.get(column, column)


def _check_values(table: Table, column: str, values: Array) -> None:
    """Raises UserError where a column has too few different values."""
    count = len(np.unique(values))
    if count < FEWEST_VALUES:
        or_one = ", or one" if column == BATCH else ""
        values_word = "value" if count == 1 else "values"
        raise UserError(
            f"{table.path}, column {_name(table, column)}: found {count} different {values_word}, expected "
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
    columns = [runs.columns[name] for name in form.base.columns]
    _, model_of_run = np.unique(np.stack(columns), axis=1, return_inverse=True)
    model_of_run = model_of_run.reshape(-1)
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


def warnings(form: RatedForm, params: Array, runs: Runs) -> list[str]:
    """Sentences where most models' best rate or batch lies outside what was tried for them."""
    columns = [runs.columns[name] for name in form.base.columns]
    models, model_of_run = np.unique(np.stack(columns), axis=1, return_inverse=True)
    model_of_run = model_of_run.reshape(-1)
    sentences = []
    for name, column in (("rate", RATE), ("batch", BATCH)):
        if column not in form.columns:
            continue
        optimum = form.optimum(params, runs.columns, name)
        outside = 0
        compared = 0
        for i in range(models.shape[1]):
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


def split_record(record: Json, table: Table) -> Json:
    """The record of a law of the base form, with what belongs to rate and batch in its entry `rates`.

    Args:
      record: of a law with rates, as fitting.record_of makes it.
      table: that was fitted.
    """
    base = FORMS[record["form"]]
    names = [name for name in record["coefficients"] if name not in base.names]
    count = len(names)
    ranges = dict(record["runs"]["ranges"])
    rates: Json = dict(
        coefficients={name: record["coefficients"][name] for name in names},
        reference=record["rates"]["reference"],
        ranges={name: ranges.pop(name) for name in (RATE, BATCH) if name in ranges},
        runs=record["rates"]["runs"],
        near=record["rates"]["near"],
    )
    runs = read_runs(table, base.columns, mix_corpora=True)
    split = record | dict(
        coefficients={name: record["coefficients"][name] for name in base.names},
        runs=record["runs"] | dict(ranges=ranges, fingerprint=runs.fingerprint()),
        rates=rates,
    )
    bootstrap = record.get("bootstrap")
    if bootstrap:
        intervals = bootstrap["intervals"]
        rates["draws"] = [row[:count] for row in bootstrap["draws"]]
        rates["intervals"] = {name: intervals[name] for name in names}
        split["bootstrap"] = bootstrap | dict(
            draws=[row[count:] for row in bootstrap["draws"]],
            intervals={name: intervals[name] for name in base.names},
        )
    return split
