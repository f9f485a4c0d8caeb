"""Gradients summed over microbatches: their memory and their type. Their values: test_mixtures.py."""

import jax
import jax.numpy as jnp

from configs import quickstart
from jmoe.cost.memory import compile_step
from jmoe.model import sharding
from jmoe.model.parameters import init_params
from jmoe.run.step import gradient


def small(n_experts: int):
    config = quickstart.get_config()
    config.model.d_model, config.model.n_experts, config.model.group_tokens = 16, n_experts, 64
    config.data.seq_len, config.batch_tokens = 32, ((0, 1_024),)
    return config


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
