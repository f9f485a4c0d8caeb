"""Causal attention of heads, or of groups of heads that share keys and values: projections, norms of queries and keys,
rotary positions, and the kernel that config.model.attention names.

Axes (jmoe/model/__init__.py): B, D, H, K, N, P, Q (here all queries, W of them at each position), T, U (here all keys).
"""

import functools

import jax
import jax.numpy as jnp

from jmoe.model import flash, sharding
from jmoe.model.norms import rms_norm

ATTENTION = ("qkv", "q", "kv", "q_norm", "k_norm", "out")  # names of a block's attention weights


def attention(x_BTD, weights, model, start=0, cache=None):
    """y_ND of normed rows x_BTD, to be summed over the model axis: this device has H of the heads. And the cache.

    weights: this device's part of the block's ATTENTION, by name. model: config.model; its attention "float32" computes
    everything in float32, products too; "flash" is as in jmoe/model/flash.py. RoPE is float32 in both.
    cache: (k_BUPK, v_BUPK) of positions 0, 1, ...: the rows are at positions start, start + 1, ..., their keys and
    values are put there, and they see all up to their own, in float32.
    """
    q_BTHK, k_BTPK, v_BTPK = _queries_keys_values(x_BTD, weights, model, start)
    with jax.named_scope("attention"):  # its name in a profile
        if cache is None:
            y_BTHK = {"float32": exact, "flash": flash.attention}[model.attention](q_BTHK, k_BTPK, v_BTPK)
        else:
            put = lambda kept, new: jax.lax.dynamic_update_slice(kept, new, (0, start, 0, 0))
            cache = jax.tree.map(put, cache, (k_BTPK, v_BTPK))
            y_BTHK = exact(q_BTHK, *cache, start)
    b, t, d = x_BTD.shape
    return y_BTHK.astype(x_BTD.dtype).reshape(b * t, -1) @ weights["out"].reshape(-1, d), cache


def _queries_keys_values(x_BTD, weights, model, start):
    """Float32 q_BTHK, k_BTPK and v_BTPK of normed rows; the first position is `start`."""
    b, t, d = x_BTD.shape
    project = lambda weight: (x_BTD.reshape(b * t, d) @ weight.reshape(d, -1)).reshape(b, t, *weight.shape[1:])
    parts = [project(weights[name]) for name in ("qkv", "q", "kv") if name in weights]
    q_BTHK, k_BTPK, v_BTPK = (part[:, :, i] for part in parts for i in range(part.shape[2]))
    if "q_norm" in weights:
        # a scale [K] norms each head by itself, a scale [heads, K] all heads at once, those of other devices too
        over_all = dict(axis=(-2, -1), average=functools.partial(sharding.mean, axes=("model",)))
        options = over_all if model.qk_norm == "projection" else {}
        q_BTHK = rms_norm(q_BTHK, weights["q_norm"], **options)
        k_BTPK = rms_norm(k_BTPK, weights["k_norm"], **options)
    turn = lambda x: rope(x, model.rope_base, start)
    return turn(q_BTHK), turn(k_BTPK), v_BTPK.astype(jnp.float32)


def rope(x_BTHK, base: float, start=0):
    """Rotary position embedding (Su et al. 2021) of each head's two halves, in float32; first position: `start`."""
    t, k = x_BTHK.shape[1], x_BTHK.shape[3]
    frequency_K = base ** -(jnp.arange(0, k, 2, dtype=jnp.float32) / k)
    angle_THK = ((start + jnp.arange(t, dtype=jnp.float32))[:, None] * frequency_K)[:, None, :]
    first, second = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle_THK), jnp.sin(angle_THK)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def exact(q_BTHK, k_BUPK, v_BUPK, start=0):
    """softmax(q k / sqrt(K)) v over the positions up to the query's own, all at once, in float32.

    The queries are at positions start, start + 1, ...; the keys are at 0, 1, ...
    """
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)  # else TPUs and GPUs round the inputs
    q_BQPK, position_Q = flash.grouped(q_BTHK, k_BUPK.shape[2])
    score_BPQU = product("bqpk,bupk->bpqu", q_BQPK, k_BUPK) / jnp.sqrt(jnp.float32(q_BTHK.shape[-1]))
    causal_QU = start + position_Q[:, None] >= jnp.arange(k_BUPK.shape[1])[None, :]
    score_BPQU = jnp.where(causal_QU, score_BPQU, -jnp.inf)
    return flash.ungrouped(product("bpqu,bupk->bqpk", jax.nn.softmax(score_BPQU), v_BUPK), q_BTHK.shape)
