"""A fit as a least-squares problem in float64: the runs, weighted, and the residuals that compiled code computes.

  objective = reduce_i w_i Huber_delta(ln L_predicted,i - ln L_i) + weight_decay / 2 |params|^2
              + variance pull / 2 d(params)^2, d the distance to the mean of the form's Prior in standard deviations

`params` is the vector of a law's transformed coefficients (fit/form.py); reduce is the sum, or the mean over the runs.
For Levenberg-Marquardt the objective is half a sum of squares, with the square root of the Huber loss. The solver moves
x, which is `params` for centred columns: these make the normal equations well conditioned.

What differs from start to start is data (PER_START). Tables are padded with runs of no weight to one of a few lengths.
So all searches of a law over tables of about the same length share one compiled program.

Axes: n coefficients; r runs, padded; k starts; p entries of the prior.
"""

import dataclasses
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fit.aliases import Array, Floats
from fit.errors import UserError
from fit.fitted_law.settings import DEFAULTS, Settings
from fit.form import Form
from fit.table.runs import Runs, subset

Data = dict[str, Any]  # see Problem
Residuals = Callable[[Any, Data], jax.Array]  # of x [n], an array of numpy or jax
PER_START = ("log_loss", "root_weight", "fixed_values", "moving", "prior_mean")  # what may differ from start to start


@dataclasses.dataclass
class Problem:
    """A law's form to be fitted to runs.

    Attributes:
      form: the law's form.
      runs: the runs to fit.
      settings: how to fit them.
      sample_of: of how many runs these are a sample.
      data: for compiled code:
        columns: {name and "ln name": [r]}.
        log_loss, root_weight: [r] or [k, r].
        delta, weight_decay: numbers.
        centre: {column: mean of its logarithm}.
        fixed_values: of the coefficients, [n] or [k, n], NaN where one is free.
        moving: [n] or [k, n], 1 where the search moves the entry of x.
        prior_mean, prior_root: [p] or [k, p], and [p, p], of the form's Prior, the root weighed by the runs' variance;
          p is 0 where it has none.
    """

    form: Form
    runs: Runs
    settings: Settings
    sample_of: int
    data: Data

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def fixed(self) -> dict[str, float]:
        """{coefficient: value} of those that the fit does not move."""
        return self.settings.fix

    def with_data(self, **data: Any) -> Self:
        """The same problem with other data."""
        return dataclasses.replace(self, data=self.data | data)

    def with_fixed(self, fixed_values: Floats) -> Self:
        """The same problem with other coefficients fixed: values [n] or [k, n], NaN where one is free."""
        fixed_values = np.asarray(fixed_values, float)
        moving = self.form.moving(fixed_values.T).T.astype(float)
        return self.with_data(fixed_values=fixed_values, moving=moving)

    def part(self, rows: Array) -> Self:
        """The same problem with the runs `rows` (indices) alone, padded again."""
        n_padding = padded_length(len(rows)) - len(rows)

        def take(values: Array) -> Array:
            """The rows of the part, padded with copies of its first row."""
            return np.concatenate([values[rows], np.repeat(values[rows[:1]], n_padding)])

        columns = {name: take(values) for name, values in self.data["columns"].items()}
        root_weight = np.append(self.data["root_weight"][rows], np.zeros(n_padding))
        part = self.with_data(columns=columns, log_loss=take(self.data["log_loss"]), root_weight=root_weight)
        return dataclasses.replace(part, runs=subset(self.runs, rows))

    def padded(self, rows: Array) -> Array:
        """Values [..., n_runs] padded to [..., r] with zeros."""
        n_padding = self.data["log_loss"].shape[-1] - len(self.runs)
        return np.pad(rows, [(0, 0)] * (np.ndim(rows) - 1) + [(0, n_padding)])

    def centre(self, params: Array) -> Array:
        """The solver's x [k, n] from which it begins at `params` [k, n]."""
        params = np.asarray(params, float)
        fixed_values = np.broadcast_to(self.data["fixed_values"], params.shape).T
        x = self.form.recentre(self.form.begin(params.T, fixed_values), self.data["centre"]).T
        return np.where(self.data["moving"] > 0, x, 0.0)

    def params_of(self, x: Array) -> Array:
        """The law's `params` [k, n] of the solver's x [k, n]."""
        fixed_values = np.broadcast_to(self.data["fixed_values"], np.shape(x)).T
        return place(self.form, np.asarray(x).T, self.data | {"fixed_values": fixed_values}, np).T


