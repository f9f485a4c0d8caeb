"""Maps from loss to accuracy: a planted curve is recovered, and a planted shift by E is found where there is one.

The references are the logistic function of scipy and its curve_fit, and runs that are drawn from known curves.
"""

import dataclasses
import json

import fit_command
import helpers
import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.special import expit
from scipy.stats import f as f_distribution

import fit
from fit import __main__ as command_line
from fit.errors import UserError
from fit.fitted_law.law_files import load
from fit.planning.context import expected_tasks
from fit.table.table import Table, write

FLOOR, TOP, MIDDLE, WIDTH = 0.25, 0.85, 2.6, 0.3


def logistic(loss, floor, top, middle, width):
    """The curve, as scipy writes the logistic function."""
    return floor + (top - floor) * expit((middle - loss) / width)


def drawn(n_runs=60, scatter=0.01, shift=0.0, seed=0, **columns):
    """A table of runs whose accuracies scatter around the curve.

    Args:
      n_runs: of them.
      scatter: standard deviation.
      shift: nats that a doubling of the experts adds to the loss that the accuracy follows.
      seed: of the draws.
      columns: others.
    """
    generator = np.random.default_rng(seed)
    n_experts = generator.choice([1, 8, 64], n_runs)
    n_active = 10 ** generator.uniform(7, 9, n_runs)
    loss = 1.6 + 30 / n_active**0.18 - 0.03 * np.log(n_experts) + generator.normal(0, 0.1, n_runs)
    accuracy = logistic(loss + shift * np.log2(n_experts), FLOOR, TOP, MIDDLE, WIDTH)
    noisy = np.clip(accuracy + generator.normal(0, scatter, n_runs), 0, 1)
    table = dict(n_active=n_active, n_tokens=20 * n_active, n_experts=n_experts, loss=loss, acc_task=noisy)
    return {name: [*map(float, values)] for name, values in table.items()} | columns


@pytest.fixture(scope="module")
def maps():
    """Of runs around the curve."""
    return fit.tasks(drawn(), holdout="none", bootstrap=60)


def test_a_planted_curve_is_recovered(maps):
    """Within the intervals at losses that the runs have, as scipy's own fit says, and bounded far outside."""
    table = drawn()
    (task,) = maps.tasks
    loss = np.array(table["loss"])
    reference, _ = curve_fit(logistic, loss, table["acc_task"], p0=(0.2, 0.8, 2.5, 0.3))
    grid = np.linspace(loss.min(), loss.max(), 9)
    np.testing.assert_allclose(task.predict(grid), logistic(grid, *reference), atol=0.006)
    np.testing.assert_allclose(task.predict(grid), logistic(grid, FLOOR, TOP, MIDDLE, WIDTH), atol=0.01)
    for at in grid:
        (expected,) = maps.expect(float(at))
        low, high = expected.interval
        assert low < logistic(at, FLOOR, TOP, MIDDLE, WIDTH) < high
        assert high - low == pytest.approx(2 * 1.28 * 0.01, rel=0.5)
    for far in (1e-3, 0.5, 50.0, 1e6):
        (expected,) = maps.expect(far)
        assert 0 <= expected.interval[0] <= expected.accuracy <= expected.interval[1] <= 1
    assert task.scatter == pytest.approx(0.01, rel=0.3) and task.p_flat < 1e-10


def test_an_interval_of_the_loss_widens_that_of_the_accuracy(maps):
    (exact,) = maps.expect(MIDDLE)
    (wide,) = maps.expect(MIDDLE, loss_interval=(MIDDLE - 0.2, MIDDLE + 0.2))
    assert exact.accuracy == wide.accuracy
    ends = logistic(np.array([MIDDLE + 0.2, MIDDLE - 0.2]), FLOOR, TOP, MIDDLE, WIDTH)
    np.testing.assert_allclose(wide.interval, ends, atol=0.02)
    assert exact.interval[1] - exact.interval[0] < 0.1


