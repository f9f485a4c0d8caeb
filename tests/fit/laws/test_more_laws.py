"""The laws of sparsity, granularity and five factors against plain NumPy and what follows from their papers' printed
coefficients; Sardana et al.'s optimum with inference; plans of laws that have no optimum of their own."""

import dataclasses

import fit_runs
import jax
import numpy as np
import pytest
import scipy.optimize

import fit
from fit.fitted_law import planned_models
from fit.fitted_law.law_files import load
from fit.fitting import form_comparison, search
from fit.fitting.problem import Settings, prepare
from fit.laws import FORMS
from fit.model.architecture import PAPER
from fit.planning import make_plan
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.table.runs import Runs, read_runs, rms, subset
from fit.table.table import Table

SPARSITY, FINE, COMPREHENSIVE = (load(name) for name in ("sparsity-2025", "fine-grained-2024", "comprehensive-2025"))


def sparse_loss(total, tokens, sparsity):
    """Abnar et al.'s Eq. in plain NumPy."""
    used = 1 - sparsity
    size, data = 16612.50 / total**0.5962, 5455.67 / tokens**0.3954
    return size + data + 0.4598 / used**-0.1666 + 17.26 / (used**0.1603 * total**0.1595) + 0.94


def plain_fine(total, tokens, granularity):
    return 0.47 + (2.1 / granularity**0.58 + 18.1) / total**0.115 + 30.8 / tokens**0.147


def plain_comprehensive(active, total, tokens, g, s):
    structure = 0.1577 * g + 7.2446 / g + 5.1395 * s**2 - 3.2363 * s
    size = 1 / total**0.2383 + 0.0013 / active**0.2383 + 0.0450 * active / total
    return structure * size + 38.051 / total**0.2383 + 27129.05 / tokens**0.4694 + 31.096 / active**0.2383 + 1.8182


def columns(form, rng, count):
    """What a form reads, of models drawn over its data."""
    total = np.exp(rng.uniform(np.log(1e8), np.log(1e10), count))
    given = dict(n_total=total, n_active=total * rng.uniform(0.1, 1, count), n_tokens=rng.uniform(1e10, 1e11, count))
    given |= dict(n_experts=rng.choice([1, 2, 8, 32], count))
    given |= dict(sparsity=rng.choice([0, 0.5, 0.75, 0.9, 0.98], count), granularity=rng.choice([1.0, 2, 4, 16], count))
    given |= dict(top_k=rng.integers(1, 20, count), shared_share=rng.uniform(0, 0.7, count))
    return {name: np.asarray(given[name], float) for name in form.columns}


@pytest.mark.parametrize("law, plain, order", [
    (SPARSITY, sparse_loss, ("n_total", "n_tokens", "sparsity")),
    (FINE, plain_fine, ("n_total", "n_tokens", "granularity")),
    (COMPREHENSIVE, plain_comprehensive, ("n_active", "n_total", "n_tokens", "top_k", "shared_share")),
])  # fmt: skip
def test_predictions_are_the_printed_formulas(law, plain, order):
    given = columns(law.form, np.random.default_rng(0), 20)
    np.testing.assert_allclose(law.predict(**given), plain(*(given[name] for name in order)), rtol=1e-13)


@pytest.mark.parametrize("name", ["sparsity", "fine_grained", "comprehensive", "clark"])
def test_fits_recover_what_the_law_predicts(name):
    """From its own losses with a little noise, on models that were not fitted too."""
    form, rng = FORMS[name], np.random.default_rng(1)
    law = load(next(iter(form.presets)))
    given, other = columns(form, rng, 80), columns(form, rng, 20)
    runs = Runs("drawn", given, law.predict(**given) * np.exp(0.001 * rng.normal(size=80)), Table("drawn", {}, []))
    with jax.enable_x64(True):
        found = search.fit(prepare(form, runs, Settings(starts=32, weight_decay=0)))
    np.testing.assert_allclose(np.exp(form.log_loss(found.params, other)), law.predict(**other), rtol=2.5e-3)


