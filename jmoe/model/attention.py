"""Causal multi-head attention: projections, rotary positions, and the kernel that config.model.attention names.

Axes (jmoe/model/__init__.py): B, D, H, K, N, T, U (here all keys).
"""

import functools

import jax
import jax.numpy as jnp

from jmoe.model import flash


def attention(x_BTD, qkv_D3HK, out_HKD, model):
    """y_ND of normed rows x_BTD, to be summed over the model axis: this device has H of the heads.

    model: config.model; "float32" attention computes in float32, products too, "flash" as jmoe/model/flash.py says.
    RoPE is float32 in both.
    """
    b, t, d = x_BTD.shape
    qkv = (x_BTD.reshape(b * t, d) @ qkv_D3HK.reshape(d, -1)).reshape(b, t, *qkv_D3HK.shape[1:])
    q, k = (rope(qkv[:, :, i], model.rope_base) for i in (0, 1))
    y_BTHK = {"float32": exact, "flash": flash.attention}[model.attention](q, k, qkv[:, :, 2].astype(jnp.float32))
    return y_BTHK.astype(x_BTD.dtype).reshape(b * t, -1) @ out_HKD.reshape(-1, d)


def rope(x_BTHK, base: float):
    """Rotary position embedding of the halves (Su et al. 2021), in float32."""
    t, k = x_BTHK.shape[1], x_BTHK.shape[3]
    frequency_K = base ** -(jnp.arange(0, k, 2, dtype=jnp.float32) / k)
    angle_THK = (jnp.arange(t, dtype=jnp.float32)[:, None] * frequency_K)[:, None, :]
    first, second = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle_THK), jnp.sin(angle_THK)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def exact(q_BTHK, k_BTHK, v_BTHK):
    """softmax(q k / sqrt(K)) v over the positions up to the query's own, all at once, in float32."""
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)  # else TPUs and GPUs round the inputs
    score_BHTU = product("bthk,buhk->bhtu", q_BTHK, k_BTHK) / jnp.sqrt(jnp.float32(q_BTHK.shape[-1]))
    t = q_BTHK.shape[1]
    causal_TU = jnp.arange(t)[:, None] >= jnp.arange(t)[None, :]
    score_BHTU = jnp.where(causal_TU, score_BHTU, -jnp.inf)
    return product("bhtu,buhk->bthk", jax.nn.softmax(score_BHTU), v_BTHK)
