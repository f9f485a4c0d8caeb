"""Intervals: profiles of a law's coefficients, and fits to runs drawn anew.

**Profile**: how far a coefficient can be moved, all others fitted again, until the fit is clearly worse. With noise of
unknown size twice the logarithm of the likelihood ratio is n ln(objective / best objective), to be compared with
chi-squared of one degree of freedom. Near the best value its square root is close to a straight line, so each end is
found by trying values outwards, then ever closer around the crossing.

**Bootstrap**: runs that share a trunk share its error, so trunks are drawn whole: 12 trunks of three budgets each have
12 independent errors, not 36. Drawing the *runs* of a small sweep anew leaves sizes out and extrapolates wildly, so by
default the runs stay as they are and their *errors* are drawn anew.
"""

import bisect
import itertools
from collections.abc import Mapping

import numpy as np
import scipy.special

from fit.aliases import Array, Json
from fit.fitted_law.law_check import LEVEL
from fit.fitting import search
from fit.fitting.noise import Noise
from fit.fitting.problem import Problem

TRIED = 5  # values for each end at a time: three coefficients' ends fill a batch
ROUNDS, CLOSE = 8, 0.02  # of rounds at most; ends once the crossing lies within this share of its distance


class _End:
    """The search for one end of one interval: `tried` holds (distance in the logarithm of the coefficient, root of the
    ratio there, free), by distance; the end is where the root passes `limit`."""

    def __init__(self, problem: Problem, fit: search.Fit, name: str, sign: int, guess: float, limit: float) -> None:
        self.name, self.best, self.sign, self.limit = name, fit.coefficients[name], sign, limit
        form, fixed = problem.form, problem.fixed
        smallest, largest = form.coefficients[name].tried
        smallest = max(smallest, 1.001 * fixed.get(form.coefficients[name].above, 0))
        for other, coefficient in form.coefficients.items():
            if coefficient.above == name:
                largest = min(largest, 0.999 * fixed.get(other, np.inf))
        self.farthest = max(1e-3, np.log(largest / self.best) if sign > 0 else np.log(self.best / smallest))
        guess = guess if np.isfinite(guess) else self.farthest / 64
        self.guess = float(np.clip(guess, 1e-4 * self.farthest, self.farthest / 8))
        self.tried = [(0.0, 0.0, fit.free)]

    def crossing(self) -> tuple[tuple, tuple | None]:
        """What was tried on both sides of the first crossing; the latter is None while none is beyond."""
        for inner, outer in itertools.pairwise(self.tried):
            if outer[1] > self.limit:
                return inner, outer
        return self.tried[-1], None

    def next(self) -> Array:
        """The distances to try next; none when the end is known."""
        (last, *_), outer = self.crossing()
        if outer is None:
            if last >= self.farthest:
                return np.array([])
            if last == 0:
                return np.append(self.guess * np.geomspace(0.5, 4, TRIED - 1), self.farthest)
            return np.minimum(last * np.geomspace(2, 2**TRIED, TRIED), self.farthest)
        if outer[0] - last <= CLOSE * outer[0]:
            return np.array([])
        between = np.geomspace if outer[0] > 4 * last > 0 else np.linspace
        return between(last, outer[0], TRIED + 2)[1:-1]

    def value(self) -> float | None:
        """The coefficient at the end; None where it is open."""
        (last, low, _), outer = self.crossing()
        if outer is None:
            return None
        at = last + (self.limit - low) / (outer[1] - low) * (outer[0] - last)
        return float(self.best * np.exp(self.sign * at))


