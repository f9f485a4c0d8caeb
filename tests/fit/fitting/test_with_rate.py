"""`fit law --with_rate`: a known law and known optima are recovered from runs, few of which are well tuned."""

import dataclasses
import json

import fit_command
import fit_runs
import numpy as np
import pytest

import fit
from fit.fitted_law.law_files import load
from fit.table.table import Table, read, write

LAW = dict(A=2e3, alpha=0.4, B=4e3, beta=0.38, E=1.5)
# exponents of the best rate and batch around 1e8 parameters and 2e9 tokens
BEST_RATE = dict(at=2e-3, n_active=-0.6, n_tokens=0.25)
BEST_BATCH = dict(at=2.5e5, n_active=0.0, n_tokens=0.5)
RATE_COST = 0.02
BATCH_COST = 0.008
NOISE = 0.002


def law_loss(n, d):
    return LAW["E"] + LAW["A"] / n ** LAW["alpha"] + LAW["B"] / d ** LAW["beta"]


def optimum(best, n, d):
    return best["at"] * (n / 1e8) ** best["n_active"] * (d / 2e9) ** best["n_tokens"]


def runs(count, seed=0, sizes=5, with_batch=True, far=1.8):
    """Runs of a known law at random models, rates and batches, as {column: list}."""
    chance = np.random.default_rng(seed)
    n = chance.choice(np.geomspace(2e7, 5e8, sizes), count)
    d = n * chance.choice([5.0, 20.0, 80.0], count)
    rate_off = chance.uniform(-far, far, count)
    batch_off = chance.uniform(-far, far, count) if with_batch else np.zeros(count)
    cost = RATE_COST * rate_off**2 + BATCH_COST * batch_off**2
    loss = law_loss(n, d) * np.exp(cost + NOISE * chance.standard_normal(count))
    rate = optimum(BEST_RATE, n, d) * np.exp(rate_off)
    batch = optimum(BEST_BATCH, n, d) * np.exp(batch_off)
    columns = dict(n_active=n, n_tokens=d, n_experts=np.ones(count), loss=loss, peak_learning_rate=rate)
    if with_batch:
        columns["batch_tokens"] = batch
    return {name: values.tolist() for name, values in columns.items()}


def table_of(columns):
    return Table("runs", columns, list(range(1, 1 + len(columns["loss"]))))


@pytest.fixture(scope="module")
def law():
    """Fitted to 200 runs, most of them far from their best rate and batch."""
    return fit.law(runs(200), "chinchilla", with_rate=True, starts=16, bootstrap=60)


@pytest.mark.parametrize("n_batches", [1, 2, 3])
def test_batches_along_a_ramp_are_not_fitted(n_batches):
    """Runs of equal tokens have equal batches, so the optima are those of a table that says nothing of batches."""
    columns = runs(60, with_batch=False)
    steps = np.digitize(columns["n_tokens"], np.quantile(columns["n_tokens"], [1 / 3, 2 / 3])[: n_batches - 1])
    laws = []
    for more in ({}, {"batch_tokens": (65_536 * 2**steps).tolist()}):
        laws.append(fit.law(columns | more, "chinchilla", with_rate=True, starts=4))
    without, along = laws
    assert len(set(steps)) == n_batches and len(along.models.batches) == n_batches
    assert along.tuning == without.tuning and not along.tuning.with_batch
    assert along.coefficients == without.coefficients
    model = dict(n_active=1e8, n_tokens=2e9)
    assert along.tuning.batch(**model) is None and along.tuning.rate(**model).low is None  # no draws
    assert along.tuning.rate(**model).value == pytest.approx(BEST_RATE["at"], rel=0.15)


MODELS = [(2e7, 4e8), (1e8, 2e9), (5e8, 1e10), (2e9, 4e10)]  # the last one has four times the largest size


def test_optima_are_recovered_inside_their_intervals(law):
    inside = 0
    for n, d in MODELS:
        model = dict(n_active=n, n_tokens=d, n_experts=1.0)
        for estimate, best in ((law.tuning.rate(**model), BEST_RATE), (law.tuning.batch(**model), BEST_BATCH)):
            truth = optimum(best, n, d)
            assert estimate.value == pytest.approx(truth, rel=0.25)
            assert estimate.low < estimate.value < estimate.high
            inside += estimate.low <= truth <= estimate.high
    assert inside >= 5  # of eight 80% intervals


def test_the_law_is_that_of_the_best_rates(law):
    """Although the mean run lies 3% above it."""
    for n, d in MODELS[:3]:
        assert float(law.predict(n_active=n, n_tokens=d)) == pytest.approx(law_loss(n, d), rel=3e-3)
    far = law.predict_interval(n_active=2e9, n_tokens=4e10)
    assert far[0] < law_loss(2e9, 4e10) < far[1]
    assert law.fitted.runs == law.tuning.near < law.tuning.runs == 200


