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
from fit.planning import speed, step_time
from fit.planning.step_time import Setup, Shape
from fit.shape.chips import CHIPS

DENSE = Shape(d_model=512, n_blocks=4, attention_weights=4 * 512**2, attention_width=512, d_ff=1536, vocab_size=1000)
MIXTURE = dataclasses.replace(DENSE, d_ff=0, d_expert=384, n_experts=16, n_experts_per_token=4)
SETUP = Setup(n_chips=8, batch_tokens=65_536, sequence=1024, data=8, remat="none")


def counted(shape=DENSE, setup=SETUP, domain=8):
    return step_time.counts(shape, setup, domain, gathers_between=True)


def hours(shape=DENSE, setup=SETUP, chip="H100"):
    return speed.calibrated().seconds(chip, shape, setup)


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
    # weights in bfloat16 gathered twice from 7 of 8 chips, gradients summed once
    params = 4 * block + 2 * head
    assert result.weights == 2 * 2 * params * 7 / 8
    assert result.gradients == 2 * params * 7 / 8
    assert result.between == 0


def test_a_mixture_step_by_hand():
    setup = dataclasses.replace(SETUP, data=2, expert=4, slots=1.25)
    result = counted(MIXTURE, setup)
    tokens = 65_536 // 8
    expert = 3 * 512 * 384
    assert result.grouped == 6 * tokens * 4 * 1.25 * 4 * expert
    # a row of 512 bfloat16 to an expert and back, forward and backward; a quarter stays
    assert result.all_to_all == 4 * tokens * 4 * 1.25 * 4 * 512 * 2 * 3 / 4
    held = 4 * 16 * expert / 4 + 4 * 4 * 512**2 + 2 * 512 * 1000
    assert result.weights == pytest.approx(2 * 2 * held / 2)
    assert MIXTURE.flops_per_token(1024) == 6 * (4 * (4 * 512**2 + 4 * expert) + 512_000) + 6 * 4 * 512 * 1024


def test_recomputing_costs_the_forward_pass_but_for_its_last_product():
    full, none = (counted(setup=dataclasses.replace(SETUP, remat=remat)) for remat in ("full", "none"))
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
    weights = 4 * block * (2 * 3 + 2 * 2 + 2 * 2)
    # logits in one part for each 2**26 / 4,000 rows
    logits = 4 * 4 * tokens * 1000
    head = 512 * 1000 * (max(1, tokens / (2**26 / 4000)) * 12 + 40)
    update = 34 * (4 * block + 2 * 512 * 1000) / 8
    assert counted().memory == pytest.approx(activations + weights + logits + head + update)


def test_bytes_of_a_mixture_rise_with_what_it_moves():
    spread = dataclasses.replace(SETUP, data=1, expert=8)
    base = counted(MIXTURE, spread).memory
    tokens = 65_536 // 8
    # rows beside the choices: 9 products and SwiGLU of experts, 11 and 2 rows on their way, 4 exchanges of two devices
    one_row = 9 * (512 + 384) + 9 * 384 + 512 * (2 + 9 + 2 * 2 * 4)
    more = counted(MIXTURE, dataclasses.replace(spread, slots=1.5)).memory
    assert more - base == pytest.approx(2 * tokens * 4 * 4 * 0.5 * one_row)
    dropless = counted(MIXTURE, dataclasses.replace(spread, buffer=1.0)).memory
    assert dropless - base == pytest.approx(2 * tokens * 4 * 4 * 3 * 384)


def test_counts_agree_with_compiled_programs():
    """FLOPs of all recorded programs, what at least twelve of them send and what half move, within 10%."""
    near_sent = 0
    near_memory = 0
    for program in compiled_steps.programs():
        ours = compiled_steps.counted(program)
        if program.flops:
            assert ours.flops == pytest.approx(program.flops, rel=0.1), program.name
        if program.sent:
            near_sent += abs(ours.sent / program.sent - 1) <= 0.1
        if program.memory:
            near_memory += abs(ours.memory / program.memory - 1) <= 0.1
    assert near_sent >= 12 and near_memory >= 9


