"""How fast models train: counts by hand, what must make a step slower, calibration, and where each figure is from."""

import csv
import dataclasses
import datetime
import json
import math

import helpers
import numpy as np
import pytest

from benchmarks import speeds
from benchmarks import step_time as compiled_steps
from fit.errors import UserError
from fit.model import efficiencies, measured, step_cost, step_counts
from fit.model.chips import CHIPS
from fit.model.layout import Layout
from fit.model.shape import ModelShape

DENSE = ModelShape(512, 4, n_heads=8, n_kv_heads=8, head_dim=64, d_ff=1536, vocab_size=1000)
MIXTURE = dataclasses.replace(DENSE, d_ff=0, d_expert=384, n_experts=16, top_k=4)
LAYOUT = Layout(batch_tokens=65_536, sequence=1024, data=8, remat="none")

EFFICIENT = step_cost.Efficiencies(0.7, 0.8, 0.6, 256.0, 0.9, 0.6, 0.5, 1e-5, 1e-4)


def counted(shape=DENSE, layout=LAYOUT, domain=8):
    return step_counts.count(shape, layout, domain, gathers_between=True)


def range_of(calibration, kind, shape, layout):
    """10th, 50th and 90th percentile of tokens per second and chip."""
    n_chips = layout.n_devices / CHIPS[kind].devices
    median = layout.batch_tokens / n_chips / calibration.step_cost(kind, shape, layout).seconds
    return [median * factor for factor in calibration.factors()]


