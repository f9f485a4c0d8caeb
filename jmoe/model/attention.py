"""Norms, and causal attention of heads, or of groups of heads that share keys and values: projections, rotary
positions, and the kernel that config.model.attention names.

Axes (jmoe/model/__init__.py): B, D, H, K, P, Q (W queries at each position), T, U (here all keys),
W, Z blocks of queries.
"""

import functools

import jax
import jax.numpy as jnp

from jmoe.model import sharding

ATTENTION = ("qkv", "q", "kv", "q_norm", "k_norm", "out")  # names of a block's attention weights
BLOCK = 512  # queries at a time in `blocks`


def norm(x, scale, bias=None, axis=-1, average=lambda mean: mean):
    """RMSNorm, or with a bias LayerNorm, over `axis`: in float32, back in x's dtype.

    average: averages the mean squares over devices, where other devices have parts of these axes; RMSNorm only.
    """
    x32 = x.astype(jnp.float32)
    if bias is not None:
        x32 -= jnp.mean(x32, axis=axis, keepdims=True)
    x32 *= jax.lax.rsqrt(average(jnp.mean(x32**2, axis=axis, keepdims=True)) + (1e-6 if bias is None else 1e-5))
    return (x32 * scale if bias is None else x32 * scale + bias).astype(x.dtype)


def attention(x_BTD, weights, model, start=0, cache=None):
    """y_ND of normed rows x_BTD, to be summed over the model axis: this device has H of the heads. And the cache.

    weights: this device's part of the block's ATTENTION, by name. model: config.model; its attention is "float32", for
    `exact`, or "flash". RoPE is float32 in both.
    cache: (k_BUPK, v_BUPK) of positions 0, 1, ...: the rows are at positions start, start + 1, ..., their keys and
    values are put there, and they see all up to their own, in float32.
    """
    dtype = jnp.bfloat16 if model.attention == "flash" and cache is None else jnp.float32
    q_BTHK, k_BTPK, v_BTPK = _queries_keys_values(x_BTD, weights, model, start, dtype)
    with jax.named_scope("attention"):  # its name in a profile
        if cache is None:
            y_BTHK = {"float32": exact, "flash": flash}[model.attention](q_BTHK, k_BTPK, v_BTPK)
        else:
            put = lambda kept, new: jax.lax.dynamic_update_slice(kept, new, (0, start, 0, 0))
            cache = jax.tree.map(put, cache, (k_BTPK, v_BTPK))
            y_BTHK = exact(q_BTHK, *cache, start)
    b, t, d = x_BTD.shape
    y_BTHK = y_BTHK.astype(x_BTD.dtype)
    return (_rows(y_BTHK.reshape(b, t, -1)) @ weights["out"].reshape(-1, d)).reshape(b * t, d), cache


def _rows(x_BTD):
    """x_BTD for a product with weights. A TPU sums their gradient over B and T where the array lies, and copies it to
    make one axis of both; others copy it to sum over two."""
    return x_BTD if sharding.platform() == "tpu" else x_BTD.reshape(-1, x_BTD.shape[-1])


def _queries_keys_values(x_BTD, weights, model, start, dtype):
    """q_BTHK, k_BTPK and v_BTPK of normed rows, of type `dtype`; the first position is `start`."""
    b, t, d = x_BTD.shape
    project = lambda weight: (_rows(x_BTD) @ weight.reshape(d, -1)).reshape(b, t, *weight.shape[1:])
    parts = [project(weights[name]) for name in ("qkv", "q", "kv") if name in weights]
    q_BTHK, k_BTPK, v_BTPK = (part[:, :, i] for part in parts for i in range(part.shape[2]))
    if "q_norm" in weights:
        # a scale [K] norms each head by itself, a scale [heads, K] all heads at once, those of other devices too
        over_all = dict(axis=(-2, -1), average=functools.partial(sharding.mean, axes=("model",)))
        options = over_all if model.qk_norm == "projection" else {}
        q_BTHK = norm(q_BTHK, weights["q_norm"], **options)
        k_BTPK = norm(k_BTPK, weights["k_norm"], **options)
    turn = lambda x: rope(x, model.rope_base, start, dtype)
    return turn(q_BTHK), turn(k_BTPK), v_BTPK.astype(dtype)


