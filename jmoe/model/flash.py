"""Causal attention in bfloat16 with sums in float32 and no T x T array in memory: config.model.attention = "flash".

Axes (jmoe/model/__init__.py): B, T, H, K, Q of a block of queries, U (here all keys), Z blocks of queries.

On a GPU cuDNN's kernel, on a TPU that of jmoe/model/tpu_flash.py; elsewhere, and for shapes that it does not take,
blocks of queries in plain JAX, which round inputs and probabilities alike, so that a test needs no accelerator.
"""

import functools

import jax
import jax.numpy as jnp

from jmoe.model import tpu_flash

BLOCK = 512  # queries at a time where there is no kernel


def attention(q_BTHK, k_BTHK, v_BTHK):
    """softmax(q k / sqrt(K)) v over the positions up to the query's own; returns bfloat16 [B, T, H, K]."""
    platform = jax.sharding.get_abstract_mesh().abstract_device.platform
    kernel = _cudnn if platform == "gpu" else blocks
    if platform == "tpu" and tpu_flash.fits(*q_BTHK.shape[1::2]):
        kernel = tpu_flash.attention
    return kernel(*(x.astype(jnp.bfloat16) for x in (q_BTHK, k_BTHK, v_BTHK)))


def _cudnn(q_BTHK, k_BTHK, v_BTHK):
    return jax.nn.dot_product_attention(q_BTHK, k_BTHK, v_BTHK, is_causal=True, implementation="cudnn")


def blocks(q_BTHK, k_BTHK, v_BTHK):
    """The same in plain JAX, a block of queries against all keys at a time, rematerialised; in float32 it is exact."""
    b, t, h, k = q_BTHK.shape
    block = BLOCK if t % BLOCK == 0 else t
    product = functools.partial(jnp.einsum, precision="highest", preferred_element_type=jnp.float32)

    @jax.checkpoint
    def one(args):
        start, q_BQHK = args
        score_BHQU = product("bqhk,buhk->bhqu", q_BQHK, k_BTHK) * k**-0.5
        causal_QU = start + jnp.arange(block)[:, None] >= jnp.arange(t)[None, :]
        probability_BHQU = jax.nn.softmax(jnp.where(causal_QU, score_BHQU, -jnp.inf))
        return product("bhqu,buhk->bqhk", probability_BHQU.astype(v_BTHK.dtype), v_BTHK).astype(q_BQHK.dtype)

    q_ZBQHK = q_BTHK.reshape(b, t // block, block, h, k).swapaxes(0, 1)
    y_ZBQHK = jax.lax.map(one, (jnp.arange(0, t, block), q_ZBQHK))
    return y_ZBQHK.swapaxes(0, 1).reshape(b, t, h, k)
