"""How fast is the search? Against scipy, one start after another, on the same problem.

    python -m benchmarks.fit_speed [--scipy_starts=60]

All fit the joint law to the paper's 270-run grid, with losses from the published law and 0.2% of noise. All have the
same objective in float64, compiled residuals with exact gradient or Jacobian, and centred columns. scipy's strongest is
MINPACK's Levenberg-Marquardt (`least_squares(method="lm")`); L-BFGS-B is what most fitting scripts use. Starts come
from random rows of the paper's grid, and from the measure of the runs (fit's default). A start has converged when its
objective is within 1% of the best that any found. Then the times that a user sees: the default search, the paper's
whole grid and a bootstrap of 100, with compiling, and `python -m fit law` as a process, with an empty cache of compiled
programs and with a full one. About 5 minutes on 2 cores.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads only slow down scipy's small matrices

import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from absl import app, flags

from benchmarks import fit_coverage
from benchmarks.fit_coverage import fit_runs
from fit.fitting import search
from fit.fitting.intervals import bootstrap
from fit.fitting.noise import noise_of
from fit.fitting.problem import Settings, prepare, residual_function
from fit.laws import FORMS

SCIPY_STARTS = flags.DEFINE_integer("scipy_starts", 60, "Starts for each of scipy's methods, 0.1 to 2 seconds each.")
OUR_STARTS = flags.DEFINE_integer("starts", 1024, "Starts for fit.")


def minpack(residuals, data):
    """(x) -> objective, by scipy's Levenberg-Marquardt with an exact Jacobian."""
    value = jax.jit(lambda x: residuals(x, data))
    slope = jax.jit(jax.jacfwd(lambda x: residuals(x, data)))

    def solve(x):
        options = dict(method="lm", ftol=1e-12, xtol=1e-12, gtol=1e-12, max_nfev=2000)
        try:
            return scipy.optimize.least_squares(
                lambda x: np.asarray(value(x)), x, lambda x: np.asarray(slope(x)), **options
            ).cost
        except ValueError:  # residuals that are not finite
            return np.inf

    return solve


def lbfgsb(residuals, data):
    """(x) -> objective, by scipy's L-BFGS-B with an exact gradient."""
    fun = jax.jit(jax.value_and_grad(lambda x: 0.5 * jnp.sum(residuals(x, data) ** 2)))
    options = dict(maxiter=10_000, maxfun=20_000, ftol=1e-15, gtol=1e-10)

    def solve(x):
        both = lambda x: [np.asarray(v) for v in fun(x)]
        return scipy.optimize.minimize(both, x, jac=True, method="L-BFGS-B", options=options).fun

    return solve


def timed(work):
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def ours(problem, starts):
    """Objectives of all starts, each polished to its end as fit does with its best ones. A first call compiles."""
    return search.polish(problem, starts, rounds=8, keep="each")[1]


def main(_):
    runs, joint = fit_coverage.simulate(0)[0], FORMS["joint"]
    problem = prepare(joint, runs)
    residuals, data = residual_function(joint), problem.data
    grid = joint.starts()
    grid = problem.centre(grid[np.random.default_rng(1).permutation(len(grid))[: OUR_STARTS.value]])
    scaled = joint.scaled_starts(np.random.default_rng(1), OUR_STARTS.value, runs)

    ours(problem, scaled[: search.BATCH])  # compile
    rows = {}
    for kind, starts in (("the paper's grid", grid), ("the measure of the runs", scaled)):
        rows["fit", kind] = timed(lambda: ours(problem, starts))
        for name, method in (("scipy lm", minpack), ("scipy L-BFGS-B", lbfgsb)):
            solve, some = method(residuals, data), starts[: SCIPY_STARTS.value]
            solve(scaled[0])  # compile
            rows[name, kind] = timed(lambda: np.array([solve(x) for x in some]))
    best = min(values.min() for values, _ in rows.values())
    print(f"best objective {best:.6e}; converged starts a second:")
    rate = {}
    for (name, kind), (values, seconds) in rows.items():
        hits = int(np.sum(values <= 1.01 * best))
        rate[name, kind] = hits / seconds
        print(f"  {name:15} from {kind:24} {hits:4d} of {len(values):4d} in {seconds:6.1f} s: {hits / seconds:8.2f}")
    for kind in ("the paper's grid", "the measure of the runs"):
        strongest = max(rate[name, kind] for name in ("scipy lm", "scipy L-BFGS-B"))
        times = f"{rate['fit', kind] / strongest:.1f} times" if strongest else "none of scipy's converged"
        print(f"fit against scipy's strongest, both from {kind}: {times}")
    with_compiling(problem)
    as_a_process(runs)


def with_compiling(problem):
    for name, starts in (("default search", problem.settings.starts), ("all 19,683 starts of the paper's grid", 0)):
        jax.clear_caches()
        found, seconds = timed(lambda: search.fit(prepare(problem.form, problem.runs, Settings(starts=starts))))
        print(
            f"{name}: {seconds:.1f} s with compiling, objective {found.objective:.6e}, "
            f"{np.mean(found.objectives <= 1.01 * found.objective):.0%} of the starts converged"
        )
    scatter = noise_of(problem, found.params)
    jax.clear_caches()
    _, seconds = timed(lambda: bootstrap(problem, found, 100, "errors", scatter))
    print(f"bootstrap of 100: {seconds:.1f} s with compiling")


def as_a_process(runs):
    with tempfile.TemporaryDirectory() as folder:
        path = fit_runs.write_csv(f"{folder}/runs.csv", runs)
        command = [sys.executable, "-m", "fit", "law", f"--runs={path}", f"--out={folder}/law.json"]
        env = os.environ | {"JMOE_CACHE": f"{folder}/cache"}
        for extra in ([], ["--bootstrap=100"]):
            for cache in ("empty", "full"):
                if cache == "empty":
                    subprocess.run(["rm", "-rf", f"{folder}/cache"], check=True)
                work = lambda: subprocess.run([*command, *extra], env=env, check=True, capture_output=True)
                print(f"fit law {' '.join(extra)} on {len(runs)} runs, cache {cache}: {timed(work)[1]:.1f} s")


if __name__ == "__main__":
    with jax.enable_x64(True):
        app.run(main)
