"""The plan in ten lines: what they say, how wide they are, and the command that they end with."""

import json
import re
import shlex

import fit_runs
import pytest

import fit
from fit import __main__ as command_line

ASKED = [
    "--law=joint-moe-2025 --chips=H100:64 --hours=240 --dollars_per_hour=2.5",
    "--law=joint-moe-2025 --flops=1e22 --memory_gb=80 --kv_tokens=16384 --inference_tokens=1e11",
    "--law=joint-moe-2025 --chips=v5p:64 --hours=24 --like=Qwen3-30B-A3B",
    "--law=joint-moe-2025 --target_loss=2.1 --inference_tokens=1e12",
    "--law=joint-moe-2025 --chips=H100:64 --hours=240 --max_tokens=2e10 --epochs=4",
    "--law=chinchilla-2022 --flops=1e20",
    "--law=sparsity-2025 --flops=1e21 --used=1,2,4",
    "--law=joint-moe-2025 --flops=1e21 --chips=H100:8 --shape=paper",
]


def printed(capsys, asked, *more):
    assert command_line.run(["plan", *asked.split(), *more]) == 0
    return capsys.readouterr().out


def sentences_of(text):
    """The lines of a text, with what was wrapped to the next put back."""
    return re.sub(r"\n {4,}", " ", text).splitlines()


@pytest.mark.parametrize("asked", ASKED)
def test_a_plan_is_ten_lines(capsys, asked):
    text = printed(capsys, asked)
    lines = sentences_of(text)
    assert max(map(len, text.splitlines())) <= 120
    assert lines[0].startswith("Train ") and lines[-1].startswith("Next: ")
    own = [line for line in lines if not line.startswith(("warning: ", "Qwen3-30B-A3B: "))]
    assert len(own) <= 10 and len(lines) <= 12
    for name in ("Price: ", "Shape: ", "Rate: ", "Batch: ", "How sure: ", "Extrapolates"):
        assert sum(line.startswith(name) for line in lines) == 1, name
    assert len(printed(capsys, asked, "--verbose").splitlines()) > len(text.splitlines())


@pytest.mark.parametrize("asked", ASKED)
def test_all_of_a_plan(capsys, asked):
    """--verbose has every warning and optimum, no sentence thrice and no line that is too wide; JSON is the same."""
    text = printed(capsys, asked, "--verbose")
    assert max(map(len, text.splitlines())) <= 120
    plan = json.loads(printed(capsys, asked, "--json"))
    assert plan == json.loads(printed(capsys, asked, "--json", "--verbose"))
    joined = " ".join(text.split())
    assert all(" ".join(f"warning: {warning}".split()) in joined for warning in plan["warnings"])
    assert all(f"{row['loss']:.4f}" in joined for row in plan["optima"])
    words = re.findall(r"[^.;:()]{60,}", joined)
    assert all(joined.count(one) < 3 for one in words)
    assert str(fit.plan(**options(asked), verbose=True)) + "\n" == text


def options(asked):
    """The flags of a command as arguments."""
    pairs = dict(flag.removeprefix("--").split("=") for flag in asked.split())
    pairs = {
        name: value if not value.replace(".", "").replace("e", "").isdigit() else float(value)
        for name, value in pairs.items()
    }
    return pairs | ({"used": [1, 2, 4]} if "used" in pairs else {})


def test_what_is_saved_and_what_remains(capsys):
    """Of the dense model's FLOPs: those of training that are saved, those of serving that remain."""
    asked = f"{ASKED[0]} --mfu=0.4"
    dense = json.loads(printed(capsys, asked, "--json"))["dense"]
    text = " ".join(printed(capsys, asked, "--verbose").split())
    assert f"reached with {dense['flops_saved']:.0%} fewer training FLOPs than a dense model needs" in text
    assert f"serving a token takes {dense['inference_flops_ratio']:.0%} of the dense model's FLOPs" in text


def test_how_sure_a_law_with_draws_is(tmp_path, capsys):
    """The interval of the model to build holds its loss, and is the one of `fit predict`."""
    fit_runs.write_demo_csv(tmp_path / "runs.csv")
    law = fit.law(str(tmp_path / "runs.csv"), form="joint", bootstrap=20, starts=16)
    fit.save(law, tmp_path / "law.json")
    plan = fit.plan(law, flops=2e11)
    built = plan.buildable
    low, high = built["loss_interval"]
    assert low < built["loss"] < high and built["interval_of_a_run"]
    model = {name: built[name] for name in ("n_active", "n_tokens", "n_experts")}
    columns = fit.predict(law, **model).columns
    assert [low, high] == [columns["predicted_loss_low"][0], columns["predicted_loss_high"][0]]
    (line,) = (line for line in sentences_of(str(plan)) if line.startswith("How sure: "))
    assert f"{low:.4f} to {high:.4f} in 80 of 100 cases" in line and "20 fits" in line
    for warned in ("undecided: of", "is the best in"):
        assert warned not in line


def test_what_to_type_next(tmp_path, capsys, monkeypatch):
    """Without a config how to get one; with one the command that starts it, as printed."""
    monkeypatch.chdir(tmp_path)
    assert "--emit_config=planned.py" in sentences_of(printed(capsys, ASKED[0]))[-1]
    text = printed(capsys, ASKED[0], "--emit_config=ten.py")
    words = shlex.split(text[text.index("  python -m") :])
    assert words[2] == "launch.sweep" and {"--sweep=ten.py", "--accelerator=H100:8x8", "--dry_run"} <= set(words)
    text = printed(capsys, "--law=joint-moe-2025 --flops=1e20", "--emit_config=one.py")
    assert text.splitlines()[-1].strip() == "python -m jmoe.train --config=one.py --workdir=runs/one"
    assert json.loads(printed(capsys, ASKED[0], "--json", "--emit_config=ten.py"))["emitted"] == "ten.py"


def test_a_law_that_does_not_say_its_runs(tmp_path, capsys):
    path = fit_runs.write_demo_law(tmp_path / "law.json")
    record = json.loads((tmp_path / "law.json").read_text())
    del record["runs"]
    (tmp_path / "law.json").write_text(json.dumps(record))
    assert "Extrapolates: not known" in printed(capsys, f"--law={path} --flops=2e11")
