"""fit compare of one law against its plan: the same problem has the same answer, whichever command is asked."""

import dataclasses

import fit_runs
import pytest

import fit
from fit.fitted_law.expert_widths import Shares
from fit.fitted_law.law import Law, load
from fit.fitted_law.table_architecture import Ratios
from fit.render import tables

PUBLISHED = ("joint-moe-2025", "sparsity-2025", "jmoe-bytes-2026", "chinchilla-2022", "chinchilla-refit-2024")
LIMITS = {
    "flops": dict(),
    "memory": dict(memory_gb=1e-3),
    "max_tokens": dict(max_tokens=1e7),
    "shape": dict(shape=dict(kv_share=0.5)),
}
COLUMNS = ("n_experts", "n_active", "n_total", "n_tokens", "loss", "d_model", "memory_bytes", "size_bound")


def demo_law(folder, **models) -> Law:
    """The demo's law, with other fields of its models."""
    law = load(fit_runs.write_demo_law(folder / "law.json"))
    return dataclasses.replace(law, models=dataclasses.replace(law.models, **models))


def laws(folder) -> dict[str, Law]:
    """{name: law}: as a demo leaves it, of narrow experts, of experts whose width changes with the size, and of another
    vocabulary and width per block."""
    ratios = Ratios(granularity=4.0, top_k=2, shared=1, kv_share=0.5)
    shares = Shares(n_active=(1e4, 1e5, 1e6, 1e7), share=(0.2, 0.3, 0.5, 0.6))
    return {
        "demo": demo_law(folder),
        "narrow": demo_law(folder, architecture=ratios, final_norm=True),
        "shares": demo_law(folder, architecture=ratios, shares=shares),
        "vocabulary": demo_law(folder, vocab_size=1000, width_per_block=16, final_norm=True),
    }


@pytest.mark.parametrize("experts", [(8,), (8, 16)])
def test_a_law_of_mixtures_of_one_number_of_experts_says_nothing_of_others(experts):
    """That of fine-grained mixtures counts their weights alone: all its runs had 64 experts."""
    with pytest.raises(fit.UserError, match="was fitted to mixtures of 64 experts alone"):
        fit.plan("fine-grained-2024", flops=1e21, experts=experts)
    compared = fit.compare(["fine-grained-2024", "joint-moe-2025"], flops=1e21, experts=experts)
    assert [row.law for row in compared.laws] == ["joint-moe-2025"]
    (without,) = compared.infeasible
    assert "mixtures of 64 experts alone" in without.why
    with_its_number = fit.compare(["fine-grained-2024"], flops=1e21, experts=(*experts, 64))
    assert with_its_number.laws == fit.compare(["fine-grained-2024"], flops=1e21).laws
    law = load("fine-grained-2024")
    for which in ("1", "2"):
        rows = tables.rows_of(which, law, law.architecture)
        assert {row["n_experts"] for row in rows} == {64}


def assert_answers_as_its_plan(law, limits) -> None:
    """The row of the law is the plan's model of the least loss by the medians."""
    (row,) = fit.compare([law], **limits).laws
    plan = fit.plan(law, **limits)
    best = min(plan.optima, key=lambda model: model.loss)
    for name in COLUMNS:
        assert row[name] == best[name], name
    assert row.granularity == plan.get("granularity", 1.0)
    codes = {finding.code for finding in row.findings}
    assert ("not_bounded" in codes) == ("not_bounded" in {finding.code for finding in plan.findings})
    if plan.best is best:
        assert row.at_edge == plan.best_at_edge


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("name", ["demo", "narrow", "shares", "vocabulary"])
def test_a_law_of_ones_own_answers_as_its_plan(tmp_path, name, limits):
    assert_answers_as_its_plan(laws(tmp_path)[name], dict(flops=1e14) | limits)


@pytest.mark.parametrize("name", ["narrow", "shares", "vocabulary"])
def test_a_law_of_ones_own_answers_as_its_plan_by_hours(tmp_path, name):
    assert_answers_as_its_plan(laws(tmp_path)[name], dict(hours=0.01, chips="A100:1"))


