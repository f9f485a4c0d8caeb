"""Norms, rotary positions and kernels of causal attention; transformer.Attention has the projections around them.

Axes (jmoe/model/__init__.py): B, D, H, K, P, Q (W queries at each position), T, U (here all keys),
W, Z blocks of queries.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jmoe.model import kernels, sharding

BLOCK = 512  # queries at a time in `blocks`
SAVED = "attention"  # the name by which remat knows the queries, keys and values of a kernel


def norm(
    x: Float[Array, "..."],
    scale: Float[Array, "..."],
    bias: Float[Array, " D"] | None = None,
    axis: int | tuple[int, ...] = -1,
    average: Callable[[Float[Array, "..."]], Float[Array, "..."]] | None = None,
) -> Float[Array, "..."]:
    """RMSNorm, or with a bias LayerNorm, over `axis`: in float32, back in x's dtype.

    Args:
      x: of any shape.
      scale, bias: of the shape of these axes.
      axis: one axis, or several that share a mean square.
      average: averages the mean squares over devices, where other devices have parts of these axes; RMSNorm only.
    """
    x32 = x.astype(jnp.float32)
    if bias is not None:
        x32 -= jnp.mean(x32, axis=axis, keepdims=True)
    mean_square = jnp.mean(x32**2, axis=axis, keepdims=True)
    if average is not None:
        mean_square = average(mean_square)
    epsilon = 1e-6 if bias is None else 1e-5
    x32 *= jax.lax.rsqrt(mean_square + epsilon)
    y32 = x32 * scale
    if bias is not None:
        y32 += bias
    return y32.astype(x.dtype)


def rope(
    x_BTHK: Float[Array, "B T H K"],
    base: float,
    start: int | Int[Array, ""] = 0,
    dtype: DTypeLike = jnp.float32,
    position_BT: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T H K"]:
    """Rotary position embedding (Su et al. 2021) of each head's two halves, in float32.

    x is split in its own dtype and joined in `dtype`, so that no float32 array of all heads is in memory.

    Args:
      x_BTHK: queries or keys.
      base: the longest wavelength over 2 pi.
      start: the position of the first token; the others follow it.
      dtype: of the result.
      position_BT: in place of `start`, the position of each token.
    """
    _, t, _, k = x_BTHK.shape
    frequency_K = base ** -(jnp.arange(0, k, 2, dtype=jnp.float32) / k)
    if position_BT is None:
        position_T = start + jnp.arange(t, dtype=jnp.float32)
    else:
        position_T = position_BT.astype(jnp.float32)  # [B, T]
    angle_THK = (position_T[..., None] * frequency_K)[..., None, :]
    first, second = jnp.split(x_BTHK, 2, axis=-1)
    first = first.astype(jnp.float32)
    second = second.astype(jnp.float32)
    cos = jnp.cos(angle_THK)
    sin = jnp.sin(angle_THK)
    halves = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate([half.astype(dtype) for half in halves], axis=-1)


def exact(
    q_BTHK: Float[Array, "B T H K"],
    k_BUPK: Float[Array, "B U P K"],
    v_BUPK: Float[Array, "B U P K"],
    start: int | Int[Array, ""] = 0,
    document_BT: Int[Array, "B T"] | None = None,
    document_BU: Int[Array, "B U"] | None = None,
) -> Float[Array, "B T H K"]:
    """softmax(q k / sqrt(K)) v over the positions up to the query's own, all at once; float32 [B, T, H, K].

    With the documents of queries and keys, a query sees only keys of its own document.

    The queries are at positions start, start + 1, ...; the keys are at 0, 1, ... W = H / P consecutive heads of queries
    share a head of keys and values. Sums and softmax are float32; bfloat16 inputs round the probabilities, too.
    """
    b, t, h, k = q_BTHK.shape
    p = k_BUPK.shape[2]
    w = h // p
    # highest: else TPUs and GPUs round float32 inputs
    product = functools.partial(jnp.einsum, precision="highest", preferred_element_type=jnp.float32)
    # heads that share keys are worked on as more queries of one head, W at each position
    q_BQPK = q_BTHK.reshape(b, t, p, w, k).swapaxes(2, 3).reshape(b, t * w, p, k)
    score_BPQU = product("bqpk,bupk->bpqu", q_BQPK, k_BUPK) / jnp.sqrt(jnp.float32(k))
    causal_QU = start + jnp.arange(t * w)[:, None] // w >= jnp.arange(k_BUPK.shape[1])
    visible = causal_QU
    if document_BT is not None and document_BU is not None:
        document_BQ = jnp.repeat(document_BT, w, axis=1)
        visible = causal_QU & (document_BQ[:, None, :, None] == document_BU[:, None, None, :])  # [B, 1, Q, U]
    probability_BPQU = jax.nn.softmax(jnp.where(visible, score_BPQU, -jnp.inf)).astype(v_BUPK.dtype)
    y_BQPK = product("bpqu,bupk->bqpk", probability_BPQU, v_BUPK)
    return y_BQPK.reshape(b, t, w, p, k).swapaxes(2, 3).reshape(q_BTHK.shape)


def flash(
    q_BTHK: Float[Array, "B T H K"],
    k_BTPK: Float[Array, "B T P K"],
    v_BTPK: Float[Array, "B T P K"],
    document_BT: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T H K"]:
    """`exact` of inputs rounded to bfloat16, with no T x T array in memory; returns bfloat16 [B, T, H, K].

    A GPU runs cuDNN's kernel, a TPU that of jmoe/model/tpu_flash.py. Other devices, and shapes that the TPU's kernel
    does not take, use `blocks`: a test needs no chip.

    With `document_BT` a query sees only its own document. cuDNN then reads a mask of [B, 1, T, T] in bfloat16, since
    its packed layout needs to know when it is compiled how many documents a row has at most.
    """
    q_BTHK = q_BTHK.astype(jnp.bfloat16)
    k_BTPK = k_BTPK.astype(jnp.bfloat16)
    v_BTPK = v_BTPK.astype(jnp.bfloat16)
    platform = sharding.platform()
    if platform == "gpu":
        kernels.note("attention", "cuDNN's flash attention in bfloat16")
        mask_B1QU = None
        if document_BT is not None:
            mask_B1QU = document_BT[:, None, :, None] == document_BT[:, None, None, :]
        return jax.nn.dot_product_attention(
            q_BTHK, k_BTPK, v_BTPK, mask=mask_B1QU, is_causal=True, implementation="cudnn"
        )
    if platform == "tpu":
        from jmoe.model import tpu_flash  # imports Pallas for TPUs: a tenth of the trainer's import time

        _, t, _, k = q_BTHK.shape
        if tpu_flash.fits(t, k):
            kernels.note("attention", "tpu_flash, Pallas, in bfloat16")
            return tpu_flash.attention(q_BTHK, k_BTPK, v_BTPK, document_BT)
        reason = f"tpu_flash {tpu_flash.LIMITS}: not T = {t}, heads of {k}"
    else:
        reason = f"no flash kernel for {platform}"
    kernels.note("attention", "XLA in bfloat16, a block of queries at a time", reason)
    return blocks(q_BTHK, k_BTPK, v_BTPK, document_BT)


def blocks(
    q_BTHK: Float[Array, "B T H K"],
    k_BTPK: Float[Array, "B T P K"],
    v_BTPK: Float[Array, "B T P K"],
    document_BT: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T H K"]:
    """`exact`, one block of queries against all keys at a time, with remat; returns the inputs' dtype."""
    b, t, h, k = q_BTHK.shape
    block = BLOCK if t % BLOCK == 0 else t
    dtype = q_BTHK.dtype
    # float32 outside the map: it sums the gradients of keys and values over the blocks in the type that they have here
    k32_BTPK = k_BTPK.astype(jnp.float32)
    v32_BTPK = v_BTPK.astype(jnp.float32)

    @jax.checkpoint
    def attend_from_block(
        args: tuple[Int[Array, ""], Float[Array, "B Q H K"], Int[Array, "B Q"] | None],
    ) -> Float[Array, "B Q H K"]:
        first_position, q_BTHK, query_document_BT = args
        k_BTPK = k32_BTPK.astype(dtype)
        v_BTPK = v32_BTPK.astype(dtype)
        y_BTHK = exact(q_BTHK, k_BTPK, v_BTPK, first_position, query_document_BT, document_BT)
        return y_BTHK.astype(dtype)

    q_ZBTHK = q_BTHK.reshape(b, t // block, block, h, k).swapaxes(0, 1)
    document_ZBT = None
    if document_BT is not None:
        document_ZBT = document_BT.reshape(b, t // block, block).swapaxes(0, 1)
    y_ZBTHK = jax.lax.map(attend_from_block, (jnp.arange(0, t, block), q_ZBTHK, document_ZBT))
    return y_ZBTHK.swapaxes(0, 1).reshape(q_BTHK.shape)
