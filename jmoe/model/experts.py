"""SwiGLU, of a dense layer or of every expert on its own rows, and its scale by gates.

Axes (jmoe/model/__init__.py): D, E, F, N rows.
"""

import jax
import jax.numpy as jnp


def swiglu(x_END, gate_EDF, up_EDF, down_EFD, scale_EN1=None):
    """SwiGLU of every expert on its own N rows, times their scales; without the axis E, of a dense layer."""
    hidden_ENF = jax.nn.silu(x_END @ gate_EDF) * (x_END @ up_EDF)
    if scale_EN1 is not None:
        hidden_ENF = scaled(hidden_ENF, scale_EN1)
    return hidden_ENF @ down_EFD


@jax.custom_vjp
def scaled(hidden_NF: jax.Array, scale_N1: jax.Array) -> jax.Array:
    """hidden_NF times the scale of each row; there may be more axes before N.

    A mixture scales hidden units by the gates, not its result, which then is not needed for a gradient. JAX's own
    gradient of a scale, a sum over F, adds in the type of the hidden units. This one adds in float32.
    """
    return hidden_NF * scale_N1


def _scaled_fwd(hidden_NF, scale_N1):
    return hidden_NF * scale_N1, (hidden_NF, scale_N1)


def _scaled_bwd(residual, dy_NF):
    hidden_NF, scale_N1 = residual
    products_NF = dy_NF.astype(jnp.float32) * hidden_NF.astype(jnp.float32)
    dscale_N1 = jnp.sum(products_NF, axis=-1, keepdims=True).astype(scale_N1.dtype)
    return dy_NF * scale_N1, dscale_N1


scaled.defvjp(_scaled_fwd, _scaled_bwd)
