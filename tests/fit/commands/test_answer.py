"""What answers say besides their words, which test_pages.py has."""

import json
import re

import fit_runs
import pytest

import fit
from fit import __main__ as command_line

JOINT = "joint-moe-2025"
ASKED = [
    dict(law=JOINT, chips="H100:64", hours=240, dollars_per_hour=2.5),
    dict(law=JOINT, flops=1e22, memory_gb=80, kv_tokens=16384, inference_tokens=1e11),
    dict(law="sparsity-2025", flops=1e21, shape=dict(used=[1, 2, 4])),
]


def sentences_of(text):
    """The lines of a text, with what was wrapped to the next put back."""
    return re.sub(r"\n {4,}", " ", text).splitlines()


@pytest.mark.parametrize("asked", ASKED)
def test_all_of_a_plan(asked):
    """With verbose every warning and the loss of every optimum, and no sentence thrice."""
    plan = fit.plan(**asked, verbose=True)
    joined = " ".join(str(plan).split())
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


@pytest.mark.parametrize("form", ["joint", "chinchilla"])
def test_all_of_a_fit(fitted, capsys, form):
    """With --verbose every warning and coefficient."""
    flags = [f"--form={form}", "--holdout=largest-compute:3", "--verbose"]
    assert command_line.run(["law", "--runs=runs.csv", "--out=other.json", *flags]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    record = json.loads((fitted / "other.json").read_text())
    assert record["findings"] and f"objective {record['objective']:.6e}" in printed
    for finding in record["findings"]:
        assert f"warning: {finding['text']}" in printed
    for name, value in record["coefficients"].items():
        assert f"{name} {value:.6g}" in printed
    plan = fit.plan("other.json", flops=record["runs"]["ranges"]["training_flops"][1])
    assert (f"E = {plan.best.n_experts} is best at " in printed) == (form == "joint")


def test_runs_whose_losses_a_law_does_not_reach_are_counted():
    """A loss below the floor of the law, which no compute reaches."""
    runs = dict(n_active=[1e9, 2e9, 3e9], n_tokens=[2e10] * 3, n_experts=[1] * 3, loss=[2.4, 2.3, 0.5])
    result = fit.speedup("joint-moe-2025", runs)
    assert [row.factor is None for row in result.runs] == [False, False, True]
    assert "1 of 3 runs do not count: the law reaches no such loss" in str(result)
    assert result._repr_html_().count("do not count") == 1
