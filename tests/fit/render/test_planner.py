"""The planner page in a real browser, compared with the command line: one page is made, and driven as a reader does."""

import json
import math
import random
import re
import shlex

import fit_command
import fit_runs
import pytest
from planner_tab import SETTLED, Planner, assert_same, typed

from fit import __main__ as command_line
from fit.commands import former_flags
from fit.messages import sentences
from fit.messages.units import amount

DENSE = ("chinchilla-2022", "chinchilla-refit-2024", "fine-grained-dense-2024")
SEARCHED = ("sparsity-2025", "fine-grained-2024", "comprehensive-2025")  # laws without an optimum in closed form
LAWS = ("law.json", "coupled.json", "joint-moe-2025", "jmoe-bytes-2026", *DENSE, *SEARCHED)
# models to start from: finer experts and dense blocks, and fewer heads of keys and values
LIKE_OF_LAW = {"joint-moe-2025": "DeepSeek-V3", "fine-grained-dense-2024": "Llama-3.1-8B"}


def write_drawn_law(folder, name="law.json", **coupled):
    """The demo's law with 40 draws around it, as --bootstrap=40 leaves them; with k, that of size and data coupled."""
    path = fit_runs.write_demo_law(folder / name)
    record, rng = json.loads((folder / name).read_text()), random.Random(0)
    law = record["coefficients"] = fit_runs.TINY | coupled
    record["form"] += "_coupled" if coupled else ""
    rows = [[value * (1 + 0.01 * rng.gauss(0, 1)) for value in law.values()] for _ in range(40)]
    beyond = dict(training_flops=1e11, drift=[0.01 * rng.gauss(0, 1) for _ in rows])
    record["bootstrap"] = dict(form="errors", by="trunks (column run)", percentiles=[10, 90], draws=rows, beyond=beyond)
    record["warning"] = "beyond its runs nobody knows"
    (folder / name).write_text(json.dumps(record))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """law.json and runs.csv as a demo leaves them, coupled.json of another form, and the page of all."""
    folder = tmp_path_factory.mktemp("page")
    laws = [f"--law={write_drawn_law(folder)}", f"--law={write_drawn_law(folder, 'coupled.json', k=0.7)}"]
    runs = fit_runs.write_demo_csv(folder / "runs.csv")
    assert command_line.run(["page", *laws, f"--runs={runs}", f"--out={folder}/planner.html"]) == 0
    return folder


@pytest.fixture(scope="module")
def session(browser, folder):
    """One tab for all tests here."""
    made = Planner(browser, folder, viewport=dict(width=1280, height=900))
    yield made
    made.tab.close()


@pytest.fixture
def planner(session):
    """The tab, in which a test may neither make the page complain nor let it ask for anything."""
    session.tab.set_viewport_size(dict(width=1280, height=900))
    yield session
    assert session.errors == [] and {re.split("[#?]", url)[0] for url in session.asked} == {session.file}


