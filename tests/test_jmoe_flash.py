"""Attention in blocks and the TPU's kernels against the float32 one, in value and gradient; a whole step with flash.

The kernels run here in Pallas's interpreters: the plain one, and the TPU's, whose memory is NaN until it is written.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from configs import quickstart
from jmoe.cost.topologies import topology_devices
from jmoe.model import flash, sharding, tpu_flash
from jmoe.model.decoder import init_params
from jmoe.model.loss import loss_fn


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(function, q, k, v, dy):
    y, backward = jax.vjp(function, q, k, v)
    return y, *backward(dy.astype(y.dtype))


def exact(q, k, v):
    score = jnp.einsum("bqhk,bshk->bhqs", q, k) / q.shape[-1] ** 0.5
    t = q.shape[1]
    score = jnp.where(jnp.tri(t, dtype=bool), score, -jnp.inf)
    return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(score), v)


def differences(got, inputs):
    """Relative to the float32 attention: of the output and of the three gradients."""
    want = value_and_gradients(exact, *inputs)
    return [float(np.linalg.norm(np.float32(a) - b) / np.linalg.norm(b)) for a, b in zip(got, want)]


def normal(*shape):
    return [jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 4)]


kernels = functools.partial(tpu_flash.attention, interpret=True)
kernels_as_on_a_tpu = functools.partial(tpu_flash.attention, interpret=pltpu.InterpretParams())


@pytest.mark.parametrize(
    "function, shape",
    [
        pytest.param(flash.blocks, (1, 2_048, 2, 128), id="blocks"),
        pytest.param(kernels, (2, 128, 1, 16), id="kernels of 128, one block"),
        pytest.param(kernels, (2, 384, 2, 64), id="kernels of 64, three blocks"),
        pytest.param(kernels, (1, 2_048, 2, 128), id="kernels of 128, four blocks"),
        pytest.param(kernels_as_on_a_tpu, (1, 384, 2, 64), id="kernels as on a TPU"),
    ],
)
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 5e-6), (jnp.bfloat16, 1e-2)])
def test_blocks_and_kernels_equal_attention_over_all_positions_at_once(
    function, shape, dtype, tolerance, record_property
):
    inputs = normal(*shape)
    found = differences(value_and_gradients(function, *(x.astype(dtype) for x in inputs)), inputs)
    names = "output", "gradient of queries", "keys", "values"
    record_property("table", ", ".join(f"{name} {one:.2g}" for name, one in zip(names, found)))
    assert max(found) < tolerance
    assert dtype == jnp.float32 or min(found) > 1e-4  # it was rounded, or float32 was measured against itself


def test_kernels_are_the_same_spread_over_a_mesh():
    """shard_map with its check of what varies, as the model runs: rows over data, heads over model."""
    inputs, spec = normal(2, 256, 4, 16), P("data", None, "model")
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    spread = jax.shard_map(
        lambda *inputs: value_and_gradients(kernels, *inputs), mesh=mesh, in_specs=(spec,) * 4, out_specs=(spec,) * 4
    )
    got = jax.jit(spread)(*(jax.device_put(x, jax.NamedSharding(mesh, spec)) for x in inputs))
    assert max(differences(got, inputs)) < 1e-6


@pytest.mark.parametrize(
    "t, k, taken",
    [(128, 64, True), (2_048, 128, True), (8_192, 128, True), (16_384, 128, False), (192, 64, False), (256, 8, False)],
)
def test_a_tpu_takes_the_kernels_where_they_fit_and_blocks_elsewhere(t, k, taken):
    pytest.importorskip("libtpu", reason="SKIPPED: nothing was compiled for a TPU, libtpu (the [tpu] extra) is missing")
    mesh = jax.sharding.Mesh(topology_devices("v5e:2x2")[:1], ("data",))
    x = jax.ShapeDtypeStruct((2, t, 2, k), jnp.float32, sharding=jax.NamedSharding(mesh, P()))
    with jax.set_mesh(mesh):
        run = jax.shard_map(
            lambda *inputs: value_and_gradients(flash.attention, *inputs), mesh=mesh, in_specs=P(), out_specs=P()
        )
        lowered = jax.jit(run).lower(x, x, x, x)
        text = lowered.compile().as_text() if taken else lowered.as_text()  # the TPU's compiler takes them, too
    assert text.count("tpu_custom_call") == (2 if taken else 0)


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
            placed = jax.device_put(params, sharding.parameter_shardings(mesh, config.model))
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
