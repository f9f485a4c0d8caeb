"""The report on a budget: its figures are those of `fit plan` and `fit compare`, and of the runs."""

import html
import json
import re

import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.messages import units
from fit.model import efficiencies
from fit.planning.several_laws import compare
from fit.render import figures, report
from fit.render.figures import budget, style
from fit.render.report_options import ReportOptions
from fit.table.runs import read_runs

PUBLISHED = "joint-moe-2025"
OURS = "jmoe-bytes-2026"
RUNS = "results/runs.csv"
BUDGETS = {
    "flops": (PUBLISHED, ["--flops=1e22", "--memory_gb=80", "--kv_tokens=16384"]),
    "hours": (PUBLISHED, ["--chips=H100:64", "--hours=240", "--dollars_per_hour=2.5", "--memory_gb=160"]),
    "time": (PUBLISHED, ["--chips=H100:64", "--hours=240", "--experts=1,8,32", "--max_tokens=2e11"]),
    "ours": (OURS, ["--flops=1e15"]),
}
LAWS = dict.fromkeys(BUDGETS, compare.LAWS) | {"time": ("fine-grained-2024",)}


def printed(capsys, *arguments):
    capsys.readouterr()  # what the command of a page printed
    assert command_line.run(list(arguments)) == 0
    return capsys.readouterr().out


def words(page):
    """The text of a page, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.replace("<wbr>", ""))).split())


def rows_of(page, heading):
    """The rows of the first table after a heading: a dictionary of texts for each."""
    table = page.split(f"<h2>{heading}</h2>")[1].split("<table>")[1].split("</table>")[0].replace("<wbr>", "")
    lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in re.findall(r"<tr>(.*?)</tr>", table)]
    head, *rows = [[html.unescape(cell) for cell in line] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


class Pages(dict):
    """{budget: page} as the command writes them, each when it is first asked for."""

    def __init__(self, folder):
        self.folder = folder

    def __missing__(self, name):
        law, limits = BUDGETS[name]
        out = self.folder / f"{name}.html"
        runs = [f"--runs={RUNS}"] if law == OURS else []
        laws = f"--laws={','.join(LAWS[name])}"
        assert (
            command_line.run(["report", f"--law={law}", *runs, f"--plan={' '.join(limits)}", laws, f"--out={out}"]) == 0
        )
        self[name] = out.read_text()
        return self[name]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return Pages(tmp_path_factory.mktemp("reports"))


@pytest.mark.parametrize("name", BUDGETS)
def test_the_report_opens_with_the_lines_of_fit_plan(pages, name, capsys):
    law, limits = BUDGETS[name]
    page = pages[name]
    lines = []
    for line in printed(capsys, "plan", f"--law={law}", *limits).splitlines():
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
def test_its_laws_answer_as_in_fit_compare(pages, name, capsys):
    law, limits = BUDGETS[name]
    laws = ",".join(dict.fromkeys((law, *LAWS[name])))
    shape = fit.load(law).architecture
    like_ours = [f"--shape=vocab_size:{shape.vocab_size},width_per_block:{shape.width_per_block}"]
    same = limits if law == PUBLISHED else [*limits, *like_ours]
    compared = json.loads(printed(capsys, "compare", f"--laws={laws}", *same, "--json"))
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


def test_a_budget_in_flops_is_the_hours_that_it_takes_on_the_chips(tmp_path):
    limits = dict(flops=1e22, chips="H100:64", inference_tokens=1e12, experts=[1, 32])
    options = ReportOptions.parse(plan=limits, laws=["fine-grained-2024"])
    written = report.write_report(fit.load(PUBLISHED), None, str(tmp_path / "r.html"), options)
    by_flops, by_clock = rows_of(written.page, "By wall-clock time")
    assert by_flops["n_active"] == units.amount(written.plan.best.n_active)
    plan = fit.plan(PUBLISHED, **limits)
    of_training = plan.best.n_tokens / plan.best.speed.tokens_per_second[1] / 3600
    of_all = of_training * 1e22 / plan.best.training_flops
    assert f"{units.duration(of_all)} on 64 x H100 choose" in words(written.page)
    by_hours = fit.plan(PUBLISHED, **limits | dict(flops=None, hours=of_all))
    assert by_clock["n_active"] == units.amount(by_hours.best.n_active)
    assert "Loss against hours on the same chips" in written.page


def test_its_numbers_follow_from_each_other(pages):
    plan = fit.plan(PUBLISHED, chips="H100:64", hours=240, dollars_per_hour=2.5, memory_gb=160)
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


def test_loss_against_hours_is_that_of_plans_by_wall_clock_time(tmp_path, capsys):
    law = fit.load(PUBLISHED)
    _, columns = figures.draw("hours", law, law.architecture, (1, 8), (1e21,), chips="H100:64")
    numbers = {name: np.array(values) for name, values in columns.items()}
    hours = 1e21 / (64 * 989e12 * 0.4) / 3600
    plan = fit.plan(law, chips="H100:64", hours=hours, experts=[1, 8])
    for row in plan.optima:
        rows = numbers["n_experts"] == row.n_experts
        middle = np.argmin(np.abs(np.log(numbers["hours"][rows] / hours)))
        assert numbers["hours"][rows][middle] == pytest.approx(hours)
        assert numbers["loss"][rows][middle] == pytest.approx(row.loss, abs=1e-4)
    flags = ["plot", f"--law={PUBLISHED}", "--experts=1,8", f"--out={tmp_path}/hours.svg"]
    assert command_line.run([*flags, "--figure=hours", "--chips=h100:64"]) == 0
    assert (tmp_path / "hours.svg").read_text().rstrip().endswith("</svg>")
    for wrong, message in (
        (["--figure=hours"], "--figure=hours needs --chips"),
        (["--figure=1a", "--chips=H100:64"], "--chips is for --figure=hours"),
        (["--figure=hours", "--chips=H1"], "H1"),
        (["--figure=hours", "--chips=H100:64", "--speeds=none.csv"], "--speeds=none.csv"),
    ):
        assert command_line.run([*flags, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_the_papers_shapes_have_no_hours_to_compare(tmp_path):
    limits = "--flops=1e21 --chips=H100:64 --shape=paper"
    out = tmp_path / "report.html"
    assert command_line.run(["report", "--law=joint-moe-2025", f"--plan={limits}", f"--out={out}"]) == 0
    assert "By wall-clock time" not in out.read_text()


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


def test_residuals_are_those_of_the_experts_that_the_plan_has(pages):
    law = fit.load(OURS)
    table = fit.read(RUNS)
    rows = rows_of(pages["ours"], f"Residuals with {fit.plan(law, flops=1e15).best.n_experts} experts")
    measured = table.numbers("loss")[table.numbers("n_experts") == fit.plan(law, flops=1e15).best.n_experts]
    assert sorted(row["loss"] for row in rows) == sorted(f"{loss:.4f}" for loss in measured)
    for row in rows:
        off = 100 * (float(row["predicted_loss"]) / float(row["loss"]) - 1)
        assert float(row["percent"]) == pytest.approx(off, abs=0.02)


def test_a_number_of_experts_without_runs_is_judged_by_the_nearest(tmp_path):
    law = fit.load(OURS)
    options = ReportOptions.parse(plan=dict(flops=1e15, experts=[1, 64]))
    written = report.write_report(law, RUNS, str(tmp_path / "r.html"), options)
    assert written.plan.best.n_experts == 64
    assert "Residuals with 32 experts" in written.page and "No run has the plan's 64 experts" in words(written.page)
