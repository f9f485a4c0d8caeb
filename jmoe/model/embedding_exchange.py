"""Token embeddings from a table that is stored spread over the data axis, by exchange of the rows that are looked up.

Axes (jmoe/model/__init__.py): B, D, T, V; Y, the slice of D that a device stores; I, the rows of all devices of the
data axis.

A device that gathers the table receives V rows, and sends as many gradients back. Where it has fewer tokens than V, it
is less to exchange rows: each device looks up its slice of every device's tokens, and an all-to-all makes whole rows of
the slices. Each token's gradient is summed where its slice is stored, over all devices of the data axis at once, in
float32, and rounded once.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jmoe.model import sharding

MIN_SLICE = 128  # numbers of a row that a device looks up at least: narrower rows fill no TPU register


def rows_send_less(n_data: int, n_tokens: int, d_model: int, vocab_size: int) -> bool:
    """Whether `exchanged_lookup` sends less than a gathered table, with slices of rows that are wide enough.

    Args:
      n_data: devices of the data axis.
      n_tokens: tokens of one device.
      d_model: numbers of a row.
      vocab_size: rows of the table.
    """
    return n_data > 1 and n_tokens < vocab_size and d_model >= MIN_SLICE * n_data


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def exchanged_lookup(
    embed_VY: Float[Array, "V Y"], tokens_BT: Int[Array, "B T"], vocab_size: int, shared_by: tuple[str, ...] = ()
) -> Float[Array, "B T D"]:
    """x_BTD, the embedding of each token of this device; to be called inside sharding.per_device.

    JAX's own gradient adds a token's rows to each other in their own type: in bfloat16 the sum of a common token stops
    growing after a few hundred rows. This one adds them in float32.

    Args:
      embed_VY: this device's slice of the table, which is stored spread over the data axis along D.
      tokens_BT: int32.
      vocab_size: V.
      shared_by: the other mesh axes whose devices have different tokens and the same slice.
    """
    if shared_by:
        embed_VY = jax.lax.pcast(embed_VY, shared_by, to="varying")
    tokens_IT = jax.lax.all_gather(tokens_BT, "data", axis=0, tiled=True)
    slices_ITY = embed_VY[tokens_IT]
    return jax.lax.all_to_all(slices_ITY, "data", split_axis=0, concat_axis=2, tiled=True)


def _exchanged_lookup_fwd(
    embed_VY: Float[Array, "V Y"], tokens_BT: Int[Array, "B T"], vocab_size: int, shared_by: tuple[str, ...]
) -> tuple[Float[Array, "B T D"], Int[Array, "B T"]]:
    return exchanged_lookup(embed_VY, tokens_BT, vocab_size, shared_by), tokens_BT


def _exchanged_lookup_bwd(
    vocab_size: int, shared_by: tuple[str, ...], tokens_BT: Int[Array, "B T"], dx_BTD: Float[Array, "B T D"]
) -> tuple[Float[Array, "V Y"], None]:
    dtype = dx_BTD.dtype
    tokens_IT = jax.lax.all_gather(tokens_BT, "data", axis=0, tiled=True)
    dslices_ITY = jax.lax.all_to_all(dx_BTD, "data", split_axis=2, concat_axis=0, tiled=True)
    zeros_VY = jnp.zeros((vocab_size, dslices_ITY.shape[-1]), jnp.float32)
    dembed_VY = zeros_VY.at[tokens_IT].add(dslices_ITY.astype(jnp.float32))
    if math.prod(jax.lax.axis_size(axis) for axis in shared_by) <= sharding.FEW:
        dembed_VY = dembed_VY.astype(dtype)
    if shared_by:
        dembed_VY = jax.lax.psum(dembed_VY, shared_by)
    return dembed_VY.astype(dtype), None


exchanged_lookup.defvjp(_exchanged_lookup_fwd, _exchanged_lookup_bwd)