def wishes(law, count, seed):
    """Drawn states of the hash for a law: budgets over seven decades, with and without each of the other limits."""
    rng = random.Random(seed)
    of_serving = random.Random(seed + 1)
    middle = 2e12 if law.endswith(".json") or law == "jmoe-bytes-2026" else 1e21
    size = math.sqrt(middle / 120)

    def between(low, high):
        return f"{math.exp(rng.uniform(math.log(low), math.log(high))):.6g}"

    for i in range(count):
        state = dict(law=law, flops=between(1e-3 * middle, 1e4 * middle), memory_gb="", context="0")
        if rng.random() < 0.6:
            state |= dict(memory_gb=between(0.1 * size / 1e9, 200 * size / 1e9), devices=str(rng.choice([1, 8])))
            state |= dict(context=rng.choice(["0", "16384"]), sequences=rng.choice(["1", "12"]))
        if rng.random() < 0.4:
            state["inference_tokens"] = between(size, 1e4 * size)
        if rng.random() < 0.4:
            state["max_tokens"] = between(0.1 * size, 100 * size)
        if "memory_gb" in state and "max_tokens" in state and i % 4 == 0 and state["memory_gb"]:
            state |= dict(flops="", inference_tokens="0")
        state |= dict(bytes_per_parameter=rng.choice(["1", "2", "4"]), bytes_per_kv_element=rng.choice(["1", "2"]))
        state |= dict(
            chip=rng.choice(["H100", "v5e"]), chips=rng.choice(["64", "256"]), mfu=rng.choice(["0.4", "0.25"])
        )
        state["dollars_per_hour"] = rng.choice(["", "0", "2.5"])
        if law not in DENSE and rng.random() < 0.5:
            state["experts"] = ",".join(map(str, sorted({1, *rng.sample([2, 3, 6, 8, 64, 200], 3)})))
        if rng.random() < 0.2:  # hours instead of FLOPs
            state |= dict(flops="", hours=f"{rng.uniform(1, 1e4):.4g}")
        if i == 0 and law in LIKE_OF_LAW:
            state["like"] = LIKE_OF_LAW[law]
        if rng.random() < 0.2:
            state |= dict(vocab_size="32000", width_per_block="128")
        if of_serving.random() < 0.4:  # around what a chip decodes with a model of that size
            times = math.exp(of_serving.uniform(math.log(0.003), math.log(10)))
            state["serve_tokens_per_second"] = f"{times * int(state.get('sequences', 1)) * 8e11 / size:.6g}"
        yield state


def typed_flags(state):
    """The flags of `fit plan` for fields of the form."""
    return " ".join(word for name, value in state.items() for word in former_flags.replacement("plan", name, value))


def test_the_page_computes_what_the_command_line_does(planner, folder, capsys):
    """Four questions of each law, more than half of which have an answer: the command on the page, run, prints the JSON
    on the page, and its warnings; where the page refuses, the command's sentence."""
    answered = 0
    for name in LAWS:
        law = f"{folder}/{name}" if name.endswith(".json") else name
        answered += sum(is_answered_alike(planner, capsys, state) for state in wishes(law, 4, seed=len(name)))
    assert answered > 2 * len(LAWS)


def plan_of_command(planner, capsys):
    """The JSON that the page's command prints."""
    return json.loads(typed(f"{planner.text('command')} --json", capsys)[0])


def is_answered_alike(planner, capsys, state):
    """Whether page and command have an answer, which is then the same; a refusal has the same sentence."""
    planner.ask(**state)
    if planner.tab.locator("#results").is_hidden():
        flags = {k: v for k, v in state.items() if v and k not in ("context", "sequences", "chip", "chips")}
        flags["chips"] = f"{state['chip']}:{state['chips']}"
        if "serve_tokens_per_second" in state:
            flags["serve_batch"] = state.get("sequences", "1")
        kv_tokens = int(state["context"]) * int(state.get("sequences", 1))
        command = f"python -m fit plan {typed_flags(flags)}"
        assert typed(f"{command} --kv_tokens={kv_tokens}", capsys) == ("", planner.text("refusal")), state
        return False
    command, page = planner.text("command"), planner.plan()
    printed, refusal = typed(f"{command} --json", capsys)
    if refusal.startswith("no mesh of "):  # what the chips train is left to the command line
        return False
    line = json.loads(printed)
    for row in line["optima"]:  # what the chips hold is left to the command line
        del row["cost"]["training_bytes"], row["cost"]["training_chips"]
    if len(line["optima"]) < len(page["optima"]) or "chips" in [row["size_bound"] for row in line["optima"]]:
        return False
    assert_same(page, line, json.dumps(state))
    assert planner.text("build-command") == f"{command} --emit_config=planned.py"
    return True


DOUBTS = {
    "not_bounded": dict(law="sparsity-2025", flops="1e22", chips=""),
    "whole_experts": dict(law="fine-grained-2024", flops="1e22", chips=""),
    "mostly_embedding": dict(law="joint-moe-2025", flops="1e18", vocab_size="256000", chips=""),
    "shape_unknown": dict(law="comprehensive-2025", flops="1e22"),
}


