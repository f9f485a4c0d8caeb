"""How sure a fit is: profile intervals, noise of runs and trunks, bootstrap, prediction intervals."""

import dataclasses

import fit_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.parts import WAYS_OF_DRAWING, Scatter
from fit.fitting import intervals, noise, search
from fit.fitting.intervals import bootstrap, profile
from fit.fitting.problem import Settings, prepare, residual_function
from fit.fitting.uncertainty import not_identified, outlook_of
from fit.laws import FORMS
from fit.table.runs import subset, trunks_of
from fit.table.table import Table

JOINT = FORMS["joint"]


@pytest.fixture(scope="module")
def noisy():
    """The paper's grid with noise, the default fit to it, its noise and its standard errors."""
    problem = prepare(JOINT, fit_runs.paper_runs(noise=0.002, seed=4))
    found = search.fit(problem)
    scatter = noise.noise_of(problem, found.params)
    return problem, found, scatter, noise.standard_errors(problem, found, scatter)


@pytest.fixture(scope="module")
def shared():
    """Runs of 12 trunks that share 1% of error, with 0.3% of each run's own; and the fit to them."""
    runs = fit_runs.sweep_runs(noise=0.003, trunk=0.01, seed=2)
    runs = dataclasses.replace(runs, trunks=trunks_of(runs.table)[0])
    problem = prepare(JOINT, runs, Settings(weight_decay=1e-6))
    return problem, search.fit(problem)


def losses(draws, ln_n, ln_d, n_experts):
    """ln of the losses [draws, models] of the joint law with coefficients [draws, n]."""
    free = JOINT.to_params(dict(zip(JOINT.names, draws.T, strict=True)))[:, :, None]
    return fit_runs.log_loss("joint", free, ln_n, ln_d, n_experts)


def test_profile_of_the_public_points():
    """The interval of E on Hoffmann et al.'s points, as solving for both ends gives it."""
    problem = prepare(FORMS["chinchilla"], fit_runs.chinchilla_runs(), Settings(huber_delta=1e-3))
    found = search.fit(problem)
    p = profile(problem, found, {"E": 0.0257})["E"]
    assert (p["low"], p["high"]) == pytest.approx((1.7885, 1.8433), abs=1e-4)
    blind = profile(problem, found, {"E": 1e-3})["E"]  # however bad the first guess
    assert (blind["low"], blind["high"]) == pytest.approx((1.7885, 1.8433), abs=1e-4)
    of_sample = profile(dataclasses.replace(problem, sample_of=4 * 240), found, {"E": 0.0257})["E"]
    assert of_sample["high"] - of_sample["low"] == pytest.approx((1.8433 - 1.7885) / 2, rel=0.1)


def test_profile_ends_where_the_ratio_does(noisy):
    """At each end the coefficient costs n ln(S / S_best) = 1.642, found again with scipy holding it there."""
    problem, found, _, errors = noisy
    profiles = profile(problem, found, errors)
    residuals, data = residual_function(JOINT), problem.data
    x = np.array(problem.centre(found.params[None])[0])
    for end in (profiles["c"]["low"], profiles["c"]["high"]):

        def objective(y, end=end):
            return 0.5 * jnp.sum(residuals(jnp.append(y, np.log(end)), data) ** 2)

        value_and_grad = jax.jit(jax.value_and_grad(objective))
        held = scipy.optimize.minimize(
            lambda y, value_and_grad=value_and_grad: [np.asarray(v) for v in value_and_grad(y)],
            x[:10],
            jac=True,
            method="BFGS",
            options=dict(gtol=1e-10, maxiter=3000),
        )
        assert len(problem) * np.log(held.fun / found.objective) == pytest.approx(1.642, abs=0.02)


def test_a_coefficient_that_runs_away_is_unbounded_with_its_lower_end():
    """With 1, 2 and 4 experts only, nothing keeps E_max from above."""
    runs = fit_runs.paper_runs(noise=0.002, seed=5)
    problem = prepare(JOINT, subset(runs, runs.n_experts <= 4), Settings(starts=64))
    found = search.fit(problem)
    scatter = noise.noise_of(problem, found.params)
    profiles = profile(problem, found, noise.standard_errors(problem, found, scatter))
    assert profiles["E_max"]["high"] is None and 0 < profiles["E_max"]["low"] < 290
    (said,) = [each for each in not_identified(problem, found, profiles, scatter) if each.values.get("name") == "E_max"]
    assert "unbounded above, anything from " in str(said) and "n_experts = 32" in said.values["what"]


