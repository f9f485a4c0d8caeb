"""Hours on the planner page: the model of a step's time in JavaScript against Python's, and plans by the clock."""

import dataclasses
import json
import math
import random
import re
import shlex

import pytest
from planner_tab import SETTLED, Planner, assert_same, calculating_tab, typed

from fit import __main__ as command_line
from fit.fitted_law.law import load
from fit.model import efficiencies
from fit.model.chips import CHIPS
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from fit.planning import mesh, startable
from fit.planning.constraints import ROOM, Chips
from fit.shape import hardware, reference_model

LAWS = ("joint-moe-2025", "sparsity-2025", "comprehensive-2025", "fine-grained-2024", "jmoe-bytes-2026")
LIKE = ("DeepSeek-V3", "Qwen3-30B-A3B", "Llama-3.1-8B")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page of the published laws."""
    folder = tmp_path_factory.mktemp("page")
    assert command_line.run(["page", f"--out={folder}/planner.html"]) == 0
    return folder


@pytest.fixture
def planner(browser, folder):
    opened = Planner(browser, folder, viewport=dict(width=1280, height=900))
    yield opened
    assert opened.errors == []
    opened.tab.close()


def drawn_models(count, seed):
    """[(law, architecture, style, chips, model, tokens, whether it is built like a published one)], drawn."""
    rng = random.Random(seed)
    drawn = []
    for _ in range(count):
        law = load(rng.choice(LAWS))
        name = rng.choice([None, *LIKE])
        architecture = law.shaped(50257, 64)
        if name is not None:
            architecture = reference_model.read(name).architecture(None, None, bool(law.models["architecture"]))
        vocab_size = hardware.padded(architecture.vocab_size)  # as models that are timed have it
        architecture = dataclasses.replace(architecture, vocab_size=vocab_size)
        as_published = rng.random() < 0.6
        style = hardware.style_of(architecture, as_published, frozenset())
        width = rng.choice([128, 256, 512, 768, 1024, 2048, 3072, 4096, 8192])
        n_blocks = max(round(width / style.aspects[1]), architecture.n_dense + 1)
        routed = hardware.whole_experts(architecture, rng.choice([1, 4, 8, 64]))[0]
        model = hardware.built(architecture, style, width, n_blocks, routed)
        chips = Chips(rng.choice(list(CHIPS)), rng.choice([1, 8, 24, 64, 72, 512]), 0.4, room=ROOM)
        n_tokens = math.exp(rng.uniform(math.log(1e8), math.log(1e13)))
        drawn.append((law, architecture, style, chips, model, n_tokens, name is not None))
    return drawn


def of_the_page(law, architecture, style, chips, model, n_tokens, is_family):
    """The same as the page has it."""
    return dict(
        law=law.name,
        shape=architecture.all_fields(),
        style=dict(head_dim=style.head_dim, kv_heads=style.kv_heads),
        chips=dict(kind=chips.kind, count=chips.count),
        width=model.d_model,
        n_blocks=model.n_blocks,
        n_experts=model.n_experts,
        n_tokens=n_tokens,
        is_family=is_family,
    )


MODEL_AND_RECIPE = """
    const law = data.laws.find(({ name }) => name === drawn.law);
    const model = builtModel(data, drawn.shape, drawn.style, drawn.width, drawn.n_blocks, drawn.n_experts);
    const recipe = recipeOf(data, law, model, drawn.n_tokens, drawn.is_family);"""


def test_the_page_chooses_the_layout_that_python_does(browser):
    """120 models of laws and published families on all kinds of chips: parameters, batches, layout and speed."""
    tab = calculating_tab(browser, [load(name) for name in LAWS])
    drawn = drawn_models(120, seed=1)
    answers = tab.evaluate(
        f"""(all) => all.map((drawn) => {{ {MODEL_AND_RECIPE}
            return {{ model, recipe, layout: fastestLayout(data, drawn.chips, model, recipe) }}; }})""",
        [of_the_page(*each) for each in drawn],
    )
    n_trained = 0
    for (law, _, _, chips, model, n_tokens, is_family), answer in zip(drawn, answers, strict=True):
        calibration = efficiencies.of_our_trainer(chips.kind, chips.count)
        layouts = startable.Layouts(law, chips, startable.ShapeRequest(family=is_family), calibration=calibration)
        run = layouts.run(model, n_tokens)
        for name in ("n_active", "n_total", "exact_parameters"):
            assert answer["model"][name] == getattr(model, name)
        assert answer["recipe"]["batches"] == [batch for _, batch in run.ramp]
        assert (answer["recipe"]["sequence"], answer["recipe"]["isPublished"]) == (run.sequence, run.flash)
        timed = layouts.timed(model, n_tokens)
        if timed is None:
            assert answer["layout"] is None
            continue
        n_trained += 1
        layout, tokens_per_second = timed
        chosen = answer["layout"]
        assert chosen["mesh"] == dict(data=layout.data, expert=layout.expert, model=layout.model)
        assert (chosen["remat"], chosen["microbatch_tokens"]) == (layout.remat, layout.microbatch_tokens)
        assert chosen["batch_tokens"] == layout.batch_tokens[-1][1]
        assert chosen["tokens_per_second"] == pytest.approx(tokens_per_second, rel=1e-9)
        _, sent_bytes, device_bytes = chosen["cost"]
        assert (sent_bytes, device_bytes) == pytest.approx((layout.sent_bytes, layout.device_bytes), rel=1e-9)
    assert n_trained > 60
    tab.close()


def test_a_step_takes_as_long_as_in_python_on_any_mesh(browser):
    """Layouts that nobody would choose, too."""
    tab = calculating_tab(browser, [load(name) for name in LAWS])
    rng = random.Random(2)
    cases = []
    expected = []
    for law, architecture, style, chips, model, n_tokens, is_family in drawn_models(200, seed=2):
        run = startable.Layouts(law, chips, startable.ShapeRequest(family=is_family)).run(model, n_tokens)
        meshes = list(mesh.meshes(run, chips.n_devices, mesh.MeshRequest()))
        if not meshes:
            continue
        data, expert, tensor = rng.choice(meshes)
        remat = rng.choice(["full", "dots", "none"])
        batch = run.ramp[-1][1]
        at_once = batch // rng.choice([1, 2, 8])
        layout = Layout(batch, run.sequence, data, expert, tensor, 1, at_once, remat, flash=run.flash)
        calibration = efficiencies.of_our_trainer(chips.kind, chips.count)
        expected.append(calibration.step_cost(chips.kind, ModelShape.of_config(run.shape), layout).seconds)
        case = of_the_page(law, architecture, style, chips, model, n_tokens, is_family)
        cases.append(case | dict(mesh=dict(data=data, expert=expert, model=tensor), remat=remat, parts=batch / at_once))
    seconds = tab.evaluate(
        f"""(all) => all.map((drawn) => {{ {MODEL_AND_RECIPE}
            const chip = data.chips[drawn.chips.kind];
            const n_devices = drawn.chips.count * chip.devices;
            const counts = countsOfToken(data, model, recipe, drawn.remat);
            const tokens = recipe.batches.at(-1) / n_devices;
            const setup = {{ n_devices, tokens, n_microbatches: Math.max(1, drawn.parts) }};
            return secondsOfStep(data, chip, model, counts, drawn.mesh, setup); }})""",
        cases,
    )
    assert len(cases) > 100
    assert seconds == pytest.approx(expected, rel=1e-9)
    tab.close()


# what the page says by hours is its own until it reads the grid of fit/planning/speeds.py
out_of_step = pytest.mark.skip(reason="the page does not read the candidates of fit plan by hours yet")


def wishes(law, count, seed):
    """Drawn states of the hash: hours or FLOPs over decades on all kinds of chips, with and without other limits."""
    rng = random.Random(seed)

    def between(low, high):
        return f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}"

    for _ in range(count):
        state = dict(law=law, memory_gb="", context="0")
        state |= dict(hours=between(0.5, 3000)) if rng.random() < 0.5 else dict(flops=between(1e18, 1e24))
        state |= dict(chip=rng.choice(list(CHIPS)), chips=rng.choice(["1", "8", "24", "64", "72", "512"]))
        if rng.random() < 0.4:
            state |= dict(memory_gb=between(1, 200), context=rng.choice(["0", "16384"]))
        if rng.random() < 0.3:
            state["max_tokens"] = between(1e8, 1e13)
        if rng.random() < 0.3:
            state["inference_tokens"] = between(1e8, 1e12)
        if rng.random() < 0.3:
            state["like"] = rng.choice(LIKE)
        if rng.random() < 0.3:
            state["experts"] = ",".join(map(str, sorted({1, *rng.sample([2, 3, 6, 8, 64, 200], 3)})))
        if rng.random() < 0.2:
            state |= dict(vocab_size="32000", width_per_block="128")
        yield state


@out_of_step
@pytest.mark.parametrize("law", LAWS)
def test_the_page_plans_by_the_clock_as_the_command_line_does(planner, capsys, law):
    """The command on the page, which has no --mfu, prints the JSON on the page."""
    answered = 0
    n_timed = 0
    for state in wishes(law, 8, seed=len(law)):
        planner.open(**state)
        if planner.tab.locator("#results").is_hidden():
            flags = {name: value for name, value in state.items() if value and name not in ("context", "chip")}
            flags |= dict(chips=f"{state['chip']}:{state['chips']}", kv_tokens=state["context"])
            command = "python -m fit plan " + " ".join(f"--{name}={value}" for name, value in flags.items())
            assert typed(command, capsys) == ("", planner.text("refusal")), state
            continue
        answered += 1
        command = planner.text("command")
        assert "--mfu" not in command
        page_plan = json.loads(planner.text("json"))
        line_plan = json.loads(typed(f"{command} --json", capsys)[0])
        assert_same(page_plan, line_plan, json.dumps(state))
        assert ("clock" in page_plan) == ("clock" in line_plan)
        n_timed += "clock" in page_plan and "speed" in page_plan["best"]
    assert answered >= 4 and n_timed >= 4


@out_of_step
def test_laws_beside_each_other_by_the_clock(planner, capsys):
    """Three of the laws of the page's command, run: `fit compare` times for minutes the laws that split experts."""
    names = ["joint-moe-2025", "sparsity-2025", "chinchilla-refit-2024"]
    planner.open(
        law="joint-moe-2025", hours="100", chip="H100", chips="64", memory_gb="", context="0", experts="1,8,64"
    )
    command = re.sub(r"--laws=\S+", f"--laws={','.join(names)}", planner.text("compare"))
    assert "--hours=100" in command and "--mfu" not in command
    assert command_line.run([*shlex.split(command)[3:], "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    answers = [answer for answer in json.loads(planner.text("laws-json"))["laws"] if answer["law"] in names]
    assert_same(answers, line["laws"], command)
    assert "hours_ratio" in answers[0]["dense"] and "E by FLOPs" in planner.text("laws")


@out_of_step
def test_the_page_says_how_fast_and_where_flops_choose_otherwise(planner, capsys):
    planner.open(law="joint-moe-2025", hours="100", chip="H100", chips="8", memory_gb="", context="0")
    plan = json.loads(planner.text("json"))
    assert plan["clock"]["by_flops"] != plan["best"]["n_experts"]
    (told,) = [item for item in planner.items("verdict") if item.startswith("By FLOPs")]
    printed = " ".join(typed(planner.text("command"), capsys)[0].split())
    assert told in printed
    best_by = planner.tab.locator("#table tbody tr").all_text_contents()
    assert sum("the clock" in row for row in best_by) == sum("FLOPs" in row for row in best_by) == 1
    tiles = planner.text("tiles")
    assert "(modelled)" in tiles and "tokens/s" in tiles and "MFU" in tiles
    note = f"speed on these chips ({efficiencies.OWN_LABEL}; in brackets 80% ranges)"
    assert planner.text("speed-note").startswith(note)
    assert planner.tab.locator("#pictures figure:visible").count() == 3
    assert "each model at its modelled speed" in planner.text("pictures")
    assert float(planner.tab.input_value("#flops")) == pytest.approx(plan["best"]["training_flops"], rel=1e-3)


@out_of_step
def test_flops_are_priced_at_modelled_speeds(planner, capsys):
    """The hours beside the FLOPs are those of the modelled speed, and hours choose another number of experts."""
    planner.open(law="joint-moe-2025", flops="1e22", chip="H100", chips="16", memory_gb="", context="0")
    plan = json.loads(planner.text("json"))
    assert_same(plan, json.loads(typed(f"{planner.text('command')} --json", capsys)[0]))
    assert float(planner.tab.input_value("#hours")) == pytest.approx(plan["best"]["speed"]["hours"][1], rel=1e-3)
    assert plan["clock"]["by_time"] != plan["clock"]["by_flops"] == plan["best"]["n_experts"]
    assert any(item.startswith("By FLOPs 32 experts are best, by the clock") for item in planner.items("verdict"))
    assert "(modelled)" in planner.text("tiles")


def test_an_mfu_takes_the_place_of_modelled_speeds(planner):
    planner.open(law="joint-moe-2025", hours="240", chip="H100", chips="64")
    assert planner.tab.input_value("#mfu") == "" and planner.tab.get_attribute("#mfu", "placeholder") == "modelled"
    planner.fill(mfu="0.4")
    assert "--mfu=0.4" in planner.text("command") and "clock" not in json.loads(planner.text("json"))
    assert json.loads(planner.text("json"))["constraints"]["flops"] == pytest.approx(240 * 3600 * 64 * 989e12 * 0.4)
    planner.fill(mfu="")
    assert "--mfu" not in planner.text("command") and "clock" in json.loads(planner.text("json"))


def test_no_chart_against_hours_without_chips(planner):
    planner.open(law="joint-moe-2025", flops="1e22", chips="")
    assert planner.tab.locator("#pictures figure:visible").count() == 2


@out_of_step
def test_chips_that_train_no_model_are_a_sentence(planner, capsys):
    """One chip of v5e holds no model whose vocabulary is that large."""
    planner.open(law="joint-moe-2025", hours="240", chip="v5e", chips="1", vocab_size="9000000", memory_gb="")
    command = "python -m fit plan --law=joint-moe-2025 --hours=240 --chips=v5e:1 --vocab_size=9000000"
    assert typed(command, capsys) == ("", planner.text("refusal"))
    assert "nothing can be timed" in planner.text("refusal")


def test_a_slider_of_hours_moves_the_tokens(planner):
    planner.open(law="joint-moe-2025", hours="240", chip="H100", chips="64")
    before = json.loads(planner.text("json"))["best"]["loss"]
    planner.tab.focus("#hours-slider")
    planner.tab.keyboard.press("End")
    planner.tab.evaluate(SETTLED)
    assert planner.tab.input_value("#hours") == "10000"
    assert json.loads(planner.text("json"))["best"]["loss"] < before