@pytest.mark.parametrize("code", DOUBTS)
def test_the_page_warns_as_the_command_line_does(planner, folder, capsys, code):
    planner.open(**DOUBTS[code])  # laws without a closed form are drawn, too
    page = planner.plan()
    assert_same(page["findings"], plan_of_command(planner, capsys)["findings"], ".findings")
    assert code in [finding["code"] for finding in page["findings"]]
    assert len(page["findings"]) == planner.tab.locator("#answer [data-label=warning]").count()


LIKE = [
    dict(like="Qwen3-30B-A3B", chip="H100", chips="512", hours="30", mfu="0.4"),
    dict(like="Llama-4-Maverick", flops="1e22", chips=""),
    dict(chips="", flops="3e22", memory_gb="80", vocab_size="128000", experts="1,8,64"),
    dict(law="jmoe-bytes-2026", chips="", flops="1e20", memory_gb="4", context="0"),  # not as its medians would
    dict(chips="", flops="3e22", experts="8,16"),  # which a law of 64 experts knows nothing of
]


@pytest.mark.parametrize("state", LIKE, ids=lambda state: " ".join(state.values()))
def test_laws_beside_each_other_and_a_model_to_start_from(planner, state):
    """The page's command of all laws, run: what each would build, what they agree on, and what the model counts. The
    row of the planning law is the plan."""
    law = state.get("law", "joint-moe-2025")
    planner.open(**state | dict(law=law))
    page, command = json.loads(planner.text("laws-json")), planner.text("compare")
    assert command.startswith(f"python -m fit compare --laws={law},") and ",sparsity-2025," in command
    assert page["laws"][0]["n_experts"] == planner.plan()["best"]["n_experts"]
    line = fit_command.answer(*shlex.split(command)[3:])
    for row in line["laws"]:
        del row["leverage"]  # is no law of the loss
    assert_same(page, line, command)
    if "like" in state:
        counts = page["like"]
        assert planner.line(counts["name"]).startswith(f"{amount(counts['n_active'])} active of ")


INFEASIBLE = {
    "memory_gb=1e-7": "--memory_gb cannot be met",
    "flops=1e3": "--flops cannot be met",
    "flops=1e9&inference_tokens=1e9": "of it for --inference_tokens",
    "flops=&hours=1e-9&mfu=0.4&inference_tokens=1e9": "--hours=1e-09 of --chips=H100:1 cannot be met",
    "flops=-1": "--flops=-1: expected a positive number",
    "flops=": "nothing bounds the plan",
    "flops=&memory_gb=1&max_tokens=1e9&inference_tokens=1e9": sentences.NO_BUDGET_TO_SHARE,
    "max_tokens=0.5": "expected at least 1 token",
    "serve_tokens_per_second=1e18": "--serve=tokens_per_second:1e+18 cannot be met: the smallest model",
    "serve_tokens_per_second=-1": "--serve=tokens_per_second:-1: expected a positive number",
    "mfu=3": "--mfu=3: found 3, expected a number from 1e-6 to 1, or JSON of such by ",
    "experts=0.5": "expected whole numbers",
    "experts=two": "expected positive numbers",
    "law=chinchilla-2022&experts=1,8": "is a law of dense models",
    "law=fine-grained-2024&experts=8": "was fitted to mixtures of 64 experts alone",
}


@pytest.mark.parametrize("wish", INFEASIBLE)
def test_an_infeasible_wish_gets_the_command_lines_sentence(planner, folder, capsys, wish):
    state = dict(part.split("=") for part in wish.split("&"))
    planner.ask(**state)
    given = {"law": f"{folder}/law.json", "flops": "2e12"} | state
    given["chips"] = "H100:64" if "law" in state else "H100:1"  # the page has always some
    if "serve_tokens_per_second" in given:
        given["serve_batch"] = "1"  # the page decodes its sequences at once
    flags = typed_flags({name: value for name, value in given.items() if value})
    assert planner.tab.locator("#results").is_hidden()
    assert typed(f"python -m fit plan {flags}", capsys) == ("", planner.text("refusal"))
    assert INFEASIBLE[wish] in planner.text("refusal")


