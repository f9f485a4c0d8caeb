"""The lookup of tokens on meshes against NumPy: the table is gathered, or the rows looked up are exchanged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from jmoe.model import embedding, param, sharding

VOCAB_SIZE = 257


def on_mesh(expert, model, d_model, dtype="float32"):
    """(mesh, spec of the table, the sum of weighted rows as a function of table, tokens and weights)."""
    axis_types = (AxisType.Explicit,) * 3
    mesh = jax.make_mesh((8 // (expert * model), expert, model), sharding.AXES, axis_types=axis_types)
    shape = (VOCAB_SIZE, d_model)
    axes = (None, "data")
    spec = param.Description(shape, axes, param.EMBEDDING).spec(mesh.shape)

    def local(table, tokens_BT, weight_BTD):
        parameter = param.param(nnx.Rngs(params=0), shape, axes, param.EMBEDDING).replace(table.astype(dtype))
        x_BTD = embedding.embed(parameter, tokens_BT, VOCAB_SIZE)
        return sharding.total(jnp.sum(x_BTD * weight_BTD), sharding.ROWS)

    specs = (spec, sharding.TOKENS, sharding.TOKENS)
    return mesh, spec, sharding.per_device(local, mesh, specs, sharding.REPLICATED)


@pytest.mark.parametrize(
    "expert, model, d_model, row_length, exchanged",
    [
        (8, 1, 1024, 8, True),
        (2, 2, 512, 8, True),
        (1, 1, 1024, 129, False),  # a device looks up more rows than the table has
        (4, 1, 256, 8, True),  # slices of 32 numbers: four neighbours gather theirs
        (1, 1, 64, 8, False),  # the table has no slices that are wide enough
        (2, 1, 516, 8, True),  # 516 divides over four devices of data, not over eight
        (8, 1, 516, 8, False),  # the data axis has one device, and 516 does not divide over the expert axis
    ],
)
def test_values_and_gradient_equal_numpy(expert, model, d_model, row_length, exchanged):
    mesh, spec, weighted_sum = on_mesh(expert, model, d_model)
    rng = np.random.default_rng(0)
    table = rng.normal(size=(VOCAB_SIZE, d_model)).astype(np.float32)
    tokens = rng.integers(VOCAB_SIZE, size=(16, row_length)).astype(np.int32)
    weight = rng.normal(size=(16, row_length, d_model)).astype(np.float32)
    expected_gradient = np.zeros(table.shape)
    np.add.at(expected_gradient, tokens, weight.astype(np.float64))
    with jax.set_mesh(mesh):
        rows = jax.NamedSharding(mesh, sharding.TOKENS)
        args = (
            jax.device_put(table, jax.NamedSharding(mesh, spec)),
            jax.device_put(tokens, rows),
            jax.device_put(weight, rows),
        )
        assert ("all_to_all" in str(jax.make_jaxpr(weighted_sum)(*args))) == exchanged
        value, gradient = jax.jit(jax.value_and_grad(weighted_sum))(*args)
    np.testing.assert_allclose(value, np.sum(table[tokens] * weight, dtype=np.float64), rtol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("expert", [1, 2])
def test_rows_of_one_token_are_summed_in_float32(expert):
    """In bfloat16, a sum of ones stops at 256."""
    mesh, spec, weighted_sum = on_mesh(expert, 1, 1024, "bfloat16")
    with jax.set_mesh(mesh):
        rows = jax.NamedSharding(mesh, sharding.TOKENS)
        table = jax.device_put(np.ones((VOCAB_SIZE, 1024), np.float32), jax.NamedSharding(mesh, spec))
        tokens = jax.device_put(np.full((64, 16), 3, np.int32), rows)
        weight = jax.device_put(np.ones((64, 16, 1024), np.float32), rows)
        gradient = jax.jit(jax.grad(weighted_sum))(table, tokens, weight)
    np.testing.assert_array_equal(gradient[3], 1024)
    assert not np.any(np.delete(np.asarray(gradient), 3, axis=0))
