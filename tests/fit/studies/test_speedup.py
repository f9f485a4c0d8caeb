"""How many times the compute a law needs for the losses of other runs."""

import dataclasses
import json

import fit_command
import fit_runs
import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.fitted_law.parts import Growth, Scatter
from fit.planning.search import best_size


def variant(law, times, grows=1.0):
    """Runs at the law's best sizes of 1e20 to 1e22 FLOPs whose losses it needs `times` times the compute for at 1e21,
    that times `grows` at ten times the compute."""
    flops = np.geomspace(1e20, 1e22, 9)
    m, mu, n, nu, *_ = reduced = law.chinchilla_coefficients_at(1.0)
    size, tokens = best_size.compute_optimal(m, mu, n, nu, flops)
    loss = reduced.loss(*best_size.compute_optimal(m, mu, n, nu, flops * times * grows ** np.log10(flops / 1e21)))
    return dict(n_active=size, n_tokens=tokens, n_experts=[1] * 9, loss=loss)


@pytest.mark.parametrize("name", ["joint-moe-2025", "chinchilla-refit-2024"])
def test_runs_that_save_compute_are_told_by_how_much(name):
    law = dataclasses.replace(fit.load(name), bootstrap=None)
    result = fit.speedup(law, variant(law, 1.7, grows=1.2)).to_dict()
    assert result["factor"] == pytest.approx(1.7, rel=1e-3) and result["per_tenfold"] == pytest.approx(1.2, rel=1e-3)
    one = fit.speedup(law, {column: values[:1] for column, values in variant(law, 1.7).items()})
    assert str(one).startswith(f"For the same losses {name} needs 1.70 times the compute of 1 run.\n")
    first = result["runs"][0]
    assert first["factor"] == pytest.approx(1.7 / 1.2, rel=1e-3)
    assert first["law_flops"] == pytest.approx(1.7e20 / 1.2, rel=1e-3) and first["interval"] is None
    assert result["answer"] == (
        f"For the same losses {name} needs 1.70 times the compute of 9 runs; it grows with compute, x 1.20 for "
        "ten times as much."
    )


def test_intervals_have_the_draws_and_the_noise_of_runs(tmp_path):
    law = fit.load("chinchilla-refit-2024")
    record = dict(form="chinchilla", coefficients=law.coefficients, noise=dict(total=0.01))
    record["bootstrap"] = dict(form="errors", percentiles=[10, 90], draws=[list(law.coefficients.values())] * 200)
    (tmp_path / "law.json").write_text(json.dumps(record))
    runs = variant(law, 1.5)
    table = fit_runs.runs_of("made", runs["n_active"], runs["n_tokens"], np.ones(9), runs["loss"])
    path = fit_runs.write_csv(tmp_path / "variant.csv", table)
    flags = ["speedup", f"--law={tmp_path}/law.json", f"--runs={path}"]
    result = fit_command.answer(*flags)
    alone, together = (np.log(row["interval"]) for row in (result["runs"][4], result))
    assert together[0] < np.log(1.5) < together[1]
    # the mean of nine runs is three times as certain as one
    assert np.ptp(alone) / np.ptp(together) == pytest.approx(3, rel=0.25)
    assert "whether that grows or falls with compute is open" in result["answer"]


def test_hours_count_how_fast_the_runs_train():
    """Runs that save 1.7 times the compute and train at 0.8 times the speed save 1.36 times the hours."""
    law = fit.load("joint-moe-2025")
    speeds = dict(tokens_per_second=[8e5] * 8 + [4e5], law_tokens_per_second=[1e6] * 8 + [5e5])
    by_flops = fit.speedup("joint-moe-2025", variant(law, 1.7))
    found = fit.speedup("joint-moe-2025", variant(law, 1.7) | speeds, by="time")
    assert found.factor == pytest.approx(0.8 * by_flops.factor) and found.by == "time"
    for row, of_flops in zip(found.runs, by_flops.runs, strict=True):
        assert row["law_flops"] == pytest.approx(of_flops["law_flops"])
        assert row["factor"] == pytest.approx(0.8 * of_flops["factor"]) and row["speed_ratio"] == pytest.approx(0.8)
    assert "needs 1.36 times the hours" in found.answer
    alone = {name: values for name, values in speeds.items() if name != "law_tokens_per_second"}
    with pytest.raises(fit.UserError, match="law_tokens_per_second"):
        fit.speedup("joint-moe-2025", variant(law, 1.7) | alone, by="time")
    with pytest.raises(fit.UserError, match="by='clock': expected one of flops, time"):
        fit.speedup("joint-moe-2025", variant(law, 1.7), by="clock")


