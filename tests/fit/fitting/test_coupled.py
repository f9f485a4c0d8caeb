"""Laws with size and data coupled: against the additive ones, brute force, and runs whose law is known."""

import json

import fit_command
import fit_runs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fit
from fit import __main__ as command_line
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.fitting import fitting, forms, law_prior
from fit.fitting.problem import Settings
from fit.form import Form
from fit.laws import FORMS
from fit.model.architecture import PAPER
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver

JOINT, COUPLED = FORMS["joint"], FORMS["joint_coupled"]


def coupled(k, c=fit_runs.TABLE_3) -> Law:
    return Law("coupled", COUPLED, c | {"k": k})


def test_with_k_of_1_it_is_the_joint_law_to_the_last_bit():
    n, d, e = fit_runs.paper_grid()
    assert np.array_equal(coupled(1.0).predict(n, d, e), load("joint-moe-2025").predict(n, d, e))
    reduced = [law.chinchilla_coefficients_at(8.0) for law in (coupled(1.0), load("joint-moe-2025"))]
    assert reduced[0] == reduced[1] and reduced[0].loss(1e9, 2e10) == reduced[1].loss(1e9, 2e10)


@given(k=st.floats(0.05, 1), e=st.sampled_from([1, 4, 64]), ln_n=st.floats(16, 25), ln_d=st.floats(18, 30))
def test_prediction_is_the_inner_sum_to_the_power_of_k(k, e, ln_n, ln_d):
    c, n, d = fit_runs.TABLE_3, np.exp(ln_n), np.exp(ln_d)
    expected = (fit_runs.joint_loss(n, d, e, c) - c["c"]) ** k + c["c"]
    law = coupled(k)
    assert law.loss(law.coefficients, dict(n_active=n, n_tokens=d, n_experts=e)) == pytest.approx(expected, rel=1e-12)
    assert coupled(k).chinchilla_coefficients_at(e).loss(n, d) == pytest.approx(expected, rel=1e-12)


@given(
    k=st.floats(0.1, 0.99),
    flops=st.floats(19, 25),
    memory=st.one_of(st.none(), st.floats(9, 13)),
    served=st.sampled_from([0.0, 1e11]),
    cap=st.one_of(st.none(), st.floats(9, 13)),
)
@settings(max_examples=60)
def test_the_best_model_under_any_limits_is_that_of_the_inner_sum(k, flops, memory, served, cap):
    def power(x):
        return None if x is None else 10.0**x

    limits = Constraints(
        flops=power(flops), memory_bytes=power(memory), kv_tokens=1e4, inference_tokens=served, max_tokens=power(cap)
    )
    experts = np.array([1.0, 4, 32])
    ours, inner = (
        solver.best_models(Problem(law, PAPER, limits), experts) for law in (coupled(k), load("joint-moe-2025"))
    )
    for name in ("n_active", "n_tokens", "feasible", "size_bound"):
        assert np.array_equal(getattr(ours, name), getattr(inner, name), equal_nan=name != "size_bound")
    if inner.feasible.any():
        assert np.nanargmin(ours.loss) == np.nanargmin(inner.loss)


def fitted(form: Form, runs, **options):
    return fitting.fit_by_default(form, runs, Settings(weight_decay=None, **options))


def runs_of_law(c, noise=0.0, seed=0, rows=slice(None)):
    n, d, e = (column[rows] for column in fit_runs.paper_grid())
    error = noise * np.random.default_rng(seed).normal(size=len(n))
    return fit_runs.runs_of("made", n, d, e, coupled(c["k"], c).predict(n, d, e) * np.exp(error))


def test_runs_of_a_coupled_law_give_it_back():
    """Not the coefficients, which trade off, but the losses, also a hundred times beyond the runs."""
    true = fit_runs.TABLE_3 | {"k": 0.5, "a": 900.0, "b": 900.0, "alpha": -0.33, "beta": -0.31}
    fit, _ = fitted(COUPLED, runs_of_law(true))
    beyond = dict(
        n_active=np.array([1e8, 3e9, 3e10]), n_tokens=np.array([1e12, 1e11, 5e12]), n_experts=np.array([1, 8, 32])
    )
    expected = coupled(0.5, true).predict(**beyond)
    assert coupled(fit.coefficients["k"], fit.coefficients).predict(**beyond) == pytest.approx(expected, rel=1e-3)
    assert fit.coefficients["k"] == pytest.approx(0.5, abs=0.02)


def test_the_prior_of_k_counts_only_where_runs_leave_it_open():
    """With 270 runs and 0.1% of noise k is theirs; with 24 runs and 3% it is the prior's, near one half."""
    additive = fit_runs.TABLE_3 | {"k": 1.0}
    many, _ = fitted(COUPLED, runs_of_law(additive, noise=0.001))
    few, _ = fitted(COUPLED, runs_of_law(additive, noise=0.03, rows=slice(None, None, 11)))
    assert many.coefficients["k"] > 0.85
    assert 0.25 < few.coefficients["k"] < 0.75


