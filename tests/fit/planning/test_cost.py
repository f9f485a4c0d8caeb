"""Plans by chips and hours, by a loss to reach, and of text that is read several times."""

import dataclasses
import json
import math
import runpy

import fit_runs
import numpy as np
import pytest

import fit
from fit.fitted_law import repeated
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.laws import FORMS
from fit.messages import units
from fit.model.architecture import PAPER
from fit.model.chips import CHIPS
from fit.planning.emit import plan_config
from jmoe.config import schema
from jmoe.config.check import check_config
from jmoe.cost.chips import CHIPS as JMOE_CHIPS
from launch import accelerators, preflight

PAPERS = "joint-moe-2025"


def plan(law=PAPERS, **options):
    """A plan of the paper's shapes, as JSON has it."""
    return fit.plan(law, shape="paper", **options)


def text(found):
    return " ".join(str(found).split())


COLUMNS = ("n_experts", "n_active", "n_tokens", "loss")


def rows_of(found):
    """What the optima and the model to build are, without their costs."""
    return [{name: row[name] for name in COLUMNS} for row in (*found.optima, found.buildable)]


def test_hours_are_the_flops_worked_out_by_hand():
    limits = dict(memory_gb=80, kv_tokens=16384, inference_tokens=1e11)
    flops = 64 * 989e12 * 0.35 * 3600 * 100
    priced = dict(chips="H100:64", mfu=0.35, dollars_per_hour=2)
    by_hours = plan(hours=100, **priced, **limits)
    assert rows_of(by_hours) == rows_of(plan(flops=flops, **limits))
    by_flops = plan(flops=flops, **priced, **limits)
    assert by_flops.optima == by_hours.optima and by_flops.buildable == by_hours.buildable
    for row in [*by_flops.optima, by_flops.buildable]:
        hours = row.training_flops / flops * 100
        assert row.cost.training_hours == pytest.approx(hours, rel=1e-12)
        assert row.cost.training_dollars == pytest.approx(hours * 64 * 2, rel=1e-12)


def test_mfu_by_number_of_experts(tmp_path):
    """Each number of experts has the FLOPs that the hours are at its own MFU; dense models need not be in the table."""
    mfu = {8: 0.3, 2: 0.4, 32: 0.05}
    (tmp_path / "mfu.json").write_text(json.dumps(mfu))
    options = dict(chips="v5p:256", mfu=f"{tmp_path}/mfu.json", experts=[2, 8, 32])
    found = plan(hours=48, **options, verbose=True)
    assert [row.n_experts for row in found.optima] == [2, 8, 32] and found.best.n_experts == 8
    for row in found.optima:
        flops = 256 * 459e12 * 3600 * 48 * mfu[row.n_experts]
        assert found.constraints["flops"][row.n_experts] == pytest.approx(flops)
        alone = plan(flops=flops, experts=[row.n_experts])
        assert [row[name] for name in COLUMNS] == pytest.approx([alone.best[name] for name in COLUMNS], rel=1e-12)
        assert row.cost.training_hours == pytest.approx(48, rel=1e-12)
        if row.n_experts == 8:
            assert found.buildable.n_tokens == alone.buildable.n_tokens
            assert found.dense.loss == alone.dense.loss
            assert f"flops {flops:g}" in plan_config.source(load(PAPERS), found)
    assert "MFU 0.4 (E = 2), 0.3 (E = 8), 0.05 (E = 32)" in text(found)
    # the cheapest way to a loss is the one of fewest hours, not of fewest FLOPs
    target = plan(target_loss=2.2, **options).target
    assert min(target.optima, key=lambda row: row.flops).n_experts == 32
    assert target.best.n_experts == 8 and target.best.hours == min(row.hours for row in target.optima)


ON_CHIPS = dict(chips="H100:64", hours=100)
BY_NUMBER = dict(chips="H100:64", mfu={1: 0.45, 8: 0.38})


@pytest.mark.parametrize("limits", [{}, dict(memory_gb=40), dict(inference_tokens=1e12), dict(max_tokens=1e10)])
@pytest.mark.parametrize(
    "budget",
    [
        dict(flops=1e22),
        dict(flops=1e22, chips="H100:64"),
        ON_CHIPS,
        ON_CHIPS | dict(mfu=0.4),
        ON_CHIPS | BY_NUMBER,
        BY_NUMBER | dict(target_loss=2.2),
    ],
    ids=str,
)
def test_the_dense_model_to_compare_with_is_the_optimum_of_one_expert(budget, limits):
    if "target_loss" in budget and "max_tokens" in limits:
        limits = dict(max_tokens=3e11)  # with 1e10 no model reaches the loss
    found = plan(experts=[1, 8], **budget, **limits)
    dense = found.optima[0]
    assert dense.n_experts == 1
    names = ("n_active", "n_tokens", "loss")
    assert [found.dense[name] for name in names] == pytest.approx([dense[name] for name in names], rel=1e-12)
    assert found.dense.loss_saved == pytest.approx(dense.loss - found.best.loss, abs=1e-12)
    if not limits:  # the rule of thumb knows none
        for row in found.rule_of_thumb or []:
            assert row.dense_loss == pytest.approx(dense.loss, rel=1e-12)


