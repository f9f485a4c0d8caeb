"""What answers say besides their words, which test_pages.py has."""

import dataclasses
import json
import re

import fit_command
import fit_runs
import pytest

import fit
from fit.fitted_law.parts import Scatter

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


@pytest.mark.parametrize("noise, of", [(None, "law"), (Scatter(total=0.01), "predicted")])
def test_how_sure_a_law_with_draws_is(noise, of):
    """The interval of the model to build holds its loss, and is the one of `fit predict`: of the law, or of a run."""
    law = dataclasses.replace(fit.load(JOINT), noise=noise)
    plan = fit.plan(law, flops=1e19, shape="paper")
    built = plan.buildable
    low, high = built["loss_interval"]
    assert low < built["loss"] < high and built["interval_of_a_run"] == (noise is not None)
    columns = fit.predict(law, **{name: built[name] for name in ("n_active", "n_tokens", "n_experts")}).columns
    assert [low, high] == [columns[f"{of}_loss_low"][0], columns[f"{of}_loss_high"][0]]
    (line,) = (line for line in sentences_of(str(plan)) if line.startswith("How sure: "))
    assert f"{low:.4f} to {high:.4f} in 80 of 100 cases" in line and f" of {plan.odds.draws} draws; " in line


@pytest.mark.parametrize("form", ["joint", "chinchilla"])
def test_all_of_a_fit(tmp_path, form):
    """With --verbose every warning and coefficient."""
    out = tmp_path / "law.json"
    flags = [f"--form={form}", "--holdout=largest-compute:3", "--verbose", f"--out={out}"]
    runs = fit_runs.write_demo_csv(tmp_path / "runs.csv")
    printed = " ".join(fit_command.printed("law", f"--runs={runs}", *flags).split())
    record = json.loads(out.read_text())
    assert record["findings"] and f"objective {record['objective']:.6e}" in printed
    for finding in record["findings"]:
        assert f"warning: {finding['text']}" in printed
    for name, value in record["coefficients"].items():
        assert f"{name} {value:.6g}" in printed
    plan = fit.plan(str(out), flops=record["runs"]["ranges"]["training_flops"][1])
    assert (f"E = {plan.best.n_experts} is best at " in printed) == (form == "joint")


def test_runs_whose_losses_a_law_does_not_reach_are_counted():
    """A loss below the floor of the law, which no compute reaches."""
    runs = dict(n_active=[1e9, 2e9, 3e9], n_tokens=[2e10] * 3, n_experts=[1] * 3, loss=[2.4, 2.3, 0.5])
    result = fit.speedup("joint-moe-2025", runs)
    assert [row.factor is None for row in result.runs] == [False, False, True]
    assert "1 of 3 runs do not count: the law reaches no such loss" in str(result)
    assert result._repr_html_().count("do not count") == 1
