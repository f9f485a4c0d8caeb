"""fit from Python: the same numbers as the command line's, from files and frames."""

import html
import json
import math
import pathlib
import re
import subprocess
import sys

import fit_command
import fit_runs
import helpers
import notebook
import numpy as np
import pytest

import fit
from fit import __main__ as command_line

ROOT = helpers.ROOT
DENSE = fit_runs.DATA / "chinchilla_svg_245.csv"
JOINT = "joint-moe-2025"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return fit_runs.write_demo_csv(tmp_path_factory.mktemp("runs") / "runs.csv")


@pytest.fixture(scope="module")
def law(runs):
    return fit.law(runs, holdout="largest-compute:5", fix=dict(c=1.2))


def test_a_law_is_what_the_command_writes(law, runs, tmp_path):
    out = tmp_path / "law.json"
    command = ["law", f"--runs={runs}", "--holdout=largest-compute:5", "--fix=c=1.2", f"--out={out}"]
    assert command_line.run(command) == 0
    fit.save(law, tmp_path / "saved.json")
    assert (tmp_path / "saved.json").read_bytes() == out.read_bytes()
    assert law.coefficients["c"] == 1.2
    loaded = fit.load(str(out))
    model = dict(n_active=1e5, n_tokens=[1e6, 2e6], n_experts=8)
    assert law.predict(**model).tolist() == loaded.predict(**model).tolist()


def test_runs_are_a_frame_rows_or_columns():
    import pandas
    import pyarrow

    frame = pandas.read_csv(DENSE)
    rows, columns = frame.to_dict("records"), {name: frame[name].to_numpy() for name in frame}
    tables = [fit.read(runs) for runs in (frame, rows, columns, pyarrow.Table.from_pandas(frame), str(DENSE), DENSE)]
    names = dict(loss="val_loss", n_tokens="D")
    tables.append(fit.read(frame.rename(columns=names), columns=names))
    for table in tables:
        for name in ("n_active", "n_tokens", "loss"):
            assert table.numbers(name).tolist() == frame[name].tolist()
    law = fit.law(tables[-1], form="chinchilla", starts=4)
    assert law.settings.columns == names and law.runs.fingerprint == fit.law(DENSE, "chinchilla").runs.fingerprint
    assert repr(tables[1]).startswith(f"<{len(frame)} runs of the list: ") and len(repr(tables[1])) < 200
    empty_cells = (
        "the list: 2 things .*\n  row 1, column loss: found nothing, .*\n  row 1, column n_experts: found nothing"
    )
    with pytest.raises(fit.UserError, match=empty_cells):
        fit.law([rows[0], {"n_active": 1e9, "n_tokens": 1e10}], form="chinchilla")
    with pytest.raises(fit.UserError, match="columns differ in length: n_active 2, loss 1"):
        fit.read(dict(n_active=[1, 2], loss=[1]))


@pytest.mark.parametrize("what", [[1.5] * 900, {"loss": {"x": [0] * 900}}, "n_active,loss\n" * 900, 3, None])
def test_an_error_shows_little_of_what_was_given(what):
    for use in (fit.law, fit.load, lambda x: fit.plan(x, flops=1e21), lambda x: fit.plan(JOINT, flops=x)):
        with pytest.raises(fit.UserError) as error:
            use(what)
        assert len(str(error.value)) < 400