def test_mfu_is_by_the_experts_that_the_law_counts():
    """The trainer's 8 narrow experts are 2 for the law: the MFU of 8 is not theirs."""
    options = dict(chips="H100:8", hours=24.0, experts=[2], shape=dict(granularity=4))
    expected = fit.plan(PAPERS, mfu=0.3, **options)
    found = fit.plan(PAPERS, mfu={2: 0.3, 8: 0.6}, **options)
    assert (found.buildable.n_experts, found.buildable.law_experts) == (8, 2)
    assert found.buildable.to_dict() == expected.buildable.to_dict()
    law = load(PAPERS)
    assert plan_config.source(law, found) == plan_config.source(law, expected)


def test_peaks_are_those_of_data_sheets():
    h100, tpu7x = CHIPS["H100"], CHIPS["tpu7x"]
    assert [h100.flops, h100.memory, h100.bandwidth, h100.network] == [989e12, 80 * 2**30, 3350e9, 450e9]
    assert [tpu7x.flops, tpu7x.memory, tpu7x.bandwidth, tpu7x.network] == [2307e12, 192 * 2**30, 7380e9, 600e9]


def test_chips_are_those_of_the_trainer():
    for name, chip in CHIPS.items():
        devices = accelerators.DEVICES_OF_CHIP.get(name, 1)
        known = JMOE_CHIPS[name]
        expected = [devices * value for value in (known.flops, known.capacity, known.bandwidth, known.network)]
        assert [chip.flops, chip.memory, chip.bandwidth, chip.network] == expected


@pytest.mark.parametrize("flops, count", [(1e19, 1), (1e21, 8), (1e25, 64)])
def test_no_plan_takes_more_chips_than_asked_for(tmp_path, flops, count):
    """One number of chips for training, in every row and for the model that is built; the trainer takes the emitted
    config on these chips, with fewer tokens at once where they do not hold a whole batch."""
    memory = 80 * 2**30
    found = plan(flops=flops, chips=f"H100:{count}", verbose=True)
    built, free = found.buildable, plan(flops=flops)
    for row in [*found.optima, built]:
        taken = row.cost.training_chips
        assert taken <= count and row.cost.training_bytes <= taken * memory * (1 + 1e-9)
        assert row.cost.serving_chips == row.cost.serving.chips == math.ceil(row.memory_bytes / memory)
        assert row.get("size_bound") != "chips" or taken == count
        many = row.cost.serving.decoding[-1]
        assert many.batch == 64 and many.read_bytes <= row.memory_bytes
    assert built.n_experts == found.best.n_experts
    told = [str(finding) for finding in found.findings if finding.code == "chips_bind"]
    gain = found.best.loss - free.best.loss
    assert len(told) == (found.best.size_bound == "chips") == (gain > 1e-12)
    if told:
        assert f"E = {free.best.n_experts}" in told[0] and f"a loss {gain:.4f} lower" in told[0]
    config = tmp_path / "planned.py"
    config.write_text(plan_config.source(load(PAPERS), found))
    made, fewer = runpy.run_path(str(config))["get_config"](), built.cost.microbatch_tokens
    check_config(schema.complete(made))
    assert made.microbatch_tokens == (fewer or 0)
    assert preflight.least_bytes(made, (1, 1, 1)) <= count * memory
    assert (f"set config.microbatch_tokens = {fewer}" in text(found)) == bool(fewer)


def test_a_model_is_served_on_the_devices_that_are_asked_for():
    """Or on as many more as hold it: without --memory_gb nothing else keeps a plan to what the devices hold."""
    found = plan(flops=1e25, chips="H100:4096", devices=32)
    chips = [row.cost.serving_chips for row in found.optima]
    assert chips == [max(32, math.ceil(row.memory_bytes / (80 * 2**30))) for row in found.optima]
    assert min(chips) == 32 < max(chips)


