"""Which runs to train next: optimal experimental design on a fitted law.

Near the fit the law is linear, so one can compute how a set of runs would change its errors before any is trained. Let
J be the gradients of a trunk's log losses by the coefficients, a row for each run, and C the correlations of its runs'
errors: 1 on the diagonal, s elsewhere (the share of the noise's variance that the runs of a trunk share). Let R be the
diagonal matrix of how many times as much as large runs each one scatters. Then

  information = sum over trunks of J' R^-1 C^-1 R^-1 J, + P   what the runs hold (Gauss and Newton)
  covariance of a fit = noise^2 A^-1 B A^-1                   what least squares, as in fit law, makes of them:
  A = sum over trunks of J' J, + P                            it treats the runs of a trunk as independent
  B = sum over trunks of J' R C R J, + P

P is a prior that each of the law's parameters, by the solver's coordinates, lies within about PRIOR (linearised.py) of
zero. It keeps finite the variance of what no run identifies. The search minimises the goals' variances
g' information^-1 g. It adds runs greedily. Then it leaves out one run or trunk and spends its cost again, as long as
that helps. The errors reported are those of least squares.

Axes: n coefficients, c candidates, g goals, k runs, m models (trunks). Units are such that the information of the fit's
runs is 1.
"""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array, Ints
from fit.studies.next_runs.candidates import PossibleRuns
from fit.studies.next_runs.linearised import Linearised, correlation, scaled

GAIN = 1e-3  # a run that makes the goals' variances smaller by less than this share is not worth training
PASSES = 3  # of the exchange, at most
TRIED = 2  # first runs tried instead of those left out


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
        scattered = scaled(jacobian, scatter)
        spread = self.spread + scattered.T @ correlation(model, self.shared) @ scattered
        return np.einsum("ng,nm,mg->g", v, spread, v)

    @functools.cached_property
    def _in_scatter(self) -> Array:
        """[c, n], gradients of the candidates over their scatter: R^-1 J above."""
        return scaled(self.jacobian, 1 / self.possible.scatter)

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