@pytest.mark.parametrize(
    "slower",
    [
        dict(remat="full"),
        dict(sequence=4096),
        dict(microbatch_tokens=512),
        dict(batch_tokens=131_072),
    ],
)
def test_what_makes_a_dense_step_longer(slower):
    assert hours(setup=dataclasses.replace(SETUP, **slower)) > hours()


def test_what_makes_a_step_of_a_mixture_longer():
    spread = dataclasses.replace(SETUP, data=2, expert=4)
    base = hours(MIXTURE, spread)
    assert hours(MIXTURE, dataclasses.replace(spread, imbalance=2.0)) > base
    assert hours(MIXTURE, dataclasses.replace(spread, slots=2.0)) > base
    assert hours(MIXTURE, dataclasses.replace(spread, domain=2)) > base
    assert hours(dataclasses.replace(MIXTURE, n_experts=64), spread) > base
    assert hours(dataclasses.replace(MIXTURE, n_experts_per_token=8), spread) > base


@pytest.mark.parametrize("name", ["flops", "bandwidth", "network"])
def test_a_better_chip_is_never_slower(name, monkeypatch):
    before = hours(MIXTURE)
    better = dataclasses.replace(CHIPS["H100"], **{name: 2 * getattr(CHIPS["H100"], name)})
    monkeypatch.setitem(CHIPS, "H100", better)
    assert hours(MIXTURE) < before


def test_each_chip_says_where_its_network_is_from():
    for chip in CHIPS.values():
        assert chip.domain > 1 and 0 < chip.between < chip.network and chip.domain_source


def test_each_row_can_be_traced():
    runs = speed.read()
    assert len(runs) >= 60
    assert sum(run.is_mixture for run in runs) >= 20
    seen = set()
    for run in runs:
        row = run.row
        assert row["source"].startswith(("github.com/", speeds.OURS)) and row["place"] and row["software"]
        assert row["date"] <= "2026-11-26"
        datetime.date.fromisoformat((row["date"] + "-01")[:10])
        # a speed as it was published
        assert row["tokens_per_second_per_chip"] or row["mfu_percent"] or row["step_seconds"]
        assert row["balanced"] in ("", "forced", "no")
        assert (
            0.02 < run.tokens_per_second * run.shape.flops_per_token(run.setup.sequence) / CHIPS[run.chip].flops < 0.85
        )
        seen.add((row["source"], row["place"]))
    assert len(seen) == len(runs)


def test_published_tokens_agree_with_published_mfu():
    """Where a source gives both, its MFU follows from its tokens a second, whichever way it counts attention. To 10%:
    some give tokens a second only about."""
    for run in speed.read():
        row = run.row
        if not (row["mfu_percent"] and row["tokens_per_second_per_chip"]) or row["chip"] == "GB200":
            continue
        attention = 6 * run.shape.n_blocks * run.shape.attention_width * run.setup.sequence
        causal = run.shape.flops_per_token(run.setup.sequence)
        peak = CHIPS[run.chip].flops
        low, high = (run.tokens_per_second * flops / peak for flops in (causal * 0.9, (causal + attention) * 1.1))
        assert low <= float(row["mfu_percent"]) / 100 <= high, row["place"]


