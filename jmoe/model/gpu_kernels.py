"""Which of tokamax's kernels takes a grouped product on a GPU, and with which tiles.

Axes: M rows, K units in, N units out, E experts (of this device).

tokamax has kernels by Triton and by Pallas for Mosaic. Its own choice of tiles, for a shape that it has no record of,
reaches a third of a Hopper chip's peak. The tiles here are those that are fastest for most shapes of tokamax's records
of an H100; measured on an H200 they reach 57 to 84% (benchmarks/README.md). Mosaic is faster where many experts share
few rows, since Triton's grid has a program for every block of rows and every expert. Mosaic's gradient of the weights
is never used: it takes two to four times as long, and was 2% off on an H200 where all other products were exact.
"""

import importlib.util
import os
import shutil

import jax
import jax.numpy as jnp

from jmoe.errors import UserError
from jmoe.model import sharding

FORWARD = jax.lax.RaggedDotDimensionNumbers(  # [M, K] x [E, K, N]
    dot_dimension_numbers=(([1], [1]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)
TO_ROWS = jax.lax.RaggedDotDimensionNumbers(  # [M, N] x [E, K, N]
    dot_dimension_numbers=(([1], [2]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)
TO_WEIGHTS = jax.lax.RaggedDotDimensionNumbers(  # [M, K] x [M, N], summed over the rows of each expert
    dot_dimension_numbers=(([0], [0]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)
TILE_UNITS = 64  # of Mosaic's tiles: rows of more units have a multiple of so many
FEW_EXPERTS = 32  # up to so many, Triton's programs without work take less time than Mosaic's slower products


def product(a, b, count_E, dimensions) -> jax.Array:
    """A grouped product of `dimensions`, one of FORWARD, TO_ROWS and TO_WEIGHTS, by a kernel of tokamax.

    Raises:
      UserError: the packages of Triton's kernels are missing.
    """
    import tokamax  # takes seconds, and only GPUs need it

    if sharding.platform() != "gpu":  # for tests on a CPU
        return tokamax.ragged_dot_general(a, b, count_E, dimensions, implementation="xla")
    kernels = [] if dimensions == TO_WEIGHTS else [by_mosaic]
    if has_triton():
        kernels.insert(0 if len(count_E) <= FEW_EXPERTS else len(kernels), by_triton)
    refusal = None
    for kernel in kernels:
        try:
            return kernel(a, b, count_E, dimensions)
        except NotImplementedError as error:  # tokamax's word for a chip or a shape that a kernel is not made for
            refusal = error
    raise UserError(
        "a mixture that drops nothing needs Triton's kernels on a GPU: install the [cuda] extra, which brings triton "
        "and jax-triton, with Python 3.12 or later, pip install -e '.[cuda]'"
    ) from refusal


def has_triton() -> bool:
    """Whether the packages of Triton's kernels are installed."""
    return all(importlib.util.find_spec(name) for name in ("triton", "jax_triton"))


def by_triton(a, b, count_E, dimensions) -> jax.Array:
    """`product` by Triton. Raises NotImplementedError where the chip is not made for it."""
    import tokamax
    from tokamax._src.ops.ragged_dot import triton  # tokamax has no public name for a kernel with given tiles

    # Triton writes PTX for the newest assembler that it knows of, and XLA may find an older one first
    if assembler := shutil.which("ptxas"):
        os.environ.setdefault("TRITON_PTXAS_PATH", assembler)
        os.environ.setdefault("TRITON_PTXAS_BLACKWELL_PATH", assembler)
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # which it warns of where nothing is said
    tiles = triton.Config(block_m=128, block_n=256, block_k=32, num_warps=8, num_stages=5)
    kernel = triton.TritonRaggedDot(config=tiles)
    return tokamax.ragged_dot_general(a, b, count_E, dimensions, implementation=(kernel,))


def by_mosaic(a, b, count_E, dimensions) -> jax.Array:
    """`product` by Pallas for Mosaic. Raises NotImplementedError where the chip is not made for it."""
    import tokamax
    from tokamax._src import gpu_utils
    from tokamax._src.ops.ragged_dot import pallas_mosaic_gpu as mosaic

    kernel = "mosaic"
    if gpu_utils.is_sm90():
        tiles = mosaic.Config(
            block_m=128, block_n=64, block_k=128, num_stages=4, split_k=1, grid_minor_dim=1, grid_tile_width=8
        )
        kernel = mosaic.PallasMosaicGpuRaggedDot(config=tiles)
    of_tiles = (_whole_tiles(a), _whole_tiles(b))
    y = tokamax.ragged_dot_general(*of_tiles, count_E, dimensions, implementation=(kernel,))
    if dimensions == FORWARD:
        return y[:, : b.shape[2]]
    if dimensions == TO_ROWS:
        return y[:, : b.shape[1]]
    return y[:, : a.shape[1], : b.shape[1]]


def _whole_tiles(a):
    """`a` with zeros for units that its axes lack to a multiple of TILE_UNITS; its first axis has rows or experts."""
    lacking = [(0, 0)]
    for n_units in a.shape[1:]:
        lacking.append((0, -n_units % TILE_UNITS if n_units > TILE_UNITS else 0))
    return jnp.pad(a, lacking)
