"""Do the intervals contain the truth as often as they claim? Simulates losses from a known law and fits them.

    python benchmarks/fit_coverage.py [--sims=100] [--designs=paper,paper_shared,sweep24,...]

Each simulation is fitted as `python -m fit law` does: default fit, profile intervals, bootstrap of 100. Printed: how
often nominal 80% intervals contain

  law      the law's true loss of the compute-optimal models of four numbers of experts, at 1 and 10 times the largest
           compute of the runs
  new run  the loss of a new run of such a model, on a new trunk
  optimum  the true optimal n_active and n_tokens at 10 times that compute
  profile  the true E_start, E_max and c (chinchilla: E)

paper: the paper's 270 runs, 0.2% of noise, no trunks given; paper_shared: the runs of each of its 51 trunks share 0.2%,
and each run adds 0.1%. sweepN: N runs of a laptop's sweep (E in 1, 2, 4, 8), 1% of noise; sweepN_shared: a trunk
shares 1%, and each run adds 0.4%. chinchilla: the 240 points of Besiroglu et al. with normal noise of 0.5%.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable

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
from fit.planning.search import best_size
from fit.table.runs import Runs

SWEEPS = {24: ((16, 32), 3), 36: ((16, 24, 32), 3), 48: ((16, 24, 32, 48), 3), 60: ((16, 24, 32), 5)}
DESIGNS = ["paper", "paper_shared", "chinchilla"] + [f"sweep{n}{kind}" for n in SWEEPS for kind in ("", "_shared")]
SIMS = flags.DEFINE_integer("sims", 100, "Number of simulations of each design.")
NAMES = flags.DEFINE_list("designs", DESIGNS, "Designs to simulate.")


def simulate(seed: int, noise: float = 0.002, trunk: float = 0.0) -> tuple[Runs, np.ndarray]:
    """Returns the runs of the paper's grid with losses from Table 3, and the trunk [n_runs] of each.

    Args:
        seed: of the noise.
        noise: standard deviation of the noise of a run, in ln loss.
        trunk: standard deviation of the noise that the runs of a trunk share.
    """
    runs = fit_runs.paper_runs()
    labels = np.unique(np.stack([runs.n_active, runs.n_experts]), axis=1, return_inverse=True)[1].ravel()
    rng = np.random.default_rng(seed)
    runs.loss = runs.loss * np.exp(
        trunk * rng.normal(size=labels.max() + 1)[labels] + noise * rng.normal(size=len(runs))
    )
    return runs, labels


def sweep(n: int, seed: int, noise: float, trunk: float) -> tuple[Runs, np.ndarray]:
    """Returns the n runs of a laptop's sweep, and the trunk [n] of each; the other arguments as in `simulate`."""
    widths, n_budgets = SWEEPS[n]
    first = 1 if n_budgets == 3 else 0
    budgets = [163_840 * 2**i for i in range(first, first + n_budgets)]
    runs = fit_runs.sweep_runs(widths, budgets, noise, trunk, seed)
    return runs, np.repeat(np.arange(4 * len(widths)), n_budgets)


@dataclasses.dataclass(frozen=True)
class Design:
    """The design of a simulated fit.

    Attributes:
        form: the name of the law's form.
        simulate: from a seed to runs and the trunk of each; None if the fit gets no trunks.
        truth: the coefficients of the true law.
        experts: numbers of experts whose optimal models are predicted.
        noise: standard deviation of the ln loss of a new run on a new trunk.
    """

    form: str
    simulate: Callable[[int], tuple[Runs, np.ndarray | None]]
    truth: dict[str, float]
    experts: tuple[int, ...]
    noise: float


