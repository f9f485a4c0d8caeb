"""Gradients of a model that computes in bfloat16 against float32's: no sum of many terms is rounded term by term."""

import jax
import numpy as np
import pytest

from configs import joint_moe
from jmoe.model import sharding
from jmoe.model.decoder import init_params
from jmoe.run.step import gradient

N_TOKENS, VOCAB_SIZE = 65_536, 1_024


def small(**model):
    """The recipe, narrow and with short rows; `model` changes config.model."""
    config = joint_moe.get_config()
    config.model.d_model, config.model.n_blocks, config.model.n_heads = 32, 2, 2
    config.model.vocab_size, config.model.group_tokens = VOCAB_SIZE, 1_024
    config.data.seq_len, config.batch_tokens = 128, ((0, N_TOKENS),)
    for name, value in model.items():
        config.model[name] = value
    return config


def zipf_batch(config):
    """[rows, seq_len + 1] tokens of which the r-th commonest has a share of 1 / r of the commonest's."""
    shares = 1 / np.arange(1, VOCAB_SIZE + 1)
    rows = N_TOKENS // config.data.seq_len
    tokens = np.random.default_rng(0).choice(VOCAB_SIZE, size=(rows, config.data.seq_len + 1), p=shares / shares.sum())
    return tokens.astype(np.int32)


def gradients(config, dtype: str, n_devices: int) -> dict[str, np.ndarray]:
    """The gradient of each parameter at its initial value, by the path of its name."""
    config.model.dtype = dtype
    mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
    with jax.set_mesh(mesh):
        params = jax.jit(
            lambda: init_params(config), out_shardings=sharding.parameter_shardings(mesh, config.model)
        )()
        batch = jax.device_put(zipf_batch(config), jax.NamedSharding(mesh, sharding.TOKENS))
        _, grads = jax.jit(lambda params, batch: gradient(params, batch, config, mesh))(params, batch)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(grads)}


EXPERTS = dict(n_experts=4, top_k=4)  # a token chooses all of them, so that no rounding changes its choice


@pytest.mark.parametrize(
    "n_devices, microbatch_tokens, model",
    [
        (1, 0, {}),
        (8, 0, {}),
        (1, 8_192, {}),
        (1, 0, EXPERTS),
        (8, 0, EXPERTS),
        (1, 0, EXPERTS | {"capacity_factor": None}),
        (1, 0, dict(tied_embeddings=True)),
        (1, 0, dict(attention="flash", n_kv_heads=1)),
    ],
)
def test_gradients_in_bfloat16_are_those_in_float32(n_devices, microbatch_tokens, model):
    """Each parameter's within 1%, though the commonest token is a tenth of all."""
    config = small(**model)
    exact = gradients(config, "float32", 1)
    config.microbatch_tokens = microbatch_tokens
    rounded = gradients(config, "bfloat16", n_devices)
    errors = {name: np.linalg.norm(rounded[name] - exact[name]) / np.linalg.norm(exact[name]) for name in exact}
    print({k: round(float(v), 5) for k, v in errors.items()})
    assert max(errors.values()) < 0.01, errors
