"""How sure a fit is: profile intervals, noise of runs and trunks, bootstrap, prediction intervals."""

import fit_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from fit import UserError, bootstrap, lawfile, profile, regress, trunks, uncertainty
from fit import noise as noise_lib
from fit import runs as runs_lib
from fit.laws import chinchilla, joint


@pytest.fixture(scope="module", autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def noisy():
    """The paper's grid with noise, the default fit to it, its noise and its standard errors."""
    runs, settings = fit_runs.paper_runs(noise=0.002, seed=4), regress.Settings()
    found = regress.fit("joint", runs, quiet=True)
    noise = noise_lib.noise("joint", found.free, regress.prepared("joint", runs, settings), len(runs))
    return runs, found, noise, uncertainty.standard_errors("joint", runs, settings, None, found, noise)


@pytest.fixture(scope="module")
def shared():
    """Runs of 12 trunks that share 1% of error, with 0.3% of each run's own; and the fit to them."""
    runs, settings = fit_runs.sweep_runs(noise=0.003, trunk=0.01, seed=2), regress.Settings(weight_decay=1e-6)
    return runs, settings, regress.fit("joint", runs, settings, quiet=True)


def test_profile_of_the_public_points():
    """The interval of E on Hoffmann et al.'s points, as solving for both ends gives it."""
    runs, settings = fit_runs.chinchilla_runs(), regress.Settings(huber_delta=1e-3)
    found = regress.fit("chinchilla", runs, settings, quiet=True)
    p = profile.profile("chinchilla", runs, settings, None, found, {"E": 0.0257})["E"]
    assert (p["low"], p["high"]) == pytest.approx((1.7885, 1.8433), abs=1e-4)
    blind = profile.profile("chinchilla", runs, settings, None, found, {"E": 1e-3})["E"]  # however bad the first guess
    assert (blind["low"], blind["high"]) == pytest.approx((1.7885, 1.8433), abs=1e-4)


def test_profile_ends_where_the_ratio_does(noisy):
    """At each end the coefficient costs n ln(S / S_best) = 1.642, found again with scipy holding it there."""
    runs, found, _, errors = noisy
    settings, data = regress.Settings(), regress.prepare(runs, regress.Settings())
    profiles = profile.profile("joint", runs, settings, None, found, errors)
    residuals = regress.residual_function("joint")
    x = np.array(joint.recentre(found.free, data["shift_n"], data["shift_d"]))
    for end in (profiles["c"]["low"], profiles["c"]["high"]):
        fun = jax.jit(jax.value_and_grad(lambda y: 0.5 * jnp.sum(residuals(jnp.append(y, np.log(end)), data) ** 2)))
        held = scipy.optimize.minimize(
            lambda y: [np.asarray(v) for v in fun(y)],
            x[:10],
            jac=True,
            method="BFGS",
            options=dict(gtol=1e-10, maxiter=3000),
        )
        assert len(runs) * np.log(held.fun / found.objective) == pytest.approx(1.642, abs=0.02)


def test_a_coefficient_that_runs_away_is_unbounded_with_its_lower_end():
    """With 1, 2 and 4 experts only, nothing keeps E_max from above."""
    runs = fit_runs.paper_runs(noise=0.002, seed=5)
    few, settings = runs_lib.subset(runs, runs.n_experts <= 4), regress.Settings(starts=64)
    found = regress.fit("joint", few, settings, quiet=True)
    noise = noise_lib.noise("joint", found.free, regress.prepared("joint", few, settings), len(few))
    errors = uncertainty.standard_errors("joint", few, settings, None, found, noise)
    profiles = profile.profile("joint", few, settings, None, found, errors)
    assert profiles["E_max"]["high"] is None and 0 < profiles["E_max"]["low"] < 290
    (said,) = [w for w in uncertainty.warnings("joint", few, settings, None, found, profiles, noise) if "E_max" in w]
    assert "unbounded above, anything from " in said and "n_experts = 32" in said


def test_standard_errors_are_those_of_scipy(noisy):
    runs, found, noise, errors = noisy
    columns = np.log(runs.n_active), np.log(runs.n_tokens), runs.n_experts

    def residuals(c):
        return np.asarray(joint.log_loss(joint.to_free(dict(zip(joint.COEFFICIENTS, c))), *columns)) - np.log(runs.loss)

    c = np.array(list(found.coefficients.values()))
    jacobian = np.stack(
        [(residuals(c + h) - residuals(c - h)) / 2e-6 for h in np.diag(1e-6 * np.abs(c))], axis=1
    ) / np.abs(c)
    _, singular, rotation = np.linalg.svd(jacobian * np.abs(c), full_matrices=False)
    expected = np.abs(c) * np.sqrt(np.sum((rotation / singular[:, None]) ** 2, axis=0)) * noise.total
    np.testing.assert_allclose(list(errors.values()), expected, rtol=1e-2)


def test_noise_is_told_apart():
    """Of the run and of its trunk, on the paper's grid: each size in shares of what was put in; none shared, none
    found."""
    runs, settings = fit_runs.paper_runs(), regress.Settings()
    labels = np.unique(np.stack([runs.n_active, runs.n_experts]), axis=1, return_inverse=True)[1].ravel()
    data, true = regress.prepared("joint", runs, settings), joint.to_free(fit_runs.TABLE_3)
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for trunk in (0.002, 0.0):
            error = trunk * rng.normal(size=labels.max() + 1)[labels] + 0.001 * rng.normal(size=len(runs))
            # residuals of a fit that follows the errors as far as a law can
            _, jacobian = noise_lib.sensitivity("joint", true, data, len(runs))
            residual = error - jacobian @ np.linalg.lstsq(jacobian, error, rcond=None)[0]
            y = np.pad(np.log(runs.loss) + residual, (0, len(data["log_loss"]) - len(runs)))
            n = noise_lib.noise("joint", true, data | {"log_loss": y, "delta": 1.0}, len(runs), labels)
            found.append((n.run, n.trunk))
    shared, alone = np.mean(np.square(found[::2]), axis=0), np.mean(np.square(found[1::2]), axis=0)
    assert np.sqrt(shared) == pytest.approx([0.001, 0.002], rel=0.1)
    assert np.sqrt(alone[0]) == pytest.approx(0.001, rel=0.1) and np.sqrt(alone[1]) < 3e-4


@pytest.mark.parametrize("columns, groups, words", [
    (dict(run=["a/branch-1", "a/branch-2", "b/branch-1", "b/branch-2"]), [0, 0, 1, 1], "trunks (column run)"),
    (dict(run=list("abcd"), n_active=[1, 1, 1, 2], seed=[0, 0, 1, 0], config=["c"] * 4), [0, 0, 1, 2],
     "trunks (same n_active, seed, config)"),
    (dict(n_active=[1, 1, 1, 2]), None, "runs"),
    (dict(run=[f"jobs/{i}/branch-1" for i in range(4)]), None, "runs"),
])  # fmt: skip
def test_trunks_are_told_by_the_table(columns, groups, words):
    table = runs_lib.Table("runs.csv", columns, [2, 3, 4, 5])
    labels, said = trunks.trunks_of(table)
    assert said == words and (labels is None if groups is None else labels.tolist() == groups)
    assert trunks.trunks_of(table, "row") == (None, "runs")
    table.columns["batch"] = ["x", "y", "x", "y"]
    assert trunks.trunks_of(table, "batch")[0].tolist() == [0, 1, 0, 1]
    with pytest.raises(UserError, match="--bootstrap_by=fold: expected trunk, row, or one of the columns"):
        trunks.trunks_of(table, "fold")


@pytest.mark.parametrize("how", ["errors", "replacement"])
def test_runs_three_times_over_tell_no_more(how):
    """Each run stands there three times: taken as groups they spread as before, row by row they look sqrt(3) times
    surer."""
    once, settings = fit_runs.sweep_runs(noise=0.01, seed=3), regress.Settings(weight_decay=1e-6)
    runs, labels = runs_lib.subset(once, np.repeat(np.arange(len(once)), 3)), np.repeat(np.arange(len(once)), 3)
    found = regress.fit("joint", runs, settings, quiet=True)
    data = regress.prepared("joint", runs, settings)
    spread = []
    for groups in (None, labels):
        noise = noise_lib.noise("joint", found.free, data, len(runs), groups)
        draws = bootstrap.bootstrap("joint", runs, settings, None, found, 64, how, noise, groups)
        free = np.stack([joint.to_free(dict(zip(joint.COEFFICIENTS, row))) for row in draws], axis=1)[:, :, None]
        spread.append(np.std(joint.log_loss(free, np.log([5e4]), np.log([1e6]), np.array([2.0]))))
    assert 1.3 < spread[1] / spread[0] < 2.3


def test_draws_lie_around_the_fit(noisy):
    """And the paper's form, 80% without replacement, is about half as wide (sqrt(.2 / .8))."""
    runs, found, noise, _ = noisy
    points, spread = (np.log([3e8, 1e9]), np.log([8e9, 4e10]), np.array([1.0, 16.0])), {}
    for how in bootstrap.FORMS_OF_DRAWING:
        draws = bootstrap.bootstrap("joint", runs, regress.Settings(), None, found, 48, how, noise)
        free = np.stack([joint.to_free(dict(zip(joint.COEFFICIENTS, row))) for row in draws])
        predicted = np.stack([joint.log_loss(f, *points) for f in free])
        spread[how] = predicted.std(axis=0)
        assert np.all(np.abs(predicted.mean(axis=0) - joint.log_loss(found.free, *points)) < 3 * spread[how])
    ratio = spread["paper"] / spread["replacement"]
    assert np.all(ratio > 0.3) and np.all(ratio < 0.8)
    assert np.all(np.abs(np.log(spread["errors"] / spread["replacement"])) < np.log(1.6))


def test_draws_from_a_sample_spread_as_those_of_all_runs(shared):
    """Told that there are four times as many runs, the fits spread half as wide."""
    runs, settings, found = shared
    labels = trunks.trunks_of(runs.table)[0]
    noise = noise_lib.noise("joint", found.free, regress.prepared("joint", runs, settings), len(runs), labels)
    whole, part = (
        bootstrap.bootstrap("joint", runs, settings, None, found, 64, "errors", noise, labels, count)
        for count in (None, 4 * len(runs))
    )
    whole, part = (
        np.stack([joint.to_free(dict(zip(joint.COEFFICIENTS, row))) for row in draws], axis=1)[:, :, None]
        for draws in (whole, part)
    )
    at = np.log([4e4]), np.log([8e5]), np.array([2.0])
    assert np.std(joint.log_loss(whole, *at)) / np.std(joint.log_loss(part, *at)) == pytest.approx(2, rel=0.3)


def law_with_draws(draws, noise):
    c = dict(A=482.01, B=2085.43, E=1.8172, alpha=0.3478, beta=0.3658)
    rows = [[c[name] * (1 + spread if name == "E" else 1) for name in chinchilla.COEFFICIENTS] for spread in draws]
    record = dict(bootstrap=dict(draws=rows, percentiles=[10, 90], form="errors"), noise=dict(total=noise))
    return lawfile.FittedLaw("made", "chinchilla", c, record)


def test_a_new_run_has_noise_of_its_own():
    """A law that is exactly known: the interval of a new run is the noise's; a noise of nothing leaves the law's
    own."""
    law = law_with_draws(np.zeros(99), 0.02)
    low, high = law.predict_interval(1e9, 2e10, 1, new_run=True)
    assert np.log(high / low) == pytest.approx(2 * 1.2816 * 0.02, rel=0.06)
    low, high = law.predict_interval(1e9, 2e10, 1)
    assert low == pytest.approx(high)
    law = law_with_draws(np.linspace(-0.05, 0.05, 99), 0.0)
    np.testing.assert_allclose(
        law.predict_interval(1e9, 2e10, 1, new_run=True), law.predict_interval(1e9, 2e10, 1), rtol=1e-3
    )
    n = np.geomspace(1e8, 1e10, 5000)
    low, high = law_with_draws(np.linspace(-0.05, 0.05, 20), 0.02).predict_interval(n, 20 * n, 1, new_run=True)
    assert low.shape == (5000,) and np.all(low < law.predict(n, 20 * n, 1)) and np.all(high > law.predict(n, 20 * n, 1))
