"""Plans that two ways of asking must agree on: budgets alone and in an array, chips and devices, paths of one file.

Axes: n budgets.
"""

import dataclasses

import fit_runs
import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.fitted_law.extrapolation import in_words
from fit.fitted_law.law_files import load
from fit.messages.units import amount
from fit.model.architecture import Model
from fit.planning import make_plan, make_problem
from fit.planning.context import other_budget
from fit.planning.inputs.options import PlanOptions
from fit.planning.recipe.make_recipe import recipe_of
from fit.planning.recipe.runs_recipe import peak_learning_rate
from fit.planning.search import by_hours, solver
from fit.planning.space import calibration, model_grid, size_speeds
from fit.render import tables
from fit.render.figures.draw import draw

LAW = "joint-moe-2025"


@pytest.mark.parametrize("n_experts", [1, 8])
@pytest.mark.parametrize("chips", ["A100:1", "H100:8"])
def test_more_flops_are_never_worse_and_a_budget_alone_is_that_of_an_array(chips, n_experts):
    """Up to budgets that no such chips ever give: then the chips bound the size, and only tokens grow."""
    law = load(LAW)
    problem = make_problem.problem_of(law, PlanOptions(flops=1e20, chips=chips), law.architecture)
    flops = np.geomspace(1e18, 1e30, 13)
    together = solver.best_models(problem.within(flops=flops), n_experts).loss
    alone = [float(solver.best_models(problem.within(flops=each), n_experts).loss) for each in flops.tolist()]
    np.testing.assert_array_equal(alone, together)
    assert np.all(np.diff(together) < 0)


def test_a_loss_within_reach_on_few_chips_is_reached():
    """The least FLOPs of a target are those at which the plan by FLOPs has that loss."""
    reached = fit.plan(LAW, target_loss=2.3, chips="A100:1", experts=(1,)).target.best
    again = fit.plan(LAW, flops=reached.flops, chips="A100:1", experts=(1,)).best
    assert again.loss == pytest.approx(2.3, abs=1e-6) and again.size_bound == "chips"


def test_where_text_runs_out_before_the_hours_speeds_decide_nothing():
    """Slower than modelled by any spread, the chips still read all tokens in a fraction of the hours."""
    plan = fit.plan(LAW, chips="H100:64", hours=2000, max_tokens=1e10, experts=(1, 8))
    for row in plan.odds.experts:
        assert row.n_tokens == [1e10, 1e10]
    assert plan.odds.speed_share < 0.02


@pytest.mark.parametrize("inference_tokens", [0.0, 3e12, 1e13, 2e13])
def test_a_draw_of_speed_is_as_many_more_hours(inference_tokens):
    """A draw chooses among the candidates of the plan, so it may lose a little more than a plan of so many hours, and
    never loses less but by what rounding tokens and batches makes."""
    law = load(LAW)
    options = PlanOptions(chips="H100:64", hours=24, inference_tokens=inference_tokens)
    problem = make_problem.problem_of(law, options, law.architecture)
    for speed in (0.9, 1.2, 1.5):
        for n_experts in (1, 32):
            of_hours = float(by_hours.best_models(problem.with_budget(24 * speed), n_experts).loss)
            drawn = by_hours.in_draws(problem, n_experts, np.array([speed]), {}).loss[0]
            if np.isfinite(of_hours) and np.isfinite(drawn):
                assert of_hours * (1 - 2e-3) <= drawn <= of_hours * 1.05


@pytest.mark.parametrize("inference_tokens", [2e13, 4e13])
def test_what_some_draws_cannot_train_has_the_loss_of_a_guess(inference_tokens):
    plan = fit.plan(LAW, chips="H100:64", hours=24, inference_tokens=inference_tokens)
    losses = [row.expected_loss for row in plan.odds.experts]
    assert np.all(np.isfinite(losses)) and max(losses) < np.log(plan.vocab_size)
    assert plan.odds.recommended == plan.odds.experts[int(np.argmin(losses))].n_experts


def test_the_hours_of_a_budget_have_its_inference_tokens():
    plan = fit.plan(LAW, flops=1e21, chips="H100:64", inference_tokens=1e12)
    assert plan.odds.budget_hours == pytest.approx(plan.clock.hours, rel=1e-9)


