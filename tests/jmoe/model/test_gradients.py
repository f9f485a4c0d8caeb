"""Gradients of a model that computes in bfloat16 against float32's: no sum of many terms is rounded term by term."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import joint_moe
from jmoe.model import sharding
from jmoe.model.parameters import init_params, parameter_shardings
from jmoe.run.step import abstract_state, gradient

VOCAB_SIZE = 256


def small(n_tokens: int = 65_536, **model):
    """The recipe, tiny and with short rows, batches of `n_tokens`; `model` changes config.model."""
    config = joint_moe.get_config()
    config.model.d_model = 16
    config.model.n_blocks = 1
    config.model.n_heads = 2
    config.model.vocab_size = VOCAB_SIZE
    config.model.group_tokens = 256
    config.data.seq_len = 32
    config.batch_tokens = ((0, n_tokens),)
    for name, value in model.items():
        config.model[name] = value
    return config


def zipf_batch(config):
    """[rows, seq_len + 1] tokens of which the r-th commonest has a share of 1 / r of the commonest's."""
    shares = 1 / np.arange(1, VOCAB_SIZE + 1)
    rows = config.batch_tokens[0][1] // config.data.seq_len
    tokens = np.random.default_rng(0).choice(VOCAB_SIZE, size=(rows, config.data.seq_len + 1), p=shares / shares.sum())
    return tokens.astype(np.int32)


def gradients(config, n_devices: int) -> dict[str, np.ndarray]:
    """The gradient of each parameter at its initial value, by the path of its name."""
    mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
    with jax.set_mesh(mesh):
        placed = parameter_shardings(mesh, config.model)
        params = jax.jit(lambda: init_params(config), out_shardings=placed)()
        batch = jax.device_put(zipf_batch(config), jax.NamedSharding(mesh, sharding.TOKENS))
        _, grads = jax.jit(lambda params, batch: gradient(params, batch, config, mesh))(params, batch)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(grads)}


def check(config, *cases):
    """In each case (devices, devices of the expert axis, microbatch_tokens) each gradient is within 1%."""
    config.model.dtype = "float32"
    exact = gradients(config, 1)
    config.model.dtype = "bfloat16"
    for n_devices, config.mesh.expert, config.microbatch_tokens in cases:
        rounded = gradients(config, n_devices)
        errors = {name: np.linalg.norm(rounded[name] - exact[name]) / np.linalg.norm(exact[name]) for name in exact}
        assert max(errors.values()) < 0.01, (n_devices, config.mesh.expert, config.microbatch_tokens, errors)


def test_gradients_in_bfloat16_are_those_in_float32():
    """On one device, on eight, and with microbatches, though the commonest token is a sixth of all."""
    check(small(), (1, 1, 0), (8, 1, 0), (1, 1, 8_192))


def test_gradients_of_experts_in_bfloat16_are_those_in_float32():
    """A token chooses all of them, so that no rounding changes its choice. With mup and tied embeddings; at last with
    experts on other devices, and nothing dropped."""
    config = small(4_096, n_experts=4, top_k=4, tied_embeddings=True)
    config.parametrization, config.mup_base.d_model = "mup", 32
    check(config, (1, 1, 0))
    config.model.capacity_factor = None
    check(config, (8, 2, 0))


def programs_in(value) -> list:
    """The jaxprs among the parameters of an equation: bodies of loops, and functions that it calls."""
    if isinstance(value, tuple | list):
        return [jaxpr for item in value for jaxpr in programs_in(item)]
    value = getattr(value, "jaxpr", value)
    return [value] if hasattr(value, "eqns") else []


def rounded_sums(jaxpr) -> list[tuple[str, int]]:
    """Each (primitive, number of terms) of a program that sums more than 8 numbers in bfloat16, or over several of the
    devices that have different tokens.

    Products of matrices are none of them: devices sum their terms in float32. The others sum in their result's type.
    """
    found = []
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        operands = [variable.aval for variable in equation.invars]
        n_terms, over_devices = 1, False
        if name == "reduce_sum":
            n_terms = math.prod(operands[0].shape[axis] for axis in params["axes"])
        elif name == "cumsum":
            n_terms = operands[0].shape[params["axis"]]
        elif name == "scatter-add":
            n_terms = math.prod(operands[1].shape[:-1])
        elif name == "reduce_scatter":
            over_devices = True
        elif name.startswith("psum"):
            over_devices = "expert" in params["axes"]
        if n_terms > 8 or over_devices:
            if any(variable.aval.dtype == jnp.bfloat16 for variable in equation.outvars):
                found.append((name, n_terms))
        for value in params.values():
            for inner in programs_in(value):
                found += rounded_sums(inner)
    return found


@pytest.mark.parametrize(
    "n_devices, expert, model",
    [
        (8, 2, dict(norm="rms", qk_norm="projection", n_kv_heads=1, n_experts=4, n_shared_experts=1)),
        (8, 2, dict(n_experts=4, top_k=2, capacity_factor=None, balance="bias", scores="sigmoid", n_dense_blocks=1)),
    ],
)
def test_no_sum_of_many_terms_is_in_bfloat16(n_devices, expert, model, monkeypatch):
    """Neither over tokens nor over hidden units, nor over devices, of which here two are many."""
    monkeypatch.setattr(sharding, "FEW", 1)
    config = small(d_model=32, n_blocks=2, **model)  # heads of 16, so that sums over them have many terms
    config.model.dtype, config.mesh.expert = "bfloat16", expert
    mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
    with jax.set_mesh(mesh):
        params, _ = abstract_state(config, mesh)
        batch = jax.ShapeDtypeStruct((64, 33), jnp.int32, sharding=jax.NamedSharding(mesh, sharding.TOKENS))
        traced = jax.make_jaxpr(lambda params, batch: gradient(params, batch, config, mesh))(params, batch)
    assert rounded_sums(traced.jaxpr) == []
