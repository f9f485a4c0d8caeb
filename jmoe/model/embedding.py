"""The lookup of tokens in the embedding, with a gradient that sums in float32.

A device needs the rows of its tokens. The table is stored spread over D, so the device has a slice of every row. Either
the devices gather the table, or each looks up slices for the tokens of others, and they exchange these.

Axes (jmoe/model/__init__.py): B, D, T, V; I of a slice of D, X devices whose slices make up D.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jmoe.model import sharding

NARROWEST = 128  # numbers of a slice: a TPU moves as many at once, and narrower slices of more tokens cost it more


def embed(embedding: nnx.Param, tokens_BT: Int[Array, "B T"], vocab_size: int) -> Float[Array, "B T D"]:
    """x_BTD, the embedding of each token.

    Args:
      embedding: this device's part of the table [V, D].
      tokens_BT: this device's rows.
      vocab_size: V.
    """
    n_neighbours = neighbours_of_exchange(embedding, tokens_BT.size, vocab_size)
    if n_neighbours is None:
        return lookup(sharding.gathered(embedding), tokens_BT, vocab_size)
    return _exchange(embedding, tokens_BT, vocab_size, n_neighbours)


def neighbours_of_exchange(embedding: nnx.Param, n_tokens: int, vocab_size: int) -> int | None:
    """How many neighbouring devices gather their slices before slices are exchanged, so that least is sent.

    None where it is least to gather the entire table. More neighbours make wider slices, of at least NARROWEST.

    Args:
      embedding: this device's part of the table [V, D].
      n_tokens: that this device looks up.
      vocab_size: V.
    """
    axes = embedding.row_spread.axes
    n_devices = jax.lax.axis_size(axes) if axes else 1
    width = embedding.shape[-1]

    def numbers_sent(n_neighbours: int) -> float:
        n_exchanging = n_devices // n_neighbours
        of_table = vocab_size * width * (n_neighbours - 1)
        of_rows = n_tokens * width * n_devices * (n_exchanging - 1) / n_exchanging
        return of_table + of_rows

    choices = [n for n in range(1, n_devices) if n_devices % n == 0 and n * width >= NARROWEST]
    best = min([*choices, n_devices], key=numbers_sent)
    return None if best == n_devices else best


def _exchange(
    embedding: nnx.Param, tokens_BT: Int[Array, "B T"], vocab_size: int, n_neighbours: int
) -> Float[Array, "B T D"]:
    """Looks up this device's slice for the tokens of X devices, and exchanges the slices with these.

    The gradient goes the same way back. So a device sums that of its slice over the tokens of all X, in float32.
    """
    axes = embedding.row_spread.axes
    groups = sharding.one_of_each_group(axes, n_neighbours)
    slice_VI = sharding.gathered_from_neighbours(embedding, n_neighbours)
    tokens_of_all = jax.lax.all_gather(tokens_BT, axes, axis=0, tiled=True, axis_index_groups=groups)  # [X B, T]
    slices = lookup(slice_VI, tokens_of_all, vocab_size)  # [X B, T, I]
    return jax.lax.all_to_all(slices, axes, split_axis=0, concat_axis=2, tiled=True, axis_index_groups=groups)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def lookup(embed_VD: Float[Array, "V D"], tokens_BT: Int[Array, "B T"], vocab_size: int) -> Float[Array, "B T D"]:
    """x_BTD, the embedding of each token.

    JAX's own gradient adds a token's rows to each other in their own type: in bfloat16 the sum of a common token stops
    growing after a few hundred rows. This one adds them in float32 and rounds each sum once.
    """
    return embed_VD[tokens_BT]


def _lookup_fwd(
    embed_VD: Float[Array, "V D"], tokens_BT: Int[Array, "B T"], vocab_size: int
) -> tuple[Float[Array, "B T D"], Int[Array, "B T"]]:
    return embed_VD[tokens_BT], tokens_BT


def _lookup_bwd(
    vocab_size: int, tokens_BT: Int[Array, "B T"], dx_BTD: Float[Array, "B T D"]
) -> tuple[Float[Array, "V D"], None]:
    zeros_VD = jnp.zeros((vocab_size, dx_BTD.shape[-1]), jnp.float32)
    dembed_VD = zeros_VD.at[tokens_BT].add(dx_BTD.astype(jnp.float32))
    return dembed_VD.astype(dx_BTD.dtype), None


lookup.defvjp(_lookup_fwd, _lookup_bwd)
