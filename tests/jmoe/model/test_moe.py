"""The mixture of experts against a NumPy one that works token by token, and against itself on eight devices."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jmoe.model import moe_capacity, moe_layer, routing, sharding
from jmoe.model.permute import UNASSIGNED

SPECS = P(sharding.ROWS), P(), P("expert", None, "model"), P("expert", None, "model"), P("expert", "model")


def reference(  # noqa: PLR0913
    x_ND,
    router_DE,
    gate_EDF,
    up_EDF,
    down_EFD,
    group_tokens,
    capacity_factor,
    top_k=1,
    normalize=True,
    score_fn="softmax",
    bias_E=0.0,
):
    """One choice after another in float64; returns outputs, tokens of dropped choices, balance and z loss."""
    n_experts = router_DE.shape[1]
    capacity = group_tokens if capacity_factor is None else int(group_tokens * top_k * capacity_factor / n_experts)
    y_ND, dropped, balances, zs = np.zeros_like(x_ND), [], [], []
    for start in range(0, len(x_ND), group_tokens):
        used, chosen, score, probs, lse2 = [0] * n_experts, [0] * n_experts, {}, {}, 0.0
        for n in range(start, start + group_tokens):
            logits = [sum(x_ND[n, d] * router_DE[d, e] for d in range(x_ND.shape[1])) for e in range(n_experts)]
            norm = sum(np.exp(z) for z in logits)
            score[n] = np.array([np.exp(z) / norm if score_fn == "softmax" else 1 / (1 + np.exp(-z)) for z in logits])
            probs[n] = score[n] / score[n].sum()
            lse2 += np.log(norm) ** 2
        for choice, n in itertools.product(range(top_k), probs):
            order = np.argsort(-score[n] - bias_E)
            e = int(order[choice])
            gate = score[n][e] / (score[n][order[:top_k]].sum() if normalize and top_k > 1 else 1.0)
            chosen[e] += 1
            if used[e] == capacity:
                dropped.append(n)
                continue
            used[e] += 1
            a, b = x_ND[n] @ gate_EDF[e], x_ND[n] @ up_EDF[e]
            y_ND[n] += gate * ((a / (1 + np.exp(-a)) * b) @ down_EFD[e])
        fraction = np.array(chosen) / (group_tokens * top_k)
        balances.append(n_experts * np.sum(sum(probs.values()) / group_tokens * fraction))
        zs.append(lse2 / group_tokens)
    return y_ND, dropped, np.mean(balances), np.mean(zs)


def make_inputs(n_tokens, n_experts, d_model=16, d_ff=24, skew=0.0):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape)

    router = normal(d_model, n_experts)
    router[:, 0] += skew
    return (
        normal(n_tokens, d_model) + (0.5 if skew else 0.0),
        router,
        normal(n_experts, d_model, d_ff) / 4,
        normal(n_experts, d_model, d_ff) / 4,
        normal(n_experts, d_ff, d_model) / 4,
    )


def make_mesh(*shape):
    n = int(np.prod(shape))
    return jax.make_mesh(shape, sharding.AXES, axis_types=(AxisType.Explicit,) * 3, devices=jax.devices()[:n])


def place(mesh, inputs, dtype=jnp.float32):
    return [
        jax.device_put(jnp.asarray(x, dtype), NamedSharding(mesh, spec)) for x, spec in zip(inputs, SPECS, strict=True)
    ]


def mixture(mesh, **options):
    """The layer over a whole mesh, as a function of global arrays; dropless where capacity_factor is None."""

    def local(x_ND, router_DE, *weights):
        if options["capacity_factor"] is None:
            weights = [sharding.vary(w, ("data",)) for w in weights]
        y_ND, metrics = moe_layer.moe_layer(x_ND, router_DE, weights, **options)
        return sharding.total(y_ND, ("model",)), jax.tree.map(lambda m: sharding.mean(m, sharding.ROWS), metrics)

    return sharding.per_device(local, mesh, SPECS, (sharding.TOKENS, sharding.REPLICATED))


def run_mixture(mesh, arrays, **options):
    with jax.set_mesh(mesh):
        return jax.jit(mixture(mesh, **options))(*arrays)


@pytest.mark.parametrize(
    "n_experts, top_k, capacity_factor, skew, more",
    [
        (8, 1, 1.0, 0.3, {}),
        (4, 3, None, 1.0, {}),
        (8, 2, 1.0, 0.3, dict(normalize=False)),
        (8, 2, 1.0, 0.3, dict(score_fn="sigmoid", bias_E=np.linspace(0.5, -0.5, 8))),
        (16, 4, None, 0.3, dict(score_fn="sigmoid", normalize=False, bias_E=np.linspace(-0.5, 0.5, 16))),
        (16, 4, None, 2.0, dict(normalize=False, kernel="xla")),
    ],
)
def test_equals_numpy_choice_by_choice(n_experts, top_k, capacity_factor, skew, more):
    inputs, choice = make_inputs(192, n_experts, skew=skew), {k: v for k, v in more.items() if k != "kernel"}
    y, dropped, balance, z = reference(*inputs, 64, capacity_factor, top_k, **choice)
    mesh = make_mesh(1, 1, 1)
    options = dict(group_tokens=64, capacity_factor=capacity_factor, top_k=top_k) | more
    got, metrics = run_mixture(mesh, place(mesh, inputs), **options)
    np.testing.assert_allclose(got, y, atol=2e-5)
    assert [n for n in range(192) if not np.any(got[n])] == [n for n in range(192) if dropped.count(n) == top_k]
    assert (len(dropped) > 0) == (capacity_factor is not None)
    np.testing.assert_allclose(metrics["drop_rate"], len(dropped) / (192 * top_k), atol=1e-6)
    np.testing.assert_allclose([metrics["load_balance"], metrics["router_z"]], [balance, z], rtol=1e-5)


@functools.cache
def uneven(shape, top_k, kernel, skew):
    """(outputs, gradients of a sum over them) of a layer that drops nothing, on a mesh of this shape."""
    mesh, options = make_mesh(*shape), dict(group_tokens=64, capacity_factor=None, top_k=top_k, kernel=kernel)

    def f(*arrays):
        y = mixture(mesh, **options)(*arrays)[0]
        return jnp.sum(jnp.cos(y)), y

    with jax.set_mesh(mesh):
        arrays = place(mesh, make_inputs(512, 8, skew=skew))
        grads, y = jax.jit(jax.grad(f, argnums=range(5), has_aux=True))(*arrays)
    return jax.device_get((y, grads))


@pytest.mark.parametrize(
    "shape, top_k, kernel, skew",
    [
        ((2, 2, 2), 2, "xla", 0.0),
        ((2, 4, 1), 2, "even_shares", 3.0),
    ],
)
def test_nothing_is_dropped_on_any_mesh_however_uneven_the_load(shape, top_k, kernel, skew):
    """Values against NumPy, gradients against one device's; with the largest skew rows need several trips."""
    y, _, _, _ = reference(*make_inputs(512, 8, skew=skew), 64, None, top_k)
    (many, grads), (one, expected) = (uneven(mesh, top_k, kernel, skew) for mesh in (shape, (1, 1, 1)))
    np.testing.assert_allclose(many, y, atol=5e-5)
    np.testing.assert_allclose(one, y, atol=5e-5)
    for a, b in zip(grads, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4 * np.abs(b).max())


