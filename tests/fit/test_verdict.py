"""What a plan decides, its ties, and which laws count in a comparison."""

import json

import fit_runs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fit
from fit import __main__ as command_line
from fit.fitted_law.law import Law, load
from fit.planning import verdict
from fit.planning.results import Bootstrap, DrawnOptimum, Optimum


def row(n_experts, loss):
    """The best model with so many experts."""
    return Optimum(
        n_experts=n_experts,
        n_active=1e9,
        n_total=1e9 * n_experts,
        n_tokens=2e10,
        loss=loss,
        d_model=1024.0,
        size_bound="",
        memory_bytes=1e9,
        training_flops=1.2e20,
        inference_flops_per_token=2e9,
        near_optimal_n_active=None,
        extrapolation=[],
    )


def test_a_tie_is_named_with_what_sets_it_apart():
    """4 and 8 experts whose losses differ by 9e-6 nats within 80 GB, and not by their memory."""
    plan = fit.plan("joint-moe-2025", flops=1e23, memory_gb=80, kv_tokens=16384, inference_tokens=1e12)
    four, eight = (next(o for o in plan.optima if o["n_experts"] == e) for e in (4, 8))
    assert 0 < eight["loss"] - four["loss"] < 5e-4 * four["loss"]
    assert plan.verdict["tied"] == [4, 8] and plan.verdict["choice"] == "mixture"
    assert set(plan.verdict["differ"]) == {"n_tokens", "inference_flops_per_token"}
    said = " ".join(str(plan).split())  # lines are wrapped
    assert "E = 4 (" in said and "E = 8 (" in said and "They differ in tokens and FLOPs of serving" in said


def test_dense_and_mixtures_that_are_as_good_are_undecided():
    rows = [row(1, 2.0), row(8, 1.9995)]
    found = verdict.of_plan(rows, rows[1], None)
    assert found["choice"] == "undecided" and found["tied"] == [1, 8]
    assert found["cost"] == pytest.approx(5e-4 * 1.9995)
    apart = [row(1, 2.1), row(8, 1.9)]
    assert verdict.of_plan(apart, apart[1], None)["choice"] == "mixture"


@given(
    excess=st.lists(st.sampled_from([0.0, 1e-5, 4.9e-4, 5.1e-4, 2e-3, 0.017, 0.035]), min_size=1, max_size=5),
    low=st.floats(-0.1, 0.1),
)
def test_equally_good_is_a_statement_about_losses(excess, low):
    """Whatever the draws say: those within 0.05% of the least loss, and no others. The others may be undecided."""
    least = min(excess)
    rows = [row(2**i, 1.4 * (1 + more - least)) for i, more in enumerate(excess)]
    best = min(rows, key=lambda row: row.loss)
    drawn = [
        DrawnOptimum(n_experts=r.n_experts, best_in_draws=1, behind=[low, 0.2], n_active=[], n_tokens=[], loss=[])
        for r in rows
    ]
    settings = dict(form="errors", by="runs", percentiles=[10, 90], draws=5, draws_without_optimum=0, regret=0.1)
    bootstrap = Bootstrap(**settings, optima=drawn)
    found = verdict.of_plan(rows, best, bootstrap)
    assert found.tied == [r.n_experts for r in rows if r.loss / best.loss - 1 < 5.0e-4]
    others = [r.n_experts for r in rows if r.n_experts not in found.tied]
    assert found.not_told_apart == (others if low <= 0 else [])
    equal = [line for line in verdict.text(found, rows) if line.startswith("Equally good")]
    assert len(equal) == (len(found.tied) > 1)
    for r in rows:
        assert (f"E = {r.n_experts} (" in " ".join(equal)) == (bool(equal) and r.n_experts in found.tied)
    for undecided in (None, False, True):
        assert verdict.is_settled(found, undecided) == (undecided is False and len(found.tied) == 1)


def test_the_three_losses_that_were_called_equally_good():
    rows = [row(2, 1.4565), row(4, 1.4313), row(8, 1.4068)]
    assert verdict.of_plan(rows, rows[2], None).tied == [8]


def with_draws(name):
    """A published law with ten draws, all of them itself."""
    law = load(name)
    draws = [list(law.coefficients.values())] * 10
    record = law.record | dict(bootstrap=dict(form="errors", percentiles=[10, 90], draws=draws))
    return Law(name, law.form, law.coefficients, record)


