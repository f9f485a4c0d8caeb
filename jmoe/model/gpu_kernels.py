"""Which of tokamax's kernels runs a grouped product on a GPU, and with which tiles.

Axes: M rows, K units in, N units out, E experts (of this device).

tokamax has kernels by Triton and by Pallas for Mosaic. Its own choice of tiles, for a shape that it has no record of,
reaches a third of a Hopper chip's peak. Mosaic's tiles here are the fastest of thirteen that were measured on an H200:
the forward product and the gradient of rows reach 75 to 92% of the measured peak, with 8 experts and with 64
(benchmarks/README.md). Triton reaches 39 to 74%, since its grid has a program for every block of rows and every expert.

The gradient of the weights always uses Triton. Mosaic's takes two to four times as long, and was 2% off on an H200
where all other products were exact.
"""

import importlib.util
import os
import shutil
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jmoe.errors import UserError
from jmoe.model import kernels, sharding

FORWARD = jax.lax.RaggedDotDimensionNumbers(  # [M, K] x [E, K, N]
    dot_dimension_numbers=(([1], [1]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)
TO_ROWS = jax.lax.RaggedDotDimensionNumbers(  # [M, N] x [E, K, N]
    dot_dimension_numbers=(([1], [2]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)
TO_WEIGHTS = jax.lax.RaggedDotDimensionNumbers(  # [M, K] x [M, N], summed over the rows of each expert
    dot_dimension_numbers=(([0], [0]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)
NAMES = {FORWARD: "product", TO_ROWS: "gradient of rows", TO_WEIGHTS: "gradient of weights"}
MOSAIC_ALIGNMENT = 64  # Mosaic needs widths above 64 to be multiples of 64
WIDEST_TILE = 192  # units out of a tile of Mosaic's: its float32 sums fill three quarters of the registers


def product(
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    count_E: Int[Array, " E"],
    dimensions: jax.lax.RaggedDotDimensionNumbers,
) -> Float[Array, "..."]:
    """A grouped product by a kernel of tokamax.

    Args:
      a, b: rows and weights, [M, K] and [E, K, N] (FORWARD) or [M, N] and [E, K, N] (TO_ROWS), or two arrays of rows,
        [M, K] and [M, N] (TO_WEIGHTS).
      count_E: rows of each expert, int32.
      dimensions: FORWARD, TO_ROWS or TO_WEIGHTS.

    Raises:
      UserError: tokamax or the packages of Triton's kernels are missing.
    """
    tokamax = import_tokamax()
    if sharding.platform() != "gpu":  # for tests on a CPU
        return tokamax.ragged_dot_general(a, b, count_E, dimensions, implementation="xla")
    refusal = None
    refusals = []
    for name, kernel in _kernels_to_try(dimensions).items():
        try:
            y = kernel(a, b, count_E, dimensions)
        # tokamax's word for a chip or a shape that a kernel is not made for; or a package beside it does not fit
        except (NotImplementedError, ImportError) as error:
            refusal = error
            refusals.append(f"{name}: {' '.join(str(error).split())[:200]}")
            continue
        kernels.note(f"{NAMES[dimensions]} of experts that drop nothing", f"tokamax, {name}", "; ".join(refusals))
        return y
    if has_triton():
        raise UserError(f"a mixture that drops nothing: tokamax has no kernel for this GPU ({refusal})") from refusal
    raise UserError(
        "a mixture that drops nothing needs Triton's kernels on a GPU: install the [cuda] extra, which brings triton "
        "and jax-triton, with Python 3.12 or later, pip install -e '.[cuda]'"
    ) from refusal


def import_tokamax() -> types.ModuleType:
    """The module tokamax, whose import takes seconds and which only GPUs need.

    Raises:
      UserError: it is not installed, or it does not fit the packages beside it.
    """
    try:
        import tokamax
    except Exception as error:  # noqa: BLE001  a module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(
            "tokamax, whose kernels compute the grouped products of a mixture that drops nothing (config.model."
            f"capacity_factor=None, and every evaluation), cannot be imported: {reason}. Nothing was trained: install "
            "the versions of the [cuda] extra, pip install -e '.[cuda]'"
        ) from None
    return tokamax


def _kernels_to_try(dimensions: jax.lax.RaggedDotDimensionNumbers) -> dict[str, Callable]:
    """by_triton and by_mosaic by name, the faster one first, without what is not installed or not exact."""
    to_try: dict[str, Callable] = {}
    if dimensions != TO_WEIGHTS:
        to_try["Mosaic"] = by_mosaic
    if has_triton():
        to_try["Triton"] = by_triton
    return to_try


def has_triton() -> bool:
    """Whether the packages of Triton's kernels are installed."""
    return all(importlib.util.find_spec(name) for name in ("triton", "jax_triton"))


def by_triton(
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    count_E: Int[Array, " E"],
    dimensions: jax.lax.RaggedDotDimensionNumbers,
) -> Float[Array, "..."]:
    """`product` by Triton. Raises NotImplementedError where it has no kernel for the chip.

    Sets the environment variables by which Triton finds its assembler, where they are not set.
    """
    import tokamax
    from tokamax._src.ops.ragged_dot import triton  # tokamax has no public name for a kernel with given tiles

    # Triton writes PTX for the newest assembler that it knows of, and XLA may find an older one first
    assembler = shutil.which("ptxas")
    if assembler is not None:
        os.environ.setdefault("TRITON_PTXAS_PATH", assembler)
        os.environ.setdefault("TRITON_PTXAS_BLACKWELL_PATH", assembler)
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # its default; Triton warns where it is unset
    tiles = triton.Config(block_m=128, block_n=256, block_k=32, num_warps=8, num_stages=5)
    kernel = triton.TritonRaggedDot(config=tiles)
    return tokamax.ragged_dot_general(a, b, count_E, dimensions, implementation=(kernel,))


def by_mosaic(
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    count_E: Int[Array, " E"],
    dimensions: jax.lax.RaggedDotDimensionNumbers,
) -> Float[Array, "..."]:
    """`product` by Pallas for Mosaic. Raises NotImplementedError where it has no kernel for the chip."""
    import tokamax
    from tokamax._src import gpu_utils
    from tokamax._src.ops.ragged_dot import pallas_mosaic_gpu as mosaic

    a_padded = _pad_widths(a)
    b_padded = _pad_widths(b)
    kernel = "mosaic"
    if gpu_utils.is_sm90():
        width = b_padded.shape[1] if dimensions == TO_ROWS else b_padded.shape[-1]
        kernel = mosaic.PallasMosaicGpuRaggedDot(config=hopper_tiles(width))
    y = tokamax.ragged_dot_general(a_padded, b_padded, count_E, dimensions, implementation=(kernel,))
    if dimensions == FORWARD:
        return y[:, : b.shape[2]]
    if dimensions == TO_ROWS:
        return y[:, : b.shape[1]]
    return y[:, : a.shape[1], : b.shape[1]]


def hopper_tiles(width: int) -> Any:
    """Mosaic's tiles of a product with this many units out: tokamax's Config of its kernel for Hopper."""
    from tokamax._src.ops.ragged_dot import pallas_mosaic_gpu as mosaic

    return mosaic.Config(
        block_m=128,
        block_n=min(WIDEST_TILE, max(MOSAIC_ALIGNMENT, width)),
        block_k=64,
        num_stages=4,
        split_k=1,
        persistent=True,
        grid_minor_dim=mosaic.common.MatmulDimension.N,
        grid_tile_width=8,
    )


def _pad_widths(a: Float[Array, "..."]) -> Float[Array, "..."]:
    """`a` with zeros up to a multiple of MOSAIC_ALIGNMENT along every axis but the first; smaller axes stay."""
    padding = [(0, 0)]
    for width in a.shape[1:]:
        padding.append((0, -width % MOSAIC_ALIGNMENT if width > MOSAIC_ALIGNMENT else 0))
    return jnp.pad(a, padding)
