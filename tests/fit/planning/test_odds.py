"""How sure plans are: draws, how often each number of experts is the best, regret, what to measure, votes of laws."""

import dataclasses
import json
import math

import fit_runs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fit
from fit.fitted_law.law_files import load
from fit.model import efficiencies
from fit.model.architecture import PAPER
from fit.planning import make_plan
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.uncertainty import joint_draws, measurement
from fit.table.runs import Errors

JOINT = "joint-moe-2025"
NO_SPREAD = dict(between_sources=0.0, within_software=0.0, within_source=0.0)


def with_draws(name, draws=None, **changed):
    """A published law with draws; ten of itself unless they are given. changed: coefficients of a draw."""
    law = load(name)
    rows = draws or [list((law.coefficients | changed).values())] * 10
    return dataclasses.replace(law, bootstrap=fit_runs.bootstrap(rows))


def spread_out(name, scale, n=60, names=("delta", "omega"), seed=0):
    """A published law whose draws differ in some coefficients, by shares of them."""
    law = load(name)
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        rows.append([v * (1 + scale * rng.normal() * (key in names)) for key, v in law.coefficients.items()])
    return with_draws(name, rows)


def asked(law, spreads, hours=24.0, chips="H100:8", **limits):
    """The problem of a plan by hours, with other fields of the calibration."""
    parsed = PlanOptions(chips=chips, hours=hours, **limits)
    (architecture,) = parsed.architectures(law)
    constraints = parsed.constraints()
    calibration = efficiencies.of_our_trainer(constraints.chips.kind, constraints.chips.count)
    return Problem(law, architecture, constraints, law.experts, dataclasses.replace(calibration, **spreads))


def how_sure(plan):
    """The line of a plan's text on that, unwrapped."""
    said = " ".join(str(plan).split())
    return said[said.index("How sure:") : said.index("Extrapolates")]


# The draws.


@pytest.mark.parametrize("n", [1, 2, 7, 200])
def test_normals_are_symmetric_quantiles(n):
    """The same numbers with their signs turned; those of 200 have the spread of a standard normal distribution."""
    numbers = joint_draws.normals(n, 3)
    assert np.sort(numbers) == pytest.approx(-np.sort(numbers)[::-1], abs=1e-12)
    if n == 200:
        assert np.std(numbers) == pytest.approx(1, abs=0.01)
        assert np.mean(np.abs(numbers) < 0.6745) == 0.5
        assert abs(np.corrcoef(numbers, joint_draws.normals(n, 4))[0, 1]) < 0.15


def test_speeds_have_the_spreads_of_the_model_of_speed():
    """Of one model: source and run. Two mixtures have a part in common, which a dense model has not."""
    calibration = dataclasses.replace(efficiencies.calibrated(), between_sources=0.2, within_source=0.1)
    n = 20_000
    dense, eight, sixteen = joint_draws.log_speeds(calibration, [1, 8, 16], n)
    for speeds in (dense, eight, sixteen):
        assert np.std(speeds) == pytest.approx(math.hypot(0.2, 0.1), rel=0.02)
    assert np.std(eight - sixteen) == pytest.approx(0.1 * math.sqrt(2 * (1 - joint_draws.KIND_SHARE)), rel=0.03)
    assert np.std(eight - dense) == pytest.approx(0.1 * math.sqrt(2), rel=0.03)


def test_the_draws_of_a_number_do_not_depend_on_the_others():
    calibration = efficiencies.calibrated()
    few = joint_draws.log_speeds(calibration, [8, 32], 200)
    many = joint_draws.log_speeds(calibration, [1, 2, 8, 16, 32, 64], 200)
    assert np.array_equal(few, many[[2, 4]])


@pytest.mark.parametrize("n_law", [7, 150, 200, 450])
def test_the_laws_draws_are_used_evenly(n_law):
    """Each as often as another, or once more; of more than there is room for, every so many."""
    law = spread_out(JOINT, 0.01, n_law)
    by_flops = Problem(law, PAPER, Constraints(flops=1e22))
    in_hours = Problem(law, PAPER, Constraints(hours=24.0), calibration=efficiencies.calibrated())
    draws = joint_draws.of_problem(in_hours, [1, 8])
    counts = np.bincount(draws.rows, minlength=n_law)
    assert draws.n == len(draws.rows) == 200 and counts.max() - counts.min() <= 1
    assert np.array_equal(draws.coefficients["delta"], law.draws["delta"][draws.rows])
    assert joint_draws.of_problem(by_flops, [1, 8]).n == n_law


