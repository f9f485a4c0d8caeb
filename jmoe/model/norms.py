"""RMSNorm and LayerNorm, in float32."""

import jax
import jax.numpy as jnp


def rms_norm(x, scale, axis=-1, average=lambda mean: mean):
    """x / rms(x) * scale over `axis`, in float32, back in x's dtype.

    average: averages the mean squares over devices, where other devices have parts of these axes.
    """
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(average(jnp.mean(x32**2, axis=axis, keepdims=True)) + 1e-6)
    return (x32 * scale).astype(x.dtype)


def norm(x, scale, bias=None):
    """(x - mean(x)) / std(x) * scale + bias over the last axis, in float32, back in x's dtype. No bias: rms_norm."""
    if bias is None:
        return rms_norm(x, scale)
    x32 = x.astype(jnp.float32)
    x32 -= jnp.mean(x32, axis=-1, keepdims=True)
    x32 *= jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + 1e-5)
    return (x32 * scale + bias).astype(x.dtype)
