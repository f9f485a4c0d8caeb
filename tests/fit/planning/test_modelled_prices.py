"""FLOPs on chips and plans by hours: hours and dollars at the modelled speed of each model."""

import pytest

import fit
from fit.model import efficiencies
from fit.model.chips import CHIPS
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from fit.planning.inputs.training_chips import MEMORY_SHARE

LAW = "joint-moe-2025"
FLOPS = dict(flops=1e22, chips="H100:64", dollars_per_hour=2)
CROWDED = dict(flops=3e20, chips="H100:1")


@pytest.fixture(scope="module")
def plan():
    return fit.plan(LAW, **FLOPS)


def test_flops_choose_the_same_model_with_and_without_an_mfu(plan):
    at_mfu = fit.plan(LAW, **FLOPS, mfu=0.4)
    assert [row.n_experts for row in plan.optima] == [row.n_experts for row in at_mfu.optima]
    for row, other in zip([*plan.optima, plan.buildable], [*at_mfu.optima, at_mfu.buildable], strict=True):
        for name in ("n_experts", "n_active", "n_total", "n_tokens", "loss", "d_model", "training_flops"):
            assert row[name] == other[name]
    assert at_mfu.clock is None and at_mfu.buildable.speed is None


def test_hours_and_dollars_follow_from_the_layout_that_is_emitted(plan):
    """By the calibration alone, of a step on 64 H100."""
    built = plan.buildable
    planned = built.layout
    batch = planned.ramp[-1][1]
    sizes = planned.data, planned.expert, planned.model
    at_once = planned.microbatch_tokens
    layout = Layout(batch, built.sequence, *sizes, microbatch_tokens=at_once, remat=planned.remat)
    shape = ModelShape.of_config({name: value for name, value in built.to_dict().items() if value is not None})
    calibration = efficiencies.of_our_trainer("H100", 64)
    cost = calibration.step_cost("H100", shape, layout)
    hours = built.n_tokens / batch * cost.seconds / 3600
    assert built.cost.training_hours == pytest.approx(hours, rel=1e-9)
    assert built.cost.training_dollars == pytest.approx(hours * 64 * 2, rel=1e-9)
    low, _, high = calibration.factors()
    assert built.speed.hours == pytest.approx([hours * low, hours, hours * high], rel=1e-9)
    least, most = built.batch_allowed
    assert least <= batch <= most and cost.device_bytes <= MEMORY_SHARE * CHIPS["H100"].memory


def test_each_number_of_experts_has_its_own_speed(plan):
    """More experts train slower than dense models of the FLOPs: each costs its own hours."""
    for row in plan.optima:
        rate = row.speed.tokens_per_second[1]
        assert row.cost.training_hours == pytest.approx(row.n_tokens / rate / 3600, rel=1e-9)
        assert row.speed.mfu[1] == pytest.approx(6 * row.n_active * rate / (64 * 989e12), rel=1e-9)
        assert plan.chips.mfu[row.n_experts] == pytest.approx(row.speed.mfu[1], rel=5e-3)
    mfu = [row.speed.mfu[1] for row in plan.optima]
    assert mfu[0] == max(mfu) and mfu[-1] < 0.7 * mfu[0]


@pytest.fixture(scope="module")
def crowded():
    """On chips whose memory bounds the size of large mixtures."""
    return fit.plan(LAW, **CROWDED)


def test_the_answer_says_what_the_clock_would_choose(crowded):
    plan = crowded

    def by_median(plan):
        (best,) = (row for row in plan.optima if row.n_experts == plan.odds.by_median)
        return best

    hours = by_median(plan).n_tokens / by_median(plan).speed.tokens_per_second[1] / 3600
    assert plan.clock.hours == pytest.approx(hours, rel=1e-9)
    by_time = fit.plan(LAW, chips=CROWDED["chips"], hours=hours)
    assert plan.clock.by_flops == plan.odds.by_median
    as_many_flops = fit.plan(LAW, flops=by_median(by_time).training_flops, chips=CROWDED["chips"], mfu=0.4)
    assert by_time.clock.by_flops == as_many_flops.odds.by_median
    assert plan.clock.by_time == by_time.odds.by_median != plan.odds.by_median
    told = " ".join(str(plan).split())
    experts = (plan.odds.by_median, by_time.odds.by_median)
    assert "By FLOPs {} experts are best, by wall-clock time {}: these chips".format(*experts) in told
    assert plan.clock.largest < by_median(by_time).n_active
    low, middle, high = plan.buildable.speed.hours
    assert f"at MFU {plan.buildable.speed.mfu[1]:.2f}, modelled" in told and low < middle < high
    alone = fit.plan(LAW, **CROWDED, experts=[8])
    assert alone.clock.by_time == alone.clock.by_flops == 8 and "by wall-clock time" not in str(alone)


