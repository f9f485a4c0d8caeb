"""SwiGLU, of a dense layer or of every expert on its own rows, and its scale by gates.

Axes (jmoe/model/__init__.py): D, E, F, N rows.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def swiglu(
    x_END: Float[Array, "... N D"],
    gate_EDF: Float[Array, "... D F"],
    up_EDF: Float[Array, "... D F"],
    down_EFD: Float[Array, "... F D"],
    scale_EN1: Float[Array, "... N 1"] | None = None,
) -> Float[Array, "... N D"]:
    """SwiGLU of every expert on its own N rows, times their scales; without the axis E, of a dense layer."""
    hidden_ENF = jax.nn.silu(x_END @ gate_EDF) * (x_END @ up_EDF)
    if scale_EN1 is not None:
        hidden_ENF = scale_rows(hidden_ENF, scale_EN1)
    return hidden_ENF @ down_EFD


@jax.custom_vjp
def scale_rows(hidden_NF: Float[Array, "... N F"], scale_N1: Float[Array, "... N 1"]) -> Float[Array, "... N F"]:
    """hidden_NF times the scale of each row.

    A mixture scales the hidden units by the gates instead of the result, so that no gradient needs the result. JAX's
    own gradient of a scale, a sum over F, adds in the type of the hidden units. This one adds in float32.
    """
    return hidden_NF * scale_N1


def _scale_rows_fwd(
    hidden_NF: Float[Array, "... N F"], scale_N1: Float[Array, "... N 1"]
) -> tuple[Float[Array, "... N F"], tuple[Float[Array, "... N F"], Float[Array, "... N 1"]]]:
    return hidden_NF * scale_N1, (hidden_NF, scale_N1)


def _scale_rows_bwd(
    residual: tuple[Float[Array, "... N F"], Float[Array, "... N 1"]], dy_NF: Float[Array, "... N F"]
) -> tuple[Float[Array, "... N F"], Float[Array, "... N 1"]]:
    hidden_NF, scale_N1 = residual
    products_NF = dy_NF.astype(jnp.float32) * hidden_NF.astype(jnp.float32)
    dscale_N1 = jnp.sum(products_NF, axis=-1, keepdims=True).astype(scale_N1.dtype)
    return dy_NF * scale_N1, dscale_N1


scale_rows.defvjp(_scale_rows_fwd, _scale_rows_bwd)
