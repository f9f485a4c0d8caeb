"""How fast is the search? A comparison with scipy, one start after another, on the same problem.

    python -m benchmarks.fit_speed [--scipy_starts=60]

All fit the joint law to the paper's 270-run grid, with losses from the published law and 0.2% of noise. All have the
same objective in float64, compiled residuals with exact gradient or Jacobian, and centred columns. scipy's strongest is
MINPACK's Levenberg-Marquardt (`least_squares(method="lm")`); L-BFGS-B is what most fitting scripts use. Starts come
from random rows of the paper's grid, and from the measure of the runs (fit's default). A start has converged if its
objective is within 1% of the best of all. The times that a user sees follow: the default search, the paper's whole grid
and a bootstrap of 100, with compiling, and `python -m fit law` as a process, with an empty cache of compiled programs
and with a full one. About 5 minutes on 2 cores.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads only slow down scipy's small matrices

import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

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
from fit.fitting.problem import Problem, Settings, prepare, residual_function
from fit.laws import FORMS
from fit.table.runs import Runs

SCIPY_STARTS = flags.DEFINE_integer("scipy_starts", 60, "Number of starts of 0.1 to 2 seconds for each scipy method.")
OUR_STARTS = flags.DEFINE_integer("starts", 1024, "Number of starts for fit.")


Residuals = Callable[[jax.Array, Any], jax.Array]  # (coefficients, data) -> residuals
Solver = Callable[[np.ndarray], float]  # from a start to the objective


def minpack(residuals: Residuals, data: Any) -> Solver:
    """Returns a solver by scipy's Levenberg-Marquardt with an exact Jacobian."""
    value = jax.jit(lambda x: residuals(x, data))
    jacobian = jax.jit(jax.jacfwd(lambda x: residuals(x, data)))

    def solve(x: np.ndarray) -> float:
        options = dict(method="lm", ftol=1e-12, xtol=1e-12, gtol=1e-12, max_nfev=2000)
        try:
            return scipy.optimize.least_squares(
                lambda x: np.asarray(value(x)), x, lambda x: np.asarray(jacobian(x)), **options
            ).cost
        except ValueError:  # residuals that are not finite
            return np.inf

    return solve


def lbfgsb(residuals: Residuals, data: Any) -> Solver:
    """Returns a solver by scipy's L-BFGS-B with an exact gradient."""
    objective = jax.jit(jax.value_and_grad(lambda x: 0.5 * jnp.sum(residuals(x, data) ** 2)))
    options = dict(maxiter=10_000, maxfun=20_000, ftol=1e-15, gtol=1e-10)

    def value_and_gradient(x: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(v) for v in objective(x)]

    def solve(x: np.ndarray) -> float:
        return scipy.optimize.minimize(value_and_gradient, x, jac=True, method="L-BFGS-B", options=options).fun

    return solve


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Returns the result of work(), and the seconds that it took."""
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def ours(problem: Problem, starts: np.ndarray) -> np.ndarray:
    """Returns the objectives of all starts, polished as fit polishes its best ones. A first call compiles."""
    return search.polish(problem, starts, rounds=8, keep="each")[1]


def main(_: object) -> None:
    """Prints converged starts per second of each method, and the times that a user sees."""
    runs, _ = fit_coverage.simulate(0)
    joint = FORMS["joint"]
    problem = prepare(joint, runs)
    residuals = residual_function(joint)
    data = problem.data
    grid = joint.starts()
    grid = problem.centre(grid[np.random.default_rng(1).permutation(len(grid))[: OUR_STARTS.value]])
    scaled = joint.scaled_starts(np.random.default_rng(1), OUR_STARTS.value, runs)

    ours(problem, scaled[: search.BATCH])  # compile
    rows = {}
    for kind, starts in (("the paper's grid", grid), ("the measure of the runs", scaled)):
        rows["fit", kind] = timed(lambda starts=starts: ours(problem, starts))
        for name, method in (("scipy lm", minpack), ("scipy L-BFGS-B", lbfgsb)):
            solve = method(residuals, data)
            solve(scaled[0])  # compile
            rows[name, kind] = timed(lambda solve=solve, starts=starts: solve_all(solve, starts))
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


def solve_all(solve: Solver, starts: np.ndarray) -> np.ndarray:
    """Returns the objectives of the first SCIPY_STARTS starts."""
    return np.array([solve(start) for start in starts[: SCIPY_STARTS.value]])


def with_compiling(problem: Problem) -> None:
    """Prints the seconds of searches and of a bootstrap, with compiling."""
    for name, starts in (("default search", problem.settings.starts), ("all 19,683 starts of the paper's grid", 0)):
        jax.clear_caches()
        settings = Settings(starts=starts)
        result, seconds = timed(lambda settings=settings: search.fit(prepare(problem.form, problem.runs, settings)))
        print(
            f"{name}: {seconds:.1f} s with compiling, objective {result.objective:.6e}, "
            f"{np.mean(result.objectives <= 1.01 * result.objective):.0%} of the starts converged"
        )
    scatter = noise_of(problem, result.params)
    jax.clear_caches()
    _, seconds = timed(lambda: bootstrap(problem, result, 100, "errors", scatter))
    print(f"bootstrap of 100: {seconds:.1f} s with compiling")


def as_a_process(runs: Runs) -> None:
    """Prints the seconds of `python -m fit law`, with an empty and with a full cache of compiled programs."""
    with tempfile.TemporaryDirectory() as folder:
        path = fit_runs.write_csv(f"{folder}/runs.csv", runs)
        command = [sys.executable, "-m", "fit", "law", f"--runs={path}", f"--out={folder}/law.json"]
        env = os.environ | {"JMOE_CACHE": f"{folder}/cache"}
        for extra in ([], ["--bootstrap=100"]):
            for cache in ("empty", "full"):
                if cache == "empty":
                    subprocess.run(["rm", "-rf", f"{folder}/cache"], check=True)
                run = functools.partial(subprocess.run, [*command, *extra], env=env, check=True, capture_output=True)
                _, seconds = timed(run)
                print(f"fit law {' '.join(extra)} on {len(runs)} runs, cache {cache}: {seconds:.1f} s")


if __name__ == "__main__":
    with jax.enable_x64(True):
        app.run(main)