def test_a_dense_step_by_hand():
    """4 blocks of 12 x 512^2 / 3 weights of attention and 3 x 512 x 1536 of the layer; 8,192 tokens a chip."""
    block = 4 * 512 * 512 + 3 * 512 * 1536
    head = 512 * 1000
    tokens = 65_536 // 8
    result = counted()
    assert result.large == 6 * tokens * (4 * block + head)
    assert result.grouped == 0 and result.all_to_all == 0 and result.sums == 0
    # scores and values: 2 products forward, 5 backward, 2 FLOPs for each of half of 1,024 + 512 positions
    assert result.attention == 7 * 2 * tokens * 4 * 512 * (1024 + 512) / 2
    # weights in bfloat16 gathered once from 7 of 8 chips, as nothing is computed again, gradients summed once
    params = 4 * block + 2 * head
    assert result.weights == 2 * params * 7 / 8
    assert result.gradients == 2 * params * 7 / 8
    assert result.between == 0 == result.copies
    # computed again, weights of blocks are gathered again
    full = counted(layout=dataclasses.replace(LAYOUT, remat="full"))
    assert full.weights == 2 * (params + 4 * block) * 7 / 8 and full.gradients == result.gradients
    # each part of a batch gathers and sums for itself
    in_parts = counted(layout=dataclasses.replace(LAYOUT, microbatch_tokens=65_536 // 4))
    assert (in_parts.weights, in_parts.gradients) == (4 * result.weights, 4 * result.gradients)


def test_a_mixture_step_by_hand():
    layout = dataclasses.replace(LAYOUT, data=2, expert=4, slots=1.25)
    result = counted(MIXTURE, layout)
    tokens = 65_536 // 8
    expert = 3 * 512 * 384
    assert result.grouped == 6 * tokens * 4 * 1.25 * 4 * expert
    # a row of 512 bfloat16 to an expert and back, forward and backward; a quarter stays
    assert result.all_to_all == 4 * tokens * 4 * 1.25 * 4 * 512 * 2 * 3 / 4
    # experts are gathered over the 2 of the data axis, what all tokens use over all 8
    sent = 4 * 16 * expert / 4 / 2 + (4 * 4 * 512**2 + 2 * 512 * 1000) * 7 / 8
    assert result.weights == pytest.approx(2 * sent) and result.copies == 0
    # a width that does not divide over both is spread over the data axis alone: its gradient is summed over the other
    other = counted(dataclasses.replace(MIXTURE, d_model=514), layout)
    common = 4 * 4 * 514 * 512 + 2 * 514 * 1000
    assert other.copies == pytest.approx(2 * 2 * common / 2 * 3 / 4)
    assert MIXTURE.flops_per_token(1024) == 6 * (4 * (4 * 512**2 + 4 * expert) + 512_000) + 6 * 4 * 512 * 1024


def test_copies_of_weights_cross_machines_with_the_expert_axis():
    """On 1 x 16 devices, over which a width of 514 does not divide, each has all weights but those of experts. Of their
    gradient, a machine of 8 sums an eighth on each device. Two machines then exchange half of it for the sum, and half
    of the result."""
    shape = dataclasses.replace(MIXTURE, d_model=514)
    common = 4 * 4 * 514 * 512 + 2 * 514 * 1000
    over_two = counted(shape, dataclasses.replace(LAYOUT, data=1, expert=16))
    eighth = 4 * common / 8  # 16 devices sum in float32
    assert over_two.weights == over_two.gradients == 0
    assert over_two.copies == pytest.approx(2 * 4 * common * 15 / 16)
    assert over_two.between == pytest.approx(eighth / 2 + eighth / 2)
    within_one = counted(shape, dataclasses.replace(LAYOUT, data=1, expert=8))
    assert within_one.copies == pytest.approx(2 * 2 * common * 7 / 8) and within_one.between == 0
    # with 2 devices for a model, an expert axis of 8 spans two machines; 4 places of it share a machine
    of_pairs = counted(shape, dataclasses.replace(LAYOUT, data=1, expert=8, model=2))
    blocks = 4 * 4 * 514 * 512 / 2
    assert of_pairs.between == pytest.approx(2 * (blocks + 2 * 514 * 1000 / 2) / 4)


def test_four_fifths_of_what_hides_are_hidden():
    """Of sending, where the work takes longer, and of the work, where sending does."""
    chip = dataclasses.replace(CHIPS["H100"], domain=8)
    for network, longer in ((1e13, "work"), (1e9, "sending")):
        cost = step_cost.step_cost(DENSE, LAYOUT, dataclasses.replace(chip, network=network), EFFICIENT)
        assert (cost.work > cost.sending) == (longer == "work")
        assert cost.hidden == pytest.approx(0.8 * (cost.sending if longer == "work" else cost.work))


def test_the_busiest_device_sets_the_pace_of_the_experts_alone():
    even, uneven = (
        step_cost.step_cost(
            MIXTURE, dataclasses.replace(LAYOUT, data=2, expert=4, imbalance=imbalance), CHIPS["H100"], EFFICIENT
        )
        for imbalance in (1.0, 2.0)
    )
    assert uneven.experts == pytest.approx(2 * even.experts) and uneven.products == even.products


def test_two_devices_of_a_chip_are_two_chips_of_half_the_peaks():
    one = dataclasses.replace(CHIPS["H100"], domain=8)
    peaks = {name: 2 * getattr(one, name) for name in ("flops", "bandwidth", "network", "between")}
    two = dataclasses.replace(one, devices=2, domain=4, **peaks)
    layout = dataclasses.replace(LAYOUT, data=4, expert=4)
    costs = [step_cost.step_cost(MIXTURE, layout, chip, EFFICIENT) for chip in (one, two)]
    for name in ("products", "experts", "attention", "main_memory", "exposed", "sending", "seconds"):
        assert getattr(costs[0], name) == pytest.approx(getattr(costs[1], name)) and getattr(costs[0], name) > 0, name


def test_two_models_on_the_same_chips_differ_by_two_runs_of_one_source():
    """The middle 80% of the ratio of two speeds, which share what a source has of its own."""
    published = dataclasses.replace(efficiencies.calibrated(), between_sources=0.3, within_source=0.1)
    one, other = np.random.default_rng(0).normal(scale=0.1, size=(2, 100_000))
    low, _, high = published.factors(of_ratio=True)
    assert [low, high] == pytest.approx(np.exp(np.percentile(one - other, [10, 90])), rel=0.01)


def test_recomputing_costs_the_forward_pass_but_for_its_last_product():
    full, none = (counted(layout=dataclasses.replace(LAYOUT, remat=remat)) for remat in ("full", "none"))
    tokens = 65_536 // 8
    assert full.large - none.large == 2 * tokens * 4 * (4 * 512**2 + 2 * 512 * 1536)
    assert full.attention / none.attention == pytest.approx(9 / 7)


def test_bytes_of_a_dense_step_by_hand():
    """Operands and results of products, what lies between them, logits and the update: nothing is computed again."""
    tokens = 65_536 // 8
    # 2 products of attention's projections, 3 passes each; queries, keys and values are turned and read by the kernel
    attention = 3 * (512 + 3 * 512) + 3 * (512 + 512)
    attention += 2 * 3 * 512 + 2 * 4 * 2 * 512 + 4 * 512 + 7 * 512 + 2 * 512
    residual = (9 + 13) * 512
    layer = 9 * (512 + 1536) + 7 * 1536
    activations = 2 * tokens * 4 * (attention + residual + layer)
    block = 4 * 512 * 512 + 3 * 512 * 1536
    weights = 4 * block * (2 * 3 + 2 + 2 * 2)
    # logits in one part for each 2**26 / 4,000 rows
    logits = 4 * 4 * tokens * 1000
    head = 512 * 1000 * (max(1, tokens / (2**26 / 4000)) * 12 + 40)
    update = 34 * (4 * block + 2 * 512 * 1000) / 8
    # what is kept for the backward pass is copied there and back: 30 bytes of each unit beside a block's input, and 36
    # for the share of 13 d units of queries, keys, values, their sum and the layer
    saved = 4 * tokens * 4 * 512 * (30 + 36 * (4 * 512 + 3 * 1536) / (13 * 512))
    assert counted().main_memory == pytest.approx(activations + weights + logits + head + update + saved)


def test_bytes_of_a_mixture_rise_with_what_it_moves():
    spread = dataclasses.replace(LAYOUT, data=1, expert=8)
    base = counted(MIXTURE, spread).main_memory
    tokens = 65_536 // 8
    # rows beside the choices: 9 products and SwiGLU of experts, 11 and 2 rows on their way, 4 exchanges of two devices
    one_row = 9 * (512 + 384) + 10 * 384 + 512 * (2 + 9 + 2 * 2 * 4)
    more = counted(MIXTURE, dataclasses.replace(spread, slots=1.5)).main_memory
    assert more - base == pytest.approx(2 * tokens * 4 * 4 * 0.5 * one_row)
    dropless = counted(MIXTURE, dataclasses.replace(spread, buffer=1.0)).main_memory
    # and gradients of weights are summed in float32: 14 bytes of each of a chip's two experts in four blocks
    assert dropless - base == pytest.approx(2 * tokens * 4 * 4 * 4 * 384 + 14 * 4 * 2 * 3 * 512 * 384)


def test_counts_agree_with_compiled_programs():
    """FLOPs of all 21 recorded programs, what 19 of 24 send and what 14 of 18 move, within 10%."""
    near_sent = 0
    near_memory = 0
    for program in compiled_steps.programs():
        ours = compiled_steps.counted(program)
        if program.flops:
            assert ours.flops == pytest.approx(program.flops, rel=0.1), program.name
        if program.sent:
            near_sent += abs(ours.sent_bytes / program.sent - 1) <= 0.1
        if program.memory:
            near_memory += abs(ours.main_memory / program.memory - 1) <= 0.1
    assert near_sent >= 19 and near_memory >= 14


@pytest.mark.parametrize("name", ["flops", "bandwidth", "network"])
def test_a_better_chip_is_never_slower(name):
    chip = CHIPS["H100"]
    better = dataclasses.replace(chip, **{name: 2 * getattr(chip, name)})
    costs = [step_cost.step_cost(MIXTURE, LAYOUT, each, EFFICIENT) for each in (chip, better)]
    assert costs[1].seconds < costs[0].seconds


def test_each_row_can_be_traced():
    """And so can each chip's network."""
    for chip in CHIPS.values():
        assert chip.domain > 1 and 0 < chip.between < chip.network and chip.domain_source
    runs = measured.read()
    assert len(runs) >= 60
    assert sum(run.is_mixture for run in runs) >= 20
    seen = set()
    for run in runs:
        row = run.row
        assert row["source"].startswith(("github.com/", speeds.OURS)) and row["place"] and row["software"]
        assert row["date"] <= "2026-11-28"
        datetime.date.fromisoformat((row["date"] + "-01")[:10])
        # a speed as it was published
        assert row["tokens_per_second_per_chip"] or row["mfu_percent"] or row["step_seconds"]
        assert row["balanced"] in ("", "forced", "no")
        assert 0.02 < run.tokens_per_second * run.shape.flops_per_token(run.layout.sequence) / run.chip.flops < 0.85
        seen.add((row["source"], row["place"]))
    assert len(seen) == len(runs)


def test_published_tokens_agree_with_published_mfu():
    """Where a source gives both, its MFU follows from its tokens a second, whichever way it counts attention. To 10%:
    some give tokens a second only about."""
    for run in measured.read():
        row = run.row
        if not (row["mfu_percent"] and row["tokens_per_second_per_chip"]) or row["chip"] == "GB200":
            continue
        attention = 6 * run.shape.n_blocks * run.shape.query_units * run.layout.sequence
        causal = run.shape.flops_per_token(run.layout.sequence)
        peak = run.chip.flops
        low, high = (run.tokens_per_second * flops / peak for flops in (causal * 0.9, (causal + attention) * 1.1))
        assert low <= float(row["mfu_percent"]) / 100 <= high, row["place"]


def planted(true, sizes=(256, 512, 1024, 2048), kind="H100"):
    """Runs whose speeds are those of a calibration."""
    runs = []
    for d in sizes:
        dense = ModelShape(d, d // 64, d // 64, d // 64, 64, 3 * d, 32_000)
        for shape in (dense, dataclasses.replace(dense, d_ff=0, n_experts=32, d_expert=d, top_k=2)):
            rate = range_of(true, kind, shape, LAYOUT)[1]
            runs.append(measured.MeasuredRun("own", kind, shape, LAYOUT, rate, {}))
    return runs


def test_the_stored_calibration_is_that_of_the_table():
    runs = [run for run in measured.read() if run.row["calibrates"] == "yes"]
    fitted, stored = (dataclasses.asdict(each) for each in (efficiencies.calibrate(runs), efficiencies.calibrated()))
    assert fitted.keys() == stored.keys()
    for name in ("products", "shared"):
        assert fitted[name] == pytest.approx(stored[name], rel=1e-4)
    for name in ("between_sources", "within_software", "within_source"):
        assert fitted[name] == pytest.approx(stored[name], rel=1e-3)


def test_two_runs_recalibrate_to_a_planted_efficiency():
    published = efficiencies.calibrated()
    planted_products = 0.6 * published.products["Hopper"]
    true = dataclasses.replace(published, products=published.products | {"Hopper": planted_products})
    runs = planted(true)
    result = efficiencies.recalibrated(published, runs[2:4])
    assert result.products["Hopper"] == pytest.approx(planted_products, rel=0.05)
    assert result.within_source < published.within_source
    for run in runs:
        low, median, high = range_of(result, "H100", run.shape, LAYOUT)
        assert median == pytest.approx(run.tokens_per_second, rel=0.1)
        assert low < run.tokens_per_second < high
    # chips that were not measured keep what was published
    assert result.products["v5p"] == published.products["v5p"]


def test_calibration_recovers_planted_efficiencies():
    published = efficiencies.calibrated()
    rng = np.random.default_rng(0)
    true = dataclasses.replace(published, products={"Hopper": 0.5, "Ampere": 0.7})
    runs = []
    for chip in ("H100", "A100"):
        for run in planted(true, (256, 512, 768, 1024, 1536, 2048, 3072, 4096), chip):
            speed = run.tokens_per_second * math.exp(0.02 * rng.standard_normal())
            row = dict(software=f"{chip}-{run.shape.d_model}")
            source = f"{chip} {run.shape.d_model}"
            runs.append(dataclasses.replace(run, source=source, tokens_per_second=speed, row=row))
    result = efficiencies.calibrate(runs)
    assert result.products["Hopper"] == pytest.approx(0.5, rel=0.1)
    assert result.products["Ampere"] == pytest.approx(0.7, rel=0.1)
    assert result.within_source < 0.08  # the noise, and what the priors pull away


def test_chips_of_one_silicon_differ_by_their_memory_alone():
    """A grid of models and layouts whose products take most of the time: H200 over H100 lies between 1.0 and 1.25."""
    d_model = np.array([1024, 2048, 4096, 8192])[:, None, None, None]
    n_experts = np.array([1, 8, 64])[:, None, None]
    data = np.array([1, 8, 64])[:, None]
    shape = ModelShape(
        d_model=d_model,
        n_blocks=32,
        n_heads=d_model // 128,
        n_kv_heads=8,
        head_dim=128,
        d_ff=3 * d_model,
        vocab_size=50_304,
        n_experts=n_experts,
        d_expert=d_model,
        top_k=np.minimum(n_experts, 4),
    )
    remats = np.array(["full", "dots", "none"])
    layout = Layout(16_384 * data, 4096, data, remat=remats)
    h100, h200 = (efficiencies.of_our_trainer(kind, 8).step_cost(kind, shape, layout) for kind in ("H100", "H200"))
    ratio = h100.seconds / h200.seconds
    assert ratio.size == 108 and (ratio >= 1).all()
    is_bound = h100.products + h100.experts + h100.attention > 0.6 * h100.seconds
    assert is_bound.sum() > 50 and ratio[is_bound].max() <= 1.25


def test_plans_know_how_fast_our_trainer_is():
    """On Hopper: on one card with the range of a source's runs, on more, whose network is not measured, of sources."""
    runs = [run for run in measured.read() if run.software == efficiencies.OURS]
    one, many = (efficiencies.of_our_trainer("H100", n_chips) for n_chips in (1, 8))
    errors = [math.log(one.step_cost(run.kind, run.shape, run.layout).seconds / run.seconds) for run in runs]
    assert len(runs) >= 6 and abs(np.mean(errors)) < 1e-9 and np.max(np.abs(errors)) < 0.1
    assert one.products == many.products and one.label == many.label == efficiencies.OWN_LABEL
    published = efficiencies.calibrated()
    assert one.factors()[2] < 1.2 < many.factors()[2] == pytest.approx(published.factors()[2])
    assert one.shared["inside"] == published.shared["inside"]
    assert efficiencies.of_our_trainer("v5p", 8) == published


def test_a_source_is_predicted_from_the_others():
    """MaxText's dense 7B on 8 H100 (.721 s), left out of the fit, lies within the range."""
    runs = [run for run in measured.read() if run.row["calibrates"] == "yes"]
    (left_out,) = [run for run in runs if "JAX-Toolbox" in run.source]
    assert left_out.seconds == pytest.approx(0.721)
    fitted = efficiencies.calibrate([run for run in runs if run.source != left_out.source])
    assert abs(speeds.error_of_speed(fitted, left_out)) < speeds.half_range(fitted, left_out)


@pytest.mark.parametrize("log_speed", [-0.3, 0.4])
def test_faster_software_computes_faster(log_speed):
    """On one chip the whole step; what is sent takes as long."""
    base = efficiencies.calibrated()
    layout = Layout(16_384, 4096)
    slow, fast = (each.step_cost("H100", MIXTURE, layout) for each in (base, base.faster(log_speed)))
    assert math.log(slow.seconds / fast.seconds) == pytest.approx(log_speed)
    spread = dataclasses.replace(layout, batch_tokens=8 * 16_384, data=2, expert=4)
    slow, fast = (each.step_cost("H100", MIXTURE, spread) for each in (base, base.faster(log_speed)))
    assert slow.sending == fast.sending and slow.exposed == fast.exposed > 0


def shape_of(row):
    d = int(row["d_model"])
    fields = dict(
        d_model=d, n_blocks=8, n_heads=d // 64, d_ff=3 * d, vocab_size=32_000, n_experts=int(row["n_experts"])
    )
    return ModelShape.of_config(fields)


def test_own_measurements_say_how_they_were_trained(tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text(
        "n_experts,d_model,tokens_per_second,n_chips,batch_tokens,microbatch_tokens,seq_len,expert,model,remat\n"
        "8,512,800000,32,1048576,262144,2048,4,2,dots\n"
        "8,512,800000,,,,,,,\n"
        "1,512,100000,1,,,,,,\n"
    )
    runs = measured.read_own(path, shape_of, "H100", 8, 1024)
    own, default, _ = (run.layout for run in runs)
    assert (own.data, own.expert, own.model, own.remat, own.sequence) == (4, 4, 2, "dots", 2048)
    assert own.n_microbatches == 4
    assert default == Layout(65_536, 1024, data=8, microbatch_tokens=65_536)
    assert [(run.tokens_per_second, run.n_chips) for run in runs] == [(25_000, 32), (100_000, 8), (100_000, 1)]
    assert runs[1].shape.routed_weights == 8 * 8 * 3 * 512 * 1536


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "has no rows; expected the columns d_model, n_experts, tokens_per_second"),
        ("d_model,n_experts\n512,1\n", "has no column tokens_per_second"),
        (
            "d_model,n_experts,tokens_per_second\n512,1,fast\n",
            'row 2: tokens_per_second is "fast", expected a positive',
        ),
        ("d_model,n_experts,tokens_per_second\n512,1,-3\n", 'tokens_per_second is "-3"'),
        ("d_model,n_experts,tokens_per_second\n512,1,9e12\n", "tokens_per_second is 9e+12, expected at most "),
        ("d_model,n_experts,tokens_per_second,chip\n512,1,3,h100\n", 'chip is "h100"; kinds: H100, '),
        ("d_model,n_experts,tokens_per_second,expert\n512,8,3,3\n", "expert 3 times model 1 does not divide its 8"),
        ("d_model,n_experts,tokens_per_second,remat\n512,8,3,half\n", 'remat is "half", expected one of full, dots'),
    ],
)
def test_bad_tables_name_file_row_and_column(text, said, tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text(text)
    with pytest.raises(UserError) as told:
        measured.read_own(path, shape_of, "H100", 8, 1024)
    assert said in str(told.value) and str(path) in str(told.value)


def test_our_own_steps_are_rows_of_the_table():
    """As results/accelerators/ has them, beside the table of speeds that the same run wrote for `fit plan --speeds`."""
    folder = helpers.ROOT / "results" / "accelerators"
    rows = speeds.own_rows(json.loads((folder / "H200.json").read_text()), "ours")
    with open(folder / "H200_speeds.csv", newline="") as file:
        own_speeds = {(row["n_experts"], row["top_k"]): float(row["tokens_per_second"]) for row in csv.DictReader(file)}
    with_capacity = [row for row in rows if row.get("routing") != "dropless"]
    assert len(with_capacity) == len(own_speeds) >= 4 and len(rows) > len(with_capacity)
    for row in with_capacity:
        key = (str(row["n_experts"]), str(row["n_experts_per_token"]))
        assert row["tokens_per_second_per_chip"] == pytest.approx(own_speeds[key], rel=0.03)
        assert row["chip"] == "H200" and row["sequence"] * row["microbatch_rows"] == row["batch_tokens"] == 65_536
    assert {run.kind for run in measured.read() if run.source.startswith(speeds.OURS)} == {"H200"}
