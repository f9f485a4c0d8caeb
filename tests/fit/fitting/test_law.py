"""What `fit law` makes of a table: coefficients held, hold-outs, warnings, samples of many runs, small sweeps, other
people's columns; and what reads it again."""

import dataclasses
import os
import re

import fit_command
import fit_runs
import numpy as np
import pytest
from fit_runs import dense_runs, fit_law

import fit
from fit import __main__ as command_line
from fit.errors import UserError
from fit.fitted_law.parts import HoldOut
from fit.fitting import fit_warnings, rolling, search
from fit.fitting.problem import Settings, prepare
from fit.laws import FORMS
from fit.table.runs import errors, held_out, read_runs, run_weights, subset
from fit.table.table import read


@pytest.mark.parametrize("form, fix", [
    ("joint", dict(c=0.9)),
    ("joint", dict(E_max=40.0)),
    ("joint", dict(E_start=1.3, E_max=40.0, gamma=0.0, alpha=-0.19)),
    ("clark", dict(E_max=40.0, c=0.0)),
])  # fmt: skip
def test_held_coefficients_stay_and_the_others_are_the_best(form, fix):
    """The objective can be improved in no direction that leaves the held coefficients alone."""
    law, runs = FORMS[form], fit_runs.sweep_runs(noise=0.003)
    settings = Settings(weight_decay=1e-6, starts=64, fix=fix)
    found = search.fit(prepare(law, runs, settings))
    for name, value in fix.items():
        assert found.coefficients[name] == pytest.approx(value, rel=1e-9, abs=1e-12)
    problem, rng = prepare(law, runs, Settings(weight_decay=1e-6, starts=64)), np.random.default_rng(0)
    held = np.array([fix.get(name, np.nan) for name in law.names])
    values = [
        fit_runs.objective(problem, law.fix(found.params + step * rng.normal(size=len(held)), held))
        for step in (1e-5, 1e-4, 1e-3, 1e-2)
        for _ in range(10)
    ]
    best = fit_runs.objective(problem, found.params)
    assert min(values) >= best * (1 - 1e-9) and best >= search.fit(problem).objective


def test_a_column_whose_term_is_held_need_not_vary():
    """At one number of tokens: with the true term of data held, the law of noiseless runs is the true one."""
    runs = fit_runs.sweep_runs(widths=(16, 24, 32, 48), noise=0)
    at_most_tokens = runs.n_tokens == runs.n_tokens.max()
    columns = {name: values[at_most_tokens] for name, values in runs.columns.items()}
    table = columns | dict(loss=runs.loss[at_most_tokens])
    data = {name: fit_runs.TINY[name] for name in ("b", "beta", "omega", "zeta")}
    law = fit.law(table, form="joint", fix=data)
    np.testing.assert_allclose(law.predict(**columns), table["loss"], rtol=1e-3)
    with pytest.raises(UserError, match="n_tokens: found .* in every run"):
        fit.law(table, form="joint", fix={name: data[name] for name in ("b", "beta", "omega")})


def printed(capsys):
    """What a command printed, without its line breaks."""
    return " ".join(capsys.readouterr().out.split())


def test_fix_reaches_errors_profile_and_draws(tmp_path, capsys):
    path = fit_runs.write_csv(tmp_path / "runs.csv", fit_runs.sweep_runs())
    record = fit_law(tmp_path, path, "--fix=E_max=60,c=0.8", "--bootstrap=10")
    said = printed(capsys)
    assert record["settings"]["fix"] == {"E_max": 60, "c": 0.8} and "E_max 60 (fixed)" in said
    assert list(record["profile"]) == ["E_start"]
    draws = dict(zip(FORMS["joint"].names, np.array(record["bootstrap"]["draws"]).T, strict=True))
    assert np.allclose(draws["E_max"], 60) and np.allclose(draws["c"], 0.8) and np.ptp(draws["alpha"]) > 0
    assert not {"c", "E_max"} & {each["values"].get("name") for each in record.get("findings", [])}


def test_rolling_holdout_predicts_larger_runs_from_smaller(tmp_path, capsys):
    runs = dense_runs(n=90)
    path = fit_runs.write_csv(tmp_path / "runs.csv", runs)
    record = fit_law(tmp_path, path, "--form=chinchilla", "--holdout=compute:rolling", "--bootstrap=8")
    steps, flops = record["rolling"], 6 * runs.n_active * runs.n_tokens
    assert [step["factor"] for step in steps] == list(rolling.FACTORS) and "held_out" not in record
    assert printed(capsys).count("rolling hold-out, 1/") == len(steps)
    for step in steps:
        assert step["fitted"] == np.sum(flops <= flops.max() / step["factor"]) == 90 - step["runs"]
        assert 0.5 < step["coverage"] <= 1 and 0.002 < step["scatter"] < 0.005  # the form is right, the noise 0.3%
        assert abs(step["mean_error"]) <= step["rmse_log"] < 0.006
        more_than_scatter = max(
            step["rmse_log"] ** 2 - step["scatter"] ** 2, (step["drift_mean"] * step["log_compute_range"]) ** 2
        )
        assert (step["drift_rms"] * step["log_compute_range"]) ** 2 == pytest.approx(more_than_scatter)
    # the last step again, on a table of its own
    fitted = flops <= flops.max() / 10
    settings = Settings(starts=16, weight_decay=record["settings"]["weight_decay"])
    found = search.fit(prepare(FORMS["chinchilla"], subset(runs, fitted), settings))
    left = subset(runs, ~fitted)
    expected = errors(FORMS["chinchilla"].log_loss(found.params, left.columns), left)
    assert steps[-1]["rmse_log"] == pytest.approx(expected["rmse_log"], rel=1e-3)
    assert held_out(runs, record["settings"]["holdout"]).sum() == 0  # as the pictures ask again
    beyond = record["bootstrap"]["beyond"]
    assert beyond["training_flops"] == pytest.approx(flops.max()) and len(beyond["drift"]) == 8


