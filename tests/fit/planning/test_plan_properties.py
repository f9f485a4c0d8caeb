"""What must hold of plans on chips, on grids of questions: monotone, honest about hours, and the best there is."""

import dataclasses
import functools
import itertools
import math
import random

import fit_runs
import numpy as np
import pytest

import fit
from fit.fitted_law.law_files import load
from fit.model import efficiencies, hardware
from fit.model.architecture import PAPER
from fit.model.chips import CHIPS
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from fit.model.step_cost import step_cost
from fit.planning.inputs import grid
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.recipe import rates
from fit.planning.search import by_hours, solver
from fit.planning.uncertainty import joint_draws

JOINT = "joint-moe-2025"
SAME = 1 + 1e-9  # rounding of a loss


def best_of(problem, n_experts):
    """The best candidate of a problem by hours with a number of experts; None where there is none."""
    return by_hours.best_models(problem, n_experts).candidates[0]


def asked(chips, hours, layouts, **limits):
    """The problem of a plan by hours on a grid of candidates."""
    law = load(JOINT)
    parsed = PlanOptions(chips=chips, hours=hours, **limits)
    (architecture,) = parsed.architectures(law)
    limits = parsed.constraints()
    calibration = efficiencies.of_our_trainer(limits.chips.kind, limits.chips.count)
    return Problem(law, architecture, limits, law.experts, calibration, layouts)


def never_worse(losses):
    """Whether each of the losses is at most those before it."""
    return all(later <= earlier * SAME for earlier, later in itertools.pairwise(losses))


# More of anything is never worse.


@functools.cache
def drawn_law():
    """The joint law with 50 draws around it."""
    law = load(JOINT)
    rng = np.random.default_rng(0)
    rows = [[value * (1 + 0.01 * rng.normal()) for value in law.coefficients.values()] for _ in range(50)]
    return dataclasses.replace(law, bootstrap=fit_runs.bootstrap(rows))


ON_16 = dict(chips="H100:16", hours=100)
MORE = {
    "chips": [dict(chips=f"H100:{count}", hours=240) for count in (48, 50, 51, 56, 57, 63, 64, 65, 72)],
    "hours": [dict(chips="H100:16", hours=float(h)) for h in (*np.geomspace(0.01, 100, 4), *np.linspace(235, 245, 5))],
    "memory": [ON_16 | dict(memory_gb=gb) for gb in (2, 10, 40, 80, 640)],
    "tokens": [ON_16 | dict(max_tokens=tokens) for tokens in np.geomspace(1e9, 1e12, 5)],
    "tokens that are not served": [ON_16 | dict(inference_tokens=tokens) for tokens in (1e12, 1e11, 1e10, 0)],
}


@pytest.mark.parametrize("what", MORE)
def test_more_of_anything_is_never_worse(what):
    """Neither by the medians nor over the draws, which are the same for all questions."""
    plans = [fit.plan(drawn_law(), experts=[8, 32], **question) for question in MORE[what]]
    by_medians = [min(row.loss for row in plan.optima) for plan in plans]
    expected = [plan.odds.row(plan.odds.recommended).expected_loss for plan in plans]
    for losses in (by_medians, expected):
        assert never_worse(losses) and losses[-1] < losses[0]