def test_a_plateau_is_one_by_hours_too():
    """Text that is read four times bounds both: more hours than that takes gain nothing, and build no larger model."""
    by_flops = fit.plan(LAW, flops=1e21, chips="H100:64", epochs=4, max_tokens=1e9)
    in_hours = fit.plan(LAW, hours=24, chips="H100:64", epochs=4, max_tokens=1e9)
    assert by_flops.best.size_bound == in_hours.best.size_bound == "plateau"
    assert in_hours.best.n_active == pytest.approx(by_flops.best.n_active, rel=0.25)


def test_more_hours_than_the_world_has_are_planned():
    assert fit.plan(LAW, hours=1e12, chips="H100:64").best.loss < fit.plan(LAW, hours=1e9, chips="H100:64").best.loss


def test_numbers_of_experts_that_are_built_alike_are_one():
    """By hours: else two rows of one model share its draws, and neither is often the best."""
    plan = fit.plan(LAW, hours=24, chips="H100:64", experts=(3, 4))
    assert [row.n_experts for row in plan.optima] == [4]
    assert [row.n_experts for row in plan.infeasible] == [3]
    alone = fit.plan(LAW, hours=24, chips="H100:64", experts=(3,))
    assert alone.buildable.n_experts == 4 and alone.best.loss == plan.best.loss


def skewed(law):
    """The law with ten draws, in three of which many experts are far worse, so that mean and median disagree."""
    draws = {name: np.full(10, value) for name, value in law.coefficients.items()}
    draws["gamma"] = draws["gamma"] * ([1] * 7 + [2, 2, 3])
    rows = np.stack([draws[name] for name in law.form.names], axis=1).tolist()
    return dataclasses.replace(law, bootstrap=dataclasses.replace(law.bootstrap, draws=rows))


def test_the_odds_are_of_the_number_of_experts_that_is_recommended():
    """By a budget the least expected loss decides, by a loss to reach the medians, at which it is reached."""
    law = skewed(load(LAW))
    by_budget = make_plan.best_plan(law, PlanOptions(flops=1e20))
    assert by_budget.odds.recommended == by_budget.best.n_experts != by_budget.odds.by_median
    by_target = make_plan.best_plan(law, PlanOptions(target_loss=2.6))
    assert by_target.odds.recommended == by_target.best.n_experts == by_target.odds.by_median
    first, second = (by_target.odds.row(e).expected_loss for e in (32, 16))
    assert f"choosing 16 saves {first - second:.4f} nats" in " ".join(str(by_target).split())
    assert by_target.odds.close_call == []


def test_a_cap_that_does_not_bind_costs_nothing():
    plan = make_plan.best_plan(skewed(load(LAW)), PlanOptions(flops=1e20, max_tokens=1e17))
    assert plan.loss_of_token_cap == 0


def test_a_mesh_of_devices_is_counted_in_chips():
    """jax sees two devices in a tpu7x, so a mesh of 8 devices needs 4 chips."""
    plan = fit.plan(LAW, flops=1e14, chips="tpu7x:4", mesh="expert:8", experts=(1, 8))
    mesh = plan.buildable.cost.mesh
    assert mesh.data * mesh.expert * mesh.model == 8
    assert mesh.chips <= 4


def test_a_config_by_another_path_to_it_is_emitted_alike(tmp_path, monkeypatch):
    monkeypatch.chdir(command_line.__file__.rsplit("/", 2)[0])
    configs = []
    for base in ("configs/joint_moe.py", "./configs/joint_moe.py"):
        path = tmp_path / "planned.py"
        flags = ["--flops=1e18", "--chips=H100:8", f"--base_config={base}", f"--emit_config={path}"]
        assert command_line.run(["plan", f"--law={LAW}", *flags]) == 0
        fields = [line for line in path.read_text().splitlines() if line.startswith("    config.")]
        configs.append(fields)
        path.unlink()
    assert configs[0] == configs[1]
    assert any("mesh.expert" in line for line in configs[0])


def test_a_config_that_is_not_the_recipes_says_that_it_was_not_timed(tmp_path):
    path = tmp_path / "planned.py"
    flags = ["--flops=1e18", "--chips=H100:8", "--base_config=configs/pretrain.py", f"--emit_config={path}"]
    assert command_line.run(["plan", f"--law={LAW}", *flags]) == 0
    text = " ".join(path.read_text().split())
    assert "Batches, mesh and remat are those of configs/pretrain.py, not those that the plan was timed with." in text