def dense_table(tmp_path, k, n=70):
    """A csv of dense runs with little noise, of a law with this k."""
    runs = fit_runs.dense_runs(n, noise=0)
    c = fit_runs.CHINCHILLA
    inner = c["A"] ** (1 / k) / runs.n_active ** (c["alpha"] / k) + c["B"] ** (1 / k) / runs.n_tokens ** (c["beta"] / k)
    runs.loss = (c["E"] + inner**k) * np.exp(0.001 * np.random.default_rng(1).normal(size=n))
    return fit_runs.write_csv(tmp_path / "runs.csv", runs)


@pytest.mark.parametrize("k", [1.0, 0.4])
def test_without_a_form_the_one_is_taken_that_predicts_larger_runs_well(tmp_path, capsys, k, monkeypatch):
    """Of additive runs the additive law's error is 0.85 of that of the coupled one, which finds k near 1."""
    monkeypatch.setattr(forms, "BETTER", 0.9)
    path = dense_table(tmp_path, k)
    assert command_line.run(["law", f"--runs={path}", f"--out={tmp_path}/law.json"]) == 0
    law = load(f"{tmp_path}/law.json")
    tried = {row.form: row for row in law.choice.tried}
    additive, coupled = (tried[form].rmse_log for form in ("chinchilla", "chinchilla_coupled"))
    chosen = "chinchilla" if additive < forms.BETTER * coupled else "chinchilla_coupled"
    assert (chosen == "chinchilla") == (k == 1)
    assert law.form.name == "chinchilla_coupled" and (law.coefficients["k"] == 1) == (k == 1)
    assert list(tried) == ["chinchilla", "chinchilla_coupled"] and law.rolling == tried[chosen].rolling
    assert law.settings.weights == ("none" if k == 1 else "compute^0.6")
    said = capsys.readouterr().out
    assert f"form chosen: {chosen} predicts the fitted runs of more compute" in said
    again = fit.law(path)
    assert again.to_dict() == law.to_dict()


def test_additive_runs_give_a_law_with_k_near_one(tmp_path):
    law = fit.law(dense_table(tmp_path, 1.0), starts=16)
    assert law.choice.why.startswith("chinchilla_coupled") and 0.95 < law.coefficients["k"] < 1
    size, tokens = np.array([5e10, 2e10]), np.array([5e11, 2e12])
    truth = Law("truth", FORMS["chinchilla"], fit_runs.CHINCHILLA).predict(n_active=size, n_tokens=tokens)
    assert law.predict(n_active=size, n_tokens=tokens) == pytest.approx(truth, rel=2e-3)


def test_too_few_runs_to_choose_get_the_coupled_law_with_weights(tmp_path):
    path = fit_runs.write_demo_csv(tmp_path / "runs.csv")
    chosen = fit.law(path)
    assert chosen.choice.tried == () and "too few to say whether joint or joint_coupled" in chosen.choice.why
    asked = fit.law(path, form="joint_coupled", weights="compute^0.6")
    assert chosen.to_dict() | dict(choice=None) == asked.to_dict() | dict(choice=None)


def sixteen(tmp_path):
    """A csv of 16 runs of a coupled law with 5% of noise, and its coefficients."""
    runs, c = fit_runs.dense_runs(16, noise=0), dict(A=2e4, B=3e4, E=1.6, alpha=0.5, beta=0.47, k=0.55)
    columns = dict(n_active=runs.n_active, n_tokens=runs.n_tokens)
    true = Law("true", FORMS["chinchilla_coupled"], c)
    runs.loss = true.loss(c, columns) * np.exp(0.05 * np.random.default_rng(1).normal(size=16))
    return fit_runs.write_csv(tmp_path / "runs.csv", runs), true


def test_a_prior_draws_the_exponents_of_few_runs_to_those_of_another_law(tmp_path):
    path, true = sixteen(tmp_path)
    (tmp_path / "other.json").write_text(json.dumps(dict(form=true.form.name, coefficients=true.coefficients)))
    flags = ["law", f"--runs={path}", f"--out={tmp_path}/law.json", f"--prior={tmp_path}/other.json"]
    said = " ".join(fit_command.printed(*flags, "--verbose").split())
    assert (
        "form chosen: the law" in said and "other.json: beta 0.47 ± 0.16, alpha 0.5 ± 0.17, k 0.55 ± 0.7 of ln" in said
    )
    law, alone = load(f"{tmp_path}/law.json"), fit.law(path, starts=16, weights="compute^0.6", form=true.form.name)
    assert law.form is true.form and law.settings.prior.spreads["alpha"] == pytest.approx([0.5, 1 / 6])

    def off(law):
        return sum(abs(np.log(law.coefficients[name] / true.coefficients[name])) for name in ("alpha", "beta"))

    assert off(law) < 0.5 * off(alone)
    same = fit.law(path, prior=load(f"{tmp_path}/other.json"))
    assert same.coefficients == law.coefficients


