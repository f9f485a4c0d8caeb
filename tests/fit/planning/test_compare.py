"""fit compare: each law's best against plain NumPy and its own plan, by its own counts; what the laws agree on."""

import itertools
import json

import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.fitted_law.law_files import load
from fit.model.architecture import PAPER

SHAPE = dict(vocab_size=PAPER.vocab_size, width_per_block=PAPER.width_per_block)
WIDTHS = np.geomspace(64, 12_800, 80_001)
ACTIVE = 2 * WIDTHS * 50257 + 13 * WIDTHS**3 / 64


def total(experts):
    return 2 * WIDTHS * 50257 + (4 + 9 * experts) * WIDTHS**3 / 64


def answers(*laws, **limits):
    """({law: its answer}, the comparison) with 10^22 FLOPs within 80 GB, unless limits are given."""
    result = fit.compare([*laws], **(dict(flops=1e22, memory_gb=80) | limits), shape=SHAPE)
    return {row["law"]: row for row in result["laws"]}, result


ASKED = {
    "flops": dict(flops=1e22, memory_gb=80),
    "hours": dict(chips="H100:8", hours=100, kv_tokens=4096),
    "paper": dict(flops=1e21, chips="H100:64", shape="paper"),
    "paper-hours": dict(hours=100, chips="H100:64", shape="paper"),
    "served": dict(flops=1e22, chips="H100:64", devices=4, serve=dict(tokens_per_second=5000, batch=32)),
    "like": dict(flops=1e22, like="Qwen3-30B-A3B"),
    "like-hours": dict(hours=100, chips="H100:8", like="Qwen3-8B"),
    "unlike-medians": dict(hours=1000, chips="v5p:2x2x2"),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_the_joint_law_answers_as_its_plan(asked):
    """The same model, extrapolation, speed and serving, and the same gain over dense models."""
    found = fit.compare(["joint-moe-2025"], **asked)
    (row,) = found.laws
    plan = fit.plan("joint-moe-2025", **asked)
    best = plan.best
    for name in ("n_experts", "n_active", "n_total", "n_tokens", "loss", "size_bound", "memory_bytes", "extrapolation"):
        assert row[name] == best[name], name
    assert row.get("clock") == plan.clock and found.agreement == []
    if "chips" in asked:
        assert row.serving == best.cost.serving
    if asked is ASKED["unlike-medians"]:
        assert row.n_experts != plan.odds.by_median == row.clock.by_time
    if "hours" in asked and "shape" not in asked:
        assert row.speed == best.speed and "flops_ratio" not in row.dense
        assert 1 / row.dense.hours_ratio == pytest.approx(1 - plan.dense.hours_saved, rel=1e-9)
    else:
        assert 1 / row.dense.flops_ratio == pytest.approx(1 - plan.dense.flops_saved, rel=1e-9)
    assert row.dense.loss == plan.dense.loss and row.dense.n_active == plan.dense.n_active
    assert row.dense.loss_saved_share == pytest.approx(plan.dense.loss_saved / plan.dense.loss, rel=1e-9)


LIKE = {
    "fresh": dict(flops=1e22),
    "capped": dict(flops=1e22, max_tokens=1e11, inference_tokens=1e11),
    "repeated": dict(flops=1e22, max_tokens=3e10, epochs=4, experts=(8,)),
    "experts": dict(flops=1e22, experts=(8, 16)),
    "width": dict(law="sparsity-2025", flops=1e22, shape=dict(used=(1, 2)), like="Qwen3-30B-A3B"),
}


@pytest.mark.parametrize("name", LIKE)
def test_a_plan_and_the_laws_beside_its_model_to_start_from_have_the_same_limits(name):
    """The planning law's row is the plan. With the FLOPs that it says, a plan has the loss of that model."""
    limits = LIKE[name]
    asked = dict(law="joint-moe-2025", like="Qwen3-8B") | limits
    plan = fit.plan(**asked)
    row, *others = plan.like["laws"]
    best = plan.best
    assert row.law == plan.law
    for column in ("n_experts", "n_active", "n_total", "n_tokens", "loss", "size_bound", "extrapolation"):
        assert row[column] == best[column], column
    without_plan = plan.like.get("infeasible", [])
    assert len(others) + len(without_plan) == 3
    why = {"repeated": "--epochs", "experts": "mixtures of 64 experts alone"}.get(name, "")
    assert bool(why) == bool(without_plan) and all(why in law.why for law in without_plan)
    cap = limits.get("max_tokens", np.inf) * limits.get("epochs", 1)
    assert row.like.n_tokens <= cap
    its_flops = plan.like["n_active"] * (6 * row.like.n_tokens + 2 * limits.get("inference_tokens", 0))
    assert its_flops <= 1e22 * (1 + 1e-9)
    shape = dict(used=(row.active_width,)) if "shape" in limits else {}
    within = asked | dict(flops=row.like.flops_share * its_flops, experts=(row.n_experts,), shape=shape)
    assert fit.plan(**within).best.loss == pytest.approx(row.like.loss, rel=1e-6)


def test_the_fine_grained_law_is_asked_by_its_own_counts():
    """Without embedding in the law's N, with it in memory and FLOPs; dense models by the paper's dense law."""
    row = answers("fine-grained-2024")[0]["fine-grained-2024"]
    tokens, embedding = 1e22 / (6 * ACTIVE), 2 * WIDTHS * 50257
    loss = 0.47 + (2.1 / 16**0.58 + 18.1) / (total(64) - embedding) ** 0.115 + 30.8 / tokens**0.147
    i = np.argmin(np.where(2 * total(64) <= 8e10, loss, np.inf))
    assert row["n_experts"] == 64 and row["granularity"] == 16 and row["finest"]
    assert row["loss"] == pytest.approx(loss[i], rel=1e-5) and row["n_active"] == pytest.approx(ACTIVE[i], rel=1e-3)
    dense = 0.47 + 16.3 / (ACTIVE - embedding) ** 0.126 + 26.7 / tokens**0.127
    assert row["dense"]["law"] == "fine-grained-dense-2024"
    assert row["dense"]["loss"] == pytest.approx(dense.min(), rel=1e-9)
    assert row["dense"]["n_active"] == pytest.approx(ACTIVE[np.argmin(dense)], rel=1e-3)


def test_the_law_of_five_factors_chooses_how_experts_are_split():
    row = answers("comprehensive-2025", experts=[1, 8])[0]["comprehensive-2025"]
    tokens, best = 1e22 / (6 * ACTIVE), []
    for e, g in itertools.product((1, 8), (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20)):
        for shared in range(g):
            s = shared / g
            structure = 0.1577 * g + 7.2446 / g + 5.1395 * s**2 - 3.2363 * s
            size = total(e) ** -0.2383 + 0.0013 * ACTIVE**-0.2383 + 0.0450 * ACTIVE / total(e)
            loss = structure * size + 38.051 * total(e) ** -0.2383 + 27129.05 * tokens**-0.4694
            loss = np.where(2 * total(e) <= 8e10, loss + 31.096 * ACTIVE**-0.2383 + 1.8182, np.inf)
            if s <= 0.7:
                best.append((loss.min(), e, g, shared))
    loss, e, g, shared = min(best)
    assert (row["n_experts"], row["granularity"], row["shared"]) == (e, g, shared) == (8, 7, 2)
    assert row["loss"] == pytest.approx(loss, rel=1e-5)
    assert row["dense"]["loss"] == pytest.approx(min(b for b in best if b[1] == 1)[0], rel=1e-5)
    assert not any(o["column"] in ("top_k", "shared_share") for o in row["extrapolation"])


def test_what_the_laws_agree_on():
    rows, result = answers("joint-moe-2025", "sparsity-2025", "fine-grained-2024", "chinchilla-refit-2024")
    agreed = {(a["of"], a["column"]): a for a in result["agreement"]}
    active = agreed["best", "n_active"]
    sizes = {name: row["n_active"] for name, row in rows.items() if name != "chinchilla-refit-2024"}
    assert (active["low"], active["high"]) == (min(sizes.values()), max(sizes.values()))
    assert sizes[active["low_law"]] == active["low"] and sizes[active["high_law"]] == active["high"]
    assert active["factor"] == active["high"] / active["low"] > 2 and not active["agree"]
    assert agreed["best", "n_total"]["limit"] == "memory"  # which is why it is one number
    # of the number of experts the law of 64 has no say; a law of dense models has one of their size alone
    assert {agreed["best", "n_experts"][end] for end in ("low_law", "high_law")} == {"joint-moe-2025", "sparsity-2025"}
    assert agreed["best", "n_experts"]["agree"] and agreed["best", "n_experts"]["limit"] is None
    dense = {name: row["dense"]["n_tokens"] for name, row in rows.items()}
    assert agreed["dense", "n_tokens"]["high"] == max(dense.values()) and len(dense) == 4
    assert rows["chinchilla-refit-2024"]["dense"]["loss_saved_share"] == 0


def test_without_a_limit_of_memory_the_numbers_compared_set_the_answer():
    rows, result = answers("joint-moe-2025", "sparsity-2025", flops=1e20, memory_gb=None)
    assert {a["column"]: a["limit"] for a in result["agreement"]}["n_experts"] == "experts"
    assert rows["sparsity-2025"]["not_bounded"] and not rows["joint-moe-2025"]["not_bounded"]


@pytest.mark.parametrize("verbose", (False, True))
def test_what_the_laws_say_is_printed_once_and_in_the_json(verbose):
    result = fit.compare(flops=1e21, verbose=verbose)
    printed = " ".join(str(result).split())
    codes = [found["code"] for found in result.to_dict()["findings"]]
    assert "laws_vote" in codes and "laws_prefer" in codes
    for sentence in result.to_dict()["conclusion"]:
        assert printed.count(sentence) == 1, sentence


def run(*arguments):
    return command_line.run(["compare", *arguments])


def test_json_with_a_law_of_ones_own(tmp_path, capsys):
    coefficients = load("joint-moe-2025").coefficients | dict(c=1.5)
    (tmp_path / "law.json").write_text(json.dumps(dict(form="joint", coefficients=coefficients)))
    own = f"{tmp_path}/law.json"
    # at 15 MB a model of 64 experts does not fit, smaller ones do
    assert run("--flops=1e17", "--memory_gb=0.015", f"--laws={own},fine-grained-2024", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["law"] for row in result["laws"]] == [own] and result["laws"][0]["extrapolation"] == []
    assert result["infeasible"][0]["law"] == "fine-grained-2024" and "n_experts = 64" in result["infeasible"][0]["why"]
    assert result["about"].startswith("Losses are not set against each other")