@pytest.mark.parametrize("law", [LAW, "fine-grained-2024"])
def test_the_best_by_hours_costs_what_the_model_to_build_costs(law):
    """It is that model."""
    plan = fit.plan(law, chips="H100:64", hours=100)
    built = plan.buildable.cost.to_dict()
    best = plan.best.cost.to_dict()
    assert best == {name: built[name] for name in best}


@pytest.mark.parametrize("count, flops", [(63, 1e21), (61, 1e22)])
def test_by_flops_models_are_priced_on_the_chips_that_train_them(count, flops):
    """Where fewer of them are faster: a machine of 8 that is not whole stands idle."""
    plan = fit.plan(LAW, chips=f"H100:{count}", flops=flops, dollars_per_hour=2, verbose=True)
    said = " ".join(str(plan).split())
    assert plan.chips.used < count and plan.best.chips < count
    built = plan.buildable
    assert plan.best.speed.mfu[1] == pytest.approx(built.speed.mfu[1], rel=0.15)
    assert plan.best.cost.training_dollars == pytest.approx(built.cost.training_dollars, rel=0.15)
    for row in plan.optima:
        chips = count if row.chips is None else row.chips
        hours = row.training_flops / (row.speed.mfu[1] * chips * 989e12) / 3600
        assert (row.cost.training_hours, row.cost.training_dollars) == pytest.approx(
            (hours, 2 * chips * hours), rel=1e-3
        )
        if row.chips is not None:
            assert f"{row.speed.mfu[1]:.3g} (E = {row.n_experts} on {row.chips})" in said


def test_speeds_of_ones_own_are_of_the_models_that_the_grid_has(tmp_path):
    """A law that does not say how its runs were trained has the recipe of published models above 60M parameters."""
    law = load(fit_runs.write_demo_law(tmp_path / "law.json", base_config=None))
    law = dataclasses.replace(law, runs=dataclasses.replace(law.runs, ranges=law.ranges | {"n_active": [1e6, 1e12]}))
    problem = make_problem.problem_of(law, PlanOptions(hours=10, chips="H100:8"), law.architecture)
    (published,) = (models for models in model_grid.models_of(problem, 1.0) if models.as_published)
    row = int(np.argmax(published.n_active > 3e8))
    width = int(published.shape.d_model[row])
    speeds = tmp_path / "speeds.csv"
    speeds.write_text(f"d_model,n_experts,tokens_per_second\n{width},1,1e4\n{width},1,1e4\n")
    (run, _) = calibration.measured_runs(problem, str(speeds))
    same_width = published.shape.d_model == width
    shapes = [published.of(np.array(i)) for i in np.flatnonzero(same_width)]
    assert run.shape in [dataclasses.replace(shape, n_blocks=run.shape.n_blocks) for shape in shapes]


def test_a_given_mfu_is_that_of_all_chips():
    """Hours become FLOPs at it, and FLOPs hours: also where the layout that is built leaves some chips idle."""
    plan = fit.plan(LAW, chips="H100:63", hours=100, mfu=0.4)
    assert plan.chips.used < 63
    assert plan.best.cost.training_hours == pytest.approx(100)
    assert plan.buildable.cost.training_hours == pytest.approx(100, rel=1e-6)
    assert "on 63 x H100 at MFU 0.4" in " ".join(str(plan).split())


def test_a_narrow_model_is_priced_on_the_chips_of_its_speed():
    """It has no layout. Its hours are those of fewer chips, and so are its dollars and its energy."""
    plan = fit.plan(LAW, chips="H100:1024", flops=1e16, dollars_per_hour=2)
    built = plan.buildable
    assert built.layout is None and plan.chips.used < 1024
    assert built.cost.training_dollars == pytest.approx(2 * plan.chips.used * built.cost.training_hours)
    assert plan.energy.kwh == pytest.approx(built.cost.training_hours * plan.chips.used * plan.energy.watts / 1000)
    assert built.cost.training_dollars == pytest.approx(plan.best.cost.training_dollars, rel=0.01)


