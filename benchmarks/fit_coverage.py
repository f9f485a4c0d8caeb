"""Is the default bootstrap interval honest? Losses made from the published law on the paper's 270-run grid, fitted again.

    python benchmarks/fit_coverage.py [--seeds=100] [--first=0]

For each seed: 0.002 of noise on the log loss, the default fit, a bootstrap of 100, and whether its 10th to 90th percentile
of n_active and n_tokens at 1e21 FLOPs holds the truth (nominal 80%). The first 20 seeds are fitted again without the 30
runs of lowest loss, for the error on those. About 15 minutes on one core.
"""

import csv
import pathlib

import jax
import numpy as np
from absl import app, flags

from fit import fitting, lawfile, optimum, regress, uncertainty
from fit import runs as runs_lib
from fit.laws import joint

SEEDS = flags.DEFINE_integer("seeds", 100, "How many.")
FIRST = flags.DEFINE_integer("first", 0, "The first seed.")
GRID = pathlib.Path(__file__).parent.parent / "tests/data/joint_moe_appendix_h.csv"
EXPERTS, FLOPS, NOISE = (1, 2, 4, 8, 16, 32), 1e21, 0.002


def simulate(seed, noise=NOISE):
    """Runs of the paper's grid with losses from the preset."""
    with open(GRID, encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    n, d, e = (np.array([float(row[name]) for row in rows]) for name in ("N_act", "D", "E"))
    loss = lawfile.load("joint-moe-2025").predict(n, d, e) * np.exp(
        noise * np.random.default_rng(seed).normal(size=len(n))
    )
    return runs_lib.Runs(str(GRID), n, d, e, loss, None)


def best(coefficients, e):
    """(n_active, n_tokens), the last axis the draws."""
    m, mu, n, nu, _ = joint.at_experts(coefficients, e)
    return np.array(optimum.compute_optimal(m, mu, n, nu, FLOPS))


def main(_):
    truth = lawfile.load("joint-moe-2025").coefficients
    true_free, settings = joint.to_free(truth), regress.Settings()
    inside, worse, held = [], [], []
    for seed in range(FIRST.value, FIRST.value + SEEDS.value):
        runs = simulate(seed)
        found = regress.fit("joint", runs, settings, quiet=True)
        worse.append(found.objective > regress.objective("joint", true_free, regress.prepare(runs, settings)))
        draws = uncertainty.bootstrap("joint", runs, settings, np.ones(len(runs)), found, 100, "replacement")
        draws = dict(zip(joint.COEFFICIENTS, draws.T))
        row = []
        for e in EXPERTS:
            low, high = np.percentile(best(draws, e), [10, 90], axis=1)
            target = best(truth, e)
            row.append((low <= target) & (target <= high))
        inside.append(row)
        if seed < 20:
            out = fitting.held_out(runs, "lowest-loss:30")
            part = regress.fit("joint", fitting.subset(runs, ~out), settings, quiet=True)
            held.append(
                [fitting.errors(joint, free, fitting.subset(runs, out))["rmse_log"] for free in (part.free, true_free)]
            )
        if len(inside) % 10 == 0:
            print(
                f"{seed + 1} seeds: n_active {np.mean(np.array(inside)[:, :, 0]):.3f}, "
                f"n_tokens {np.mean(np.array(inside)[:, :, 1]):.3f}",
                flush=True,
            )
    inside = np.array(inside)
    error = np.sqrt(0.8 * 0.2 / len(inside))
    print(f"objective above the truth's in {sum(worse)} of {len(worse)} seeds")
    for name, values in zip(("the fit", "the truth itself"), np.array(held).reshape(-1, 2).T if held else ()):
        print(
            f"RMSE of the log loss on the 30 held-out runs, {len(held)} seeds, {name}: mean {values.mean():.5f}, largest "
            f"{values.max():.5f}, above 0.0025 in {np.sum(values > 0.0025)}"
        )
    print(
        f"coverage of the nominal 80% interval at {FLOPS:g} FLOPs over {len(inside)} seeds (binomial error {error:.3f}):"
    )
    for i, e in enumerate(EXPERTS):
        print(f"  E = {e:2d}: n_active {inside[:, i, 0].mean():.2f}, n_tokens {inside[:, i, 1].mean():.2f}")


if __name__ == "__main__":
    with jax.enable_x64(True):
        app.run(main)
