"""The cost of a mixture that drops nothing on TPUs that are not here, by libtpu's grouped products and by tokamax's:

    python -m benchmarks.tpu_products [--out=FILE.json] [--chip=v5e:2x2] [--experts="2 of 8"]

Needs libtpu (the [tpu] extra) and tokamax (the [test] extra, Python 3.12 or later). Forward and backward pass of the
layer alone (jmoe/model/moe_layer.py) are compiled for one chip, with config.remat="dots": 16,384 tokens, d_model 1,024,
bfloat16. --out keeps finished programs, so that a stopped command continues where it was.

The rows of a setting:
  libtpu's        jax.lax.ragged_dot, gate and up in two products, as jmoe multiplies on TPUs
  libtpu's, one   the same kernel, gate and up in one product, as jmoe multiplies on GPUs
  tokamax's       tokamax.ragged_dot_general, gate and up in two products
  tokamax's, one  the same kernel, gate and up in one product

Both are one algorithm (MegaBlocks): a grid of blocks of rows, and of both widths. A kernel is counted twice. "Once"
takes each operand and result once. "By tiles" takes a block each time that the grid brings it to the chip, with one
more block of rows for each expert but the first, since loads end within blocks. libtpu writes its tiles into the
compiled program. tokamax's are here those with the fewest bytes that fit into TILE_BYTES.
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import math
import pathlib
import re
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jmoe.cost import chips
from jmoe.cost.hlo import Instruction
from jmoe.cost.memory import of_step
from jmoe.cost.program import Program
from jmoe.cost.topologies import kernels_for, topology_devices
from jmoe.model import gpu_kernels, moe_dropless, sharding
from jmoe.model.grouped_product import TOKAMAX, XLA
from jmoe.model.moe_layer import moe_layer
from jmoe.model.remat import POLICIES

N_TOKENS = 16_384
D_MODEL = 1_024
CHIPS = ("v5e:2x2", "v5p:2x2x1")
ALIGNED = 128  # tokamax's tiles are multiples of it
ROW_TILES = (128, 256, 512, 1_024)
TILE_BYTES = 12 * 2**20  # of the 16 MiB on the chip that a kernel may use unless told otherwise


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Experts of a layer: how many, how many a token chooses, and their width."""

    n_experts: int
    top_k: int
    width: int


MIXTURES = {"2 of 8": Mixture(8, 2, 3_072), "8 of 64": Mixture(64, 8, 384)}


