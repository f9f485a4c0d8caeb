"""config.optimizer.name = "muon": against NumPy in float64, on a mesh; what its state takes."""

import jax
import numpy as np
import pytest

from jmoe.config import counts
from jmoe.model import sharding
from jmoe.run import step
from launch import preflight
from tests.jmoe.model.test_model import make_params, tiny, train_steps

FINE = dict(n_experts=4, top_k=2, d_expert=24, n_shared_experts=1, n_blocks=3, n_kv_heads=2)


def muon(**model):
    config = tiny(**dict(d_model=32, n_heads=4) | FINE | model)
    config.optimizer.name = "muon"
    return config


def newton_schulz(x):
    """Jordan's five steps on one matrix."""
    if len(x) > len(x.T):
        return newton_schulz(x.T).T
    x = x / np.sqrt(np.sum(x**2))
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def each_matrix(name, x):
    """The matrices in a stacked weight, as views [in, out] of it."""
    for layer in x:
        if name in ("q", "kv", "qkv"):
            yield from (layer[:, i].reshape(len(layer), -1) for i in range(layer.shape[1]))
        elif name == "out":
            yield layer.reshape(-1, layer.shape[-1])
        else:
            yield from layer if layer.ndim == 3 else [layer]


def numpy_update(path, state, grad, count):
    """The update of one weight in step `count`, 1 for the first; `state` are its moments, which it changes."""
    name, role = path[-1], "stacked" if len(path) > 1 else "ends"
    m, v = state
    if role == "ends" or name in ("router", "scale", "bias", "q_norm", "k_norm"):
        m[:], v[:] = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        return m / (1 - 0.9**count) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8)
    m[:] = 0.95 * m + 0.05 * grad
    nesterov = 0.95 * m / (1 - 0.95 ** (count + 1)) + 0.05 * grad / (1 - 0.95**count)
    made = [0.2 * np.sqrt(max(x.shape)) * newton_schulz(x) for x in each_matrix(name, nesterov)]
    if name in ("q", "kv", "qkv"):
        by_layer = [made[i : i + grad.shape[2]] for i in range(0, len(made), grad.shape[2])]
        return np.stack([np.stack(layer, axis=1) for layer in by_layer]).reshape(grad.shape)
    return np.stack(made).reshape(grad.shape)


def test_three_steps_equal_numpy():
    """With the clipping, the decay and the rest that they share with AdamW."""
    config = muon()
    config.optimizer.grad_clip, rate = 1.0, 0.01
    mesh = sharding.make_mesh(config, jax.devices()[:1])

    def names(tree):
        return {tuple(k.key for k in path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}

    rng = np.random.default_rng(0)
    with jax.set_mesh(mesh):
        params = make_params(config, mesh)
        optimizer = step.make_optimizer(config)
        state, update = jax.jit(optimizer.init)(params), jax.jit(optimizer.update)
        expected = {path: np.array(x, np.float64) for path, x in names(params).items()}
        moments = {path: (np.zeros(x.shape), np.zeros(x.shape)) for path, x in expected.items()}
        for count in (1, 2, 3):
            grads = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)
            norm = np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in jax.tree.leaves(grads)))
            for path, grad in names(grads).items():
                made = numpy_update(path, moments[path], np.float64(grad) / norm, count)
                expected[path] = expected[path] - rate * (made + 0.1 * expected[path])
            placed = jax.tree.map(lambda g, p: jax.device_put(g, p.sharding), grads, params)
            updates, state = update(placed, state, params)
            params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
    for path, x in names(jax.device_get(params)).items():
        np.testing.assert_allclose(x, expected[path], atol=2e-6, err_msg=str(path))


def history(config, n_devices, expert=1, model=1):
    config.mesh.expert, config.mesh.model = expert, model
    found, *state = train_steps(config, sharding.make_mesh(config, jax.devices()[:n_devices]), 3)
    return [(metrics["loss"], metrics["grad_norm"]) for metrics in found], state


@pytest.mark.parametrize("parametrization, fields", [("standard", {}), ("mup", dict(n_kv_heads=0))])
def test_the_mesh_changes_nothing(parametrization, fields):
    """Two devices on each axis: experts, keys and values are exchanged, the matrices of three layers are gathered."""
    config = muon(**fields)
    config.parametrization, config.mup_base.d_model, config.mup_base.head_dim = parametrization, 16, 4
    (one, state), (eight, other) = history(config, 1), history(config, 8, 2, 2)
    np.testing.assert_allclose(eight, one, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        assert np.linalg.norm(b - a) <= 1e-4 * np.linalg.norm(a)


def test_its_state_is_one_moment_of_each_matrix_and_two_of_the_rest():
    config = muon()
    _, opt_state = step.abstract_state(config, sharding.make_mesh(config, jax.devices()[:1]))
    held = sum(x.size for x in jax.tree.leaves(opt_state)) - 5  # two counts and three coefficients
    matrices = counts.n_exact(config.model, roles=counts.MATRICES)
    assert held == 2 * counts.n_exact(config.model) - matrices
    least = preflight.least_bytes(config, (1, 1, 1))
    config.optimizer.name = "adamw"
    assert preflight.least_bytes(config, (1, 1, 1)) - least == 4 * matrices
