"""Causal flash attention as two Pallas kernels for a TPU: forward, and all three gradients at once.

Axes (jmoe/model/__init__.py): R rows times heads, K, T, Q positions of a block of queries, U of a block of keys.
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
    y_RKT = _attention(*(x.transpose(0, 2, 3, 1).reshape(b * h, k, t) for x in (q_BTHK, k_BTHK, v_BTHK)), interpret)
    return y_RKT.reshape(b, h, k, t).transpose(0, 3, 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attention(q_RKT, k_RKT, v_RKT, interpret):
    return _forward(q_RKT, k_RKT, v_RKT, interpret)[0]


def _forward(q_RKT, k_RKT, v_RKT, interpret):
    r, k, t = q_RKT.shape
    block = _block(t)
    query = lambda rows: pl.BlockSpec((None, rows, block), lambda r, i, j: (r, 0, i))
    key = pl.BlockSpec((None, k, block), lambda r, i, j: (r, 0, jnp.minimum(i, j)))  # none is fetched to be skipped
    y_RKT, lse_R1T = pl.pallas_call(
        functools.partial(_forward_kernel, scale=k**-0.5),
        grid=(r, t // block, t // block),
        in_specs=[query(k), key, key],
        out_specs=[query(k), query(1)],
        out_shape=[_like(q_RKT, q_RKT.shape, q_RKT.dtype), _like(q_RKT, (r, 1, t), jnp.float32)],
        scratch_shapes=[pltpu.VMEM((rows, block), jnp.float32) for rows in (1, 1, k)],
        **_options(q_RKT, n_products=2, once=2 + 2, interpret=interpret),
    )(q_RKT, k_RKT, v_RKT)
    return y_RKT, (q_RKT, k_RKT, v_RKT, y_RKT, lse_R1T)


def _forward_kernel(q_KQ, k_KU, v_KU, y_KQ, lse_1Q, max_1Q, sum_1Q, total_KQ, *, scale):
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _():
        max_1Q[...] = jnp.full_like(max_1Q, -jnp.inf)
        sum_1Q[...] = jnp.zeros_like(sum_1Q)
        total_KQ[...] = jnp.zeros_like(total_KQ)

    def add(diagonal):
        score_UQ = _score(q_KQ, k_KU, scale, diagonal)
        before_1Q = max_1Q[...]
        max_1Q[...] = jnp.maximum(before_1Q, jnp.max(score_UQ, axis=0, keepdims=True))
        weight_UQ, rescale_1Q = jnp.exp(score_UQ - max_1Q[...]), jnp.exp(before_1Q - max_1Q[...])
        sum_1Q[...] = sum_1Q[...] * rescale_1Q + jnp.sum(weight_UQ, axis=0, keepdims=True)
        total_KQ[...] = total_KQ[...] * rescale_1Q + _product("ku,uq->kq", v_KU[...], weight_UQ.astype(v_KU.dtype))

    pl.when(j < i)(lambda: add(diagonal=False))

    @pl.when(j == i)
    def _():
        add(diagonal=True)
        y_KQ[...] = (total_KQ[...] / sum_1Q[...]).astype(y_KQ.dtype)
        lse_1Q[...] = max_1Q[...] + jnp.log(sum_1Q[...])


def _backward(interpret, residual, dy_RKT):
    q_RKT, k_RKT, v_RKT, y_RKT, lse_R1T = residual
    r, k, t = q_RKT.shape
    block = _block(t)
    # the gradient of the softmax takes off each query's mean of dy v, which is dy y
    mean_R1T = jnp.sum(dy_RKT.astype(jnp.float32) * y_RKT, axis=1, keepdims=True)
    query = lambda rows: pl.BlockSpec((None, rows, block), lambda r, j, i: (r, 0, jnp.maximum(i, j)))
    key = pl.BlockSpec((None, k, block), lambda r, j, i: (r, 0, j))
    all_queries = pl.BlockSpec((None, k, t), lambda r, j, i: (r, 0, 0))  # stays on chip while its head is worked on
    dq_RKT, dk_RKT, dv_RKT = pl.pallas_call(
        functools.partial(_backward_kernel, scale=k**-0.5),
        grid=(r, t // block, t // block),
        in_specs=[query(k), key, key, query(k), query(1), query(1)],
        out_specs=[all_queries, key, key],
        out_shape=[_like(q_RKT, q_RKT.shape, dtype) for dtype in (jnp.float32, k_RKT.dtype, v_RKT.dtype)],
        scratch_shapes=[pltpu.VMEM((k, block), jnp.float32)] * 2,
        **_options(q_RKT, n_products=5, once=4 + 4 * 2, interpret=interpret),
    )(q_RKT, k_RKT, v_RKT, dy_RKT, lse_R1T, mean_R1T)
    return dq_RKT.astype(q_RKT.dtype), dk_RKT, dv_RKT


def _backward_kernel(q_KQ, k_KU, v_KU, dy_KQ, lse_1Q, mean_1Q, dq_KT, dk_KU, dv_KU, sum_dk_KU, sum_dv_KU, *, scale):
    j, i = pl.program_id(1), pl.program_id(2)
    block = q_KQ.shape[1]

    @pl.when((i == 0) & (j == 0))
    def _():
        dq_KT[...] = jnp.zeros_like(dq_KT)

    @pl.when(i == 0)
    def _():
        sum_dk_KU[...] = jnp.zeros_like(sum_dk_KU)
        sum_dv_KU[...] = jnp.zeros_like(sum_dv_KU)

    def add(diagonal):
        probability_UQ = jnp.exp(_score(q_KQ, k_KU, scale, diagonal) - lse_1Q[...])
        dprobability_UQ = _product("ku,kq->uq", v_KU[...], dy_KQ[...])
        dscore_UQ = (probability_UQ * (dprobability_UQ - mean_1Q[...]) * scale).astype(q_KQ.dtype)
        sum_dv_KU[...] += _product("kq,uq->ku", dy_KQ[...], probability_UQ.astype(dy_KQ.dtype))
        sum_dk_KU[...] += _product("kq,uq->ku", q_KQ[...], dscore_UQ)
        dq_KT[:, pl.ds(pl.multiple_of(i * block, block), block)] += _product("ku,uq->kq", k_KU[...], dscore_UQ)

    pl.when(i > j)(lambda: add(diagonal=False))
    pl.when(i == j)(lambda: add(diagonal=True))

    @pl.when(i == pl.num_programs(2) - 1)
    def _():
        dk_KU[...] = sum_dk_KU[...].astype(dk_KU.dtype)
        dv_KU[...] = sum_dv_KU[...].astype(dv_KU.dtype)


def _score(q_KQ, k_KU, scale, diagonal):
    score_UQ = _product("ku,kq->uq", k_KU[...], q_KQ[...]) * scale
    if diagonal:
        position = functools.partial(jax.lax.broadcasted_iota, jnp.int32, score_UQ.shape)
        score_UQ = jnp.where(position(0) <= position(1), score_UQ, -jnp.inf)
    return score_UQ


def _block(t):
    return next(block for block in BLOCKS if t % block == 0)


def _like(x, shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(x).manual_axis_type)


def _options(q_RKT, n_products, once, interpret):
    """What both kernels are told; the estimate is all that cost analyses see of a kernel: products, no softmax.

    once: bytes that are read or written once for each element of q. Two more arrays are read again for each block.
    """
    r, k, t = q_RKT.shape
    pairs = r * t * (t + _block(t)) // 2  # of a query and a key, in the blocks that are worked on
    n_bytes = once * q_RKT.size + 2 * 2 * k * pairs // _block(t)
    cost = pl.CostEstimate(flops=2 * k * pairs * n_products, transcendentals=pairs, bytes_accessed=n_bytes)
    parameters = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary"))
    return dict(interpret=interpret, cost_estimate=cost, compiler_params=parameters)


_attention.defvjp(_forward, _backward)