def test_runs_of_the_pretraining_config_have_their_own_recipe(tmp_path):
    """Within their sizes a plan has it, not that of published models: norms are counted and batches are kept alike."""
    law = fit_runs.write_demo_law(tmp_path / "law.json", base_config="configs/pretrain.py")
    path = tmp_path / "planned.py"
    assert command_line.run(["plan", f"--law={law}", "--flops=1e12", f"--emit_config={path}"]) == 0
    built = fit.plan(law, flops=1e12).buildable
    assert not built.recipe_laws
    assert built.memory_bytes == 2 * built.exact_parameters  # in bfloat16, without a cache


@pytest.mark.parametrize("budget", [dict(flops=1e22), dict(hours=100, chips="H100:64")])
def test_what_lies_outside_is_counted_as_for_the_loss(budget):
    """Also where the vocabulary is built larger than it is asked for: 12,800 for 12,700."""
    plan = fit.plan(LAW, shape="vocab_size:12700", **budget)
    law = load(LAW)
    for model in (plan.best, plan.buildable):
        (size,) = (row["value"] for row in model.extrapolation if row["column"] == "n_active")
        assert float(law.predict(size, model.n_tokens, model.n_experts)) == pytest.approx(model.loss, rel=1e-9)


@pytest.mark.parametrize("flops", [1e18, 1e22])
def test_memory_is_of_the_weights_that_the_recipe_trains(flops):
    """Published models have other norms than the paper's, in models of the paper's shape too."""
    built = fit.plan(LAW, flops=flops, shape="paper", kv_tokens=1000).buildable
    assert built.recipe.as_published == (flops == 1e22)
    cache = 2 * 1000 * built.n_blocks * built.d_model
    assert built.memory_bytes == 2 * (built.exact_parameters + cache)


@pytest.mark.parametrize("vocab_size", [8_192, 128_256])
def test_within_the_runs_sizes_a_plan_has_their_recipe(vocab_size):
    """Sizes are counted with the law's own vocabulary, for the recipe as for what is said to be outside."""
    recipes = set()
    for flops in (1e20, 7.943e20, 1e22):
        built = fit.plan(LAW, flops=flops, shape=f"vocab_size:{vocab_size}").buildable
        sizes = {row["column"] for row in built.extrapolation if row["value"] > row["high"]}
        is_beyond = bool(sizes & {"n_active", "n_total", "n_tokens"})
        if built.shape.n_active - built.shape.embedding_and_head > 6e7:  # smaller ones have the runs' recipe anyway
            assert bool(built.recipe_laws) == is_beyond
            recipes.add(is_beyond)
    assert recipes == {True, False}


def test_on_a_plateau_the_size_lies_within_the_interval_of_its_draws():
    """Where larger models gain nothing, draws of the speed choose the smallest one as the plan does."""
    plan = fit.plan(LAW, chips="H100:64", hours=2000, max_tokens=1e10, epochs=4, experts=(1, 8))
    for row in plan.optima:
        low, high = plan.odds.row(row.n_experts).n_active
        assert row.size_bound == "plateau" and low <= row.n_active <= high


def test_experts_of_a_recipe_are_those_of_the_trainer(tmp_path):
    """A law's own rates are fitted to the column of runs.csv, whatever the plan's law counts."""
    law = load(LAW)
    narrow = dataclasses.replace(law.architecture, granularity=4)
    model = Model(narrow, 8, 8)
    assert model.shape.n_experts == 32
    rate, _ = peak_learning_rate(law, "configs/joint_moe.py", model)
    assert recipe_of(law, model, 1e9, as_published=False).learning_rate == rate


def test_a_comparison_within_a_plan_knows_the_speeds_that_the_plan_knows():
    """The laws beside a model to start from have speeds on the chips, as those of fit compare."""
    options = dict(like="Qwen3-0.6B", chips="H100:8", flops=1e20)
    beside = {row["law"]: row for row in fit.plan(LAW, **options).to_dict()["like"]["laws"]}
    compared = {row["law"]: row for row in fit.compare([LAW, "sparsity-2025"], **options).to_dict()["laws"]}
    for name, row in compared.items():
        assert row["speed"] == beside[name]["speed"] and row["clock"] == beside[name]["clock"]