def test_rolling_holdout_of_too_few_runs_is_refused():
    runs = dense_runs(n=16)
    with pytest.raises(UserError, match="the chinchilla law needs at least 15"):
        fit.law(runs.columns | dict(loss=runs.loss), "chinchilla", holdout="compute:rolling")


def hold_out(runs, drift_mean, drift_rms):
    """A rolling hold-out of so many runs."""
    others = dict.fromkeys(field.name for field in dataclasses.fields(HoldOut))
    return HoldOut(**others | dict(runs=runs, log_compute_range=1.5, drift_mean=drift_mean, drift_rms=drift_rms))


def test_what_rolling_holdouts_show_widens_the_draws_either_way():
    """Drifts are normal around zero, whichever side the hold-outs were off."""
    step = hold_out(runs=10, drift_mean=0.01, drift_rms=0.013)
    other_side = dataclasses.replace(step, drift_mean=-0.01)
    assert rolling.drift_std([step]) == rolling.drift_std([other_side]) == pytest.approx(0.013)
    drift = np.array(rolling.beyond(0.013, 1e20, draws=1000).drift)
    assert drift.mean() == pytest.approx(0, abs=1e-9) and np.sqrt(np.mean(drift**2)) == pytest.approx(0.013, rel=0.01)
    below = np.array(rolling.beyond(0.013, 1e20, draws=1000, only_below=True).drift)
    assert (below < 0).all() and np.sort(-below) == pytest.approx(np.sort(np.abs(drift)))
    far = hold_out(runs=90, drift_mean=-0.01, drift_rms=0.01)
    assert rolling.drift_std([step, far]) ** 2 == pytest.approx(0.1 * 0.013**2 + 0.9 * 0.01**2)


def test_weights_by_compute_or_a_column(tmp_path):
    runs = fit_runs.dense_runs(n=20, share=np.arange(1, 21))
    by_compute, by_column = (run_weights(runs, rule) for rule in ("compute^0.5", "column:share"))
    assert by_compute.mean() == by_column.mean() == pytest.approx(1)
    assert by_compute / by_compute[0] == pytest.approx(np.sqrt(runs.flops / runs.flops[0]))
    assert by_column / by_column[0] == pytest.approx(np.arange(1, 21))
    for rule in ("compute^3", "compute^-1", "compute"):
        with pytest.raises(UserError, match=r"compute\^POWER with a power up to 2"):
            run_weights(runs, rule)


def test_large_runs_below_the_law_are_told_wherever_it_is_used_beyond_them(tmp_path, capsys):
    """The largest runs' losses 2% lower: the law says so, and so do a plan and a prediction beyond its runs."""
    runs = dense_runs(n=90)
    path, flops = fit_runs.write_csv(tmp_path / "runs.csv", runs), runs.flops
    assert "beyond_runs" not in fit_law(tmp_path, path, "--form=chinchilla")
    runs.loss[flops > flops.max() / 4] *= 0.98
    path = fit_runs.write_csv(tmp_path / "runs.csv", runs)
    said = fit_law(tmp_path, path, "--form=chinchilla", "--bootstrap=8")["beyond_runs"]["text"]
    assert re.match(r"the \d+ runs of the last two doublings of \w+ lie \d\.\d\d% below this law on average", said)
    assert f"warning: {said}" in printed(capsys)
    law = f"--law={tmp_path}/law.json"
    for command in ("plan --flops=1e23", "predict --n_active=1e11 --n_tokens=1e12"):
        assert command_line.run([*command.split(), law]) == 0
        assert said in " ".join("".join(capsys.readouterr()).split())
    assert command_line.run(["predict", law, "--n_active=1e9", "--n_tokens=1e10"]) == 0
    assert said not in "".join(capsys.readouterr())
    out = f"--out={tmp_path}/predicted.csv"
    said = " ".join(fit_command.printed("predict", law, f"--runs={path}", out).split())
    count = re.search(r"(\d+) lie between the 10th and 90th percentile predicted for a run", said)
    assert 60 <= int(count[1]) <= 88


