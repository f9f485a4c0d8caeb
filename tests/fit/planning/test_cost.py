"""Plans by chips and hours, by a loss to reach, and of text that is read several times."""

import json
import math
import runpy
import types

import fit_runs
import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.errors import UserError
from fit.fitted_law import repeated
from fit.fitted_law.law import Law, load
from fit.form import Form
from fit.laws import FORMS, joint
from fit.messages import units
from fit.model.architecture import PAPER
from fit.model.chips import CHIPS
from fit.planning.emit import plan_config
from jmoe.config import schema
from jmoe.config.check import check_config
from jmoe.cost.chips import CHIPS as JMOE_CHIPS
from launch import accelerators, preflight

PAPERS = "joint-moe-2025"


def plan(capsys, *flags, law=PAPERS):
    assert command_line.run(["plan", f"--law={law}", "--shape=paper", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    del found["options"]  # of the flags
    return found


def text(capsys, *flags, law=PAPERS):
    assert command_line.run(["plan", f"--law={law}", "--shape=paper", *flags, "--verbose"]) == 0
    return " ".join(capsys.readouterr().out.split())


def without_costs(found):
    """The plan as it is without --chips."""
    rows = [{k: v for k, v in row.items() if k != "cost"} for row in (*found["optima"], found["buildable"])]
    best = next(row for row in rows if row["n_experts"] == found["best"]["n_experts"])
    rest = {k: v for k, v in found.items() if k not in ("chips", "energy")}
    odds = {k: v for k, v in found["odds"].items() if k != "budget_hours"}
    odds["experts"] = [{k: v for k, v in row.items() if k != "regret_hours"} for row in odds["experts"]]
    warnings = [sentence for sentence in found["warnings"] if "x H100" not in sentence]
    return rest | dict(optima=rows[:-1], buildable=rows[-1], best=best, odds=odds, warnings=warnings)


def write_drawn_law(folder):
    """The demo's law with a few draws around it."""
    path = fit_runs.write_demo_law(folder / "law.json")
    record, rng = json.loads((folder / "law.json").read_text()), np.random.default_rng(0)
    rows = [[value * (1 + 0.01 * rng.normal()) for value in fit_runs.TINY.values()] for _ in range(8)]
    record["bootstrap"] = dict(form="errors", by="runs", percentiles=[10, 90], draws=rows)
    (folder / "law.json").write_text(json.dumps(record))
    return path


def test_hours_are_the_flops_worked_out_by_hand(capsys):
    limits = ["--memory_gb=80", "--kv_tokens=16384", "--inference_tokens=1e11"]
    flops = 64 * 989e12 * 0.35 * 3600 * 100
    by_hours = plan(capsys, "--chips=H100:64", "--hours=100", "--mfu=0.35", "--dollars_per_hour=2", *limits)
    by_flops = plan(capsys, f"--flops={flops!r}", *limits)
    assert without_costs(by_hours) == by_flops
    priced = plan(capsys, "--chips=H100:64", f"--flops={flops!r}", "--mfu=0.35", "--dollars_per_hour=2", *limits)
    assert priced == by_hours
    for row in [*priced["optima"], priced["buildable"]]:
        hours = row["training_flops"] / flops * 100
        assert row["cost"]["training_hours"] == pytest.approx(hours, rel=1e-12)
        assert row["cost"]["training_dollars"] == pytest.approx(hours * 64 * 2, rel=1e-12)


def test_mfu_by_number_of_experts(capsys, tmp_path):
    """Each number of experts has the FLOPs that the hours are at its own MFU; dense models need not be in the table."""
    mfu = {"8": 0.3, "2": 0.4, "32": 0.05}
    (tmp_path / "mfu.json").write_text(json.dumps(mfu))
    chips = ["--chips=v5p:256", "--hours=48", f"--mfu={tmp_path}/mfu.json"]
    found = plan(capsys, *chips, "--experts=2,8,32")
    assert [row["n_experts"] for row in found["optima"]] == [2, 8, 32] and found["best"]["n_experts"] == 8
    assert found["constraints"]["flops"].keys() == mfu.keys()
    for row in found["optima"]:
        flops = 256 * 459e12 * 3600 * 48 * mfu[str(row["n_experts"])]
        alone = plan(capsys, f"--flops={flops!r}", f"--experts={row['n_experts']}")["best"]
        assert {k: row[k] for k in ("n_active", "n_tokens", "loss")} == pytest.approx(
            {k: alone[k] for k in ("n_active", "n_tokens", "loss")}, rel=1e-12
        )
        assert row["cost"]["training_hours"] == pytest.approx(48, rel=1e-12)
    alone = plan(capsys, f"--flops={found['constraints']['flops']['8']!r}", "--experts=8")
    assert found["buildable"]["n_tokens"] == alone["buildable"]["n_tokens"]
    assert found["dense"]["loss"] == alone["dense"]["loss"]
    planned = tmp_path / "planned.py"
    text(capsys, *chips, "--experts=2,8,32", f"--emit_config={planned}")
    assert f"flops {found['constraints']['flops']['8']:g}" in planned.read_text()
    assert "MFU 0.4 (E = 2), 0.3 (E = 8), 0.05 (E = 32)" in text(capsys, *chips, "--experts=2,8,32")
    # the cheapest way to a loss is the one of fewest hours, not of fewest FLOPs
    goal = ["--target_loss=2.2", chips[0], chips[2], "--experts=2,8,32"]
    rows = plan(capsys, *goal)["target"]
    assert min(rows["optima"], key=lambda row: row["flops"])["n_experts"] == 32
    assert rows["best"]["n_experts"] == 8 and rows["best"]["hours"] == min(row["hours"] for row in rows["optima"])


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


@pytest.mark.parametrize("flops, count", [("1e19", 1), ("1e21", 8), ("1e25", 64)])
def test_no_plan_takes_more_chips_than_asked_for(capsys, tmp_path, flops, count):
    """One number of chips for training, in every row and for the model that is built; the trainer takes the emitted
    config on these chips, with fewer tokens at once where they do not hold a whole batch."""
    config, memory = tmp_path / "planned.py", 80 * 2**30
    flags = [f"--flops={flops}", f"--chips=H100:{count}"]
    found = plan(capsys, *flags, f"--emit_config={config}")
    built, free = found["buildable"], plan(capsys, flags[0])
    for row in [*found["optima"], built]:
        cost_of = row["cost"]
        taken = cost_of["training_chips"]
        assert taken <= count and cost_of["training_bytes"] <= taken * memory * (1 + 1e-9)
        assert cost_of["serving_chips"] == math.ceil(row["memory_bytes"] / memory)
        assert row.get("size_bound") != "chips" or cost_of["training_chips"] == count
    assert built["n_experts"] == found["best"]["n_experts"]
    bound = found["best"]["size_bound"] == "chips"
    assert bound == (found["best"]["loss"] > free["best"]["loss"] * (1 + 1e-12))
    told = [sentence for sentence in found["warnings"] if f"more than {count} x H100" in sentence]
    assert len(told) == bound
    if bound:
        gain = found["best"]["loss"] - free["best"]["loss"]
        assert f"E = {free['best']['n_experts']}" in told[0] and f"a loss {gain:.4f} lower" in told[0]
    made, fewer = runpy.run_path(str(config))["get_config"](), built["cost"]["microbatch_tokens"]
    check_config(schema.complete(made))
    assert made.microbatch_tokens == (fewer or 0)
    assert preflight.least_bytes(made, (1, 1, 1)) <= count * memory
    printed = text(capsys, *flags)
    assert (f"set config.microbatch_tokens = {fewer}" in printed) == bool(fewer)


def test_a_model_is_served_on_chips_that_hold_it(capsys):
    """Without --memory_gb nothing else keeps a plan to what the devices hold."""
    found = plan(capsys, "--flops=1e25", "--chips=H100:4096", "--devices=2")
    for row in found["optima"]:
        chips, serving = row["cost"]["serving_chips"], row["cost"]["serving"]
        assert chips == serving["chips"] == max(2, math.ceil(row["memory_bytes"] / (80 * 2**30)))
        many = serving["decoding"][-1]
        assert many["batch"] == 64 and many["read_bytes"] <= row["memory_bytes"]
    assert max(row["cost"]["serving_chips"] for row in found["optima"]) > 10


def test_a_step_of_the_buildable_model(capsys):
    """On each chip 18 bytes of its parameters, 2 x 2 of each block's input and, of a token's width in the mixture at
    work, 5 + 5 + 2 x 4 + 3 x 16 + 8 x 512 / 64, with the mixture's weights in bfloat16."""
    found = plan(capsys, "--flops=1e20", "--chips=H100:8")
    built, step = found["buildable"], found["buildable"]["cost"]
    width, tokens = built["d_model"], 262_144
    e = built["n_experts"]
    by_hand = 18 * built["n_total"] + 4 * width * built["n_blocks"] * tokens + 130 * width * tokens
    by_hand += 8 * 2 * (4 + 9 * e) * width**2
    assert e > 1
    assert built["n_heads"] == width / 64
    assert step["step_tokens"] == tokens and step["step_bytes"] == pytest.approx(by_hand, rel=1e-12)
    assert "262,144 tokens at once, by the paper's recipe" in text(capsys, "--flops=1e20", "--chips=H100:8")
    for count in range(1, 13):
        step = plan(capsys, "--flops=1e20", f"--chips=H100:{count}")["buildable"]["cost"]
        fits = step["step_bytes"] <= count * 80 * 2**30
        assert (step["microbatch_tokens"] is None) == fits
        assert fits or 65_536 % step["microbatch_tokens"] == 0


def test_a_target_is_reached_at_the_least_cost_of_all_sizes(capsys):
    law, loss, served = load(PAPERS), 2.2, 3e11
    flags = [f"--inference_tokens={served}", "--memory_gb=24", "--experts=1,8,32"]
    found = plan(capsys, f"--target_loss={loss}", *flags)
    for row in found["target"]["optima"]:
        m, mu, n, nu, c = map(float, law.chinchilla_coefficients_at(row["n_experts"])[:5])
        roots = np.roots([(4 + 9 * row["n_experts"]) / 64, 0, 2 * 50257, -12e9])  # the width that fills the memory
        width = np.append(np.geomspace(64, 20_000, 400_001), roots[np.isreal(roots)].real * (1 - 1e-12))
        active, total = (2 * width * 50257 + (4 + 9 * e) * width**3 / 64 for e in (1, row["n_experts"]))
        room = loss - c - m * active**mu  # left for the tokens' part of the loss
        tokens = np.where(room > 0, np.maximum(room, 1e-300) / n, np.nan) ** (1 / nu)
        price = np.where(2 * total <= 24e9, 6 * active * tokens + 2 * active * served, np.nan)
        if np.isnan(price).all():
            assert row["flops"] is None
        else:
            assert row["flops"] == pytest.approx(np.nanmin(price), rel=1e-7)
            assert row["flops"] <= np.nanmin(price) * (1 + 1e-9)
    front = found["target"]["front"]
    assert all(a["loss"] > b["loss"] for a, b in zip(front, front[1:], strict=False))
    assert front[3]["loss"] == pytest.approx(loss, rel=1e-12) and front[3]["n_experts"] == found["best"]["n_experts"]
    twice = plan(capsys, f"--flops={2 * found['target']['best']['flops']!r}", *flags)["best"]
    assert {k: front[4][k] for k in ("n_experts", "n_active", "loss")} == {
        k: twice[k] for k in ("n_experts", "n_active", "loss")
    }
    on_chips = ["--chips=H100:64", "--mfu=0.4", "--dollars_per_hour=2"]
    priced = plan(capsys, f"--target_loss={loss}", *flags, *on_chips)["target"]["best"]
    assert priced["hours"] == pytest.approx(priced["flops"] / (64 * JMOE_CHIPS["H100"].flops * 0.4 * 3600))
    assert priced["dollars"] == pytest.approx(2 * 64 * priced["hours"]) and priced["inference_flops"] > 0
    said = text(capsys, f"--target_loss={loss}", *flags)
    assert (
        "least cost of loss 2.2000, of training and 300B inference tokens:" in said and said.count("FLOPs: loss") == 7
    )


def test_what_never_reaches_a_loss_says_so(capsys):
    limits = ["--target_loss=2.6", "--memory_gb=4", "--max_tokens=3e10", "--experts=1,4,32"]
    rows = {row["n_experts"]: row["flops"] for row in plan(capsys, *limits)["target"]["optima"]}
    assert rows[32] is None and rows[1] and rows[4]
    assert "32 never reaches it" in text(capsys, *limits)


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
def test_epochs_by_brute_force(capsys, epochs):
    unique, flops = 1e9, 3e20
    found = plan(capsys, f"--flops={flops}", f"--max_tokens={unique}", f"--epochs={epochs}", "--experts=1,8")
    law = load(PAPERS)
    for row in found["optima"]:
        m, mu, n, nu, c = map(float, law.chinchilla_coefficients_at(row["n_experts"])[:5])
        size = np.geomspace(PAPER.n_active(64.0), 1e12, 400_001)
        tokens = np.minimum(flops / (6 * size), unique * epochs)
        new = np.minimum(tokens, unique)
        needed = np.minimum(size, (n * nu * new**nu / (m * mu)) ** (1 / mu))
        size_worth = needed * (1 + 5.309743 * (1 - np.exp(-(size / needed - 1) / 5.309743)))
        worth = new * (1 + 15.387756 * (1 - np.exp(-(tokens / new - 1) / 15.387756)))
        loss = m * size_worth**mu + n * worth**nu + c
        if row["size_bound"] == "plateau":
            smallest = size[np.argmax(loss <= loss.min() * (1 + 1e-4))]
            assert row["loss"] <= loss.min() * (1 + 1.0001e-4) and row["n_active"] == pytest.approx(smallest, rel=1e-3)
        else:
            assert row["loss"] == pytest.approx(loss.min(), rel=1e-8)  # the grid's step where the cap begins to bind
            assert row["loss"] <= loss.min() * (1 + 1e-12)
        assert row["n_tokens"] <= unique * epochs * (1 + 1e-9)
    of = {row["n_experts"]: row for row in found["repeats"]["optima"]}
    best, at = found["best"], of[found["best"]["n_experts"]]
    assert found["repeats"]["best"] == at and at["epochs"] == pytest.approx(best["n_tokens"] / unique)
    assert at["effective_tokens"] <= best["n_tokens"] and at["effective_n_active"] <= best["n_active"]
    assert found["constraints"]["max_tokens"] == unique and found["constraints"]["epochs"] == epochs
    assert "the law of repeated text was fitted on dense models only" in found["warnings"]
    if epochs == 1:
        assert found["repeats"]["loss_saved"] == 0
    else:
        assert found["repeats"]["loss_saved"] > 0.05 and found["loss_of_token_cap"] > 0


def test_a_target_of_repeated_text(capsys):
    flags = ["--max_tokens=2e11", "--epochs=30", "--inference_tokens=1e11"]
    best = plan(capsys, "--target_loss=2", *flags, law="chinchilla-2022")["target"]["best"]
    assert best["loss"] == pytest.approx(2, rel=1e-12)
    for share, above in ((0.999, True), (1.001, False)):
        found = plan(capsys, f"--flops={share * best['flops']!r}", *flags, law="chinchilla-2022")
        assert (found["best"]["loss"] > 2) == above


def test_everything_together_on_a_law_with_draws(capsys, tmp_path):
    law = write_drawn_law(tmp_path)
    flags = ["--max_tokens=2e5", "--epochs=8", "--chips=H100:2", "--dollars_per_hour=3"]
    found = plan(capsys, "--hours=1e-6", "--mfu=0.01", *flags, law=law)
    assert found["odds"]["draws"] == 8 and len(found["odds"]["experts"]) == 4
    for row, drawn in zip(found["optima"], found["odds"]["experts"], strict=True):
        assert drawn["loss"][0] <= row["loss"] <= drawn["loss"][1]
    again = plan(capsys, f"--target_loss={found['best']['loss']!r}", "--mfu=0.01", *flags, law=law)
    assert again["target"]["best"]["hours"] <= 1e-6 * (1 + 1e-9)
    assert again["best"]["n_active"] == pytest.approx(found["best"]["n_active"], rel=1e-3)
    said = text(capsys, "--hours=1e-6", "--mfu=0.01", *flags, law=law)
    assert "on 2 x H100 at MFU 0.01 and $3 an hour each" in said and "epochs of 200K tokens are worth" in said


def test_repeated_text_needs_a_law_of_its_kind():
    page = types.SimpleNamespace(
        **{name: value for name, value in vars(joint).items() if name != "chinchilla_coefficients_at"}
    )
    with pytest.raises(UserError, match="the worth of its repeated text is not known"):
        repeated.of_law(Law("searched", Form(page), fit_runs.TABLE_3), 1e9)


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
