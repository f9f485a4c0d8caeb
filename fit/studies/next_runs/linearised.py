"""A law near its fit, where it is linear: the gradients of runs and of coefficients, and what the fitted runs say.

The letters are those of design.py. Axes: n coefficients, k runs. Units are such that the information of the fit's runs
is 1.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, ByName
from fit.fitted_law.law import Law
from fit.fitted_law.parts import Scatter
from fit.fitting import noise
from fit.fitting.problem import Problem, Settings, prepare
from fit.table.runs import Runs
from fit.table.table import Table

PRIOR = 10.0  # as the default weight decay of a fit to few runs
UNKNOWN_SHARE = 0.5  # of the noise that a trunk's runs share, where the fitted runs show no trunks
MOST_SHARED = 0.95  # else a second run of a trunk would be known to the last digit
LEAST_NOISE = 1e-6  # of log loss: nothing is known better than this
ROWS_AT_ONCE = 2048  # rows per batch of gradients, so that several questions share one compiled program


@dataclasses.dataclass(frozen=True)
class Linearised:
    """A law near its fit, by the solver's coordinates, in units in which the information of its runs is 1.

    Attributes:
      jacobians: [k, n] of each set of columns: gradients of its log losses.
      of_coefficients: [n, n], gradients of the law's coefficients.
      normal, spread: [n, n], A and B above of the fitted runs, whose information is 1.
      shared: s above.
    """

    jacobians: list[Array]
    of_coefficients: Array
    normal: Array
    spread: Array
    shared: float


def linearised(law: Law, runs: Runs, scatter: Scatter, parts: Sequence[ByName]) -> Linearised:
    """Linearises a law near its fit. Needs jax in float64.

    Args:
      law: a fit to `runs`.
      runs: those that it was fitted to.
      scatter: their noise, with its parts.
      parts: sets of columns whose losses are in question; each broadcasts to [k].
    """
    problem, ends = _problem_of(law, runs, parts)
    free = law.form.to_params(law.coefficients)
    x = problem.centre(free[None])
    of_fitted, *of_parts, _ = np.split(noise.sensitivity(problem, free)[1], ends)
    to_free = noise.derivative(problem.params_of, x)
    to_coefficients = noise.derivative(lambda x: law.form.to_coefficients(problem.params_of(x)), x)
    moving = problem.data["moving"]
    fixed = np.diag(1.0 - moving)  # a coefficient that is fixed has no error: any information will do

    total = max(scatter.total, LEAST_NOISE)
    prior = (to_free.T @ to_free * np.outer(moving, moving) + fixed) * (total / PRIOR) ** 2
    shared = UNKNOWN_SHARE
    trunks = np.arange(len(runs))
    if runs.trunks is not None and scatter.trunk is not None:
        shared = min((scatter.trunk / total) ** 2, MOST_SHARED)
        trunks = runs.trunks
    root_weights = np.sqrt(runs.weights)
    relative = scatter.ratio_at(runs.flops)
    root_weighted = scaled(of_fitted, root_weights)
    known = root_weighted if scatter.growth is None else scaled(of_fitted, 1 / relative)
    information = prior + with_correlation(known, trunks, shared, inverse=True)
    scattered = scaled(of_fitted, runs.weights * relative)
    unit = np.linalg.inv(np.linalg.cholesky(information)).T  # x = unit @ new coordinates
    return Linearised(
        jacobians=[part @ unit for part in of_parts],
        of_coefficients=to_coefficients * moving @ unit,
        normal=unit.T @ (prior + root_weighted.T @ root_weighted) @ unit,
        spread=unit.T @ (prior + with_correlation(scattered, trunks, shared)) @ unit,
        shared=shared,
    )


def _problem_of(law: Law, runs: Runs, parts: Sequence[ByName]) -> tuple[Problem, Array]:
    """(the problem of fitting the law to `runs` and `parts` as one table, the row after the last one of each).

    The table is padded to a multiple of ROWS_AT_ONCE rows.
    """
    names = law.form.columns
    every = [np.broadcast_arrays(*(part[name] for name in names)) for part in (runs.columns, *parts)]
    ends = np.cumsum([len(columns[0]) for columns in every])
    padding = -int(ends[-1]) % ROWS_AT_ONCE
    values = np.concatenate(every, axis=1, dtype=float)
    columns = {name: np.pad(column, (0, padding), "edge") for name, column in zip(names, values, strict=True)}
    padded = Runs(runs.path, columns, np.ones(ends[-1] + padding), Table(runs.path, {}, []))
    return prepare(law.form, padded, Settings(fix=law.settings.fix)), ends


def scaled(rows: Array, factors: Array) -> Array:
    """Rows [k, n], each times its factor [k]."""
    return rows * factors[:, None]


def correlation(model: Array, shared: float) -> Array:
    """[k, k]: C of design.py, of the errors of runs of these models [k]."""
    return shared * (model[:, None] == model) + (1 - shared) * np.eye(len(model))


def with_correlation(rows: Array, trunks: Array, shared: float, inverse: bool = False) -> Array:
    """rows' C rows, or rows' C^-1 rows, trunk by trunk: without the matrix of k^2 numbers.

    Args:
      rows: [k, n], of runs.
      trunks: [k], their trunks.
      shared: s above.
      inverse: whether to take C^-1.

    Returns:
      [n, n].
    """
    counts = np.bincount(trunks)
    sums = np.zeros((len(counts), rows.shape[1]))
    np.add.at(sums, trunks, rows)
    if inverse:
        share = shared / (1 + (counts - 1) * shared)
        return (rows.T @ rows - (share * sums.T) @ sums) / (1 - shared)
    return (1 - shared) * rows.T @ rows + shared * sums.T @ sums