def test_the_worst_run_is_named(tmp_path, capsys):
    runs = dense_runs()
    runs.loss[17] *= 1.2
    path = fit_runs.write_csv(tmp_path / "runs.csv", runs, run=[f"jobs/{i}/branch-1" for i in range(60)])
    record = fit_law(tmp_path, path, "--form=chinchilla", "--holdout=largest-compute:3")
    worst = record["fitted"]["worst"]
    assert (worst["row"], worst["run"], worst["measured"]) == (19, "jobs/17/branch-1", pytest.approx(runs.loss[17]))
    assert worst["predicted"] == pytest.approx(worst["measured"] / 1.2, rel=0.02)
    out = record["held_out"]["worst"]
    assert out["row"] in (2 + np.argsort(-runs.n_active * runs.n_tokens)[:3])
    said = printed(capsys)
    assert f"the worst is row 19, jobs/17/branch-1: predicted {worst['predicted']:.4f}, measured" in said


SWEEPS = [((16, 32), 3), ((16, 24, 32), 3), ((16, 24, 32, 48), 3), ((16, 24, 32), 5)]  # 24, 36, 48 and 60 runs


@pytest.mark.parametrize("seed", range(40 if os.environ.get("JMOE_SOAK") == "1" else 2))
def test_small_sweeps_fit_with_default_flags(tmp_path, capsys, seed):
    widths, budgets = SWEEPS[seed % 4]
    budgets = [163_840 * 2**i for i in range(budgets)]
    path = fit_runs.write_csv(tmp_path / "runs.csv", fit_runs.sweep_runs(widths, budgets, noise=0.01, seed=seed))
    record = fit_law(tmp_path, path)
    assert 1e-9 < record["settings"]["weight_decay"] < 3e-6  # a tenth or a hundredth where it would cost more than 1%
    out, starts = printed(capsys), record["starts"]
    assert "a hundredth of the runs' variance, the default for so few runs" in out
    # of the default 128 starts all but the best are left where they fall behind, whatever they would have found
    said = "; starts followed to their end: {followed} of {tried}, {within_1_percent} of them to within 1% of it "
    assert said.format(**starts) in out and starts["tried"] == 128 > starts["followed"] >= starts["within_1_percent"]
    assert record["fitted"]["mean_relative_error"] < 0.015
    planned = command_line.run(["plan", f"--law={tmp_path}/law.json", "--flops=1e12", "--experts=1,2,4,8"])
    refused = [each["text"] for each in record["findings"] if each["code"] == "plan_refuses"]
    assert planned == 0 or refused, capsys.readouterr().err


def test_the_default_decay_does_not_bend_what_is_known_exactly(tmp_path):
    """60 runs without noise: the law comes back, default or not."""
    exact = fit_runs.sweep_runs(budgets=[163_840 * 2**i for i in range(5)], noise=0)
    record = fit_law(tmp_path, fit_runs.write_csv(tmp_path / "runs.csv", exact))
    assert record["fitted"]["max_relative_error"] < 1e-5 and record["settings"]["weight_decay"] < 1e-10
    assert record["coefficients"] == pytest.approx(fit_runs.TINY, rel=0.2)


def with_positions(gains):
    """A table of runs whose loss at 9-16 is below that at 3-4 by `gains`."""
    rows = []
    for i, gain in enumerate(gains):
        model = dict(n_active=1e5 * (1 + i), n_tokens=1e6 * (1 + i % 4), n_experts=1, loss=2.0)
        losses = dict(loss_1_2=2.6, loss_3_4=2.2, loss_5_8=2.1, loss_9_16=2.2 - gain)
        rows.append(model | losses | dict(run=f"jobs/{i}/branch-1"))
    return read_runs(read(rows), FORMS["chinchilla"].columns)


def test_runs_that_gain_far_more_from_the_text_before_are_named():
    (said,) = map(str, fit_warnings.transition(with_positions([0.02, 0.03, 0.21, 0.04, 0.05])))
    assert "1 of 5 runs" in said and "jobs/2/branch-1 (0.210) nats from loss_3_4 to loss_9_16" in said
    for gains in ([0.02, 0.03, 0.06, 0.04, 0.05], [0.20, 0.21, 0.25, 0.22, 0.23], [0.02, 0.03, 0.04]):
        assert fit_warnings.transition(with_positions(gains)) == []
    rows = [dict(n_active=1e5 * i, n_tokens=1e6, loss=2.0, loss_1_2=2.6, loss_3_4=2.2, loss_5_8=2.1) for i in (1, 2, 3)]
    rows[1]["loss_5_8"] = None  # no reason to refuse a table
    assert fit_warnings.transition(read_runs(read(rows), FORMS["chinchilla"].columns)) == []


@pytest.mark.parametrize("across", [2, 5, 20])
def test_a_transition_is_found_however_many_runs_are_across(across):
    """And gains that grow smoothly with compute are none."""
    rng = np.random.default_rng(across)
    noise = 0.01 * rng.normal(size=40)
    gains = 0.05 + 0.3 * (np.arange(40) >= 40 - across) + noise
    (said,) = map(str, fit_warnings.transition(with_positions(gains)))
    assert f"{across} of 40 runs gain far more" in said
    smooth = 0.05 + 0.3 * rng.uniform(size=40) + noise
    assert fit_warnings.transition(with_positions(smooth)) == []
