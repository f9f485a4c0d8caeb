"""Answers in ten lines: what they say, how wide they are, what --verbose adds, and how they end."""

import json
import re
import shlex

import fit_runs
import numpy as np
import pytest

import fit
from fit import __main__ as command_line

JOINT = "joint-moe-2025"
ASKED = [
    dict(law=JOINT, chips="H100:64", hours=240, dollars_per_hour=2.5),
    dict(law=JOINT, flops=1e22, memory_gb=80, kv_tokens=16384, inference_tokens=1e11),
    dict(law=JOINT, chips="v5p:64", hours=24, like="Qwen3-30B-A3B"),
    dict(law=JOINT, target_loss=2.1, inference_tokens=1e12),
    dict(law=JOINT, flops=1e22, max_tokens=2e10, epochs=4),
    dict(law="sparsity-2025", flops=1e21, shape=dict(used=[1, 2, 4])),
]


def printed(capsys, asked, *more):
    assert command_line.run(["plan", *asked.split(), *more]) == 0
    return capsys.readouterr().out


def sentences_of(text):
    """The lines of a text, with what was wrapped to the next put back."""
    return re.sub(r"\n {4,}", " ", text).splitlines()


@pytest.mark.parametrize("asked", ASKED)
def test_a_plan_is_ten_lines(asked):
    """--verbose has every warning and optimum besides, and no sentence thrice. test_python.py: the command prints
    the same."""
    plan = fit.plan(**asked)
    text = str(plan)
    lines = sentences_of(text)
    assert max(map(len, text.splitlines())) <= 120
    assert lines[0].startswith("Train ") and lines[-1].startswith("Next: ")
    own = [line for line in lines if not line.startswith(("warning: ", "Qwen3-30B-A3B: "))]
    assert len(own) <= 10 and len(lines) <= 12
    for name in ("Price: ", "Shape: ", "Rate: ", "Batch: ", "How sure: ", "Extrapolates"):
        assert sum(line.startswith(name) for line in lines) == 1, name
    detailed = str(fit.plan(**asked, verbose=True))
    assert max(map(len, detailed.splitlines())) <= 120 and len(detailed.splitlines()) > len(text.splitlines())
    joined = " ".join(detailed.split())
    assert all(" ".join(f"warning: {warning}".split()) in joined for warning in plan.warnings)
    assert all(f"{row.loss:.4f}" in joined for row in plan.optima)
    assert all(joined.count(words) < 3 for words in re.findall(r"[^.;:()]{60,}", joined))


def test_how_sure_a_law_with_draws_is(folder):
    """The interval of the model to build holds its loss, and is the one of `fit predict`."""
    law = fit.load(folder / "law.json")
    plan = fit.plan(law, flops=2e11)
    built = plan.buildable
    low, high = built["loss_interval"]
    assert low < built["loss"] < high and built["interval_of_a_run"]
    model = {name: built[name] for name in ("n_active", "n_tokens", "n_experts")}
    columns = fit.predict(law, **model).columns
    assert [low, high] == [columns["predicted_loss_low"][0], columns["predicted_loss_high"][0]]
    (line,) = (line for line in sentences_of(str(plan)) if line.startswith("How sure: "))
    assert f"{low:.4f} to {high:.4f} in 80 of 100 cases" in line and " of 20 draws; " in line


def test_what_to_type_next(tmp_path, capsys, monkeypatch):
    """The command that starts the config."""
    monkeypatch.chdir(tmp_path)
    asked = f"--law={JOINT} --chips=H100:64 --hours=24"
    text = printed(capsys, asked, "--emit_config=ten.py")
    words = shlex.split(text[text.index("  python -m") :])
    assert words[2] == "launch.sweep" and {"--sweep=ten.py", "--accelerator=H100:8x8", "--dry_run"} <= set(words)
    text = printed(capsys, "--law=joint-moe-2025 --flops=1e20", "--emit_config=one.py")
    assert text.splitlines()[-1].strip() == "python -m jmoe.train --config=one.py --workdir=runs/one"


# -- fit law, compare, next and speedup
# -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with runs.csv and law.json, with draws."""
    folder = tmp_path_factory.mktemp("fitted")
    fit_runs.write_demo_csv(folder / "runs.csv")
    fit.save(fit.law(folder / "runs.csv", form="joint", bootstrap=20, starts=16), folder / "law.json")
    return folder


@pytest.fixture
def fitted(folder, monkeypatch):
    """That folder, in which the test runs: its paths are as short as a user's."""
    monkeypatch.chdir(folder)
    return folder