def test_two_choices_of_four_tokens_worked_by_hand():
    """Scores, choices, gates and drops of k = 2: three experts of capacity int(4 2 0.75 / 3) = 2."""
    score_SE = np.array([[0.5, 0.3, 0.2], [0.6, 0.1, 0.3], [0.7, 0.2, 0.1], [0.1, 0.5, 0.4]])
    expert_GJ, gate_GJ, metrics = routing.route(jnp.log(jnp.array([score_SE])), top_k=2)
    np.testing.assert_array_equal(expert_GJ, [[0, 0, 0, 1, 1, 2, 1, 2]])
    first, second = np.array([5, 6, 7, 5]) / np.array([8, 9, 9, 9]), np.array([3, 3, 2, 4]) / np.array([8, 9, 9, 9])
    np.testing.assert_allclose(gate_GJ, [[*first, *second]], rtol=1e-6)
    # expert 0 drops the first choice of token 2; expert 1 has token 3's first choice and drops token 2's second one
    choice_of_slot, slot_of_choice = moe_capacity.assign_slots(expert_GJ, n_experts=3, capacity=2)
    np.testing.assert_array_equal(choice_of_slot, [[0, 1, 3, 4, 5, 7]])
    np.testing.assert_array_equal(slot_of_choice, [[0, 1, UNASSIGNED, 2, 3, 4, UNASSIGNED, 5]])
    # three of eight choices fell on expert 0: 3 (0.475 3/8 + 0.275 3/8 + 0.25 2/8)
    np.testing.assert_allclose(metrics["load_balance"], [3 * (0.475 * 3 + 0.275 * 3 + 0.25 * 2) / 8], rtol=1e-6)
    np.testing.assert_allclose([metrics["max_load"], metrics["min_load"]], [[9 / 8], [6 / 8]], rtol=1e-6)

    _, gate_GJ, _ = routing.route(jnp.log(jnp.array([score_SE])), top_k=2, normalize=False)
    np.testing.assert_allclose(gate_GJ, [[0.5, 0.6, 0.7, 0.5, 0.3, 0.3, 0.2, 0.4]], rtol=1e-6)
    # a bias changes who is chosen and not the gates
    expert_GJ, gate_GJ, metrics = routing.route(
        jnp.log(jnp.array([score_SE])), jnp.array([0.0, 0.0, 0.35]), top_k=2, normalize=False
    )
    np.testing.assert_array_equal(expert_GJ, [[2, 2, 0, 2, 0, 0, 2, 1]])
    np.testing.assert_allclose(gate_GJ, [[0.2, 0.3, 0.7, 0.4, 0.5, 0.6, 0.1, 0.5]], rtol=1e-6)
    np.testing.assert_array_equal(metrics["chosen"], [[3, 1, 4]])


