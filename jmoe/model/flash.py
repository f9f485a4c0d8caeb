"""Causal attention in bfloat16 with sums in float32 and no T x T array in memory: config.model.attention = "flash".

Axes (jmoe/model/__init__.py): B, H, K, P, Q, T, U (here all keys), W, Z blocks of queries.

A GPU runs cuDNN's kernel, a TPU that of jmoe/model/tpu_flash.py. Other devices, and shapes that the TPU's kernel does
not take, use blocks of queries in plain JAX with the same rounding of inputs and probabilities: a test needs no chip.
"""

import functools

import jax
import jax.numpy as jnp

BLOCK = 512  # queries at a time where there is no kernel


def attention(q_BTHK, k_BTPK, v_BTPK):
    """softmax(q k / sqrt(K)) v over the positions up to the query's own; returns bfloat16 [B, T, H, K].

    W = H / P consecutive heads of queries share a head of keys and values, which nothing here repeats in memory.
    """
    platform = jax.sharding.get_abstract_mesh().abstract_device.platform
    kernel = _cudnn if platform == "gpu" else blocks
    if platform == "tpu":
        from jmoe.model import tpu_flash  # imports Pallas for TPUs, a tenth of all that the trainer imports

        kernel = tpu_flash.attention if tpu_flash.fits(*q_BTHK.shape[1::2]) else kernel
    return kernel(*(x.astype(jnp.bfloat16) for x in (q_BTHK, k_BTPK, v_BTPK)))


def grouped(q_BTHK, n_kv_heads: int):
    """(q_BQPK, position_Q): the queries of the W heads that share keys, as one head's queries, W at each position."""
    b, t, h, k = q_BTHK.shape
    w = h // n_kv_heads
    q_BTPWK = q_BTHK.reshape(b, t, n_kv_heads, w, k)
    return q_BTPWK.swapaxes(2, 3).reshape(b, t * w, n_kv_heads, k), jnp.arange(t * w) // w


def ungrouped(y_BQPK, shape):
    """The inverse of `grouped` for attention's output: y_BTHK of that shape."""
    b, t, h, k = shape
    p = y_BQPK.shape[2]
    return y_BQPK.reshape(b, t, h // p, p, k).swapaxes(2, 3).reshape(shape)


def _cudnn(q_BTHK, k_BTPK, v_BTPK):
    return jax.nn.dot_product_attention(q_BTHK, k_BTPK, v_BTPK, is_causal=True, implementation="cudnn")


def blocks(q_BTHK, k_BTPK, v_BTPK):
    """`attention` in plain JAX, one block of queries against all keys at a time, with remat; exact for float32."""
    b, t, h, k = q_BTHK.shape
    block = BLOCK if t % BLOCK == 0 else t
    product = functools.partial(jnp.einsum, precision="highest", preferred_element_type=jnp.float32)

    @jax.checkpoint
    def one(args):
        start, q_BTHK = args
        q_BQPK, position_Q = grouped(q_BTHK, k_BTPK.shape[2])
        score_BPQU = product("bqpk,bupk->bpqu", q_BQPK, k_BTPK) * k**-0.5
        causal_QU = start + position_Q[:, None] >= jnp.arange(t)[None, :]
        probability_BPQU = jax.nn.softmax(jnp.where(causal_QU, score_BPQU, -jnp.inf))
        y_BQPK = product("bpqu,bupk->bqpk", probability_BPQU.astype(v_BTPK.dtype), v_BTPK)
        return ungrouped(y_BQPK, q_BTHK.shape).astype(q_BTHK.dtype)

    q_ZBTHK = q_BTHK.reshape(b, t // block, block, h, k).swapaxes(0, 1)
    y_ZBTHK = jax.lax.map(one, (jnp.arange(0, t, block), q_ZBTHK))
    return y_ZBTHK.swapaxes(0, 1).reshape(b, t, h, k)
