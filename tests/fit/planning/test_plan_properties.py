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
from benchmarks import plans_start
from fit.fitted_law.law import load
from fit.model import efficiencies, hardware
from fit.model.architecture import PAPER
from fit.model.chips import CHIPS
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from fit.model.step_cost import step_cost
from fit.planning.chosen import optimum, shape_choice
from fit.planning.inputs import grid
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.search import by_hours, solver
from fit.planning.space import candidate_search, rates, recipe
from fit.planning.uncertainty import joint_draws
from launch import prices

JOINT = "joint-moe-2025"
SAME = 1 + 1e-9  # rounding of a loss


def best_of(problem, n_experts):
    """The best candidate of a problem by hours with a number of experts; None where there is none."""
    return by_hours.best_within_hours(problem, n_experts).candidates[0]


def asked(law, chips, hours, options=None, layouts=None, **limits):
    """The problem of a plan by hours. layouts: the grid of candidates."""
    law = load(law)
    parsed = PlanOptions.parse(chips=chips, hours=hours, **limits)
    (architecture,) = parsed.architectures(law)
    limits = parsed.constraints()
    calibration = efficiencies.of_our_trainer(limits.chips.kind, limits.chips.count)
    return Problem(law, architecture, limits, law.experts, calibration, layouts or grid.Grid())


def best(chips, hours, experts=(8, 32), law=JOINT, **limits):
    """The best candidate of a plan by hours."""
    question = asked(law, chips, hours, **limits)
    found = [best_of(question, e) for e in experts]
    return min((each for each in found if each is not None), key=lambda each: each.loss)