def how_sure(plan):
    """The line of a plan's text on that, unwrapped."""
    said = " ".join(str(plan).split())
    return said[said.index("How sure:") : said.index("Extrapolates")]


@pytest.mark.parametrize("law, experts", [("chinchilla-2022", None), ("joint-moe-2025", [8])])
def test_one_number_of_experts_is_never_called_settled(law, experts):
    """Neither that of a law of dense models, nor one that was asked for."""
    plan = fit.plan(with_draws(law), flops=1e22, experts=experts)
    assert plan.best_undecided is None and plan.bootstrap.draws == 10
    assert "settled" not in how_sure(plan) and "one number of experts was compared" in how_sure(plan)


def test_of_several_numbers_one_is_settled_unless_others_are_as_good():
    """All draws agree in both; at 80 GB the losses of 4 and 8 experts differ by 9e-6 nats."""
    assert "the best is settled (32 in 10 of 10 fits)" in how_sure(fit.plan(with_draws("joint-moe-2025"), flops=1e22))
    limits = dict(flops=1e23, memory_gb=80, kv_tokens=16384, inference_tokens=1e12)
    tied = fit.plan(with_draws("joint-moe-2025"), **limits)
    assert tied.verdict.tied == [4, 8] and tied.best_undecided is False
    assert "settled" not in how_sure(tied) and "others are as good" in how_sure(tied)


def test_one_number_of_experts_decides_nothing():
    plan = fit.plan("joint-moe-2025", flops=1e22, experts=[8])
    assert plan.verdict["choice"] is None and "Verdict" not in str(plan) and "Undecided" not in str(plan)


def test_draws_that_disagree_make_it_undecided(tmp_path):
    """Draws of the experts' coefficients: in some a dense model is the best. The regret is that of brute force."""
    path = fit_runs.write_demo_law(tmp_path / "law.json")
    record = json.loads((tmp_path / "law.json").read_text())
    rng = np.random.default_rng(1)
    law = record["coefficients"]
    draws = [[v + (0.25 * rng.normal() if name == "delta" else 0) for name, v in law.items()] for _ in range(40)]
    record["bootstrap"] = dict(form="errors", percentiles=[10, 90], draws=draws)
    (tmp_path / "law.json").write_text(json.dumps(record))
    plan = fit.plan(path, flops=2e12)
    assert plan.verdict["choice"] == "undecided" and 1 in plan.verdict["not_told_apart"]
    assert not set(plan.verdict["tied"]) & set(plan.verdict["not_told_apart"])
    drawn = load(path)
    losses = []
    for draw in draws:
        one = dict(record, coefficients=dict(zip(law, draw, strict=True)))
        one.pop("bootstrap")
        (tmp_path / "one.json").write_text(json.dumps(one))
        optima = fit.plan(str(tmp_path / "one.json"), flops=2e12, experts=list(drawn.experts)).optima
        losses.append([o["loss"] for o in optima])
    losses = np.array(losses)
    chosen = list(drawn.experts).index(plan.best["n_experts"])
    regret = np.percentile(losses[:, chosen] - losses.min(axis=1), 90, method="weibull")
    assert plan.verdict["cost"] == pytest.approx(regret, rel=1e-9) and regret > 0
    assert "Undecided" in str(plan)
    behind = next(row["loss"] for row in plan.optima if row["n_experts"] == 1) - plan.best["loss"]
    said = " ".join(str(plan).split())
    assert f"do not tell E = {plan.best['n_experts']} from E = 1 (by the law {behind:.4f} nats" in said


def test_a_law_far_beyond_its_compute_is_shown_and_does_not_count(capsys):
    laws = "--laws=jmoe-bytes-2026,joint-moe-2025"
    command = ["compare", laws, "--flops=1e22", "--shape=vocab_size:50257", "--shape=width_per_block:64"]
    assert command_line.run(command) == 0
    said = capsys.readouterr().out
    assert "jmoe-bytes-2026 does not count: its answer lies more than 1,000 times beyond" in said
    assert "1 of 1 laws of mixtures prefer" in said
    assert command_line.run([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["law"] for row in result["laws"]} == {"jmoe-bytes-2026", "joint-moe-2025"}
    assert not [a for a in result["agreement"] if "jmoe-bytes-2026" in (a["low_law"], a["high_law"])]