def test_what_is_not_modelled_is_said():
    paper = fit.plan(LAW, **FLOPS, shape="paper")
    assert "at MFU 0.4, assumed" in str(paper) and paper.chips.mfu_is_assumed
    # the mesh does not divide three experts
    some = fit.plan(LAW, flops=1e20, chips="H100:8", mesh=dict(expert=8), experts=[3, 8], verbose=True)
    (eight,) = some.optima
    (three,) = some.infeasible
    assert eight.n_experts == 8 and eight.speed is not None
    assert three.n_experts == 3 and "--mesh=expert:8: no model of the plan divides over such a mesh" in three.why


def test_a_target_is_priced_as_its_plan():
    """The hours of the cheapest model are those of a plan by its FLOPs; inference counts at the same speed."""
    loss = 2.1
    found = fit.plan(LAW, target_loss=loss, chips="H100:64", dollars_per_hour=2, inference_tokens=1e11)
    best = found.target.best
    planned = fit.plan(LAW, flops=best.flops, chips="H100:64", inference_tokens=1e11)
    assert planned.best.loss == pytest.approx(loss, rel=1e-6)
    assert best.hours == pytest.approx(planned.clock.hours, rel=1e-6)
    assert best.dollars == pytest.approx(best.hours * 64 * 2)
    for row in found.target.optima:
        of_plan = next(other for other in found.optima if other.n_experts == row.n_experts)
        rate = row.flops / (6 * row.n_active) / (row.hours * 3600)
        assert 0.2 < 6 * row.n_active * rate / (64 * 989e12) / of_plan.speed.mfu[1] < 3
    assert found.target.front[3].hours == pytest.approx(best.hours)
    hours = [row.hours for row in found.target.front]
    assert hours == sorted(hours)


def test_experts_that_the_law_counts_as_no_whole_number():
    """16 experts split in 4 with one of them shared are built as 64, which the law counts as 16.25."""
    shape = dict(shape=dict(granularity=4, shared_experts=1), experts=[8, 16], chips="B200:32", hours=100)
    by_clock = fit.plan(LAW, **shape)
    assert by_clock.buildable["law_experts"] != round(by_clock.buildable["law_experts"])
    assert "modelled" in str(by_clock)
    assert "at MFU 0.3" in str(fit.plan(LAW, mfu={8: 0.3, 16: 0.3}, **shape))


def test_a_law_of_several_splits_is_timed_at_each():
    """Finer experts are slower: by wall-clock time the split is not the finest, which FLOPs prefer."""
    limits = dict(chips="H100:16", hours=100)
    found = fit.compare(["fine-grained-2024"], **limits, verbose=True)
    (fine,) = found.laws
    (by_flops,) = fit.compare(["fine-grained-2024"], **limits, mfu=0.4).laws
    assert 1 < fine.granularity < by_flops.granularity
    assert fine.n_tokens == pytest.approx(fine.speed.tokens_per_second[1] * 360_000, rel=1e-9)
    told = " ".join(str(found).split())
    assert "dense hours" in told and "speed on these chips (modelled" in told


def test_own_speeds_recalibrate_the_plan(tmp_path):
    """Four models at 0.6 of the modelled speed: a plan with them has the models and tokens of 0.6 of the hours."""
    chips = "H100:64"
    rows = []
    for hours, e in ((24, 1), (24, 8), (2400, 1), (2400, 8)):
        built = fit.plan(LAW, chips=chips, hours=hours, experts=[e]).buildable
        columns = (
            "d_model",
            "n_blocks",
            "n_heads",
            "n_kv_heads",
            "head_dim",
            "d_ff",
            "n_experts",
            "top_k",
            "vocab_size",
        )
        row = {name: built.get(name) for name in columns}
        layout = built.layout
        row |= dict(seq_len=built.sequence, batch_tokens=layout.batch_tokens, expert=layout.expert, remat=layout.remat)
        rows.append(row | dict(tokens_per_second=0.6 * built.speed.tokens_per_second[1]))
    path = tmp_path / "speeds.csv"
    lines = [",".join(rows[0])] + [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
    path.write_text("\n".join(lines))
    found = fit.plan(LAW, chips=chips, hours=240, speeds=str(path))
    expected = fit.plan(LAW, chips=chips, hours=0.6 * 240)
    for row, other in zip(found.optima, expected.optima, strict=True):
        assert row.loss == pytest.approx(other.loss, rel=2e-3)
        of_budget = 6 * row.n_active * row.n_tokens
        assert of_budget == pytest.approx(6 * other.n_active * other.n_tokens, rel=0.05)
        low, _, high = row.speed.tokens_per_second
        modelled_low, _, modelled_high = other.speed.tokens_per_second
        assert high / low < modelled_high / modelled_low
    assert found.clock.label == "measured" and ", measured; training takes" in " ".join(str(found).split())
