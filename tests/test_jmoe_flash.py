"""Attention in blocks against the float32 one, in value and gradient; the flash path through a whole training step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import quickstart
from jmoe import flash, sharding
from jmoe.step import init_params, loss_fn


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(function, q, k, v, dy):
    y, backward = jax.vjp(function, q, k, v)
    return y, *backward(dy.astype(y.dtype))


def exact(q, k, v):
    score = jnp.einsum("bqhk,bshk->bhqs", q, k) / q.shape[-1] ** 0.5
    t = q.shape[1]
    score = jnp.where(jnp.tri(t, dtype=bool), score, -jnp.inf)
    return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(score), v)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-6), (jnp.bfloat16, 1e-2)])
def test_blocks_equal_attention_over_all_positions_at_once(dtype, tolerance):
    shape = 2, 2 * flash.BLOCK, 2, 16
    inputs = [jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 4)]
    got = value_and_gradients(flash.blocks, *(x.astype(dtype) for x in inputs))
    for a, b in zip(got, value_and_gradients(exact, *inputs)):
        difference = np.linalg.norm(np.float32(a) - b) / np.linalg.norm(b)
        assert difference < tolerance
        assert dtype == jnp.float32 or difference > 1e-4  # it was rounded, or float32 was measured against itself


def test_flash_is_a_small_rounding_away_from_float32_on_any_mesh():
    config = quickstart.get_config()
    config.model.d_model, config.model.n_blocks, config.data.seq_len = 16, 1, 64
    params = jax.jit(lambda: init_params(config))()
    batch = jnp.asarray(np.random.default_rng(0).integers(257, size=(8, 65)), jnp.int32)
    losses = {}
    for kind, n_devices in (("float32", 1), ("flash", 1), ("flash", 4)):
        config.model.attention = kind
        mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
        with jax.set_mesh(mesh):
            placed = jax.device_put(params, sharding.parameter_shardings(mesh, params))
            rows = jax.device_put(batch, jax.NamedSharding(mesh, sharding.TOKENS))
            losses[kind, n_devices] = float(jax.jit(lambda p, b: loss_fn(p, b, config, mesh)[0])(placed, rows))
    assert losses["flash", 4] == pytest.approx(losses["flash", 1], rel=1e-5)
    assert losses["flash", 1] == pytest.approx(losses["float32", 1], rel=1e-3)
    assert losses["flash", 1] != losses["float32", 1]


def test_flash_keeps_no_square_array():
    """The largest array of the compiled gradient is a block of scores, not all of them."""
    q = jax.ShapeDtypeStruct((1, 4 * flash.BLOCK, 1, 8), jnp.float32)

    def largest(function):
        compiled = jax.jit(jax.grad(lambda q: jnp.sum(function(q, q, q)))).lower(q).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert largest(flash.blocks) < 0.6 * largest(exact)
