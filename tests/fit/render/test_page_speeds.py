"""Plans by hours on the planner page, from the speeds that Python puts there, against the plans of the command line."""

import json
import math
import random

import numpy as np
import pytest
from planner_tab import Planner, calculating_tab, typed

from fit import __main__ as command_line
from fit.fitted_law.law_files import load

LAW = "joint-moe-2025"
COUNTS = (1, 2, 4, 8, 16, 32, 64)

# A state's plan as the page makes it: its best model, or the sentence that refuses.
ANSWER = """(states) => states.map((typed) => {
    const law = data.laws.find(({ name }) => name === typed.law);
    const state = { ...defaultState(law), flops: "", mfu: "", memory_gb: "", context: "0", ...typed };
    let refusal = "";
    const plan = withErrors(() => {
        const options = optionsIn(law, state);
        const { limits } = options;
        Object.assign(limits, speedsIn(options, planCommand(options)));
        const plan = planOf(options);
        refuseEndOfGrid(limits.speeds, plan);
        return plan;
    }, (sentence) => (refusal = sentence));
    return { plan, refusal };
})"""


@pytest.fixture(scope="module")
def tab(browser):
    tab = calculating_tab(browser, [load(LAW)])
    yield tab
    tab.close()


def wishes(count, seed):
    """Drawn states: hours over four decades on each number of chips, with and without each of the other limits."""
    rng = random.Random(seed)

    def between(low, high):
        return f"{math.exp(rng.uniform(math.log(low), math.log(high))):.6g}"

    for _ in range(count):
        chips = rng.choice(COUNTS)
        hours = float(between(1, 1e4))
        size = math.sqrt(2.4e17 * chips * hours / 40)  # about that of the best model
        state = dict(law=LAW, chips=str(chips), hours=f"{hours:.6g}")
        if rng.random() < 0.5:
            state |= dict(memory_gb=between(0.6e-9 * size, 20e-9 * size))
            state |= dict(context=rng.choice(["0", "4096"]), bytes_per_parameter=rng.choice(["1", "2"]))
        if rng.random() < 0.3:
            state["max_tokens"] = between(3 * size, 100 * size)
        if rng.random() < 0.3:
            state["inference_tokens"] = between(size, 1000 * size)
        if rng.random() < 0.3:
            state["experts"] = ",".join(map(str, sorted({1, *rng.sample([2, 4, 8, 16, 32], 2)})))
        yield state


def flags_of(state):
    """The flags of `fit plan` for a state."""
    values = state | dict(chips=f"H100:{state['chips']}")
    if "context" in state:
        values["kv_tokens"] = values.pop("context")
        values["bytes"] = f"weights:{values.pop('bytes_per_parameter')}"
    return " ".join(f"--{name}={value}" for name, value in values.items())


def test_twenty_questions_by_hours(tab, capsys):
    """Every field of the plan is one of the command's; losses are within 0.1%, hours within 3%; limits are kept."""
    states = list(wishes(20, seed=1))
    answered = 0
    for state, answer in zip(states, tab.evaluate(ANSWER, states), strict=True):
        if answer["plan"] is None:
            command = answer["refusal"].partition("this command answers: ")[2]
            assert command.startswith(f"python -m fit plan --law={LAW} --hours="), (state, answer)
            continue
        answered += 1
        line = json.loads(typed(f"python -m fit plan {flags_of(state)} --dollars_per_hour=2 --json", capsys)[0])
        assert_fields_are_known(answer["plan"], line)
        best = answer["plan"]["best"]
        assert best["loss"] == pytest.approx(min(row["loss"] for row in line["optima"]), rel=1e-3), state
        assert best["n_experts"] == line["odds"]["by_median"] and "odds" not in answer["plan"]
        of_line = {row["n_experts"]: row for row in line["optima"]}
        for row in answer["plan"]["optima"]:
            assert row["loss"] == pytest.approx(of_line[row["n_experts"]]["loss"], rel=1e-3), state
            hours = of_line[row["n_experts"]]["cost"]["training_hours"]
            assert row["cost"]["training_hours"] == pytest.approx(hours, rel=3e-2), state
            mfu = of_line[row["n_experts"]]["speed"]["mfu"]
            assert row["speed"]["mfu"][1] == pytest.approx(mfu[1], rel=8e-2), state
            ends = [end / row["speed"]["mfu"][1] for end in row["speed"]["mfu"]]
            assert ends == pytest.approx([end / mfu[1] for end in mfu], rel=1e-9), state
        served = best["n_tokens"] + float(state.get("inference_tokens", 0)) / 3
        assert served / best["speed"]["tokens_per_second"][1] / 3600 <= float(state["hours"]) * (1 + 1e-9)
        assert "memory_gb" not in state or best["memory_bytes"] <= 1e9 * float(state["memory_gb"])
        assert best["n_tokens"] <= float(state.get("max_tokens", math.inf))
    assert answered >= 18


def assert_fields_are_known(page, line):
    """The names of the page's fields, at every depth, are those of the command's JSON."""
    if isinstance(page, dict) and not all(name.isdigit() for name in page):
        assert set(page) <= set(line)
        for name in page.keys() - {"findings"}:  # whose values have the names of each code
            assert_fields_are_known(page[name], line[name])
    elif isinstance(page, list) and page and isinstance(page[0], dict) and line:
        assert_fields_are_known(page[0], line[0])