def test_a_plan_says_that_the_sparsity_law_has_no_optimum_of_its_own():
    free, beyond, bounded = (
        fit.plan("sparsity-2025", flops=1e20, **limits)
        for limits in ({}, dict(experts=[64, 128, 256]), dict(memory_gb=8))
    )
    codes = [[finding.code for finding in plan.findings] for plan in (free, beyond, bounded)]
    assert ["not_bounded" in of_plan for of_plan in codes] == [True, True, False]
    assert free.best["n_experts"] == 50 > bounded.best["n_experts"]
    assert any(o["column"] == "sparsity" and o["high"] == 0.98 for o in beyond.to_dict()["extrapolation"])


def test_fine_grained_counts_leave_the_embedding_out():
    """A plan's models are counted as the law counts them; the plan itself counts as always."""
    width = PAPER.d_model(1e9)
    total = (4 + 9 * 64) * width**3 / 64
    loss = planned_models.loss_of_sizes(FINE, PAPER, 64, 1e9, 2e10)
    assert loss == pytest.approx(plain_fine(total, 2e10, 1), rel=1e-12)
    planned = make_plan.plan_within(Problem(FINE, PAPER, Constraints(flops=1e20), [8, 64]))
    assert "dense" not in planned  # its dense models follow another law
    for row in planned["optima"]:  # its own counts, its own ranges
        counted = row["n_total"] - 2 * row["d_model"] * PAPER.vocab_size
        outside = {o["column"]: o["value"] for o in row["extrapolation"]}
        assert ("n_experts" in outside) == (row["n_experts"] == 8)
        assert outside.get("n_total", counted) == pytest.approx(counted)
        assert ("n_total" in outside) == (not 1.29e8 <= counted <= 3.7e9)


@pytest.mark.parametrize("active, tokens, split, loss", [(7e9, 137.6e9, 32, 2.076), (1e12, 7.94e12, 64, 1.367)])
def test_fine_grained_losses_of_its_own_table(active, tokens, split, loss):
    """Two rows of the paper's table of optima, with 43 parameters in all for each active one: the count is inferred,
    and the sizes are printed to one digit."""
    assert FINE.predict(n_total=43 * active, n_tokens=tokens, granularity=split) == pytest.approx(loss, rel=9e-3)


@pytest.mark.parametrize("coefficients, served, size, tokens, plain_size, plain_tokens, digits", [
    (dict(alpha=0.336, beta=0.283, E=1.69), 5e12, 16.41e9, 3.265e12, 30e9, 1.556e12, 4e-4),
    (dict(alpha=0.336, beta=0.283, E=1.69), 1e13, 41.55e9, 7.922e12, 70e9, 4.255e12, 4e-4),
    (dict(), 5e12, 16.79e9, 3.402e12, 30e9, None, 4e-4),
])  # fmt: skip
def test_inference_optimum(coefficients, served, size, tokens, plain_size, plain_tokens, digits):
    """Sardana et al. (2024, arXiv 2401.00448): the cheapest model of the quality of a compute-optimal one that serves
    so many tokens; the planner is asked the other way round, for the best model at that cost."""
    law = load("chinchilla-2022")
    law = dataclasses.replace(law, coefficients=law.coefficients | coefficients)
    c = law.coefficients
    if plain_tokens is None:  # of a compute-optimal model: a slope of nothing along 6 N D = const
        plain_tokens = (c["beta"] * c["B"] / (c["alpha"] * c["A"]) * plain_size ** c["alpha"]) ** (1 / c["beta"])
    quality = float(law.predict(plain_size, plain_tokens))
    problem = Problem(law, PAPER, Constraints(flops=1e22, inference_tokens=served))
    cheapest = solver.least_budget(problem, 1.0, quality)
    best = solver.best_models(problem.with_budget(cheapest), 1.0)
    assert best.n_active == pytest.approx(size, rel=digits) and best.n_tokens == pytest.approx(tokens, rel=digits)
    assert cheapest < 6 * plain_size * plain_tokens + 2 * plain_size * served
    assert best.loss == pytest.approx(quality, rel=1e-9)