@dataclasses.dataclass(frozen=True)
class Product:
    """The shape of a grouped product of bfloat16 numbers, as the tiles of a kernel cut it.

    Attributes:
      m: rows.
      k, n: widths: contracted and out of a product of rows by matrices; both out of a sum over rows.
      n_experts: matrices.
      over_rows: whether it sums over rows, the gradient of the weights.
    """

    m: int
    k: int
    n: int
    n_experts: int
    over_rows: bool

    def bytes_once(self) -> int:
        """Bytes of both operands and the result."""
        return 2 * (self.m * (self.k + self.n) + self.n_experts * self.k * self.n)

    def bytes_by_tiles(self, tiles: tuple[int, int, int]) -> int:
        """Bytes that the grid of a kernel with tiles of (rows, k, n) moves.

        Loads end within tiles, so each expert but the first visits one more tile of rows.
        """
        rows, k, n = tiles
        n_parts_k = math.ceil(self.k / k)
        n_parts_n = math.ceil(self.n / n)
        visited = self.m + (self.n_experts - 1) * rows
        weights = self.n_experts * self.k * self.n
        if self.over_rows:  # the grid runs over n, k, tiles of rows
            return 2 * (visited * (self.k * n_parts_n + self.n * n_parts_k) + weights)
        if n_parts_k == 1:  # the grid runs over n, tiles of rows: a matrix stays on the chip while its rows pass
            return 2 * (self.m * self.k * n_parts_n + weights + self.m * self.n)
        return 2 * (visited * self.k * n_parts_n + visited // rows * self.k * self.n + self.m * self.n)

    def bytes_on_chip(self, tiles: tuple[int, int, int]) -> int:
        """Bytes of two tiles of each array and of the float32 sum."""
        rows, k, n = tiles
        operands = rows * k + (rows * n if self.over_rows else k * n)
        result = k * n if self.over_rows else rows * n
        return 2 * 2 * (operands + result) + 4 * result

    def best_tiles(self) -> tuple[int, int, int] | None:
        """The tiles that fit into TILE_BYTES and move the fewest bytes; of equals those with the most rows.

        None where rows or widths are no multiples of ALIGNED.
        """
        row_tiles = [rows for rows in ROW_TILES if self.m % rows == 0]
        choices = []
        for tiles in itertools.product(row_tiles, _divisors(self.k), _divisors(self.n)):
            if self.bytes_on_chip(tiles) <= TILE_BYTES:
                choices.append((self.bytes_by_tiles(tiles), -tiles[0], tiles))
        return min(choices)[2] if choices else None


def _divisors(width: int) -> list[int]:
    """Multiples of ALIGNED that divide a width."""
    return [tile for tile in range(ALIGNED, width + 1, ALIGNED) if width % tile == 0]


def product_of(instruction: Instruction) -> Product | None:
    """The grouped product of a kernel; None if the instruction is no such kernel."""
    if 'custom_call_target="tpu_custom_call"' not in instruction.attributes:
        return None
    arrays = [array for operand in instruction.operands for array in operand.arrays]
    operands = [array.dims for array in arrays if array.dtype == "bf16" and len(array.dims) > 1]
    out = instruction.arrays[0].dims
    if len(operands) != 2:
        return None
    a, b = operands
    if len(out) == 3:  # both operands are rows; tokamax's first one is transposed
        e, k, n = out
        return Product(b[0], k, n, e, over_rows=True)
    m, n = out
    return Product(m, a[1], n, b[0], over_rows=False)


def by_tokamax(
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    count_E: Int[Array, " E"],
    dimensions: jax.lax.RaggedDotDimensionNumbers,
    interpret: bool = False,
) -> Float[Array, "..."]:
    """gpu_kernels.product by tokamax's kernel for TPUs with the best tiles, in bfloat16.

    Args:
      a, b, count_E, dimensions: as of gpu_kernels.product.
      interpret: run on any device, for tests.

    Raises:
      ValueError: rows or widths are no multiples of ALIGNED.
    """
    import tokamax  # takes seconds, and CPUs do not need it
    from tokamax._src.ops.ragged_dot import (
        pallas_mosaic_tpu,
    )  # tokamax has no public name for a kernel with given tiles

    if dimensions == gpu_kernels.TO_WEIGHTS:
        shape = Product(len(a), a.shape[1], b.shape[1], len(count_E), over_rows=True)
    elif dimensions == gpu_kernels.TO_ROWS:
        shape = Product(len(a), a.shape[1], b.shape[1], len(count_E), over_rows=False)
    else:
        shape = Product(len(a), a.shape[1], b.shape[2], len(count_E), over_rows=False)
    tiles = shape.best_tiles()
    if tiles is None:
        raise ValueError(f"no tiles for {shape}")
    rows, k, n = tiles
    if dimensions == gpu_kernels.TO_ROWS:  # tokamax names the widths of the forward product
        k, n = n, k
    config = pallas_mosaic_tpu.Config(tile_m=rows, tile_k=k, tile_n=n)
    kernel = pallas_mosaic_tpu.PallasMosaicTpuRaggedDot(config=config, interpret=interpret)
    differs = jax.typeof(a).manual_axis_type  # over which mesh axes the result differs
    return tokamax.ragged_dot_general(a, b, count_E, dimensions, implementation=(kernel,), manual_axis_type=differs)


def by_libtpu(
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    count_E: Int[Array, " E"],
    dimensions: jax.lax.RaggedDotDimensionNumbers,
) -> Float[Array, "..."]:
    """gpu_kernels.product by jax.lax.ragged_dot_general."""
    return jax.lax.ragged_dot_general(a, b, count_E, dimensions)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """How a row of the table multiplies.

    Attributes:
      name: as moe_layer takes it.
      product: what stands for gpu_kernels.product.
      in_one: whether gate and up are one product.
    """

    name: str
    product: Callable[..., Float[Array, "..."]]
    in_one: bool


KERNELS = {
    "libtpu's": Kernel(XLA, by_libtpu, in_one=False),
    "libtpu's, one": Kernel(TOKAMAX, by_libtpu, in_one=True),
    "tokamax's": Kernel(TOKAMAX, by_tokamax, in_one=False),
    "tokamax's, one": Kernel(TOKAMAX, by_tokamax, in_one=True),
}


def tiles_of(instruction: Instruction, product: Product) -> tuple[int, int, int]:
    """The tiles of a compiled kernel: as libtpu notes them, or as `by_tokamax` chooses them."""
    noted = re.search(r'ragged_dot_tiling="(\d+),(\d+),(\d+)"', instruction.attributes)
    if noted:
        return int(noted[1]), int(noted[2]), int(noted[3])
    return product.best_tiles()


def compile_layer(mixture: Mixture, kernel: str, device: jax.Device) -> jax.stages.Compiled:
    """Compiles the gradient of a layer's output, summed, by rows, router and experts."""
    axis_types = (jax.sharding.AxisType.Explicit,) * len(sharding.AXES)
    devices = np.array([device]).reshape([1] * len(sharding.AXES))
    mesh = jax.sharding.Mesh(devices, sharding.AXES, axis_types=axis_types)
    everywhere = jax.NamedSharding(mesh, sharding.REPLICATED)

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)

    options = dict(top_k=mixture.top_k, group_tokens=None, capacity_factor=None, kernel=kernel)

    def loss(x_ND: Array, router_DE: Array, weights: tuple[Array, Array, Array]) -> Float[Array, ""]:
        @functools.partial(jax.checkpoint, policy=POLICIES["dots"])
        def layer(x_ND: Array, router_DE: Array, weights: tuple[Array, Array, Array]) -> Array:
            y_ND, _ = moe_layer(x_ND, router_DE, weights, **options)
            return y_ND

        return jnp.mean(jnp.square(layer(x_ND, router_DE, weights).astype(jnp.float32)))

    e = mixture.n_experts
    wide = array(jnp.bfloat16, e, D_MODEL, mixture.width)
    weights = (wide, wide, array(jnp.bfloat16, e, mixture.width, D_MODEL))
    x_ND = array(jnp.bfloat16, N_TOKENS, D_MODEL)
    specs = (sharding.REPLICATED, sharding.REPLICATED, (sharding.REPLICATED,) * 3)
    with jax.set_mesh(mesh):
        gradient = jax.jit(jax.grad(sharding.per_device(loss, mesh, specs, sharding.REPLICATED), argnums=(0, 1, 2)))
        return gradient.lower(x_ND, array(jnp.float32, D_MODEL, e), weights).compile()