def planted(true, sizes=(256, 512, 1024, 2048), chip="H100"):
    """Runs whose speeds are those of a calibration."""
    runs = []
    for d in sizes:
        for shape in (
            Shape(d, d // 64, 4 * d * d, d, 3 * d, 32_000),
            Shape(d, d // 64, 4 * d * d, d, 0, 32_000, d, 32, 2),
        ):
            rate = SETUP.tokens_per_chip / true.seconds(chip, shape, SETUP)
            runs.append(speed.Run("own", chip, shape, SETUP, rate, {}))
    return runs


def test_two_runs_recalibrate_to_a_planted_efficiency():
    published = speed.calibrated()
    planted_products = 0.6 * published.products["H100"]
    true = dataclasses.replace(published, products=published.products | {"H100": planted_products})
    runs = planted(true)
    result = speed.recalibrated(published, runs[2:4])
    assert result.products["H100"] == pytest.approx(planted_products, rel=0.05)
    assert result.within_source < published.within_source
    for run in runs:
        low, median, high = result.tokens_per_second("H100", run.shape, SETUP)
        assert median == pytest.approx(run.tokens_per_second, rel=0.1)
        assert low < run.tokens_per_second < high
    # chips that were not measured keep what was published
    assert result.products["v5p"] == published.products["v5p"]


def test_calibration_recovers_planted_efficiencies():
    published = speed.calibrated()
    rng = np.random.default_rng(0)
    true = dataclasses.replace(published, products={"H100": 0.5, "A100": 0.7})
    runs = [
        dataclasses.replace(run, source=f"{chip} {run.shape.d_model}", tokens_per_second=run.tokens_per_second * noise)
        for chip in ("H100", "A100")
        for run, noise in zip(
            planted(true, (512, 1024, 2048, 4096), chip), np.exp(0.02 * rng.standard_normal(8)), strict=True
        )
    ]
    result = speed.calibrate(runs)
    assert result.products["H100"] == pytest.approx(0.5, rel=0.1)
    assert result.products["A100"] == pytest.approx(0.7, rel=0.1)
    assert result.within_source < 0.08  # the noise, and what the priors pull away


def test_one_run_is_too_few():
    with pytest.raises(UserError, match="found 1 measured runs, expected at least 2"):
        speed.recalibrated(speed.calibrated(), planted(speed.calibrated())[:1])


def shape_of(row):
    d = int(row["d_model"])
    fields = dict(
        d_model=d, n_blocks=8, n_heads=d // 64, d_ff=3 * d, vocab_size=32_000, n_experts=int(row["n_experts"])
    )
    return speed.shape_of_model(fields)


def test_own_measurements_say_how_they_were_trained(tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text(
        "n_experts,d_model,tokens_per_second,n_chips,batch_tokens,microbatch_tokens,seq_len,expert,model,remat\n"
        "8,512,800000,32,1048576,262144,2048,4,2,dots\n"
        "1,512,800000,,,,,,,\n"
    )
    own, default = (run.setup for run in speed.read_own(path, shape_of, SETUP, "H100"))
    assert (own.data, own.expert, own.model, own.remat, own.sequence) == (4, 4, 2, "dots", 2048)
    assert own.n_microbatches == 4
    assert default == SETUP


def test_own_measurements_are_read_from_a_table(tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text("n_experts,d_model,tokens_per_second,n_chips\n1,512,800000,8\n8,512,100000,1\n")
    runs = speed.read_own(path, shape_of, SETUP, "H100")
    assert [run.tokens_per_second for run in runs] == [100_000, 100_000]
    assert [run.setup.n_chips for run in runs] == [8, 1]
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
        ("d_model,n_experts,tokens_per_second,chip\n512,1,3,h100\n", 'chip is "h100"; kinds: H100, '),
        ("d_model,n_experts,tokens_per_second,expert\n512,8,3,3\n", "expert 3 times model 1 does not divide its 8"),
        ("d_model,n_experts,tokens_per_second,remat\n512,8,3,half\n", 'remat is "half", expected one of full, dots'),
    ],
)
def test_bad_tables_name_file_row_and_column(text, said, tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text(text)
    with pytest.raises(UserError) as told:
        speed.read_own(path, shape_of, SETUP, "H100")
    assert said in str(told.value) and str(path) in str(told.value)


def test_a_table_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="speeds=.*missing.csv: No such file"):
        speed.read_own(tmp_path / "missing.csv", shape_of, SETUP, "H100")


def test_the_speed_of_a_plan():
    """Hours, MFU and tokens a second say the same; a range holds its median."""
    result = speed.speed_of(speed.calibrated(), "H100", MIXTURE, SETUP, n_tokens=1e9)
    low, median, high = result.tokens_per_second
    assert low < median < high
    assert result.hours == pytest.approx((1e9 / high / 3600, 1e9 / median / 3600, 1e9 / low / 3600))
    assert result.mfu[1] == pytest.approx(median * MIXTURE.flops_per_token(1024) / (8 * 989e12))
    assert all(math.isfinite(value) for value in result.hours)


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
    assert {run.chip for run in speed.read() if run.source.startswith(speeds.OURS)} == {"H200"}