def design_of(name: str) -> Design:
    """Returns the design of that name."""
    if name == "chinchilla":
        return chinchilla_design()
    is_shared = name.endswith("_shared")
    if name == "paper_shared":
        noise = float(np.hypot(0.001, 0.002))
        return Design("joint", lambda seed: simulate(seed, 0.001, 0.002), fit_runs.TABLE_3, (1, 4, 16, 32), noise)
    if name == "paper":
        return Design("joint", lambda seed: (simulate(seed)[0], None), fit_runs.TABLE_3, (1, 4, 16, 32), 0.002)
    n = int(name.removeprefix("sweep").partition("_")[0])
    noise, trunk = (0.004, 0.01) if is_shared else (0.01, 0.0)
    noise_of_new_run = float(np.hypot(noise, trunk))
    return Design("joint", lambda seed: sweep(n, seed, noise, trunk), fit_runs.TINY, (1, 2, 4, 8), noise_of_new_run)


def chinchilla_design() -> Design:
    """Returns the design with the 240 points of Besiroglu et al. and their law."""
    points = fit_runs.chinchilla_runs()
    form = FORMS["chinchilla"]
    truth = dict(A=477.83, B=2143.4, E=1.81722, alpha=0.34731, beta=0.36717)
    mean = form.log_loss(form.to_params(truth), points.columns)

    def points_with_noise(seed: int) -> tuple[Runs, None]:
        loss = np.exp(mean + 0.005 * np.random.default_rng(seed).normal(size=len(mean)))
        return dataclasses.replace(points, loss=loss), None

    return Design("chinchilla", points_with_noise, truth, (1,), 0.005)


def coverage(seed: int, design: Design) -> dict[str, np.ndarray | list]:
    """Returns which true values the intervals of one simulation contain: {what: booleans}."""
    runs, trunks = design.simulate(seed)
    form = FORMS[design.form]
    runs = dataclasses.replace(runs, trunks=trunks)
    result, problem = fitting.fit_by_default(form, runs, Settings(weight_decay=None, bootstrap=100))
    law = with_uncertainty(Law("simulated", form, result.coefficients), problem, result)
    true = Law("true", form, design.truth)
    rng = np.random.default_rng([seed, 1])
    e = np.array(design.experts, float)
    contained = {}
    for times in (1, 10):
        flops = times * 6 * (runs.n_active * runs.n_tokens).max()
        size, tokens = best_size.compute_optimal(*true.chinchilla_coefficients_at(e)[:4], flops)
        loss = true.predict(size, tokens, e)
        low, high = law.predict_interval(size, tokens, e)
        contained[f"law {times}x"] = (low <= loss) & (loss <= high)
        low, high = law.predict_interval(size, tokens, e, new_run=True)
        loss = loss * np.exp(design.noise * rng.normal(size=len(e)))
        contained[f"new run {times}x"] = (low <= loss) & (loss <= high)
    draws = {name: value[:, None] for name, value in law.draws.items()}
    with np.errstate(all="ignore"):
        ends = np.nanpercentile(
            best_size.compute_optimal(*law.chinchilla_coefficients_at(e, draws)[:4], flops),
            [10, 90],
            axis=1,
            method="weibull",
        )
    contained["optimum 10x"] = (ends[0] <= [size, tokens]) & ([size, tokens] <= ends[1])
    for name, interval in law.profile.items():
        low = interval.low or 0
        high = interval.high or np.inf
        contained[f"profile {name}"] = [low <= design.truth[name] <= high]
    exponents = law.chinchilla_coefficients_at(e)
    contained["plannable"] = [np.all(exponents[1] < 0) and np.all(exponents[3] < 0)]
    return contained


def main(_: object) -> None:
    """Prints a line for each design."""
    for name in NAMES.value:
        begin = time.process_time()
        design = design_of(name)
        simulations = [coverage(seed, design) for seed in range(SIMS.value)]
        share = {what: np.mean([contained[what] for contained in simulations]) for what in simulations[0]}
        print(
            f"{name:15}" + "  ".join(f"{what} {value:.2f}" for what, value in share.items())
            + f"  ({SIMS.value} simulations, {time.process_time() - begin:.0f} s of CPU)",
            flush=True,
        )  # fmt: skip
    print(f"binomial error of a share of 0.8 among {SIMS.value}: {np.sqrt(0.16 / SIMS.value):.2f}")


if __name__ == "__main__":
    with jax.enable_x64(True):
        app.run(main)