@pytest.mark.parametrize("width", [24, 100])
def test_a_memory_that_holds_the_smallest_model_exactly(planner, capsys, width):
    """The page plans that model, as the command does, also where rounding puts it a little outside."""
    smallest = 2 * 257 * width + 13 * width**2  # embedding, head and one block of a dense model
    state = dict(law="jmoe-bytes-2026", flops="1e14", memory_gb=f"{2 * smallest / 1e9:.17g}", width_per_block=width)
    planner.ask(**state)
    line = plan_of_command(planner, capsys)
    for best in (line["best"], planner.plan()["best"]):
        assert (best["n_experts"], best["n_active"]) == (1, pytest.approx(smallest, rel=1e-9))


def test_the_state_is_in_the_address(planner):
    planner.open()
    planner.fill(flops="3e12", memory_gb="0.0005", context="2K", inference_tokens="50M", experts="1,4,8,16")
    answer, command = planner.text("answer"), planner.text("command")
    assert "--kv_tokens=2000 --inference_tokens=5e7 --experts=1,4,8,16" in command
    planner.tab.reload()
    planner.tab.evaluate(SETTLED)
    assert (planner.text("answer"), planner.text("command")) == (answer, command)
    planner.open(law="another.json")
    assert "does not hold" in planner.text("refusal")
    planner.open(flops="3e12", chip="none", hours="", memory_gb="%")
    assert planner.text("refusal").startswith("memory_gb: found “%”")
    planner.tab.click("#reset")
    planner.tab.evaluate(SETTLED)
    assert planner.text("command") != command and planner.tab.input_value("#memory_gb") == ""


def test_hours_and_flops_follow_from_each_other(planner):
    planner.open(law="joint-moe-2025", chip="H100", chips="64", mfu="0.4", dollars_per_hour="2", hours="100")
    assert planner.line("Price").startswith("4.17 days and $12.8K on 64 x H100 at MFU 0.4; ")
    planner.fill(flops="1e22")
    hours = 1e22 / (64 * 989e12 * 0.4 * 3600)
    assert float(planner.tab.input_value("#hours")) == pytest.approx(hours, rel=1e-3)
    planner.fill(chips="128")  # the FLOPs were typed last: they stay
    assert "--flops=1e22" in planner.text("command")


def test_how_fast_chips_serve(planner, capsys):
    """Each batch by its number, in the table and as the command has it; a speed that is required bounds the size."""
    state = dict(law="joint-moe-2025", chip="H100", chips="512", flops="1e22", mfu="0.4", memory_gb="", context="4096")
    planner.open(**state, sequences="8")
    heads = planner.tab.locator("#costs th").all_text_contents()
    assert [head for head in heads if "batch" in head] == [f"decodes tokens/s, batch {n}" for n in (1, 8, 64)]
    assert "among many" not in planner.text("costs") and "(modelled)" in planner.text("costs")
    assert "--serve=batch:8" in planner.text("command")
    free = planner.plan()["best"]
    planner.fill(serve_tokens_per_second="2K")
    assert "--serve=tokens_per_second:2000,batch:8" in planner.text("command")
    best = planner.plan()["best"]
    assert_same(planner.plan(), plan_of_command(planner, capsys))
    assert best["size_bound"] == "serving" and best["n_active"] < free["n_active"]
    speeds = {row["batch"]: row["decode_tokens_per_second"] for row in best["cost"]["serving"]["decoding"]}
    assert speeds[8] == pytest.approx(2000, rel=1e-6)
    assert planner.line("Serve").startswith("decodes 2K tokens/s at batch 8 on ")
    planner.fill(chips="")
    assert planner.text("refusal") == "--serve needs --chips"


