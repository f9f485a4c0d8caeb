"""What a plan decides, its ties, and which laws count in a comparison."""

import json

import fit_runs
import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.fitted_law.law import load
from fit.planning import verdict
from fit.planning.results import Optimum


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
    assert plan.verdict["choice"] == "undecided" and 1 in plan.verdict["tied"]
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


def test_a_law_far_beyond_its_compute_is_shown_and_does_not_count(capsys):
    laws = "--laws=jmoe-bytes-2026,joint-moe-2025"
    command = ["compare", laws, "--flops=1e22", "--vocab_size=50257", "--width_per_block=64"]
    assert command_line.run(command) == 0
    said = capsys.readouterr().out
    assert "jmoe-bytes-2026 does not count: its answer lies more than 1,000 times beyond" in said
    assert "1 of 1 laws of mixtures prefer" in said
    assert command_line.run([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["law"] for row in result["laws"]} == {"jmoe-bytes-2026", "joint-moe-2025"}
    assert not [a for a in result["agreement"] if "jmoe-bytes-2026" in (a["low_law"], a["high_law"])]
