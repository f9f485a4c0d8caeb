"""One formula for NumPy and for JAX: a law is evaluated at once in the one, and compiled in the other."""

import sys

import numpy as np


def array_module(*arrays):
    """jax.numpy if one of `arrays` is JAX's, a tracer among them; NumPy otherwise, without importing JAX."""
    jax = sys.modules.get("jax")
    return jax.numpy if jax is not None and any(isinstance(a, jax.Array) for a in arrays) else np
