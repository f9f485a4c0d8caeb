"""Laws of loss, learning rate and batch at once: `fit law --with_rate`.

A RatedForm is a law's form with the penalty of fit/fitted_law/tuning.py added to its log loss. Both are fitted
together (reweighted.py), so a run far from its best rate says something of the law too.

Axes: n_runs runs.
"""

import types
from collections.abc import Mapping
from types import ModuleType

import numpy as np

from fit.aliases import Array, ByName
from fit.errors import UserError
from fit.fitted_law import tuning
from fit.fitted_law.tuning import BATCH, OF_MODELS, RATE
from fit.form import Coefficient, Form, Prior
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
        summary=of_base.summary,
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
    """A column's name in the file."""
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