def test_what_a_wrong_rate_costs(law):
    n, d = MODELS[1]
    model = dict(n_active=n, n_tokens=d, n_experts=1.0)
    rate = optimum(BEST_RATE, n, d)
    batch = optimum(BEST_BATCH, n, d)
    cost = law.tuning.penalty(2 * rate, batch, **model)
    assert cost.value == pytest.approx(np.expm1(RATE_COST * np.log(2) ** 2), rel=0.35)
    assert cost.low < cost.value < cost.high
    of_both = law.tuning.penalty(rate, 4 * batch, **model)
    assert of_both.value == pytest.approx(np.expm1(BATCH_COST * np.log(4) ** 2), rel=0.35)
    assert law.tuning.rate(3 * batch, **model).value == pytest.approx(rate, rel=0.25)  # here rate and batch are apart


def test_the_best_rate_of_mixtures_falls_with_their_experts():
    chance = np.random.default_rng(4)
    n = chance.choice([1e4, 3e4, 1e5], 160)
    d = n * chance.choice([30.0, 100.0, 300.0], 160)
    e = chance.choice([1.0, 4.0, 16.0], 160)
    off = chance.uniform(-1.5, 1.5, 160)
    rate = 5e-3 * (n / 1e4) ** -0.3 * e**-0.25 * np.exp(off)
    scatter = np.exp(NOISE * chance.standard_normal(160))
    loss = fit_runs.joint_loss(n, d, e, fit_runs.TINY) * np.exp(RATE_COST * off**2) * scatter
    columns = dict(n_active=n, n_tokens=d, n_experts=e, loss=loss, peak_learning_rate=rate)
    law = fit.law({k: v.tolist() for k, v in columns.items()}, "joint", with_rate=True, starts=8)
    assert list(law.tuning.reference) == ["n_active", "n_tokens", "n_experts"]
    assert law.tuning.coefficients["rate_n_experts"] == pytest.approx(-0.25, abs=0.05)
    mixture = law.tuning.rate(n_active=3e4, n_tokens=3e6, n_experts=16)
    assert mixture.value == pytest.approx(5e-3 * 3**-0.3 * 16**-0.25, rel=0.1)


@pytest.mark.parametrize("scatter", [0.0, 0.2])
def test_what_models_optima_scatter_around_the_law_widens_intervals(scatter):
    """Each of 15 models has its own best rate."""
    columns = runs(450, seed=5, with_batch=False, far=1.0)
    models = sorted(set(zip(columns["n_active"], columns["n_tokens"], strict=True)))
    shifts = dict(zip(models, scatter * np.random.default_rng(6).standard_normal(len(models)), strict=True))
    shift = np.array([shifts[model] for model in zip(columns["n_active"], columns["n_tokens"], strict=True)])
    columns["peak_learning_rate"] = (np.array(columns["peak_learning_rate"]) * np.exp(shift)).tolist()
    law = fit.law(columns, "chinchilla", with_rate=True, starts=16, bootstrap=20)
    measured = law.tuning.scatter["rate"]
    assert abs(measured - np.std(list(shifts.values()))) < 0.03 + 0.25 * scatter
    inside = 0
    for (n, d), of_model in shifts.items():
        estimate = law.tuning.rate(n_active=n, n_tokens=d)
        inside += estimate.low <= optimum(BEST_RATE, n, d) * np.exp(of_model) <= estimate.high
    assert inside >= 9  # of 15, in 80% intervals


def test_intervals_of_optima_are_those_of_the_draws(law):
    """Where models have no optima of their own, the ends lie among the draws where those of losses do."""
    few = dataclasses.replace(law.tuning, draws=law.tuning.draws[:14], scatter=dict(rate=0.0, batch=0.0))
    model = dict(n_active=1e8, n_tokens=2e9, n_experts=1.0)
    alone = [
        dataclasses.replace(few, coefficients=dict(zip(few.coefficients, draw, strict=True)), draws=())
        for draw in few.draws
    ]
    for of_model in (lambda tuning: tuning.rate(**model), lambda tuning: tuning.batch(**model)):
        ends = np.percentile(np.log([of_model(tuning).value for tuning in alone]), (10, 90), method="weibull")
        estimate = of_model(few)
        assert [estimate.low, estimate.high] == pytest.approx(np.exp(ends), rel=1e-9)


def test_law_json_answers_as_the_law_does(law, tmp_path):
    path = str(tmp_path / "law.json")
    fit.save(law, path)
    again = load(path)
    model = dict(n_active=1e8, n_tokens=2e9, n_experts=1.0)
    assert again.tuning.rate(**model) == law.tuning.rate(**model)
    flags = ["--n_active=1e8", "--n_tokens=2e9", "--peak_learning_rate=4e-3", "--batch_tokens=250000"]
    text = fit_command.printed("predict", f"--law={path}", *flags)
    best = law.tuning.rate(250_000, **model)
    cost = law.tuning.penalty(4e-3, 250_000, **model)
    assert f"best peak learning rate: {best.value:.3e} (10th to 90th percentile: {best.low:.3e}" in text
    assert f"a rate of 4.000e-03 with batches of 250,000 tokens costs {cost.value:.2%} of the loss" in text
    columns = fit.predict(law, runs(5, seed=9)).columns
    assert len(columns["rate_penalty"]) == len(columns["best_batch_tokens_high"]) == 5
    record = json.loads((tmp_path / "law.json").read_text())
    del record["rates"]["coefficients"]["skew"]
    (tmp_path / "law.json").write_text(json.dumps(record))
    with pytest.raises(fit.UserError, match="rates.coefficients is .*, expected rate, .*, rate_cost, skew"):
        load(path)