# a grid on which a question takes hundredths of a second
COARSE = grid.Grid(
    widths=tuple(range(256, 8193, 256)), most_depths=2, models=(1, 2), batches=(1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
)


@pytest.mark.parametrize("what", ["chips", "hours", "memory", "tokens"])
def test_more_is_never_worse_at_random(what):
    """Six questions at random, with six amounts of one thing each, ascending."""
    rng = random.Random(what)
    n_falls = 0
    for _ in range(6):
        kind = rng.choice(["H100", "H200", "B200", "v5e", "v5p"])
        count = rng.randint(4, 100)
        hours = 10 ** rng.uniform(0, 3)
        e = rng.choice([1, 4, 32])
        losses = []
        for share in sorted(10 ** rng.uniform(-1, 0.5) for _ in range(6)):
            question = {
                "chips": dict(chips=f"{kind}:{max(1, round(count * share))}", hours=hours),
                "hours": dict(chips=f"{kind}:{count}", hours=hours * share),
                "memory": dict(chips=f"{kind}:{count}", hours=hours, memory_gb=30 * share),
                "tokens": dict(chips=f"{kind}:{count}", hours=hours, max_tokens=1e11 * share),
            }
            found = best_of(asked(layouts=COARSE, **question[what]), e)
            losses.append(math.inf if found is None else found.loss)
        assert never_worse(losses)
        n_falls += losses[-1] < losses[0]
    assert n_falls >= 3


def test_idle_chips_are_said_and_ties_go_to_fewer():
    """Of 61 chips no mesh divides most widths; on few tokens few chips are as good as all."""
    plan = fit.plan(JOINT, chips="H100:61", hours=240, experts=[8])
    mesh = plan.buildable.cost.mesh
    assert mesh.data * mesh.expert * mesh.model == plan.chips.used < 61
    assert f"{plan.chips.used} of your 61 x H100" in " ".join(str(plan).split())
    assert 235 < plan.buildable.cost.training_hours <= 240 * SAME
    capped = fit.plan(JOINT, chips="H100:64", hours=240, experts=[1], max_tokens=1e9, memory_gb=0.3)
    assert capped.best.n_tokens == 1e9 and capped.chips.used == 1


# Nothing is better than the best.

LESS = grid.Grid(widths=(768, 2048, 3072), most_depths=2, counts=(4, 16), batches=(1, 2, 6, 16, 64))


def by_loops(e, hours, max_tokens=math.inf):
    """The least loss of the joint law on H100, by loops over shapes, meshes, batches and tokens at once."""
    trained = []
    for n_active, seconds_per_token, least, most in trainable(e):
        n_tokens = math.floor(min(hours * 3600 / seconds_per_token, max_tokens, most))
        if n_tokens >= max(least, 1):
            trained.append((n_active, n_tokens))
    law = load(JOINT)
    n_active, n_tokens = np.array(trained, float).T
    return float(law.loss(law.coefficients, dict(n_active=n_active, n_tokens=n_tokens, n_experts=float(e))).min())


@functools.cache
def trainable(e):
    """(active parameters, seconds of a token, least and most tokens) of all models of LESS in all layouts."""
    found = []
    for published, width in itertools.product((False, True), LESS.widths):
        style = hardware.style_of(PAPER, published, frozenset())
        padded = dataclasses.replace(PAPER, vocab_size=50_304)
        least_aspect, typical, most_aspect = style.aspects
        depths = [n for n in range(1, 200) if width / typical / 1.25 <= n <= width / typical * 1.25]
        depths = [n for n in depths if least_aspect <= width / n <= most_aspect]
        for n_blocks in {depths[0], depths[-1]}:
            model = hardware.built(padded, style, width, n_blocks, e)
            for count in LESS.counts:
                found += _in_layouts(model, e, published, count)
    return found


def _in_layouts(model, e, published, count):
    """(active parameters, seconds of a token, least and most tokens) of a model in all layouts of so many chips."""
    shape = ModelShape.of_config(model.fields)
    is_beyond = shape.n_active > load(JOINT).ranges["n_active"][1]
    kv_heads = model.fields.get("n_kv_heads", model.fields["n_heads"])
    for of_model, expert in itertools.product((1, 2, 4, 8), range(1, count + 1)):
        data, rest = divmod(count, of_model * expert)
        if rest or (e > 1 and e % expert) or shape.d_model % data:
            continue
        if any(value % of_model for value in (model.fields["n_heads"], kv_heads, model.fields["d_ff"])):
            continue
        rows = data * expert
        group = 4096
        if not published:
            group = 512 * 2 ** int(math.log2(max(min(8192, 65_536 // rows) // 512, 1)))
        mesh = dict(data=data, expert=expert, model=of_model)
        for batch, first, least, most in _batches(model, rows * group, published, is_beyond):
            for remat in ("full", "dots", "none"):
                parts = [batch, *(first >> i for i in range(20) if first % (rows * group << i) == 0)]
                seconds = _seconds(shape, published, remat, batch, parts, mesh)
                if seconds is not None:
                    yield shape.n_active, seconds / batch, least, most


def _seconds(shape, published, remat, batch, parts, mesh):
    """Seconds of a step with the most tokens at once that an H100 holds; None where it holds none."""
    chip = CHIPS["H100"]
    for at_once in parts:
        layout = Layout(
            batch_tokens=batch,
            sequence=4096 if published else 512,
            microbatch_tokens=at_once,
            remat=remat,
            flash=published,
            **mesh,
        )
        step = step_cost(shape, layout, chip, efficiencies.of_our_trainer("H100", 16).efficiencies("H100"))
        if step.device_bytes <= 0.85 * chip.memory:
            return float(step.seconds)
    return None


def _batches(model, unit, published, is_beyond):
    """(largest batch, first batch, least and most tokens on which it is allowed) of one mesh."""
    most_of_runs = 80e9 * 1.005
    if not published:
        if is_beyond:
            return
        first = 65_536 // unit * unit
        ends = [5e8, 1e9, most_of_runs]
        for tokens, start, end in zip((65_536, 131_072, 262_144), (0, 5e8, 1e9), ends, strict=True):
            if first:
                yield tokens // first * first, first, start + 1, end
        return
    for k in LESS.batches:
        batch = unit * k

        def allowed(n_tokens, batch=batch):
            run = rates.run_of(model.shape, n_tokens, 4096)
            batches = [law.batch_tokens(run) for law in rates.laws_for(run.kind)]
            mean = math.exp(sum(map(math.log, batches)) / len(batches))
            return mean >= batch, min(*batches, mean / 2) <= batch

        # laws of batch rise with the tokens: from the first of these on, up to the second
        least = _first(lambda n_tokens: allowed(n_tokens)[0])
        most = _first(lambda n_tokens: not allowed(n_tokens)[1])
        if not is_beyond:
            least = max(least, math.floor(most_of_runs) + 1)
        yield batch, unit * (k // 3 if k % 3 == 0 else max(k // 4, 1)), math.ceil(least), math.floor(most)


def _first(is_true):
    """The least real number from 1 to 1e18 from which on a condition holds."""
    low, high = 1.0, 1e18
    if is_true(low):
        return low
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_true(middle) else (middle, high)
    return high


@pytest.mark.parametrize("e", [1, 8])
def test_brute_force_agrees(e):
    """24 questions each."""
    for hours in np.geomspace(0.3, 2400, 12):
        for limits in ({}, dict(max_tokens=float(2e8 * hours))):
            question = asked("H100:16", float(hours), LESS, **limits)
            assert best_of(question, e).loss == pytest.approx(by_loops(e, hours, **limits), rel=1e-6)


@pytest.mark.parametrize("e", [1, 8])
def test_brute_force_agrees_in_draws(e):
    """The best of all models in each of 200 draws of law and speeds, for 4 numbers of hours.

    The search leaves out models that lose much by the medians. So in few draws a better one may be missed.
    """
    law = load(JOINT)
    n_active, seconds, least, most = np.array(trainable(e)).T
    for hours in np.geomspace(1, 1000, 4):
        question = asked("H100:16", float(hours), LESS)
        draws = joint_draws.of_problem(question, [e])
        speeds = np.exp(draws.log_speeds[0])
        tokens = np.floor(np.minimum(hours * 3600 / seconds, most))
        is_trained = (tokens >= least) & (tokens >= 1)
        counts = dict(n_active=n_active[is_trained], n_tokens=tokens[is_trained] * speeds[:, None], n_experts=float(e))
        losses = law.loss({name: values[:, None] for name, values in draws.coefficients.items()}, counts)
        found = by_hours.in_draws(question, e, speeds, draws.coefficients).loss
        lowest = losses.min(axis=1)
        assert np.sum(found > lowest * (1 + 1e-6)) <= 4 and np.all(found >= lowest * (1 - 1e-6))
        assert found.mean() == pytest.approx(lowest.mean(), rel=5e-5)


# Plans by FLOPs.


@pytest.mark.parametrize(
    "law, e", [(JOINT, 1), (JOINT, 8), (JOINT, 32), ("chinchilla-2022", 1), ("fine-grained-2024", 64)]
)
def test_what_is_built_is_near_the_line(law, e):
    """By shapes of the grid and the paper's, and on chips whose memory bounds the size or does not.

    Whole blocks of the paper's shape are too few where memory bounds the size, and for laws that read total parameters.
    These are asked by shapes of the grid alone, without limits.
    """
    rng = random.Random(e)
    limits = [{}]
    if load(law).reduces_to_chinchilla:
        limits = [dict(memory_gb=160), dict(max_tokens=3e10), dict(inference_tokens=1e11)]
        limits += [dict(shape=dict(paper=True)), dict(shape=dict(paper=True), max_tokens=3e10)]
    for limit, kv_share in itertools.product(limits, (None, 0.25)):
        shape = limit.get("shape", {}) | dict(kv_share=kv_share)
        plan = fit.plan(law, flops=10 ** rng.uniform(19.5, 25), experts=[e], **limit | dict(shape=shape))
        assert plan.buildable.loss_of_building <= 1e-3
    if law == JOINT:
        n_bound = 0
        for chips, most in itertools.product(("H100:1", "H100:12", "H100:61", "v5e:16"), (1e20, 1e21, 2e22)):
            flops = int(chips.partition(":")[2]) * most * rng.uniform(0.1, 1)
            plan = fit.plan(law, flops=flops, chips=chips, experts=[e])
            n_bound += plan.best.size_bound == "chips"
            assert plan.buildable.loss_of_building <= 1e-3
        assert 1 <= n_bound < 12


def test_a_plan_by_flops_prices_what_a_plan_by_hours_emits():
    """A plan by hours, then by the FLOPs of its model, with its tokens and its memory as the limits.

    It is at least as good, and where it is the same model it takes as long.
    """
    rng = random.Random(3)
    n_same = 0
    for e in (1, 1, 4, 4, 32, 32):
        chips = f"{rng.choice(['H100', 'H200', 'v5e', 'B200'])}:{rng.choice([4, 8, 12, 16])}"
        built = fit.plan(JOINT, chips=chips, hours=10 ** rng.uniform(0.5, 3), experts=[e]).buildable
        by_flops = fit.plan(
            JOINT,
            chips=chips,
            experts=[e],
            flops=built.training_flops * (1 + 1e-12),
            max_tokens=built.n_tokens,
            memory_gb=built.memory_bytes * (1 + 1e-12) / 1e9,
        ).buildable
        assert by_flops.loss <= built.loss * SAME
        if (by_flops.d_model, by_flops.n_blocks) == (built.d_model, built.n_blocks):
            n_same += 1
            assert by_flops.cost.training_hours == pytest.approx(built.cost.training_hours, rel=0.01)
    assert n_same >= 3


def test_budgets_together_answer_as_each_alone():
    """Hours in an array share candidates, and have the best of each number of hours alone, in counts and loss."""
    hours = np.array([[1.0, 30.0, 31.0], [1e-15, 100.0, 1e5]])
    problem = asked("H100:61", 100, COARSE)
    together = solver.best_models(problem.with_budget(hours), 8.0)
    assert together.loss.shape == hours.shape and not together.feasible[1, 0]
    for i in np.ndindex(*hours.shape):
        alone = best_of(problem.with_budget(float(hours[i])), 8.0)
        assert together.feasible[i] == (alone is not None)
        if alone is not None:
            row = together.row(i, ("n_active", "n_total", "n_tokens", "loss", "d_model"))
            assert row.pop("n_experts") == 8
            assert row == {name: getattr(alone, name) for name in row}
