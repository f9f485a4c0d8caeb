"""The cause that decides between the first two numbers of experts of a plan, and the measurement that would tell."""

import dataclasses
import math

import numpy as np

from fit.aliases import Array, Floats
from fit.fitted_law.law import Law
from fit.model import efficiencies
from fit.planning.inputs.problem import Problem
from fit.planning.uncertainty import joint_draws
from fit.planning.uncertainty.joint_draws import Draws
from fit.results import Record, optional

SURE = 0.9  # share of the draws in which the better of two is chosen, once they are settled
NEGLIGIBLE = 1e-20  # variance of the difference, in nats squared, that is rounding
FACTORS_OF_RUNS = (0.125, 0.25, 0.5, 1, 2, 4, 8)  # times the law's runs: how many more are thought of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement(Record):
    """The measurement that would tell the best number of experts better.

    Attributes:
      of: "speeds", of the first two numbers of experts on these chips, or "runs", more of them for the law.
      sure: Share of the draws in which the better of the two would then be chosen.
      settles: Whether that is at least measurement.SURE.
      hours, dollars: What the speeds cost; dollars are None where no price is given.
      runs: How many runs, of the sizes that the law was fitted to.
    """

    of: str
    sure: float
    settles: bool
    hours: float | None = optional()
    dollars: float | None = optional()
    runs: int | None = optional()


@dataclasses.dataclass(frozen=True)
class Causes:
    """Why the first two numbers of experts differ: arrays [n_draws], in nats per token.

    Attributes:
      mean: How far the second lies above the first, in the mean.
      by_law, by_speed: Deviations from the mean in draws of the law alone, and of speeds alone.
    """

    mean: float
    by_law: Array
    by_speed: Array

    @property
    def speed_share(self) -> float | None:
        """Share of the variance that is due to speeds; None where there is hardly any variance."""
        variance = self.by_law.var() + self.by_speed.var()
        return None if variance < NEGLIGIBLE else float(self.by_speed.var() / variance)


def causes(problem: Problem, experts: Floats, draws: Draws, behind: Array) -> Causes:
    """Why the first two numbers of experts differ.

    Args:
      problem: The problem.
      experts: The two, the first one first.
      draws: Their joint draws.
      behind: How far the second lies above the first in each draw.
    """

    def behind_by(part: Draws) -> Array:
        """The same in other draws."""
        loss = joint_draws.solve_draws(problem, experts, part).loss
        return loss[1] - loss[0]

    by_speed = np.zeros(draws.n)
    if problem.is_by_hours:
        without_law = behind_by(dataclasses.replace(draws, coefficients={}, rows=None))
        by_speed = without_law - without_law.mean()
    without_speed = behind_by(dataclasses.replace(draws, log_speeds=0 * draws.log_speeds))
    return Causes(float(behind.mean()), without_speed - without_speed.mean(), by_speed)


def measurement_of(problem: Problem, causes: Causes) -> Measurement | None:
    """The measurement that tells two numbers of experts apart: an hour of both, else runs; the better of the two."""
    law = problem.law
    mean = causes.mean
    by_law = causes.by_law
    by_speed = causes.by_speed
    measurements = []
    calibration = problem.calibration
    if calibration is not None and by_speed.any():
        left = efficiencies.OWN_SPREAD / max(calibration.within_source, efficiencies.OWN_SPREAD)
        sure = sure_after(mean, by_speed, by_law + left * by_speed[::-1])
        dollars = problem.chips.price_of_hours(2.0)["dollars"]
        measurements.append(Measurement(of="speeds", sure=sure, settles=sure >= SURE, hours=2.0, dollars=dollars))
    n_runs = number_of_runs(law)
    if n_runs and by_law.any():
        for factor in FACTORS_OF_RUNS:
            known = math.sqrt(factor / (1 + factor)) * by_law
            unknown = math.sqrt(1 / (1 + factor)) * by_law[::-1] + np.roll(by_speed, 1)
            sure = sure_after(mean, known, unknown)
            if sure >= SURE or factor == FACTORS_OF_RUNS[-1]:
                n_more = math.ceil(factor * n_runs)
                measurements.append(Measurement(of="runs", sure=sure, settles=sure >= SURE, runs=n_more))
                break
    settling = [row for row in measurements if row.settles]
    if settling:
        return settling[0]
    return max(measurements, key=lambda row: row.sure, default=None)


def sure_after(mean: float, known: Array, unknown: Array) -> float:
    """Share of the draws in which the better of two is chosen, once a part of their difference is known.

    Args:
      mean: The difference, in the mean.
      known: Deviations that a measurement would tell, [n].
      unknown: Those that it would leave, [m].
    """
    share = np.mean(mean + known[:, None] + unknown > 0, axis=1)
    return float(np.mean(np.maximum(share, 1 - share)))


def number_of_runs(law: Law) -> int:
    """How many runs a law was fitted to, or its simulated draws are of; 0 where it does not say."""
    if law.bootstrap and law.bootstrap.runs is not None:
        return law.bootstrap.runs
    return sum(errors.runs for errors in (law.fitted, law.held_out) if errors)
