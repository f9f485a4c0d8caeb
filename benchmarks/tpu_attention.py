"""The cost of a model's blocks on TPUs that are not here with each of three attention kernels:

    python -m benchmarks.tpu_attention [--out=FILE.json] [--chip=v5e:2x2] [--attention=grouped] [--seq_len=4096]

The kernels are ours (jmoe/model/tpu_flash.py), jax's splash attention and tokamax's dot_product_attention. Needs libtpu
(the [tpu] extra) and tokamax (the [test] extra, Python 3.12 or later). Forward and backward pass of two dense blocks,
a scan with config.remat inside our shard_map, are compiled by the real compiler, one after another. Head, loss and
optimizer, which are the same for all kernels, are left out. --out keeps the finished programs, so that a stopped
command continues where it was. With --level=O1 XLA compiles five times as fast as by its own level, and leaves all
operands of kernels in the main memory.

The same counter (jmoe/cost/program.py) reads all programs:
  FLOPs     two of each multiply-add. A kernel's own products are counted from its operands, its results and its tiles:
            2 forward; 5 backward in one kernel, or 3 for the queries' gradient and 4 for the others in two. Each takes
            all tiles on and below the diagonal. No kernel's own estimate is used: jax's declares none.
  bytes     each operand and result of a kernel counts once, also where tiles of it are read again.
  memory    the compiler's own.
All tiles are of 512 x 512. Only jax's single backward kernel takes 1,024 keys: for each tile of keys it writes an array
as large as the queries.

Neither library says over which axes of the mesh the outputs of its kernels differ, which our shard_map asks for. This
command says it in their place, by a private function of jax; without that both end with a ValueError.
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from configs import joint_moe
from jmoe.cost import chips, instruction_flops
from jmoe.cost.hlo import Instruction
from jmoe.cost.memory import of_step
from jmoe.cost.program import Program
from jmoe.cost.topologies import kernels_for, topology_devices
from jmoe.model import grouped_product, remat, sharding, tpu_flash, transformer
from jmoe.model.parameters import parameter_specs
from jmoe.run.step import abstract_state

TILE = 512
KEYS_OF_A_WIDE_TILE = 1_024
D_MODEL = 2_048
TOKENS_OF_A_CHIP = 8_192
CHIPS = ("v5e:2x2", "v5p:2x2x1")
POLICIES = ("full", "dots")
HEADS = {"multi-head": (16, 16), "grouped": (16, 4)}  # heads of queries, of keys and values
SEQ_LENS = (4_096, 8_192)
NEAR = 0.03  # a library that costs at most this much more than ours replaces it

Heads = Float[Array, "B T H K"]
Kernel = Callable[[Heads, Heads, Heads], Heads]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One compiled program.

    Attributes:
      chip: a name of CHIPS.
      attention: a name of HEADS.
      seq_len: positions of a row.
      policy: config.remat.
      kernel: a name of KERNELS.
    """

    chip: str
    attention: str
    seq_len: int
    policy: str
    kernel: str

    @property
    def setting(self) -> str:
        """All but the kernel, as the rows of the table name it."""
        return f"{self.chip}, {self.attention}, {self.seq_len:,}, {self.policy}"