def both_outputs(capsys, *command):
    """What a command prints by default and with --verbose: at most ten lines, none too wide, without its warnings,
    which are on stderr."""
    assert command_line.run([*command]) == 0
    short = capsys.readouterr().out
    assert command_line.run([*command, "--verbose"]) == 0
    long = capsys.readouterr().out
    assert len(short.splitlines()) <= 10 < len(long.splitlines())
    assert max(map(len, [*short.splitlines(), *long.splitlines()])) <= 120
    assert "--verbose" in short.splitlines()[-1] and "--verbose" not in long
    return short, long


@pytest.mark.parametrize(
    "flags", ["--bootstrap=20 --holdout=largest-compute:3", "--form=chinchilla --bootstrap=8", "--form=clark"]
)
def test_a_fit_is_ten_lines(fitted, capsys, flags):
    """The first line has the form, the error and what the law says of E; no warning is lost."""
    command = ["law", "--runs=runs.csv", "--out=other.json", *flags.split()]
    short, long = both_outputs(capsys, *command)
    assert sentences_of(short)[-1].startswith("written to other.json (--verbose: ")
    record = json.loads((fitted / "other.json").read_text())
    first = sentences_of(short)[0]
    assert re.match(rf"{record['form']} law: \d+\.\d\d% off on \d+", first)
    assert record["warnings"]
    for warning in record["warnings"]:
        assert f"warning: {warning}" in " ".join(long.split())
    assert f"objective {record['objective']:.6e}" in long and "objective" not in short
    for name, value in record["coefficients"].items():
        assert f"{name} {value:.6g}" in " ".join(long.split())
    if "clark" in flags:
        assert "It does not say which E is best" in first
    elif "chinchilla" in flags:
        assert "It does not read the number of experts" in first
    else:
        plan = fit.plan("other.json", flops=record["runs"]["ranges"]["training_flops"][1])
        assert f"E = {plan.best.n_experts} is best at " in short.splitlines()[0]
        assert ("a close call" in first) == bool(plan.odds.close_call)


def test_a_fit_says_how_far_it_is_off_beyond_its_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit_runs.write_csv(tmp_path / "runs.csv", fit_runs.dense_runs(n=90))
    assert command_line.run(["law", "--runs=runs.csv", "--out=law.json", "--bootstrap=8"]) == 0
    short = capsys.readouterr().out
    record = json.loads((tmp_path / "law.json").read_text())
    step = record["rolling"][-1]
    (line,) = (line for line in sentences_of(short) if line.startswith("Beyond its runs: "))
    assert f"fitted to 1/{step['factor']} of the compute, {step['rmse_log']:.2%} off" in line
    chosen = record["choice"]["why"].partition(" ")[0]
    assert (chosen == "chinchilla") == (record["coefficients"]["k"] == 1)
    assert short.startswith(f"{chosen} law: ") and "It holds for dense models alone, up to " in sentences_of(short)[0]
    assert "which form holds beyond the runs is open" in short


def test_forms_are_compared_in_a_line(fitted, capsys):
    """The form of least AIC; the others that are as good, or better by another measure."""
    command = ["law", "--runs=runs.csv", "--form=joint,chinchilla,clark"]
    assert command_line.run([*command, "--verbose"]) == 0
    long = capsys.readouterr().out
    assert command_line.run(command) == 0
    short = capsys.readouterr().out
    rows = [line.split() for line in long.splitlines() if re.match(r"(joint|chinchilla|clark) +\d", line)]
    aic = {row[0]: float(row[5]) for row in rows}
    best = min(aic, key=lambda form: aic[form])
    assert short.startswith(f"{best} has the least AIC of 3 forms: RMSE ") and len(short.splitlines()) <= 4
    least_rmse = min(rows, key=lambda row: float(row[2]))[0]
    assert (f"{least_rmse} has the least RMSE on the fitted runs" in short) == (least_rmse != best)
    assert max(map(len, short.splitlines())) <= 120 and "--verbose" in short.splitlines()[-1]


