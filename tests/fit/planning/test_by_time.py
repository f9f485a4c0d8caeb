"""Plans by hours: speeds, words, and what a wrong combination of flags is told. What must hold of all of them stands in
test_plan_properties.py.
"""

import dataclasses
import json

import pytest

import fit
from fit import __main__ as command_line
from fit.fitted_law.law import load
from fit.model import efficiencies
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.space import calibration, size_speeds

LAW = "joint-moe-2025"


def plan(capsys, *flags):
    assert command_line.run(["plan", f"--law={LAW}", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    del found["options"]  # of the flags
    return found


def error(capsys, *flags):
    assert command_line.run(list(flags)) == 2
    return capsys.readouterr().err


def test_ranges_hold_the_middle_and_agree(capsys):
    found = plan(capsys, "--chips=H100:64", "--hours=240")
    for row in [*found["optima"], found["buildable"]]:
        for low, middle, high in row["speed"].values():
            assert low < middle < high
        hours = row["speed"]["hours"]
        tokens = [rate * 3600 * h for rate, h in zip(row["speed"]["tokens_per_second"], reversed(hours), strict=True)]
        assert tokens == pytest.approx([row["n_tokens"]] * 3)


def test_what_flops_would_choose_is_what_a_plan_by_them_chooses(capsys):
    flags = [f"--law={LAW}", "--chips=H100:1", "--hours=500"]
    found = plan(capsys, *flags[1:3])
    by_flops = [f"--flops={found['best']['training_flops']!r}", "--chips=H100:1", "--mfu=0.4"]
    assert command_line.run(["plan", f"--law={LAW}", *by_flops, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["n_experts"] == found["clock"]["by_flops"]
    assert command_line.run(["plan", *flags, "--verbose"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "speed on these chips (modelled" in told
    assert told.count("tokens/s (") == len(found["optima"])


def test_experts_that_the_law_counts_as_no_whole_number():
    """16 experts split in 4 with one of them shared are built as 64, which the law counts as 16.25."""
    shape = dict(shape=dict(granularity=4, shared_experts=1), experts=[8, 16], chips="B200:32", hours=100)
    by_clock = fit.plan(LAW, **shape)
    assert by_clock.buildable["law_experts"] != round(by_clock.buildable["law_experts"])
    assert "modelled" in str(by_clock)
    assert "at MFU 0.3" in str(fit.plan(LAW, mfu={8: 0.3, 16: 0.3}, **shape))


def test_compared_laws_answer_as_their_plans(capsys):
    """The joint law chooses as its plan does; a law of several splits is timed at each of them."""
    limits = dict(chips="H100:16", hours=100)
    found = fit.compare([LAW, "fine-grained-2024"], **limits, verbose=True)
    joint, fine = found.laws
    planned = fit.plan(LAW, **limits)
    for name in ("n_experts", "n_active", "n_tokens", "loss"):
        assert joint[name] == planned.best[name]
    assert joint["clock"] == planned.clock
    best = next(row for row in planned.optima if row["n_experts"] == joint["n_experts"])
    assert joint["speed"] == best["speed"]
    assert joint["dense"]["hours_ratio"] == pytest.approx(1 / (1 - planned.dense["hours_saved"]), rel=1e-9)
    assert "flops_ratio" not in joint["dense"]
    # finer experts are slower: by wall-clock time the split is not the finest, which FLOPs prefer
    (by_flops,) = fit.compare(["fine-grained-2024"], chips="H100:16", hours=100, mfu=0.4).laws
    assert 1 < fine["granularity"] < by_flops["granularity"]
    assert fine["n_tokens"] == pytest.approx(fine["speed"]["tokens_per_second"][1] * 360_000, rel=1e-9)
    told = " ".join(str(found).split())
    assert "dense hours" in told and "speed on these chips (modelled" in told
    assert found.constraints["hours"] == 100


@pytest.mark.parametrize("budget", [dict(flops=1e21), dict(hours=100)])
def test_compared_laws_have_the_papers_shapes_as_their_plans(budget):
    limits = dict(chips="H100:64", shape="paper", **budget)
    (row,) = fit.compare([LAW], **limits).laws
    best = fit.plan(LAW, **limits).best
    for name in ("n_experts", "n_active", "n_tokens", "loss"):
        assert row[name] == best[name]


def test_own_speeds_recalibrate_the_plan(capsys, tmp_path):
    """Speeds of chips that reach 0.6 of what is published: from four of them the plan finds those of all models."""
    path = tmp_path / "speeds.csv"
    limits = dict(chips="H100:64", hours=240)

    def write(speeds):
        rows = ["d_model,n_experts,tokens_per_second,batch_tokens,expert,remat"]
        models = [(d, e) for d in (2048, 4096) for e in (1, 8)]
        rows += [f"{d},{e},{rate},4194304,{e},full" for (d, e), rate in zip(models, speeds, strict=True)]
        path.write_text("\n".join(rows))

    write([1, 1, 1, 1])
    law = load(LAW)
    options = PlanOptions.parse(**limits)
    (architecture,) = options.architectures(law)
    limits_of_time = options.constraints(())
    runs = calibration.measured_runs(Problem(law, architecture, limits_of_time), path)
    meshes = [(run.layout.data, run.layout.expert, run.layout.sequence) for run in runs]
    assert meshes == [(64, 1, 4096), (8, 8, 4096)] * 2
    published = efficiencies.of_our_trainer("H100", 64)
    slower = published.products | {"Hopper": 0.6 * published.products["Hopper"]}
    true = dataclasses.replace(published, products=slower)
    steps = [true.step_cost("H100", run.shape, run.layout) for run in runs]
    write([run.layout.batch_tokens / step.seconds for run, step in zip(runs, steps, strict=True)])
    found = plan(capsys, "--chips=H100:64", "--hours=240", f"--speeds={path}")
    problem = Problem(law, architecture, limits_of_time, calibration=true)
    for row in found["optima"]:
        low, middle, high = row["speed"]["tokens_per_second"]
        rate = size_speeds.tokens_per_second(problem, row["n_experts"], row["n_active"], row["n_tokens"])
        assert middle == pytest.approx(rate, rel=0.05)
        assert high / low < published.factors()[2] ** 2
    assert found["clock"]["label"] == "measured"
    assert command_line.run(["plan", f"--law={LAW}", "--chips=H100:64", "--hours=240", f"--speeds={path}"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert ", measured; training takes" in told


@pytest.mark.parametrize(
    "rows, said",
    [
        (["2048,1,1e6,,"], "found 1 measured runs, expected at least 2"),
        (["2048,1,1e6,v5p,", "2048,8,1e6,v5p,"], "expected rows of H100, the kind of --chips, found none"),
        (["2048,1,1e6,,", "2048,8,1e6,,some"], 'n_blocks is "some", expected a whole number'),
        (["2048,1,1e6,,", "2048,1.5,1e6,,"], 'row 3: n_experts is "1.5", expected a whole number'),
    ],
)
def test_tables_of_speeds_that_do_not_serve(rows, said, capsys, tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text("\n".join(["d_model,n_experts,tokens_per_second,chip,n_blocks", *rows]))
    flags = ["--chips=H100:64", "--hours=240", f"--speeds={path}"]
    told = error(capsys, "plan", f"--law={LAW}", *flags)
    assert said in told and str(path) in told or "found 1" in told
