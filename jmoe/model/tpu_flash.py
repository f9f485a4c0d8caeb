"""Causal flash attention as two Pallas kernels for a TPU: forward, and all three gradients at once.

Axes (jmoe/model/__init__.py): K, T, Q positions of a block of queries, U of a block of keys; R rows times heads of keys
and values, I rows times groups of heads of queries, Y the positions of a group's heads, one head after the other.
Positions lie along the lanes, so that head sizes below 128 are not padded and one number for each query is a row.

A program works on one block of queries and one of keys; blocks above the diagonal cost nothing. With documents, a query
sees only keys of its own; blocks of other documents are worked on, too. Products take bfloat16 and sum in float32; all
else is float32. The forward pass keeps log sum exp of each query's scores, from which the
backward pass recomputes the probabilities (Dao et al. 2022).

Heads of queries that share keys and values are handled as more queries of one head. A group has as many of these heads
as leave room on the chip for their queries' gradient in the backward pass. Where there are several groups, each reads
the same keys and values and writes its own gradient of them; the groups' gradients are summed at the end.

Outputs are declared to vary over the mesh as the inputs do: shard_map rejects a kernel without that declaration.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

BLOCKS = (512, 256, 128)  # positions in a block; the first that divides T
GRADIENT_BYTES = 2**22  # float32 gradient of one group's queries, which the backward pass keeps on chip

Interpret = bool | pltpu.InterpretParams  # whether to run a kernel on any device, for tests
Index = int | Int[Array, ""]
BlockIndex = tuple[Index, Index, Index]  # of rows, of K, and of positions
Ref = Any  # Pallas's reference to a block or a scratch array
# of queries, keys and values; documents have none
Gradients = tuple[Float[Array, "I K Y"], Float[Array, "R K T"], Float[Array, "R K T"], None]
# each position's document, along the lanes for queries and down the sublanes for keys; None: rows are one document
DocumentsOfRows = tuple[Int[Array, "B 1 T"], Int[Array, "B T 1"]] | None
# queries, keys, values, documents, output, and log sum exp of each query's scores
Residual = tuple[
    Float[Array, "I K Y"],
    Float[Array, "R K T"],
    Float[Array, "R K T"],
    DocumentsOfRows,
    Float[Array, "I K Y"],
    Float[Array, "I 1 Y"],
]

# a finite score for keys of other documents: a block may hold nothing else for a query, before it comes to its own
OTHER_DOCUMENT = -1e30

_product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


# what `fits` asks for, in words
LIMITS = (
    f"takes T in multiples of {BLOCKS[-1]} and heads in multiples of 16, T times heads up to {GRADIENT_BYTES // 4:,}"
)


def fits(t: int, k: int) -> bool:
    """Whether there is a kernel for T positions and head size K."""
    return t % BLOCKS[-1] == 0 and k % 16 == 0 and 4 * t * k <= GRADIENT_BYTES


def attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTPK: Float[Array, "B T P K"],
    v_BTPK: Float[Array, "B T P K"],
    document_BT: Int[Array, "B T"] | None = None,
    interpret: Interpret = False,
) -> Float[Array, "B T H K"]:
    """softmax(q k / sqrt(K)) v over the positions up to the query's own; bfloat16 [B, T, H, K].

    Args:
      q_BTHK, k_BTPK, v_BTPK: bfloat16, of shapes that `fits`. H / P consecutive heads of queries share a head of keys
        and values.
      document_BT: the document of each token, which sees only its own; int32. None: it sees its row.
      interpret: run on any device, for tests.
    """
    b, t, h, k = q_BTHK.shape
    p = k_BTPK.shape[2]
    n = _heads_of_a_group(h // p, t, k)
    q_IKY = q_BTHK.reshape(b, t, h // n, n, k).transpose(0, 2, 4, 3, 1).reshape(b * h // n, k, n * t)
    k_RKT = k_BTPK.transpose(0, 2, 3, 1).reshape(b * p, k, t)
    v_RKT = v_BTPK.transpose(0, 2, 3, 1).reshape(b * p, k, t)
    documents = None if document_BT is None else (document_BT[:, None, :], document_BT[:, :, None])
    y_IKY = _attention(q_IKY, k_RKT, v_RKT, documents, interpret)
    return y_IKY.reshape(b, h // n, k, n, t).transpose(0, 4, 1, 3, 2).reshape(b, t, h, k)


def _heads_of_a_group(n_sharing: int, t: int, k: int) -> int:
    """The most of `n_sharing` heads, in groups of equal size, whose queries' gradient stays on chip; at least 1."""
    for n in range(n_sharing, 1, -1):
        if n_sharing % n == 0 and 4 * n * t * k <= GRADIENT_BYTES:
            return n
    return 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attention(
    q_IKY: Float[Array, "I K Y"],
    k_RKT: Float[Array, "R K T"],
    v_RKT: Float[Array, "R K T"],
    documents: DocumentsOfRows,
    interpret: Interpret,
) -> Float[Array, "I K Y"]:
    y_IKY, _ = _forward(q_IKY, k_RKT, v_RKT, documents, interpret)
    return y_IKY