# What plans say.


@pytest.mark.parametrize("limits", [dict(chips="H100:8", hours=24), dict(flops=1e22), dict(flops=1e22, memory_gb=40)])
def test_frequencies_sum_to_draws_and_the_chosen_has_the_least_regret(limits):
    plan = fit.plan(spread_out(JOINT, 0.05), **limits)
    found = plan.odds
    assert sum(row.best_in_draws for row in found.experts) == found.draws == (200 if "hours" in limits else 60)
    chosen = found.row(found.recommended)
    assert plan.best.n_experts == found.recommended
    for row in found.experts:
        assert chosen.regret[0] <= row.regret[0] + 1e-15 and chosen.expected_loss <= row.expected_loss + 1e-15
        assert row.regret[0] - chosen.regret[0] == pytest.approx(row.expected_loss - chosen.expected_loss, abs=1e-12)
        assert 0 <= row.regret[0] and row.loss[0] <= row.loss[1] and row.regret_share[0] >= 0
    mixtures = sum(row.best_in_draws for row in found.experts if row.n_experts > 1)
    assert found.mixture_in_draws == mixtures
    assert found.drawn == (["law", "speed"] if "hours" in limits else ["law"])


@pytest.mark.parametrize("budget, limits", [("flops", dict(flops=1e22)), ("hours", dict(chips="H100:8", hours=24))])
def test_the_share_of_the_budget_that_a_choice_costs_makes_up_for_it(budget, limits):
    """With so much more of it, another number of experts is as good as the recommended one."""
    law = spread_out(JOINT, 0.003)
    odds = fit.plan(law, **limits, experts=[4, 8, 16]).odds
    first = odds.row(odds.recommended)
    for row in odds.experts:
        behind = row.expected_loss - first.expected_loss
        more = (1 + row.regret_share[0]) / (1 + first.regret_share[0])
        again = fit.plan(law, **limits | {budget: limits[budget] * more}, experts=[row.n_experts]).odds
        assert again.experts[0].expected_loss == pytest.approx(first.expected_loss, abs=0.2 * behind + 1e-5)


def test_without_spread_everything_is_the_median():
    problem = asked(with_draws(JOINT), NO_SPREAD)
    plan = make_plan.plan_within(dataclasses.replace(problem, experts=(1, 8, 32)))
    found = plan.odds
    assert found.recommended == found.by_median == min(plan.optima, key=lambda row: row.loss).n_experts
    assert found.row(found.recommended).best_in_draws == found.draws == 200
    for row, optimum in zip(found.experts, plan.optima, strict=True):
        assert row.loss == pytest.approx([optimum.loss] * 2, rel=1e-12)
        assert row.n_active == [optimum.n_active] * 2 and row.n_tokens == [optimum.n_tokens] * 2
        assert row.regret == pytest.approx([optimum.loss - plan.best.loss] * 2, abs=1e-12)
    assert found.speed_share is None and found.measurement is None


def test_a_law_without_draws_is_at_its_median_and_says_so():
    by_flops = fit.plan("sparsity-2025", flops=1e22, memory_gb=80)
    assert by_flops.odds.drawn == [] and by_flops.odds.draws == 0
    assert by_flops.odds.recommended == by_flops.odds.by_median
    assert all(row.best_in_draws == 0 for row in by_flops.odds.experts)
    why = load("sparsity-2025").no_draws
    assert f"no interval, as {why}" in how_sure(by_flops) and " of 0 " not in how_sure(by_flops)
    in_hours = fit.plan("sparsity-2025", chips="H100:8", hours=24, experts=[4, 16])
    assert in_hours.odds.drawn == ["speed"] and f"only speeds are drawn, as {why}" in how_sure(in_hours)


def test_one_draw_of_ten_may_decide_the_mean():
    """In which mixtures lose a lot: both are said, and in how many draws a dense plan is the best."""
    law = load(JOINT)
    usual = list(law.coefficients.values())

    def lost(times):
        return list((law.coefficients | dict(omega=law.coefficients["omega"] * times)).values())

    plan = fit.plan(with_draws(JOINT, [usual] * 9 + [lost(3)]), flops=1e22, memory_gb=80)
    median = fit.plan(law, flops=1e22, memory_gb=80).odds.by_median
    assert plan.odds.by_median == median > plan.odds.recommended == plan.best.n_experts
    assert f"by the medians {median} is best" in how_sure(plan)
    assert plan.odds.row(median).best_in_draws == 9
    plan = fit.plan(with_draws(JOINT, [usual] * 9 + [lost(9)]), flops=1e22, experts=[1, 16])
    assert plan.odds.recommended == 1 and plan.odds.mixture_in_draws == 9
    assert "a dense model in 1 of 10 draws; 16 experts in 9; " in how_sure(plan)