def rope(x_BTHK, base: float, start=0, dtype=jnp.float32):
    """Rotary position embedding (Su et al. 2021) of each head's two halves, in float32; first position: `start`.

    Halves are cut and joined in the types that come in and go out, so that no float32 array of heads is in memory.
    """
    t, k = x_BTHK.shape[1], x_BTHK.shape[3]
    frequency_K = base ** -(jnp.arange(0, k, 2, dtype=jnp.float32) / k)
    angle_THK = ((start + jnp.arange(t, dtype=jnp.float32))[:, None] * frequency_K)[:, None, :]
    first, second = (half.astype(jnp.float32) for half in jnp.split(x_BTHK, 2, axis=-1))
    cos, sin = jnp.cos(angle_THK), jnp.sin(angle_THK)
    halves = first * cos - second * sin, second * cos + first * sin
    return jnp.concatenate([half.astype(dtype) for half in halves], axis=-1)


def exact(q_BTHK, k_BUPK, v_BUPK, start=0):
    """softmax(q k / sqrt(K)) v over the positions up to the query's own, all at once; float32 [B, T, H, K].

    The queries are at positions start, start + 1, ...; the keys are at 0, 1, ... W = H / P consecutive heads of queries
    share a head of keys and values. Sums and softmax are float32; bfloat16 inputs round the probabilities, too.
    """
    (b, t, h, k), p = q_BTHK.shape, k_BUPK.shape[2]
    w = h // p
    # highest: else TPUs and GPUs round float32 inputs
    product = functools.partial(jnp.einsum, precision="highest", preferred_element_type=jnp.float32)
    # heads that share keys are worked on as more queries of one head, W at each position
    q_BQPK = q_BTHK.reshape(b, t, p, w, k).swapaxes(2, 3).reshape(b, t * w, p, k)
    score_BPQU = product("bqpk,bupk->bpqu", q_BQPK, k_BUPK) / jnp.sqrt(jnp.float32(k))
    causal_QU = start + jnp.arange(t * w)[:, None] // w >= jnp.arange(k_BUPK.shape[1])
    probability_BPQU = jax.nn.softmax(jnp.where(causal_QU, score_BPQU, -jnp.inf)).astype(v_BUPK.dtype)
    y_BQPK = product("bpqu,bupk->bqpk", probability_BPQU, v_BUPK)
    return y_BQPK.reshape(b, t, w, p, k).swapaxes(2, 3).reshape(q_BTHK.shape)


def flash(q_BTHK: jax.Array, k_BTPK: jax.Array, v_BTPK: jax.Array) -> jax.Array:
    """`exact` of inputs rounded to bfloat16, with no T x T array in memory; returns bfloat16 [B, T, H, K].

    A GPU runs cuDNN's kernel, a TPU that of jmoe/model/tpu_flash.py. Other devices, and shapes that the TPU's kernel
    does not take, use `blocks`: a test needs no chip.
    """
    q_BTHK, k_BTPK, v_BTPK = (x.astype(jnp.bfloat16) for x in (q_BTHK, k_BTPK, v_BTPK))
    platform = sharding.platform()
    if platform == "gpu":
        return jax.nn.dot_product_attention(q_BTHK, k_BTPK, v_BTPK, is_causal=True, implementation="cudnn")
    if platform == "tpu":
        from jmoe.model import tpu_flash  # imports Pallas for TPUs, a tenth of all that the trainer imports

        t, k = q_BTHK.shape[1::2]
        if tpu_flash.fits(t, k):
            return tpu_flash.attention(q_BTHK, k_BTPK, v_BTPK)
    return blocks(q_BTHK, k_BTPK, v_BTPK)


def blocks(q_BTHK, k_BTPK, v_BTPK):
    """`exact`, one block of queries against all keys at a time, with remat; of the inputs' type."""
    b, t, h, k = q_BTHK.shape
    block = BLOCK if t % BLOCK == 0 else t
    dtype = q_BTHK.dtype
    # float32 outside of the map, which adds up the gradients of keys and values in their type, block after block
    k32_BTPK = k_BTPK.astype(jnp.float32)
    v32_BTPK = v_BTPK.astype(jnp.float32)

    @jax.checkpoint
    def one(args):
        first_position, q_BTHK = args
        y_BTHK = exact(q_BTHK, k32_BTPK.astype(dtype), v32_BTPK.astype(dtype), first_position)
        return y_BTHK.astype(dtype)

    q_ZBTHK = q_BTHK.reshape(b, t // block, block, h, k).swapaxes(0, 1)
    y_ZBTHK = jax.lax.map(one, (jnp.arange(0, t, block), q_ZBTHK))
    return y_ZBTHK.swapaxes(0, 1).reshape(q_BTHK.shape)