@pytest.mark.parametrize("limits", [dict(flops=1e20), dict(flops=1e20, max_tokens=1e9, memory_gb=8)])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_law_answers_as_its_plan(name, limits):
    assert_answers_as_its_plan(name, limits)


def test_a_law_of_one_number_of_experts_answers_as_its_plan(tmp_path):
    """Its number counts what a token chooses from, also where an option says how narrow experts are."""
    law = load(fit_runs.write_demo_law(tmp_path / "law.json", n_experts=[8]))
    chinchilla = load("chinchilla-2022")
    law = dataclasses.replace(law, form=chinchilla.form, coefficients=chinchilla.coefficients)
    assert law.only_n_experts == 8 and law.holds_for_mixtures
    for shape in (dict(), dict(granularity=2.0), dict(dense_blocks=1)):
        assert_answers_as_its_plan(law, dict(flops=1e18, shape=shape))


def test_laws_of_one_vocabulary_have_it_and_others_the_papers(tmp_path):
    """Two laws of the same sizes are compared at these; beside a published law all have the paper's."""
    own = demo_law(tmp_path, vocab_size=1000, width_per_block=64)
    result = fit.compare([own, own], flops=1e14)
    assert (result.vocab_size, result.width_per_block) == (1000, 64)
    result = fit.compare([own, load("joint-moe-2025")], flops=1e18)
    assert (result.vocab_size, result.width_per_block) == (50257, 64)
    result = fit.compare([own, load("joint-moe-2025")], flops=1e18, shape=dict(vocab_size=1000))
    assert (result.vocab_size, result.width_per_block) == (1000, 64)


@pytest.mark.parametrize("experts", [(32,), (8, 32), (1, 4)])
def test_the_edge_of_the_numbers_compared_is_the_plans(experts):
    """At the smallest of several numbers fewer were not compared; of one number alone nothing is said."""
    limits = dict(flops=1e22, memory_gb=30, experts=experts)
    (row,) = fit.compare(["joint-moe-2025"], **limits).laws
    plan = fit.plan("joint-moe-2025", **limits)
    of_plan = [finding.values["which"] for finding in plan.findings if finding.code == "at_edge"]
    of_row = [finding.values["which"] for finding in row.findings if finding.code == "law_at_edge"]
    assert row.n_experts == plan.best.n_experts
    assert of_row == [dict(largest="more", smallest="fewer")[which] for which in of_plan]
    if experts == (8, 32):
        printed = str(fit.compare(["joint-moe-2025"], **limits))
        assert row.n_experts == 8 and "fewer experts were not compared" in printed


def test_one_number_of_experts_alone_is_not_unbounded():
    limits = dict(flops=1e22, experts=(32,))
    (row,) = fit.compare(["sparsity-2025"], **limits).laws
    assert not row.not_bounded
    assert "not_bounded" not in {finding.code for finding in fit.plan("sparsity-2025", **limits).findings}


def test_speeds_of_ones_own_are_of_the_architecture_that_is_chosen(tmp_path):
    """A table that does not say how narrow experts are is read as the models of the plan, asked for or chosen."""
    speeds = tmp_path / "speeds.csv"
    speeds.write_text("d_model,n_experts,tokens_per_second\n1024,8,2e5\n2048,8,5e4\n1024,1,4e5\n")
    limits = dict(hours=20, chips="H100:8", speeds=str(speeds), experts=(1, 8))
    (chosen,) = fit.compare(["comprehensive-2025"], **limits).laws
    assert chosen.granularity > 1
    shape = dict(granularity=chosen.granularity, shared_experts=chosen.shared)
    (asked,) = fit.compare(["comprehensive-2025"], **limits, shape=shape).laws
    assert (asked.n_experts, asked.n_active, asked.loss) == (chosen.n_experts, chosen.n_active, chosen.loss)
    assert asked.speed == chosen.speed