@pytest.mark.parametrize("law, experts", [("chinchilla-2022", None), (JOINT, [8])])
def test_one_number_of_experts_is_never_called_settled(law, experts):
    """Neither that of a law of dense models, nor one that was asked for."""
    plan = fit.plan(with_draws(law), flops=1e22, experts=experts)
    assert plan.odds.settled is None and plan.odds.kind is None and plan.odds.second is None
    assert "one number of experts was compared" in how_sure(plan) and "choosing" not in how_sure(plan)


def test_a_close_call_is_named_with_what_sets_it_apart():
    """4 and 8 experts whose losses differ by 9e-6 nats within 80 GB, and not by their memory."""
    limits = dict(flops=1e23, memory_gb=80, kv_tokens=16384, inference_tokens=1e12)
    for law in (JOINT, with_draws(JOINT)):
        plan = fit.plan(law, **limits)
        assert sorted(plan.odds.close_call) == [4, 8] and plan.odds.kind == "mixture"
        assert set(plan.odds.differ) == {"n_tokens", "inference_flops_per_token"} and plan.odds.bound == "memory"
        assert "a close call: choosing" in how_sure(plan) and "tokens and FLOPs of serving" in how_sure(plan)
        assert plan.odds.measurement is None and not plan.odds.settled
    assert fit.plan(with_draws(JOINT), flops=1e22).odds.settled is True


def test_draws_that_disagree_make_it_undecided(tmp_path):
    """Draws of the experts' coefficients: in some a dense model is the best. All by brute force."""
    path = fit_runs.write_demo_law(tmp_path / "law.json")
    record = json.loads((tmp_path / "law.json").read_text())
    rng = np.random.default_rng(1)
    law = record["coefficients"]
    draws = [[v + (0.25 * rng.normal() if name == "delta" else 0) for name, v in law.items()] for _ in range(40)]
    record["bootstrap"] = dict(form="errors", percentiles=[10, 90], draws=draws)
    (tmp_path / "law.json").write_text(json.dumps(record))
    plan = fit.plan(path, flops=2e12)
    losses = []
    for draw in draws:
        one = dict(record, coefficients=dict(zip(law, draw, strict=True)))
        one.pop("bootstrap")
        (tmp_path / "one.json").write_text(json.dumps(one))
        optima = fit.plan(str(tmp_path / "one.json"), flops=2e12, experts=list(load(path).experts)).optima
        losses.append([o["loss"] for o in optima])
    losses = np.array(losses)
    assert plan.odds.kind == "undecided" and plan.odds.settled is False
    assert plan.odds.recommended == load(path).experts[int(losses.mean(axis=0).argmin())]
    for i, row in enumerate(plan.odds.experts):
        regret = losses[:, i] - losses.min(axis=1)
        assert row.best_in_draws == np.sum(losses.argmin(axis=1) == i)
        assert row.regret[0] == pytest.approx(regret.mean(), rel=1e-9)
        assert row.regret[1] == pytest.approx(np.percentile(regret, 90, method="weibull"), rel=1e-9)


# What to measure.


@given(
    mean=st.floats(-2, 2),
    known=st.lists(st.floats(-2, 2), min_size=1, max_size=20),
    unknown=st.lists(st.floats(-2, 2), min_size=1, max_size=20),
)
def test_a_measurement_never_makes_a_choice_worse(mean, known, unknown):
    """Knowing nothing leaves the better of the two shares; knowing all leaves no doubt; signs do not matter."""
    known, unknown = np.array(known), np.array(unknown)
    everything = (known[:, None] + unknown).ravel()
    blind = measurement.sure_after(mean, np.zeros(1), everything)
    share = np.mean(mean + everything > 0)
    assert blind == pytest.approx(max(share, 1 - share))
    assert blind <= measurement.sure_after(mean, known, unknown) + 1e-12
    assert measurement.sure_after(mean, everything, np.zeros(1)) == 1
    away_from_ties = np.abs(mean + everything).min() > 0
    if away_from_ties:
        turned = measurement.sure_after(-mean, -known, -unknown)
        assert measurement.sure_after(mean, known, unknown) == pytest.approx(turned)


