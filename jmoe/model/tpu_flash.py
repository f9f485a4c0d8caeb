"""Causal flash attention as two Pallas kernels for a TPU: forward, and all three gradients at once.

Axis legend: N rows times heads, K head size, T positions, Q positions of a block of queries, S of a block of keys.
Positions lie along the lanes, so that head sizes below 128 are not padded and what belongs to a query is a row.

A program works on one block of queries and one of keys; blocks above the diagonal cost nothing. Products take bfloat16
and sum in float32, as does all else. The forward pass keeps log sum exp of each query's scores, from which the backward
pass makes the probabilities again (Dao et al. 2022).

Outputs are declared to vary over the mesh as the inputs do: shard_map takes no kernel that does not say so.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCKS = (512, 256, 128)  # positions in a block; the first that divides T
GRADIENT_BYTES = 2**22  # of one head's queries, float32, which the backward pass keeps on chip

_product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def fits(t: int, k: int) -> bool:
    """Whether there is a kernel for T positions and head size K."""
    return t % BLOCKS[-1] == 0 and k % 16 == 0 and 4 * t * k <= GRADIENT_BYTES


def attention(q_BTHK, k_BTHK, v_BTHK, interpret: bool = False):
    """softmax(q k / sqrt(K)) v over the positions up to the query's own; bfloat16, of shapes that `fits`.

    interpret: run on any device, for tests.
    """
    b, t, h, k = q_BTHK.shape
    y_NKT = _attention(*(x.transpose(0, 2, 3, 1).reshape(b * h, k, t) for x in (q_BTHK, k_BTHK, v_BTHK)), interpret)
    return y_NKT.reshape(b, h, k, t).transpose(0, 3, 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attention(q_NKT, k_NKT, v_NKT, interpret):
    return _forward(q_NKT, k_NKT, v_NKT, interpret)[0]


def _forward(q_NKT, k_NKT, v_NKT, interpret):
    n, k, t = q_NKT.shape
    block = _block(t)
    query = lambda rows: pl.BlockSpec((None, rows, block), lambda n, i, j: (n, 0, i))
    key = pl.BlockSpec((None, k, block), lambda n, i, j: (n, 0, jnp.minimum(i, j)))  # none is fetched to be skipped
    y_NKT, lse_N1T = pl.pallas_call(
        functools.partial(_forward_kernel, scale=k**-0.5),
        grid=(n, t // block, t // block),
        in_specs=[query(k), key, key],
        out_specs=[query(k), query(1)],
        out_shape=[_like(q_NKT, q_NKT.shape, q_NKT.dtype), _like(q_NKT, (n, 1, t), jnp.float32)],
        scratch_shapes=[pltpu.VMEM((rows, block), jnp.float32) for rows in (1, 1, k)],
        **_options(q_NKT, n_products=2, once=2 + 2, interpret=interpret),
    )(q_NKT, k_NKT, v_NKT)
    return y_NKT, (q_NKT, k_NKT, v_NKT, y_NKT, lse_N1T)


def _forward_kernel(q_KQ, k_KS, v_KS, y_KQ, lse_1Q, max_1Q, sum_1Q, total_KQ, *, scale):
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _():
        max_1Q[...] = jnp.full_like(max_1Q, -jnp.inf)
        sum_1Q[...] = jnp.zeros_like(sum_1Q)
        total_KQ[...] = jnp.zeros_like(total_KQ)

    def add(diagonal):
        score_SQ = _score(q_KQ, k_KS, scale, diagonal)
        before_1Q = max_1Q[...]
        max_1Q[...] = jnp.maximum(before_1Q, jnp.max(score_SQ, axis=0, keepdims=True))
        weight_SQ, rescale_1Q = jnp.exp(score_SQ - max_1Q[...]), jnp.exp(before_1Q - max_1Q[...])
        sum_1Q[...] = sum_1Q[...] * rescale_1Q + jnp.sum(weight_SQ, axis=0, keepdims=True)
        total_KQ[...] = total_KQ[...] * rescale_1Q + _product("ks,sq->kq", v_KS[...], weight_SQ.astype(v_KS.dtype))

    pl.when(j < i)(lambda: add(diagonal=False))

    @pl.when(j == i)
    def _():
        add(diagonal=True)
        y_KQ[...] = (total_KQ[...] / sum_1Q[...]).astype(y_KQ.dtype)
        lse_1Q[...] = max_1Q[...] + jnp.log(sum_1Q[...])


def _backward(interpret, residual, dy_NKT):
    q_NKT, k_NKT, v_NKT, y_NKT, lse_N1T = residual
    n, k, t = q_NKT.shape
    block = _block(t)
    # the gradient of the softmax takes off each query's mean of dy v, which is dy y
    mean_N1T = jnp.sum(dy_NKT.astype(jnp.float32) * y_NKT, axis=1, keepdims=True)
    query = lambda rows: pl.BlockSpec((None, rows, block), lambda n, j, i: (n, 0, jnp.maximum(i, j)))
    key = pl.BlockSpec((None, k, block), lambda n, j, i: (n, 0, j))
    whole = pl.BlockSpec((None, k, t), lambda n, j, i: (n, 0, 0))  # stays on chip while its head is worked on
    dq_NKT, dk_NKT, dv_NKT = pl.pallas_call(
        functools.partial(_backward_kernel, scale=k**-0.5),
        grid=(n, t // block, t // block),
        in_specs=[query(k), key, key, query(k), query(1), query(1)],
        out_specs=[whole, key, key],
        out_shape=[_like(q_NKT, q_NKT.shape, dtype) for dtype in (jnp.float32, k_NKT.dtype, v_NKT.dtype)],
        scratch_shapes=[pltpu.VMEM((k, block), jnp.float32)] * 2,
        **_options(q_NKT, n_products=5, once=4 + 4 * 2, interpret=interpret),
    )(q_NKT, k_NKT, v_NKT, dy_NKT, lse_N1T, mean_N1T)
    return dq_NKT.astype(q_NKT.dtype), dk_NKT, dv_NKT


def _backward_kernel(q_KQ, k_KS, v_KS, dy_KQ, lse_1Q, mean_1Q, dq_KT, dk_KS, dv_KS, sum_dk_KS, sum_dv_KS, *, scale):
    j, i = pl.program_id(1), pl.program_id(2)
    block = q_KQ.shape[1]

    @pl.when((i == 0) & (j == 0))
    def _():
        dq_KT[...] = jnp.zeros_like(dq_KT)

    @pl.when(i == 0)
    def _():
        sum_dk_KS[...] = jnp.zeros_like(sum_dk_KS)
        sum_dv_KS[...] = jnp.zeros_like(sum_dv_KS)

    def add(diagonal):
        probability_SQ = jnp.exp(_score(q_KQ, k_KS, scale, diagonal) - lse_1Q[...])
        dprobability_SQ = _product("ks,kq->sq", v_KS[...], dy_KQ[...])
        dscore_SQ = (probability_SQ * (dprobability_SQ - mean_1Q[...]) * scale).astype(q_KQ.dtype)
        sum_dv_KS[...] += _product("kq,sq->ks", dy_KQ[...], probability_SQ.astype(dy_KQ.dtype))
        sum_dk_KS[...] += _product("kq,sq->ks", q_KQ[...], dscore_SQ)
        dq_KT[:, pl.ds(pl.multiple_of(i * block, block), block)] += _product("ks,sq->kq", k_KS[...], dscore_SQ)

    pl.when(i > j)(lambda: add(diagonal=False))
    pl.when(i == j)(lambda: add(diagonal=True))

    @pl.when(i == pl.num_programs(2) - 1)
    def _():
        dk_KS[...] = sum_dk_KS[...].astype(dk_KS.dtype)
        dv_KS[...] = sum_dv_KS[...].astype(dv_KS.dtype)


def _score(q_KQ, k_KS, scale, diagonal):
    score_SQ = _product("ks,kq->sq", k_KS[...], q_KQ[...]) * scale
    if diagonal:
        position = functools.partial(jax.lax.broadcasted_iota, jnp.int32, score_SQ.shape)
        score_SQ = jnp.where(position(0) <= position(1), score_SQ, -jnp.inf)
    return score_SQ


def _block(t):
    return next(block for block in BLOCKS if t % block == 0)


def _like(x, shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(x).manual_axis_type)


def _options(q_NKT, n_products, once, interpret):
    """What both kernels are told; the estimate is all that cost analyses see of a kernel: products, no softmax.

    once: bytes that are read or written once for each element of q. Two more arrays are read again for each block.
    """
    n, k, t = q_NKT.shape
    pairs = n * t * (t + _block(t)) // 2  # of a query and a key, in the blocks that are worked on
    n_bytes = once * q_NKT.size + 2 * 2 * k * pairs // _block(t)
    cost = pl.CostEstimate(flops=2 * k * pairs * n_products, transcendentals=pairs, bytes_accessed=n_bytes)
    parameters = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary"))
    return dict(interpret=interpret, cost_estimate=cost, compiler_params=parameters)


_attention.defvjp(_forward, _backward)