def test_a_plan_has_the_rate_that_was_fitted(law):
    """Of a large model at the batch of the plan, which is the best one in powers of two; of a small one at the best."""
    plan = fit.plan(law, flops=6e18)
    built = plan.buildable
    model = dict(n_active=built.n_active, n_tokens=built.n_tokens, n_experts=1.0)
    batch = built.batch_tokens[-1][1]
    best = law.tuning.batch(**model)
    assert best.value / 2 < batch <= best.value and built.batch_range == [best.low, best.high]
    rate = law.tuning.rate(batch, **model)
    assert built.learning_rate == pytest.approx(rate.value, rel=5e-3)
    assert f"Rate: {rate.value:.2e} ({rate.low:.2g} to {rate.high:.2g} by the runs of this law, within" in str(plan)
    of_bytes = dataclasses.replace(law, models=dataclasses.replace(law.models, vocab_size=257))
    plan = fit.plan(of_bytes, flops=1e16)
    built = plan.buildable
    model = dict(n_active=built.n_active, n_tokens=built.n_tokens, n_experts=1.0)
    rate = law.tuning.rate(**model)
    assert built.learning_rate == pytest.approx(rate.value, rel=1e-6)
    ends = f"{rate.low:.2g} to {rate.high:.2g} in 80 of 100 cases"
    assert built.learning_rate_from == f"fitted with the law, {ends}"
    assert "tokens is best, fitted with the law" in built.batch_from and built.batch_from in str(plan)


def test_wrong_tables_are_refused():
    columns = runs(60)
    n = np.array(columns["n_active"])
    two = np.where(n > 1e8, 1e-3, 2e-3)
    without = {name: values for name, values in columns.items() if name != "peak_learning_rate"}
    for table, words in (
        (without, "column peak_learning_rate is missing"),
        (columns | dict(peak_learning_rate=two), "peak_learning_rate: found 2 different values, expected 3 or more:"),
        (columns | dict(batch_tokens=two * 1e8), "batch_tokens: found 2 different values, expected 3 or more, or one"),
        (columns | dict(peak_learning_rate=n**-0.5), "so no run says what another rate costs"),
        (columns | dict(peak_learning_rate=[-1.0] * 60), "column peak_learning_rate: found -1.0, expected a number"),
    ):
        with pytest.raises(fit.UserError, match=words):
            fit.law(table, "chinchilla", with_rate=True)
    for options, words in (
        (dict(form="chinchilla,joint"), "with_rate is for a single form"),
        (dict(form="chinchilla", starts="paper"), "starts=paper: the published grid has no learning rates"),
        (dict(prior="population"), "prior: the fit of with_rate has no prior"),
    ):
        with pytest.raises(fit.UserError, match=words):
            fit.law(columns, with_rate=True, **options)
    with pytest.raises(fit.UserError, match="law=joint-moe-2025 has no best rates; fit it"):
        fit.predict("joint-moe-2025", n_active=1e9, n_tokens=2e10, peak_learning_rate=1e-3)


def test_grids_that_end_before_the_best_rate_are_named():
    """All rates tried are below the best by a factor of 1.5 to 6."""
    columns = runs(150, with_batch=False)
    truth = optimum(BEST_RATE, np.array(columns["n_active"]), np.array(columns["n_tokens"]))
    off = np.random.default_rng(2).uniform(-1.8, -0.4, 150)
    columns["peak_learning_rate"] = (truth * np.exp(off)).tolist()
    base = law_loss(np.array(columns["n_active"]), np.array(columns["n_tokens"]))
    columns["loss"] = (base * np.exp(RATE_COST * off**2)).tolist()
    law = fit.law(columns, "chinchilla", with_rate=True, starts=16)
    assert any("models lies outside what was tried for them" in warning for warning in law.warnings)


def test_a_finished_run_is_added_to_a_law_with_rates(tmp_path):
    columns = runs(60, with_batch=False)
    write(table_of(columns | dict(run=[f"r{i}" for i in range(60)])), str(tmp_path / "runs.csv"))
    law = fit.law(read(str(tmp_path / "runs.csv")), "chinchilla", with_rate=True, starts=16)
    one = {name: values[:1] for name, values in runs(1, seed=7, with_batch=False).items()} | dict(run=["new"])
    write(table_of(one), str(tmp_path / "one.csv"))
    added = fit.add(law, str(tmp_path / "one.csv"), runs=str(tmp_path / "runs.csv"), out=str(tmp_path / "law.json"))
    assert added.n_runs == 61 and load(str(tmp_path / "law.json")).tuning is not None