def test_intervals_hold_new_runs_as_often_as_they_say(maps):
    """80% of accuracies of runs drawn anew, at losses of the fitted ones."""
    new = drawn(n_runs=150, seed=2)
    inside = []
    for loss, accuracy in zip(new["loss"], new["acc_task"], strict=True):
        (expected,) = maps.expect(loss)
        inside.append(expected.interval[0] <= accuracy <= expected.interval[1])
    assert 0.7 < np.mean(inside) < 0.92


def test_a_planted_shift_by_experts_is_found():
    planted = 0.02
    maps = fit.tasks(drawn(shift=planted), holdout="none", bootstrap=60)
    (task,) = maps.tasks
    assert task.shift.is_shifted and task.shift.interval[0] < planted < task.shift.interval[1]
    assert task.shift.nats == pytest.approx(planted, abs=0.006)
    for n_experts in (1, 8, 64):
        expected = logistic(2.5 + planted * np.log2(n_experts), FLOOR, TOP, MIDDLE, WIDTH)
        assert float(task.predict(2.5, n_experts)) == pytest.approx(expected, abs=0.015)
    assert "E shifts the map" in str(maps)


def test_no_shift_is_found_where_there_is_none():
    """In at most one of eight tables, at a level of 5%; the map then does not read E."""
    found = 0
    for seed in range(8):
        (task,) = fit.tasks(drawn(seed=seed), holdout="none", bootstrap=10).tasks
        found += task.shift.is_shifted
        if not task.shift.is_shifted:
            assert task.coefficients["shift"] == 0 and float(task.predict(2.5, 1)) == float(task.predict(2.5, 64))
    assert found <= 1


def test_the_f_test_by_hand():
    """p-values of the shift and of a flat task, from sums of squares that scipy's fits leave."""
    table = drawn(shift=0.004, scatter=0.02)
    maps = fit.tasks(table, holdout="none", bootstrap=10)
    loss, accuracy, log_experts = (np.array(table[name]) for name in ("loss", "acc_task", "n_experts"))
    log_experts = np.log(log_experts)

    def shifted(inputs, floor, top, middle, width, shift):
        return logistic(inputs[0] + shift * inputs[1], floor, top, middle, width)

    start = (FLOOR, TOP, MIDDLE, WIDTH)
    without, _ = curve_fit(logistic, loss, accuracy, p0=start)
    with_shift, _ = curve_fit(shifted, (loss, log_experts), accuracy, p0=(*start, 0.0))
    before = np.sum((accuracy - logistic(loss, *without)) ** 2)
    after = np.sum((accuracy - shifted((loss, log_experts), *with_shift)) ** 2)
    degrees = len(loss) - 5
    p_value = f_distribution.sf((before - after) / after * degrees, 1, degrees)
    assert maps.tasks[0].shift.p_value == pytest.approx(p_value, rel=0.3)


def test_a_task_that_stays_at_chance_does_not_follow_the_loss():
    generator = np.random.default_rng(3)
    table = drawn()
    table["acc_piqa"] = [float(x) for x in 0.51 + generator.normal(0, 0.01, len(table["loss"]))]
    maps = fit.tasks(table, holdout="none", bootstrap=20)
    piqa = maps.tasks[1]
    assert piqa.task == "acc_piqa" and piqa.p_flat > 0.05 and piqa.chance_from == "known" and piqa.chance == 0.5
    assert "1 of 2 tasks do not follow the loss in these runs (F test): acc_piqa" in str(maps)
    for loss in (2.3, 2.5, 4.0):
        assert float(piqa.predict(loss)) == pytest.approx(0.51, abs=0.05)
    low, high = maps.expect(min(table["loss"]) - 0.4)[-1].interval  # below all runs, it may stay there or not
    assert low < 0.52 and high > 0.6


