"""The cause that decides between the first two numbers of experts of a plan, and the measurement that would tell."""

import dataclasses
import math

import numpy as np

from fit.aliases import Array
from fit.fitted_law.law import Law
from fit.model import efficiencies
from fit.model.architecture import Architecture
from fit.planning import joint_draws
from fit.planning.constraints import Constraints
from fit.planning.joint_draws import Draws
from fit.planning.results import Measurement, Odds

SURE = 0.9  # share of the draws in which the better of two is chosen, once they are settled
NEGLIGIBLE = 1e-20  # variance of the difference, in nats squared, that is rounding
FACTORS_OF_RUNS = (0.125, 0.25, 0.5, 1, 2, 4, 8)  # times the law's runs: how many more are thought of


def with_causes(
    odds: Odds, law: Law, architecture: Architecture, constraints: Constraints, draws: Draws, behind: Array
) -> Odds:
    """The odds with what decides between the first two numbers of experts, and with what to measure.

    behind: of the second, above the first, in each draw.
    """
    experts = np.array([odds.recommended, odds.second], float)
    both = [[row.n_experts for row in odds.experts].index(e) for e in experts]
    draws = dataclasses.replace(draws, log_speeds=draws.log_speeds[both])

    def behind_by(part: Draws) -> Array:
        """The same in other draws."""
        loss = joint_draws.solve_draws(law, architecture, constraints, experts, part).loss
        return loss[1] - loss[0]

    without_law = behind_by(dataclasses.replace(draws, coefficients={}, rows=None)) if "speed" in odds.drawn else None
    without_speed = behind_by(dataclasses.replace(draws, log_speeds=0 * draws.log_speeds))
    by_law = without_speed - without_speed.mean()
    by_speed = np.zeros(draws.n) if without_law is None else without_law - without_law.mean()
    variance = by_law.var() + by_speed.var()
    if variance < NEGLIGIBLE:
        return odds
    odds = dataclasses.replace(odds, speed_share=float(by_speed.var() / variance))
    if odds.settled or odds.close_call:
        return odds
    return dataclasses.replace(odds, measurement=_measurement(law, constraints, by_law, by_speed, float(behind.mean())))


def _measurement(law: Law, constraints: Constraints, by_law: Array, by_speed: Array, mean: float) -> Measurement | None:
    """The measurement that tells two numbers of experts apart: an hour of both, else runs; the better of the two.

    Args:
      law: The law, with the number of its runs.
      constraints: The chips and their price.
      by_law, by_speed: Deviations of the difference between the two in draws of law alone, and of speeds alone.
      mean: The difference, in the mean.
    """
    measurements = []
    time_budget = constraints.time_budget
    if time_budget is not None and by_speed.any():
        chips = constraints.chips
        assert chips is not None
        left = efficiencies.OWN_SPREAD / max(time_budget.calibration.within_source, efficiencies.OWN_SPREAD)
        sure = sure_after(mean, by_speed, by_law + left * by_speed[::-1])
        dollars = chips.price_of_hours(2.0)["dollars"]
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
