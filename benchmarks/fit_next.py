"""Do the runs that `fit next` chooses make the answer surer than a plain grid of the same FLOPs?

    python -m benchmarks.fit_next [--laws=24] [--fits=20] [--scale=1,4,0.25]

For each of --laws laws drawn around the published one: a pilot sweep with noise, the default fit to it, the set that
`fit next` chooses for the loss at TARGET times the pilot's largest compute, and two sets of the same FLOPs to compare
with: the plain log-uniform grid that it prints, and runs drawn log-uniformly from the same candidates. Each set is
trained --fits times (losses of the true law with new noise) and fitted together with the pilot. Prints the mean
squared error, over fits and laws, of the log loss of the best model at the target, relative to that of the chosen set.
--scale: the factors by which the noise that the choice assumes is off.
"""

import dataclasses
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pathlib
import sys

import jax
import numpy as np
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/support"))
import fit_runs

from fit.data.runs import trunks_of
from fit.data.table import Table
from fit.fitted_law.law import Law
from fit.fitting import fitting, search
from fit.fitting import noise as noise_lib
from fit.fitting.problem import Settings, prepare
from fit.laws import FORMS
from fit.next_runs import next_runs
from fit.planning import optimum
from fit.shape.architecture import PAPER

LAWS = flags.DEFINE_integer("laws", 24, "Laws drawn.")
FITS = flags.DEFINE_integer("fits", 20, "Fits of each set.")
SCALES = flags.DEFINE_list("scale", ["1", "4", "0.25"], "Errors of the noise that the choice is made with.")

JOINT = FORMS["joint"]
BLOCKS, EXPERTS = (8, 10, 12, 16), (1, 2, 4, 8, 16, 32)  # the pilot's
TOKENS = (500_000_000, 1_000_000_000, 2_000_000_000, 4_000_000_000)
RUN, TRUNK = 0.002, 0.002  # the noise
BUDGET, TARGET = 10, 100  # times the pilot's FLOPs; times those of its largest run


def draw_law(rng):
    """Coefficients around the published ones; the sizes of both terms at 1e8 parameters and 2e9 tokens stay near
    theirs."""
    c = dict(fit_runs.TABLE_3)
    for name in ("alpha", "beta", "delta", "gamma", "omega", "zeta"):
        c[name] *= np.exp(0.1 * rng.normal())
    for scale, exponent, at in (("a", "alpha", 1e8), ("b", "beta", 2e9)):
        c[scale] *= at ** (fit_runs.TABLE_3[exponent] - c[exponent]) * np.exp(0.1 * rng.normal())
    c["E_max"] *= np.exp(0.3 * rng.normal())
    c["E_start"] = 1 + (c["E_start"] - 1) * np.exp(0.1 * rng.normal())
    c["c"] *= np.exp(0.05 * rng.normal())
    return c


def columns_of(runs):
    """n_active, n_tokens and n_experts of (n_blocks, n_experts, n_tokens), each [k]."""
    n_blocks, n_experts, n_tokens = runs
    return dict(
        n_active=PAPER.n_active(64.0 * n_blocks), n_tokens=n_tokens.astype(float), n_experts=n_experts.astype(float)
    )


def errors(rng, labels):
    """Errors in log loss of runs whose trunks are `labels`."""
    return TRUNK * rng.normal(size=labels.max() + 1)[labels] + RUN * rng.normal(size=len(labels))


def pilot_of(true, rng):
    """(Law, Table) of a simulated pilot; the Law has as much of what `fit law` writes as `fit next` reads."""
    shape = [a.ravel() for a in np.meshgrid(BLOCKS, EXPERTS, TOKENS, indexing="ij")]
    columns = columns_of(shape)
    names = [f"jobs/d{64 * b}-e{e}/branch-{n}" for b, e, n in zip(*shape)]
    labels = np.unique([name.split("/")[1] for name in names], return_inverse=True)[1]
    loss = fit_runs.joint_loss(**columns, c=true) * np.exp(errors(rng, labels))
    table = Table("the pilot", {k: v.tolist() for k, v in columns.items()} | dict(loss=loss.tolist(), run=names), [])
    table.rows = list(range(len(names)))
    runs = dataclasses.replace(fitting.read_runs(table, JOINT.columns), trunks=trunks_of(table)[0])
    found, problem = fitting.fit_by_default(JOINT, runs, Settings(weight_decay=None))
    scatter = noise_lib.noise_of(problem, found.params)
    record = dict(
        form="joint",
        settings=dict(holdout="none", weights="none", bootstrap_by="trunk", fix={}),
        runs=fitting.described(runs, runs, JOINT),
        noise=dict(run=scatter.run, trunk=scatter.trunk, degrees_of_freedom=list(scatter.degrees_of_freedom)),
        models=dict(n_experts=list(EXPERTS)),
    )
    return Law("the pilot's law", JOINT, found.coefficients, record), table