def test_a_law_of_several_widths_asks_for_one(browser, tmp_path, capsys):
    law = fit_runs.write_demo_law(tmp_path / "l.json", width_per_block=None, differing={"width_per_block": [8.0, 16.0]})
    assert command_line.run(["page", f"--law={law}", f"--out={tmp_path}/planner.html"]) == 0
    capsys.readouterr()
    planner = Planner(browser, tmp_path).open()
    said = typed(f"python -m fit plan --law={law} --flops=2e12", capsys)[1]
    assert said == planner.text("refusal") and "2 values of width_per_block (8, 16)" in said
    assert "--shape=width_per_block" in said
    planner.fill(width_per_block="8")
    assert planner.plan()["width_per_block"] == 8 and planner.errors == []
    planner.tab.close()


def test_a_dot_says_its_loss(planner):
    """Each optimum's dot names its number of experts and the loss of the table, and so does the plan's ring."""
    planner.open(flops="2e12", memory_gb="0.0002")
    plan = planner.plan()
    sizes = planner.tab.locator(".drawing").first
    titles = sizes.locator(".dot title").all_text_contents()[-len(plan["optima"]) :]
    found = [re.match(r"E = (\d+), .* active: loss ([\d.]+)$", title).groups() for title in titles]
    assert found == [(str(row["n_experts"]), f"{row['loss']:.4f}") for row in plan["optima"]]
    assert f"loss {plan['best']['loss']:.4f}" in sizes.locator(".ring title").text_content()


# {caption: pixels between the plan's ring and the nearest curve} of the pictures that are shown
GAPS = """() => Object.fromEntries([...document.querySelectorAll("figure:not([hidden]) svg")].map((drawing) => {
    const ring = drawing.querySelector(".ring");
    const [x, y] = ["cx", "cy"].map((name) => Number(ring.getAttribute(name)));
    const gaps = [...drawing.querySelectorAll(".line")].flatMap((line) => {
        const length = line.getTotalLength();
        const points = Array.from({ length: 2001 }, (_, i) => line.getPointAtLength((i / 2000) * length));
        return points.map((point) => Math.hypot(point.x - x, point.y - y));
    });
    return [drawing.getAttribute("aria-label"), Math.min(...gaps)];
}))"""
DEMO = dict(
    by_flops={},
    by_mfu=dict(hours="0.01"),
    by_small_mfu=dict(hours="1", mfu="0.004"),
    by_speeds=dict(hours="20", mfu=""),
    memory=dict(memory_gb="0.0002"),
)


@pytest.mark.parametrize("state", DEMO.values(), ids=DEMO)
def test_the_page_of_a_demo(planner, folder, state):
    """It speaks of no flag and of no MFU of 0, no table is wider than the screen, and the ring lies on the curves."""
    planner.tab.set_viewport_size(dict(width=1440, height=900))
    planner.open(law=f"{folder}/law.json", **state)
    words = " ".join(
        planner.tab.locator(f"#{part}").inner_text() for part in ("answer", "laws", "sizes", "pictures", "costs")
    )
    assert " at MFU " in words and not re.findall(r"\b0% MFU|MFU 0(?:\.0*)?(?![.\d])|--\w+", words)
    wide = "() => [...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
    assert planner.tab.evaluate(wide) == 0
    gaps = planner.tab.evaluate(GAPS)
    assert len(gaps) == 3 and max(gaps.values()) < 1.5, gaps


def test_the_page_says_which_command_knows_the_memory_of_chips(planner, folder):
    planner.open(law=f"{folder}/law.json", chip="H100", chips="8", flops="2e12")
    said = planner.line("Not computed here")
    assert "the memory of 8 x H100 holds the training" in said and "the first command below answers" in said
    planner.open(law=f"{folder}/law.json", chips="", flops="2e12")
    assert planner.tab.locator("[data-label='Not computed here']").count() == 0


def test_a_slider_sets_its_field(planner):
    planner.open(flops="2e12")
    before = planner.plan()["constraints"]["flops"]
    for slider, key in (("flops", "End"), ("devices", "ArrowRight")):
        planner.tab.evaluate("document.querySelectorAll('.group').forEach((group) => (group.open = true))")
        planner.tab.focus(f"#{slider}-slider")
        planner.tab.keyboard.press(key)
        planner.tab.evaluate(SETTLED)
    assert planner.plan()["constraints"]["flops"] > before
    assert planner.tab.input_value("#devices") == "1"  # a whole number