def test_choices_are_counted_on_each_device():
    n_experts = 100
    mesh, expert_GJ = make_mesh(8, 1, 1), np.random.default_rng(0).integers(n_experts, size=(16, 50))
    with jax.set_mesh(mesh):
        count = sharding.per_device(
            lambda e: routing.count_choices(e, n_experts), mesh, (sharding.TOKENS,), sharding.TOKENS
        )
        got_GE = jax.jit(count)(jax.device_put(expert_GJ, NamedSharding(mesh, sharding.TOKENS)))
    np.testing.assert_array_equal(got_GE, [np.bincount(row, minlength=n_experts) for row in expert_GJ])


def test_the_bias_moves_towards_the_mean_load():
    bias_LE, chosen_LE = jnp.array([[0.0, 0.5, -0.5, 1.0], [0.0] * 4]), jnp.array([[7, 1, 4, 4], [3, 3, 3, 4]])
    expected = [[-0.1, 0.6, -0.5, 1.0], [0.1, 0.1, 0.1, -0.1]]
    np.testing.assert_allclose(routing.updated_bias(bias_LE, chosen_LE, 0.1), expected, rtol=1e-6)


def loss(mesh, options):
    """Of the layer's arrays: a sum to derive, and (outputs, metrics)."""

    def f(*arrays):
        y, metrics = mixture(mesh, **options)(*arrays)
        weight = jnp.sin(jnp.arange(y.size).reshape(y.shape))  # every output matters, each differently
        mean = jnp.sum(y * jax.sharding.reshard(weight, P(("data", "expert")))) / len(y)
        return mean + 0.1 * metrics["load_balance"] + 0.01 * metrics["router_z"], (y, metrics)

    return f