def test_forms_side_by_side(tmp_path):
    """Errors as of each form's own fit, those of a left-out budget by hand, and AIC and BIC."""
    made = fit_runs.sweep_runs(noise=0.003, widths=(16, 24, 32, 48))
    path = fit_runs.write_csv(tmp_path / "runs.csv", made, run=made.table.column("run"))
    settings = Settings(starts=16, weight_decay=1e-7)
    with jax.enable_x64(True):
        both = form_comparison.compare(path, [FORMS["clark"], FORMS["chinchilla"]], settings)
        runs = read_runs(path, ("n_active", "n_tokens"))
        alone = search.fit(prepare(FORMS["chinchilla"], runs, settings))
        mine = runs.n_tokens == runs.n_tokens.max()
        other = search.fit(prepare(FORMS["chinchilla"], subset(runs, ~mine), settings))
        largest = FORMS["chinchilla"].log_loss(other.params, subset(runs, mine).columns) - np.log(runs.loss[mine])
    fixed_tokens, dense = both["forms"]
    assert both["runs"] == 48 and both["budgets"] == 3 and both["budgets_by"] == "n_tokens"
    rmse = np.sqrt(np.mean((np.exp(FORMS["chinchilla"].log_loss(alone.params, runs.columns)) - runs.loss) ** 2))
    assert dense["fitted"]["rmse_nats"] == pytest.approx(rmse, rel=1e-6) and dense["held_out"] is None
    assert dense["left_out"]["by_budget"][2] == pytest.approx(rms(largest), rel=1e-2)
    rss = 48 * dense["fitted"]["rmse_log"] ** 2
    assert dense["aic"] == pytest.approx(48 * np.log(rss / 48) + 2 * 6, rel=1e-12)
    assert dense["bic"] == pytest.approx(48 * np.log(rss / 48) + 6 * np.log(48), rel=1e-12)
    assert dense["aic"] < fixed_tokens["aic"] - 20 and fixed_tokens["left_out"]["by_budget"]


def test_budgets():
    """By tokens, by FLOPs where sizes share those, else parts of the compute."""
    flops = np.repeat([1e18, 1e19], 4)
    size = np.tile([1e8, 2e8, 4e8, 8e8], 2)

    def of(n, d):
        return form_comparison.budgets_of(Runs("x", dict(n_active=n, n_tokens=d), np.ones(len(n)), Table("x", {}, [])))

    labels, by = of(size, flops / (6 * size) * 1.001)
    assert labels.tolist() == [0] * 4 + [1] * 4 and by == "training FLOPs"
    assert of(size, flops)[1] == "n_tokens"
    labels, by = of(np.geomspace(1e8, 1e10, 16), np.geomspace(1e9, 2e12, 16)[::-1] ** 1.1)
    assert by == "parts of the training FLOPs" and np.bincount(labels).tolist() == [2] * 8


def test_sparsity_follows_from_the_numbers_of_experts(tmp_path):
    (tmp_path / "runs.csv").write_text("n_total,n_tokens,n_experts,top_k,loss\n1e8,1e9,1,1,3\n8e8,1e9,16,2,2.8\n")
    runs = read_runs(str(tmp_path / "runs.csv"), ("n_total", "n_tokens", "sparsity"))
    assert runs.columns["sparsity"].tolist() == [0, 0.875]


@pytest.mark.parametrize("router, size", [("sbase", 51.83e6), ("rl", 48.91e6), ("hash", 46.99e6)])
def test_effective_parameters_of_routed_models(router, size):
    """Clark et al.: the dense model with the loss of 5M parameters and 128 experts."""
    law = load(f"clark-2022-{router}")

    def excess(log_n):
        return float(law.predict(np.exp(log_n), n_experts=1) - law.predict(5e6, n_experts=128))

    assert np.exp(scipy.optimize.brentq(excess, 10, 25)) == pytest.approx(size, abs=0.0051e6)