def test_one_screen_answers(planner):
    """What to train and its price before anything is scrolled, also to those who start from a model."""
    planner.tab.set_viewport_size(dict(width=1440, height=900))
    planner.tab.reload()
    assert_one_screen_answers(planner, 900)


def assert_one_screen_answers(planner, height):
    for state in ({}, dict(law="joint-moe-2025", like="Qwen3-30B-A3B", hours="24", chips="64")):
        planner.ask(**state)
        for line in ("p:first-child", "[data-label=Price]"):
            box = planner.tab.locator(f"#answer {line}").bounding_box()
            assert 0 < box["y"] and box["y"] + box["height"] <= height, line


def test_the_page_names_the_commands_for_runs_of_ones_own(planner, tmp_path, monkeypatch):
    """They are run as they stand, in the table's folder."""
    planner.open()
    fit_runs.write_demo_csv(tmp_path / "runs.csv")
    monkeypatch.chdir(tmp_path)
    commands = planner.tab.locator(".group:has-text('Runs of your own') pre").text_content().splitlines()
    for command in commands:
        words = shlex.split(command.replace("--bootstrap=100", "--bootstrap=0"))
        assert words[:3] == ["python", "-m", "fit"] and command_line.run(words[3:]) == 0
    assert len(commands) == 2 and '"held_out":[' in (tmp_path / "planner.html").read_text()  # has the runs


def test_what_the_address_asks_for_that_there_is_not(planner):
    """A setting or a model is named; a query is read as the hash is."""
    planner.tab.goto(f"{planner.file}?law=joint-moe-2025&flops=3e21")
    assert "--law=joint-moe-2025 --flops=3e21" in planner.text("command")
    planner.open(flops="3e12", memory="80", E="8")
    assert planner.text("refusal").startswith("the address asks for “memory”, “E”, which this page does not have; it ")
    assert "memory_gb" in planner.text("refusal") and planner.tab.locator("#results").is_hidden()
    planner.fill(memory_gb="80")
    assert planner.tab.locator("#refusal").is_hidden() and "memory=" not in planner.tab.url
    planner.open(law="joint-moe-2025", like="Qwen99")
    assert planner.text("refusal").startswith("--like=Qwen99: this page holds no such model, but ")
    planner.tab.select_option("#like", "Qwen3-30B-A3B")
    planner.tab.evaluate(SETTLED)
    assert planner.tab.locator("#refusal").is_hidden() and "--like=Qwen3-30B-A3B" in planner.text("command")


