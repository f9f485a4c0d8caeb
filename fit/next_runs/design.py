"""Which runs to train next: optimal experimental design on a fitted law.

Near the fit the law is linear, so one can compute how a set of runs would change its errors before any is trained. Let
J be the gradients of a trunk's log losses by the coefficients, a row for each run, and C the correlations of its runs'
errors: 1 on the diagonal, s elsewhere (the share of the noise's variance that the runs of a trunk share). Then

  information = sum over trunks of J' C^-1 J, + P         what the runs hold (Gauss and Newton)
  covariance of a fit = noise^2 A^-1 B A^-1               what least squares, as in fit law, makes of them:
  A = sum over trunks of J' J, + P                        it treats the runs of a trunk as independent
  B = sum over trunks of J' C J, + P

P is a prior that every entry of the law's `free` lies within about PRIOR of zero; it keeps finite the variance of what
no run pins down. The search minimises the goals' variances g' information^-1 g. It adds runs greedily; then it leaves
out one run or trunk and spends its cost anew, as long as that helps. The errors reported are those of least squares.

A trunk is trained once, up to where its longest budget begins to decay; each budget also costs its own decay.

Axes: n coefficients, c candidates, g goals, k runs. Everything is in units in which the information of the fit's runs
is 1.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fit.aliases import Array, ByName, Ints
from fit.data.runs import Runs
from fit.data.table import Table
from fit.fitted_law.law import Law
from fit.fitting import noise
from fit.fitting.problem import Settings, prepare
from fit.shape.architecture import training_flops

PRIOR = 10.0  # as the default weight decay of a fit to few runs
UNKNOWN_SHARE = 0.5  # of the noise that a trunk's runs share, where the fitted runs show no trunks
MOST_SHARED = 0.95  # else a second run of a trunk would be known to the last digit
GAIN = 1e-3  # a run that makes the goals' variances smaller by less than this share is not worth training
PASSES, TRIED = 3, 2  # passes of the exchange at most; first runs tried in place of what is left out
LEAST_NOISE = 1e-6  # of log loss: nothing is known better than this
TOGETHER = 2048  # rows of which gradients are taken at once: of several questions by one compiled program


@dataclasses.dataclass
class Possible:
    """Runs that could be trained. n_blocks, n_experts, n_tokens: int [k]; model: int [k], equal for the runs of one
    model, which are branches of one trunk; n_active: float [k]; columns: what the law reads of them by name, which
    broadcasts to [k]."""

    n_blocks: np.ndarray
    n_experts: np.ndarray
    n_tokens: np.ndarray
    model: np.ndarray
    n_active: np.ndarray
    columns: ByName
    decay: float

    def __len__(self) -> int:
        return len(self.model)

    def _trunks(self, chosen: Ints) -> tuple[Array, Array]:
        """([k]: training FLOPs of each run alone; [models]: those of the longest of the runs `chosen`, indices)."""
        alone, longest = training_flops(self.n_active, self.n_tokens), np.zeros(self.model.max() + 1)
        np.maximum.at(longest, self.model[chosen], alone[chosen])
        return alone, longest

    def flops(self, chosen: Ints) -> float:
        """Training FLOPs of the runs `chosen`, those of one model as branches of one trunk."""
        alone, longest = self._trunks(chosen := np.asarray(chosen, int))
        return float((1 - self.decay) * longest.sum() + self.decay * alone[chosen].sum())

    def one_more(self, chosen: Ints) -> Array:
        """[k]: FLOPs that each run adds to the runs `chosen`."""
        alone, longest = self._trunks(chosen)
        return (1 - self.decay) * np.maximum(alone - longest[self.model], 0) + self.decay * alone


@dataclasses.dataclass
class Design:
    """The problem of choosing among Possible runs.

    jacobian [c, n]: of the candidates' log losses. goals [g, n], weights [g]: what should have little variance.
    information, normal, spread [n, n]: the information, A and B above of the fitted runs. shared: s above.
    """

    possible: Possible
    jacobian: np.ndarray
    goals: np.ndarray
    weights: np.ndarray
    information: np.ndarray
    normal: np.ndarray
    spread: np.ndarray
    shared: float

    def variances(self, jacobian: Array, model: Array) -> Array:
        """[g]: the goals' variances, over the noise's variance, of a least-squares fit that has further runs too, with
        gradients jacobian [k, n] and models [k]."""
        v = np.linalg.solve(self.normal + jacobian.T @ jacobian, self.goals.T)
        spread = self.spread + jacobian.T @ correlation(model, self.shared) @ jacobian
        return np.einsum("ng,nm,mg->g", v, spread, v)

    def _by_model(self, chosen: Array) -> tuple[Array, Array, Array]:
        """Of the chosen runs of each model: (number [m], sum of gradients [m, n], what share [m] of that sum foretells
        another run's gradient). For a trunk C^-1 = (1 - share 11') / (1 - s), and C^-1 s 1 = share 1."""
        model = self.possible.model[chosen]
        runs = np.bincount(model, minlength=self.possible.model.max() + 1)
        sums = np.zeros((len(runs), self.jacobian.shape[1]))
        np.add.at(sums, model, self.jacobian[chosen])
        return runs, sums, self.shared / (1 + (runs - 1) * self.shared)

    def _information(self, chosen: Array) -> Array:
        """[n, n]: information of the fitted runs and the chosen ones."""
        jacobian, (_, sums, share) = self.jacobian[chosen], self._by_model(chosen)
        return self.information + (jacobian.T @ jacobian - (share * sums.T) @ sums) / (1 - self.shared)

    def score(self, chosen: Ints) -> float:
        """What the search minimises: the goals' weighted variances with the candidates `chosen` (indices) trained."""
        information = self._information(np.asarray(chosen, int))
        return float(self.weights @ np.einsum("gn,ng->g", self.goals, np.linalg.solve(information, self.goals.T)))

    def gains_of_one_more(self, chosen: Ints) -> Array:
        """[c]: by how much each candidate would lower the score of those chosen.

        A candidate adds its innovation: its gradient less the part that the chosen runs of its trunk foretell.
        """
        chosen, model = np.asarray(chosen, int), self.possible.model
        runs, sums, share = self._by_model(chosen)
        innovation = self.jacobian - (share[:, None] * sums)[model]
        variance = (1 - self.shared * runs * share)[model]
        u = np.linalg.solve(self._information(chosen), innovation.T)
        return self.weights @ (self.goals @ u) ** 2 / (variance + np.einsum("cn,nc->c", innovation, u))