def profile(
    problem: Problem, fit: search.Fit, errors: Mapping[str, float], inflation: Mapping[str, float] | None = None
) -> dict[str, Json]:
    """For each of the law's profiled coefficients that is not fixed: {value, low, high} of its LEVEL interval around
    the Fit, None where an end is open.

    errors: standard errors of the coefficients by name, to know where to look. inflation: by how much errors that runs
    share widen each coefficient's variance, by name; the ratio is divided by it.
    """
    form, best, held = problem.form, fit.coefficients, problem.data["held"]
    size = max(fit.objective, 1e-18 * len(problem))  # noise-free losses: nothing below rounding
    names = [name for name, c in form.coefficients.items() if c.pinned_by and name not in problem.fixed]
    normal = scipy.special.ndtri((1 + LEVEL) / 2)  # the root of chi-squared's quantile
    ends = []
    for name in names:
        limit = normal * np.sqrt((inflation or {}).get(name, 1))
        ends += [_End(problem, fit, name, sign, 1.3 * errors[name] / best[name], limit) for sign in (-1, 1)]
    for i in range(ROUNDS):
        todo = [(end, at) for end in ends for at in end.next()]
        if not todo:
            break
        values = np.tile(held, (len(todo), 1))
        for row, (end, at) in enumerate(todo):
            values[row, form.names.index(end.name)] = end.best * np.exp(end.sign * at)
        starts = np.stack([min(end.tried, key=lambda one, at=at: abs(one[0] - at))[2] for end, at in todo])
        trial = problem.holding(values)
        label = f"profiles, {i + 1} of at most {ROUNDS}"
        x, objectives, _ = search.polish(trial, trial.centre(starts), 8, "each", label)
        roots = np.sqrt(problem.sample_of * np.log(np.maximum(objectives, size) / size))
        for (end, at), root, free in zip(todo, roots, trial.own(x), strict=True):
            bisect.insort(end.tried, (at, root, free), key=lambda one: one[0])
    return {
        name: dict(value=best[name], low=low.value(), high=high.value())
        for name, low, high in zip(names, ends[::2], ends[1::2], strict=True)
    }


def distinct_optima(fit: search.Fit) -> Array:
    """Up to three rows of fit.frees with different objectives within 10% of the best; the best one first."""
    rows, last = [fit.free], fit.objective
    for i in np.argsort(fit.objectives, kind="stable")[: search.FOLLOWED]:  # the others were not followed to their end
        if last * 1.002 < fit.objectives[i] <= 1.1 * fit.objective and len(rows) < 3:
            rows.append(fit.frees[i])
            last = fit.objectives[i]
    return np.stack(rows)


def bootstrap(problem: Problem, fit: search.Fit, draws: int, how: str, noise: Noise) -> Array:
    """Coefficients [draws, n] of fits to runs drawn anew, each from the best optima of the Fit.

    how: "errors" draws the law's own losses with new errors of the sizes in `noise`, one that each trunk shares and one
    of each run; "replacement" draws trunks (or single runs, where none share one) with replacement, "paper" 80% of them
    without (App. F). The draws spread as fits to problem.sample_of runs would.
    """
    form, runs, n = problem.form, problem.runs, len(problem)
    rng = np.random.default_rng([problem.settings.seed, 1])
    labels = np.arange(n) if runs.trunks is None else runs.trunks
    shrink = np.sqrt(n / problem.sample_of)
    if how == "errors":
        drawn = form.log_loss(fit.free, runs.columns) + shrink * noise.draw(rng, draws, labels)
        data = dict(log_loss=problem.filled(drawn))
    else:
        counts = problem.filled(_counts(rng, labels, draws, how, len(form.names)))
        data = dict(root_weight=problem.data["root_weight"] * np.sqrt(counts))
    if prior := form.prior:  # what it knows is drawn as a measurement is: around the fit, as the losses are
        spread = shrink * np.linalg.cholesky(prior.covariance)
        data |= dict(prior_mean=prior.measure(fit.free) + rng.normal(size=(draws, len(prior.mean))) @ spread.T)
    free = search.best_of_each(problem, problem.centre(distinct_optima(fit)), f"bootstrap of {draws}", **data)
    if how != "errors" and shrink < 1:
        free = fit.free + shrink * (free - fit.free)
    return form.to_coefficients(free)


def _counts(rng: np.random.Generator, labels: Array, draws: int, how: str, coefficients: int) -> Array:
    """float64 [draws, n_runs]: how often each run is drawn.

    When single runs are drawn, as many fewer are drawn as there are coefficients: a fit's residuals are smaller than
    the runs' errors by about that share, and fewer draws widen the spread of the fits by as much.
    """
    units = labels.max() + 1
    counts = np.zeros((draws, units))
    if how == "paper":
        for row in counts:
            row[rng.choice(units, round(0.8 * units), replace=False)] = 1
    else:
        drawn = units if units < len(labels) else max(units - coefficients, units // 2)
        counts = rng.multinomial(drawn, np.full(units, 1 / units), size=draws).astype(float)
    return counts[:, labels]
