"""Do the runs that `fit next` chooses reduce the error more than a plain grid of the same FLOPs?

    python -m benchmarks.fit_next [--laws=24] [--fits=20] [--scale=1,4,0.25]

Each of --laws laws is drawn around the published one. A pilot sweep with noise gets the default fit. `fit next` then
chooses a set of runs for the loss at TARGET times the pilot's largest compute. Two sets of the same FLOPs are compared
with it: the plain log-uniform grid that `fit next` prints, and runs drawn log-uniformly from the same candidates. Each
set is trained --fits times (losses of the true law with new noise) and fitted together with the pilot. Printed: the
mean squared error, over fits and laws, of the log loss of the best model at the target, relative to that of the chosen
set. --scale gives the factors by which the noise that the choice assumes is wrong.
"""

import dataclasses
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pathlib
import sys
from collections.abc import Sequence

import jax
import numpy as np
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/support"))
import fit_runs

from fit.fitted_law.law import Law
from fit.fitted_law.models import Models
from fit.fitted_law.parts import Scatter
from fit.fitting import fitting, search
from fit.fitting import noise as noise_lib
from fit.fitting.problem import Settings, prepare
from fit.laws import FORMS
from fit.model.architecture import PAPER
from fit.planning.search import best_size
from fit.studies.next_runs import candidates
from fit.studies.next_runs.choose_runs import choose_runs
from fit.table.runs import Runs, read_runs, trunks_of
from fit.table.table import Table

LAWS = flags.DEFINE_integer("laws", 24, "Number of laws to draw.")
FITS = flags.DEFINE_integer("fits", 20, "Number of fits of each set.")
SCALES = flags.DEFINE_list("scale", ["1", "4", "0.25"], "Factors on the noise that the choice assumes.")

JOINT = FORMS["joint"]
BLOCKS = (8, 10, 12, 16)  # of the pilot
EXPERTS = (1, 2, 4, 8, 16, 32)
TOKENS = (500_000_000, 1_000_000_000, 2_000_000_000, 4_000_000_000)
RUN = 0.002  # standard deviation of the noise of a run, in ln loss
TRUNK = 0.002  # and of the noise that the runs of a trunk share
BUDGET = 10  # times the pilot's FLOPs
TARGET = 100  # times the FLOPs of the pilot's largest run


Allocation = tuple[np.ndarray, np.ndarray, np.ndarray]  # (n_blocks, n_experts, n_tokens) of runs, each [k]


def draw_law(rng: np.random.Generator) -> dict[str, float]:
    """Draws coefficients around the published ones.

    Both terms at 1e8 parameters and 2e9 tokens stay near their published sizes.
    """
    c = dict(fit_runs.TABLE_3)
    for name in ("alpha", "beta", "delta", "gamma", "omega", "zeta"):
        c[name] *= np.exp(0.1 * rng.normal())
    for scale, exponent, at in (("a", "alpha", 1e8), ("b", "beta", 2e9)):
        c[scale] *= at ** (fit_runs.TABLE_3[exponent] - c[exponent]) * np.exp(0.1 * rng.normal())
    c["E_max"] *= np.exp(0.3 * rng.normal())
    c["E_start"] = 1 + (c["E_start"] - 1) * np.exp(0.1 * rng.normal())
    c["c"] *= np.exp(0.05 * rng.normal())
    return c


def columns_of(runs: Allocation) -> dict[str, np.ndarray]:
    """Returns the columns n_active, n_tokens and n_experts of runs, each [k]."""
    n_blocks, n_experts, n_tokens = runs
    return dict(
        n_active=PAPER.n_active(64.0 * n_blocks), n_tokens=n_tokens.astype(float), n_experts=n_experts.astype(float)
    )