def test_standard_errors_are_those_of_scipy(noisy):
    problem, found, scatter, errors = noisy
    runs = problem.runs

    def residuals(c):
        return JOINT.log_loss(JOINT.to_params(dict(zip(JOINT.names, c, strict=True))), runs.columns) - np.log(runs.loss)

    c = np.array(list(found.coefficients.values()))
    jacobian = np.stack(
        [(residuals(c + h) - residuals(c - h)) / 2e-6 for h in np.diag(1e-6 * np.abs(c))], axis=1
    ) / np.abs(c)
    _, singular, rotation = np.linalg.svd(jacobian * np.abs(c), full_matrices=False)
    expected = np.abs(c) * np.sqrt(np.sum((rotation / singular[:, None]) ** 2, axis=0)) * scatter.total
    np.testing.assert_allclose(list(errors.values()), expected, rtol=1e-2)


def test_runs_have_as_many_errors_as_they_outnumber_the_coefficients(noisy):
    """Of a fit without weights: runs minus coefficients, as of any linear regression."""
    problem, found, _, _ = noisy
    unclipped = problem.with_data(delta=1.0)
    freedom, _ = noise.noise_of(unclipped, found.params, shared=False).degrees_of_freedom
    assert freedom == pytest.approx(len(problem) - len(JOINT.names), rel=1e-3)


def test_a_trunk_of_one_run_errs_as_the_run_does(noisy):
    """Where each run is a trunk of its own, it makes no difference whose error it is called."""
    problem, found, scatter, errors = noisy
    alone = dataclasses.replace(problem, runs=dataclasses.replace(problem.runs, trunks=np.arange(len(problem))))
    of_trunks = noise.Noise(0.0, scatter.total, (1.0, scatter.freedom))
    assert noise.standard_errors(alone, found, of_trunks) == pytest.approx(errors)


def test_drawn_errors_have_the_tails_of_students_t():
    """As their size was estimated from three errors; runs of a trunk share theirs."""
    beyond = scipy.stats.t.ppf(0.975, 3)
    for scatter in (noise.Noise(0.01, 0.0, (3.0, 50.0)), noise.Noise(0.0, 0.01, (50.0, 3.0))):
        one, other, apart = scatter.draw(np.random.default_rng(0), 20_000, np.array([0, 0, 1])).T
        assert np.mean(np.abs(one) > 0.01 * beyond) == pytest.approx(0.05, abs=0.008)
        assert np.array_equal(one, other) == (scatter.trunk > 0) and not np.array_equal(one, apart)


def test_so_many_runs_are_drawn():
    """Single runs: fewer by the coefficients. Trunks: as many as there are, whole. By the paper's way: 80%, once."""
    rng = np.random.default_rng(0)
    singly = intervals._counts(rng, np.arange(30), 50, "replacement", 11)
    assert (singly.sum(axis=1) == 30 - 11).all() and singly.max() > 1
    trunks = intervals._counts(rng, np.repeat(np.arange(10), 3), 50, "replacement", 11)
    assert (trunks[:, ::3].sum(axis=1) == 10).all() and (trunks[:, ::3] == trunks[:, 1::3]).all()
    paper = intervals._counts(rng, np.arange(30), 50, "paper", 11)
    assert (paper.sum(axis=1) == 24).all() and paper.max() == 1


def test_noise_is_told_apart():
    """Of the run and of its trunk, on the paper's grid: each size in shares of what was put in; none shared, none
    found."""
    runs = fit_runs.paper_runs()
    labels = np.unique(np.stack([runs.n_active, runs.n_experts]), axis=1, return_inverse=True)[1].ravel()
    problem, true = prepare(JOINT, dataclasses.replace(runs, trunks=labels)), JOINT.to_params(fit_runs.TABLE_3)
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for trunk in (0.002, 0.0):
            error = trunk * rng.normal(size=labels.max() + 1)[labels] + 0.001 * rng.normal(size=len(runs))
            # residuals of a fit that follows the errors as far as a law can
            _, jacobian = noise.sensitivity(problem, true)
            residual = error - jacobian @ np.linalg.lstsq(jacobian, error, rcond=None)[0]
            y = problem.padded(np.log(runs.loss) + residual)
            n = noise.noise_of(problem.with_data(log_loss=y, delta=1.0), true)
            found.append((n.run, n.trunk))
    shared, alone = np.mean(np.square(found[::2]), axis=0), np.mean(np.square(found[1::2]), axis=0)
    assert np.sqrt(shared) == pytest.approx([0.001, 0.002], rel=0.1)
    assert np.sqrt(alone[0]) == pytest.approx(0.001, rel=0.1) and np.sqrt(alone[1]) < 3e-4


BRANCHES = ["jobs/a/branch-1", "jobs/a/branch-2", "jobs/b/branch-1", "jobs/b/branch-2"]
SAME = dict(run=list("abcd"), n_active=[1, 1, 1, 2], seed=[0, 0, 1, 0], config=["c"] * 4)


