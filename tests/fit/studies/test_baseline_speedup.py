"""How much compute, or how many hours, variants save against a baseline in the same table."""

import fit_command
import helpers
import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.studies.speedup.baseline_speedup import baseline_speedup
from fit.studies.speedup.results import BaselineSpeedup

TABLES = helpers.ROOT / "benchmarks" / "tables" / "mixtures"
# of issue 5387 of marin-community/marin, in hours: {(d_model, n_experts): factor}
MARIN = {
    (512, 128): 1.026,
    (512, 256): 0.994,
    (768, 128): 1.136,
    (768, 256): 1.170,
    (1024, 128): 1.144,
    (1024, 256): 1.252,
    (1280, 128): 1.201,
}


def judged(*flags):
    return fit_command.answer("speedup", *flags)


def test_marins_figures_follow_from_their_table():
    """From Python as from the command line."""
    flags = [f"--runs={TABLES}/marin_experts.csv", "--baseline=n_experts=64,top_k=4", "--fix=c=1.6,b=0.0941"]
    options = dict(baseline={"n_experts": 64, "top_k": 4}, fix={"c": 1.6, "b": 0.0941})
    result = fit.speedup(runs=f"{TABLES}/marin_experts.csv", by="time", **options)
    assert isinstance(result, BaselineSpeedup) and result.by == "time"
    assert repr(result).startswith("<speedup: For the same losses")
    assert result.to_dict() == judged(*flags, "--by=time")
    assert fit_command.printed("speedup", *flags, "--by=time") == f"{result}\n"
    rows = {(int(row.run["d_model"]), int(row.run["n_experts"])): row for row in result.runs}
    for model, factor in MARIN.items():
        assert rows[model].factor == pytest.approx(factor, abs=1e-3)
        low, high = rows[model].interval
        assert low < factor < high and high / low < 1.2
    by_flops = fit.speedup(runs=f"{TABLES}/marin_experts.csv", **options)
    of_256 = [row.factor for row in by_flops.runs if row.run["n_experts"] == "256"]
    assert min(of_256) == pytest.approx(1.158, abs=2e-3) and max(of_256) == pytest.approx(1.381, abs=2e-3)


def test_the_fast_tracks_mixture_saves_flops_and_perhaps_hours():
    flags = [f"--runs={TABLES}/marin_fast_track.csv", "--baseline=variant=dense", "--fix=c=1.6"]
    by_flops = judged(*flags)
    by_time = judged(*flags, "--by=time")
    assert by_flops["interval"][0] > 4 and by_time["unit"] == "hours"
    assert by_time["interval"][0] < 1 < by_time["factor"] < by_flops["factor"]
    assert "beyond the baseline's runs" in by_time["warnings"][0]


def synthetic(rng=None, scatter=0.0, times=1.5):
    """Runs of a baseline at six budgets, and variants for whose losses it needs `times` the compute, between these."""
    flops = np.geomspace(1e18, 1e21, 6)
    between = np.sqrt(flops[1:-1] * flops[2:])
    costs = np.concatenate([flops, between])
    reducible = 60.0 * np.concatenate([flops, times * between]) ** -0.09
    if rng is not None:
        reducible *= np.exp(scatter * rng.standard_normal(len(reducible)))
    return dict(flops=costs, recipe=["base"] * 6 + ["new"] * 4, loss=1.5 + reducible)


@pytest.mark.parametrize("fix", [{}, {"c": 1.5}, {"c": 1.5, "b": 0.09}])
def test_a_saving_is_found_whatever_is_known(fix):
    result = baseline_speedup(fit.read(synthetic()), {"recipe": "base"}, fix=fix)
    assert result.factor == pytest.approx(1.5, rel=5e-3 if not fix else 1e-6)
    assert [row.cost for row in result.runs] == synthetic()["flops"][6:].tolist()
    assert result.frontier["c"] == pytest.approx(1.5, abs=0.02)


def test_eight_in_ten_intervals_hold_the_truth():
    rng = np.random.default_rng(0)
    held = []
    for seed in range(120):
        table = fit.read(synthetic(rng, scatter=0.004))
        result = baseline_speedup(table, {"recipe": "base"}, fix={"c": 1.5}, seed=seed)
        held.append(result.interval[0] < 1.5 < result.interval[1])
    assert 0.7 < np.mean(held) < 0.9


def test_hours_and_speeds_say_the_same():
    """Runs of equal FLOPs at half the speed take twice the hours."""
    flops = np.geomspace(1e18, 1e21, 5)
    loss = 1.5 + 60.0 * np.concatenate([flops, 3 * flops]) ** -0.09
    recipe = ["base"] * 5 + ["new"] * 5
    speed = np.repeat([1e6, 5e5], 5)
    by_speed = dict(flops=np.tile(flops, 2), recipe=recipe, loss=loss, tokens_per_second=speed)
    by_hours = dict(hours=np.tile(flops, 2) / 1e18 * 1e6 / speed, recipe=recipe, loss=loss)
    for table in (by_speed, by_hours):
        result = baseline_speedup(fit.read(table), {"recipe": "base"}, by="time", fix={"c": "1.5"})
        assert result.factor == pytest.approx(1.5, rel=1e-6)
    assert result.unit == "hours" and "1.50 times the hours" in " ".join(str(result).split())


def test_rows_without_a_loss_are_skipped(tmp_path, capsys):
    lines = [f"{flops},{recipe},{loss}" for flops, recipe, loss in zip(*synthetic().values(), strict=True)]
    (tmp_path / "runs.csv").write_text("\n".join(["flops,recipe,loss", *lines, "1e20,new,"]))
    flags = ["speedup", f"--runs={tmp_path}/runs.csv", "--baseline=recipe=base"]
    assert command_line.run(flags) == 0
    printed = capsys.readouterr()
    assert "1.50 times the compute of 4 runs" in " ".join(printed.out.split())
    assert "warning: rows without a loss, which are skipped: 1" in printed.err
    assert len(printed.out.splitlines()) <= 10 and max(map(len, printed.out.splitlines())) <= 120
    table = fit_command.printed(*flags, "--verbose")
    assert "80% interval" in table and "80% interval" not in printed.out
    assert table.startswith(printed.out.splitlines()[0])


def test_too_few_runs_of_the_baseline_are_said():
    few = {name: list(values)[:2] + list(values)[6:] for name, values in synthetic().items()}
    with pytest.raises(fit.UserError, match=r"has 2 runs, expected at least 4 at different budgets, or fix=c=VALUE"):
        baseline_speedup(fit.read(few), {"recipe": "base"})
    rising = synthetic() | dict(loss=synthetic()["loss"][::-1])
    with pytest.raises(fit.UserError, match="does not fall"):
        baseline_speedup(fit.read(rising), {"recipe": "base"}, fix={"c": "1"})