def errors(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """Draws the errors in ln loss [k] of runs whose trunks are `labels` [k]."""
    return TRUNK * rng.normal(size=labels.max() + 1)[labels] + RUN * rng.normal(size=len(labels))


def pilot_of(true: dict[str, float], rng: np.random.Generator) -> tuple[Law, Table]:
    """Simulates a pilot sweep; its Law has as much of what `fit law` writes as `fit next` reads."""
    shape = [a.ravel() for a in np.meshgrid(BLOCKS, EXPERTS, TOKENS, indexing="ij")]
    columns = columns_of(shape)
    names = [f"jobs/d{64 * b}-e{e}/branch-{n}" for b, e, n in zip(*shape, strict=True)]
    labels = np.unique([name.split("/")[1] for name in names], return_inverse=True)[1]
    loss = fit_runs.joint_loss(**columns, c=true) * np.exp(errors(rng, labels))
    table = Table("the pilot", {k: v.tolist() for k, v in columns.items()} | dict(loss=loss.tolist(), run=names), [])
    table.rows = list(range(len(names)))
    runs = dataclasses.replace(read_runs(table, JOINT.columns), trunks=trunks_of(table)[0])
    result, problem = fitting.fit_by_default(JOINT, runs, Settings(weight_decay=None))
    scatter = noise_lib.noise_of(problem, result.params)
    noise = Scatter(
        run=scatter.run, trunk=scatter.trunk, total=scatter.total, degrees_of_freedom=scatter.degrees_of_freedom
    )
    law = Law(
        "the pilot's law",
        JOINT,
        result.coefficients,
        runs=fitting.described(runs, runs, JOINT),
        noise=noise,
        models=Models(n_experts=EXPERTS),
    )
    return law, table


def refitted(
    law: Law, table: Table, true: dict[str, float], extra: Allocation, rng: np.random.Generator, fits: int
) -> np.ndarray:
    """Fits laws to the pilot and the runs `extra`, whose losses have new noise in each fit.

    Args:
        law: the pilot's law.
        table: the pilot's runs.
        true: coefficients of the true law.
        extra: the further runs.
        rng: draws the noise.
        fits: number of fits.

    Returns:
        The coefficients [fits, n].
    """
    pilot = read_runs(table, JOINT.columns)
    more = columns_of(extra)
    k = len(extra[0])
    columns = {name: np.concatenate([pilot.columns[name], more[name]]) for name in JOINT.columns}
    of_more = np.unique(np.stack(extra[:2]), axis=1, return_inverse=True)[1].ravel()
    mean = np.log(fit_runs.joint_loss(**more, c=true))
    drawn = np.stack([np.append(np.log(pilot.loss), mean + errors(rng, of_more)) for _ in range(fits)])
    runs = fit_runs.runs_of("pilot and more", **columns, loss=np.exp(drawn[0]))
    few = len(pilot) + k <= fitting.FEW_RUNS
    settings = Settings(weight_decay=fitting.DECAY_PER_VARIANCE * (RUN**2 + TRUNK**2) if few else 0.0)
    problem = prepare(JOINT, runs, settings)
    starts = problem.centre(np.stack([JOINT.to_params(law.coefficients), JOINT.to_params(true)]))
    trial = problem.with_data(log_loss=np.repeat(problem.padded(drawn), 2, axis=0))
    x, values, _ = search.polish(trial, np.tile(starts, (fits, 1)), rounds=8, keep="each")
    best = np.argmin(values.reshape(fits, 2), axis=1)
    return JOINT.to_coefficients(problem.params_of(x.reshape(fits, 2, -1)[np.arange(fits), best]))


def best_losses(coefficients: np.ndarray, flops: float) -> np.ndarray:
    """Returns ln of the best model's loss [k] at a budget, for laws of `coefficients` [k, n]; NaN if there is none."""
    c = {name: values[:, None] for name, values in zip(JOINT.names, np.transpose(coefficients), strict=True)}
    m, mu, n, nu, floor = JOINT.chinchilla_coefficients_at(c, np.array(EXPERTS, float))[:5]
    size, tokens = best_size.compute_optimal(m, mu, n, nu, flops)
    return np.log(np.nanmin(np.where(np.isnan(size), np.nan, m * size**mu + n * tokens**nu + floor), axis=1))


def drawn_runs(rng: np.random.Generator, law: Law, table: Table, flops: float) -> Allocation:
    """Draws runs from the candidates until the budget is spent: log-uniform in size, tokens and experts."""
    possible = candidates.candidates(law, PAPER, EXPERTS, read_runs(table, JOINT.columns), flops)
    chosen = []
    for i in rng.permutation(len(possible)):
        if possible.flops([*chosen, i]) <= flops:
            chosen.append(i)
    n_blocks, n_experts, n_tokens = possible.n_blocks, possible.n_experts, possible.n_tokens
    return np.asarray(n_blocks)[chosen], np.asarray(n_experts)[chosen], np.asarray(n_tokens)[chosen]


def squared_errors(seed: int, fits: int, scales: Sequence[float] = (1.0,), drawn: bool = True) -> dict[str, float]:
    """Compares the sets of runs for one law.

    Args:
        seed: draws the law and the noise.
        fits: number of fits of each set.
        scales: the factors by which the assumed noise is wrong.
        drawn: whether to compare with a drawn set too.

    Returns:
        {set: mean squared error of the ln loss at the target}. The sets are "grid", "drawn", and "chosen SCALE" for
        each of the scales. "expected SCALE" and "expected grid" are the errors that `fit next` expects.
    """
    rng = np.random.default_rng(seed)
    true = draw_law(rng)
    law, table = pilot_of(true, rng)
    runs = read_runs(table, JOINT.columns)
    pilot = candidates.possible_runs(law, PAPER, *_shapes(runs))
    flops = BUDGET * pilot.flops(range(len(pilot)))
    target = TARGET * runs.flops.max()
    grid = candidates.plain_grid(law, PAPER, EXPERTS, runs, flops)
    sets = {"grid": (grid.n_blocks, grid.n_experts, grid.n_tokens)}
    expected = {}
    if drawn:
        sets["drawn"] = drawn_runs(rng, law, table, flops)
    noise = law.noise
    for scale in scales:
        run, trunk, total = (scale * part for part in (noise.run, noise.trunk, noise.total))
        assumed = dataclasses.replace(noise, run=run, trunk=trunk, total=total)
        with_noise = dataclasses.replace(law, noise=assumed)
        choice = choose_runs(with_noise, table, PAPER, EXPERTS, flops, target)
        chosen = [(t["n_blocks"], t["n_experts"], n) for t in choice["trunks"] for n in t["n_tokens"]]
        sets[f"chosen {scale:g}"] = tuple(np.array(chosen).T)
        error = choice["expected"]["log_error"]
        expected |= {f"expected {scale:g}": error["after"] ** 2}
        expected.setdefault("expected grid", error["grid"] ** 2)
    truth = best_losses(JOINT.to_coefficients(JOINT.to_params(true))[None], target)
    squares = {}
    for name, extra in sets.items():
        coefficients = refitted(law, table, true, extra, np.random.default_rng([seed, 1]), fits)
        error = best_losses(coefficients, target) - truth
        squares[name] = float(np.mean(np.nan_to_num(error, nan=1.0) ** 2))
    return squares | expected


def _shapes(runs: Runs) -> Allocation:
    """Returns (n_blocks, n_experts, n_tokens) of runs."""
    blocks = np.round(PAPER.d_model(runs.n_active) / 64).astype(int)
    return blocks, runs.n_experts.astype(int), runs.n_tokens.astype(int)


def main(_: object) -> None:
    """Prints the errors of each law, and their means."""
    scales = [float(scale) for scale in SCALES.value]
    by_law = []
    for seed in range(LAWS.value):
        by_law.append(squared_errors(seed, FITS.value, scales))
        print(f"law {seed}: " + ", ".join(f"{name} {np.sqrt(v):.3%}" for name, v in by_law[-1].items()), flush=True)
    mean = {name: np.mean([squares[name] for squares in by_law]) for name in by_law[0]}
    print("root mean squared errors: " + ", ".join(f"{name} {np.sqrt(value):.3%}" for name, value in mean.items()))
    for name in ("grid", "drawn"):
        for scale in scales:
            chosen = f"chosen {scale:g}"
            middle = np.median([squares[name] / squares[chosen] for squares in by_law])
            print(f"{name} over {chosen}: mean squared error {mean[name] / mean[chosen]:.2f}, median law {middle:.2f}")


if __name__ == "__main__":
    with jax.enable_x64(True):
        app.run(main)
