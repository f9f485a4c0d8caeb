"""One set of joint draws of what a plan does not know, and the best model of each number of experts in each of them.

A draw has a law (a row of the law's own draws) and speeds. The logarithm of a speed is off by an amount of its source,
which all models on the same chips and software share, and by an amount of its run. Half of the variance of a run's is
shared by models of one kind, dense or mixtures. Prices are known. The draws are the same for all questions (common
random numbers).

Axes: n_experts numbers of experts, n_draws draws.
"""

import dataclasses
import math
import statistics

import numpy as np

from fit.aliases import Array, ByName, Floats
from fit.fitted_law.law import Law
from fit.model.efficiencies import Calibration
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.planning.search.best_models import BestInDraws

DRAWS = 200  # with speeds; without them as many as the law has
# Share of the variance of a run's speed that models of one kind have in common. In measured.csv, ln ratios of mixtures
# of one source with different numbers of experts have a standard deviation of .136, without NeMo's table .077; with
# nothing in common it would be .151, with half of it .107.
KIND_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Draws:
    """Joint draws of a law and of speeds.

    Attributes:
      n: How many.
      rows: Which of the law's draws, [n]; None for the law's own coefficients.
      coefficients: By name, [n] each; empty for the law's own.
      log_speeds: ln of the speed over the modelled one, [n_experts, n].
    """

    n: int
    rows: Array | None
    coefficients: ByName
    log_speeds: Array

    @property
    def is_drawn(self) -> bool:
        """Whether anything is drawn."""
        return bool(self.coefficients) or self.n > 1


def normals(n: int, *key: int) -> Array:
    """n numbers that are spread like a standard normal distribution, symmetric, in an order that the key gives."""
    quantiles = [statistics.NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]
    return np.random.default_rng(key).permutation(quantiles)


def log_speeds(calibration: Calibration, experts: Floats, n: int) -> Array:
    """ln of drawn speeds over the modelled ones, [n_experts, n]. Those of a number do not depend on the other numbers.

    Args:
      calibration: The spreads of speeds.
      experts: Numbers of experts.
      n: Number of draws.
    """
    of_source = calibration.between_sources * normals(n, 0)
    rows = []
    for e in experts:
        of_kind = normals(n, 1, int(e > 1))
        of_number = normals(n, 2, round(1000 * e))
        of_run = math.sqrt(KIND_SHARE) * of_kind + math.sqrt(1 - KIND_SHARE) * of_number
        rows.append(of_source + calibration.within_source * of_run)
    return np.array(rows)


def of_problem(problem: Problem, experts: Floats) -> Draws:
    """The draws of a problem: of its law and, by hours, of the speeds of its chips.

    It is a single one, of the medians, where neither law nor speeds are drawn.
    """
    law = problem.law
    calibration = problem.calibration if problem.is_by_hours else None
    rows = None
    coefficients: ByName = {}
    n = 1 if calibration is None else DRAWS
    usable = np.flatnonzero(usable_draws(law, experts)) if law.draws else np.empty(0, int)
    if law.draws and len(usable):
        if calibration is None:
            n = len(usable)
        # every k-th draw of more than n, all of fewer, repeated
        rows = usable[np.arange(n) * len(usable) // n] if len(usable) >= n else usable[np.arange(n) % len(usable)]
        coefficients = {name: values[rows] for name, values in law.draws.items()}
    speeds = np.zeros((len(experts), n)) if calibration is None else log_speeds(calibration, experts, n)
    return Draws(n, rows, coefficients, speeds)


def solve_draws(problem: Problem, experts: Floats, draws: Draws) -> BestInDraws:
    """The best model with each number of experts in each draw: arrays [n_experts, n_draws]."""
    of_each_number = []
    for e, speeds in zip(experts, draws.log_speeds, strict=True):
        of_each_number.append(solver.in_draws(problem, float(e), np.exp(speeds), draws.coefficients))
    columns = {}
    for name in BestInDraws.names():
        columns[name] = np.array([getattr(best, name) for best in of_each_number])
    return BestInDraws(**columns)


def usable_draws(law: Law, experts: Floats) -> Array:
    """bool [n_draws]: which of the bootstrap's draws have an optimum at every one of `experts`."""
    count = law.n_draws
    if not law.reduces_to_chinchilla:
        return np.ones(count, bool)
    reduced = [law.chinchilla_coefficients_at(e, law.draws) for e in experts]
    return np.all([np.broadcast_to((at.mu < 0) & (at.nu < 0), count) for at in reduced], axis=0)
