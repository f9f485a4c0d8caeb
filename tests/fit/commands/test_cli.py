"""The command line as a user meets it: answers, files, help, and one sentence for each mistake."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys

import fit_command
import fit_runs
import numpy as np
import pytest

from fit import __main__ as command_line
from fit.fitted_law.law_files import load
from fit.fitting import search
from fit.messages import lines
from fit.prediction.predictions import against_measured
from fit.render import law_details
from fit.table.table import Table, write

ENV = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs, and the law that the command line fits to them, once for all tests here."""
    folder = tmp_path_factory.mktemp("fit")
    fit_runs.write_csv(folder / "runs.csv", fit_runs.dense_runs(n=36))
    law(folder, "law.json")
    return folder


def law(folder, out):
    """In a process of its own, as a user does, and with the compiler's settings left alone."""
    arguments = [
        "law",
        f"--runs={folder}/runs.csv",
        f"--out={folder}/{out}",
        "--form=chinchilla",
        "--holdout=largest-compute:3",
        "--bootstrap=2",
    ]
    env = ENV | {"JMOE_CACHE": f"{folder}/cache"}
    subprocess.run([sys.executable, "-m", "fit", *arguments], check=True, env=env, capture_output=True)


def test_answers_are_utf_8_in_any_locale():
    arguments = [sys.executable, "-m", "fit", "plan", "--law=chinchilla-2022", "--flops=1e21"]
    done = subprocess.run(arguments, env=ENV | {"PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert done.returncode == 0 and "Price: 10²¹ training FLOPs" in done.stdout.decode("utf-8"), done.stderr


def test_law_says_both_errors_and_keeps_them(folder):
    record = json.loads((folder / "law.json").read_text())
    assert record["fitted"]["runs"] == 33 and record["held_out"]["runs"] == 3
    runs = fit_runs.dense_runs(n=36)
    c = record["coefficients"]
    predicted = c["E"] + c["A"] / runs.n_active ** c["alpha"] + c["B"] / runs.n_tokens ** c["beta"]
    out = np.argsort(-runs.n_active * runs.n_tokens, kind="stable")[:3]
    relative = np.abs(predicted / runs.loss - 1)
    assert record["held_out"]["mean_relative_error"] == pytest.approx(relative[out].mean(), rel=1e-6)
    assert record["held_out"]["max_relative_error"] == pytest.approx(relative[out].max(), rel=1e-6)
    assert record["fitted"]["mean_relative_error"] == pytest.approx(np.delete(relative, out).mean(), rel=1e-6)
    said = lines.text(law_details.details(load(str(folder / "law.json"))))
    assert re.search(r"mean relative error on 33 fitted runs: 0\.\d\d%", said)
    assert re.search(r"mean relative error on 3 held-out runs: 0\.\d\d% \(largest", said)


def test_same_inputs_give_the_same_bytes_and_nothing_is_compiled_twice(folder):
    compiled = sorted(p.name for p in (folder / "cache/compiled").iterdir() if not p.name.endswith("-atime"))
    assert compiled
    law(folder, "again.json")
    assert (folder / "law.json").read_bytes() == (folder / "again.json").read_bytes()
    assert compiled == sorted(p.name for p in (folder / "cache/compiled").iterdir() if not p.name.endswith("-atime"))


def test_measured_losses_are_compared_with_a_laws(tmp_path, capsys):
    """A table whose losses are 2% and 4% above the law, one outside its range; then of other text or other tokens."""
    size, tokens = [1e9, 1e9], [2e10, 2e13]
    above = [1.02, 1.04] * fit_runs.joint_loss(np.array(size), np.array(tokens), 8, fit_runs.TABLE_3)
    table = dict(n_active=size, n_tokens=tokens, n_experts=[8, 8], loss=above.tolist())
    write(Table("models", table, [2, 3]), str(tmp_path / "models.csv"))
    flags = ["predict", "--law=joint-moe-2025", f"--runs={tmp_path}/models.csv", f"--out={tmp_path}/out.csv"]
    assert command_line.run(flags) == 0
    mean, half = np.sqrt(1.02 * 1.04) - 1, np.log(1.04 / 1.02) / 2
    assert " ".join(capsys.readouterr().out.split()) == (
        f"2 measured losses are {mean:+.2%} off joint-moe-2025 on average and scatter by {half:.2%} around that; "
        "1 of the models lie outside its fitted range intervals by fits simulated from the published grid"
    )
    law = load("joint-moe-2025")
    law = dataclasses.replace(law, models=dataclasses.replace(law.models, corpus="ours"))
    predicted = dict(predicted_loss=above.tolist(), outside_fitted_range=["", "far"])
    of_text = ", and their text is not the law's"
    of_vocabulary = ", and their vocabulary is not the law's: nats per token of both do not compare"
    for columns, ending in (
        (dict(corpus_fingerprint=["ours"] * 2), None),
        (dict(corpus_fingerprint=["theirs"] * 2), of_text),
        (dict(vocab_size=[50257, 50257.0]), None),
        (dict(vocab_size=[50257, ""]), None),
        (dict(vocab_size=[50257, 257]), of_vocabulary),
    ):
        said = against_measured(law, Table("models", table | columns, [2, 3]), predicted)
        assert ending is None and ", and their" not in said or said.endswith(ending)
    write(Table("models", table | dict(loss=["", 2.0]), [2, 3]), str(tmp_path / "models.csv"))
    assert command_line.run(flags) == 0
    captured = capsys.readouterr()
    assert captured.out == "intervals by fits simulated from the published grid\n"
    warning = " ".join(captured.err.split())
    assert warning.startswith("warning: measured losses are not compared: ") and "column loss" in warning


@pytest.mark.parametrize("name", [name for name in command_line.COMMANDS if name != "laws"])  # which takes no flags
def test_help_has_an_example_that_parses(name):
    said = fit_command.printed(name, "--help")
    assert re.search(rf"python -m fit {name} (\S+ )?--", said) and said.count("  --") >= 3


def test_interrupt_leaves_no_law(folder, tmp_path, monkeypatch, capsys):
    """In the search; planning/test_plan.py interrupts the imports of a process."""
    monkeypatch.setattr(search, "fit", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(sys, "argv", ["fit", "law", f"--runs={folder}/runs.csv", f"--out={tmp_path}/law.json"])
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            command_line.main()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert ended.value.code == 130 and capsys.readouterr().err.endswith("fit: interrupted\n")
    assert list(tmp_path.iterdir()) == []
