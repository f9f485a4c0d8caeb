"""How fast chips serve: against a table worked by hand, published speeds, and brute force where a speed is required."""

import csv
import dataclasses
import types

import fit_runs
import numpy as np
import pytest

import fit
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.form import Form
from fit.laws import joint
from fit.model import hardware, serving
from fit.model.architecture import PAPER
from fit.model.efficiencies import calibrated
from fit.model.reference_model import PUBLISHED, PublishedModel, of_config, read
from fit.model.serving import Served, ServingChips
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver

LAW = "joint-moe-2025"
LLAMAS = {
    "Llama-2-7B": dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32),
    "Llama-2-70B": dict(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    ),
}


def served_of(model: PublishedModel, bytes_per_parameter: float = 2.0, kv_tokens: float = 0.0) -> Served:
    """What serving reads of a published model, by the counts of its config.json."""
    return Served(
        n_active=model.n_active - model.n_embedding,
        n_unused=model.n_total - model.n_active,
        chosen_share=model.shape.top_k / model.shape.n_experts,
        bytes_per_parameter=bytes_per_parameter,
        cache_bytes=2 * model.cache * model.cache_blocks * kv_tokens,
    )


# Mixtral-8x7B: 8 experts of which a token chooses 2, 32 blocks of width 4,096, 8 key-value heads of 128, d_ff 14,336.
# batch: (experts touched in a block, bytes that a step reads in bfloat16 with a cache of 32,768 tokens)
EXPERT = 3 * 4096 * 14_336  # weights: 176,160,768
REST = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024) + 32_000 * 4096  # attention of all blocks, and the head: 1,473,249,280
CACHE = 2 * 2 * 8 * 128 * 32 * 32_768  # bytes of keys and values: 4,294,967,296
MIXTRAL = {
    1: (2.0, 2 * (REST + 32 * 2 * EXPERT) + CACHE),
    2: (3.5, 2 * (REST + 32 * 3.5 * EXPERT) + CACHE),
    4: (5.46875, 2 * (REST + 32 * 5.46875 * EXPERT) + CACHE),
    64: (7.9999999190, 2 * (REST + 32 * 8 * EXPERT) + CACHE),
}


@pytest.mark.parametrize("batch", MIXTRAL)
def test_mixtral_by_hand(batch):
    touched, read_bytes = MIXTRAL[batch]
    assert (EXPERT, REST, CACHE) == (176_160_768, 1_473_249_280, 4_294_967_296)
    served = served_of(read("Mixtral-8x7B"), kv_tokens=32_768)
    assert serving.experts_touched(8, 2 / 8, batch) == pytest.approx(touched, rel=1e-9)
    assert served.step_bytes(batch) == pytest.approx(read_bytes, rel=1e-7)
    # half of 2 x 3.35 TB/s, as long as reading takes longer than the products: at these batches by far
    by_hand = batch * 3.35e12 / read_bytes
    chips = ServingChips("H100", 2)
    assert batch / served.step_seconds(batch, chips) == pytest.approx(by_hand, rel=1e-7)
    # at batch 4,096 all experts are read, and products take longer: 2 FLOPs for each of the 12.7e9 active weights
    rate = 2 * 989e12 * calibrated().products_of("H100")
    computing = 4096 * 2 * (REST + 32 * 2 * EXPERT) / rate
    assert computing > (2 * (REST + 32 * 8 * EXPERT) + CACHE) / 3.35e12
    assert served.step_seconds(4096, chips) == pytest.approx(computing, rel=1e-9)


@pytest.mark.parametrize("n_experts, top_k, batch", [(8, 2, 3), (64, 6, 16), (4, 4, 2)])
def test_touched_experts_are_counted(n_experts, top_k, batch):
    """Against 2,000 batches whose tokens choose at random."""
    scores = np.random.default_rng(0).random((2000, batch, n_experts))
    chosen = np.argsort(scores, axis=-1)[..., :top_k]
    counts = [len(np.unique(of_batch)) for of_batch in chosen]
    assert serving.experts_touched(n_experts, top_k / n_experts, batch) == pytest.approx(np.mean(counts), rel=0.01)


