"""Products of rows that are sorted by expert: each expert's rows times its matrix.

Axes: M rows, K units in, N units out, E experts (of this device).

On a TPU libtpu has a kernel for jax.lax.ragged_dot. On GPUs and CPUs XLA would multiply each row by every expert's
matrix. So tokamax's kernels are used on GPUs (jmoe/model/gpu_kernels.py), and no grouped product on CPUs
(moe_dropless.py).
"""

import functools
import importlib.util

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jmoe.errors import UserError
from jmoe.model import gpu_kernels, kernels, sharding

XLA = "xla"
TOKAMAX = "tokamax"
EVEN_SHARES = "even_shares"
SAVED = "grouped_product"  # the name by which remat knows the product of the forward pass
ALIGNED = 8  # 16-bit numbers in 16 bytes: the kernels need rows of a multiple of 16 bytes

# rows, weights and counts of a product
Inputs = tuple[Float[Array, "M K"], Float[Array, "E K N"], Int[Array, " E"]]


def kernel_of(platform: str, dtype: DTypeLike, widths: tuple[int, ...]) -> str:
    """The kernel of moe_dropless on a platform, of arrays of this dtype and of these widths of rows.

    It is "tokamax" on GPUs, "even_shares" on CPUs, else "xla". tokamax's kernels take 16-bit numbers, in rows of a
    multiple of 16 bytes. Float32 and other widths, which only checks and small models have, are left to XLA.

    Raises:
      UserError: a GPU without tokamax, or with one that cannot be imported.
    """
    product = "experts that drop nothing"
    if platform == "cpu":
        kernels.note(product, "XLA's batched product of even shares, and blocks of what overflows")
        return EVEN_SHARES
    if platform == "tpu":
        kernels.note(product, "libtpu's grouped product")
        return XLA
    reason = _unfit(dtype, widths)
    if reason:
        kernels.note(product, "XLA's grouped product, every row by every expert", reason)
        return XLA
    if importlib.util.find_spec("tokamax") is None:
        raise UserError(
            "a mixture that drops nothing (config.model.capacity_factor=None, and every evaluation) needs the package "
            "tokamax on a GPU: install the [cuda] extra with Python 3.12 or later, pip install -e '.[cuda]'"
        )
    gpu_kernels.import_tokamax()
    return TOKAMAX


def _unfit(dtype: DTypeLike, widths: tuple[int, ...]) -> str:
    """Why tokamax's kernels do not take arrays of this dtype and of these widths of rows; "" where they do."""
    if jnp.dtype(dtype).itemsize > 2:
        return f"tokamax's kernels take 16-bit numbers, not {jnp.dtype(dtype).name}"
    odd = [width for width in widths if width % ALIGNED]
    if odd:
        return f"tokamax's kernels take rows of a multiple of {ALIGNED}, not of {odd[0]}"
    return ""


def grouped_product(
    rows_MK: Float[Array, "M K"],
    weights_EKN: Float[Array, "E K N"],
    count_E: Int[Array, " E"],
    kernel: str = XLA,
    has_rows_without_expert: bool = True,
) -> Float[Array, "M N"]:
    """The first count[0] rows times the matrix of expert 0, the next count[1] ones times that of expert 1, ...

    Args:
      rows_MK, weights_EKN: of one dtype.
      count_E: rows of each expert, int32.
      kernel: "xla" or "tokamax".
      has_rows_without_expert: whether rows may remain after those of the last expert. Their products are zeros.
    """
    if kernel == XLA:
        return jax.lax.ragged_dot(rows_MK, weights_EKN, count_E)
    axes = sharding.varying_axes(rows_MK, weights_EKN, count_E)
    rows_MK, weights_EKN, count_E = (sharding.vary(a, axes) for a in (rows_MK, weights_EKN, count_E))
    n_rows = len(rows_MK)
    if n_rows % ALIGNED:  # the gradient of the weights transposes rows
        rows_MK = jnp.pad(rows_MK, ((0, -n_rows % ALIGNED), (0, 0)))
        has_rows_without_expert = True
    return _by_tokamax(rows_MK, weights_EKN, count_E, has_rows_without_expert)[:n_rows]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _by_tokamax(
    rows_MK: Float[Array, "M K"],
    weights_EKN: Float[Array, "E K N"],
    count_E: Int[Array, " E"],
    has_rows_without_expert: bool,
) -> Float[Array, "M N"]:
    """grouped_product by tokamax's kernels.

    tokamax's own gradient takes the kernel of the forward pass, or fails where there is none. This one chooses a kernel
    for each product. It also zeroes the rows without an expert: the kernels leave what was in memory there, and 0 times
    that may be NaN in the gradient of the weights.
    """
    return _forward(rows_MK, weights_EKN, count_E, has_rows_without_expert)


def _forward(
    rows_MK: Float[Array, "M K"],
    weights_EKN: Float[Array, "E K N"],
    count_E: Int[Array, " E"],
    has_rows_without_expert: bool,
) -> Float[Array, "M N"]:
    y_MN = _product(rows_MK, weights_EKN, count_E, gpu_kernels.FORWARD)
    if has_rows_without_expert:
        y_MN = _zero_rows_without_expert(y_MN, count_E)
    return checkpoint_name(y_MN, SAVED)  # remat sees no product inside of tokamax's call


def _by_tokamax_fwd(
    rows_MK: Float[Array, "M K"],
    weights_EKN: Float[Array, "E K N"],
    count_E: Int[Array, " E"],
    has_rows_without_expert: bool,
) -> tuple[Float[Array, "M N"], Inputs]:
    # calling _by_tokamax here would hide the checkpoint_name from remat
    return _forward(rows_MK, weights_EKN, count_E, has_rows_without_expert), (rows_MK, weights_EKN, count_E)


def _by_tokamax_bwd(
    has_rows_without_expert: bool, inputs: Inputs, dy_MN: Float[Array, "M N"]
) -> tuple[Float[Array, "M K"], Float[Array, "E K N"], None]:
    rows_MK, weights_EKN, count_E = inputs
    drows_MK = _product(dy_MN, weights_EKN, count_E, gpu_kernels.TO_ROWS)
    if has_rows_without_expert:
        drows_MK = _zero_rows_without_expert(drows_MK, count_E)
    dweights_EKN = _product(rows_MK, dy_MN, count_E, gpu_kernels.TO_WEIGHTS)
    return drows_MK, dweights_EKN, None


_by_tokamax.defvjp(_by_tokamax_fwd, _by_tokamax_bwd)


def _product(
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    count_E: Int[Array, " E"],
    dimensions: jax.lax.RaggedDotDimensionNumbers,
) -> Float[Array, "..."]:
    """One grouped product by tokamax. A kernel of Pallas does not say over which mesh axes its result varies."""
    y = gpu_kernels.product(a, b, count_E, dimensions)
    return sharding.vary(y, sharding.varying_axes(a))


def _zero_rows_without_expert(y_MN: Float[Array, "M N"], count_E: Int[Array, " E"]) -> Float[Array, "M N"]:
    row_M1 = jnp.arange(len(y_MN))[:, None]
    return jnp.where(row_M1 < jnp.sum(count_E), y_MN, 0)
