"""Optima against brute force, the paper's Tables 1 and 2, and counts written out by hand."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

import fit
from fit.fitted_law.law_files import load
from fit.laws import FORMS
from fit.model import architecture
from fit.model.chips import CHIPS
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import Chips
from fit.planning.search import solver
from fit.planning.space import fewest_chips
from fit.render import tables

PAPER = architecture.Architecture()
# Printed cells of Table 1: (n_active, n_tokens).
TABLE_1 = {
    1e20: {1: (1.7e9, 9.7e9), 2: (1.5e9, 11.4e9), 4: (1.2e9, 13.9e9), 8: (990e6, 17e9), 16: (810e6, 20.7e9)},
    5e20: {1: (4e9, 21e9), 2: (3.5e9, 24e9), 4: (3e9, 28e9), 8: (2.5e9, 33.2e9), 16: (2.1e9, 39e9)},
    1e21: {1: (5.7e9, 29.3e9), 2: (5e9, 33e9), 4: (4.4e9, 38e9), 8: (3.8e9, 44.3e9), 16: (3.3e9, 51.2e9)},
}


@pytest.fixture(scope="module", autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def law():
    return load("joint-moe-2025")


def rounding(printed):
    """Half a unit of the last digit of a printed cell: two significant digits for sizes, three for most tokens."""
    shown = f"{printed:.2e}"
    last = 2 if shown[3] != "0" else 1
    return 0.5 * 10.0 ** (int(shown[-3:]) - last)


@pytest.mark.parametrize("flops", TABLE_1)
def test_table_1(law, flops):
    """Tokens, printed with up to three digits, within 1.5%; sizes, printed with two, within 1.5% of what rounds to
    them."""
    for row in tables.table_1(law, PAPER, budgets=(flops,)):
        size, trained = TABLE_1[flops][row["n_experts"]]
        assert row["n_tokens"] == pytest.approx(trained, rel=0.015)
        assert (size - rounding(size)) * 0.985 <= row["n_active"] <= (size + rounding(size)) * 1.015
        assert row["n_active"] * row["n_tokens"] == pytest.approx(flops / 6)


def test_table_2(law):
    rows = list(tables.table_2(law, PAPER))
    assert sum(row["agrees"] for row in rows) == 9
    gaps = {(row["flops"], row["memory_gb"]): row["loss_gap"] for row in rows if not row["agrees"]}
    assert gaps == {
        (1e21, 24): pytest.approx(0.004, abs=5e-4),
        (1e23, 80): pytest.approx(0.006, abs=5e-4),
        (1e24, 640): pytest.approx(0.007, abs=5e-4),
    }


def brute_force(reduced, e, constraints, points=100_001):
    """The best loss and n_active on a fine grid of widths; every constraint checked by its own definition."""
    m, mu, n, nu, c, k = (float(v) for v in reduced)
    low = np.log(64.0)
    high = np.log(3e6)
    for _ in range(3):  # a finer grid around the best point of the last
        d = np.exp(np.linspace(low, high, points))
        size = 2 * d * 50257 + 13 * d**3 / 64
        total = 2 * d * 50257 + (4 + 9 * e) * d**3 / 64
        trained = np.full(points, np.inf if constraints.max_tokens is None else constraints.max_tokens)
        if constraints.flops is not None:
            trained = np.minimum(trained, (constraints.flops - 2 * size * constraints.inference_tokens) / (6 * size))
        fine = trained >= 1
        if constraints.memory_bytes is not None:
            cache = 2 * constraints.kv_tokens * d**2 / 64
            fine &= (
                constraints.bytes_per_parameter * total + constraints.bytes_per_kv_element * cache
                <= constraints.memory_bytes
            )
        if not fine.any():
            return None
        loss = np.where(fine, (m * size**mu + n * np.where(fine, trained, 1.0) ** nu) ** k + c, np.inf)
        best = int(np.argmin(loss))
        step = (high - low) / (points - 1)
        low = max(np.log(64.0), np.log(d[best]) - 3 * step)
        high = np.log(d[best]) + 3 * step
    return float(loss[best]), float(size[best])


@given(
    flops=st.one_of(st.none(), st.floats(18, 25)),
    memory=st.one_of(st.none(), st.floats(7.5, 13)),
    kv=st.sampled_from([0.0, 1024.0, 16384.0, 1e6]),
    served=st.sampled_from([0.0, 1e9, 1e11, 1e13]),
    cap=st.one_of(st.none(), st.floats(7, 13)),
    e=st.sampled_from([1, 2, 8, 64]),
    name=st.sampled_from([(name, k) for name in ("joint-moe-2025", "chinchilla-refit-2024") for k in (1.0, 0.5)]),
)
@settings(max_examples=80)
def test_constrained_optimum_is_brute_force(flops, memory, kv, served, cap, e, name):
    def power(x):
        return None if x is None else 10.0**x

    if flops is None and (memory is None or cap is None):
        return
    constraints = Constraints(
        flops=power(flops),
        memory_bytes=power(memory),
        kv_tokens=kv,
        max_tokens=power(cap),
        inference_tokens=served if flops is not None else 0.0,
    )
    with jax.enable_x64(True):
        name, k = name
        law = load(name)
        if k < 1:
            form = FORMS[f"{law.form.name}_coupled"]
            law = dataclasses.replace(law, form=form, coefficients=law.coefficients | {"k": k}, bootstrap=None)
        result = solver.best_models(Problem(law, PAPER, constraints), e)
        expected = brute_force(law.chinchilla_coefficients_at(e), e, constraints)
    assert bool(result.feasible) == (expected is not None)
    if expected is not None:
        assert float(result.loss) == pytest.approx(expected[0], rel=1e-6)
        assert float(result.loss) <= expected[0] * (1 + 1e-11)  # never worse than a point of the grid
        assert float(result.n_active) == pytest.approx(expected[1], rel=1e-3)  # where the loss is flat, too
        used = 6 * result.n_active * result.n_tokens + 2 * result.n_active * constraints.inference_tokens
        assert flops is None or used <= constraints.flops * (1 + 1e-9)
        assert memory is None or (constraints.memory(PAPER, result.d_model, e) <= constraints.memory_bytes * (1 + 1e-9))
        assert cap is None or result.n_tokens <= constraints.max_tokens


@pytest.mark.parametrize("kind, count", [("H100", 1), ("v5e", 8), ("H100", 64), ("B200", 512)])
def test_optimum_on_chips_is_brute_force(law, kind, count):
    """18 bytes a parameter over all chips and, on each, 512 tokens, 8,192 in all. A token leaves 4 bytes of a unit of
    width in each block. Beside these, a device has a block at work or, where that takes more, the loss."""
    flops = 1e23
    chips = Chips(kind, count, 0.4)
    for e in (1, 2, 8, 64):
        result = solver.best_models(Problem(law, PAPER, Constraints(flops=flops, memory_bytes=1e12, chips=chips)), e)
        d = np.exp(np.linspace(np.log(64.0), np.log(3e5), 2_000_001))
        size, total = (2 * d * 50257 + weights * d**3 / 64 for weights in (13, 4 + 9 * e))
        tokens = max(512, 8192 / count)
        # units of width, of queries and keys, of hidden units; scores; the block's weights in bfloat16
        token = 5 + 4 * 2 + 12 * 3 if e == 1 else 5 + 5 + 4 * 2 + 16 * 3
        block = tokens * (token * d + 8 * 512 * d / 64) + 2 * (4 + 9 * e) * d**2
        # logits in float32, the head in bfloat16 and its gradient in float32
        loss = 4 * np.minimum(tokens, np.maximum(2**24 / 50257, 2 * d)) * 50257 + 6 * d * 50257
        taken = 18 * total / count + tokens * 4 * d**2 / 64 + np.maximum(block, loss)
        fits = (taken <= CHIPS[kind].memory) & (2 * total <= 1e12)
        models = dict(n_active=size, n_tokens=flops / (6 * size), n_experts=e)
        loss = np.where(fits, law.loss(law.coefficients, models), np.inf)
        assert float(result.loss) == pytest.approx(loss.min(), rel=1e-6)
        assert float(result.loss) <= loss.min() * (1 + 1e-12)
        best = int(np.argmin(loss))
        assert (result.size_bound == "chips") == (not fits[best + 1] and 2 * total[best + 1] <= 1e12)
        shape = PAPER.shape(float(result.d_model), float(e))
        assert fewest_chips.fewest_chips(chips, shape, on_any_mesh=False)[0] <= count


@pytest.mark.parametrize(
    "limits",
    [dict(), dict(inference_tokens=1e11), dict(memory_gb=80), dict(max_tokens=2e11)],
    ids=["free", "served", "memory", "tokens"],
)
def test_near_optimal_band_ends_at_a_tenth_of_a_percent(law, limits):
    plan = fit.plan("joint-moe-2025", flops=1e22, shape="paper", **limits)
    target = 1.001 * plan.best.loss
    assert any(row.near_optimal_n_active for row in plan.optima)
    for row in plan.optima:

        def loss(size, e=row.n_experts):
            tokens = (1e22 / (2 * size) - limits.get("inference_tokens", 0)) / 3
            fits = 2 * PAPER.n_total(PAPER.d_model(size), e) <= 1e9 * limits.get("memory_gb", np.inf)
            tokens = min(tokens, limits.get("max_tokens", np.inf))
            return float(law.predict(size, tokens, e)) if fits else np.inf

        low, high = row.near_optimal_n_active or (None, None)
        assert (low is None) == (row.loss > target)
        if low is not None:
            assert max(loss(low * (1 + 1e-9)), loss(high * (1 - 1e-9))) <= target * (1 + 1e-9)
            assert min(loss(low * 0.99), loss(high * 1.01)) > target


@pytest.mark.parametrize("limits", [dict(), dict(memory_gb=200, kv_tokens=16384, inference_tokens=1e11)])
def test_flops_of_dense_inverts_the_optimum(limits):
    plan = fit.plan("joint-moe-2025", flops=1e21, shape="paper", **limits)
    needed = plan.dense.flops_for_the_same_loss
    dense = fit.plan("joint-moe-2025", flops=needed, shape="paper", experts=[1], **limits)
    assert dense.best.loss == pytest.approx(plan.best.loss, rel=1e-9) and needed > 1e21
    assert plan.dense.flops_saved == pytest.approx(1 - 1e21 / needed, rel=1e-9)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, c: np.exp(x) - np.exp(c),
        lambda x, c: np.exp(-x) - np.exp(-c),
        lambda x, c: (x - c) ** 3,
        lambda x, c: np.where(x > c, 1.0, -1.0),  # a step, whose ends must close around it
        lambda x, c: np.floor(3 * x) + x - c,
        lambda x, c: np.log(np.maximum(x - c, 0)),  # minus infinity up to c
    ],
    ids=["rises", "falls", "flat", "step", "steps", "infinite"],
)
def test_roots_are_those_of_bisection(function):
    crossings = np.random.default_rng(0).uniform(0.5, 9, 50)
    roots = architecture.root(lambda x: function(x, crossings), -10.0, 30.0)
    with np.errstate(all="ignore"):
        bisected = [scipy.optimize.bisect(function, -10, 30, (crossing,), xtol=1e-15) for crossing in crossings]
    np.testing.assert_allclose(roots, bisected, rtol=1e-13)
    assert np.isnan(architecture.root(lambda x: function(x, crossings), 10.0, 30.0)).all()  # where no sign changes


@pytest.mark.parametrize("memory, kv_tokens", [(24e9, 16384.0), (2e9, 0.0)])
def test_buildable_is_best_of_all_depths_and_widths(law, memory, kv_tokens):
    """Of the planned number of experts: as good as the optimum, or the best of all depths and heads whose width per
    block is within 15% of the law's; and no model as good is closer to the law's."""
    limits = dict(memory_gb=memory / 1e9, kv_tokens=kv_tokens, inference_tokens=1e10)
    made = fit.plan(law, flops=3e20, shape="paper", **limits)
    e = made.best.n_experts
    candidates = []
    for blocks in range(1, 80):
        for heads in range(int(0.8 * blocks), int(1.25 * blocks) + 1):
            d = 64 * heads
            off = max(heads / blocks, blocks / max(heads, 1))
            size = 2 * d * 50257 + 13 * blocks * d**2
            total = 2 * d * 50257 + (4 + 9 * e) * blocks * d**2
            trained = np.floor((3e20 - 2 * size * 1e10) / (6 * size)) if size else 0
            weights = total + 4 * blocks * d + (blocks * d * e if e > 1 else 0)  # with norms and routers
            if off <= 1.15 and trained >= 1 and 2 * weights + 2 * 2 * kv_tokens * blocks * d <= memory:
                one = dict(n_active=size, n_tokens=trained, n_experts=e)
                candidates.append((float(law.loss(law.coefficients, one)), off, blocks, heads, trained))
    built = made["buildable"]
    (result,) = [one for one in candidates if one[2:] == (built["n_blocks"], built["n_heads"], built["n_tokens"])]
    assert built["n_experts"] == e and built["loss"] == pytest.approx(result[0], rel=1e-12)
    most = max(min(candidates)[0], (1 + 1e-4) * made["best"]["loss"]) + 1e-12
    assert result[0] <= most and result[1] == min(off for loss, off, *_ in candidates if loss <= most)
    assert built["loss_of_building"] == pytest.approx(built["loss"] - made["best"]["loss"], abs=1e-12)
    assert built["training_flops"] == 6 * built["n_active"] * built["n_tokens"] <= 3e20
    json.dumps(made.to_dict(), allow_nan=False)


def test_another_number_of_experts_is_built_only_where_the_planned_one_does_not_fit():
    """Norms and routers are more than what the law counts: a memory that the smallest planned model fills is too
    small."""
    smallest = architecture.Model(PAPER, 1, 2).shape
    memory_gb = (smallest.n_total + smallest.exact_parameters(False, False)) / 1e9
    made = fit.plan("joint-moe-2025", flops=1e17, memory_gb=memory_gb, shape="paper", experts=[1, 2])
    assert made.best.n_experts == 2 and made.buildable.n_experts == 1
    said = " ".join(str(made).split())
    assert said.startswith("Train a dense model") and "a mixture of 2 experts" in said
    assert "none with this number of experts meets the limits" in said
    none = fit.plan("joint-moe-2025", flops=1e17, memory_gb=memory_gb, shape="paper", experts=[2])
    assert none.buildable is None
    assert "; with whole blocks and heads no model meets the limits." in " ".join(str(none).split())


def test_rule_of_thumb_holds_for_the_published_law():
    plan = fit.plan("joint-moe-2025", flops=1e21, shape="paper", experts=[1, 2, 4, 8, 16])
    dense = plan.optima[0]
    assert [row.n_experts for row in plan.rule_of_thumb] == [2, 4, 8]
    for row in plan.rule_of_thumb:
        assert row.holds and row.n_tokens == pytest.approx(row.n_experts * dense.n_tokens)
        n_total = PAPER.n_total(PAPER.d_model(row.n_active), row.n_experts)
        assert n_total == pytest.approx(dense.n_total, rel=1e-9)
