"""Fits run in float64 on the processor."""

import contextlib
import os
from collections.abc import Generator

from fit.errors import UserError


@contextlib.contextmanager
def float64() -> Generator[None]:
    """jax in float64, on the processor where jax has it: an accelerator would only slow such small problems.

    Raises:
      UserError: jax finds no device.
    """
    import jax

    platforms = os.environ.get("JAX_PLATFORMS", "cpu")
    try:
        device = jax.devices("cpu" if "cpu" in platforms else None)[0]
    except (RuntimeError, AssertionError) as e:  # the latter, with no message, if the plugin is missing
        raise UserError(
            f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}: jax finds no such device; install the extra [cuda] or "
            "[tpu], or leave JAX_PLATFORMS out: fit needs no accelerator"
        ) from e
    with jax.enable_x64(True), jax.default_device(device):
        yield
