"""The prior of other sweeps' exponents, where it counts and where it yields, and draws of both forms."""

import fit_runs
import numpy as np
import pytest
import scipy.optimize

import fit
from benchmarks import extrapolation
from fit.errors import UserError
from fit.fitting import fitting, population
from fit.fitting.noise import noise_of, standard_errors
from fit.fitting.problem import Settings
from fit.form import Prior
from fit.laws import FORMS
from fit.planning.search import best_size
from fit.studies.added_runs import refit
from fit.table.runs import read_runs
from fit.table.table import Table

JOINT, COUPLED, DENSE = FORMS["joint"], FORMS["joint_coupled"], FORMS["chinchilla_coupled"]


def test_mean_and_covariance_by_hand(monkeypatch):
    """Of two sources: the mean of logarithms; (1 + 1/2) (guess + scatter) / (1 + 2 - 1)."""
    laws = {
        "a": dict(alpha=0.5, beta=0.4, k=0.5),
        "b": dict(alpha=0.8, beta=0.4, k=0.25),
        "c": dict(alpha=9, beta=9, k=0.9),
    }
    monkeypatch.setattr(population, "sources", lambda: {name: dict(coupled=law) for name, law in laws.items()})
    mean, covariance = population.moments("coupled", left_out="c")
    assert mean == pytest.approx([(np.log(0.5) + np.log(0.8)) / 2, np.log(0.4), np.log(3) / 2])
    half = np.array([-np.log(0.8 / 0.5) / 2, 0, -np.log(3) / 2])
    scatter = 2 * np.outer(half, half)
    expected = 1.5 * (np.diag(np.square(population.GUESSED[:3])) + scatter) / 2
    np.testing.assert_allclose(covariance, expected, rtol=1e-12)


def test_the_file_has_each_source_of_the_bench_and_plain_exponents():
    sources = population.sources()
    assert sources.keys() == extrapolation.SOURCES.keys() and len(sources) >= 6
    for source in sources.values():
        assert source["reference"] and source["tables"] and source["runs"] > 0
        for kind in ("additive", "coupled"):
            assert 0.1 < source[kind]["alpha"] < 2 and 0.1 < source[kind]["beta"] < 2
        assert 0.1 < source["coupled"]["k"] < 1


@pytest.mark.parametrize("form", [JOINT, COUPLED, DENSE])
def test_signs_of_the_exponents_are_those_of_the_form(form):
    """At the prior's mean nothing pulls; its root weighs a step by the inverse covariance."""
    drawn = population.with_population(form)
    mean, covariance = population.moments("coupled" if form.shares else "additive")
    free = np.zeros(len(form.names))
    free[form.names.index("alpha")] = np.exp(mean[0]) * (-1 if form.name.startswith("joint") else 1)
    free[form.names.index("beta")] = np.exp(mean[1]) * (-1 if form.name.startswith("joint") else 1)
    if form.shares:
        free[form.names.index("k")] = mean[2]
    assert drawn.prior.measure(free) == pytest.approx(mean)
    root = drawn.prior.root_weight()
    np.testing.assert_allclose(root.T @ root, np.linalg.inv(covariance), rtol=1e-9)
    step = 1e-6 * np.random.default_rng(0).normal(size=len(free))
    change = (drawn.prior.measure(free + step) - drawn.prior.measure(free - step)) / 2
    np.testing.assert_allclose(drawn.prior.slopes(free) @ step, change, rtol=1e-5)


def test_a_prior_of_fixed_entries_and_of_sums():
    """A fixed entry leaves the marginal prior of the others."""
    prior = Prior((0, 1), (0, 0), np.zeros(2), np.array([[4.0, 1.9], [1.9, 1.0]]))
    np.testing.assert_allclose(prior.root_weight([1]), [[0.5, 0], [0, 0]])
    prior = Prior((1,), (1,), np.zeros(2), np.diag([4.0, 9.0]), sums=((1.0, 0.0, -2.0),))
    params = np.array([3.0, np.e, 0.5])
    assert prior.measure(params) == pytest.approx([1.0, 2.0])
    assert prior.slopes(params) == pytest.approx(np.array([[0, 1 / np.e, 0], [1, 0, -2]]))
    np.testing.assert_allclose(prior.root_weight([1]), [[0, 0], [0, 1 / 3]])


