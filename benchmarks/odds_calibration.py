"""How often is the number of experts that a plan calls best in x of 100 draws the best in truth?

    python -m benchmarks.odds_calibration [--laws=40]

A truth has a joint law near that of Ludziejewski et al. 2025, whose dependence on the number of experts is drawn, and
speeds. A sweep of 68 of the paper's 270 runs, with 0.5% of noise, is fitted as `fit law` does (bootstrap of 50). Plans
by hours on H100 are made by the fitted law and the modelled speeds. True speeds are off by an amount of the source and
by one of each kind and number of experts, resampled from the residuals of benchmarks/speeds.py's runs within their
sources, and scaled to the spread that plans assume. So their shape is that of published speeds, not a normal one.

Printed: for plans by how often their choice is the best in the draws, how often it is so in truth; the same for every
number of experts that is compared; how often 80% intervals hold the true loss of the best model with the chosen number
of experts, the true loss of the model at the planned tokens, and its true hours; and the nats that the choice loses
against the true best, beside those of the choice by the medians.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
import pathlib
import sys
import time

import jax
import numpy as np
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/support"))
import fit_runs

from fit.fitted_law.law import Law
from fit.fitting import fitting
from fit.fitting.problem import Settings
from fit.fitting.uncertainty import with_uncertainty
from fit.laws import FORMS
from fit.model import efficiencies, measured
from fit.model.architecture import PAPER
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.search import best_models, by_hours
from fit.planning.uncertainty import joint_draws

LAWS = flags.DEFINE_integer("laws", 40, "Number of simulated laws.")
NOISE = 0.005  # of a run, in ln loss
EVERY = 4  # of the paper's runs
DRAWS = 50  # of the bootstrap
SPREAD = dict(delta=0.1, omega=0.05, gamma=0.3, zeta=0.05)  # of the truth's coefficients, as shares
EXPERTS = (1, 2, 4, 8, 16, 32)
QUESTIONS = (("H100:8", 10.0), ("H100:8", 100.0), ("H100:64", 100.0))  # chips and hours
SPEEDS = 20  # truths of the speeds for each plan
CLAIMS = (0.3, 0.5, 0.7, 0.73, 0.9)  # claims that are looked at, with those within WINDOW of them
WINDOW = 0.08


@dataclasses.dataclass
class Counts:
    """Claims and how often they came true, a row for each case.

    Attributes:
        claimed, right: how often the chosen number is the best in the draws, and whether it is in truth.
        all_claimed, all_right: the same for every number of experts.
        held: {interval: whether it holds the truth}.
        lost, lost_by_median: nats above the true best.
    """

    claimed: list[float] = dataclasses.field(default_factory=list)
    right: list[bool] = dataclasses.field(default_factory=list)
    all_claimed: list[float] = dataclasses.field(default_factory=list)
    all_right: list[bool] = dataclasses.field(default_factory=list)
    held: dict[str, list[bool]] = dataclasses.field(default_factory=dict)
    lost: list[float] = dataclasses.field(default_factory=list)
    lost_by_median: list[float] = dataclasses.field(default_factory=list)


def truth_of(rng: np.random.Generator) -> dict[str, float]:
    """The coefficients of a true law."""
    truth = dict(fit_runs.TABLE_3)
    for name, spread in SPREAD.items():
        truth[name] *= 1 + spread * rng.normal()
    return truth


def fitted(truth: dict[str, float], seed: int) -> Law:
    """The law that a sweep of the truth shows."""
    n_active, n_tokens, n_experts = (column[seed % EVERY :: EVERY] for column in fit_runs.paper_grid())
    noise = np.exp(NOISE * np.random.default_rng([seed, 1]).normal(size=len(n_active)))
    loss = fit_runs.joint_loss(n_active, n_tokens, n_experts, truth) * noise
    runs = fit_runs.runs_of("a sweep", n_active, n_tokens, n_experts, loss)
    with jax.enable_x64(True):
        result, problem = fitting.fit_by_default(FORMS["joint"], runs, Settings(weight_decay=None, bootstrap=DRAWS))
        law = Law(f"simulated-{seed}", FORMS["joint"], result.coefficients)
        return with_uncertainty(law, problem, result)


def published_residuals() -> np.ndarray:
    """Residuals of the published runs within their sources, with a standard deviation of 1."""
    calibration = efficiencies.calibrated()
    by_source: dict[str, list[float]] = {}
    for run in measured.read():
        if run.row["calibrates"] == "yes":
            modelled = calibration.step_cost(run.kind, run.shape, run.layout).seconds
            by_source.setdefault(run.source, []).append(float(np.log(modelled / run.seconds)))
    residuals = np.concatenate([np.array(row) - np.mean(row) for row in by_source.values() if len(row) > 1])
    return residuals / residuals.std()


def true_speeds(calibration: efficiencies.Calibration, residuals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """ln of the true over the modelled speeds, [n_experts, SPEEDS]."""
    of_source = calibration.between_sources * rng.normal(size=SPEEDS)
    of_kinds = rng.choice(residuals, (2, SPEEDS))
    own = rng.choice(residuals, (len(EXPERTS), SPEEDS))
    of_run = np.sqrt(joint_draws.KIND_SHARE) * of_kinds[(np.array(EXPERTS) > 1).astype(int)]
    return of_source + calibration.within_source * (of_run + np.sqrt(1 - joint_draws.KIND_SHARE) * own)


def question_of(law: Law, chips: str, hours: float) -> Problem:
    """The problem of a plan on a coarse grid of shapes."""
    parsed = PlanOptions(chips=chips, hours=hours)
    limits = parsed.constraints()
    assert limits.chips is not None
    calibration = efficiencies.of_our_trainer(limits.chips.kind, limits.chips.count)
    return Problem(law, PAPER, limits, EXPERTS, calibration, by_hours.COARSE)


def simulate(counts: Counts, seed: int, residuals: np.ndarray) -> None:
    """Adds the cases of one simulated law."""
    rng = np.random.default_rng([seed, 2])
    truth = truth_of(rng)
    law = fitted(truth, seed)
    experts = np.array(EXPERTS, float)
    for chips, hours in QUESTIONS:
        problem = question_of(law, chips, hours)
        assert problem.calibration is not None
        draws = joint_draws.of_problem(problem, experts)
        solved = joint_draws.solve_draws(problem, experts, draws)
        median = joint_draws.solve_draws(problem, experts, joint_draws.Draws(1, None, {}, np.zeros((len(experts), 1))))
        speeds = true_speeds(problem.calibration, residuals, rng)
        coefficients = {name: np.full(SPEEDS, truth[name]) for name in law.form.names}
        of_truth = joint_draws.Draws(SPEEDS, None, coefficients, speeds)
        true = joint_draws.solve_draws(problem, experts, of_truth)
        chosen = int(solved.loss.mean(axis=1).argmin())
        by_median = int(median.loss[:, 0].argmin())
        shares = np.bincount(solved.loss.argmin(axis=0), minlength=len(experts)) / draws.n
        best = true.loss.argmin(axis=0)
        counts.claimed += [float(shares[chosen])] * SPEEDS
        counts.right += (best == chosen).tolist()
        for i, share in enumerate(shares):
            counts.all_claimed += [float(share)] * SPEEDS
            counts.all_right += (best == i).tolist()
        counts.lost += (true.loss[chosen] - true.loss.min(axis=0)).tolist()
        counts.lost_by_median += (true.loss[by_median] - true.loss.min(axis=0)).tolist()
        add_intervals(counts, law, truth, problem.calibration, (solved, median, true, speeds), chosen)


def add_intervals(
    counts: Counts,
    law: Law,
    truth: dict[str, float],
    calibration: efficiencies.Calibration,
    found: tuple[best_models.BestInDraws, best_models.BestInDraws, best_models.BestInDraws, np.ndarray],
    chosen: int,
) -> None:
    """Adds whether the 80% intervals of a plan hold the truth."""
    solved, median, true, speeds = found
    low, high = np.percentile(solved.loss[chosen], [10, 90], method="weibull")
    held = (low <= true.loss[chosen]) & (true.loss[chosen] <= high)
    counts.held.setdefault("loss of the best with the chosen number", []).extend(held.tolist())
    size, tokens = (float(column[chosen, 0]) for column in (median.n_active, median.n_tokens))
    low, high = law.predict_interval(size, tokens, EXPERTS[chosen])
    loss = fit_runs.joint_loss(size, tokens, EXPERTS[chosen], truth)
    counts.held.setdefault("loss of the planned model", []).append(bool(low <= loss <= high))
    low, _, high = calibration.factors()
    factors = np.exp(speeds[chosen])
    counts.held.setdefault("hours", []).extend(((low <= factors) & (factors <= high)).tolist())


def table(title: str, claimed: list[float], right: list[bool]) -> None:
    """Prints how often claims came true, those near each of CLAIMS together."""
    print(title)
    claims, truths = np.array(claimed), np.array(right)
    for claim in CLAIMS:
        rows = np.abs(claims - claim) <= WINDOW
        if rows.any():
            n_plans = rows.sum() // SPEEDS
            means = f"claimed {claims[rows].mean():.0%}, true {truths[rows].mean():.0%}"
            print(f"  near {claim:.0%}: {means} in {n_plans} plans")


def main(_: object) -> None:
    """Prints the tables."""
    begin = time.process_time()
    counts = Counts()
    residuals = published_residuals()
    for seed in range(LAWS.value):
        simulate(counts, seed, residuals)
    table("the recommended number of experts is the best:", counts.claimed, counts.right)
    table("any number of experts is the best:", counts.all_claimed, counts.all_right)
    for name, held in counts.held.items():
        print(f"80% interval of the {name}: holds {np.mean(held):.0%} of {len(held)}")
    print(
        f"nats lost: {np.mean(counts.lost):.4f} by least expected loss, {np.mean(counts.lost_by_median):.4f} by medians"
    )
    print(f"{LAWS.value} laws, {time.process_time() - begin:.0f} s of CPU")


if __name__ == "__main__":
    app.run(main)