def test_a_phone_shows_it_without_overflow(browser, folder):
    """In the dark, with a hint that a table is wide, and with laws beside each other; one screen has the answer."""
    viewport = dict(width=390, height=844)
    planner = Planner(browser, folder, viewport=viewport, color_scheme="dark", has_touch=True)
    assert_one_screen_answers(planner, 844)
    for state in (dict(law=f"{folder}/law.json"), dict(law="joint-moe-2025", **LIKE[0])):
        planner.open(**state)
        assert planner.scroll_width() == 390
    assert planner.tab.locator("#laws").is_visible()
    planner.tab.click("summary:has-text('law and limits')")
    assert planner.scroll_width() == 390
    channels = re.findall(r"\d+", planner.tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert int(channels[0]) < 128
    hint = planner.tab.locator("#sizes .hint")
    assert hint.is_visible() and "sideways" in hint.text_content() and planner.errors == []
    planner.tab.close()


def test_it_prints_on_one_white_page_without_its_fields(planner, folder):
    planner.tab.set_viewport_size(dict(width=718, height=1047))  # A4 less margins
    planner.tab.emulate_media(media="print", color_scheme="dark")
    planner.open(law=f"{folder}/law.json", flops="2e11", experts="1,2,4,8,64,128", memory_gb="0.0002")
    assert planner.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert planner.tab.locator("#form").is_hidden() and planner.tab.locator("#answer").is_visible()
    assert planner.scroll_width() <= 718
    for state in ({}, dict(law="joint-moe-2025", like="Qwen3-30B-A3B", hours="24", chips="64")):
        planner.open(**state)
        assert len(re.findall(rb"/Type\s*/Page\b", planner.tab.pdf(format="A4", print_background=True))) == 1
    planner.tab.emulate_media(media="null", color_scheme="null")


def test_what_is_only_printed_has_its_pictures(browser, folder):
    """Also where the printer does not wait until the page has drawn them."""
    planner = Planner(browser, folder)
    planner.tab.add_init_script("window.setTimeout = () => 0")  # no task of the page runs later
    planner.tab.goto(f"{planner.file}#law=joint-moe-2025")
    assert planner.tab.locator("figure .ring").count() == 0
    planner.tab.pdf()
    assert planner.tab.locator("figure .ring").count() == 3 and planner.errors == []
    planner.tab.close()


def test_what_is_copied(planner):
    planner.ask()
    planner.tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    planner.tab.click("#copy-command")
    planner.tab.wait_for_selector("#copy-command:has-text('Copied')")
    assert planner.tab.evaluate("navigator.clipboard.readText()") == planner.text("command")


def test_one_small_file_that_asks_for_nothing(folder):
    text = (folder / "planner.html").read_text()
    assert len(text.encode()) < 500_000
    assert not re.findall(r"""(?:src|href)\s*=|url\((?!#)|@import|import\s*\(|fetch\(|XMLHttp|WebSocket""", text)
    assert "default-src 'none'" in text  # the browser itself refuses what is not in the file


def test_a_law_of_one_number_of_experts(browser, tmp_path, capsys):
    """Marin's mixtures, all of 64 experts: the page plans such mixtures, as the command does, and no dense model."""
    table = fit_runs.DATA.parents[1] / "benchmarks/tables/marin_v16.csv"
    law = f"{tmp_path}/law.json"
    command = ["law", f"--runs={table}", f"--out={law}", "--form=chinchilla", "--bootstrap=8"]
    assert command_line.run(command) == 0
    assert command_line.run(["page", f"--law={law}", f"--out={tmp_path}/planner.html"]) == 0
    capsys.readouterr()
    planner = Planner(browser, tmp_path).open(law=law, flops="1e21", memory_gb="", chips="")
    page = planner.plan()
    assert [row["n_experts"] for row in page["optima"]] == [64] and "dense" not in page
    assert_same(page, plan_of_command(planner, capsys))
    planner.fill(experts="1,64")
    refused = typed(f"python -m fit plan --law={law} --flops=1e21 --experts=1,64", capsys)[1]
    assert planner.text("refusal") == refused and "64 experts alone" in refused
    assert planner.errors == []
    planner.tab.close()


def test_hours_are_flops_at_one_mfu(planner, capsys):
    """Also by a law whose modelled speeds the page does not have; without an MFU it then names the command."""
    planner.open(law="joint-moe-2025", hours="2", chip="H100", chips="64", memory_gb="", context="0")
    plan = planner.plan()
    assert plan["constraints"]["flops"] == pytest.approx(2 * 3600 * 64 * 989e12 * 0.4)
    assert_same(plan, plan_of_command(planner, capsys))
    assert planner.tab.locator("#pictures figure:visible").count() == 3

    planner.fill(mfu="")
    assert planner.tab.locator("#results").is_hidden()
    command = planner.text("refusal").partition("answers: ")[2]
    assert "--mfu" not in command and "--hours=2 --chips=H100:64" in command
    line = json.loads(typed(f"{command} --json", capsys)[0])
    assert line["best"]["speed"]["hours"][1] == pytest.approx(2, rel=1e-3)
    planner.fill(chips="")
    assert planner.text("refusal").startswith("hours need a known kind of chip")
    planner.fill(hours="", flops="1e22")
    assert planner.tab.locator("#pictures figure:visible").count() == 2
