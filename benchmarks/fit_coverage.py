"""Do the intervals hold what they claim? Simulates losses from a known law and fits them as `python -m fit law` does.

    python benchmarks/fit_coverage.py [--sims=100] [--designs=paper,paper_shared,sweep24,...]

For each simulation: default fit, profile intervals, bootstrap of 100. Printed: how often nominal 80% intervals contain

  law      the law's true loss of the compute-optimal models of four numbers of experts, at 1 and 10 times the largest
           compute of the runs
  new run  the loss of a new run of such a model, on a trunk of its own
  optimum  the true optimal n_active and n_tokens at 10 times that compute
  profile  the true E_start, E_max and c (chinchilla: E)

paper: the paper's 270 runs, 0.2% of noise, no trunks given; paper_shared: the runs of each of its 51 trunks share 0.2%,
and each run has 0.1% of its own. sweepN: N runs of a laptop's sweep (E in 1, 2, 4, 8), 1% of noise; sweepN_shared: a
trunk shares 1%, a run has 0.4% of its own. chinchilla: the 240 points of Besiroglu et al. with normal noise of 0.5%.
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
from fit.fitting.uncertainty import uncertainty_of
from fit.laws import FORMS
from fit.planning import optimum

SWEEPS = {24: ((16, 32), 3), 36: ((16, 24, 32), 3), 48: ((16, 24, 32, 48), 3), 60: ((16, 24, 32), 5)}
DESIGNS = ["paper", "paper_shared", "chinchilla"] + [f"sweep{n}{kind}" for n in SWEEPS for kind in ("", "_shared")]
SIMS = flags.DEFINE_integer("sims", 100, "Simulations of each design.")
NAMES = flags.DEFINE_list("designs", DESIGNS, "Which.")


def simulate(seed, noise=0.002, trunk=0.0):
    """(Runs, trunks [n_runs]) of the paper's grid with losses from Table 3."""
    runs = fit_runs.paper_runs()
    labels = np.unique(np.stack([runs.n_active, runs.n_experts]), axis=1, return_inverse=True)[1].ravel()
    rng = np.random.default_rng(seed)
    runs.loss = runs.loss * np.exp(
        trunk * rng.normal(size=labels.max() + 1)[labels] + noise * rng.normal(size=len(runs))
    )
    return runs, labels


def sweep(n, seed, noise, trunk):
    widths, budgets = SWEEPS[n]
    runs = fit_runs.sweep_runs(
        widths, [163_840 * 2**i for i in range(budgets == 3, budgets + (budgets == 3))], noise, trunk, seed
    )
    return runs, np.repeat(np.arange(4 * len(widths)), budgets)


def design_of(name):
    """(form, simulate(seed) -> (Runs, trunks), true coefficients, numbers of experts, noise of a new run)."""
    if name == "chinchilla":
        points = fit_runs.chinchilla_runs()
        law, truth = FORMS["chinchilla"], dict(A=477.83, B=2143.4, E=1.81722, alpha=0.34731, beta=0.36717)
        mean = law.log_loss(law.to_params(truth), points.columns)

        def points_with_noise(seed):
            loss = np.exp(mean + 0.005 * np.random.default_rng(seed).normal(size=len(mean)))
            return dataclasses.replace(points, loss=loss), None

        return "chinchilla", points_with_noise, truth, (1,), 0.005
    shared = name.endswith("_shared")
    if name.startswith("paper"):
        make = (lambda s: simulate(s, 0.001, 0.002)) if shared else (lambda s: (simulate(s)[0], None))
        return "joint", make, fit_runs.TABLE_3, (1, 4, 16, 32), np.hypot(0.001, 0.002) if shared else 0.002
    n, noise, trunk = int(name[5:].partition("_")[0]), *((0.004, 0.01) if shared else (0.01, 0.0))
    return "joint", lambda s: sweep(n, s, noise, trunk), fit_runs.TINY, (1, 2, 4, 8), np.hypot(noise, trunk)


def one(seed, form, make, truth, experts, noise):
    """Which true values the intervals of one simulation contain: {what: booleans}."""
    runs, labels = make(seed)
    form, settings = FORMS[form], Settings(weight_decay=None, bootstrap=100)
    runs = dataclasses.replace(runs, trunks=labels)
    found, problem = fitting.fit_by_default(form, runs, settings)
    record = uncertainty_of(problem, found)
    law, true = Law("simulated", form, found.coefficients, record), Law("true", form, truth, {})
    held, rng = {}, np.random.default_rng([seed, 1])
    e = np.array(experts, float)
    for times in (1, 10):
        flops = times * 6 * (runs.n_active * runs.n_tokens).max()
        size, tokens = optimum.compute_optimal(*true.chinchilla_coefficients_at(e)[:4], flops)
        loss = true.predict(size, tokens, e)
        low, high = law.predict_interval(size, tokens, e)
        held[f"law {times}x"] = (low <= loss) & (loss <= high)
        low, high = law.predict_interval(size, tokens, e, new_run=True)
        loss = loss * np.exp(noise * rng.normal(size=len(e)))
        held[f"new run {times}x"] = (low <= loss) & (loss <= high)
    draws = {name: value[:, None] for name, value in law.draws.items()}
    with np.errstate(all="ignore"):
        ends = np.nanpercentile(
            optimum.compute_optimal(*law.chinchilla_coefficients_at(e, draws)[:4], flops),
            [10, 90],
            axis=1,
            method="weibull",
        )
    held["optimum 10x"] = (ends[0] <= [size, tokens]) & ([size, tokens] <= ends[1])
    for name, p in record["profile"].items():
        low, high = p["low"] or 0, p["high"] or np.inf
        held[f"profile {name}"] = [low <= truth[name] <= high]
    exponents = law.chinchilla_coefficients_at(e)
    held["plannable"] = [np.all(exponents[1] < 0) and np.all(exponents[3] < 0)]
    return held


def main(_):
    for name in NAMES.value:
        begin, design = time.process_time(), design_of(name)
        sims = [one(seed, *design) for seed in range(SIMS.value)]
        share = {what: np.mean([held[what] for held in sims]) for what in sims[0]}
        print(
            f"{name:15}" + "  ".join(f"{what} {value:.2f}" for what, value in share.items())
            + f"  ({SIMS.value} simulations, {time.process_time() - begin:.0f} s of CPU)",
            flush=True,
        )  # fmt: skip
    print(f"binomial error of a share of 0.8 among {SIMS.value}: {np.sqrt(0.16 / SIMS.value):.2f}")


if __name__ == "__main__":
    with jax.enable_x64(True):
        app.run(main)
