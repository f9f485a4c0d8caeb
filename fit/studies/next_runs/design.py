"""Which runs to train next: optimal experimental design on a fitted law.

Near the fit the law is linear, so one can compute how a set of runs would change its errors before any is trained. Let
J be the gradients of a trunk's log losses by the coefficients, a row for each run, and C the correlations of its runs'
errors: 1 on the diagonal, s elsewhere (the share of the noise's variance that the runs of a trunk share). Let R be the
diagonal matrix of how many times as much as large runs each one scatters. Then

  information = sum over trunks of J' R^-1 C^-1 R^-1 J, + P   what the runs hold (Gauss and Newton)
  covariance of a fit = noise^2 A^-1 B A^-1                   what least squares, as in fit law, makes of them:
  A = sum over trunks of J' J, + P                            it treats the runs of a trunk as independent
  B = sum over trunks of J' R C R J, + P

P is a prior that each of the law's parameters, by the solver's coordinates, lies within about PRIOR of zero. It keeps
finite the variance of what no run identifies. The search minimises the goals' variances g' information^-1 g. It adds
runs greedily. Then it leaves out one run or trunk and spends its cost again, as long as that helps. The errors
reported are those of least squares.

Axes: n coefficients, c candidates, g goals, k runs, m models (trunks). Units are such that the information of the fit's
runs is 1.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from fit.aliases import Array, ByName, Ints
from fit.fitted_law.law import Law
from fit.fitted_law.parts import Scatter
from fit.fitting import noise
from fit.fitting.problem import Problem, Settings, prepare
from fit.studies.next_runs.candidates import PossibleRuns
from fit.table.runs import Runs
from fit.table.table import Table

PRIOR = 10.0  # as the default weight decay of a fit to few runs
UNKNOWN_SHARE = 0.5  # of the noise that a trunk's runs share, where the fitted runs show no trunks
MOST_SHARED = 0.95  # else a second run of a trunk would be known to the last digit
GAIN = 1e-3  # a run that makes the goals' variances smaller by less than this share is not worth training
PASSES = 3  # of the exchange, at most
TRIED = 2  # first runs tried instead of those left out
LEAST_NOISE = 1e-6  # of log loss: nothing is known better than this
ROWS_AT_ONCE = 2048  # rows per batch of gradients, so that several questions share one compiled program


@dataclasses.dataclass(frozen=True)
class Design:
    """The problem of choosing among possible runs.

    Attributes:
      possible: the candidates.
      jacobian: [c, n], gradients of the candidates' log losses.
      goals: [g, n], what should have little variance.
      weights: [g], of these.
      information, normal, spread: [n, n], the information, A and B above of the fitted runs.
      shared: s above.
    """

    possible: PossibleRuns
    jacobian: np.ndarray
    goals: np.ndarray
    weights: np.ndarray
    information: np.ndarray
    normal: np.ndarray
    spread: np.ndarray
    shared: float

    def variances_with(self, chosen: Ints) -> Array:
        """[g]: the variances of a fit that has the candidates `chosen` (indices) too."""
        chosen = np.asarray(chosen, int)
        return self.variances(self.jacobian[chosen], self.possible.model[chosen], self.possible.scatter[chosen])

    def variances(self, jacobian: Array, model: Array, scatter: Array) -> Array:
        """Variances of the goals, over the noise's variance, of a least-squares fit that has further runs too.

        Args:
          jacobian: [k, n], gradients of the further runs.
          model: [k], their models.
          scatter: [k], as that of PossibleRuns.

        Returns:
          [g].
        """
        v = np.linalg.solve(self.normal + jacobian.T @ jacobian, self.goals.T)
        scattered = _scaled(jacobian, scatter)
        spread = self.spread + scattered.T @ correlation(model, self.shared) @ scattered
        return np.einsum("ng,nm,mg->g", v, spread, v)

    @functools.cached_property
    def _in_scatter(self) -> Array:
        """[c, n], gradients of the candidates over their scatter: R^-1 J above."""
        return _scaled(self.jacobian, 1 / self.possible.scatter)

    def _by_model(self, chosen: Array) -> tuple[Array, Array, Array]:
        """Sums over the chosen runs of each model.

        For a trunk C^-1 = (1 - share 11') / (1 - s), and C^-1 s 1 = share 1.

        Returns:
          ([m] number of runs, [m, n] sum of gradients over their scatter, [m] what share of that sum predicts those of
          another run).
        """
        model = self.possible.model[chosen]
        runs = np.bincount(model, minlength=self.possible.model.max() + 1)
        sums = np.zeros((len(runs), self.jacobian.shape[1]))
        np.add.at(sums, model, self._in_scatter[chosen])
        return runs, sums, self.shared / (1 + (runs - 1) * self.shared)

    def _information(self, chosen: Array) -> Array:
        """[n, n]: information of the fitted runs and the chosen ones."""
        jacobian = self._in_scatter[chosen]
        _, sums, share = self._by_model(chosen)
        return self.information + (jacobian.T @ jacobian - (share * sums.T) @ sums) / (1 - self.shared)

    def score(self, chosen: Ints) -> float:
        """The objective of the search: the goals' weighted variances with the candidates `chosen` (indices) trained."""
        information = self._information(np.asarray(chosen, int))
        return float(self.weights @ np.einsum("gn,ng->g", self.goals, np.linalg.solve(information, self.goals.T)))

    def gains_of_one_more(self, chosen: Ints) -> Array:
        """[c]: the decrease of the score by each candidate, given those chosen.

        A candidate adds its innovation: its gradient over its scatter, less the part that the chosen runs of its trunk
        predict.
        """
        chosen = np.asarray(chosen, int)
        model = self.possible.model
        runs, sums, share = self._by_model(chosen)
        innovation = self._in_scatter - (share[:, None] * sums)[model]
        variance = (1 - self.shared * runs * share)[model]
        u = np.linalg.solve(self._information(chosen), innovation.T)
        return self.weights @ (self.goals @ u) ** 2 / (variance + np.einsum("cn,nc->c", innovation, u))


def _scaled(rows: Array, factors: Array) -> Array:
    """Rows [k, n], each times its factor [k]."""
    return rows * factors[:, None]


def correlation(model: Array, shared: float) -> Array:
    """[k, k]: C above, of the errors of runs of these models [k]."""
    return shared * (model[:, None] == model) + (1 - shared) * np.eye(len(model))


def _with_correlation(rows: Array, trunks: Array, shared: float, inverse: bool = False) -> Array:
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


def fill(design: Design, chosen: Ints, flops: float, by_cost: bool) -> tuple[list[int], float]:
    """Adds candidates to `chosen`, as long as the budget lasts and one is worth it.

    Args:
      design: the problem.
      chosen: candidates to begin with (indices).
      flops: the budget of all.
      by_cost: whether to add the candidate that lowers the score most per FLOP; else the one that lowers it most.

    Returns:
      (indices of all, score).
    """
    chosen = list(chosen)
    score = design.score(chosen)
    left = flops - design.possible.flops(chosen)
    while True:
        gains, costs = _one_more(design, chosen, left)
        gains[gains < GAIN * score] = 0
        best = int(np.argmax(gains / costs if by_cost else gains))
        if gains[best] <= 0:
            return chosen, score
        chosen.append(best)
        score = design.score(chosen)
        left = left - costs[best]


def _one_more(design: Design, chosen: list[int], left: float) -> tuple[Array, Array]:
    """([c] the decrease of the score by each candidate, 0 for those chosen and those of more than `left` FLOPs;
    [c] their FLOPs)."""
    gains = design.gains_of_one_more(chosen)
    costs = design.possible.flops_of_one_more(chosen)
    gains[chosen] = 0
    gains[costs > left * (1 + 1e-9)] = 0
    return gains, costs


def choose(design: Design, flops: float) -> list[int]:
    """Chooses the candidates to train within a budget.

    Returns:
      Their indices, ascending; empty where none is worth it.
    """
    greedy = (fill(design, [], flops, by_cost) for by_cost in (True, False))
    chosen, score = min(greedy, key=lambda filled: filled[1])
    model = design.possible.model
    for _ in range(PASSES):
        score_before = score
        trunks = [{i for i in chosen if model[i] == m} for m in np.unique(model[chosen])]
        for left_out in [*trunks, *({i} for i in chosen)]:
            rest = [i for i in chosen if i not in left_out]
            if len(rest) == len(chosen):
                continue
            starts = _starts(design, rest, left_out, flops)
            filled = (fill(design, start, flops, by_cost) for start, by_cost in starts)
            other, other_score = min(filled, key=lambda result: result[1])
            is_better = other_score < score * (1 - GAIN)
            is_shorter = other_score <= score and len(other) < len(chosen)
            if is_better or is_shorter:
                chosen = other
                score = other_score
        if score > score_before * (1 - 10 * GAIN):
            break
    return sorted(chosen)


def _starts(design: Design, rest: list[int], left_out: set[int], flops: float) -> Iterator[tuple[list[int], bool]]:
    """(runs, by_cost) for `fill` to begin with once some runs are left out.

    These are the `rest` alone, and the rest with each of the TRIED runs that gain most, or gain most for their cost.
    """
    gains, costs = _one_more(design, rest, flops - design.possible.flops(rest))
    gains[list(left_out)] = 0
    for by_cost in (True, False):
        yield rest, by_cost
        for i in np.argsort(gains / costs if by_cost else gains)[-TRIED:]:
            if gains[i] > 0:
                yield [*rest, int(i)], by_cost


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
    root_weighted = _scaled(of_fitted, root_weights)
    known = root_weighted if scatter.growth is None else _scaled(of_fitted, 1 / relative)
    information = prior + _with_correlation(known, trunks, shared, inverse=True)
    scattered = _scaled(of_fitted, runs.weights * relative)
    unit = np.linalg.inv(np.linalg.cholesky(information)).T  # x = unit @ new coordinates
    return Linearised(
        jacobians=[part @ unit for part in of_parts],
        of_coefficients=to_coefficients * moving @ unit,
        normal=unit.T @ (prior + root_weighted.T @ root_weighted) @ unit,
        spread=unit.T @ (prior + _with_correlation(scattered, trunks, shared)) @ unit,
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


def of_candidates(linear: Linearised, possible: PossibleRuns, jacobian: Array, goals: Array) -> Design:
    """The Design of candidates with gradients [c, n] and goals [g, n], all of weight 1."""
    return Design(
        possible=possible,
        jacobian=jacobian,
        goals=goals,
        weights=np.ones(len(goals)),
        information=np.eye(len(linear.normal)),
        normal=linear.normal,
        spread=linear.spread,
        shared=linear.shared,
    )