def test_a_prior_has_the_signs_of_the_form():
    drawn = law_prior.with_law_prior(JOINT, load("chinchilla-2022"))
    assert drawn.prior.summary.spreads == {"beta": (-0.2849, 0.2849 / 3), "alpha": (-0.3392, 0.3392 / 3)}


def test_a_prior_that_says_nothing_of_the_exponents_is_refused(tmp_path):
    path, _ = sixteen(tmp_path)
    for form, law, why in (
        ("chinchilla", "clark-2022-sbase", "the clark law has no exponent of n_tokens or n_active"),
        ("chinchilla_coupled", "chinchilla-2022", "has the coefficient k and the chinchilla law has none"),
        ("chinchilla", "nowhere.json", "prior=nowhere.json: no such file"),
    ):
        with pytest.raises(UserError, match=why):
            fit.law(path, form=form, prior=law)
    # an exponent that it has no value for is named
    assert law_prior.with_law_prior(FORMS["chinchilla"], load("sparsity-2025")).prior.summary.not_taken == ("alpha",)


def test_the_forms_own_error_widens_intervals_beyond_the_runs_only(tmp_path):
    """Draws that agree differ by their drifts alone: quantiles -1, 0, 1% for each factor of e beyond 1e20 FLOPs."""
    drift = [-0.01] * 30 + [0.0] * 40 + [0.01] * 30
    bootstrap = dict(form="errors", percentiles=[10, 90], draws=[list(fit_runs.CHINCHILLA.values())] * 100)
    bootstrap["beyond"] = dict(training_flops=1e20, drift=drift)
    record = dict(form="chinchilla", coefficients=fit_runs.CHINCHILLA, bootstrap=bootstrap)
    (tmp_path / "law.json").write_text(json.dumps(record))
    law = load(str(tmp_path / "law.json"))
    within, beyond = law.predict_interval(n_active=1e9, n_tokens=np.array([1e10, 1e20 / 6e9 * np.e**2])).T
    assert within == pytest.approx([law.predict(1e9, 1e10)] * 2)
    assert np.log(beyond / law.predict(1e9, 1e20 / 6e9 * np.e**2)) == pytest.approx([-0.02, 0.02])
    plan = fit.plan(law, flops=1e20 * np.e)
    assert np.log(np.array(plan.odds.experts[0]["loss"]) / plan.best["loss"]) == pytest.approx([-0.01, 0.01])
    bootstrap["beyond"]["drift"] = drift[1:]
    (tmp_path / "law.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="bootstrap.beyond.drift is .* expected a number for each of 100 draws"):
        load(str(tmp_path / "law.json"))


def test_below_the_median_of_weighted_runs_a_new_run_scatters_more(tmp_path):
    """Runs of 0.3% of noise, those of little compute 3%, fitted with weights: the intervals hold both kinds."""
    runs = fit_runs.dense_runs(80, noise=0)
    small = runs.flops < np.median(runs.flops)
    runs.loss = runs.loss * np.exp(np.where(small, 0.03, 0.003) * np.random.default_rng(2).normal(size=80))
    path = fit_runs.write_csv(tmp_path / "runs.csv", runs)
    law = fit.law(path, form="chinchilla", weights="compute^0.6", bootstrap=30, starts=16)
    assert law.noise.growth.training_flops == pytest.approx(np.median(runs.flops))
    low, high = law.predict_interval(runs.n_active, runs.n_tokens, new_run=True)
    held = (low <= runs.loss) & (runs.loss <= high)
    assert 0.65 < held[small].mean() and held[~small].mean() > 0.75
    assert fit.law(path, form="chinchilla", starts=16).noise.growth is None


@pytest.mark.parametrize("k", [0.001, 1.5])
def test_a_k_that_no_law_has_is_refused(tmp_path, k):
    """Among the coefficients and among the draws."""
    path = tmp_path / "law.json"
    path.write_text(json.dumps(dict(form="joint_coupled", coefficients=fit_runs.TABLE_3 | {"k": k})))
    with pytest.raises(UserError, match="coefficients.k is .* expected a number from 0.018 to 1"):
        load(str(path))
    record = dict(form="joint_coupled", coefficients=fit_runs.TABLE_3 | {"k": 0.5})
    record["bootstrap"] = dict(form="errors", percentiles=[10, 90], draws=[[*fit_runs.TABLE_3.values(), k]])
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match="bootstrap.draws is .*, expected k, a number from 0.018 to 1"):
        load(str(path))


def test_a_k_that_is_held_makes_the_choice(tmp_path):
    path = dense_table(tmp_path, 0.4, n=30)
    law = fit.law(path, starts=8, fix={"k": 0.6})
    assert law.coefficients["k"] == pytest.approx(0.6) and law.choice.why == "k is held at a value"
