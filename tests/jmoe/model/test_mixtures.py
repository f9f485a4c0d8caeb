"""Whole models of several choices, narrow and shared experts, dense blocks, a bias that balances, and no drops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jmoe.model import loss, sharding
from tests.jmoe.model.test_model import (
    logits_of,
    make_params,
    numpy_dense,
    numpy_transformer,
    tiny,
    tokens_on,
    train_steps,
)
from tests.jmoe.model.test_moe import reference

FINE = dict(n_experts=8, top_k=2, d_expert=24, n_shared_experts=1, n_dense_blocks=1, n_blocks=3)
BALANCED = FINE | dict(balance="bias", scores="sigmoid")


def numpy_mixture(model, capacity_factor):
    """feed_forward of numpy_transformer, a row being a group; and the choices that it drops."""
    dropped = []

    def feed_forward(y_TD, b):
        if "router" not in b:
            return numpy_dense(y_TD, b)
        experts = b["router"], *(b["experts"][name] for name in ("gate", "up", "down"))
        options = dict(top_k=model.top_k, normalize=model.normalize_gates, score_fn=model.scores)
        routed, late, _, _ = reference(
            y_TD, *experts, len(y_TD), capacity_factor, bias_E=b.get("router_bias", 0.0), **options
        )
        dropped.extend(late)
        return routed + (numpy_dense(y_TD, b["shared"]) if "shared" in b else 0)

    return feed_forward, dropped


@pytest.mark.parametrize(
    "fields, training",
    [(FINE | dict(normalize_gates=False, n_shared_experts=2, top_k=3), True), (BALANCED, True), (BALANCED, False)],
)
def test_logits_equal_numpy(fields, training):
    config = tiny(**fields, group_tokens=24, norm="rms", final_norm=True)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        params = jax.tree.map(lambda x: 3 * x, make_params(config, mesh))  # larger weights show more
        if "router_bias" in params["blocks"]["mlp"]:
            params["blocks"]["mlp"]["router_bias"] = 0.3 * jax.random.normal(jax.random.key(1), (2, 8))
        tokens = tokens_on(mesh, (2, 24))
        logits = jax.jit(lambda params, tokens: logits_of(params, tokens, config, training, mesh))(params, tokens)
    feed_forward, dropped = numpy_mixture(config.model, 1.0 if training else None)
    expected = numpy_transformer(jax.device_get(params), np.asarray(tokens), config.model, feed_forward)
    assert expected.std() > 0.1 and bool(dropped) == training
    np.testing.assert_allclose(logits, expected, atol=2e-4)


def test_alike_experts_are_the_dense_model():
    """In loss and gradient: gates that sum to 1 over equal experts; the experts' gradients sum to the dense layer's."""
    dense, mixed = (tiny(n, top_k=k, capacity_factor=None, norm="rms") for n, k in ((1, 1), (4, 2)))
    for config in (dense, mixed):
        config.loss.load_balance = config.loss.router_z = 0.0
    mesh = sharding.make_mesh(dense, jax.devices()[:1])
    with jax.set_mesh(mesh):
        params, batch = make_params(dense, mesh), tokens_on(mesh, (4, 33))
        router = make_params(mixed, mesh)["blocks"]["mlp"]["router"]
        experts = jax.tree.map(lambda weight: jnp.repeat(weight[:, None], 4, axis=1), params["blocks"]["mlp"])
        alike = params["blocks"] | {"mlp": {"router": router, "experts": experts}}

        def value(config):
            return jax.jit(jax.value_and_grad(lambda p: loss.loss_fn(p, batch, config, mesh)[0]))

        one, grads = value(dense)(params)
        other, of_mixture = value(mixed)(params | {"blocks": alike})
    np.testing.assert_allclose(other, one, rtol=1e-6)
    blocks = of_mixture["blocks"]
    assert np.abs(blocks["mlp"]["router"]).max() < 1e-6  # any choice gives the same
    blocks["mlp"] = jax.tree.map(lambda gradient: gradient.sum(axis=1), blocks["mlp"]["experts"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), of_mixture, grads)


@functools.cache
def history(names, n_devices=1, expert=1, model=1, micro=0):
    """(metrics of four steps, last parameters, optimizer state) of the fields `names`, a sorted tuple of items."""
    config = tiny(**dict(names), d_model=64, n_heads=8)
    config.mesh.expert, config.mesh.model, config.microbatch_tokens = expert, model, micro
    config.optimizer.bias_rate = 0.01
    if micro:  # what is saved for the backward pass changes nothing either
        config.remat, config.unroll = "dots", True
    return train_steps(config, sharding.make_mesh(config, jax.devices()[:n_devices]), 4)


BIAS = tuple(sorted(BALANCED.items()))
DROPLESS = tuple(sorted((FINE | dict(capacity_factor=None)).items()))


# devices, expert and model axis, tokens of a microbatch
@pytest.mark.parametrize(
    "names, place",
    [(BIAS, (8, 2, 2, 256)), (DROPLESS, (8, 2, 2, 256))],
)
def test_mesh_and_microbatches_change_nothing(names, place):
    one, params, _ = history(names)
    other, moved, _ = history(names, *place)
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"layers"}:
            np.testing.assert_allclose(b[name], a[name], rtol=1e-4, atol=1e-7, err_msg=name)
        np.testing.assert_array_equal(b["layers"]["drop_rate"], a["layers"]["drop_rate"])
    assert (one[0]["drop_rate"] > 0) == (names is BIAS)
    if names is BIAS:
        bias = params["blocks"]["mlp"]["router_bias"]
        np.testing.assert_array_equal(moved["blocks"]["mlp"]["router_bias"], bias)
        assert len(np.unique(bias)) > 3 and np.abs(bias).max() <= 0.04 + 1e-6  # steps of the rate, up or down


def test_the_bias_is_left_to_its_own_rule():
    """No moments, no decay, no share in the gradient's norm; and no balance loss in the loss."""
    found, params, opt_state = history(BIAS)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(opt_state)]
    assert any("router" in path for path in paths) and not any("router_bias" in path for path in paths)
    for metrics in found:
        np.testing.assert_allclose(metrics["loss"], metrics["cross_entropy"] + 0.001 * metrics["router_z"], rtol=1e-6)
    bias = params["blocks"]["mlp"]["router_bias"]
    assert bias.shape == (2, 8) and bias.dtype == np.float32