def test_what_has_no_speedup_is_said():
    runs = variant(fit.load("chinchilla-refit-2024"), 1.0) | dict(loss=[0.5] * 9)
    with pytest.raises(fit.UserError, match="reaches none of these losses"):
        fit.speedup("chinchilla-refit-2024", runs)
    with pytest.raises(fit.UserError, match="knows no n_tokens"):
        fit.speedup("clark-2022-rl", runs)
    with pytest.raises(fit.UserError, match="does not say what compute a loss takes"):
        fit.speedup("sparsity-2025", runs)
    with pytest.raises(fit.UserError, match="fine-grained-dense-2024: counts sizes without the embedding"):
        fit.speedup("fine-grained-dense-2024", runs)


@pytest.mark.parametrize("vocab_size", [257, 32_000])
def test_runs_that_end_as_predicted_save_nothing(tmp_path, vocab_size):
    """The law's best models of some budgets, with an embedding of another vocabulary, and the losses of `fit predict`:
    their residuals are 0, so the law needs the same compute."""
    law = fit.load(fit_runs.write_demo_law(tmp_path / "law.json"))
    flops = np.geomspace(1e11, 1e13, 5)
    m, mu, n, nu, *_ = law.chinchilla_coefficients_at(4.0)
    size, tokens = best_size.compute_optimal(m, mu, n, nu, flops)
    d_model = np.full(5, 16)
    more = 2 * (vocab_size - 257) * d_model
    runs = dict(n_active=size + more, n_tokens=tokens, n_experts=[4] * 5, d_model=d_model, vocab_size=[vocab_size] * 5)
    losses = fit.predict(law, runs).columns["predicted_loss"]
    result = fit.speedup(law, runs | dict(loss=losses))
    assert [row.factor for row in result.runs] == pytest.approx([1.0] * 5, rel=1e-4)
    assert [row.flops for row in result.runs] == pytest.approx(flops)
    assert repr(result).startswith("<speedup: For the same losses")


def test_the_experts_of_a_run_are_its_own():
    law = fit.load("chinchilla-refit-2024")
    result = fit.speedup(law, variant(law, 1.7) | dict(n_experts=[8] * 9))
    assert {row.n_experts for row in result.runs} == {8.0} and "E = 8" in str(result)
    assert result.factor == pytest.approx(1.7, rel=1e-3)


def test_small_runs_have_their_own_scatter():
    """In draws of one law the interval is that of the run's own error, as `fit predict` has it."""
    law = fit.load("chinchilla-refit-2024")
    row = tuple(law.coefficients.values())
    law = dataclasses.replace(law, bootstrap=fit_runs.bootstrap([row] * 400))
    runs = variant(law, 1.0)
    noise = Scatter(total=0.002, growth=Growth(training_flops=1e22, power=0.5))
    widths = []
    for scatter in (noise, dataclasses.replace(noise, growth=None)):
        result = fit.speedup(dataclasses.replace(law, noise=scatter), runs)
        widths.append([np.ptp(np.log(run.interval)) for run in result.runs])
    expected = np.sqrt(1e22 / np.array([run.flops for run in result.runs]))
    assert np.divide(*widths) == pytest.approx(expected, rel=0.1)


def test_other_runs_are_read_by_the_flags_that_are_typed(tmp_path):
    """A law keeps the flags of its own table; the runs of `fit speedup` and `fit predict` are others."""
    path = fit_runs.write_demo_csv(tmp_path / "runs.csv", state=["finished"] * 35 + ["crashed"])
    fit_runs.fit_law(tmp_path, path, "--where=state=finished")
    variant_path = fit_runs.write_demo_csv(tmp_path / "variant.csv", seed=1)
    assert command_line.run(["speedup", f"--law={tmp_path}/law.json", f"--runs={variant_path}"]) == 0
    out = f"--out={tmp_path}/predicted.csv"
    assert command_line.run(["predict", f"--law={tmp_path}/law.json", f"--runs={variant_path}", out]) == 0
    asked = ["speedup", f"--law={tmp_path}/law.json", f"--runs={path}", "--json"]
    for more, count in (([], 36), (["--where=state=finished"], 35)):
        assert len(json.loads(fit_command.printed(*asked, *more))["runs"]) == count