def far_from_the_population(n: int, noise: float, seed: int = 0, alpha: float = 0.3, beta: float = 0.7, k: float = 0.8):
    """Dense runs of a law with exponents and k that are not the means of the prior."""
    rng = np.random.default_rng(seed)
    truth = dict(A=0.5 * 3e8**alpha, B=0.5 * 6e9**beta, E=1.8, alpha=alpha, beta=beta, k=k)
    flops = 10 ** rng.uniform(18, 20, n)
    size = np.sqrt(flops / 120) * np.exp(rng.uniform(-2, 2, n))
    tokens = flops / 6 / size
    reduced = DENSE.chinchilla_coefficients_at(truth, np.ones(1))
    loss = reduced.loss(size, tokens) * np.exp(noise * rng.normal(size=n))
    columns = dict(n_active=size.tolist(), n_tokens=tokens.tolist(), n_experts=[1] * n, loss=loss.tolist())
    return truth, Table("far", columns, list(range(2, n + 2)))


def with_and_without(table: Table, weight_decay: float | None = None):
    """The coupled law's fits to a table with the population's prior and without, as (fit, problem)."""
    settings = Settings(weight_decay=weight_decay, starts=32)
    runs = read_runs(table, DENSE.columns)
    laws = [fitting.fit(runs, form, settings) for form in (population.with_population(DENSE), DENSE)]
    return [(law.fit, law.problem) for law in laws]


def test_runs_that_determine_an_exponent_keep_it():
    """A hundred runs move by less than a fifth of a standard error, though they lie far from the other sweeps."""
    _, table = far_from_the_population(100, 0.002)
    (drawn, _), (alone, problem) = with_and_without(table)
    errors = standard_errors(problem, alone, noise_of(problem, alone.params))
    for name in ("alpha", "beta"):
        assert abs(drawn.coefficients[name] - alone.coefficients[name]) < 0.2 * errors[name]


def test_a_student_prior_is_fitted_to_its_own_least_objective(monkeypatch):
    """Against scipy's minimum of the objective with (f + p) / 2 ln(1 + d^2 / f), of a prior that does not yield."""
    monkeypatch.setattr(fitting, "MOST_COST", np.inf)
    _, table = far_from_the_population(12, 0.01)
    (fit, problem), _ = with_and_without(table, weight_decay=0.0)
    prior = problem.form.prior
    inverse = np.linalg.inv(prior.covariance)
    freedom = population.GUESS_COUNTS + len(population.sources()) - 3
    centre = problem.data["centre"]
    size, tokens = (np.log(problem.runs.columns[name]) - centre[name] for name in ("n_active", "n_tokens"))

    def objective(x):
        ln_a, ln_b, ln_e, alpha, beta, entry = (x[DENSE.param_names.index(name)] for name in names)
        k = 1 / (1 + np.exp(entry))
        inner = np.logaddexp(ln_a - alpha * size, ln_b - beta * tokens)
        error = np.abs(np.logaddexp(k * inner, ln_e) - np.log(problem.runs.loss))
        huber = np.where(error > 0.01, 0.02 * error - 1e-4, error**2)
        off = np.array([np.log(alpha), np.log(beta), entry]) - prior.mean
        tails = (freedom + 3) * np.log1p(off @ inverse @ off / freedom)
        return 1e4 * (np.sum(huber) + problem.settings.variance * tails)

    names = ("ln A", "ln B", "ln E", "alpha", "beta", "ln(1 / k - 1)")
    begin = problem.centre(fit.params[None])[0]
    assert prior.freedom == freedom and problem.settings.pull != 1
    least = scipy.optimize.minimize(objective, begin, method="BFGS").fun
    assert objective(begin) == pytest.approx(least, rel=1e-4)


def test_a_prior_that_is_far_off_yields_and_the_law_says_so():
    """Porian's runs of at most a third of their largest compute have an alpha far from the other sources'."""
    table = extrapolation.tables()["porian"]
    flops = 6 * table.numbers("n_active") * table.numbers("n_tokens")
    smaller = extrapolation.part(table, flops <= flops.max() / 3)
    asked = fit.law(smaller, prior="population:porian", starts=16)
    alone = fit.law(smaller, starts=16)
    assert asked.coefficients == alone.coefficients and alone.coefficients["alpha"] > 0.9
    assert asked.settings.prior.yielded > fitting.MOST_COST
    assert any("the population's prior yields" in sentence for sentence in asked.warnings)
    assert not any("yields" in sentence for sentence in alone.warnings)


