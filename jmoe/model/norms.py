"""RMSNorm and LayerNorm."""

import jax
import jax.numpy as jnp


def norm(x, scale, bias=None, axis=-1, average=lambda mean: mean):
    """RMSNorm, or with a bias LayerNorm, over `axis`: in float32, back in x's dtype.

    average: averages the mean squares over devices, where other devices have parts of these axes; RMSNorm only.
    """
    x32 = x.astype(jnp.float32)
    if bias is not None:
        x32 -= jnp.mean(x32, axis=axis, keepdims=True)
    x32 *= jax.lax.rsqrt(average(jnp.mean(x32**2, axis=axis, keepdims=True)) + (1e-6 if bias is None else 1e-5))
    return (x32 * scale if bias is None else x32 * scale + bias).astype(x.dtype)
