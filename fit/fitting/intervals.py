"""Intervals: profiles of a law's coefficients, and a bootstrap of its runs.

**Profile**: how far a coefficient can be moved, all others fitted again, until the fit is clearly worse. With noise of
unknown size twice the logarithm of the likelihood ratio is n_runs ln(objective / best objective). It is compared with
chi-squared of one degree of freedom. Near the best value its square root is close to a straight line, so each end is
found by trying values outwards, then ever closer around the crossing.

**Bootstrap**: runs that share a trunk share its error, so trunks are drawn whole: 12 trunks of three budgets each have
12 independent errors, not 36. Resampling the *runs* of a small sweep leaves sizes out and extrapolates wildly. So by
default the bootstrap is parametric: the runs stay as they are, and new *errors* are drawn from their noise.

Axes: n coefficients; n_runs runs; draws of the bootstrap.
"""

import bisect
import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.special

from fit.aliases import Array
from fit.fitted_law.parts import LEVEL, ProfileInterval
from fit.fitting import search
from fit.fitting.noise import Noise
from fit.fitting.problem import Problem

TRIED = 5  # values for each end at a time: three coefficients' ends fill a batch
MOST_ROUNDS = 8
CLOSE = 0.02  # an end is known once the crossing lies within this share of its distance
POLISH_ROUNDS = 8  # of each fit with a coefficient moved
MOST_OPTIMA = 3  # from which a fit to drawn runs begins


class _Tried(NamedTuple):
    """A value that was tried: its distance from the best in the logarithm of the coefficient, the root of the ratio
    there, and the parameters [n] of the fit."""

    distance: float
    root: float
    params: Array


class _End:
    """The search for one end of one interval: where the root of the ratio passes a limit."""

    def __init__(self, problem: Problem, fit: search.Fit, name: str, sign: int, guess: float, limit: float) -> None:
        """Begins at the best value.

        Args:
          name: the coefficient.
          sign: 1 for the upper end, -1 for the lower.
          guess: the distance of the end, in the logarithm of the coefficient; infinite or NaN where it is not known.
          limit: of the root of the ratio.
        """
        self.name = name
        self.best = fit.coefficients[name]
        self.sign = sign
        self.limit = limit
        form = problem.form
        smallest, largest = form.coefficients[name].tried
        smallest = max(smallest, 1.001 * problem.fixed.get(form.coefficients[name].above, 0))
        for other, coefficient in form.coefficients.items():
            if coefficient.above == name:
                largest = min(largest, 0.999 * problem.fixed.get(other, np.inf))
        self.farthest = max(1e-3, np.log(largest / self.best) if sign > 0 else np.log(self.best / smallest))
        guess = guess if np.isfinite(guess) else self.farthest / 64
        self.guess = float(np.clip(guess, 1e-4 * self.farthest, self.farthest / 8))
        self.tried = [_Tried(0.0, 0.0, fit.params)]  # by distance

    def crossing(self) -> tuple[_Tried, _Tried | None]:
        """The trials just before and just after the first crossing. The second is None if no trial has crossed yet."""
        for inner, outer in itertools.pairwise(self.tried):
            if outer.root > self.limit:
                return inner, outer
        return self.tried[-1], None

    def next_distances(self) -> Array:
        """The distances to try next; none when the end is known."""
        inner, outer = self.crossing()
        last = inner.distance
        if outer is None:
            if last >= self.farthest:
                return np.array([])
            if last == 0:
                return np.append(self.guess * np.geomspace(0.5, 4, TRIED - 1), self.farthest)
            return np.minimum(last * np.geomspace(2, 2**TRIED, TRIED), self.farthest)
        if outer.distance - last <= CLOSE * outer.distance:
            return np.array([])
        between = np.geomspace if outer.distance > 4 * last > 0 else np.linspace
        return between(last, outer.distance, TRIED + 2)[1:-1]

    def coefficient_at(self, distance: float) -> float:
        """The coefficient at a distance from its best value."""
        return self.best * np.exp(self.sign * distance)

    def nearest_params(self, distance: float) -> Array:
        """The parameters [n] of the value tried that is nearest to a distance."""

        def gap(tried: _Tried) -> float:
            return abs(tried.distance - distance)

        return min(self.tried, key=gap).params

    def add(self, tried: _Tried) -> None:
        """Adds what was tried, in the order of distances."""
        bisect.insort(self.tried, tried, key=_distance)

    def value(self) -> float | None:
        """The coefficient at the end; None where it is open."""
        inner, outer = self.crossing()
        if outer is None:
            return None
        share = (self.limit - inner.root) / (outer.root - inner.root)
        distance = inner.distance + share * (outer.distance - inner.distance)
        return float(self.coefficient_at(distance))


def _distance(tried: _Tried) -> float:
    return tried.distance