def test_chance_levels_are_given_known_or_fitted():
    table = drawn()
    known = {("acc_hellaswag" if name == "acc_task" else name): values for name, values in table.items()}
    for columns, options, chance_from, error in (
        (table, dict(chance={"acc_task": 0.25}), "given", 0),
        (table, {}, "fitted", 0.03),
        (known, {}, "known", 0.02),
    ):
        (task,) = fit.tasks(columns, holdout="none", bootstrap=10, **options).tasks
        assert task.chance_from == chance_from and task.coefficients["floor"] == pytest.approx(0.25, abs=error)


def test_the_runs_of_the_largest_compute_check_the_others():
    """The error is that of a fit to the other runs; a law that bends there later is caught by the stretch."""
    table = drawn()
    maps = fit.tasks(table, holdout="largest-compute:6", bootstrap=40)
    order = np.argsort(table["n_active"])
    others = {name: [values[i] for i in order[:-6]] for name, values in table.items()}
    of_others = fit.tasks(others, holdout="none", bootstrap=40)
    errors = [float(of_others.tasks[0].predict(table["loss"][i])) - table["acc_task"][i] for i in order[-6:]]
    assert maps.held_out.count == 6 and maps.held_out.error == pytest.approx(np.mean(np.abs(errors)), rel=1e-3)
    assert maps.held_out.bias == pytest.approx(np.mean(errors), rel=1e-3, abs=1e-5)
    assert maps.held_out.error < 0.03 and maps.held_out.inside >= 0.5 and maps.stretch < 2

    jump = np.array(table["acc_task"])
    jump[order[-6:]] += 0.15
    jumping = fit.tasks(
        table | dict(acc_task=[*map(float, np.clip(jump, 0, 1))]), holdout="largest-compute:6", bootstrap=40
    )
    assert jumping.held_out.inside < 0.5 and jumping.stretch > 2
    lowest = min(table["loss"])
    widths = [np.diff(each.expect(lowest)[0].interval)[0] for each in (maps, jumping)]
    assert widths[1] > 1.5 * widths[0]


def test_runs_of_one_trunk_are_drawn_together():
    """Each run written four times as branches of one trunk leaves the intervals as they were."""
    table = drawn(n_runs=24)
    alone = fit.tasks(table | dict(run=[f"jobs/a{i}/branch-1" for i in range(24)]), holdout="none", bootstrap=80)
    repeated = {name: [value for value in values for _ in range(4)] for name, values in table.items()}
    repeated["run"] = [f"jobs/a{i}/branch-{branch}" for i in range(24) for branch in range(4)]
    four_times = fit.tasks(repeated, holdout="none", bootstrap=80)
    widths = [np.diff(maps.tasks[0].shift.interval)[0] for maps in (alone, four_times)]
    assert widths[1] == pytest.approx(widths[0], rel=0.35)
    assert four_times.tasks[0].shift.p_value == pytest.approx(alone.tasks[0].shift.p_value, abs=0.1)


def test_the_average_is_that_of_the_tasks_and_missing_accuracies_count_for_theirs_alone():
    generator = np.random.default_rng(5)
    table = drawn()
    noise = generator.normal(0, 0.02, 60)
    table["acc_other"] = [min(1.0, x + float(e)) for x, e in zip(table["acc_task"], noise, strict=True)]
    maps = fit.tasks(table, bootstrap=20)
    average, first, second = maps.expect(2.4)
    assert average.task == "average" and average.accuracy == pytest.approx((first.accuracy + second.accuracy) / 2)
    assert maps.average_held_out.count == 6 and maps.held_out.count == 12
    assert len(maps.to_frame()) == 2
    table["acc_other"][::3] = [None] * 20
    maps = fit.tasks(table, holdout="none", bootstrap=10)
    assert [task.n_runs for task in maps.tasks] == [60, 40]


def test_a_task_that_only_the_large_runs_have_is_mapped_unchecked():
    table = drawn()
    large = np.argsort(table["n_active"])[-8:]
    table["acc_late"] = [x if i in large else None for i, x in enumerate(table["acc_task"])]
    maps = fit.tasks(table, holdout="largest-compute:6", bootstrap=10)
    assert maps.tasks[0].held_out.count == 6 and maps.tasks[1].held_out is None and maps.tasks[1].n_runs == 8
    assert maps.average_held_out is None and maps.held_out.count == 6