def refitted(law, table, true, extra, rng, fits):
    """Coefficients [fits, n] of the laws fitted to the pilot and the runs `extra`, (n_blocks, n_experts, n_tokens). The
    losses of `extra` have new noise in each of the fits."""
    pilot = fitting.read_runs(table, JOINT.columns)
    more, k = columns_of(extra), len(extra[0])
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


def best_losses(coefficients, flops):
    """ln of the loss [k] of the best model at a budget, for laws of `coefficients` [k, n]; NaN where there is none."""
    c = {name: values[:, None] for name, values in zip(JOINT.names, np.transpose(coefficients))}
    m, mu, n, nu, floor = JOINT.chinchilla_coefficients_at(c, np.array(EXPERTS, float))[:5]
    size, tokens = optimum.compute_optimal(m, mu, n, nu, flops)
    return np.log(np.nanmin(np.where(np.isnan(size), np.nan, m * size**mu + n * tokens**nu + floor), axis=1))


def drawn_runs(rng, law, table, flops):
    """Runs drawn from the candidates until the budget is spent: log-uniform in size, tokens and experts."""
    possible = next_runs.candidates(law, PAPER, EXPERTS, fitting.read_runs(table, JOINT.columns), flops)
    chosen = []
    for i in rng.permutation(len(possible)):
        if possible.flops([*chosen, i]) <= flops:
            chosen.append(i)
    return tuple(np.asarray(a)[chosen] for a in (possible.n_blocks, possible.n_experts, possible.n_tokens))


def one(seed, fits, scales=(1.0,), drawn=True):
    """{set: mean squared error of the log loss at the target} for one law drawn with `seed`. Sets: "grid", "drawn" if
    asked for, and "chosen SCALE" for each of the scales by which the believed noise is off; "expected SCALE" and
    "expected grid" are what `fit next` expects."""
    rng = np.random.default_rng(seed)
    true = draw_law(rng)
    law, table = pilot_of(true, rng)
    runs = fitting.read_runs(table, JOINT.columns)
    pilot = next_runs.possible_runs(law, PAPER, *_shapes(runs))
    flops, target = BUDGET * pilot.flops(range(len(pilot))), TARGET * runs.flops.max()
    grid = next_runs.plain_grid(law, PAPER, EXPERTS, runs, flops)
    sets, expected = {"grid": (grid.n_blocks, grid.n_experts, grid.n_tokens)}, {}
    if drawn:
        sets["drawn"] = drawn_runs(rng, law, table, flops)
    noise = law.record["noise"]
    for scale in scales:
        believed = noise | {name: scale * noise[name] for name in ("run", "trunk")}
        noisy = dataclasses.replace(law, record=law.record | {"noise": believed})
        found = next_runs.next_runs(noisy, table, PAPER, EXPERTS, flops, target)
        chosen = [(t["n_blocks"], t["n_experts"], n) for t in found["trunks"] for n in t["n_tokens"]]
        sets[f"chosen {scale:g}"] = tuple(np.array(chosen).T)
        error = found["expected"]["log_error"]
        expected |= {f"expected {scale:g}": error["after"] ** 2}
        expected.setdefault("expected grid", error["grid"] ** 2)
    truth = best_losses(JOINT.to_coefficients(JOINT.to_params(true))[None], target)
    squares = {}
    for name, extra in sets.items():
        off = best_losses(refitted(law, table, true, extra, np.random.default_rng([seed, 1]), fits), target) - truth
        squares[name] = float(np.mean(np.nan_to_num(off, nan=1.0) ** 2))
    return squares | expected


def _shapes(runs):
    """(n_blocks, n_experts, n_tokens) of runs."""
    blocks = np.round(PAPER.d_model(runs.n_active) / 64).astype(int)
    return blocks, runs.n_experts.astype(int), runs.n_tokens.astype(int)


def main(_):
    scales = [float(scale) for scale in SCALES.value]
    found = []
    for seed in range(LAWS.value):
        found.append(one(seed, FITS.value, scales))
        print(f"law {seed}: " + ", ".join(f"{name} {np.sqrt(v):.3%}" for name, v in found[-1].items()), flush=True)
    mean = {name: np.mean([each[name] for each in found]) for name in found[0]}
    print("root mean squared errors: " + ", ".join(f"{name} {np.sqrt(value):.3%}" for name, value in mean.items()))
    for name in ("grid", "drawn"):
        for scale in scales:
            chosen = f"chosen {scale:g}"
            middle = np.median([each[name] / each[chosen] for each in found])
            print(f"{name} over {chosen}: mean squared error {mean[name] / mean[chosen]:.2f}, median law {middle:.2f}")


if __name__ == "__main__":
    with jax.enable_x64(True):
        app.run(main)
