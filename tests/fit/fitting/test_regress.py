"""Fitting: the objective, recovery of known laws, published optima, hold-outs, uncertainty."""

import dataclasses
import json
import subprocess
import sys

import fit_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

import fit
from fit.errors import UserError
from fit.fitting import search, solvers, uncertainty
from fit.fitting.problem import Settings, prepare, residual_function
from fit.laws import FORMS
from fit.table.runs import held_out, subset

JOINT = FORMS["joint"]
TRUE = JOINT.to_params(fit_runs.TABLE_3)


@pytest.fixture(scope="module")
def noisy():
    """The paper's grid with noise, and the default fit to it."""
    runs = fit_runs.paper_runs(noise=0.002, seed=1)
    return runs, search.fit(prepare(JOINT, runs))


def numpy_objective(free, runs, settings, weights):
    """The objective as the docstring of fit/fitting/problem.py states it, in NumPy and scipy."""
    c = dict(zip(JOINT.names, np.asarray(JOINT.to_coefficients(free)), strict=True))
    r = np.log(fit_runs.joint_loss(runs.n_active, runs.n_tokens, runs.n_experts, c)) - np.log(runs.loss)
    losses = weights * scipy.special.huber(settings.huber_delta, r)
    total = losses.sum() if settings.reduction == "sum" else losses.mean()
    return total + settings.weight_decay / 2 * np.sum(np.square(free))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_objective_is_huber_with_weights_and_decay(reduction):
    runs, rng = fit_runs.paper_runs(noise=0.02), np.random.default_rng(0)
    settings = Settings(huber_delta=0.01, reduction=reduction, weight_decay=1e-5)
    weights = rng.uniform(0, 2, len(runs))
    problem = prepare(JOINT, dataclasses.replace(runs, weights=weights), settings)
    for scale in (0, 0.01, 0.3):
        free = TRUE + scale * rng.normal(size=11) * [1, 0.1, 0.1, 0.01, 1, 0.1, 0.1, 0.01, 0.1, 1, 0.1]
        assert fit_runs.objective(problem, free) == pytest.approx(
            numpy_objective(free, runs, settings, weights), rel=1e-9
        )


def test_gradient_is_exact_on_both_sides_of_delta():
    runs = fit_runs.paper_runs(noise=0.02)
    problem = prepare(JOINT, runs, Settings(huber_delta=0.01))
    residuals = residual_function(JOINT)
    x = problem.centre(TRUE[None])[0]

    def value(x):
        return float(0.5 * jnp.sum(residuals(x, problem.data) ** 2))

    gradient = np.asarray(jax.grad(lambda x: 0.5 * jnp.sum(residuals(x, problem.data) ** 2))(x))
    central = np.array([(value(x + h) - value(x - h)) / 2e-6 for h in 1e-6 * np.eye(11)])
    np.testing.assert_allclose(gradient, central, rtol=1e-4, atol=1e-6)


def test_no_local_search_improves_the_fit(noisy):
    """scipy, started at the optimum on the objective in NumPy, finds nothing better."""
    runs, found = noisy
    problem = prepare(JOINT, runs, Settings())
    residuals = residual_function(JOINT)
    fun = jax.jit(jax.value_and_grad(lambda x: 0.5 * jnp.sum(residuals(x, problem.data) ** 2)))
    x = problem.centre(found.params[None])[0]
    better = scipy.optimize.minimize(
        lambda x: [np.asarray(v) for v in fun(x)], x, jac=True, method="BFGS", options=dict(gtol=1e-12)
    )
    assert better.fun >= found.objective * (1 - 1e-6)
    assert found.objective == pytest.approx(fit_runs.objective(problem, found.params), rel=1e-9)
    assert found.coefficients["E_start"] < found.coefficients["E_max"]


def test_chinchilla_optimum_of_the_public_points():
    """Besiroglu et al. 2024: true minimum 1.018274e-3; coefficients within a tenth of their standard errors."""
    runs = fit_runs.chinchilla_runs()
    settings = Settings(huber_delta=1e-3)
    found = search.fit(prepare(FORMS["chinchilla"], runs, settings))
    assert len(runs) == 240 and found.objective <= 1.01828e-3
    optimum = dict(A=477.83, B=2143.4, E=1.81722, alpha=0.34731, beta=0.36717)
    errors = dict(A=124.52, B=1293.28, E=0.0257, alpha=0.0154, beta=0.0206)
    for name, value in found.coefficients.items():
        assert abs(value - optimum[name]) <= errors[name] / 10
    assert np.mean(found.objectives <= 1.01 * found.objective) > 0.9  # of 243 starts


def test_both_solvers_reach_the_same_objective():
    runs = fit_runs.chinchilla_runs()
    settings = Settings(huber_delta=1e-3, starts=2)
    lm = search.fit(prepare(FORMS["chinchilla"], runs, settings))
    problem = prepare(FORMS["chinchilla"], runs, dataclasses.replace(settings, solver="lbfgs"))
    starts = problem.centre(FORMS["chinchilla"].starts()[:2])
    _, values = search.search(problem, starts)
    converged = values[values <= 1.01 * lm.objective]
    assert len(converged) and converged.min() == pytest.approx(lm.objective, rel=1e-6)