def published_shares() -> dict[str, list[float]]:
    """Of each published speed, the share of the bandwidth that it reaches, by bytes of a weight."""
    shares: dict[str, list[float]] = {}
    with open(fit_runs.DATA / "decoding_speeds.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["model"] in PUBLISHED:
                model = read(row["model"])
            else:
                model = of_config(row["model"], LLAMAS[row["model"]] | dict(vocab_size=32_000), "config.json")
            served = served_of(model, float(row["bytes_per_parameter"]))
            chips = ServingChips(row["chip"], int(row["n_chips"]))
            modelled = float(row["batch"]) / served.step_seconds(int(row["batch"]), chips)
            share = serving.BANDWIDTH_SHARE * float(row["tokens_per_second"]) / modelled
            shares.setdefault(row["bytes_per_parameter"], []).append(float(share))
    return shares


def test_the_share_of_the_bandwidth_is_the_median_of_those_published():
    shares = published_shares()
    assert len(shares["2"]) == 10
    assert np.median(shares["2"]) == pytest.approx(serving.BANDWIDTH_SHARE, abs=0.02)
    assert [min(shares["2"]), max(shares["2"])] == pytest.approx([0.27, 0.72], abs=0.005)
    # 8-bit weights reach less
    assert [min(shares["1"]), max(shares["1"])] == pytest.approx([0.17, 0.64], abs=0.005)
    assert np.median(shares["1"]) == pytest.approx(0.34, abs=0.005)


@pytest.mark.parametrize(
    "fields",
    [
        dict(),
        dict(granularity=4, shared=1, active_width=2.0),
        dict(counts_routed_experts=True, granularity=4, shared=1, active_width=2.0, n_dense=1, kv_share=0.25),
        dict(tied=True, active_width=2.0),
    ],
)
@pytest.mark.parametrize("n_experts", [1, 16])
def test_counts_are_those_of_models_that_are_built(fields, n_experts):
    """The ratios of an architecture against exact counts of blocks, heads and experts."""
    architecture = dataclasses.replace(PAPER, vocab_size=50_304, **fields)
    constraints = Constraints(kv_tokens=4096.0)
    if architecture.counts_routed_experts or architecture.granularity == 1:
        routed = n_experts
    else:
        routed = 4 * n_experts - 1 if n_experts > 1 else 1
    style = hardware.Style((64.0, 64.0, 64.0), 64)
    model = hardware.built(architecture, style, 1024, 16, routed)
    served = constraints.served(architecture.shape(1024.0, n_experts))
    assert float(architecture.routed_experts(n_experts)) == routed
    assert float(served.chosen_share) == pytest.approx(model.shape.chosen_share, rel=1e-12)
    for batch in (1, 7, 64):
        touched = serving.experts_touched(routed, model.shape.chosen_share, batch)
        one_expert = 3 * 1024 * (model.fields.get("d_expert") or model.fields["d_ff"])
        n_mixtures = 16 - architecture.n_dense if routed > 1 else 0
        unread = n_mixtures * one_expert * (routed - touched)
        embedding = 0 if architecture.tied else 50_304 * 1024
        by_hand = 2 * (model.shape.n_total - unread - embedding) + 2 * model.shape.kv_elements(4096)
        assert float(served.step_bytes(batch)) == pytest.approx(by_hand, rel=1e-12)


def searched() -> Law:
    """The joint law, of which only losses are known."""
    names = {name: value for name, value in vars(joint).items() if name != "chinchilla_coefficients_at"}
    law = load(LAW)
    return dataclasses.replace(law, name="searched", form=Form(types.SimpleNamespace(**names)))


def least_by_brute_force(law: Law, limits: dict, e: float, required: float, batch: int) -> float:
    """The least loss of 100,000 sizes within the limits, and of as many again around it."""
    devices = limits.get("devices", 1)
    rate = devices * 989e12 * calibrated().products_of("H100")
    sizes = np.geomspace(PAPER.n_active(64.0), 1e12, 100_000)
    for _ in range(2):
        width = PAPER.d_model(sizes)
        total = 2 * width * 50_257 + (4 + 9 * e) * width**3 / 64
        touched = e * (1 - (1 - 1 / e) ** batch)
        cache = 2 * 2 * limits.get("kv_tokens", 0) * width**2 / 64
        read_bytes = 2 * (50_257 * width + (4 + 9 * touched) * width**3 / 64) + cache
        products = 2 * batch * (sizes - 50_257 * width)
        speed = batch / np.maximum(read_bytes / (devices * 3.35e12 / 2), products / rate)
        held = (speed >= required) & (2 * total + cache <= devices * 80 * 2**30)
        n_tokens = (limits["flops"] - 2 * sizes * limits.get("inference_tokens", 0)) / (6 * sizes)
        n_tokens = np.minimum(n_tokens, limits.get("max_tokens", np.inf))
        columns = dict(n_active=sizes, n_tokens=np.maximum(n_tokens, 1), n_experts=np.full_like(sizes, e))
        loss = np.where(held & (n_tokens >= 1), law.loss(law.coefficients, columns), np.inf)
        i = int(np.argmin(loss))
        sizes = np.geomspace(sizes[max(i - 1, 0)], sizes[i + 1], 100_000)
    return float(loss.min())


REQUIRED = [
    (dict(flops=1e22), 1e4, 64),
    (dict(flops=1e22, devices=8, kv_tokens=1e6), 3e4, 256),
    (dict(flops=1e21, devices=2), 300.0, 1),
    (dict(flops=1e22, devices=2, inference_tokens=1e11), 2e5, 4096),
    (dict(flops=3e21, max_tokens=3e10), 2e4, 64),
    (dict(flops=1e24), 1.0, 64),  # the memory of one chip bounds the size
]


@pytest.mark.parametrize("limits, required, batch", REQUIRED)
@pytest.mark.parametrize("law", [load(LAW), searched()], ids=["closed form", "searched"])
def test_a_required_speed_by_brute_force(law, limits, required, batch):
    options = PlanOptions(chips="H100:4096", serve=dict(tokens_per_second=required, batch=batch), **limits)
    constraints = options.constraints(())
    experts = [1.0, 2.0, 8.0, 32.0]
    solved = solver.best_of_each_number(Problem(law, PAPER, constraints, experts))
    for i, e in enumerate(experts):
        assert solved.loss[i] == pytest.approx(least_by_brute_force(law, limits, e, required, batch), rel=1e-6)
        served = constraints.served(PAPER.shape(solved.d_model[i], e))
        speed = batch / served.step_seconds(batch, constraints.serving.chips)
        assert speed >= required * (1 - 1e-9)
        if solved.size_bound[i] == "serving":
            assert speed == pytest.approx(required, rel=1e-9)


def test_a_required_speed_under_the_clock():
    """Each number of experts is as large as it may be, or as the clock alone has it."""
    limits = dict(chips="H100:64", hours=240, experts=[1, 8, 32])
    free = fit.plan(LAW, **limits)
    plan = fit.plan(LAW, **limits, serve=dict(tokens_per_second=5000), devices=4)
    for row, alone in zip(plan.optima, free.optima, strict=True):
        speed = row.cost.serving.at(64).decode_tokens_per_second
        assert row.cost.serving_chips == 4 and speed >= 5000 * (1 - 1e-9)
        if row.size_bound == "serving":
            assert speed < 5500 and row.n_active < alone.n_active  # the next shape of the grid would be too slow
        elif speed > 5500:
            assert row.n_active == alone.n_active
    assert "serving" in {row.size_bound for row in plan.optima}


@pytest.mark.parametrize("shape, batch", [(None, 64), ("paper", 1)])
def test_the_model_to_build_is_fast_enough(shape, batch):
    required = {1: 1000, 64: 8000}[batch]
    plan = fit.plan(
        LAW, flops=1e22, chips="H100:64", shape=shape, serve=dict(tokens_per_second=required, batch=batch), devices=2
    )
    built = plan.buildable
    assert built.cost.serving_chips == 2
    assert required <= built.cost.serving.at(batch).decode_tokens_per_second < 1.3 * required
    # without a cache: the weights of a token, in bfloat16
    assert built.cost.serving.at(1).read_bytes == 2 * (built.n_active - built.vocab_size * built.d_model)
    assert f"at batch {batch} on 2 x H100 (at least" in " ".join(str(plan).split())
    assert plan.constraints["serve_tokens_per_second"] == required and plan.constraints["serve_batch"] == batch


def test_a_speed_that_no_model_reaches_is_one_sentence():
    with pytest.raises(UserError) as refused:
        fit.plan(LAW, flops=1e22, chips="H100:64", serve=dict(tokens_per_second=1e9))
    # one block of width 64: 13 x 64^2 weights and the head of 50,257 rows
    nearest = 64 * 3.35e12 / 2 / (2 * (13 * 64**2 + 50_257 * 64))
    told = refused.value.sentence
    assert told.startswith("--serve=tokens_per_second:1e+09 cannot be met: the smallest model (1 block of width 64, ")
    assert f"comes nearest, with {nearest:.4g} tokens per second at batch 64 on 1 x H100 (modelled)" in told


def test_compared_laws_are_fast_enough():
    found = fit.compare(
        [LAW, "fine-grained-2024"],
        flops=1e22,
        chips="H100:64",
        serve=dict(tokens_per_second=5000, batch=32),
        devices=4,
        verbose=True,
    )
    for answer in found.laws:
        assert answer.serving.at(32).decode_tokens_per_second >= 5000 * (1 - 1e-9)
        assert answer.serving.chips == 4 and answer.serving.label == "modelled"
    fine = found.laws[1]
    assert fine.serving.routed_experts == fine.n_experts * fine.granularity - fine.shared
    told = " ".join(str(found).split())
    assert "Serving each law's best on the fewest chips that hold it (modelled)" in told
    assert told.count("at batch 1, ") == 2 and told.count("at batch 64; prefill") == 2


def test_chips_that_nobody_measured_reach_the_mean_of_the_others():
    products = list(calibrated().products.values())
    mean = np.exp(np.mean(np.log(products)))
    assert "v4" not in calibrated().products and serving.products_share("v4") == pytest.approx(mean)
