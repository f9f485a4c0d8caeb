"""fit compare: each law's best against plain NumPy and its own plan, by its own counts; what the laws agree on."""

import itertools
import json

import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.fitted_law.law import load
from fit.model.architecture import PAPER
from fit.planning import make_plan
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.several_laws.compare import SharedProblem, compare_laws

SHAPE = dict(vocab_size=PAPER.vocab_size, width_per_block=PAPER.width_per_block)
LIMITS = Constraints(flops=1e22, memory_bytes=8e10)
WIDTHS = np.geomspace(64, 12_800, 200_001)
ACTIVE = 2 * WIDTHS * 50257 + 13 * WIDTHS**3 / 64


def total(experts):
    return 2 * WIDTHS * 50257 + (4 + 9 * experts) * WIDTHS**3 / 64


def answers(*laws, limits=LIMITS, experts=None):
    result = compare_laws([load(name) for name in laws], SharedProblem(SHAPE, limits, experts))
    return {row["law"]: row for row in result["laws"]}, result


def test_the_joint_law_answers_as_its_plan():
    row = answers("joint-moe-2025")[0]["joint-moe-2025"]
    planned = make_plan.plan_within(Problem(load("joint-moe-2025"), PAPER, LIMITS, [1, 2, 4, 8, 16, 32]))
    for name in ("n_experts", "n_active", "n_total", "n_tokens", "loss", "size_bound", "memory_bytes"):
        assert row[name] == planned["best"][name]
    outside = {o["column"]: o["factor"] for o in row["extrapolation"]}
    assert outside == pytest.approx({o["column"]: o["factor"] for o in planned["extrapolation"]}, rel=1e-12)
    dense = planned["dense"]
    assert row["dense"]["loss"] == dense["loss"] and row["dense"]["n_active"] == dense["n_active"]
    assert row["dense"]["loss_saved_share"] == pytest.approx(dense["loss_saved"] / dense["loss"], rel=1e-12)
    assert 1 / row["dense"]["flops_ratio"] == pytest.approx(1 - dense["flops_saved"], rel=1e-12)


def test_the_joint_law_answers_as_its_plan_by_hours():
    """The same model, extrapolation, speed and serving as in the plan's row of that number of experts."""
    limits = dict(chips="H100:8", hours=100.0, kv_tokens=4096.0)
    (row,) = fit.compare(laws=["joint-moe-2025"], **limits).laws
    planned = fit.plan("joint-moe-2025", **limits)
    (optimum_row,) = (model for model in planned.optima if model.n_experts == row.n_experts)
    for name in ("n_active", "n_total", "n_tokens", "loss", "size_bound", "memory_bytes", "extrapolation", "speed"):
        assert row[name] == optimum_row[name], name
    assert row.serving == optimum_row.cost.serving
    assert row.clock == planned.clock


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
    assert answers("joint-moe-2025")[1]["agreement"] == []


def test_without_a_limit_of_memory_the_numbers_compared_set_the_answer():
    rows, result = answers("joint-moe-2025", "sparsity-2025", limits=Constraints(flops=1e20))
    assert {a["column"]: a["limit"] for a in result["agreement"]}["n_experts"] == "experts"
    assert rows["sparsity-2025"]["not_bounded"] and not rows["joint-moe-2025"]["not_bounded"]


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