@pytest.mark.parametrize(
    "flags",
    [
        "--flops=1e20 --like=Qwen3-30B-A3B --laws=joint-moe-2025,sparsity-2025",
        "--chips=H100:64 --hours=240 --laws=joint-moe-2025,chinchilla-2022",
        "--flops=1e17 --memory_gb=0.15 --laws=joint-moe-2025,fine-grained-2024",
        "--flops=1e21 --shape=used:2 --laws=joint-moe-2025,sparsity-2025",
    ],
)
def test_a_comparison_is_ten_lines(capsys, flags):
    """The verdict, what the laws disagree about, and each law's best; nothing that limits a law's answer is lost."""
    short, long = both_outputs(capsys, "compare", *flags.split())
    assert command_line.run(["compare", *flags.split(), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    joined = " ".join(short.split())
    verdict = [line for line in result["conclusion"] if "prefer a mixture" in line]
    assert short.splitlines()[0] == verdict[0] if verdict else short.startswith("By law: ")
    assert all(line in joined for line in result["conclusion"])
    for row in result["laws"]:
        assert f"{row['law']} E = {row['n_experts']}, " in joined and f"\n{row['law']} " in long
        if row["extrapolation"]:
            assert "times beyond its data" in joined
        assert not row["not_bounded"] or "more experts are always better" in joined
        assert not row["not_read"] or "no column for --shape=used:2" in joined
        by_flops = (row.get("clock") or {}).get("by_flops", row["n_experts"])
        assert by_flops == row["n_experts"] or f"by FLOPs E = {by_flops}" in joined
    if any(row.get("like") for row in result["laws"]):
        assert re.search(r"Qwen3-30B-A3B: \d of \d laws reach its loss with fewer FLOPs", joined)
    for row in result["infeasible"]:
        assert f"{row['law']}: not feasible: {row['why']}" in joined
    for row in result["agreement"]:
        assert f"{row['column']}: " in long


@pytest.mark.parametrize("goal", ["--target_flops=1e14", "--goal=coefficients"])
def test_the_next_runs_are_ten_lines(fitted, capsys, goal):
    """How many runs, their FLOPs and what they gain; what a plain grid would gain; each number of experts."""
    command = ["next", "--law=law.json", "--runs=runs.csv", "--flops=1e12", *goal.split()]
    short, long = both_outputs(capsys, *command)
    assert command_line.run([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    first = short.splitlines()[0]
    count = sum(len(trunk["n_tokens"]) for trunk in result["trunks"])
    assert re.match(rf"Train {count} runs? for \S+ FLOPs: ", first)
    joined = " ".join(short.split())
    for n_experts in {trunk["n_experts"] for trunk in result["trunks"]}:
        assert f"E = {n_experts} " in joined
    assert f"A plain grid of {result['grid']['runs']} runs for " in joined
    expected = result["expected"]
    if "coefficients" in expected:
        errors = [row["standard_error"] for row in expected["coefficients"]]
        shrunk = np.median([1 - error["after"] / error["before"] for error in errors])
        assert f"shrink by {shrunk:.0%}" in first
        for row in expected["coefficients"]:
            assert f"{row['name']} ± {row['standard_error']['before']:.3g}, " in joined
    else:
        ends = [" to ".join(f"{end:.4f}" for end in interval) for interval in expected["loss"].values()]
        before, after, grid = ends
        assert f"now {before}, is then known to {after}" in first and f"would leave it at {grid}" in joined
        assert re.search(r"E = \d lies -?\d+\.\d\d% ± \d+\.\d\d% above E = \d, the best", joined)
    assert all(f"{trunk['flops']:.3g}  " in long for trunk in result["trunks"])


def test_a_speedup_is_ten_lines(fitted, capsys):
    """The factor and its interval; how far the runs lie apart, and those that do not count."""
    command = ["speedup", "--law=law.json", "--runs=runs.csv"]
    short, long = both_outputs(capsys, *command)
    result = fit.speedup("law.json", "runs.csv")
    low, high = result.interval
    first = short.splitlines()[0]
    assert f"needs {result.factor:.2f} times the compute of these 36 runs ({low:.2f} to {high:.2f})" in first
    assert f"{result}\n" == short and len(long.splitlines()) > len(result.runs)
    assert str(fit.speedup("law.json", "runs.csv", verbose=True)) + "\n" == long
    factors = [row.factor for row in result.runs]
    line = " ".join(short.split())
    assert f"The runs lie apart: {min(factors):.2f} " in line and f" to {max(factors):.2f} (" in line


def test_runs_whose_losses_a_law_does_not_reach_are_counted():
    """A loss below the floor of the law, which no compute reaches."""
    runs = dict(n_active=[1e9, 2e9, 3e9], n_tokens=[2e10] * 3, n_experts=[1] * 3, loss=[2.4, 2.3, 0.5])
    result = fit.speedup("joint-moe-2025", runs)
    assert [row.factor is None for row in result.runs] == [False, False, True]
    assert "1 of 3 runs do not count: the law reaches no such loss" in str(result)
    assert result._repr_html_().count("do not count") == 1
