"""Mistakes on the command line: each ends with one sentence, exit code 2, and nothing written."""

import shlex

import fit_runs
import pytest

from fit import __main__ as command_line

FILES = {
    "TABLE.json": '{"1": 0.4, "8": 0.3}',
    "WRONG.json": '{"1": 40, "2": 0.3}',
    "LIST.json": "[0.4]",
    "ZERO.json": '{"0": 0.4, "1": 0.4}',
    "few.csv": "n_active,n_total,n_tokens,n_experts,loss\n1e8,1e8,1e9,1,3\n5e7,1e8,2e9,2,3\n",
    "no_sizes.csv": "n_total,n_tokens,n_experts,loss\n1e8,1e9,1,3\n1e8,2e9,2,3\n",
    "recipes.csv": "flops,recipe,loss\n1e18,base,3\n1e19,base,2.7\n1e20,base,2.5\n1e21,base,2.3\n1e20,new,2.4\n",
}


def cases():
    """[(arguments, words)] of tests/data/mistakes.txt."""
    text = (fit_runs.DATA / "mistakes.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(command, words.strip()) for command, words in zip(lines[::2], lines[1::2], strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of all cases; law.json is fitted to runs.csv."""
    folder = tmp_path_factory.mktemp("mistakes")
    fit_runs.write_demo_csv(folder / "other.csv", seed=7)
    fit_runs.fit_law(folder, fit_runs.write_demo_csv(folder / "runs.csv"))
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("command, words", cases())
def test_each_mistake_gets_one_sentence(folder, capsys, monkeypatch, command, words):
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    arguments = shlex.split(command)
    assert command_line.run(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert captured.err.startswith(f"fit {arguments[0]}: ")
    assert sorted(folder.iterdir()) == before