@pytest.mark.parametrize(
    "columns, groups, words",
    [
        (dict(run=BRANCHES), [0, 0, 1, 1], "trunks (column run)"),
        (SAME, [0, 0, 1, 2], "trunks (same n_active, seed, config)"),
        (dict(n_active=[1, 1, 1, 2]), None, "runs"),
        (dict(run=[f"jobs/{i}/branch-1" for i in range(4)]), None, "runs"),
    ],
)
def test_trunks_follow_from_the_table(columns, groups, words):
    table = Table("runs.csv", dict(columns), [2, 3, 4, 5])
    labels, said = trunks_of(table)
    assert said == words and (labels is None if groups is None else labels.tolist() == groups)
    assert trunks_of(table, "row") == (None, "runs")
    table.columns["batch"] = ["x", "y", "x", "y"]
    assert trunks_of(table, "batch")[0].tolist() == [0, 1, 0, 1]
    with pytest.raises(UserError, match="^bootstrap_by=fold: expected trunk, row, or one of the columns"):
        trunks_of(table, "fold")


@pytest.mark.parametrize("how", ["errors", "replacement"])
def test_runs_three_times_over_tell_no_more(how):
    """Each run stands there three times: taken as groups they spread as before, row by row they look sqrt(3) times
    surer."""
    once, settings = fit_runs.sweep_runs(noise=0.01, seed=3), Settings(weight_decay=1e-6)
    runs, labels = subset(once, np.repeat(np.arange(len(once)), 3)), np.repeat(np.arange(len(once)), 3)
    found = search.fit(prepare(JOINT, runs, settings))
    spread = []
    for groups in (None, labels):
        problem = prepare(JOINT, dataclasses.replace(runs, trunks=groups), settings)
        draws = bootstrap(problem, found, 64, how, noise.noise_of(problem, found.params))
        spread.append(np.std(losses(draws, np.log([5e4]), np.log([1e6]), np.array([2.0]))))
    assert 1.3 < spread[1] / spread[0] < 2.3


def test_draws_lie_around_the_fit(noisy):
    """And the paper's form, 80% without replacement, is about half as wide (sqrt(.2 / .8))."""
    problem, found, scatter, _ = noisy
    points, spread = (np.log([3e8, 1e9]), np.log([8e9, 4e10]), np.array([1.0, 16.0])), {}
    for how in WAYS_OF_DRAWING:
        predicted = losses(bootstrap(problem, found, 48, how, scatter), *points)
        spread[how] = predicted.std(axis=0)
        best = fit_runs.log_loss("joint", found.params, *points)
        assert np.all(np.abs(predicted.mean(axis=0) - best) < 3 * spread[how])
    ratio = spread["paper"] / spread["replacement"]
    assert np.all(ratio > 0.3) and np.all(ratio < 0.8)
    assert np.all(np.abs(np.log(spread["errors"] / spread["replacement"])) < np.log(1.6))


def test_draws_from_a_sample_spread_as_those_of_all_runs(shared):
    """Told that there are four times as many runs, the fits spread half as wide."""
    problem, found = shared
    scatter, at = noise.noise_of(problem, found.params), (np.log([4e4]), np.log([8e5]), np.array([2.0]))
    all_runs, part = (
        losses(bootstrap(dataclasses.replace(problem, sample_of=count), found, 64, "errors", scatter), *at)
        for count in (len(problem), 4 * len(problem))
    )
    assert np.std(all_runs) / np.std(part) == pytest.approx(2, rel=0.3)


def test_a_new_run_has_noise_of_its_own():
    """A law that is exactly known: the interval of a new run is the noise's; a noise of nothing leaves the law's
    own."""

    def interval(spreads, noise, new_run=True):
        rows = [list((fit_runs.CHINCHILLA | dict(E=1.8172 * (1 + spread))).values()) for spread in spreads]
        known = dict(bootstrap=fit_runs.bootstrap(rows), noise=Scatter(total=noise))
        law = Law("made", FORMS["chinchilla"], fit_runs.CHINCHILLA, **known)
        return law.predict_interval(1e9, 2e10, 1, new_run=new_run)

    low, high = interval(np.zeros(99), 0.02)
    assert np.log(high / low) == pytest.approx(2 * 1.2816 * 0.02, rel=0.06)
    low, high = interval(np.zeros(99), 0.02, new_run=False)
    assert low == pytest.approx(high)
    own = np.linspace(-0.05, 0.05, 99)
    np.testing.assert_allclose(interval(own, 0.0), interval(own, 0.0, new_run=False), rtol=1e-3)


@given(st.floats(0, 3), st.floats(0, 3))
def test_more_runs_are_promised_to_help_only_where_they_do(now, then):
    """An error of 4% that runs would bring to 63% is none that this fit knows."""
    assert (outlook_of(now, then) == "not_identified_yet") == (then <= min(1, 0.95 * now))
    assert outlook_of(0.04, 0.63) == "not_identified_open"
