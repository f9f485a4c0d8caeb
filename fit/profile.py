"""Profile intervals: how far a coefficient can be moved, all others fitted again, until the fit is clearly worse.

With noise of unknown size twice the logarithm of the likelihood ratio is n ln(objective / best objective), to be
compared with chi-squared of one degree of freedom. Near the best value its square root is close to a straight line, so
each end is found by trying values outwards, then ever closer around the crossing.
"""

import numpy as np
import scipy.special

from fit import regress
from fit.laws import FORMS
from fit.summary import LEVEL

FARTHEST = {"E_start": (1e-5, 1e6), "E_max": (1e-5, 1e12), "": (1e-6, 1e3)}  # values tried: beyond an end is open
TRIED = 5  # values for each end at a time: three coefficients' ends fill a batch
ROUNDS, CLOSE = 8, 0.02  # of rounds at most; ends once the crossing lies within this share of its distance


class _End:
    """The search for one end of one interval: `tried` distances (in the logarithm of the coefficient) and what they
    cost."""

    def __init__(self, name, best, sign, guess, fixed):
        self.name, self.best, self.sign = name, best, sign
        smallest, largest = FARTHEST.get(name, FARTHEST[""])
        if name == "E_start":
            largest = min(largest, 0.999 * fixed.get("E_max", np.inf))
        if name == "E_max":
            smallest = max(smallest, 1.001 * fixed.get("E_start", 0))
        self.farthest = max(1e-3, np.log(largest / best) if sign > 0 else np.log(best / smallest))
        self.guess = (
            float(np.clip(guess, 1e-4 * self.farthest, self.farthest / 8)) if np.isfinite(guess) else self.farthest / 64
        )
        self.tried, self.roots, self.frees = np.array([0.0]), np.array([0.0]), []

    def crossing(self, threshold):
        """(inner, outer): indices of the tried distances around the first crossing; outer is None while none is
        beyond."""
        beyond = np.flatnonzero(self.roots > threshold)
        return (beyond[0] - 1, beyond[0]) if len(beyond) else (len(self.roots) - 1, None)

    def next(self, threshold):
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

    def add(self, tried, roots, frees):
        order = np.argsort(np.append(self.tried, tried), kind="stable")
        self.frees = [[*self.frees, *frees][i] for i in order]
        self.tried, self.roots = np.append(self.tried, tried)[order], np.append(self.roots, roots)[order]

    def value(self, threshold):
        """Where the root of the ratio passes the threshold; None if it does nowhere."""
        inner, outer = self.crossing(threshold)
        if outer is None:
            return None
        low, high = self.roots[inner], self.roots[outer]
        at = self.tried[inner] + (threshold - low) / (high - low) * (self.tried[outer] - self.tried[inner])
        return float(self.best * np.exp(self.sign * at))


def profile(form, runs, settings, weights, found, errors, inflation=None, count=None, quiet=True):
    """For each of the law's PROFILED coefficients that is not fixed: {value, low, high} of its LEVEL interval, None
    where an end is open.

    errors: standard errors of the coefficients by name, to know where to look. inflation: by how much errors that runs
    share widen each coefficient's variance, by name; the ratio is divided by it. count: of how many runs `runs` are a
    sample.
    """
    law = FORMS[form]
    data = regress.prepared(form, runs, settings, weights)
    size = max(found.objective, 1e-18 * len(runs))  # noise-free losses: nothing below rounding
    fixed = dict(settings.fix)
    names = [name for name in law.PROFILED if name not in fixed]
    normal = scipy.special.ndtri((1 + LEVEL) / 2)  # the root of chi-squared's quantile
    limit = {name: normal * np.sqrt((inflation or {}).get(name, 1)) for name in names}
    best = found.coefficients
    ends = [_End(name, best[name], sign, 1.3 * errors[name] / best[name], fixed) for name in names for sign in (-1, 1)]
    for end in ends:
        end.frees = [found.free]
    for i in range(ROUNDS):
        todo = [(end, at) for end in ends for at in end.next(limit[end.name])]
        if not todo:
            break
        held = np.tile(data["held"], (len(todo), 1))
        starts = np.empty((len(todo), len(found.free)))
        for row, (end, at) in enumerate(todo):
            held[row, law.COEFFICIENTS.index(end.name)] = end.best * np.exp(end.sign * at)
            starts[row] = end.frees[int(np.argmin(np.abs(end.tried - at)))]
        trial = regress.hold(form, data, held)
        label = None if quiet else f"profiles, {i + 1} of at most {ROUNDS}"
        x, objectives, _ = regress.polish(form, regress.centre(form, starts, trial), trial, 8, True, label)
        frees = regress.own(form, x, trial)
        roots = np.sqrt((count or len(runs)) * np.log(np.maximum(objectives, size) / size))
        for end in ends:
            rows = [row for row, (other, _) in enumerate(todo) if other is end]
            if rows:
                end.add(np.array([todo[row][1] for row in rows]), roots[rows], list(frees[rows]))
    return {
        name: dict(value=best[name], low=low.value(limit[name]), high=high.value(limit[name]))
        for name, low, high in zip(names, ends[::2], ends[1::2])
    }