def profile(
    problem: Problem, fit: search.Fit, errors: Mapping[str, float], inflation: Mapping[str, float] | None = None
) -> dict[str, ProfileInterval]:
    """Profile intervals of the LEVEL of the coefficients that name what identifies them and are not fixed.

    Args:
      fit: the best fit, around which the intervals are.
      errors: {coefficient: standard error}, to know where to look.
      inflation: {coefficient: factor} by which errors that runs share widen its variance; the ratio is divided by it.

    Returns:
      {coefficient: interval}.
    """
    form = problem.form
    best = fit.coefficients
    best_objective = max(fit.objective, 1e-18 * len(problem))  # noise-free losses: nothing below rounding
    names = [name for name, c in form.coefficients.items() if c.identified_by and name not in problem.fixed]
    normal = scipy.special.ndtri((1 + LEVEL) / 2)  # the root of chi-squared's quantile
    ends = []
    for name in names:
        limit = normal * np.sqrt((inflation or {}).get(name, 1))
        guess = 1.3 * errors[name] / best[name]
        ends += [_End(problem, fit, name, sign, guess, limit) for sign in (-1, 1)]
    for i in range(MOST_ROUNDS):
        todo = [(end, distance) for end in ends for distance in end.next_distances()]
        if not todo:
            break
        _try_values(problem, todo, best_objective, f"profiles, {i + 1} of at most {MOST_ROUNDS}")
    return {
        name: ProfileInterval(value=best[name], low=low.value(), high=high.value())
        for name, low, high in zip(names, ends[::2], ends[1::2], strict=True)
    }


def _try_values(problem: Problem, todo: list[tuple[_End, float]], best_objective: float, label: str) -> None:
    """Fits the law with a coefficient at each of these distances, and adds what it finds to the ends."""
    fixed_values = np.tile(problem.data["fixed_values"], (len(todo), 1))
    for row, (end, distance) in enumerate(todo):
        fixed_values[row, problem.form.names.index(end.name)] = end.coefficient_at(distance)
    starts = np.stack([end.nearest_params(distance) for end, distance in todo])
    trial = problem.with_fixed(fixed_values)
    x, objectives, _ = search.polish(trial, trial.centre(starts), POLISH_ROUNDS, "each", label)
    above = np.maximum(objectives, best_objective)
    roots = np.sqrt(problem.sample_of * np.log(above / best_objective))
    if problem.form.prior and problem.form.prior.scatter:  # noise of known size
        roots = np.sqrt(2 * (above - best_objective)) / problem.form.prior.scatter
    for (end, distance), root, params in zip(todo, roots, trial.params_of(x), strict=True):
        end.add(_Tried(distance, root, params))


def distinct_optima(fit: search.Fit) -> Array:
    """Up to MOST_OPTIMA rows of params [n] with different objectives within 10% of the best; the best one first."""
    rows = [fit.params]
    last = fit.objective
    for i in np.argsort(fit.objectives, kind="stable")[: search.FOLLOWED]:  # the others were not followed to their end
        if last * 1.002 < fit.objectives[i] <= 1.1 * fit.objective and len(rows) < MOST_OPTIMA:
            rows.append(fit.start_params[i])
            last = fit.objectives[i]
    return np.stack(rows)


def bootstrap(problem: Problem, fit: search.Fit, draws: int, how: str, noise: Noise) -> Array:
    """Fits to bootstrap samples of the runs, each from the best optima of the Fit.

    Args:
      draws: how many fits.
      how: "errors" draws the law's own losses with new errors, one that each trunk shares and one of each run;
        "replacement" draws trunks, or single runs where none share one, with replacement; "paper" draws 80% of them
        without replacement (App. F of the joint law's paper).
      noise: the sizes of the errors.

    Returns:
      Coefficients [draws, n], which spread as fits to problem.sample_of runs would.
    """
    form = problem.form
    runs = problem.runs
    rng = np.random.default_rng([problem.settings.seed, 1])
    labels = np.arange(len(problem)) if runs.trunks is None else runs.trunks
    shrink = np.sqrt(len(problem) / problem.sample_of)
    if how == "errors":
        losses = form.log_loss(fit.params, runs.columns) + shrink * noise.draw(rng, draws, labels)
        data = dict(log_loss=problem.padded(losses))
    else:
        counts = problem.padded(_counts(rng, labels, draws, how, len(form.names)))
        data = dict(root_weight=problem.data["root_weight"] * np.sqrt(counts))
    if form.prior:  # what it knows is drawn as a measurement is: around the fit, as the losses are
        spread = shrink * np.linalg.cholesky(form.prior.covariance / problem.settings.pull)
        normal = rng.normal(size=(draws, len(form.prior.mean)))
        data["prior_mean"] = form.prior.measure(fit.params) + normal @ spread.T
    params = search.best_of_each(problem, problem.centre(distinct_optima(fit)), f"bootstrap of {draws}", **data)
    if how != "errors" and shrink < 1:
        params = fit.params + shrink * (params - fit.params)
    return form.to_coefficients(params)


def _counts(rng: np.random.Generator, labels: Array, draws: int, how: str, n_coefficients: int) -> Array:
    """float64 [draws, n_runs]: how often each run is drawn.

    When single runs are drawn, as many fewer are drawn as there are coefficients: a fit's residuals are smaller than
    the runs' errors by about that share, and fewer draws widen the spread of the fits by as much.
    """
    units = labels.max() + 1
    if how == "paper":
        counts = np.zeros((draws, units))
        for row in counts:
            row[rng.choice(units, round(0.8 * units), replace=False)] = 1
        return counts[:, labels]
    are_trunks = units < len(labels)
    drawn = units if are_trunks else max(units - n_coefficients, units // 2)
    counts = rng.multinomial(drawn, np.full(units, 1 / units), size=draws).astype(float)
    return counts[:, labels]