def correlation(model: Array, shared: float) -> Array:
    """[k, k]: C above, of the errors of runs of these models [k]."""
    return shared * (model[:, None] == model) + (1 - shared) * np.eye(len(model))


def _with_correlation(rows: Array, trunks: Array, shared: float, inverse: bool = False) -> Array:
    """[n, n]: rows' C rows, or rows' C^-1 rows, of rows [k, n] of runs on these trunks [k], with C of `correlation`;
    trunk by trunk, without the matrix of k^2 numbers."""
    counts = np.bincount(trunks)
    sums = np.zeros((len(counts), rows.shape[1]))
    np.add.at(sums, trunks, rows)
    if inverse:
        share = shared / (1 + (counts - 1) * shared)
        return (rows.T @ rows - (share * sums.T) @ sums) / (1 - shared)
    return (1 - shared) * rows.T @ rows + shared * sums.T @ sums


def fill(design: Design, chosen: Ints, flops: float, by_cost: bool) -> tuple[list[int], float]:
    """`chosen` and further candidates: each time the one that lowers the score most (per FLOP if by_cost), as long as
    the budget lasts and one is worth it. Returns (indices, score)."""
    chosen, score = list(chosen), design.score(chosen)
    left = flops - design.possible.flops(chosen)
    while True:
        gains, costs = _one_more(design, chosen, left)
        gains[gains < GAIN * score] = 0
        best = int(np.argmax(gains / costs if by_cost else gains))
        if gains[best] <= 0:
            return chosen, score
        chosen.append(best)
        score, left = design.score(chosen), left - costs[best]


def _one_more(design: Design, chosen: list[int], left: float) -> tuple[Array, Array]:
    """([c] by how much each candidate would lower the score, 0 for those chosen and those of more than `left` FLOPs;
    [c] their FLOPs)."""
    gains, costs = design.gains_of_one_more(chosen), design.possible.one_more(chosen)
    gains[chosen] = 0
    gains[costs > left * (1 + 1e-9)] = 0
    return gains, costs