def test_a_law_predicts_tables_and_refuses_what_no_model_has(law):
    import pandas

    frame = pandas.DataFrame(dict(n_active=[2e4, 3e4, 4e4], n_tokens=[1e6, 2e6, 3e6], n_experts=[1, 2, 8], note="x"))
    columns = {name: frame[name].to_numpy() for name in ("n_active", "n_tokens", "n_experts")}
    expected = law.predict(**columns).tolist()
    assert expected == [float(law.predict(*row)) for row in zip(*columns.values(), strict=True)]
    for runs in (frame, frame.to_dict("records"), columns):
        assert law.predict(runs).tolist() == expected
    for bad, words in (
        (dict(n_active=-1), "n_active: found -1, expected a number from 1 to"),
        (dict(n_active=2e4, n_tokens=[1e6, math.nan]), "n_tokens: found nan"),
        (dict(n_active=1, n_tokens="many"), "n_tokens: found 'many', expected numbers"),
        (dict(), "n_active is missing: the .* law reads n_active, n_tokens"),
        (dict(n_active=2e4), "n_tokens is missing"),
        (
            dict(n_active=[2e4, 3e4], n_tokens=[1e6, 2e6, 3e6]),
            r"shapes of n_active \(2,\), n_tokens \(3,\).*: expected",
        ),
        (dict(n_active=2e4, n_tokens=1e6, n_expert=8), "n_expert: no law reads such a column; did you mean n_experts?"),
        (dict(n_active=frame, n_tokens=5e10), "n_tokens: the models are those of a table"),
    ):
        for use in (law.predict, law.predict_interval):
            with pytest.raises(fit.UserError, match=words):
                use(**bad)
    with pytest.raises(fit.UserError, match="row 1, column n_tokens: found -2"):
        law.predict(frame.assign(n_tokens=[1e6, -2, 1e6]))
    sparse = fit.load("sparsity-2025")
    with pytest.raises(fit.UserError, match="n_total is missing: the sparsity law reads n_total, n_tokens, sparsity"):
        sparse.predict(n_tokens=1e10, sparsity=0.5)
    with pytest.raises(fit.UserError, match="the sparsity law gives no loss at n_total 1e.09, .* sparsity 2"):
        sparse.predict(n_total=1e9, n_tokens=1e10, sparsity=[0.5, 2])


def test_intervals_need_draws(law):
    with pytest.raises(fit.UserError, match="^law=.* holds no draws.*; fit it with bootstrap=100"):
        law.predict_interval(2e4, 1e6, 1)


def test_options_are_arrays_and_dictionaries():
    import numpy as np

    mfu = {1: 0.45, 8: 0.38}
    plain = fit.plan(JOINT, flops=1e22, experts=[1, 8], chips="H100:64", mfu=0.4)
    given = fit.plan(JOINT, flops=np.float64(1e22), experts=np.array([1, 8]), chips="H100:64", mfu=mfu)
    assert given.chips["mfu"] == mfu and given.best["loss"] == plain.best["loss"]
    for row, same in zip(given.optima, plain.optima, strict=True):
        hours = same["cost"]["training_hours"] * 0.4 / mfu[row["n_experts"]]
        assert row["cost"]["training_hours"] == pytest.approx(hours, rel=1e-12)
    assert [row["n_experts"] for row in fit.plan(JOINT, flops=1e21, experts=range(1, 4)).optima] == [1, 2, 3]
    with pytest.raises(fit.UserError, match="^mfu=.*found 2 at E = 8"):
        fit.plan(JOINT, flops=1e22, experts=[1, 8], chips="H100", mfu={1: 0.4, 8: 2})


def test_bad_values_of_a_frame_are_named():
    import pandas

    frame = pandas.read_csv(DENSE)
    frame.loc[3, "loss"] = math.nan
    with pytest.raises(fit.UserError, match="the frame, row 3, column loss: found nan"):
        fit.law(frame)
    with pytest.raises(fit.UserError, match="column val_loss is missing"):
        fit.read(frame, columns=dict(loss="val_loss"))
    with pytest.raises(fit.UserError, match="the frame has no runs"):
        fit.read(frame[:0])


@pytest.fixture(scope="module")
def folder(law, runs):
    """That of runs.csv, with law.json."""
    fit.save(law, f"{pathlib.Path(runs).parent}/law.json")
    return pathlib.Path(runs).parent


PRINTED = [  # (function, its arguments, the flags of the command)
    ("plan", dict(law=JOINT, flops="1e22", memory_gb="80GB", experts=[1, 8, 16]), "--flops=1e22 --memory_gb=80"),
    (
        "plan",
        dict(
            law=JOINT, chips="H100:64", hours=240, dollars_per_hour=2.5, max_tokens=2e10, epochs=4, experts=[1, 8, 16]
        ),
        "--chips=H100:64 --hours=10d --dollars_per_hour=2.5 --max_tokens=20B --epochs=4",
    ),
    (
        "compare",
        dict(laws=[JOINT, fit.load("sparsity-2025")], flops=1e20, experts=[1, 8], shape=dict(used=1)),
        "--laws=joint-moe-2025,sparsity-2025 --flops=1e20 --experts=1,8 --shape=used:1",
    ),
    ("holistic", dict(flops=1e21), "--flops=1e21"),
    (
        "next",
        dict(law="law.json", runs="runs.csv", flops=1e12, target_flops=1e14, experts=[1, 8]),
        "--law=law.json --runs=runs.csv --flops=1e12 --target_flops=1e14 --experts=1,8",
    ),
]