def test_a_step_of_the_buildable_model():
    """On each chip 18 bytes of its parameters, 2 x 2 of each block's input and, of a token's width in the mixture at
    work, 5 + 5 + 2 x 4 + 3 x 16 + 8 x 512 / 64, with the mixture's weights in bfloat16."""
    built = plan(flops=1e20, chips="H100:8").buildable
    width, tokens = built.d_model, 262_144
    by_hand = 18 * built.n_total + 4 * width * built.n_blocks * tokens + 130 * width * tokens
    by_hand += 8 * 2 * (4 + 9 * built.n_experts) * width**2
    assert built.n_experts > 1 and built.n_heads == width / 64
    assert built.cost.step_tokens == tokens and built.cost.step_bytes == pytest.approx(by_hand, rel=1e-12)
    for count in (1, 2, 3, 4, 6, 8, 12):
        step = plan(flops=1e20, chips=f"H100:{count}").buildable.cost
        fits = step.step_bytes <= count * 80 * 2**30
        assert (step.microbatch_tokens is None) == fits
        assert fits or 65_536 % step.microbatch_tokens == 0


def test_a_target_is_reached_at_the_least_cost_of_all_sizes():
    law, loss, served = load(PAPERS), 2.2, 3e11
    limits = dict(inference_tokens=served, memory_gb=24, experts=[1, 8, 32])
    target = plan(target_loss=loss, **limits).target
    for row in target.optima:
        m, mu, n, nu, c = map(float, law.chinchilla_coefficients_at(row.n_experts)[:5])
        roots = np.roots([(4 + 9 * row.n_experts) / 64, 0, 2 * 50257, -12e9])  # the width that fills the memory
        width = np.append(np.geomspace(64, 20_000, 400_001), roots[np.isreal(roots)].real * (1 - 1e-12))
        active, total = (2 * width * 50257 + (4 + 9 * e) * width**3 / 64 for e in (1, row.n_experts))
        room = loss - c - m * active**mu  # left for the tokens' part of the loss
        tokens = np.where(room > 0, np.maximum(room, 1e-300) / n, np.nan) ** (1 / nu)
        price = np.where(2 * total <= 24e9, 6 * active * tokens + 2 * active * served, np.nan)
        if np.isnan(price).all():
            assert row.flops is None
        else:
            assert row.flops == pytest.approx(np.nanmin(price), rel=1e-7)
            assert row.flops <= np.nanmin(price) * (1 + 1e-9)
    front = target.front
    assert all(a.loss > b.loss for a, b in zip(front, front[1:], strict=False))
    assert front[3].loss == pytest.approx(loss, rel=1e-12) and front[3].n_experts == target.best.n_experts
    twice = plan(flops=2 * target.best.flops, **limits).best
    assert [front[4][name] for name in COLUMNS] == pytest.approx([twice[name] for name in COLUMNS])
    priced = plan(target_loss=loss, **limits, chips="H100:64", mfu=0.4, dollars_per_hour=2).target.best
    assert priced.hours == pytest.approx(priced.flops / (64 * 989e12 * 0.4 * 3600))
    assert priced.dollars == pytest.approx(2 * 64 * priced.hours) and priced.inference_flops > 0


def test_what_never_reaches_a_loss_says_so():
    found = plan(target_loss=2.6, memory_gb=4, max_tokens=3e10, experts=[1, 4, 32], verbose=True)
    assert [row.flops is None for row in found.target.optima] == [False, False, True]
    assert "32 never reaches it" in text(found)


def test_worth_of_what_is_repeated():
    """Values that Muennighoff et al. print: App. A's example, and 0.051 parameters for each unique token on C4."""
    assert repeated._worth(5.0, 1.0, 3.0) == pytest.approx(3.21, abs=0.005)
    assert repeated._worth(101.0, 1.0, 3.0) == pytest.approx(4, abs=1e-9)
    a, b, e, alpha = 6.255414, 7.3049974, 0.6254804, 0.3526596
    coefficients = dict(A=np.exp(a), B=np.exp(b), E=np.exp(e), alpha=alpha, beta=alpha)
    law = repeated.of_law(Law("c4", FORMS["chinchilla"], coefficients), 1e9)
    reduced = law.fresh.chinchilla_coefficients_at(1)
    many, _ = law.effective(reduced, 1e15, 1e9)
    assert many / (1 + repeated.R_N) / 1e9 == pytest.approx(0.051, rel=0.01)
    # no parameter in excess, every token new: nothing changes
    assert law.predict(4e7, 8e8) == pytest.approx(law.fresh.predict(4e7, 8e8), rel=1e-12)
    size = 1e9 * 0.0512
    by_hand = (
        521 / (size + 5.31 * size * (1 - np.exp(-(3e8 / size - 1) / 5.31))) ** 0.3527
        + 1488 / (1e9 + 15.39 * 1e9 * (1 - np.exp(-4 / 15.39))) ** 0.3527
        + 1.87
    )
    assert law.predict(3e8, 5e9) == pytest.approx(by_hand, rel=1e-3)