def choose(design: Design, flops: float) -> list[int]:
    """Indices of the candidates to train, ascending, within the budget; empty where none is worth it."""
    chosen, score = min((fill(design, [], flops, by_cost) for by_cost in (True, False)), key=lambda found: found[1])
    model = design.possible.model
    for _ in range(PASSES):
        before = score
        trunks = [{i for i in chosen if model[i] == m} for m in np.unique(model[chosen])]
        for out in [*trunks, *({i} for i in chosen)]:
            kept = [i for i in chosen if i not in out]
            if len(kept) == len(chosen):
                continue
            tried = (fill(design, begun, flops, by_cost) for begun, by_cost in _begun(design, kept, out, flops))
            other, value = min(tried, key=lambda found: found[1])
            is_better = value < score * (1 - GAIN)
            is_shorter = value <= score and len(other) < len(chosen)
            if is_better or is_shorter:
                chosen, score = other, value
        if score > before * (1 - 10 * GAIN):
            break
    return sorted(chosen)


def _begun(design: Design, kept: list[int], out: set[int], flops: float) -> Iterator[tuple[list[int], bool]]:
    """(runs, by_cost) for fill to begin with once `out` is left out: `kept` alone, and `kept` with each of the TRIED
    runs that gain most, or gain most for their cost."""
    gains, costs = _one_more(design, kept, flops - design.possible.flops(kept))
    gains[list(out)] = 0
    for by_cost in (True, False):
        yield kept, by_cost
        for i in np.argsort(gains / costs if by_cost else gains)[-TRIED:]:
            if gains[i] > 0:
                yield [*kept, int(i)], by_cost


def linearised(
    law: Law, runs: Runs, scatter: noise.Noise, parts: Sequence[ByName]
) -> tuple[list[Array], Array, dict[str, Any]]:
    """The law near its fit, by the solver's coordinates, in units in which the information of `runs`, those that it was
    fitted to, is 1: (gradients [k, n] of the log losses of each of `parts`, sets of columns that broadcast to [k];
    gradients [n, n] of its coefficients; information, normal, spread and shared of a Design). scatter: the runs' Noise.
    Needs jax in float64."""
    every = [np.broadcast_arrays(*(part[name] for name in law.form.columns)) for part in (runs.columns, *parts)]
    ends = np.cumsum([len(columns[0]) for columns in every])
    columns = dict(zip(law.form.columns, np.concatenate(every, axis=1, dtype=float), strict=True))
    columns = {name: np.pad(values, (0, -len(values) % TOGETHER), "edge") for name, values in columns.items()}
    fixed = (law.record.get("settings") or {}).get("fix") or {}
    padded = Runs(runs.path, columns, np.ones(ends[-1] + -ends[-1] % TOGETHER), Table(runs.path, {}, []))
    problem = prepare(law.form, padded, Settings(fix=tuple(fixed.items())))
    free = law.form.to_params(law.coefficients)
    x = problem.centre(free[None])
    of_fitted, *of_parts, _ = np.split(noise.sensitivity(problem, free)[1], ends)
    to_free = noise.derivative(problem.params_of, x)
    to_coefficients = noise.derivative(lambda x: law.form.to_coefficients(problem.params_of(x)), x)
    moving = problem.data["moving"]
    held = np.diag(1.0 - moving)  # a coefficient that is held has no error: any information will do

    total = max(scatter.total, LEAST_NOISE)
    prior = (to_free.T @ to_free * np.outer(moving, moving) + held) * (total / PRIOR) ** 2
    shared = UNKNOWN_SHARE if runs.trunks is None else min((scatter.trunk / total) ** 2, MOST_SHARED)
    trunks = np.arange(len(runs)) if runs.trunks is None else runs.trunks
    root, weighted = np.sqrt(runs.weights)[:, None] * of_fitted, runs.weights[:, None] * of_fitted
    information = prior + _with_correlation(root, trunks, shared, inverse=True)
    unit = np.linalg.inv(np.linalg.cholesky(information)).T  # x = unit @ new coordinates
    normal = unit.T @ (prior + root.T @ root) @ unit
    spread = unit.T @ (prior + _with_correlation(weighted, trunks, shared)) @ unit
    known = dict(information=np.eye(len(unit)), normal=normal, spread=spread, shared=shared)
    return [part @ unit for part in of_parts], to_coefficients * moving @ unit, known