@pytest.mark.parametrize("name, arguments, flags", PRINTED)
def test_python_returns_what_the_command_prints(folder, monkeypatch, name, arguments, flags):
    monkeypatch.chdir(folder)
    found = getattr(fit, name)(**arguments)
    command = [name, *flags.split()]
    if name == "plan":
        command += [f"--law={JOINT}", "--experts=1,8,16"]
        assert [row["n_experts"] for row in found.optima] == [1, 8, 16]
        assert found.best == min(found.optima, key=lambda row: row["loss"])
    assert fit_command.printed(*command) == f"{found}\n"
    shown = html.unescape(re.sub(r"<[^<>]*>", "", found._repr_html_()))
    # a notebook lists warnings, a terminal names them
    assert "".join(shown.split()) == "".join(str(found).replace("warning: ", "").split())
    if name != "next":
        assert json.loads(json.dumps(found.to_dict())) == fit_command.answer(*command)  # keys of JSON are texts


def test_mistakes_are_named():
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'memory'"):
        fit.plan(JOINT, flops=1e22, memory=80)
    with pytest.raises(TypeError, match=r"law\(\) got an unexpected keyword argument 'out'"):
        fit.law(DENSE, out="law.json")
    with pytest.raises(fit.UserError, match="^flops=-1: expected a positive number"):
        fit.plan(JOINT, flops=-1)
    with pytest.raises(fit.UserError, match="^form=cubic: expected"):
        fit.law(DENSE, form="cubic")
    with pytest.raises(fit.UserError, match="^nothing is asked: expected flops or runs"):
        fit.holistic()
    with pytest.raises(fit.UserError, match="^laws=nobody: no such file"):
        fit.compare(["nobody"], flops=1e20)
    with pytest.raises(fit.UserError, match="^chips is for figure=hours"):
        fit.plot(JOINT, chips="H100:64")
    with pytest.raises(fit.UserError, match="laws needs plan, such as"):
        fit.report(JOINT, laws="chinchilla-refit-2024")
    with pytest.raises(fit.UserError, match="no such file"):
        fit.plan("absent.json", flops=1e22)
    with pytest.raises(AttributeError, match="'fit' has no attribute 'plans'"):
        fit.plans  # noqa: B018