def test_without_sizes_the_lowest_losses_are_held_out():
    table = drawn()
    bare = {name: table[name] for name in ("loss", "acc_task")}
    maps = fit.tasks(bare, bootstrap=10)
    assert maps.holdout == "lowest-loss:6" and maps.held_out.count == 6 and maps.shift is None
    assert "whether E shifts the map stays open" in str(maps)
    with pytest.raises(UserError, match="needs the columns n_active and n_tokens"):
        fit.tasks(bare, holdout="largest-compute:6")


@pytest.fixture
def written(tmp_path):
    """The path of a table, and of the maps that the command makes of it."""
    path, out = write_rows(tmp_path / "runs.csv", drawn(shift=0.02)), tmp_path / "tasks.json"
    assert command_line.run(["tasks", f"--runs={path}", f"--out={out}", "--bootstrap=20"]) == 0
    return path, out


def write_rows(path, columns):
    """Writes columns as csv; None as an empty cell."""
    write(Table("runs", columns, list(range(len(columns["loss"])))), str(path))
    return path


def test_a_plan_prints_what_its_model_is_expected_to_reach(written):
    path, out = written
    printed = fit_command.printed("tasks", f"--runs={path}", "--bootstrap=20")
    assert len(printed.splitlines()) <= 10 and max(map(len, printed.splitlines())) <= 120
    maps = fit.tasks(path, bootstrap=20)
    plan = fit.plan("joint-moe-2025", flops=1e20, task_map=out)
    again = fit.plan("joint-moe-2025", flops=1e20, task_map=maps)
    (row,) = plan.tasks
    assert row.accuracy == pytest.approx(again.tasks[0].accuracy, rel=1e-4)
    built = plan.buildable
    assert row.accuracy == pytest.approx(float(maps.tasks[0].predict(built.loss, built.n_experts)), rel=1e-4)
    assert f"acc_task {row.accuracy:.3f} ({row.interval[0]:.3f} to {row.interval[1]:.3f})" in " ".join(
        str(plan).split()
    )
    assert plan.to_dict()["tasks"] == [row.to_dict()]
    assert fit.plan("joint-moe-2025", flops=1e20).tasks is None
    assert "tasks" not in fit.plan("joint-moe-2025", flops=1e20)


def test_narrow_experts_are_counted_as_tables_of_runs_count_them():
    """Whether a model is built or not: the law counts eight of them as one."""
    maps = fit.tasks(drawn(shift=0.02), holdout="none", bootstrap=20)
    law = load("joint-moe-2025")
    plan = fit.plan(law.name, flops=1e20, shape="granularity:8", experts=(8,))
    assert (plan.best.n_experts, plan.buildable.n_experts) == (8, 64)
    for model in (plan.best, plan.buildable):
        (row,) = expected_tasks.of_model(model, law, maps)["tasks"]
        assert row.accuracy == pytest.approx(float(maps.tasks[0].predict(model.loss, 64)), rel=1e-12)


def test_a_map_of_another_text_is_refused(written):
    _, out = written
    maps = json.loads(out.read_text())
    out.write_text(json.dumps(maps | dict(corpora=["0" * 16])))
    law = str(helpers.ROOT / "results" / "second" / "law.json")
    with pytest.raises(UserError, match="they do not compare"):
        fit.plan(law, flops=1e15, task_map=out)


NO_SHARE = ", expected a share from 0 to 1"