def test_noise_free_runs_are_fitted_to_the_last():
    """By the closed form that made tests/data/practice/exact.csv: its losses, and the best model of 1e22 FLOPs."""
    table = fit.read(str(fit_runs.DATA / "practice" / "exact.csv"))
    for prior in (None, "population"):
        law = fit.law(table, prior=prior)
        assert law.predict(table) == pytest.approx(table.numbers("loss"), rel=5e-4)
        reduced = law.chinchilla_coefficients_at(np.ones(1))
        size, _ = best_size.compute_optimal(*reduced[:4], 1e22)
        assert size[0] == pytest.approx(9.05e9, rel=0.02)
        best = fit.plan(law, flops=1e22).best
        truth = 1.8172 + 482.01 / best["n_active"] ** 0.3478 + 2085.43 / best["n_tokens"] ** 0.3658
        assert truth == pytest.approx(2.1411, abs=1e-3)


def test_only_runs_too_few_for_their_own_scatter_have_the_prior_by_default():
    """Of 8 runs, two more than coefficients, it is the prior of the law; of 9 runs and more there is none."""
    alpha, beta, entry = population.moments("coupled")[0]
    _, table = far_from_the_population(9, 0.01, 0, np.exp(alpha), np.exp(beta), 1 / (1 + np.exp(entry)))
    fewer = extrapolation.part(table, np.arange(9) < 8)
    few = fit.law(fewer, starts=8)
    asked = fit.law(fewer, starts=8, prior="population")
    enough = fit.law(table, starts=8)
    assert (
        few.coefficients == asked.coefficients
        and few.coefficients != fit.law(fewer, starts=8, prior="none").coefficients
    )
    assert few.settings.prior.by_default and enough.settings.prior is None
    assert sum("hardly more than the law's coefficients" in s for s in few.warnings) == 1
    assert "prior" not in refit.options_of_fit(few) and refit.options_of_fit(asked)["prior"] == "population"


def test_the_prior_can_be_asked_for_turned_off_and_leave_a_source_out():
    _, table = far_from_the_population(30, 0.05)
    default, off = (fit.law(table, starts=8, prior=prior) for prior in (None, "none"))
    asked, without = (fit.law(table, starts=8, prior=prior) for prior in ("population", "population:ours"))
    assert asked.settings.prior.law == "population"
    assert without.settings.prior.left_out == "ours" and default.settings.prior is None
    assert default.coefficients == off.coefficients
    assert len({law.coefficients["alpha"] for law in (asked, without, off)}) == 3
    with pytest.raises(UserError, match="found no source 'nobody' to leave out; sources: llama3"):
        fit.law(table, prior="population:nobody")
    with pytest.raises(UserError, match="prior=population: the clark law has not one exponent of size and one of data"):
        fit.law(table, form="clark", prior="population")


@pytest.fixture(scope="module")
def of_chinchilla():
    """The default law of the 245 public points, with draws."""
    return fit.law(str(fit_runs.DATA / "chinchilla_svg_245.csv"), bootstrap=60, starts=32)


def test_draws_are_of_both_forms_by_their_errors(of_chinchilla):
    bootstrap, k = of_chinchilla.bootstrap, of_chinchilla.draws["k"]
    additive, coupled = (row.rmse_log for row in of_chinchilla.choice.tried)
    assert np.sum(k == 1) == round(60 * coupled / (additive + coupled)) == bootstrap.forms["chinchilla"]
    assert np.sum(k < 1) == bootstrap.forms["chinchilla_coupled"] and len(k) == 60
    # the additive draws lie around the additive law that --form=chinchilla fits
    alone = fit.law(str(fit_runs.DATA / "chinchilla_svg_245.csv"), form="chinchilla", starts=32)
    drawn = of_chinchilla.draws["alpha"][k == 1]
    assert np.mean(drawn) == pytest.approx(alone.coefficients["alpha"], abs=2 * np.std(drawn))
    drift = np.array(bootstrap.beyond.drift)
    assert abs(drift[k == 1].mean()) < 1e-9
    assert np.all(drift[k < 1] <= 0) and np.sum(drift[k < 1] == 0) <= 1  # the middle one of an odd number