def test_curves_of_loss_against_size_are_smooth(tab):
    """By hours: the loss falls up to one size, which is the plan's, and then rises."""
    states = [state | dict(experts="1,2,4,8,16,32") for state in wishes(4, seed=2)]
    curves = tab.evaluate(
        """(states) => states.flatMap((typed) => {
            const law = data.laws.find(({ name }) => name === typed.law);
            const state = { ...defaultState(law), flops: "", mfu: "", memory_gb: "", context: "0", ...typed };
            const options = optionsIn(law, state);
            const { limits, shape, experts } = options;
            Object.assign(limits, speedsIn(options, ""));
            return experts.map((n_experts) => {
                const lawAt = lawAtExperts(law, shape, n_experts);
                const curve = curveInHours(lawAt, n_experts, shape, limits);
                return [curve, [solve(lawAt, n_experts, shape, limits)]].map((models) => {
                    return models.map(({ n_active, loss }) => [Math.log(n_active), loss]);
                });
            });
        })""",
        states,
    )
    assert len(curves) == 24
    for curve, [[size_of_best, lowest_loss]] in curves:
        sizes, losses = np.array(curve).T
        assert len(sizes) > 8 and np.all(np.diff(sizes) >= 0)
        lowest = int(np.argmin(losses))
        assert np.all(np.diff(losses[: lowest + 1]) <= 1e-9) and np.all(np.diff(losses[lowest:]) >= -1e-9)
        assert np.interp(size_of_best, sizes, losses) == pytest.approx(lowest_loss, rel=1e-9)  # the ring lies on it


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page of the published laws for 8 chips."""
    folder = tmp_path_factory.mktemp("page")
    assert command_line.run(["page", "--chips=H100:8", f"--out={folder}/planner.html"]) == 0
    return folder


OFF_THE_GRID = {
    "of 6 x H100, only of 1, 2, 4, 8": dict(chips="6", hours="24"),
    "of 64 x H100, only of 1, 2, 4, 8": dict(chips="64", hours="24"),
    "of A100, only of H100": dict(chip="A100", hours="24"),
    "of 20000 hours, only of 1 to 10000": dict(hours="20000"),
    "where FLOPs are the budget, only where hours are": dict(flops="1e21"),
    "of 3 experts, only of 1, 2, 4, 8, 16, 32": dict(hours="24", experts="1,3"),
    "of models like Llama-3.1-8B, only of the law's own": dict(hours="24", like="Llama-3.1-8B"),
    "with another vocab_size than the law's": dict(hours="24", vocab_size="32000"),
    "by the law sparsity-2025, only by joint-moe-2025": dict(law="sparsity-2025", hours="24", chips="8"),
    "of so few tokens per parameter": dict(hours="24", max_tokens="3e9"),
    "within these limits": dict(hours="24", max_tokens="1e7"),
}


def test_off_the_grid_a_command_answers(browser, folder, capsys):
    planner = Planner(browser, folder)
    for missing, state in OFF_THE_GRID.items():
        planner.open(**(dict(law=LAW, mfu="", memory_gb="", context="0") | state))
        assert f"no modelled speeds {missing};" in planner.text("refusal"), missing
        assert planner.tab.locator("#results").is_hidden()
        command = planner.text("refusal").partition("this command answers: ")[2]
        assert "--mfu" not in command and json.loads(typed(f"{command} --json", capsys)[0])["best"]["loss"] > 0
    assert planner.errors == []
    planner.tab.close()


def test_the_page_shows_a_plan_by_hours(browser, folder):
    planner = Planner(browser, folder, viewport=dict(width=1280, height=900))
    planner.open(law=LAW, mfu="", hours="24", memory_gb="", context="0")
    plan = planner.plan()
    assert plan["constraints"]["hours"] == 24 and "flops" not in plan["constraints"]
    assert "--hours=24 --chips=H100:8" in planner.text("command") and "--mfu" not in planner.text("command")
    assert f" at MFU {plan['best']['speed']['mfu'][1]:.2g}, modelled" in planner.line("Price")
    assert planner.tab.locator("[data-label='Not computed here']").count() == 0  # the grid's models fit the chips
    assert planner.tab.locator("#pictures figure:visible").count() == 3
    assert planner.tab.locator("#laws").is_hidden() and "--hours=24" in planner.text("compare")
    assert float(planner.tab.input_value("#flops")) == pytest.approx(plan["best"]["training_flops"], rel=1e-3)
    planner.tab.focus("#hours-slider")
    planner.tab.keyboard.press("ArrowRight")
    planner.tab.wait_for_function("JSON.parse(document.getElementById('json').textContent).constraints.hours > 24")
    assert planner.plan()["best"]["loss"] <= plan["best"]["loss"]
    planner.fill(mfu="0.4")
    assert planner.tab.locator("#laws").is_visible() and "--mfu=0.4" in planner.text("command")
    assert planner.errors == []
    planner.tab.close()