def measure(chip: str, experts: str, kernel: str) -> dict[str, Any]:
    """Compiles a layer; what it costs the chip."""
    device = topology_devices(chip)[0]
    how = KERNELS[kernel]

    # the kernel with which it multiplies gate and up in one product
    in_one = TOKAMAX if how.in_one else "none"
    began = time.monotonic()
    with (
        kernels_for(device),
        mock.patch.object(gpu_kernels, "product", how.product),
        mock.patch.object(moe_dropless, "TOKAMAX", in_one),
    ):
        compiled = compile_layer(MIXTURES[experts], how.name, device)
    program = Program(compiled.as_text() or "")
    memory = of_step(compiled)
    n_bytes = program.main_memory_bytes()
    more = 0
    tiles = []
    for run in program.runs:
        grouped = product_of(run.instruction)
        if grouped is not None:
            tile = tiles_of(run.instruction, grouped)
            tiles.append([*dataclasses.astuple(grouped), *tile])
            more += run.times * (grouped.bytes_by_tiles(tile) - grouped.bytes_once())
    peaks = chips.of_device(device)
    flops = program.matmul_flops(passes=True)
    seconds = (flops / peaks.flops, (n_bytes + more) / peaks.bandwidth)
    return {
        "flops": flops,
        "bytes": n_bytes,
        "bytes_by_tiles": n_bytes + more,
        "temporaries": memory["temporaries"],
        "peak": memory["peak"],
        "overlapped": max(seconds),
        "serial": sum(seconds),
        "tiles": tiles,
        "compile_seconds": round(time.monotonic() - began, 1),
    }


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """The rows of benchmarks/README.md; in parentheses the ratio to "libtpu's"."""
    lines = [
        "| chip, experts | kernel | FLOPs of products | read and written, once | by tiles | temporaries | peak | "
        "all overlapped | nothing |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    units = {
        "flops": (1e12, "T"),
        "bytes": (1e9, "GB"),
        "bytes_by_tiles": (1e9, "GB"),
        "temporaries": (2**30, "GiB"),
        "peak": (2**30, "GiB"),
        "overlapped": (1e-3, "ms"),
        "serial": (1e-3, "ms"),
    }
    for name, costs in results.items():
        chip, experts, kernel = name.split("/")
        first = results.get(f"{chip}/{experts}/libtpu's")
        cells = []
        for cost, (unit, suffix) in units.items():
            ratio = f" ({costs[cost] / first[cost]:.2f})" if first and first is not costs else ""
            cells.append(f"{costs[cost] / unit:.3g} {suffix}{ratio}")
        setting = f"{chip}, {experts}" if first is costs else ""
        lines.append(f"| {' | '.join([setting, kernel, *cells])} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of finished programs, which is read and extended")
    parser.add_argument("--chip", choices=CHIPS, help="compile for this slice alone")
    parser.add_argument("--experts", choices=list(MIXTURES), help="compile this mixture alone")
    parser.add_argument("--level", default="O1", help="XLA's optimization level; O1 by default, UNKNOWN: XLA's own")
    args = parser.parse_args()
    jax.config.update("jax_optimization_level", args.level)
    jax.config.update("jax_enable_compilation_cache", False)  # programs for absent devices cannot be read back
    results = json.loads(args.out.read_text())["programs"] if args.out and args.out.exists() else {}
    chosen = {}
    for chip, experts, kernel in itertools.product(CHIPS, MIXTURES, KERNELS):
        if args.chip not in (None, chip) or args.experts not in (None, experts):
            continue
        name = f"{chip}/{experts}/{kernel}"
        if name not in results:
            print(f"compiling {name}", file=sys.stderr, flush=True)
            results[name] = measure(chip, experts, kernel)
            if args.out:
                versions = {package: importlib.metadata.version(package) for package in ("jax", "libtpu", "tokamax")}
                args.out.write_text(json.dumps({"versions": versions, "programs": results}, indent=1) + "\n")
        chosen[name] = results[name]
    print("\n".join(table(chosen)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
