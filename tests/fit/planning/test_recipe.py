"""Recipes of plans: rates and batches of published laws by hand, ranges, doubts, and the config that they become."""

import runpy

import fit_command
import fit_runs
import jax
import numpy as np
import pytest

from configs import pretrain
from fit.fitted_law.law_files import load
from fit.model.architecture import PAPER, Architecture, Model
from fit.planning.recipe import ramps, rates
from fit.planning.recipe.make_recipe import recipe_of
from jmoe.config import counts, schema
from jmoe.config.check import check_config
from jmoe.config.schedule import Schedule
from jmoe.model import sharding

PAPERS = load("joint-moe-2025")


def plan(*flags, law="joint-moe-2025"):
    return fit_command.answer("plan", f"--law={law}", *flags)


# The laws, by numbers of their papers.


def test_flops_outside_embedding_and_head_are_those_of_deepseek_llm():
    """Its 7B: M = 72 x 30 x 4096^2 + 12 x 30 x 4096 x 4096 = 42,278,584,320, where 72 stands for layers of d_ff = 8/3
    d_model. On 2T tokens the paper gives a peak rate of 4.2e-4 and 2,304 rows of 4,096 tokens."""
    dense_7b = Architecture(vocab_size=102_400, width_per_block=4096 / 30, head_dim=128, ff=8 / 3)
    run = rates.run_of(Model(dense_7b, 30, 1, 4096).shape, 2e12, sequence=4096)
    assert run.flops == pytest.approx(42_278_584_320 * 2e12, rel=1e-4)
    assert rates.DEEPSEEK_LLM.learning_rate(run) == pytest.approx(4.2e-4, rel=0.02)
    assert rates.DEEPSEEK_LLM.batch_tokens(run) == pytest.approx(2304 * 4096, rel=0.03)
    assert run.active == run.total == pytest.approx(12 * 30 * 4096**2, rel=1e-4)


def test_step_law_by_hand():
    """7B parameters on 1.4T tokens: log10 of the rate is 0.25285 - 0.713 x 9.84510 + 0.307 x 12.14613 = -3.03786."""
    run = rates.CountedRun(active=7e9, total=7e9, n_tokens=1.4e12, flops=0, kind=rates.DENSE)
    assert rates.STEP_LAW.learning_rate(run) == pytest.approx(10**-3.03786, rel=1e-4)
    assert rates.STEP_LAW.batch_tokens(run) == pytest.approx(10 ** (-0.23657 + 0.571 * 12.14613), rel=1e-4)
    assert rates.STEP_LAW.extrapolation(run) == pytest.approx(1.4e12 / 1e11)


@pytest.mark.parametrize(
    "run, best_rate, best_batch",
    [  # the run of the lowest loss of a public grid of step-law/steplaw, whose steps are sqrt(2) and up to 2
        (rates.CountedRun(1.07e9, 1.07e9, 2e10, 0, rates.DENSE), 1.381e-3, 524_288),
        (rates.CountedRun(4.29e8, 4.29e8, 5e10, 0, rates.DENSE), 1.953e-3, 524_288),
        (rates.CountedRun(5.9e8, 2.16e9, 2e10, 0, rates.MIXTURE), 6.9e-4, 262_144),  # 8 experts, 1 of them a token
        (rates.CountedRun(1.88e8, 2.15e9, 8e9, 0, rates.MIXTURE), 4.88e-4, 262_144),  # 89 experts
    ],
)
def test_step_law_holds_for_its_public_runs_and_counts_all_experts(run, best_rate, best_batch):
    assert 1 / 1.6 < rates.STEP_LAW.learning_rate(run) / best_rate < 1.6
    assert 1 / 2 < rates.STEP_LAW.batch_tokens(run) / best_batch < 2


@pytest.mark.parametrize("flops, rate, rows", [(2e20, 8.1e-4, 531), (6e20, 7.0e-4, 795)])
def test_lings_law_is_near_the_runs_of_its_paper(flops, rate, rows):
    """Table 7 of arXiv 2507.17702, whose FLOPs count the head too."""
    run = rates.CountedRun(active=0, total=0, n_tokens=0, flops=flops, kind=rates.MIXTURE)
    assert rates.LING.learning_rate(run) == pytest.approx(rate, rel=0.15)
    assert rates.LING.batch_tokens(run) == pytest.approx(rows * 4096, rel=0.25)