@pytest.mark.parametrize("change, flags, words", [
    (dict(), ["--tasks=piqa"], "--tasks=piqa: PATH has no such column; columns found: n_active, n_tokens"),
    (dict(acc_task=[45.2] * 60), [], f"row 2, column acc_task: found '45.2'{NO_SHARE}; an accuracy in"),
    (dict(acc_task=["high"] * 60), [], f"column acc_task: found 'high'{NO_SHARE}"),
    (dict(acc_task=[0.2] * 60), ["--chance=acc_task:0.25"], "no run is above chance: the best has 0.2, chance is 0.25"),
    (dict(acc_task=[""] * 59 + ["0.5"]), [], "column acc_task: 1 run has an accuracy, expected at least 6"),
    (dict(), ["--chance=acc_other:0.5"], "--chance=acc_other: expected one of the tasks: acc_task"),
    (dict(), ["--chance=acc_task:25"], "--chance=acc_task:25: expected an accuracy from 0 to below 1"),
    (dict(), ["--holdout=largest-compute:57"], "leaves 3 runs, expected at least 6"),
    (dict(), ["--holdout=some"], "--holdout=some: expected none, lowest-loss:N"),
    (dict(loss=[None] * 60), [], "column loss"),
    (dict(), ["--bootstrap=2"], "--bootstrap=2: expected a whole number from 10 up"),
])  # fmt: skip
def test_mistakes_end_in_one_sentence(tmp_path, change, flags, words):
    path = write_rows(tmp_path / "runs.csv", drawn() | change)
    error = fit_command.refused("tasks", f"--runs={path}", *flags)
    assert words.replace("PATH", str(path)) in error and error.count("\n") == 1


def test_a_file_that_holds_no_maps_is_refused(written, tmp_path):
    """Nor is a name that a terminal obeys."""
    _, out = written
    obeyed = out.read_text().replace("acc_task", "acc_\\u001b[2J")
    for text in ("", "[]", '{"version": 1}', '{"version": 2, "tasks": []}', obeyed):
        out.write_text(text)
        with pytest.raises(UserError, match="expected a file of fit tasks out"):
            fit.plan("joint-moe-2025", flops=1e20, task_map=out)
    with pytest.raises(UserError, match="cannot be read"):
        fit.plan("joint-moe-2025", flops=1e20, task_map=tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot be read"):  # before any search, also one that finds no model
        fit.plan("joint-moe-2025", flops=1, task_map=tmp_path / "none.json")


def test_intervals_grow_below_the_lowest_loss(maps):
    """By growth times the nats, on both sides; not at all above the lowest loss."""
    maps = dataclasses.replace(maps, stretch=1.0)
    growing = dataclasses.replace(maps, growth=3.0)
    for below in (-0.1, 0.0, 0.1):
        (plain,) = maps.expect(maps.loss[0] - below)
        (wide,) = growing.expect(maps.loss[0] - below)
        factor = 1 + 3 * max(below, 0)
        ends = [plain.accuracy + factor * (end - plain.accuracy) for end in plain.interval]
        assert wide.interval == pytest.approx(ends) and wide.accuracy == plain.accuracy


def test_growth_is_what_small_runs_ask_for():
    """The 80th percentile over larger runs of (distance - 1) / nats, by hand; none where the map is the right one."""
    table = drawn(n_runs=120)
    flops = 6 * np.array(table["n_active"]) * np.array(table["n_tokens"])
    loss = np.array(table["loss"])
    is_small = flops <= flops.max() / 10
    bent = table | dict(acc_task=np.where(is_small, table["acc_task"], np.array(table["acc_task"]) - 0.2).tolist())
    maps = fit.tasks(bent)
    small = {
        name: [value for value, keep in zip(values, is_small, strict=True) if keep] for name, values in bent.items()
    }
    of_small = fit.tasks(small, holdout="none")
    asked = []
    for i in np.flatnonzero(~is_small & (loss < of_small.loss[0])):
        (row,) = of_small.expect(loss[i], n_experts=table["n_experts"][i])
        low, high = row.interval
        error = bent["acc_task"][i] - row.accuracy
        room = high - row.accuracy if error > 0 else row.accuracy - low
        asked.append((abs(error) / room - 1) / (of_small.loss[0] - loss[i]))
    assert maps.growth == pytest.approx(min(np.quantile(asked, 0.8), 10), rel=0.2) and maps.growth > 1
    assert fit.tasks(table).growth < maps.growth