def test_a_plan_far_beyond_the_runs_says_that_the_forms_disagree(of_chinchilla):
    """At 5.76e23 FLOPs the additive law's 125B and the coupled law's 46.8B parameters are in the interval."""
    plan = fit.plan(of_chinchilla, flops=5.76e23)
    (row,) = plan.odds.experts
    low, high = row["n_active"]
    assert low < 46.8e9 and 120e9 < high
    additive, coupled = row["forms"]["additive"], row["forms"]["coupled"]
    assert coupled["n_active"] < 55e9 < 100e9 < additive["n_active"]
    (said,) = [sentence for sentence in plan.warnings if "forms of the law disagree" in sentence]
    assert f"{additive['draws']} of 60 draws" in said and "the intervals hold both forms" in said
    near = fit.plan(of_chinchilla, flops=1e20)
    assert not [sentence for sentence in near.warnings if "disagree" in sentence]


def test_runs_too_few_for_hold_outs_get_half_of_each_form():
    _, table = far_from_the_population(14, 0.01)
    law = fit.law(table, bootstrap=20, starts=16)
    assert law.choice.tried == () and np.sum(law.draws["k"] == 1) == 10
    assert law.bootstrap.beyond is None


def test_a_single_form_that_is_asked_for_has_draws_of_its_own_alone():
    _, table = far_from_the_population(20, 0.01)
    law = fit.law(table, form="chinchilla_coupled", bootstrap=8, starts=8)
    assert np.all(law.draws["k"] < 1) and not law.bootstrap.forms


def three_runs(rows: int = 3) -> tuple[Table, dict[str, float], float]:
    """Runs of one number of tokens per parameter by a law with the population's means, and a model 100 times as large
    with its loss."""
    mean, _ = population.moments("coupled", with_floor=True)
    alpha, beta = np.exp(mean[:2])
    k = 1 / (1 + np.exp(mean[2]))
    size = np.array([2e7, 5e7, 1.3e8, 1.3e9])
    tokens = 100 * size
    truth = dict(A=0.5 * size[0] ** alpha, B=0.5 * tokens[0] ** beta, E=1.4, alpha=alpha, beta=beta, k=k)
    loss = DENSE.chinchilla_coefficients_at(truth, np.ones(1)).loss(size, tokens)
    columns = dict(n_active=size, n_tokens=tokens, n_experts=np.ones(4), loss=loss)
    table = Table("anchors", {name: values[:rows].tolist() for name, values in columns.items()}, [2, 3, 4][:rows])
    return table, dict(n_active=1.3e9, n_tokens=1.3e11), float(loss[-1])


def test_three_runs_make_a_law_with_the_population():
    table, model, loss = three_runs()
    law = fit.law(table, prior="population", bootstrap=60, starts=16)
    low, high = law.predict_interval(**model)
    assert low < loss < high and law.predict(**model) == pytest.approx(loss, rel=0.03)
    assert law.predict(table) == pytest.approx(table.numbers("loss"), rel=0.005)
    assert law.choice.why.startswith("3 runs are fewer than its coefficients")
    scatter = np.median(population.values_of("scatter"))
    assert f"a run scatters by {scatter:.2%}" in law.warnings[-1]
    assert law.noise.total == pytest.approx(scatter)
    spread = np.std(law.bootstrap.beyond.drift)
    assert spread == pytest.approx(np.sqrt(np.mean(population.values_of("drift") ** 2)), rel=0.3)
    assert law.profile["E"].low < law.coefficients["E"] < law.profile["E"].high


def test_fewer_runs_than_coefficients_are_refused_unless_the_population_is_asked_for():
    table, *_ = three_runs()
    with pytest.raises(UserError, match="found 3 distinct runs to fit.*; prior=population takes the rest from other"):
        fit.law(table)
    with pytest.raises(UserError, match="found 3 distinct runs to fit.*needs at least as many$"):
        fit.law(table, prior="none")
    with pytest.raises(UserError, match="found 2 distinct runs to fit.*needs at least as many$"):
        fit.law(three_runs(rows=2)[0], prior="population")
