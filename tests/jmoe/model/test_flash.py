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
from jmoe.cost.program import Program
from jmoe.cost.topologies import topology_devices
from jmoe.model import attention, sharding, tpu_flash
from jmoe.model.loss import loss_fn
from jmoe.model.parameters import init_params, parameter_shardings


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(function, q, k, v, dy, document_BT=None):
    """Of attention; `document_BT` are the numbers of the documents that it stays within."""
    within = () if document_BT is None else (document_BT,)
    y, backward = jax.vjp(lambda q, k, v: function(q, k, v, *within), q, k, v)
    return y, *backward(dy.astype(y.dtype))


def exact(q, k, v, document_BT=None):
    """Float32 attention over all pairs of positions, without those of a later key and those of two documents."""
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    score = jnp.einsum("bqhk,bshk->bhqs", q, k) / q.shape[-1] ** 0.5
    visible = jnp.tri(q.shape[1], dtype=bool)
    if document_BT is not None:
        visible &= document_BT[:, None, :, None] == document_BT[:, None, None, :]
    return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(jnp.where(visible, score, -jnp.inf)), v)


def differences(got, inputs, document_BT=None):
    """Relative to the float32 attention: of the output and of the three gradients."""
    want = value_and_gradients(exact, *inputs, document_BT)
    return [float(np.linalg.norm(np.float32(a) - b) / np.linalg.norm(b)) for a, b in zip(got, want, strict=True)]


def normal(b, t, h, k, n_kv_heads=None):
    """Queries, keys, values and the gradient of what they give."""
    keys = jax.random.split(jax.random.key(0), 4)
    return [
        jax.random.normal(key, (b, t, n, k))
        for key, n in zip(keys, (h, n_kv_heads or h, n_kv_heads or h, h), strict=True)
    ]


kernels = functools.partial(tpu_flash.attention, interpret=True)
kernels_as_on_a_tpu = functools.partial(tpu_flash.attention, interpret=pltpu.InterpretParams())


SHAPES = {
    "kernels of 128, four blocks": (kernels, (1, 2_048, 2, 128)),
    "grouped, all positions at once": (attention.exact, (2, 96, 6, 16, 2)),
    "grouped, blocks": (attention.blocks, (1, 1_024, 4, 64, 2)),
    "grouped, kernels": (kernels, (2, 384, 6, 16, 2)),
    "grouped, as on a TPU": (kernels_as_on_a_tpu, (1, 256, 4, 16, 2)),
}
# each function once: where its inputs are rounded does not depend on the shape
ROUNDED = ("grouped, blocks", "kernels of 128, four blocks", "grouped, all positions at once", "grouped, as on a TPU")
CASES = [(name, jnp.float32, 5e-6) for name in SHAPES] + [(name, jnp.bfloat16, 1e-2) for name in ROUNDED]


@pytest.mark.parametrize("name, dtype, tolerance", CASES)
def test_blocks_and_kernels_equal_attention_over_all_positions_at_once(name, dtype, tolerance, record_property):
    function, shape = SHAPES[name]
    inputs = normal(*shape)
    found = differences(value_and_gradients(function, *(x.astype(dtype) for x in inputs)), inputs)
    names = "output", "gradient of queries", "keys", "values"
    record_property("table", ", ".join(f"{of} {error:.2g}" for of, error in zip(names, found, strict=True)))
    assert max(found) < tolerance
    assert dtype == jnp.float32 or min(found) > 1e-4  # it was rounded, or float32 was measured against itself


def test_heads_whose_gradient_does_not_fit_on_chip_are_worked_on_in_groups(monkeypatch):
    """Six heads share keys; the limit lets two of them be worked on at once, so that three gradients are summed."""
    inputs = normal(2, 256, 12, 16, 2)
    monkeypatch.setattr(tpu_flash, "GRADIENT_BYTES", 2 * 4 * 256 * 16)
    text = str(jax.make_jaxpr(functools.partial(value_and_gradients, kernels_as_on_a_tpu))(*inputs))
    assert "f32[12,16,512]" in text  # rows times groups, of two heads' queries
    assert max(differences(value_and_gradients(kernels_as_on_a_tpu, *inputs), inputs)) < 5e-6


def test_kernels_are_the_same_spread_over_a_mesh():
    """shard_map with its check of what varies, as the model runs: rows over data, heads over model."""
    inputs, spec = normal(2, 256, 4, 16, 2), P("data", None, "model")
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    spread = jax.shard_map(
        lambda *inputs: value_and_gradients(kernels, *inputs), mesh=mesh, in_specs=(spec,) * 4, out_specs=(spec,) * 4
    )
    got = jax.jit(spread)(*(jax.device_put(x, jax.NamedSharding(mesh, spec)) for x in inputs))
    assert max(differences(got, inputs)) < 1e-6


