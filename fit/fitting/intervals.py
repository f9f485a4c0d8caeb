"""Intervals: profiles of a law's coefficients, and fits to runs drawn anew.

**Profile**: how far a coefficient can be moved, all others fitted again, until the fit is clearly worse. With noise of
unknown size twice the logarithm of the likelihood ratio is n ln(objective / best objective), to be compared with
chi-squared of one degree of freedom. Near the best value its square root is close to a straight line, so each end is
found by trying values outwards, then ever closer around the crossing.

**Bootstrap**: runs that share a trunk share its error, so trunks are drawn whole: 12 trunks of three budgets each have
12 independent errors, not 36. Drawing the *runs* of a small sweep anew leaves sizes out and extrapolates wildly, so by
default the runs stay as they are and their *errors* are drawn anew.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.special

from fit.aliases import Array, Json
from fit.fitting import search
from fit.fitting.noise import Noise
from fit.fitting.problem import Problem
from fit.lawbook.lawcheck import LEVEL

TRIED = 5  # values for each end at a time: three coefficients' ends fill a batch
ROUNDS, CLOSE = 8, 0.02  # of rounds at most; ends once the crossing lies within this share of its distance


class _End:
    """The search for one end of one interval: `tried` distances (in the logarithm of the coefficient) and what they
    cost."""

    def __init__(self, problem: Problem, name: str, best: float, sign: int, guess: float) -> None:
        self.name, self.best, self.sign = name, best, sign
        form, fixed = problem.form, problem.fixed
        smallest, largest = form.coefficients[name].tried
        smallest = max(smallest, 1.001 * fixed.get(form.coefficients[name].above, 0))
        for other, coefficient in form.coefficients.items():
            if coefficient.above == name:
                largest = min(largest, 0.999 * fixed.get(other, np.inf))
        self.farthest = max(1e-3, np.log(largest / best) if sign > 0 else np.log(best / smallest))
        self.guess = (
            float(np.clip(guess, 1e-4 * self.farthest, self.farthest / 8)) if np.isfinite(guess) else self.farthest / 64
        )
        self.tried, self.roots, self.frees = np.array([0.0]), np.array([0.0]), []

    def crossing(self, threshold: float) -> tuple[int, int | None]:
        """(inner, outer): indices of the tried distances around the first crossing; outer is None while none is
        beyond."""
        beyond = np.flatnonzero(self.roots > threshold)
        return (beyond[0] - 1, beyond[0]) if len(beyond) else (len(self.roots) - 1, None)

    def next(self, threshold: float) -> Array:
        """The distances to try next; none when the end is known."""
        inner, outer = self.crossing(threshold)
        last = self.tried[inner]
        if outer is None:
            if last >= self.farthest:
                return np.array([])
            if last == 0:
                return np.append(self.guess * np.geomspace(0.5, 4, TRIED - 1), self.farthest)
            return np.minimum(last * np.geomspace(2, 2**TRIED, TRIED), self.farthest)
        if self.tried[outer] - last <= CLOSE * self.tried[outer]:
            return np.array([])
        between = np.geomspace if self.tried[outer] > 4 * last > 0 else np.linspace
        return between(last, self.tried[outer], TRIED + 2)[1:-1]

    def add(self, tried: Array, roots: Array, frees: Sequence[Array]) -> None:
        order = np.argsort(np.append(self.tried, tried), kind="stable")
        self.frees = [[*self.frees, *frees][i] for i in order]
        self.tried, self.roots = np.append(self.tried, tried)[order], np.append(self.roots, roots)[order]

    def value(self, threshold: float) -> float | None:
        """Where the root of the ratio passes the threshold; None if it never does."""
        inner, outer = self.crossing(threshold)
        if outer is None:
            return None
        low, high = self.roots[inner], self.roots[outer]
        at = self.tried[inner] + (threshold - low) / (high - low) * (self.tried[outer] - self.tried[inner])
        return float(self.best * np.exp(self.sign * at))


def profile(
    problem: Problem,
    fit: search.Fit,
    errors: Mapping[str, float],
    inflation: Mapping[str, float] | None = None,
    quiet: bool = True,
) -> dict[str, Json]:
    """For each of the law's profiled coefficients that is not fixed: {value, low, high} of its LEVEL interval around
    the Fit, None where an end is open.

    errors: standard errors of the coefficients by name, to know where to look. inflation: by how much errors that runs
    share widen each coefficient's variance, by name; the ratio is divided by it.
    """
    form, best, held = problem.form, fit.coefficients, problem.data["held"]
    size = max(fit.objective, 1e-18 * len(problem))  # noise-free losses: nothing below rounding
    names = [name for name in form.profiled if name not in problem.fixed]
    normal = scipy.special.ndtri((1 + LEVEL) / 2)  # the root of chi-squared's quantile
    limit = {name: normal * np.sqrt((inflation or {}).get(name, 1)) for name in names}
    ends = [_End(problem, n, best[n], sign, 1.3 * errors[n] / best[n]) for n in names for sign in (-1, 1)]
    for end in ends:
        end.frees = [fit.free]
    for i in range(ROUNDS):
        todo = [(end, at) for end in ends for at in end.next(limit[end.name])]
        if not todo:
            break
        values = np.tile(held, (len(todo), 1))
        starts = np.empty((len(todo), len(fit.free)))
        for row, (end, at) in enumerate(todo):
            values[row, form.names.index(end.name)] = end.best * np.exp(end.sign * at)
            starts[row] = end.frees[int(np.argmin(np.abs(end.tried - at)))]
        trial = problem.holding(values)
        label = None if quiet else f"profiles, {i + 1} of at most {ROUNDS}"
        x, objectives, _ = search.polish(trial, trial.centre(starts), 8, True, label)
        frees = trial.own(x)
        roots = np.sqrt(problem.sample_of * np.log(np.maximum(objectives, size) / size))
        for end in ends:
            rows = [row for row, (other, _) in enumerate(todo) if other is end]
            if rows:
                end.add(np.array([todo[row][1] for row in rows]), roots[rows], list(frees[rows]))
    return {
        name: dict(value=best[name], low=low.value(limit[name]), high=high.value(limit[name]))
        for name, low, high in zip(names, ends[::2], ends[1::2])
    }


def distinct_optima(fit: search.Fit, most: int = 3) -> Array:
    """Up to `most` rows of fit.frees with different objectives within 10% of the best; the best one first."""
    order = np.argsort(fit.objectives, kind="stable")[: search.BATCH]  # the others were not followed to their end
    rows = [fit.free]
    last = fit.objective
    for i in order:
        if len(rows) == most or fit.objectives[i] > 1.1 * fit.objective:
            break
        if fit.objectives[i] > last * 1.002:
            rows.append(fit.frees[i])
            last = fit.objectives[i]
    return np.stack(rows)


def bootstrap(problem: Problem, fit: search.Fit, draws: int, how: str, noise: Noise, quiet: bool = True) -> Array:
    """Coefficients [draws, n] of fits to runs drawn anew, each from the best optima of the Fit.

    how: "errors" draws the law's own losses with new errors of the sizes in `noise`, one that each trunk shares and one
    of each run; "replacement" draws trunks (or single runs, where none share one) with replacement, "paper" 80% of them
    without (App. F). The draws spread as fits to problem.sample_of runs would.
    """
    form, runs, n = problem.form, problem.runs, len(problem)
    rng = np.random.default_rng([problem.settings.seed, 1])
    labels = np.arange(n) if runs.trunks is None else runs.trunks
    shrink = np.sqrt(n / problem.sample_of)
    starts = problem.centre(distinct_optima(fit))
    k = len(starts)
    if how == "errors":
        drawn = form.log_loss(fit.free, runs.columns) + shrink * noise.draw(rng, draws, labels)
        trial = problem.changed(log_loss=np.repeat(problem.filled(drawn), k, axis=0))
    else:
        counts = _counts(rng, labels, draws, how, len(form.names))
        weight = problem.data["root_weight"] * np.sqrt(problem.filled(counts))
        trial = problem.changed(root_weight=np.repeat(weight, k, axis=0))
    if form.believed:  # what a prior knows is drawn as a measurement is
        toward = np.tile(form.belief[0], (draws, 1))
        spread = shrink * form.belief[1][form.believed]
        toward[:, form.believed] += spread * rng.normal(size=(draws, len(form.believed)))
        trial = trial.changed(toward=np.repeat(toward, k, axis=0))
    label = None if quiet else f"bootstrap of {draws}"
    x, values, _ = search.polish(trial, np.tile(starts, (draws, 1)), rounds=5, each=True, label=label)
    best = np.argmin(values.reshape(draws, k), axis=1)
    free = problem.own(x.reshape(draws, k, -1)[np.arange(draws), best])
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