def test_the_names_are_functions_whatever_was_imported_first():
    program = (
        "import sys, fit; light = not {'numpy', 'jax'} & sys.modules.keys()\n"
        "from fit import laws, planning, __main__ as m\n"
        "m.run(['plan', '--law=joint-moe-2025', '--flops=1e20'])\n"
        "plan = fit.plan('joint-moe-2025', flops=1e20); law = fit.load('joint-moe-2025')\n"
        "print(light, callable(fit.law), fit.plan(law, flops=1e20).best == plan.best, 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "True True True False"


def test_a_prediction_is_what_the_command_prints_and_writes(law, tmp_path):
    fit.save(law, tmp_path / "law.json")
    model = dict(n_active=2e4, n_tokens=1e6, n_experts=8)
    one = fit.predict(law, **model)
    flags = ["predict", f"--law={tmp_path / 'law.json'}"]
    assert fit_command.printed(*flags, *(f"--{name}={value}" for name, value in model.items())) == f"{one}\n"
    assert float(str(one)) == pytest.approx(float(law.predict(**model)))
    rows = {name: [value, 2 * value] for name, value in model.items()} | dict(loss=[5.0, 4.0])
    many = fit.predict(law, rows)
    models, out = tmp_path / "models.jsonl", tmp_path / "out.jsonl"
    models.write_text(
        "".join(json.dumps(dict(zip(rows, row, strict=True))) + "\n" for row in zip(*rows.values(), strict=True))
    )
    assert command_line.run([*flags, f"--runs={models}", f"--out={out}"]) == 0
    written = [json.loads(line) for line in out.read_text().splitlines()]
    for name, values in many.columns.items():
        assert [row[name] for row in written] == values == many.table.columns[name]
    assert str(many).startswith("2 measured losses are ")
    with pytest.raises(fit.UserError, match=f"^n_tokens is missing: the {law.form.name} law needs it"):
        fit.predict(law, n_active=2e4)


def shown(source, **names):
    """What a notebook shows of a cell's last value: {format: content}."""
    return notebook.run_cell(source, {"fit": fit, **names}, 1)[-1]["data"]


def test_a_law_is_a_picture_in_a_notebook(law, runs):
    """A curve at each number of experts: the least loss over all sizes; a point for each run, hollow if held out."""
    drawn = shown("figure = fit.plot(law, runs)\nfigure", law=law, runs=runs)
    assert drawn["image/png"].startswith("iVBORw0KGgo")
    figure = fit.plot(law, runs)
    (axis,) = figure.axes
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("training FLOPs", "loss (nats per token)")
    table = fit.read(runs)
    columns = {name: table.numbers(name) for name in ("n_active", "n_tokens", "n_experts", "loss")}
    points = [line for line in axis.lines if line.get_linestyle() == "None"]
    x, y = (np.concatenate([getattr(line, f"get_{name}data")() for line in points]) for name in "xy")
    expected = sorted(zip(6 * columns["n_active"] * columns["n_tokens"], columns["loss"], strict=True))
    np.testing.assert_allclose(sorted(zip(x, y, strict=True)), expected)
    hollow = [line for line in points if line.get_markerfacecolor() == "white"]
    assert sum(len(line.get_xdata()) for line in hollow) == 5
    solid = [line for line in axis.lines if line.get_linestyle() == "-"]
    curves = dict(zip(sorted(set(columns["n_experts"])), solid, strict=True))
    buildable = {e: line for e, line in curves.items() if np.isfinite(np.asarray(line.get_ydata(), float)).any()}
    assert {1, 2} <= buildable.keys()  # this law's best models of more experts are too small to build
    for e, line in buildable.items():
        flops, loss = line.get_xdata(), np.asarray(line.get_ydata(), float)
        i = np.flatnonzero(np.isfinite(loss))[-1]
        size = np.geomspace(1e2, 1e8, 200_000)
        by_hand = law.loss(law.coefficients, dict(n_active=size, n_tokens=flops[i] / (6 * size), n_experts=e)).min()
        assert loss[i] == pytest.approx(by_hand, rel=1e-6)


def test_a_picture_is_of_the_paper_if_asked(law, runs, tmp_path):
    assert len(fit.plot(law, runs, figure="5").axes) > 2
    assert len(fit.plot(JOINT, figure="2a", flops=[1e20, 1e21], experts=[1, 8]).axes) == 2
    out = tmp_path / "compute.svg"
    assert command_line.run(["plot", "--law=joint-moe-2025", "--figure=compute", f"--out={out}"]) == 0
    assert "training FLOPs" in out.read_text() or out.stat().st_size > 10_000
    (axis,) = fit.plot(JOINT, figure="hours", chips="H100:64", experts=[1, 8]).axes
    assert "hours" in axis.get_xlabel()


def test_a_report_is_written_and_shown_in_a_notebook(tmp_path):
    limits = dict(plan=dict(flops="1e21"), laws="chinchilla-refit-2024")
    report = fit.report("chinchilla-2022", out=tmp_path / "report.html", **limits)
    assert report == str(tmp_path / "report.html")
    flags = ["--law=chinchilla-2022", "--plan=--flops=1e21", "--laws=chinchilla-refit-2024"]
    assert command_line.run(["report", *flags, f"--out={tmp_path / 'again.html'}"]) == 0
    written = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert written == (tmp_path / "again.html").read_text(encoding="utf-8")
    (frame,) = re.findall(r'<iframe srcdoc="([^"]*)" width="100%" height="800"></iframe>', report._repr_html_())
    assert html.unescape(frame) == written


def test_a_page_in_a_notebook_plans(law, runs, tmp_path, browser):
    """Within a frame, as a notebook shows it: typed FLOPs change the answer, and nothing fails."""
    cell = "".join(shown("fit.page(law, runs, out)", law=law, runs=runs, out=tmp_path / "page.html")["text/html"])
    assert cell.startswith("<iframe srcdoc=")
    tab = browser.new_page()
    errors = []
    tab.on("pageerror", lambda error: errors.append(error))
    tab.set_content(cell)
    frame = tab.frame_locator("iframe")
    before = frame.locator("#answer").inner_text()
    frame.locator("#flops").fill("3e11")
    frame.locator("#flops").press("Enter")
    tab.wait_for_function(
        "before => document.querySelector('iframe').contentDocument.querySelector('#answer').innerText !== before",
        arg=before,
    )
    plan = fit.plan(law, flops=3e11, shape="paper")
    assert f"{plan.best.n_experts} experts" in frame.locator("#answer").inner_text()
    assert errors == []
    tab.close()