def jax_splash(n_backward: int, q_BTHK: Heads, k_BTPK: Heads, v_BTPK: Heads) -> Heads:
    """Causal attention by jax.experimental.pallas.ops.tpu.splash_attention; n_backward: kernels backward, 1 or 2."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    _, t, h, k = q_BTHK.shape
    sizes = splash_attention_kernel.BlockSizes(
        block_q=TILE,
        block_kv=TILE,
        block_kv_compute=TILE,
        block_q_dkv=TILE,
        block_kv_dkv=KEYS_OF_A_WIDE_TILE if n_backward == 1 else TILE,
        block_kv_dkv_compute=TILE,
        block_q_dq=None if n_backward == 1 else TILE,
        block_kv_dq=None if n_backward == 1 else TILE,
        use_fused_bwd_kernel=n_backward == 1,
    )
    mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((t, t))] * h)
    kernel = splash_attention_kernel.make_splash_mha(
        mask,
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=grouped_product.SAVED,  # remat="dots" saves what has this name
    )
    scaled_BTHK = q_BTHK * jnp.asarray(k**-0.5, q_BTHK.dtype)
    y_BHTK = jax.vmap(kernel)(*(a.swapaxes(1, 2) for a in (scaled_BTHK, k_BTPK, v_BTPK)))
    return y_BHTK.swapaxes(1, 2)


def by_tokamax(q_BTHK: Heads, k_BTPK: Heads, v_BTPK: Heads) -> Heads:
    """Causal attention by tokamax.dot_product_attention."""
    import tokamax
    from tokamax._src.ops.attention import pallas_mosaic_tpu, pallas_mosaic_tpu_vjp
    from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_kernel

    layout = splash_attention_kernel.QKVLayout.HEAD_DIM_MINOR
    backward = pallas_mosaic_tpu_vjp.PallasMosaicTpuFlashAttentionVjp(
        config=pallas_mosaic_tpu_vjp.Config(block_q_dkv=TILE, block_kv_dkv=TILE, block_kv_dkv_compute=TILE)
    )
    forward = pallas_mosaic_tpu.PallasMosaicTpuFlashAttention(
        config=pallas_mosaic_tpu.Config(
            block_q=TILE,
            block_kv=TILE,
            block_kv_compute=TILE,
            q_layout=layout,
            k_layout=layout,
            v_layout=layout,
            use_experimental_scheduler=True,
        ),
        vjp=backward,
    )

    def attend(*heads: Heads) -> Heads:
        return tokamax.dot_product_attention(*heads, is_causal=True, implementation=(forward,))

    return _save_output_and_sums(attend)(q_BTHK, k_BTPK, v_BTPK)


def _save_output_and_sums(attend: Kernel) -> Kernel:
    """`attend` whose output and log sums remat="dots" saves: tokamax does not name them."""

    @jax.custom_vjp
    def call(*heads: Heads) -> Heads:
        return forward(*heads)[0]

    def forward(*heads: Heads) -> tuple[Heads, Any]:
        y_BTHK, backward = jax.vjp(attend, *heads)
        named_BTHK = checkpoint_name(y_BTHK, grouped_product.SAVED)
        n_sums = y_BTHK.size // y_BTHK.shape[-1]

        def named(leaf: Array) -> Array:
            if leaf is y_BTHK:
                return named_BTHK
            return checkpoint_name(leaf, grouped_product.SAVED) if leaf.size == n_sums else leaf

        return named_BTHK, jax.tree.map(named, backward)

    def backward(saved: Any, dy_BTHK: Heads) -> tuple[Heads, Heads, Heads]:
        return saved(dy_BTHK)

    call.defvjp(forward, backward)
    return call


KERNELS: dict[str, Kernel] = {
    "ours": tpu_flash.attention,
    "jax's splash, 2 backward": functools.partial(jax_splash, 2),
    "jax's splash, 1 backward": functools.partial(jax_splash, 1),
    "tokamax's": by_tokamax,
}


class _Declared:
    """Declares outputs of kernels, which do not say it, to vary over the mesh as the queries do."""

    def __init__(self) -> None:
        from jax._src.pallas import core

        self._as_in_jax = core._convert_out_shape_to_aval
        self._like_queries: Any = None
        core._convert_out_shape_to_aval = self._convert

    def __call__(self, kernel: Kernel) -> Callable[..., Heads]:
        """`kernel` as jmoe/model/attention.py calls that of jmoe/model/tpu_flash.py."""

        def attend(q_BTHK: Heads, k_BTPK: Heads, v_BTPK: Heads, document_BT: None = None) -> Heads:
            self._like_queries = jax.typeof(q_BTHK).manual_axis_type
            return kernel(q_BTHK, k_BTPK, v_BTPK)

        return attend

    def _convert(self, out_shape: Any) -> Any:
        if self._like_queries is not None and isinstance(out_shape, jax.ShapeDtypeStruct):
            if out_shape.manual_axis_type is None:
                out_shape = out_shape.update(manual_axis_type=self._like_queries)
        return self._as_in_jax(out_shape)


def config_of(cell: Cell, n_devices: int) -> ConfigDict:
    """A dense model of two blocks of d_model 2,048, and next to no vocabulary."""
    n_heads, n_kv_heads = HEADS[cell.attention]
    config = joint_moe.get_config()
    config.model.update(
        d_model=D_MODEL,
        d_ff=4_096,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        n_blocks=2,
        n_experts=1,
        vocab_size=128,
        attention="flash",
    )
    config.data.seq_len = cell.seq_len
    config.remat = cell.policy
    config.batch_tokens = ((0, TOKENS_OF_A_CHIP * n_devices),)
    return config


def compile_blocks(config: ConfigDict, devices: Sequence[jax.Device]) -> jax.stages.Compiled:
    """Compiles the gradient of a sum over the outputs of all blocks."""
    mesh = sharding.make_mesh(config, devices)
    specs = (parameter_specs(config.model, mesh.shape), sharding.TOKENS)

    def of_device(params: dict, tokens_BT: Int[Array, "B T"]) -> Float[Array, ""]:
        x_BTD, _, _ = transformer.apply(params, tokens_BT, config, training=True)
        return sharding.mean(jnp.mean(jnp.square(x_BTD.astype(jnp.float32))))

    n_rows = max(batch for _, batch in config.batch_tokens) // config.data.seq_len
    rows = jax.NamedSharding(mesh, sharding.TOKENS)
    with jax.set_mesh(mesh):
        params, _ = abstract_state(config, mesh)
        tokens_BT = jax.ShapeDtypeStruct((n_rows, config.data.seq_len), jnp.int32, sharding=rows)
        loss = sharding.per_device(of_device, mesh, specs, sharding.REPLICATED)
        return jax.jit(jax.grad(loss)).lower(params, tokens_BT).compile()


def kernel_products(instruction: Instruction) -> int:
    """How many products of each block of scores an attention kernel does; 0 if the instruction is none.

    Forward it reads q, k and v; backward also dy, and writes one, two or all three of their gradients.
    """
    if 'custom_call_target="tpu_custom_call"' not in instruction.attributes:
        return 0
    arrays = [array for operand in instruction.operands for array in operand.arrays]
    n_read = sum(array.dtype == "bf16" and len(array.dims) > 2 for array in arrays)
    if n_read == 3:
        return 2
    n_written = sum(len(array.dims) > 2 for array in instruction.arrays)
    return {1: 3, 2: 4, 3: 5}[n_written]


def matmul_flops(program: Program, cell: Cell) -> int:
    """FLOPs of all products of a program on each chip, with kernels counted as `kernel_products`."""
    flops = program.matmul_flops(passes=True)
    for run in program.runs:
        n_products = kernel_products(run.instruction)
        if n_products:
            keys_of_a_tile = KEYS_OF_A_WIDE_TILE if cell.kernel.endswith("1 backward") and n_products == 5 else TILE
            pairs = TOKENS_OF_A_CHIP * (cell.seq_len + keys_of_a_tile) // 2  # of a query and a key, of each head
            declared = instruction_flops.matmul_flops(run.instruction)
            flops += run.times * (2 * D_MODEL * pairs * n_products - declared)
    return flops


def kernel_bytes(program: Program) -> int:
    """Bytes of all operands and results of the attention kernels of a program, each counted once a run."""
    total = 0
    for run in program.runs:
        if kernel_products(run.instruction):
            operands = [array for operand in run.instruction.operands for array in operand.arrays]
            total += run.times * sum(array.main_bytes for array in (*operands, *run.instruction.arrays))
    return total


def measure(cell: Cell, declared: _Declared) -> dict[str, float]:
    """Compiles the program of a cell; what it costs each chip."""
    ours = tpu_flash.attention
    kernels_saved_whole = remat.KERNELS
    if cell.kernel != "ours":
        tpu_flash.attention = declared(KERNELS[cell.kernel])
        # "dots" saves the named output and log sums. jax's kernel writes each sum 128 times.
        remat.KERNELS = tuple(name for name in remat.KERNELS if name != "pallas_call")
    devices = topology_devices(cell.chip)
    began = time.monotonic()
    try:
        with kernels_for(devices[0]):
            compiled = compile_blocks(config_of(cell, len(devices)), devices)
    finally:
        tpu_flash.attention = ours
        remat.KERNELS = kernels_saved_whole
    program = Program(compiled.as_text() or "")
    memory = of_step(compiled)
    chip = chips.of_device(devices[0])
    flops = matmul_flops(program, cell)
    n_bytes = program.main_memory_bytes()
    sent = sum(collective.times * collective.bytes for collective in program.collectives())
    seconds = (flops / chip.flops, n_bytes / chip.bandwidth, sent / chip.network)
    return {
        "flops": flops,
        "bytes": n_bytes,
        "kernel_bytes": kernel_bytes(program),
        "temporaries": memory["temporaries"],
        "peak": memory["peak"],
        "overlapped": max(seconds),
        "serial": sum(seconds),
        "compile_seconds": round(time.monotonic() - began, 1),
    }


def saved_bytes(cell: Cell) -> int:
    """Bytes that the forward kernel of one block hands to the backward one on each chip, its inputs among them."""
    devices = topology_devices(cell.chip)
    mesh = sharding.make_mesh(config_of(cell, len(devices)), devices)
    n_heads, n_kv_heads = HEADS[cell.attention]
    shape = (TOKENS_OF_A_CHIP // cell.seq_len, cell.seq_len)
    q_BTHK = jax.ShapeDtypeStruct((*shape, n_heads, D_MODEL // n_heads), jnp.bfloat16)
    k_BTPK = jax.ShapeDtypeStruct((*shape, n_kv_heads, D_MODEL // n_heads), jnp.bfloat16)

    def backward(*heads: Heads) -> Any:
        return jax.vjp(KERNELS[cell.kernel], *heads)[1]

    with jax.set_mesh(mesh), kernels_for(devices[0]):
        leaves = jax.tree.leaves(jax.eval_shape(backward, q_BTHK, k_BTPK, k_BTPK))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def saved_lines(cells: Iterable[Cell]) -> list[str]:
    """The savings of each kernel, by the kind of attention."""
    lines = []
    for attention in HEADS:
        by_kernel = {
            cell.kernel: saved_bytes(cell) for cell in cells if (cell.attention, cell.policy) == (attention, "full")
        }
        if by_kernel:
            sizes = ", ".join(f"{kernel} {size / 2**20:.1f} MiB" for kernel, size in by_kernel.items())
            lines.append(f"{attention}, saved of a block for its backward pass: {sizes}")
    return lines


def cells(args: argparse.Namespace) -> list[Cell]:
    """The cells to compile, rows of 4,096 first."""
    choices = itertools.product(SEQ_LENS, HEADS, POLICIES, CHIPS, KERNELS)
    return [
        Cell(chip, attention_kind, seq_len, policy, kernel)
        for seq_len, attention_kind, policy, chip, kernel in choices
        if args.chip in (None, chip)
        and args.attention in (None, attention_kind)
        and args.seq_len in (None, seq_len)
        and args.remat in (None, policy)
    ]


def table(results: dict[Cell, dict[str, float]]) -> list[str]:
    """The rows of benchmarks/README.md; in parentheses the ratio to ours."""
    lines = [
        "| chip, attention, T, remat | kernel | FLOPs of products | read and written | by the kernels | temporaries | "
        "peak | step: all overlapped | nothing |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell, costs in results.items():
        ours = results.get(dataclasses.replace(cell, kernel="ours"))

        def text(name: str, unit: float, suffix: str, costs: dict = costs, ours: dict | None = ours) -> str:
            ratio = f" ({costs[name] / ours[name]:.2f})" if ours and ours is not costs else ""
            return f"{costs[name] / unit:.3g} {suffix}{ratio}"

        columns = [
            cell.setting if cell.kernel == "ours" else "",
            cell.kernel,
            text("flops", 1e12, "T"),
            text("bytes", 1e9, "GB"),
            text("kernel_bytes", 1e9, "GB"),
            text("temporaries", 2**30, "GiB"),
            text("peak", 2**30, "GiB"),
            text("overlapped", 1e-3, "ms"),
            text("serial", 1e-3, "ms"),
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def verdict(results: dict[Cell, dict[str, float]]) -> list[str]:
    """A sentence for each library: whether it costs at most NEAR more than ours in every cell."""
    sentences = []
    for kernel in list(KERNELS)[1:]:
        worst = dict.fromkeys(("flops", "bytes", "peak", "overlapped", "serial"), 0.0)
        n_cells = 0
        for cell, costs in results.items():
            ours = results.get(dataclasses.replace(cell, kernel="ours"))
            if cell.kernel == kernel and ours:
                n_cells += 1
                worst = {name: max(ratio, costs[name] / ours[name]) for name, ratio in worst.items()}
        if n_cells:
            reaches = all(ratio <= 1 + NEAR for ratio in worst.values())
            ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in worst.items())
            outcome = "reaches" if reaches else "does not reach"
            sentences.append(f"{kernel} {outcome} ours within {NEAR:.0%} in {n_cells} cells; at most {ratios}")
    return sentences


def read(path: pathlib.Path) -> dict[Cell, dict[str, float]]:
    """The finished cells of a file of --out."""
    if not path.exists():
        return {}
    return {Cell(**entry["cell"]): entry["costs"] for entry in json.loads(path.read_text())["cells"]}


def write(path: pathlib.Path, results: dict[Cell, dict[str, float]]) -> None:
    """Writes the finished cells, with the versions of the packages that made them."""
    versions = {name: importlib.metadata.version(name) for name in ("jax", "libtpu", "tokamax")}
    entries = [{"cell": dataclasses.asdict(cell), "costs": costs} for cell, costs in results.items()]
    path.write_text(json.dumps({"versions": versions, "cells": entries}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of finished steps, which is read and extended")
    parser.add_argument("--chip", choices=CHIPS, help="compile for this slice alone")
    parser.add_argument("--attention", choices=list(HEADS), help="compile this kind of attention alone")
    parser.add_argument("--seq_len", type=int, choices=SEQ_LENS, help="compile rows of this length alone")
    parser.add_argument("--remat", choices=POLICIES, help="compile with this config.remat alone")
    parser.add_argument("--level", default="O1", help="XLA's optimization level; O1 by default, UNKNOWN: XLA's own")
    parser.add_argument("--finished", action="store_true", help="print the table of what --out holds, compile nothing")
    args = parser.parse_args()
    jax.config.update("jax_optimization_level", args.level)
    jax.config.update("jax_enable_compilation_cache", False)  # programs for absent devices cannot be read back
    results = read(args.out) if args.out else {}
    declared = _Declared()
    for cell in cells(args):
        if cell in results or args.finished:
            continue
        print(f"compiling {cell.setting}, {cell.kernel}", file=sys.stderr, flush=True)
        results[cell] = measure(cell, declared)
        if args.out:
            write(args.out, results)
    chosen = {cell: results[cell] for cell in cells(args) if cell in results}
    print("\n".join([*table(chosen), "", *verdict(chosen), *saved_lines(chosen)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