@pytest.mark.parametrize("name", [LAW, "fine-grained-2024", "comprehensive-2025", "sparsity-2025"])
def test_tables_and_figures_say_what_a_plan_says_of_the_laws_range(name):
    """Also of columns that no row has, such as n_total."""
    law = load(name)
    plan = fit.plan(name, flops=1e21)
    said = {row.n_experts: in_words(row.extrapolation) for row in plan.optima}
    of_table = tables.rows_of("1", law, law.architecture, law.experts, (1e21,))
    assert {row["n_experts"]: row["outside_fitted_range"] for row in of_table} == said
    _, columns = draw("2a", law, law.architecture, law.experts, (1e21,))
    for row in plan.optima:
        of_number = np.array(columns["n_experts"]) == row.n_experts
        nearest = np.argmin(np.abs(np.log(np.array(columns["n_active"])[of_number] / row.n_active)))
        assert np.array(columns["extrapolated"])[of_number][nearest] == bool(row.extrapolation)


def test_intervals_of_optima_lie_outside_a_laws_range_by_its_own_counts():
    """Table 5 of a larger vocabulary: without the rows of embedding and head that the law's runs had not."""
    law = load(LAW)
    larger = law.shaped(vocab_size=10**6)
    (row,) = tables.rows_of("5", law, larger, (8,), (1e21,))
    size = row["n_active_high"]
    counted = size - 2 * (10**6 - 50257) * float(larger.d_model(size, 8))
    assert row["outside_fitted_range"].startswith(f"n_active {amount(counted / law.ranges['n_active'][1])} times above")


def test_a_comparison_says_speeds_where_no_model_is_feasible_under_the_other_budget():
    """The speed is the best model's, whatever hours would choose in place of FLOPs."""
    compared = fit.compare([LAW], flops=1e20, chips="H100:8", experts=(1, 8), verbose=True)
    (plan,) = compared.laws
    without = dataclasses.replace(compared, laws=[dataclasses.replace(plan, clock=None)])
    said = [line for line in str(compared).splitlines() if "tokens/s (" in line or "speed on these chips" in line]
    assert len(said) == 2 and all(line in str(without).splitlines() for line in said)


def test_without_a_speed_of_the_other_number_there_is_no_other_budget(monkeypatch):
    problem = fit.plan(LAW, flops=1e20, chips="H100:8", experts=(1, 8)).problem
    monkeypatch.setattr(size_speeds, "speed_of_size", lambda *_: None)
    assert other_budget._comparison(problem, 1.0, 8, 1, 1e8, 1e9) is None


def test_hours_in_place_of_flops_choose_as_a_plan_by_these_hours():
    """Which has no 3 experts where it has 4, of which it builds both."""
    clock = fit.plan(LAW, flops=1e20, chips="H100:64", experts=(3, 4)).clock
    by_hours = fit.plan(LAW, hours=clock.hours, chips="H100:64", experts=(3, 4))
    assert [row.n_experts for row in by_hours.infeasible] == [3]
    assert clock.by_time == by_hours.odds.by_median == 4


def test_a_comparison_says_which_width_of_experts_is_left_out():
    options = dict(flops=1e20, shape="used:1,used:4", experts=(2,))
    (compared,) = fit.compare(["sparsity-2025"], **options).laws
    planned = [row for row in fit.plan("sparsity-2025", **options).findings if row.code == "width_left_out"]
    assert planned and [row for row in compared.findings if row.code == "width_left_out"] == planned


@pytest.mark.parametrize(
    "budget", [dict(flops=1e21), dict(hours=24), dict(flops=1e16), dict(flops=1e21, mfu=0.4), dict(flops=1e16, mfu=0.4)]
)
def test_more_chips_than_a_mesh_divides_are_planned_as_those_that_it_divides(budget):
    """What is left over stands idle. A given MFU is that of all chips, so there the hours are others."""
    options = dict(mesh="expert:8", dollars_per_hour=2, **budget)
    more = fit.plan(LAW, chips="H100:63", **options)
    divided = fit.plan(LAW, chips="H100:56", **options)
    assert more.chips.n_used == divided.chips.n_used
    built = more.buildable
    assert built.shape == divided.buildable.shape and built.n_tokens == divided.buildable.n_tokens
    assert built.cost.mesh == divided.buildable.cost.mesh and built.cost.step_bytes == divided.buildable.cost.step_bytes
    assert built.speed == divided.buildable.speed
    if "mfu" not in budget:
        assert built.cost.training_hours == divided.buildable.cost.training_hours
        assert built.cost.training_dollars == divided.buildable.cost.training_dollars