PUBLISHED = {  # active and total parameters, tokens, peak rate, tokens in a batch
    "OLMoE": (1.3e9, 6.9e9, 5.1e12, 4e-4, 4.19e6),
    "DeepSeek-V2-Lite": (2.4e9, 15.7e9, 5.7e12, 4.2e-4, 18.9e6),
    "DeepSeek-V2": (21e9, 236e9, 8.1e12, 2.4e-4, 37.7e6),
    "DeepSeek-V3": (37e9, 671e9, 14.8e12, 2.2e-4, 62.9e6),
    "Kimi K2": (32.6e9, 1.04e12, 15.5e12, 2e-4, 67e6),
    "DeepSeek LLM 67B": (67e9, 67e9, 2e12, 3.2e-4, 18.9e6),
    "Llama 2 7B": (6.7e9, 6.7e9, 2e12, 3e-4, 4.19e6),
    "Llama 3 405B": (405e9, 405e9, 15.6e12, 8e-5, 16.8e6),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_recipes_of_published_models_are_near(name):
    """Rates within a factor of 2, batches within 2.5, of what these were trained at."""
    active, total, n_tokens, rate, batch = PUBLISHED[name]
    kind = rates.MIXTURE if total > active else rates.DENSE
    run = rates.CountedRun(active, total, n_tokens, 6 * active * n_tokens, kind)
    value, low, high = rates.learning_rate(run)
    assert low <= value <= high and 1 / 2 < value / rate < 2
    if kind == rates.MIXTURE:  # by compute alone
        assert 1 / 1.25 < rates.LING.learning_rate(run) / rate < 1.25
    value, low, high = rates.batch_tokens(run)
    assert low <= value <= high and 1 / 2.5 < value / batch < 2.5


@pytest.mark.parametrize("total, n_tokens", [(1e13, 1e12), (1e10, 1e14), (3e11, 3e11)])
def test_a_rate_stays_near_the_law_of_compute(total, n_tokens):
    """However many experts or tokens there are."""
    run = rates.CountedRun(3e9, total, n_tokens, 6 * 3e9 * n_tokens, rates.MIXTURE)
    value, low, high = rates.learning_rate(run)
    assert low <= value <= high
    assert rates.LING.learning_rate(run) / 2 <= value <= rates.LING.learning_rate(run)


# Which recipe a plan has.


def test_within_the_sizes_of_a_laws_runs_their_recipe_stays():
    inside = recipe_of(PAPERS, Model(PAPER, 8, 8), 1e9)
    assert (inside.base_config, inside.sequence, inside.extrapolation) == ("configs/joint_moe.py", 512, 1)
    assert inside.learning_rate == pytest.approx(
        np.exp(8.39164 - 0.81218 * np.log(78_731_264) - 0.25 * np.log(8)), 1e-3
    )
    assert inside.batch_tokens == ((0, 65_536), (500_000_000, 131_072))
    assert not inside.note and not inside.findings


@pytest.mark.parametrize("n_blocks, n_tokens", [(36, 8.1e10), (60, 1e10)])
def test_beyond_the_sizes_the_recipe_is_that_of_published_models(n_blocks, n_tokens):
    """Beyond in tokens alone, or in parameters alone."""
    outside = recipe_of(PAPERS, Model(PAPER, n_blocks, 8), n_tokens)
    assert outside.base_config == "configs/pretrain.py" and outside.sequence == 4096
    assert "instead of 512" in outside.note
    low, high = outside.learning_rate_range
    assert low <= outside.learning_rate <= high
    assert outside.extrapolation == max(row["extrapolation"] for row in outside.laws) > 1
    starts, batches = zip(*outside.batch_tokens, strict=True)
    assert starts[0] == 0 and list(batches) == sorted(set(batches)) and all(batch % 4096 == 0 for batch in batches)


def test_models_below_all_published_laws_keep_the_recipe_of_the_laws_runs(tmp_path):
    law = load(fit_runs.write_demo_law(tmp_path / "law.json"))
    shape = Architecture(vocab_size=257, width_per_block=8)
    for n_blocks, base in ((16, "configs/quickstart.py"), (128, "configs/pretrain.py")):  # 3.5M, 1.7B parameters
        assert recipe_of(law, Model(shape, n_blocks, 1), 1e10).base_config == base


def test_a_ramp_for_a_mesh_has_whole_multiples():
    ramp = ((0, 1_048_576), (10, 2_097_152), (20, 4_194_304))
    assert ramps.divisible(ramp, 4096) == ramp
    assert ramps.divisible(ramp, 96 * 4096) == ((0, 3 * 96 * 4096), (10, 6 * 96 * 4096), (20, 11 * 96 * 4096))
    assert ramps.divisible(ramp, 1024 * 4096) == ((0, 4_194_304),)
    assert ramps.steps_of(((0, 1_000), (1_000_000, 100_000)), 1e9) == 1_000 + 9_990


# The plan that practitioners would sign, and its config.


@pytest.mark.parametrize("law", ["joint-moe-2025", "comprehensive-2025"])
def test_ten_days_of_64_h100_have_a_recipe_of_published_models(law, tmp_path):
    path = tmp_path / "ten_days.py"
    result = plan("--chips=H100:64", "--hours=240", f"--emit_config={path}", law=law)
    built = result["buildable"]
    assert 1e-4 <= built["learning_rate"] <= 4e-4 and built["sequence"] == 4096
    assert 1e6 <= built["batch_tokens"][-1][1] <= 16e6
    assert 2_000 < ramps.steps_of(built["batch_tokens"], built["n_tokens"]) < 500_000
    config = runpy.run_path(str(path))["get_config"]()
    check_config(schema.complete(config))
    schedule = Schedule(config.lock())
    assert schedule.peak == pytest.approx(built["learning_rate"], rel=1e-9)
    assert counts.n_exact(config.model) == built["exact_parameters"]
    assert (config.model.norm, config.model.final_norm, config.model.qk_norm) == ("rms", True, "head")
    assert config.batch_tokens == tuple(map(tuple, built["batch_tokens"])) and config.data.seq_len == 4096
    assert config.optimizer.warmup_tokens == built["warmup_tokens"] < built["n_tokens"] / 10
    assert config.optimizer.b2 == 0.95 and config.optimizer.grad_clip == 1


def test_the_config_of_the_recipe_is_a_plan_of_its_own_model():
    """configs/pretrain.py: its rate, batches and warm-up are those that its model is planned with."""
    config = pretrain.get_config()
    check_config(schema.complete(config))
    sharding.make_mesh(config, jax.devices()[:1])
    shape = Architecture(vocab_size=50_304, width_per_block=128, kv_share=0.5, head_dim=128, ff=4)
    planned = recipe_of(load("sparsity-2025"), Model(shape, 16, 1), config.n_tokens[0])
    assert counts.n_active(config.model) == Model(shape, 16, 1).shape.n_active
    assert Schedule(config).peak == pytest.approx(planned.learning_rate)
    assert config.batch_tokens == planned.batch_tokens and config.data.seq_len == planned.sequence
    assert config.optimizer.warmup_tokens == planned.warmup_tokens
