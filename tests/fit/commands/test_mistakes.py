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
    "RISING.json": '{"form": "chinchilla", "coefficients": {"A": 1, "B": 1, "E": 1, "alpha": -0.1, "beta": 0.3}}',
    "RATE.json": '{"form": "chinchilla", "coefficients": {"A": 400, "B": 400, "E": 1.7, "alpha": 0.3, "beta": 0.3}, '
    '"rates": {"coefficients": {"rate": 1e-3, "rate_n_active": -0.2, "rate_cost": 0.01, "skew": 0.1}, '
    '"reference": {"n_active": 1e9}, "scatter": {"rate": 0}, "runs": 9, "near": 9}}',
    "one_speed.csv": "d_model,n_experts,tokens_per_second\n2048,1,1e6\n",
    "other_chip.csv": "d_model,n_experts,tokens_per_second,chip\n2048,1,1e6,v5p\n2048,8,1e6,v5p\n",
    "blocks.csv": "d_model,n_experts,tokens_per_second,n_blocks\n2048,1,1e6,\n2048,8,1e6,some\n",
    "half.csv": "d_model,n_experts,tokens_per_second\n2048,1,1e6\n2048,1.5,1e6\n",
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
    fit_runs.write_demo_law(folder / "demo.json")
    fit_runs.write_demo_law(folder / "no_config.json", base_config=None)
    fit_runs.write_demo_law(folder / "two_configs.json", base_config=None, differing={"config": ["a.py", "b.py"]})
    (folder / "pictures" / "isoflop.png").mkdir(parents=True)
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