# a grid on which a question takes hundredths of a second
COARSE = grid.Grid(
    widths=tuple(range(256, 8193, 256)), most_depths=2, models=(1, 2), batches=(1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
)


def losses_of(questions, e):
    """The losses of the best candidates of questions [(chips, hours, limits)] on the grid COARSE; infinite for none."""
    found = [best_of(asked(JOINT, chips, h, layouts=COARSE, **limits), e) for chips, h, limits in questions]
    return [math.inf if each is None else each.loss for each in found]


def never_worse(losses):
    """Whether each of the losses is at most those before it."""
    return all(later <= earlier * SAME for earlier, later in itertools.pairwise(losses))


# More of anything is never worse.


@pytest.mark.parametrize(
    "kind, counts, hours", [("H100", [48, 50, 51, 56, 57, 60, 63, 64, 65, 72], 240), ("v5p", range(96, 260, 32), 24)]
)
def test_more_chips_are_never_worse(kind, counts, hours):
    found = [best(f"{kind}:{count}", hours) for count in counts]
    assert never_worse([each.loss for each in found])
    assert all(each.n_chips <= count for each, count in zip(found, counts, strict=True))
    assert found[-1].loss < found[0].loss


@pytest.mark.parametrize(
    "chips, hours, experts",
    [
        ("H100:64", np.linspace(235, 245, 5), (16, 32)),
        ("H100:8", [60, 80, 100, 140, 240], (32,)),
        ("H100:8", np.geomspace(0.01, 1000, 8), (1, 8)),
    ],
)
def test_more_hours_are_never_worse(chips, hours, experts):
    losses = [best(chips, float(h), experts).loss for h in hours]
    assert never_worse(losses)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name, values", [("memory_gb", [2, 10, 80, 640])])
def test_more_memory_is_never_worse(name, values):
    for chips in ("H100:16", "H100:64"):
        assert never_worse([best(chips, 100, **{name: value}).loss for value in values])


def test_more_tokens_and_fewer_to_serve_are_never_worse():
    assert never_worse([best("H100:16", 100, max_tokens=tokens).loss for tokens in np.geomspace(1e9, 1e12, 5)])
    assert never_worse([best("H100:16", 100, inference_tokens=tokens).loss for tokens in (1e12, 1e11, 1e10, 0)])


def expected_loss(law, chips, hours, experts, **limits):
    """The least expected loss over the draws of law and speeds."""
    problem = asked(law, chips, hours, **limits)
    draws = joint_draws.of_problem(problem, experts)
    return joint_draws.solve_draws(problem, experts, draws).loss.mean(axis=1).min()


@functools.cache
def drawn_law():
    """The joint law with 50 draws around it."""
    law = load(JOINT)
    rng = np.random.default_rng(0)
    rows = [[value * (1 + 0.01 * rng.normal()) for value in law.coefficients.values()] for _ in range(50)]
    return dataclasses.replace(law, bootstrap=fit_runs.bootstrap(rows))


@pytest.mark.parametrize("name", ["counts", "hours", "memory_gb", "max_tokens"])
def test_more_of_anything_never_worsens_the_expected_loss(name):
    """The draws are the same for all questions."""
    questions = {
        "counts": [dict(chips=f"H100:{count}", hours=240) for count in (48, 50, 51, 56, 57, 64, 65, 72)],
        "hours": [dict(chips="H100:16", hours=float(h)) for h in np.linspace(235, 245, 6)],
        "memory_gb": [dict(chips="H100:16", hours=100, memory_gb=gb) for gb in (5, 20, 80, 320)],
        "max_tokens": [dict(chips="H100:16", hours=100, max_tokens=t) for t in (1e9, 1e10, 1e11, 1e12)],
    }
    losses = [expected_loss(drawn_law(), experts=(8, 32), **question) for question in questions[name]]
    assert never_worse(losses)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("what", ["chips", "hours", "memory", "tokens"])
def test_more_is_never_worse_at_random(what):
    """100 questions each: 10 at random, with 10 amounts of one thing, ascending."""
    rng = random.Random(what)
    n_falls = 0
    for _ in range(10):
        kind = rng.choice(["H100", "H200", "B200", "v5e", "v5p"])
        count = rng.randint(4, 100)
        hours = 10 ** rng.uniform(0, 3)
        amounts = sorted(10 ** rng.uniform(-1, 0.5) for _ in range(10))
        questions = {
            "chips": [(f"{kind}:{max(1, round(count * share))}", hours, {}) for share in amounts],
            "hours": [(f"{kind}:{count}", hours * share, {}) for share in amounts],
            "memory": [(f"{kind}:{count}", hours, dict(memory_gb=30 * share)) for share in amounts],
            "tokens": [(f"{kind}:{count}", hours, dict(max_tokens=1e11 * share)) for share in amounts],
        }
        losses = losses_of(questions[what], rng.choice([1, 4, 32]))
        assert never_worse(losses)
        n_falls += losses[-1] < losses[0]
    assert n_falls >= 5


def test_idle_chips_are_said_and_ties_go_to_fewer():
    """Of 63 chips no mesh divides most widths; on few tokens few chips are as good as all."""
    plan = fit.plan(JOINT, chips="H100:61", hours=240, experts=[8])
    mesh = plan.buildable.cost.mesh
    assert mesh.data * mesh.expert * mesh.model == plan.chips.used < 61
    assert f"{plan.chips.used} of your 61 x H100" in " ".join(str(plan).split())
    assert 235 < plan.buildable.cost.training_hours <= 240 * SAME
    capped = best("H100:64", 240, (1,), max_tokens=1e9, memory_gb=0.3)
    assert capped.n_tokens == 1e9 and capped.n_chips == 1


# What is planned is what is timed, emitted and priced.

PLANS = [
    (JOINT, "H100:64", 240, {}),
    (JOINT, "H100:8", 24, dict(experts=[4])),
    (JOINT, "v5e:16", 24, {}),
    ("sparsity-2025", "v5p:64", 100, dict(memory_gb=80)),
    (JOINT, "H200:16", 100, dict(like="OLMoE-1B-7B", experts=[8])),
    (JOINT, "H100:1", 2, {}),
]


@functools.cache
def planned(i):
    """A plan of PLANS."""
    law, chips, hours, limits = PLANS[i]
    return fit.plan(law, chips=chips, hours=hours, **limits)


def emitted(plan, law, folder):
    """The config that a plan emits."""
    from fit.planning.emit import plan_config

    path = folder / "planned.py"
    path.write_text(plan_config.source(load(law), plan), encoding="utf-8")
    return plans_start.module_of(path, "planned").get_config()


@pytest.mark.parametrize("i", range(len(PLANS)))
def test_what_is_timed_is_what_is_emitted_and_priced(i, tmp_path):
    law, chips, hours, _ = PLANS[i]
    kind, _, count = chips.partition(":")
    plan = planned(i)
    built = plan.buildable
    layout = built.layout
    config = emitted(plan, law, tmp_path)
    assert (config.mesh.expert, config.mesh.model, config.remat) == (layout.expert, layout.model, layout.remat)
    assert config.data.seq_len == built.sequence
    assert tuple(map(tuple, config.batch_tokens)) == layout.ramp
    assert config.microbatch_tokens == layout.microbatch_tokens
    # the plan's hours, by the price of a dry run
    planned_hours = built.cost.training_hours
    assert 0.95 * hours < planned_hours <= hours * SAME
    used = layout.data * layout.expert * layout.model // CHIPS[kind].devices
    name, n_slices = plans_start.accelerator(kind, used)
    of_chip = prices.tokens_per_chip_second(config, name, n_slices)
    assert built.n_tokens / of_chip / used / 3600 == pytest.approx(planned_hours, rel=0.01)
    # the headline is the built model
    for column in ("n_active", "n_tokens", "loss"):
        assert plan.best[column] == pytest.approx(built[column], rel=1e-12)
    chosen = plan.odds.row(plan.best.n_experts)
    assert chosen.expected_loss == min(row.expected_loss for row in plan.odds.experts)


@pytest.mark.parametrize("i", range(len(PLANS)))
def test_the_batch_is_between_the_floor_and_the_recipes_at_the_printed_tokens(i):
    """By the laws of batch, one by one, as their papers have them."""
    built = planned(i).buildable
    batch = built.batch_tokens[-1][1]
    least, most = built.batch_allowed
    assert least <= batch * SAME and batch <= most * SAME
    if built.recipe_laws:
        batches = [row["batch_tokens"] for row in built.recipe_laws]
        mean = math.exp(np.mean(np.log(batches)))
        assert most == pytest.approx(mean, rel=1e-6)
        assert least == pytest.approx(min(*batches, mean / 2), rel=1e-6)


# Nothing is better than the best.

SMALL = grid.Grid(
    widths=(768, 2048, 3072, 4096), most_depths=2, counts=(4, 8, 12, 16), batches=(1, 2, 3, 4, 8, 16, 32, 64, 128)
)
LESS = dataclasses.replace(SMALL, widths=(768, 2048, 3072), counts=(4, 16), batches=(1, 2, 6, 16, 64))


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
    shape = ModelShape.of_config(model.fields | dict(n_experts=e))
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
            batches = [law.batch_tokens(run) for law in rates.laws_for(run)]
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
    """50 questions each."""
    for hours in np.geomspace(0.3, 2400, 25):
        for limits in ({}, dict(max_tokens=float(2e8 * hours))):
            question = asked(JOINT, "H100:16", float(hours), layouts=LESS, **limits)
            assert best_of(question, e).loss == pytest.approx(by_loops(e, hours, **limits), rel=1e-6)


@pytest.mark.parametrize("e", [1, 8])
def test_brute_force_agrees_in_draws(e):
    """The best of all models in each of 200 draws of law and speeds, for 8 numbers of hours.

    The search leaves out models that lose much by the medians. So in few draws a better one may be missed.
    """
    law = load(JOINT)
    n_active, seconds, least, most = np.array(trainable(e)).T
    for hours in np.geomspace(1, 1000, 8):
        question = asked(JOINT, "H100:16", float(hours), layouts=LESS)
        draws = joint_draws.of_problem(question, [e])
        speeds = np.exp(draws.log_speeds[0])
        tokens = np.floor(np.minimum(hours * 3600 / seconds, most))
        is_trained = (tokens >= least) & (tokens >= 1)
        counts = dict(n_active=n_active[is_trained], n_tokens=tokens[is_trained] * speeds[:, None], n_experts=float(e))
        losses = law.loss({name: values[:, None] for name, values in draws.coefficients.items()}, counts)
        found = by_hours.in_draws(question, e, speeds, draws.coefficients)["loss"]
        lowest = losses.min(axis=1)
        assert np.sum(found > lowest * (1 + 1e-6)) <= 4 and np.all(found >= lowest * (1 - 1e-6))
        assert found.mean() == pytest.approx(lowest.mean(), rel=5e-5)


def test_no_option_left_out_betters_an_answer():
    """40 questions at random, each with one option less."""
    rng = random.Random(0)
    for _ in range(40):
        chips = f"{rng.choice(['H100', 'v5e', 'B200'])}:{rng.choice([8, 16, 24])}"
        hours = 10 ** rng.uniform(0, 3)
        e = rng.choice([1, 4, 32])
        name = rng.choice(["widths", "counts", "models", "remats", "batches"])
        values = getattr(SMALL, name)
        left_out = rng.choice(values)
        smaller = dataclasses.replace(SMALL, **{name: tuple(value for value in values if value != left_out)})
        whole = best_of(asked(JOINT, chips, hours, layouts=SMALL), e)
        part = best_of(asked(JOINT, chips, hours, layouts=smaller), e)
        assert whole is not None
        assert part is None or part.loss >= whole.loss / SAME


# Plans by FLOPs.


def test_the_line_by_flops_is_the_closed_form():
    """With chips that hold it and without: 480 optima."""
    law = load(JOINT)
    flops = np.geomspace(1e18, 1e22, 40)
    for limits in ({}, dict(chips="v5p:4096")):
        constraints = PlanOptions.parse(flops=1e20, **limits).constraints()
        for e in law.experts:
            found = solver.best_models(Problem(law, PAPER, dataclasses.replace(constraints, flops=flops)), e)
            m, mu, n, nu = (float(x) for x in law.chinchilla_coefficients_at(float(e))[:4])
            size = (m * mu / (n * nu)) ** (-1 / (mu + nu)) * (flops / 6) ** (nu / (mu + nu))
            assert found.n_active == pytest.approx(size, rel=1e-9)
            assert found.n_tokens == pytest.approx(flops / 6 / size, rel=1e-9)


@pytest.mark.parametrize(
    "law, e", [(JOINT, 1), (JOINT, 8), (JOINT, 32), ("chinchilla-2022", 1), ("fine-grained-2024", 64)]
)
def test_what_is_built_is_near_the_line(law, e):
    """Questions without chips, by shapes of the grid and the paper's.

    Whole blocks of the paper's shape are too few where memory bounds the size, and for laws that read total parameters.
    These are asked by shapes of the grid alone, without limits.
    """
    rng = random.Random(e)
    is_closed = load(law).reduces_to_chinchilla
    for _ in range(5):
        flops = 10 ** rng.uniform(19.5, 25)
        limit = rng.choice([{}, dict(memory_gb=160), dict(max_tokens=3e10), dict(inference_tokens=1e11)])
        shapes = ("hardware", "paper") if is_closed else ("hardware",)
        for of_sizes, kv_share in itertools.product(shapes, (None, 0.25)):
            is_fine_enough = "memory_gb" not in limit if is_closed else not limit
            if is_fine_enough or (of_sizes == "hardware" and is_closed):
                shape = dict(kv_share=kv_share, paper=of_sizes == "paper")
                plan = fit.plan(law, flops=flops, shape=shape, experts=[e], **limit)
                assert plan.buildable.loss_of_building <= 1e-3


CHIPS_BY_FLOPS = [("H100", n) for n in (1, 7, 12, 24, 61)] + [("v5e", 16)]


def built_by_flops(law, constraints, e, layouts=None):
    """(the line's optimum, what is built) of a plan by FLOPs on chips with one number of experts."""
    problem = Problem(law, PAPER, constraints, [e])
    (row,), _ = optimum.optima_of(problem)
    if layouts is not None:
        problem = dataclasses.replace(problem, grid=layouts)
    return row, shape_choice.on_grid(problem, [row], row)


@pytest.mark.parametrize("e", [1, 4, 32])
def test_what_chips_build_is_near_the_line(e):
    """54 questions by FLOPs, of hours to years, where the chips' memory bounds the size and where it does not."""
    law = load(JOINT)
    rng = random.Random(e)
    n_bound = 0
    for (kind, count), most in itertools.product(CHIPS_BY_FLOPS, (1e20, 1e21, 2e22)):
        flops = count * most * rng.uniform(0.1, 1)
        row, chosen = built_by_flops(law, PlanOptions.parse(chips=f"{kind}:{count}", flops=flops).constraints(), e)
        n_bound += row.size_bound == "chips"
        assert chosen.loss - row.loss <= 1e-3
    assert 2 <= n_bound < 18


def test_a_plan_by_flops_prices_what_a_plan_by_hours_emits():
    """30 questions: a plan by hours, then by the FLOPs of its model, with its tokens and its memory as the limits."""
    rng = random.Random(3)
    law = load(JOINT)
    for _ in range(30):
        chips = f"{rng.choice(['H100', 'H200', 'v5e', 'B200'])}:{rng.choice([4, 8, 12, 16])}"
        hours = 10 ** rng.uniform(0.5, 3)
        e = rng.choice([1, 4, 32])
        planned = best_of(asked(JOINT, chips, hours, layouts=SMALL), e)
        n_active = float(planned.models.n_active[planned.row])
        limits = PlanOptions.parse(
            chips=chips,
            flops=6 * n_active * planned.n_tokens * (1 + 1e-12),
            max_tokens=planned.n_tokens,
            memory_gb=planned.memory_bytes * (1 + 1e-12) / 1e9,
        ).constraints()
        _, chosen = built_by_flops(law, limits, e, SMALL)
        seconds = planned.n_tokens / planned.tokens_per_second
        assert chosen.n_tokens / chosen.tokens_per_second == pytest.approx(seconds, rel=0.01)


def test_budgets_together_answer_as_each_alone():
    """Hours in an array share candidates, and have the best of each number of hours alone, in counts and loss."""
    hours = np.array([[1.0, 30.0, 31.0], [1e-15, 100.0, 1e5]])
    problem = asked(JOINT, "H100:61", 100, layouts=COARSE)
    together = solver.best_models(problem.with_budget(hours), 8.0)
    assert together.loss.shape == hours.shape and not together.feasible[1, 0]
    for i in np.ndindex(*hours.shape):
        alone = best_of(problem.with_budget(float(hours[i])), 8.0)
        assert together.feasible[i] == (alone is not None)
        if alone is not None:
            row = together.row(i, ("n_active", "n_total", "n_tokens", "loss", "d_model"))
            assert row.pop("n_experts") == 8
            assert row == {name: getattr(alone, name) for name in row}


def test_a_bound_is_below_every_candidate():
    """Pruning leaves nothing out: the seconds that bound a shape are below those of each of its layouts."""
    for e, chips in itertools.product((1, 32), ("H100:16", "v5e:16", "tpu7x:4")):
        problem = asked(JOINT, chips, 100, layouts=SMALL)
        for found in by_hours.candidates_within(problem, e, (1.0, 1e5)):
            floor = candidate_search.least_seconds(problem, found.models)
            assert (found.seconds_per_token * found.n_chips >= floor[found.row]).all()


def test_recipes_name_the_runs_and_the_published(tmp_path):
    """The recipe of a candidate is the one that its run has by itself."""
    for i in range(len(PLANS)):
        built = planned(i).buildable
        assert (built.sequence == recipe.PRETRAIN_SEQUENCE) == bool(built.recipe_laws)
