"""What the planner page says of runs: those to train next, and the compute that the reader's own save."""

import json
import pathlib
import shlex

import fit_runs
import pytest
from planner_tab import SETTLED, Planner, assert_same

from fit import __main__ as command_line

EXAMPLE = fit_runs.DATA.parents[1] / "examples/runs.csv"
SIZES = [(1440, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A law fitted to examples/runs.csv, and the page of both."""
    folder = tmp_path_factory.mktemp("runs")
    law, runs = f"{folder}/law.json", f"--runs={EXAMPLE}"
    assert command_line.run(["law", runs, "--starts=32", "--bootstrap=20", f"--out={law}"]) == 0
    assert command_line.run(["page", f"--law={law}", runs, f"--out={folder}/planner.html"]) == 0
    return folder


def opened(browser, folder, size, **state):
    width, scheme = size
    planner = Planner(browser, folder, viewport=dict(width=width, height=900), color_scheme=scheme).open(**state)
    planner.tab.evaluate("document.getElementById('form').open = document.getElementById('own').open = true")
    return planner


def run(command, capsys):
    """What the page's command prints."""
    capsys.readouterr()
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "fit"] and command_line.run(words[3:]) == 0
    return capsys.readouterr().out


def closed(planner, width):
    assert planner.tab.evaluate("document.documentElement.scrollWidth") == width and planner.errors == []
    assert {url.split("#")[0].partition(":")[0] for url in planner.asked} <= {"file", "blob"}
    planner.tab.close()


@pytest.mark.parametrize("size", SIZES)
def test_the_runs_to_train_next_and_their_sweep_file(browser, folder, tmp_path, capsys, size):
    """The cells, the sentences and the file to download are the command line's, and the link holds what was chosen."""
    planner = opened(browser, folder, size, target_flops="5e13")
    planner.tab.select_option("#next_flops", "7e11")
    planner.tab.evaluate(SETTLED)
    assert "next_flops=7e11" in planner.tab.url and "target_flops=5e13" in planner.tab.url
    command = planner.text("next-command")
    assert "--flops=7e11 --target_flops=5e13 --emit_sweep=next.py" in command
    printed = run(command.replace("next.py", f"{tmp_path}/next.py"), capsys)
    cells = lambda name: planner.tab.locator(f"#{name} tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert len(cells("next-table")) >= 2 and len(cells("certainty")) == 4
    for row in [*cells("next-table"), *cells("certainty")]:
        assert " ".join(row) in " ".join(printed.split())
    assert planner.text("next-summary").removesuffix(".") in printed and "the plain grid" in planner.text("next-notes")
    with planner.tab.expect_download() as download:
        planner.tab.click("#download-next")
    assert pathlib.Path(download.value.path()).read_text() == (tmp_path / "next.py").read_text()
    planner.tab.select_option("#law", "joint-moe-2025")
    planner.tab.evaluate(SETTLED)
    assert planner.tab.locator("#next").is_hidden()  # of that law the page has no runs
    closed(planner, size[0])


@pytest.mark.parametrize("size", SIZES)
def test_what_the_readers_runs_save(browser, folder, capsys, monkeypatch, size):
    """Factors, intervals and the sentence are those of `fit speedup`; where a law cannot say, its sentence stands."""
    monkeypatch.chdir(EXAMPLE.parent)
    planner = opened(browser, folder, size)
    assert planner.tab.locator("#speedup").is_hidden()
    planner.tab.set_input_files("#file", EXAMPLE)
    planner.tab.wait_for_selector("#dropped:has-text('runs of')")
    for law in (f"{folder}/law.json", "joint-moe-2025-as-printed", "sparsity-2025"):
        planner.tab.select_option("#law", law)
        planner.tab.evaluate(SETTLED)
        command = planner.text("speedup-command")
        if not planner.text("speedup-json"):
            capsys.readouterr()
            assert command_line.run(shlex.split(command)[3:]) == 2
            assert capsys.readouterr().err == f"fit speedup: {planner.text('speedup-answer')}\n"
            continue
        assert_same(json.loads(planner.text("speedup-json")), json.loads(run(f"{command} --json", capsys)), law)
        said = run(command, capsys).strip().splitlines()[-1]
        assert said.lower() in planner.text("speedup-answer").lower()
    assert law == "sparsity-2025" and planner.tab.locator("#answer").is_visible()
    closed(planner, size[0])


def test_what_the_page_has_no_next_runs_for_is_said(browser, folder, tmp_path):
    planner = opened(browser, folder, SIZES[0], next_flops="5", flops="3e12")
    assert "the page holds answers for next_flops" in planner.text("next-summary")
    assert "--flops=5 " in planner.text("next-command") and planner.tab.locator("#download-next").is_hidden()
    assert planner.tab.input_value("#flops") == "3e12" and planner.tab.locator("#answer").is_visible()
    closed(planner, 1440)
    lines = EXAMPLE.read_text().splitlines()
    (tmp_path / "fewer.csv").write_text("\n".join(lines[:20]))
    flags = [f"--law={folder}/law.json", f"--runs={tmp_path}/fewer.csv", f"--out={tmp_path}/planner.html"]
    assert command_line.run(["page", *flags]) == 0
    planner = opened(browser, tmp_path, SIZES[0])
    assert "was fitted to other runs" in planner.text("next-summary")
    assert planner.tab.locator("#download-next").is_hidden() and planner.errors == []
    planner.tab.close()


def test_a_page_with_many_runs_stays_small(tmp_path):
    row = "123456789,12345678901,8,2.3456789012345678,jobs/d1024-e32-d587ffef/branch-32768000\n"
    (tmp_path / "runs.csv").write_text("n_active,n_tokens,n_experts,loss,run\n" + 5000 * row)
    flags = ["--law=joint-moe-2025", f"--runs={tmp_path}/runs.csv", f"--out={tmp_path}/planner.html"]
    assert command_line.run(["page", *flags]) == 0
    assert (tmp_path / "planner.html").stat().st_size < 370_000  # what fit next answered may add 30,000