@pytest.mark.parametrize(
    "t, taken, w, documents",
    [(8_192, True, 1, False), (16_384, False, 1, False), (4_096, True, 8, False), (1_024, True, 4, True)],
)
def test_a_tpu_takes_the_kernels_where_they_fit_and_blocks_elsewhere(t, taken, w, documents, not_kept):
    pytest.importorskip("libtpu", reason="without libtpu: nothing was compiled for a TPU (the [tpu] extra)")
    mesh = jax.sharding.Mesh(topology_devices("v5e:2x2")[:1], ("data",))
    whole = jax.NamedSharding(mesh, P())
    k = 128
    q, kv = (jax.ShapeDtypeStruct((2, t, heads, k), jnp.float32, sharding=whole) for heads in (2 * w, 2))
    document_BT = [jax.ShapeDtypeStruct((2, t), jnp.int32, sharding=whole)] if documents else []
    with jax.set_mesh(mesh):
        run = jax.shard_map(
            functools.partial(value_and_gradients, attention.flash), mesh=mesh, in_specs=P(), out_specs=P()
        )
        lowered = jax.jit(run).lower(q, kv, kv, q, *document_BT)
        text = lowered.compile().as_text() if taken else lowered.as_text()  # the TPU's compiler takes them, too
    assert text.count("tpu_custom_call") == (2 if taken else 0)
    if taken:  # the kernels read keys and values of two rows' two heads, however many heads of queries share them
        calls = [line for line in text.splitlines() if "tpu_custom_call" in line]
        assert all(line.partition("custom-call(")[2].count(f"bf16[4,{k},{t}]") >= 2 for line in calls), calls


def test_keys_and_values_are_not_repeated_for_the_heads_that_share_them():
    """One query of 32 heads over 512 positions of 4: with repeated keys an array of 512 x 32 x 64 would be there."""
    q, kv = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, 1, 32, 64), (1, 512, 4, 64)))
    run = jax.jit(lambda q, k, v: attention.exact(q, k, v, start=511))
    arrays = Program(run.lower(q, kv, kv).compile().as_text()).arrays()
    assert max(array.elements for array in arrays) <= 512 * 4 * 64


def test_flash_is_a_small_rounding_away_from_float32_on_any_mesh():
    config = quickstart.get_config()
    config.model.d_model, config.model.n_blocks, config.data.seq_len = 16, 1, 64
    config.model.n_heads, config.model.n_kv_heads = 4, 2
    params = init_params(config)
    batch = jnp.asarray(np.random.default_rng(0).integers(257, size=(8, 65)), jnp.int32)
    losses = {}
    for kind, n_devices in (("float32", 1), ("flash", 1), ("flash", 4)):
        config.model.attention = kind
        mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
        with jax.set_mesh(mesh):
            placed = jax.device_put(params, parameter_shardings(mesh, config.model))
            rows = jax.device_put(batch, jax.NamedSharding(mesh, sharding.TOKENS))
            loss = jax.jit(lambda p, b, mesh=mesh: loss_fn(p, b, config, mesh)[0])
            losses[kind, n_devices] = float(loss(placed, rows))
    assert losses["flash", 4] == pytest.approx(losses["flash", 1], rel=1e-5)
    assert losses["flash", 1] == pytest.approx(losses["float32", 1], rel=1e-3)
    assert losses["flash", 1] != losses["float32", 1]


def test_flash_keeps_no_square_array():
    """The largest array of the compiled gradient is a block of scores, not all of them."""
    q = jax.ShapeDtypeStruct((1, 4 * attention.BLOCK, 1, 8), jnp.float32)

    def largest(function):
        compiled = jax.jit(jax.grad(lambda q: jnp.sum(function(q, q, q)))).lower(q).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert largest(attention.blocks) < 0.6 * largest(exact)


def test_gradients_of_keys_are_summed_over_blocks_in_float32(monkeypatch):
    """Over 64 blocks as exactly as over one: each adds to the gradient of all keys and values before it."""
    inputs = normal(1, 1_024, 2, 16)
    monkeypatch.setattr(attention, "BLOCK", 16)
    got = value_and_gradients(attention.blocks, *(x.astype(jnp.bfloat16) for x in inputs))
    errors = differences(got, inputs)
    assert max(errors) < 0.006, errors