def prepare(form: Form, runs: Runs, settings: Settings = DEFAULTS, sample_of: int | None = None) -> Problem:
    """The problem of fitting a form to runs; the coefficients that the settings fix are fixed.

    Args:
      sample_of: of how many runs these are a sample, where they are one.
    """
    n_runs = len(runs)
    with np.errstate(divide="ignore"):  # of a column that may be zero, such as sparsity
        logs = {name: np.log(runs.columns[name]) for name in form.columns}
    centre = {name: logs[name].mean() for name in form.slopes}
    # subtract and add the centre again, so that fits stay bit-identical to those of earlier versions
    logs |= {name: (logs[name] - centre[name]) + centre[name] for name in form.slopes}
    scale = 1.0 if settings.reduction == "sum" else 1.0 / n_runs
    data = dict(
        columns={name: runs.columns[name] for name in form.columns} | {f"ln {name}": v for name, v in logs.items()},
        log_loss=np.log(runs.loss),
        root_weight=np.sqrt(runs.weights * scale),
        delta=np.float64(settings.huber_delta),
        weight_decay=np.float64(settings.weight_decay),
        prior_mean=np.zeros(0),
        prior_root=np.zeros((0, 0)),
        centre=centre,
    )
    fixed_values = [settings.fix.get(name, np.nan) for name in form.names]
    if form.prior:
        fixed_places = np.flatnonzero(np.isfinite(fixed_values))
        data["prior_mean"] = form.prior.mean
        weight = settings.variance * settings.pull * scale
        data["prior_root"] = np.sqrt(weight) * form.prior.root_weight(fixed_places)
    problem = Problem(form, runs, settings, sample_of or n_runs, data)
    return problem.part(np.arange(n_runs)).with_fixed(fixed_values)


def near_part(problem: Problem) -> Problem:
    """The problem with the runs alone that lie near their best rate, where it is of several rates (with_rate.py).

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


def padded_length(n: int) -> int:
    """The number of rows that n runs are padded to: an eighth more at most, or a multiple of 32; n above 4,096."""
    step = max(32, 2 ** (int(n).bit_length() - 4))
    return n if n > 4096 else -(-n // step) * step


def place(form: Form, x: Any, data: Data, xp: ModuleType = jnp) -> Any:
    """The law's `params` [n, ...] of the solver's x [n, ...], for columns that are not centred.

    Coefficients are fixed as data["fixed_values"] [n, ...] says, and all are within the form's bounds. Entries of x
    that nothing moves are 0.
    """
    low, high = (bound.reshape(-1, *[1] * (x.ndim - 1)) for bound in form.bounds.T)
    origin = {column: -value for column, value in data["centre"].items()}
    params = form.recentre(form.fix(x, data["fixed_values"], xp), origin, xp)  # exponents first: scales follow
    return xp.clip(form.fix(params, data["fixed_values"], xp), low, high)


@functools.cache
def residual_function(form: Form) -> Residuals:
    """residuals(x [n], data) -> [r + n + p]; data as a Problem has it, for one start."""

    def residuals(x: Any, data: Data) -> jax.Array:
        params = jax.lax.optimization_barrier(place(form, x, data))
        error = form.log_loss(params, data["columns"], jnp) - data["log_loss"]
        size = jnp.abs(error)
        delta = data["delta"]
        beyond = size > delta
        tail = jnp.sqrt(jnp.where(beyond, 2 * delta * size - delta**2, 1.0))  # double where: no NaN in its gradient
        root_huber = jnp.where(beyond, jnp.sign(error) * tail, error)
        decay = jnp.where(data["moving"] > 0, jnp.sqrt(data["weight_decay"]) * params, x)
        rows = [data["root_weight"] * root_huber, decay]
        if form.prior:
            rows.append(data["prior_root"] @ (form.prior.measure(params, jnp) - data["prior_mean"]))
        return jnp.concatenate(rows)

    return residuals