@pytest.mark.parametrize("epochs", [1, 4, 60])
def test_epochs_by_brute_force(epochs):
    unique, flops = 1e9, 3e20
    found = plan(flops=flops, max_tokens=unique, epochs=epochs, experts=[1, 8])
    law = load(PAPERS)
    for row in found.optima:
        m, mu, n, nu, c = map(float, law.chinchilla_coefficients_at(row.n_experts)[:5])
        size = np.geomspace(PAPER.n_active(64.0), 1e12, 400_001)
        tokens = np.minimum(flops / (6 * size), unique * epochs)
        new = np.minimum(tokens, unique)
        needed = np.minimum(size, (n * nu * new**nu / (m * mu)) ** (1 / mu))
        size_worth = needed * (1 + 5.309743 * (1 - np.exp(-(size / needed - 1) / 5.309743)))
        worth = new * (1 + 15.387756 * (1 - np.exp(-(tokens / new - 1) / 15.387756)))
        loss = m * size_worth**mu + n * worth**nu + c
        if row.size_bound == "plateau":
            smallest = size[np.argmax(loss <= loss.min() * (1 + 1e-4))]
            assert row.loss <= loss.min() * (1 + 1.0001e-4) and row.n_active == pytest.approx(smallest, rel=1e-3)
        else:
            assert row.loss == pytest.approx(loss.min(), rel=1e-8)  # the grid's step where the cap begins to bind
            assert row.loss <= loss.min() * (1 + 1e-12)
        assert row.n_tokens <= unique * epochs * (1 + 1e-9)
    repeated, best = found.repeats.best, found.best
    assert repeated in found.repeats.optima and repeated.n_experts == best.n_experts
    assert repeated.epochs == pytest.approx(best.n_tokens / unique)
    assert repeated.effective_tokens <= best.n_tokens and repeated.effective_n_active <= best.n_active
    if epochs == 1:
        assert found.repeats.loss_saved == 0
    else:
        assert found.repeats.loss_saved > 0.05 and found.loss_of_token_cap > 0


def test_a_target_of_repeated_text_on_chips_and_a_law_with_draws(tmp_path):
    """A plan by hours, then by the loss that it reaches: the same model in the same hours."""
    law = load(fit_runs.write_demo_law(tmp_path / "law.json"))
    rng = np.random.default_rng(0)
    rows = [[value * (1 + 0.01 * rng.normal()) for value in fit_runs.TINY.values()] for _ in range(8)]
    law = dataclasses.replace(law, bootstrap=fit_runs.bootstrap(rows))
    limits = dict(max_tokens=2e5, epochs=8, chips="H100:2", dollars_per_hour=3, mfu=0.01)
    found = plan(law, hours=1e-6, **limits)
    assert found.odds.draws == 8 and len(found.odds.experts) == 4
    for row, drawn in zip(found.optima, found.odds.experts, strict=True):
        assert drawn.loss[0] <= row.loss <= drawn.loss[1]
    again = plan(law, target_loss=found.best.loss, **limits)
    assert again.target.best.hours <= 1e-6 * (1 + 1e-9)
    assert again.target.best.loss == pytest.approx(found.best.loss, rel=1e-12)
    assert again.best.n_active == pytest.approx(found.best.n_active, rel=1e-3)


def test_durations():
    hours = (1e-6, 1 / 3600, 0.2, 7.5, 47, 48, 100, 8766 * 3.2)
    assert [units.duration(h) for h in hours] == "< 1 s|1 s|12 min|7.5 h|47 h|2 days|4.17 days|3.2 years".split("|")


def test_energy_by_hand():
    """64 H100 of 700 W for 240 hours."""
    plan = fit.plan("joint-moe-2025", chips="H100:64", hours=240, verbose=True)
    kwh = plan.buildable.cost.training_hours * 64 * 0.7
    assert plan.energy.kwh == pytest.approx(kwh) and kwh == pytest.approx(240 * 64 * 0.7, rel=0.01)
    assert f"Energy: {kwh:,.0f} kWh at the chips' full 700 W" in " ".join(str(plan).split())
    assert fit.plan("joint-moe-2025", chips="v5p:64", hours=240).energy is None  # whose power is not published
    assert fit.plan("joint-moe-2025", flops=1e21).energy is None