def test_what_is_measured_is_what_decides():
    """Where speeds alone are open, an hour of both settles it. Where the law alone is, so do runs."""
    problem = asked(with_draws(JOINT), dict(within_source=0.3), chips="H100:64", hours=240.0)
    plan = make_plan.plan_within(dataclasses.replace(problem, experts=(8, 16)))
    found = plan.odds
    assert found.settled is False and found.speed_share == pytest.approx(1)
    assert found.measurement.of == "speeds" and found.measurement.settles
    assert found.measurement.hours == 2 and found.measurement.dollars is None
    assert "An hour of both on these chips would settle it" in how_sure(plan)
    errors = Errors(runs=270, rmse_nats=0.0, mean_relative_error=0.0, max_relative_error=0.0)
    drawn = dataclasses.replace(spread_out(JOINT, 0.06), fitted=errors)
    by_law = fit.plan(drawn, flops=1e22, memory_gb=80, experts=[8, 16])
    assert by_law.odds.settled is False and not by_law.odds.close_call
    assert by_law.odds.speed_share == 0 and by_law.odds.measurement.of == "runs"
    assert f"{by_law.odds.measurement.runs} more runs for the law" in how_sure(by_law)


# Laws vote.


def test_votes_are_shares_and_spread_is_within_and_between():
    """Three laws of one form: of 60 draws that differ, of ten that do not, and without draws."""
    drawn, same, without = spread_out(JOINT, 0.05), with_draws(JOINT), dataclasses.replace(load(JOINT), bootstrap=None)
    laws = [dataclasses.replace(law, name=name) for name, law in dict(a=drawn, b=same, c=without).items()]
    shape = dict(vocab_size=50_257, width_per_block=64)
    found = fit.compare(laws, flops=1e22, shape=shape)
    of_laws = [answer.votes for answer in found.laws]
    assert [of_law.draws for of_law in of_laws] == [60, 10, 0]
    assert all(sum(row.share for row in of_law.experts) == pytest.approx(1) for of_law in of_laws)
    assert of_laws[0].log_spread["n_experts"] > 0
    assert of_laws[1].experts == of_laws[2].experts and of_laws[1].experts[0].share == 1
    assert sum(row.share for row in found.votes.experts) == pytest.approx(1) and found.votes.laws == 3
    alike = fit.compare(laws[1:], flops=1e22, shape=shape).votes
    assert alike.with_draws == 1 and [row.between for row in alike.spread] == pytest.approx([1, 1, 1])
    assert alike.spread[0].within == pytest.approx(1)
    assert fit.compare(laws[:1], flops=1e22, shape=shape).votes is None
    other = dataclasses.replace(load("comprehensive-2025"), bootstrap=None)
    different = fit.compare([without, other], flops=1e22, memory_gb=80)
    (of_experts,) = (row for row in different.votes.spread if row.column == "n_experts")
    chosen = [answer.n_experts for answer in different.laws]
    assert chosen[0] != chosen[1] and of_experts.within is None
    assert of_experts.between == pytest.approx(math.exp(np.std(np.log(chosen), ddof=1)))


def test_a_law_far_beyond_its_compute_is_shown_and_does_not_count():
    result = fit.compare(["jmoe-bytes-2026", JOINT], flops=1e22, shape=dict(vocab_size=50257, width_per_block=64))
    assert {row.law for row in result.laws} == {"jmoe-bytes-2026", JOINT}
    assert not [a for a in result.agreement if "jmoe-bytes-2026" in (a.low_law, a.high_law)]
    assert "1 of 1 laws of mixtures prefer" in str(result)


def test_silicon_that_nobody_measured_has_a_wider_range():
    known, unknown = (efficiencies.of_our_trainer(kind, 64) for kind in ("v5p", "tpu7x"))
    logs = [math.log(value) for value in known.products.values()]
    between = math.sqrt(sum((x - sum(logs) / len(logs)) ** 2 for x in logs) / (len(logs) - 1))
    assert unknown.between_sources == pytest.approx(math.hypot(known.between_sources, between), rel=1e-9)
    assert unknown.within_source == known.within_source