@functools.cache
def value_and_gradient(shape, top_k, capacity_factor=1.0, **kernel):
    """(outputs, metrics, loss, its gradients) of the same inputs on a mesh of this shape."""
    inputs, mesh = make_inputs(512, 8, skew=0.2), make_mesh(*shape)
    options = dict(group_tokens=64, capacity_factor=capacity_factor, top_k=top_k) | kernel
    arrays = place(mesh, inputs)
    with jax.set_mesh(mesh):
        of = jax.value_and_grad(loss(mesh, options), argnums=tuple(range(5)), has_aux=True)
        (value, (y, metrics)), grads = jax.jit(of)(*arrays)
    return jax.device_get((y, metrics, value, grads))


@pytest.mark.parametrize(
    "shape, top_k",
    [((1, 8, 1), 1), ((2, 2, 2), 2)],
)
def test_eight_devices_equal_one_in_value_and_gradient(shape, top_k):
    results = value_and_gradient((1, 1, 1), top_k), value_and_gradient(shape, top_k)
    assert 0 < results[0][1]["drop_rate"] < 1
    for one, eight in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(eight, one, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("shape, top_k", [((1, 1, 1), 1), ((2, 2, 2), 2)])
def test_choices_sorted_by_expert_equal_choices_in_blocks(shape, top_k):
    """In value and gradient; the first is what a TPU runs."""
    results = value_and_gradient((1, 1, 1), top_k, None), value_and_gradient(shape, top_k, None, kernel="xla")
    for blocks, in_order in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(in_order, blocks, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "top_k, capacity_factor, score_fn", [(1, 1.0, "softmax"), (2, 1.0, "sigmoid"), (2, None, "softmax")]
)
def test_gradient_is_the_numerical_one(top_k, capacity_factor, score_fn):
    inputs = make_inputs(64, 4, d_model=6, d_ff=5, skew=0.3)
    options = dict(group_tokens=32, capacity_factor=capacity_factor, top_k=top_k, score_fn=score_fn)
    mesh = make_mesh(1, 1, 1)
    with jax.enable_x64(True), jax.set_mesh(mesh):
        arrays = place(mesh, inputs, jnp.float64)
        both = jax.jit(jax.value_and_grad(lambda *arrays: loss(mesh, options)(*arrays)[0], argnums=tuple(range(5))))
        _, grads = both(*arrays)
        rng = np.random.default_rng(1)
        for i, (array, grad) in enumerate(zip(arrays, grads, strict=True)):
            direction = rng.normal(size=array.shape)
            step = 1e-5 if i != 1 else 1e-6  # the router works in float32 on x, so its numerical gradient is coarser

            def shift(sign, i=i, step=step, direction=direction):
                return [a + sign * step * direction if j == i else a for j, a in enumerate(arrays)]

            numerical = (both(*shift(1))[0] - both(*shift(-1))[0]) / (2 * step)
            np.testing.assert_allclose(jnp.sum(grad * direction), numerical, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("capacity_factor, kernel", [(1.0, {}), (None, {}), (None, dict(kernel="xla"))])
def test_backward_has_no_scatter_over_tokens(capacity_factor, kernel):
    """The gradient of dispatch and combine is a gather: no scatter in the program touches an array of width d."""
    inputs = make_inputs(128, 4, d_model=40)
    mesh = make_mesh(1, 1, 1)
    arrays = place(mesh, inputs)
    options = dict(group_tokens=64, capacity_factor=capacity_factor, top_k=2) | kernel
    with jax.set_mesh(mesh):
        text = jax.jit(jax.grad(loss(mesh, options), argnums=(0, 1, 2, 3, 4), has_aux=True)).lower(*arrays).as_text()
    scatters = [line for line in text.splitlines() if "stablehlo.scatter" in line]
    assert not any("x40xf32" in line for line in scatters)
    assert "stablehlo.gather" in text