def _forward(
    q_IKY: Float[Array, "I K Y"],
    k_RKT: Float[Array, "R K T"],
    v_RKT: Float[Array, "R K T"],
    documents: DocumentsOfRows,
    interpret: Interpret,
) -> tuple[Float[Array, "I K Y"], Residual]:
    rows, k, n_queries = q_IKY.shape
    t = k_RKT.shape[2]
    groups = rows // len(k_RKT)
    block = _block(t)

    def query_index(r: Index, i: Index, j: Index) -> BlockIndex:
        return r, 0, i

    def query_block(height: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, height, block), query_index)

    def key_index(r: Index, i: Index, j: Index) -> BlockIndex:
        # a block that is skipped repeats the index of its neighbour, and so is not fetched
        return r // groups, 0, jnp.minimum(i % (t // block), j)

    key_block = pl.BlockSpec((None, k, block), key_index)
    document_specs = None
    if documents is not None:
        heads_of_row = rows // len(documents[0])

        def query_document_index(r: Index, i: Index, j: Index) -> BlockIndex:
            return r // heads_of_row, 0, i % (t // block)

        def key_document_index(r: Index, i: Index, j: Index) -> BlockIndex:
            return r // heads_of_row, jnp.minimum(i % (t // block), j), 0

        document_specs = _document_specs(block, query_document_index, key_document_index)
    y_IKY, lse_I1Y = pl.pallas_call(
        functools.partial(_forward_kernel, scale=k**-0.5),
        grid=(rows, n_queries // block, t // block),
        in_specs=[query_block(k), key_block, key_block, document_specs],
        out_specs=[query_block(k), query_block(1)],
        out_shape=[_like(q_IKY, q_IKY.shape, q_IKY.dtype), _like(q_IKY, (rows, 1, n_queries), jnp.float32)],
        scratch_shapes=[pltpu.VMEM((height, block), jnp.float32) for height in (1, 1, k)],
        **_options(q_IKY, k_RKT, n_products=2, per_query=2 + 2, per_key=0, interpret=interpret),
    )(q_IKY, k_RKT, v_RKT, documents)
    return y_IKY, (q_IKY, k_RKT, v_RKT, documents, y_IKY, lse_I1Y)


def _document_specs(
    block: int, query_index: Callable[..., BlockIndex], key_index: Callable[..., BlockIndex]
) -> tuple[pl.BlockSpec, pl.BlockSpec]:
    """Which blocks of DocumentsOfRows a program reads: [1, Q] of the queries', [U, 1] of the keys'."""
    return pl.BlockSpec((None, 1, block), query_index), pl.BlockSpec((None, block, 1), key_index)


# Pallas hands a kernel one reference for each block and scratch array, hence so many arguments. `documents`: blocks
# [1, Q] and [U, 1] of DocumentsOfRows
def _forward_kernel(  # noqa: PLR0913
    q_KQ: Ref,
    k_KU: Ref,
    v_KU: Ref,
    documents: tuple[Ref, Ref] | None,
    y_KQ: Ref,
    lse_1Q: Ref,
    max_1Q: Ref,
    sum_1Q: Ref,
    total_KQ: Ref,
    *,
    scale: float,
) -> None:
    i = pl.program_id(1) % pl.num_programs(2)  # the block of the queries' positions
    j = pl.program_id(2)  # the block of the keys'

    @pl.when(j == 0)
    def _() -> None:
        max_1Q[...] = jnp.full_like(max_1Q, -jnp.inf)
        sum_1Q[...] = jnp.zeros_like(sum_1Q)
        total_KQ[...] = jnp.zeros_like(total_KQ)

    def add(diagonal: bool) -> None:
        score_UQ = _score(q_KQ, k_KU, documents, scale, diagonal)
        before_1Q = max_1Q[...]
        max_1Q[...] = jnp.maximum(before_1Q, jnp.max(score_UQ, axis=0, keepdims=True))
        weight_UQ = jnp.exp(score_UQ - max_1Q[...])
        rescale_1Q = jnp.exp(before_1Q - max_1Q[...])
        sum_1Q[...] = sum_1Q[...] * rescale_1Q + jnp.sum(weight_UQ, axis=0, keepdims=True)
        total_KQ[...] = total_KQ[...] * rescale_1Q + _product("ku,uq->kq", v_KU[...], weight_UQ.astype(v_KU.dtype))

    @pl.when(j < i)
    def _() -> None:
        add(diagonal=False)

    @pl.when(j == i)
    def _() -> None:
        add(diagonal=True)
        y_KQ[...] = (total_KQ[...] / sum_1Q[...]).astype(y_KQ.dtype)
        lse_1Q[...] = max_1Q[...] + jnp.log(sum_1Q[...])


def _backward(interpret: Interpret, residual: Residual, dy_IKY: Float[Array, "I K Y"]) -> Gradients:
    q_IKY, k_RKT, v_RKT, documents, y_IKY, lse_I1Y = residual
    rows, k, n_queries = q_IKY.shape
    t = k_RKT.shape[2]
    groups = rows // len(k_RKT)
    block = _block(t)
    n = t // block
    # the softmax's gradient subtracts each query's mean of dy v, which equals dy y
    mean_I1Y = jnp.sum(dy_IKY.astype(jnp.float32) * y_IKY, axis=1, keepdims=True)

    def query_index(r: Index, j: Index, i: Index) -> BlockIndex:
        # a block that is skipped repeats the index of its neighbour, and so is not fetched
        return r, 0, i // n * n + jnp.maximum(i % n, j)

    def query_block(height: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, height, block), query_index)

    def key_index(r: Index, j: Index, i: Index) -> BlockIndex:
        return r // groups, 0, j

    def dkey_index(r: Index, j: Index, i: Index) -> BlockIndex:
        return r, 0, j

    def group_index(r: Index, j: Index, i: Index) -> BlockIndex:
        return r, 0, 0

    def sum_over_groups(dkeys_IKT: Float[Array, "I K T"]) -> Float[Array, "R K T"]:
        return jnp.sum(dkeys_IKT.reshape(-1, groups, k, t), axis=1).astype(k_RKT.dtype)

    key_block = pl.BlockSpec((None, k, block), key_index)
    document_specs = None
    if documents is not None:
        heads_of_row = rows // len(documents[0])

        def query_document_index(r: Index, j: Index, i: Index) -> BlockIndex:
            return r // heads_of_row, 0, jnp.maximum(i % n, j)

        def key_document_index(r: Index, j: Index, i: Index) -> BlockIndex:
            return r // heads_of_row, j, 0

        document_specs = _document_specs(block, query_document_index, key_document_index)
    dkey_block = pl.BlockSpec((None, k, block), dkey_index)
    all_queries = pl.BlockSpec((None, k, n_queries), group_index)  # on chip while a group is worked on
    dtype = k_RKT.dtype if groups == 1 else jnp.dtype(jnp.float32)  # float32 where groups are still to be summed
    dq_IKY, dk_IKT, dv_IKT = pl.pallas_call(
        functools.partial(_backward_kernel, scale=k**-0.5),
        grid=(rows, n, n_queries // block),
        in_specs=[
            query_block(k),
            key_block,
            key_block,
            document_specs,
            query_block(k),
            query_block(1),
            query_block(1),
        ],
        out_specs=[all_queries, dkey_block, dkey_block],
        out_shape=[_like(q_IKY, q_IKY.shape, q_IKY.dtype)] + [_like(q_IKY, (rows, k, t), dtype)] * 2,
        scratch_shapes=[pltpu.VMEM((k, length), jnp.float32) for length in (n_queries, block, block)],
        **_options(q_IKY, k_RKT, n_products=5, per_query=2, per_key=2 * (2 + dtype.itemsize), interpret=interpret),
    )(q_IKY, k_RKT, v_RKT, documents, dy_IKY, lse_I1Y, mean_I1Y)
    if groups > 1:
        return dq_IKY, sum_over_groups(dk_IKT), sum_over_groups(dv_IKT), None
    return dq_IKY, dk_IKT, dv_IKT, None


def _backward_kernel(  # noqa: PLR0913
    q_KQ: Ref,
    k_KU: Ref,
    v_KU: Ref,
    documents: tuple[Ref, Ref] | None,
    dy_KQ: Ref,
    lse_1Q: Ref,
    mean_1Q: Ref,
    dq_KY: Ref,
    dk_KU: Ref,
    dv_KU: Ref,
    sum_dq_KY: Ref,
    sum_dk_KU: Ref,
    sum_dv_KU: Ref,
    *,
    scale: float,
) -> None:
    j = pl.program_id(1)  # the block of the keys' positions
    block_of_queries = pl.program_id(2)
    i = block_of_queries % pl.num_programs(1)  # the block of the queries' positions
    block = q_KQ.shape[1]

    @pl.when((block_of_queries == 0) & (j == 0))
    def _() -> None:
        sum_dq_KY[...] = jnp.zeros_like(sum_dq_KY)

    @pl.when(block_of_queries == 0)
    def _() -> None:
        sum_dk_KU[...] = jnp.zeros_like(sum_dk_KU)
        sum_dv_KU[...] = jnp.zeros_like(sum_dv_KU)

    def add(diagonal: bool) -> None:
        probability_UQ = jnp.exp(_score(q_KQ, k_KU, documents, scale, diagonal) - lse_1Q[...])
        dprobability_UQ = _product("ku,kq->uq", v_KU[...], dy_KQ[...])
        dscore_UQ = (probability_UQ * (dprobability_UQ - mean_1Q[...]) * scale).astype(q_KQ.dtype)
        sum_dv_KU[...] += _product("kq,uq->ku", dy_KQ[...], probability_UQ.astype(dy_KQ.dtype))
        sum_dk_KU[...] += _product("kq,uq->ku", q_KQ[...], dscore_UQ)
        at = pl.multiple_of(block_of_queries * block, block)
        sum_dq_KY[:, pl.ds(at, block)] += _product("ku,uq->kq", k_KU[...], dscore_UQ)

    @pl.when(i > j)
    def _() -> None:
        add(diagonal=False)

    @pl.when(i == j)
    def _() -> None:
        add(diagonal=True)

    @pl.when(block_of_queries == pl.num_programs(2) - 1)
    def _() -> None:
        dk_KU[...] = sum_dk_KU[...].astype(dk_KU.dtype)
        dv_KU[...] = sum_dv_KU[...].astype(dv_KU.dtype)

    @pl.when((block_of_queries == pl.num_programs(2) - 1) & (j == pl.num_programs(1) - 1))
    def _() -> None:
        dq_KY[...] = sum_dq_KY[...].astype(dq_KY.dtype)


def _score(
    q_KQ: Ref, k_KU: Ref, documents: tuple[Ref, Ref] | None, scale: float, diagonal: bool
) -> Float[Array, "U Q"]:
    score_UQ = _product("ku,kq->uq", k_KU[...], q_KQ[...]) * scale
    if documents is not None:
        document_1Q, document_U1 = documents
        score_UQ = jnp.where(document_1Q[...] == document_U1[...], score_UQ, OTHER_DOCUMENT)
    if diagonal:
        position = functools.partial(jax.lax.broadcasted_iota, jnp.int32, score_UQ.shape)
        score_UQ = jnp.where(position(0) <= position(1), score_UQ, -jnp.inf)
    return score_UQ


def _block(t: int) -> int:
    return next(block for block in BLOCKS if t % block == 0)


def _like(x: Float[Array, "..."], shape: tuple[int, ...], dtype: DTypeLike) -> jax.ShapeDtypeStruct:
    """An output of a kernel that differs over the same mesh axes as its input `x`."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(x).manual_axis_type)


def _options(  # noqa: PLR0913
    q_IKY: Float[Array, "I K Y"],
    k_RKT: Float[Array, "R K T"],
    n_products: int,
    per_query: int,
    per_key: int,
    interpret: Interpret,
) -> dict[str, Any]:
    """Options of both kernels. Cost analyses see no more of a kernel than its estimate: FLOPs of products, no softmax.

    Args:
      q_IKY, k_RKT: the queries and keys.
      n_products: products of a block of queries and one of keys.
      per_query, per_key: bytes that are read or written once for each element of a group's q, and of its k. Two more
        arrays are read again for each block.
      interpret: as in `attention`.
    """
    k, t = k_RKT.shape[1:]
    pairs = q_IKY.size // k * (t + _block(t)) // 2  # of a query and a key, in the blocks that are worked on
    n_bytes = per_query * q_IKY.size + per_key * len(q_IKY) * k * t + 2 * 2 * k * pairs // _block(t)
    cost = pl.CostEstimate(flops=2 * k * pairs * n_products, transcendentals=pairs, bytes_accessed=n_bytes)
    parameters = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary"))
    return dict(interpret=interpret, cost_estimate=cost, compiler_params=parameters)


_attention.defvjp(_forward, _backward)
