"""The report on a budget: its figures are those of `fit plan` and `fit compare`, and of the runs."""

import html
import re

import fit_command
import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.messages import units
from fit.model import efficiencies
from fit.render.figures import budget, style
from fit.render.figures.draw import draw
from fit.table.runs import read_runs

PUBLISHED = "joint-moe-2025"
OURS = "jmoe-bytes-2026"
RUNS = "results/runs.csv"
BUDGETS = {
    "flops": (PUBLISHED, "--flops=1e22 --chips=H100:64 --inference_tokens=1e12 --kv_tokens=16384 --experts=1,32"),
    "hours": (PUBLISHED, "--chips=H100:64 --hours=240 --dollars_per_hour=2.5 --memory_gb=160 --experts=1,8,32"),
    "ours": (OURS, "--flops=1e15 --chips=H100:8 --shape=paper --experts=1,9"),
}
LAWS = {
    "flops": ("sparsity-2025", "chinchilla-refit-2024"),
    "hours": ("fine-grained-2024",),
    "ours": ("comprehensive-2025", "joint-moe-2025"),
}


def words(page):
    """The text of a page, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.replace("<wbr>", ""))).split())


def rows_of(page, heading):
    """The rows of the first table after a heading: a dictionary of texts for each."""
    table = page.split(f"<h2>{heading}</h2>")[1].split("<table>")[1].split("</table>")[0].replace("<wbr>", "")
    lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in re.findall(r"<tr>(.*?)</tr>", table)]
    head, *rows = [[html.unescape(cell) for cell in line] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """{budget: page} as the command writes them."""
    folder = tmp_path_factory.mktemp("reports")
    made = {}
    for name, (law, limits) in BUDGETS.items():
        out = folder / f"{name}.html"
        arguments = [f"--law={law}", f"--plan={limits}", f"--laws={','.join(LAWS[name])}", f"--out={out}"]
        runs = [f"--runs={RUNS}"] if law == OURS else []
        assert command_line.run(["report", *arguments, *runs]) == 0
        made[name] = out.read_text()
    return made


@pytest.mark.parametrize("name", BUDGETS)
def test_the_report_opens_with_the_lines_of_fit_plan(pages, name):
    law, limits = BUDGETS[name]
    page = pages[name]
    lines = []
    for line in fit_command.printed("plan", f"--law={law}", *limits.split()).splitlines():
        if line.startswith("    ") and lines:
            lines[-1] += " " + line.strip()
        else:
            lines.append(line.rstrip())
    opening = "".join(words(page.split("<h2>")[0]).split())
    for line in lines:
        assert "".join(line.removeprefix("warning: ").split()) in opening, line
    answer = re.search(r'<p class="answer">(.*?)</p>', page)[1]
    assert html.unescape(answer) == lines[0]
    assert page.index('class="answer"') < page.index("<b>Price</b>") < page.index("The plan on the compute frontier")


@pytest.mark.parametrize("name", BUDGETS)
def test_its_laws_answer_as_in_fit_compare(pages, name):
    law, limits = BUDGETS[name]
    laws = ",".join(dict.fromkeys((law, *LAWS[name])))
    shape = fit.load(law).architecture
    like_ours = [f"--shape=vocab_size:{shape.vocab_size},width_per_block:{shape.width_per_block}"]
    same = limits.split() if law == PUBLISHED else [*limits.split(), *like_ours]
    compared = fit_command.answer("compare", f"--laws={laws}", *same)
    rows = rows_of(pages[name], "What the laws disagree about")
    assert [row["law"] for row in rows] == [answer["law"] for answer in compared["laws"]]
    for row, answer in zip(rows, compared["laws"], strict=True):
        assert row["n_experts"] == str(answer["n_experts"])
        for column in ("n_active", "n_total", "n_tokens"):
            assert row[column] == units.amount(answer[column])
        if answer["n_experts"] > 1:
            assert row["below dense"] == f"{answer['dense']['loss_saved_share']:.1%}"
    for sentence in compared["conclusion"]:
        assert sentence in words(pages[name])
    optima = rows_of(pages[name], "The best model with each number of experts")
    (best,) = [row for row in optima if row["n_experts"] == rows[0]["n_experts"]]
    assert rows[0]["n_active"] == best["n_active"]


def test_a_budget_in_flops_is_the_hours_that_it_takes_on_the_chips(pages):
    by_flops, by_clock = rows_of(pages["flops"], "By wall-clock time")
    limits = dict(chips="H100:64", inference_tokens=1e12, kv_tokens=16384, experts=[1, 32])
    plan = fit.plan(PUBLISHED, flops=1e22, **limits)
    assert by_flops["n_active"] == units.amount(plan.best.n_active)
    of_training = plan.best.n_tokens / plan.best.speed.tokens_per_second[1] / 3600
    of_all = of_training * 1e22 / plan.best.training_flops
    assert f"{units.duration(of_all)} on 64 x H100 choose" in words(pages["flops"])
    by_hours = fit.plan(PUBLISHED, hours=of_all, **limits)
    assert by_clock["n_active"] == units.amount(by_hours.best.n_active)
    assert "Loss against hours on the same chips" in pages["flops"]
    assert "By wall-clock time" not in pages["ours"]  # the paper's shapes have no modelled speed


def test_its_numbers_follow_from_each_other(pages):
    plan = fit.plan(PUBLISHED, chips="H100:64", hours=240, dollars_per_hour=2.5, memory_gb=160, experts=[1, 8, 32])
    rows = {row["quantity"]: row["value"] for row in rows_of(pages["hours"], "Numbers to check")}
    best = plan.best
    assert rows["training FLOPs"] == units.flops(6 * best.n_active * best.n_tokens)
    hours = best.n_tokens / best.speed.tokens_per_second[1] / 3600
    assert float(rows[f"hours ({efficiencies.OWN_LABEL})"]) == pytest.approx(hours, rel=1e-3)
    assert 0.98 * 240 < hours <= 240
    assert rows["dollars"] == f"${hours * 64 * 2.5:,.0f}"
    assert rows["memory to serve"] == units.memory(2 * plan.buildable.exact_parameters)


def test_a_frontier_goes_through_the_plan_and_falls():
    plan = fit.plan(PUBLISHED, flops=1e22, memory_gb=80)
    problem = plan.problem
    _, columns = budget.frontier(problem, (plan.best.n_experts, plan.best.loss))
    numbers = {name: np.array(values) for name, values in columns.items()}
    for row in plan.optima:
        rows = numbers["n_experts"] == row.n_experts
        middle = np.argmin(np.abs(np.log(numbers["flops"][rows] / 1e22)))
        assert numbers["loss"][rows][middle] == pytest.approx(row.loss, abs=1e-6)
        assert (np.diff(numbers["loss"][rows]) <= 1e-9).all()


def test_loss_against_hours_is_that_of_plans_by_wall_clock_time():
    law = fit.load(PUBLISHED)
    _, columns = draw("hours", law, law.architecture, (1, 8), (1e21,), chips="H100:64")
    numbers = {name: np.array(values) for name, values in columns.items()}
    hours = 1e21 / (64 * 989e12 * 0.4) / 3600
    plan = fit.plan(law, chips="H100:64", hours=hours, experts=[1, 8])
    for row in plan.optima:
        rows = numbers["n_experts"] == row.n_experts
        middle = np.argmin(np.abs(np.log(numbers["hours"][rows] / hours)))
        assert numbers["hours"][rows][middle] == pytest.approx(hours)
        assert numbers["loss"][rows][middle] == pytest.approx(row.loss, abs=1e-4)


def test_isoflop_panels_stand_at_budgets_that_runs_have(pages):
    law = fit.load(OURS)
    runs = read_runs(fit.read(RUNS), law.form.columns, mix_corpora=True)
    budgets = budget.budgets_of_runs(runs)
    assert len(budgets) == 3 and budgets == sorted(budgets)
    for flops in budgets:
        near = np.abs(np.log(runs.flops / flops)) < np.log(style.NEAR)
        assert near.sum() >= budget.ENOUGH
    section = pages["ours"].split("isoFLOP curves at budgets that runs have</h2>")[1]
    table = re.findall(r"<tr>(.*?)</tr>", section.split("<table>")[1].split("</table>")[0])
    assert {re.findall(r"<td[^>]*>(.*?)</td>", row)[0] for row in table[1:]} == {units.flops(f) for f in budgets}


def test_residuals_are_those_of_the_number_of_experts_nearest_to_the_plans(pages):
    table = fit.read(RUNS)
    # of 1, 2, 4, 16 and 32 it is 16 by its logarithm
    assert "No run has the plan's 9 experts" in words(pages["ours"])
    rows = rows_of(pages["ours"], "Residuals with 16 experts")
    measured = table.numbers("loss")[table.numbers("n_experts") == 16]
    assert sorted(row["loss"] for row in rows) == sorted(f"{loss:.4f}" for loss in measured)
    for row in rows:
        off = 100 * (float(row["predicted_loss"]) / float(row["loss"]) - 1)
        assert float(row["percent"]) == pytest.approx(off, abs=0.02)
