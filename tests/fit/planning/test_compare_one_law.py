"""fit compare of one law against its plan: the same problem has the same answer, whichever command is asked."""

import dataclasses

import fit_runs
import pytest

import fit
from fit.fitted_law.architecture_ratios import ArchitectureRatios
from fit.fitted_law.expert_widths import ExpertShares
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
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
    ratios = ArchitectureRatios(granularity=4.0, top_k=2, shared=1, kv_share=0.5)
    shares = ExpertShares(n_active=(1e4, 1e5, 1e6, 1e7), share=(0.2, 0.3, 0.5, 0.6))
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
    """The row of the law is the model that its plan recommends, with the same doubts."""
    (row,) = fit.compare([law], **limits).laws
    assert_is_the_plan(row, fit.plan(law, **limits))


def assert_is_the_plan(row, plan) -> None:
    """The row of a comparison is the model that the plan recommends, with the same doubts."""
    for name in COLUMNS:
        assert row[name] == plan.best[name], name
    assert row.granularity == plan.get("granularity", 1.0)
    assert row.at_edge == plan.best_at_edge
    for code in ("not_bounded", "not_read"):
        of_row = [each for each in row.findings if each.code == code]
        assert of_row == [each for each in plan.findings if each.code == code]


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("name", ["demo", "narrow", "shares", "vocabulary"])
def test_a_law_of_ones_own_answers_as_its_plan(tmp_path, name, limits):
    assert_answers_as_its_plan(laws(tmp_path)[name], dict(flops=1e14) | limits)


@pytest.mark.parametrize("name", ["narrow", "shares", "vocabulary"])
def test_a_law_of_ones_own_answers_as_its_plan_by_hours(tmp_path, name):
    assert_answers_as_its_plan(laws(tmp_path)[name], dict(hours=0.01, chips="A100:1"))


@pytest.mark.parametrize("limits", [dict(), dict(max_tokens=1e9, memory_gb=8), dict(memory_gb=4)])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_law_answers_as_its_plan(name, limits):
    assert_answers_as_its_plan(name, dict(flops=1e20) | limits)


def test_both_recommend_by_the_draws_and_not_by_the_medians():
    """The law above, within 4 GB, has another best number of experts by its medians."""
    odds = fit.plan("jmoe-bytes-2026", flops=1e20, memory_gb=4).odds
    assert odds.recommended != odds.by_median


@pytest.mark.parametrize("limits", [dict(), dict(memory_gb=8), dict(like="Qwen3-30B-A3B")])
def test_of_several_widths_both_choose_the_same(limits):
    limits = dict(flops=1e21, shape=dict(used=(1, 2, 4))) | limits
    assert_answers_as_its_plan("sparsity-2025", limits)


@pytest.mark.parametrize("limits", [dict(flops=1e21), dict(flops=1e21, memory_gb=16), dict(hours=20, chips="H100:8")])
@pytest.mark.parametrize("name", ["fine-grained-2024", "comprehensive-2025"])
def test_a_law_of_splits_answers_as_its_plan_of_the_split_that_it_chooses(name, limits):
    (row,) = fit.compare([name], **limits).laws
    shape = dict(granularity=row.granularity, shared_experts=row.shared)
    plan = fit.plan(name, **limits, shape=shape)
    assert row.granularity > 1
    assert_is_the_plan(row, plan)


NOT_READ = {  # of each law, the fields of a shape that it has no column for
    "joint-moe-2025": "used:2 kv_share:0.5 dense_blocks:1 granularity:4 shared_experts:1",
    "sparsity-2025": "kv_share:0.5 dense_blocks:1 granularity:4 shared_experts:1",
    "fine-grained-2024": "used:2 kv_share:0.5 dense_blocks:1 shared_experts:1",
    "comprehensive-2025": "kv_share:0.5 dense_blocks:1",
    "chinchilla-refit-2024": "kv_share:0.5",
}


@pytest.mark.parametrize("name", NOT_READ)
def test_a_plan_and_a_comparison_say_what_a_law_does_not_read(name):
    """In the same words. Fields of experts make no difference to a law of dense models."""
    shape = dict(kv_share=0.5, dense_blocks=1, granularity=4.0, shared_experts=1)
    if name != "chinchilla-refit-2024":
        shape["used"] = (2,)
    (row,) = fit.compare([name], flops=1e21, shape=shape).laws
    (of_row,) = (each for each in row.findings if each.code == "not_read")
    (of_plan,) = (each for each in fit.plan(name, flops=1e21, shape=shape).findings if each.code == "not_read")
    assert of_row == of_plan
    assert of_row.values["asked"].replace("--shape=", "").replace(",", "") == NOT_READ[name]
    assert [f"{field}:{value:g}" for field, value in row.not_read.items()] == NOT_READ[name].split()


def test_what_a_laws_own_runs_had_needs_no_column(tmp_path):
    """Also experts whose width changes with the size."""
    own = laws(tmp_path)
    for law, shape in ((own["narrow"], dict(kv_share=0.5, granularity=4.0, shared_experts=1)), (own["shares"], {})):
        (row,) = fit.compare([law], flops=1e14, shape=shape).laws
        plan = fit.plan(law, flops=1e14, shape=shape)
        assert row.not_read == {} and "not_read" not in {each.code for each in (*row.findings, *plan.findings)}


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