def test_our_levenberg_marquardt_ends_where_jaxopts_does():
    """As from every start of a grid, so from a few: the same optimum, and the same objective after five steps."""
    runs = fit_runs.chinchilla_runs()
    problem = prepare(FORMS["chinchilla"], runs)
    starts = search.starts_of(problem, runs)[: search.FOLLOWED]

    def after(steps, grid):
        solve = solvers.least_squares(residual_function(problem.form), steps, grid)
        return search.run_batches(solve, starts, problem.data)

    (x, value, _), (our_x, our_value, _) = after(5, True), after(5, False)
    assert np.isfinite(value).all() and np.ptp(value) > 0
    np.testing.assert_allclose(our_value, value, rtol=1e-9)
    np.testing.assert_allclose(our_x, x, rtol=1e-7, atol=1e-9)
    best, ours = (after(search.STEPS * search.ROUNDS, grid)[1].min() for grid in (True, False))
    assert ours == pytest.approx(best, rel=1e-9)


def test_our_levenberg_marquardt_goes_on_where_a_step_leads_to_nothing_finite():
    """The first step from 4 is to 4 - 4 ln 4 = -1.5, where the logarithm is not a number; the optimum is 1."""

    def residuals(x, data):
        return jnp.log(x) * data["weight"]

    starts, data = jnp.array([[4.0], [0.5]]), {"weight": jnp.ones(1)}

    def solve(steps):
        return solvers.levenberg_marquardt(residuals, steps, starts, data)

    assert float(solve(1)[0][0, 0]) == 4
    x, objective, gradient = map(np.asarray, solve(100))
    np.testing.assert_allclose(x, 1)
    assert objective.max() < 1e-20 and gradient.max() < 1e-10


def test_a_law_is_fitted_where_jaxopt_does_not_import(tmp_path):
    """By the command, from a grid: equal coefficients, and law.json names no jaxopt. L-BFGS needs it."""
    runs, out = fit_runs.write_demo_csv(tmp_path / "runs.csv"), tmp_path / "law.json"
    command = ["law", f"--runs={runs}", "--form=chinchilla", "--bootstrap=0", f"--out={out}"]
    code = "import sys; sys.modules['jaxopt'] = None; from fit import __main__ as m; a = sys.argv[1:]; "
    code += "assert m.run(a) == 0; sys.exit(m.run([*a, '--solver=paper']))"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert done.returncode == 2 and "--solver=paper needs the package jaxopt" in done.stderr, done.stderr
    theirs, ours = fit.law(runs, "chinchilla", bootstrap=0).to_dict(), json.loads(out.read_text())
    assert "jaxopt" in theirs["versions"] and "jaxopt" not in ours["versions"]
    assert ours["coefficients"] == pytest.approx(theirs["coefficients"], rel=1e-6)
    assert ours["objective"] == pytest.approx(theirs["objective"], rel=1e-10)


def test_holdout_rules():
    runs = fit_runs.paper_runs(noise=0.002)
    out = held_out(runs, "lowest-loss:30")
    assert out.sum() == 30 and runs.loss[out].max() <= runs.loss[~out].min()
    compute = runs.n_active * runs.n_tokens
    out = held_out(runs, "largest-compute:20%")
    assert out.sum() == 54 and compute[out].min() >= compute[~out].max()
    runs.table.columns["split"] = ["validation" if i < 7 else "train" for i in range(len(runs))]
    assert held_out(runs, "column:split").nonzero()[0].tolist() == list(range(7))
    for rule, words in (
        ("lowest-loss:0", "0 of 270"),
        ("largest-compute:100%", "270 of 270"),
        ("column:fold", "column fold"),
    ):
        with pytest.raises(UserError, match=words):
            held_out(runs, rule)


def test_separate_laws_bound_the_joint_law(noisy):
    """Sec. 5.2: a law for each number of experts can emulate the joint one, so its objective on the fit is no worse."""
    runs, found = noisy
    settings = Settings()
    alone = uncertainty.separate(prepare(JOINT, runs, settings))
    assert set(alone) == {"1", "2", "4", "8", "16", "32"}
    law = FORMS["chinchilla"]
    problem = prepare(law, runs, settings)
    total = 0.0
    for e, fitted in alone.items():
        part = problem.part(np.flatnonzero(runs.n_experts == float(e)))
        total += fit_runs.objective(part, law.to_params(fitted["coefficients"]))
    assert total <= found.objective


def test_too_few_runs_are_refused():
    runs = fit_runs.paper_runs()
    with pytest.raises(UserError, match="1 distinct run to fit"):
        search.fit(prepare(JOINT, subset(runs, np.zeros(50, int))))
    dense = subset(runs, runs.n_experts == 1)
    with pytest.raises(UserError, match="column n_experts"):
        search.fit(prepare(JOINT, dense))
