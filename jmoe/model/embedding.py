"""The lookup of tokens in the embedding, with a gradient that sums in float32.

Axes (jmoe/model/__init__.py): B, D, T, V.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


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
