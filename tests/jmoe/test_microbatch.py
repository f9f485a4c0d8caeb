"""Gradients summed over microbatches against those of the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import quickstart
from jmoe.cost.memory import compile_step
from jmoe.model import sharding
from jmoe.model.parameters import init_params, parameter_shardings
from jmoe.run.step import gradient, make_optimizer, make_train_step


def small(n_experts: int, expert: int = 1, model: int = 1):
    config = quickstart.get_config()
    config.model.d_model, config.model.n_experts, config.model.group_tokens = 16, n_experts, 64
    config.data.seq_len, config.batch_tokens = 32, ((0, 1_024),)
    config.mesh.expert, config.mesh.model = expert, model
    return config


def two_steps(config, mesh, batches):
    """(params, opt_state) after two steps, and the metrics of each."""
    with jax.set_mesh(mesh):
        place = jax.NamedSharding(mesh, sharding.TOKENS)
        placed = parameter_shardings(mesh, config.model)
        params = jax.jit(lambda: init_params(config), out_shardings=placed)()
        state, told = (params, make_optimizer(config).init(params)), []
        step = make_train_step(config, mesh)
        for batch in batches:
            *state, metrics = step(*state, jax.device_put(batch, place), np.float32(1e-2))
            told.append(metrics)
        return jax.device_get((tuple(state), told))


@pytest.mark.parametrize("n_devices, expert, model, n_experts", [(8, 2, 2, 4), (1, 1, 1, 1)])
def test_microbatches_are_the_same_mathematics(n_devices, expert, model, n_experts):
    """Loss, gradient norm, drops and what follows; on one device and on a mesh."""
    config = small(n_experts, expert, model)
    mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
    batches = np.random.default_rng(0).integers(257, size=(2, 32, 33)).astype(np.int32)
    whole, told = two_steps(config, mesh, batches)
    config.microbatch_tokens = 256
    summed, again = two_steps(config, mesh, batches)
    for one, other in zip(told, again, strict=True):
        assert jax.tree.structure(one) == jax.tree.structure(other)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-6), one, other)
    if n_experts > 1:
        assert told[0]["drop_rate"] > 0
        np.testing.assert_array_equal(told[0]["drop_rate"], again[0]["drop_rate"])  # the very same tokens
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(summed), strict=True):
        # as a whole: where a gradient is almost zero, Adam makes a step of its rounding error
        assert one.dtype == other.dtype and np.linalg.norm(other - one) <= 3e-4 * np.linalg.norm(one)


def test_memory_falls_with_the_microbatch():
    """What lives during the step beside parameters and moments: of an eighth of the batch, under a third."""
    config = small(4)
    config.data.seq_len, config.batch_tokens = 128, ((0, 32_768),)
    temporaries = {}
    for micro in (0, 4_096):
        config.microbatch_tokens = micro
        _, compiled = compile_step(config, jax.devices()[:1])
        temporaries[micro] = compiled.memory_analysis().temp_size_in_bytes
    assert temporaries[4_096] < temporaries[0] / 3


def test_gradients_are_summed_in_float32():
    config = small(1)
    config.model.dtype, config.microbatch_tokens = "bfloat16", 256
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        params = jax.eval_shape(lambda: init_params(config))
        batch = jax.ShapeDtypeStruct((32, 33), jnp.int32)
        carried = jax.make_jaxpr(lambda p, b: gradient(p, b, config, mesh))(params, batch)
    scan = [e for e in carried.eqns if e.primitive.name == "scan" and e.params["length"] == 4]
    assert len(scan) == 1
    assert {v.aval.dtype for v in scan[0].outvars} == {jnp.dtype("float32")}
