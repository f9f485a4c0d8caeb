"""Products of rows that are sorted by expert, for CPUs: blocks of one expert's rows, one after another.

XLA's grouped product for CPUs multiplies every row by every expert's matrix. Here an expert with n rows takes n / C
blocks, rounded up. Its last block may reach into rows of the next expert, and the last block of all begins earlier, so
that each has C rows. What such a block computes of rows that are not its own is not used.

Axes: M rows, K units in, N units out, E experts, C rows of a block. I and O are the units that a product takes and
gives: K and N, or N and K in the gradient of the rows.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jmoe.model import sharding

Result = Float[Array, "..."]  # of an expert's blocks so far


def rows_of_a_block(n_rows: int, n_experts: int) -> int:
    """C: a quarter of an expert's mean rows, from 8 to 256.

    Each block reads its expert's matrix, however few its rows. A larger block wastes more of its rows.
    """
    return min(max(n_rows // (4 * n_experts), 8), 256, n_rows)


@jax.custom_vjp
def blocked_product(
    rows_MK: Float[Array, "M K"], weights_EKN: Float[Array, "E K N"], count_E: Int[Array, " E"]
) -> Float[Array, "M N"]:
    """grouped_product.grouped_product in blocks; rows after those of the last expert give zeros.

    JAX cannot differentiate loops whose number of steps is known only when they run. The gradient of the weights is
    summed in float32.
    """
    return _multiply(rows_MK, weights_EKN, count_E)


def _blocked_product_fwd(
    rows_MK: Float[Array, "M K"], weights_EKN: Float[Array, "E K N"], count_E: Int[Array, " E"]
) -> tuple[Float[Array, "M N"], tuple[Float[Array, "M K"], Float[Array, "E K N"], Int[Array, " E"]]]:
    return blocked_product(rows_MK, weights_EKN, count_E), (rows_MK, weights_EKN, count_E)


def _blocked_product_bwd(
    inputs: tuple[Float[Array, "M K"], Float[Array, "E K N"], Int[Array, " E"]], dy_MN: Float[Array, "M N"]
) -> tuple[Float[Array, "M K"], Float[Array, "E K N"], None]:
    rows_MK, weights_EKN, count_E = inputs
    drows_MK = _multiply(dy_MN, weights_EKN, count_E, is_transposed=True)
    return drows_MK, _multiply_into_weights(rows_MK, dy_MN, count_E).astype(weights_EKN.dtype), None


blocked_product.defvjp(_blocked_product_fwd, _blocked_product_bwd)


def _multiply(
    rows_MI: Float[Array, "M I"],
    weights_E: Float[Array, "E ..."],
    count_E: Int[Array, " E"],
    is_transposed: bool = False,
) -> Float[Array, "M O"]:
    """Each row times its expert's matrix.

    Args:
      rows_MI: sorted by expert.
      weights_E: a matrix of each expert, [I, O], or [O, I] if is_transposed.
      count_E: rows of each expert.
      is_transposed: whether rows are multiplied by the transposed matrices.
    """
    block = rows_of_a_block(len(rows_MI), len(count_E))

    def of_expert(e: Int[Array, ""], y_MO: Float[Array, "M O"]) -> Float[Array, "M O"]:
        weight_IO = jax.lax.dynamic_index_in_dim(weights_E, e, keepdims=False)
        if is_transposed:
            weight_IO = weight_IO.T

        def of_block(
            start: Int[Array, ""], is_own_C1: Bool[Array, "C 1"], y_MO: Float[Array, "M O"]
        ) -> Float[Array, "M O"]:
            rows_CI = jax.lax.dynamic_slice_in_dim(rows_MI, start, block)
            before_CO = jax.lax.dynamic_slice_in_dim(y_MO, start, block)  # results of other experts' rows stay
            y_CO = jnp.where(is_own_C1, rows_CI @ weight_IO, before_CO)
            return jax.lax.dynamic_update_slice_in_dim(y_MO, y_CO, start, axis=0)

        return _over_blocks(of_block, y_MO, e, count_E, block, len(rows_MI))

    n_out = weights_E.shape[1] if is_transposed else weights_E.shape[2]
    zeros_MO = jnp.zeros((len(rows_MI), n_out), rows_MI.dtype)
    zeros_MO = sharding.vary(zeros_MO, sharding.varying_axes(rows_MI, weights_E, count_E))
    return jax.lax.fori_loop(0, len(count_E), of_expert, zeros_MO)


def _multiply_into_weights(
    rows_MK: Float[Array, "M K"], dy_MN: Float[Array, "M N"], count_E: Int[Array, " E"]
) -> Float[Array, "E K N"]:
    """The gradient of the weights, in float32: of each expert, the sum over its rows of row times gradient."""
    block = rows_of_a_block(len(rows_MK), len(count_E))
    dtype = jnp.promote_types(rows_MK.dtype, jnp.float32)

    def of_expert(e: Int[Array, ""]) -> Float[Array, "K N"]:
        def of_block(
            start: Int[Array, ""], is_own_C1: Bool[Array, "C 1"], sum_KN: Float[Array, "K N"]
        ) -> Float[Array, "K N"]:
            rows_CK = jax.lax.dynamic_slice_in_dim(rows_MK, start, block)
            dy_CN = jax.lax.dynamic_slice_in_dim(dy_MN, start, block)
            own_CN = jnp.where(is_own_C1, dy_CN, 0)
            return sum_KN + jnp.einsum("ck,cn->kn", rows_CK, own_CN, preferred_element_type=dtype)

        zeros_KN = jnp.zeros((rows_MK.shape[1], dy_MN.shape[1]), dtype)
        zeros_KN = sharding.vary(zeros_KN, sharding.varying_axes(rows_MK, dy_MN, count_E))
        return _over_blocks(of_block, zeros_KN, e, count_E, block, len(rows_MK))

    return jax.lax.map(of_expert, jnp.arange(len(count_E)))


def _over_blocks(
    of_block: Callable[[Int[Array, ""], Bool[Array, "C 1"], Result], Result],
    initial: Result,
    e: Int[Array, ""],
    count_E: Int[Array, " E"],
    block: int,
    n_rows: int,
) -> Result:
    """Calls `of_block` for each block of expert e in turn; returns what the last call returns.

    Args:
      of_block: takes the first row of a block, which of its rows are the expert's and in no block before, and what the
        call before returned.
      initial: what the first call takes.
      e: the expert.
      count_E: rows of each expert.
      block: C.
      n_rows: M.
    """
    first = (jnp.cumsum(count_E) - count_E)[e]
    end = first + count_E[e]

    def step(i: Int[Array, ""], before: Result) -> Result:
        first_new = first + i * block  # the first row that no block before had
        start = jnp.minimum(first_new, n_rows - block)
        row_C = start + jnp.arange(block)
        is_own_C = (row_C >= first_new) & (row_C < end)
        return of_block(start, is_own_C[:, None], before)

    n_blocks = -(-count_E[e] // block)  # rounded up
    return jax.lax.fori_loop(0, n_blocks, step, initial)
