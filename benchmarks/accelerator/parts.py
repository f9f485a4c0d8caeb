"""Parts of benchmarks/accelerator that no other benchmark has, one in each process:

    python -m benchmarks.accelerator.parts --part=PART --json=PATH [--toy]

`layer`, `float32`, `flash` and `run` compare this device with the CPU of the same host; each row of their result has
the relative error |a - b| / |b| and the tolerance. If a check fails, the process writes its result and exits with 1.
`grouped` compares kernels with batched matmuls, `tiles` the tiles of Mosaic's kernel with each other.
"""

import functools
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict

from benchmarks import measure, train_step
from benchmarks.accelerator import kernels, resumed_run
from benchmarks.accelerator.checks import Checks, relative_error
from configs import joint_moe
from jmoe.cost import chips
from jmoe.model import gpu_kernels, moe_layer, sharding
from jmoe.run.step import gradient, make_eval_step, make_train_step

PART = flags.DEFINE_enum(
    "part",
    None,
    ["machine", "peak", "grouped", "tiles", "layer", "float32", "flash", "run", "profile"],
    "Part to run.",
    required=True,
)
TOY = flags.DEFINE_bool("toy", False, "Use sizes for a test of this file on a CPU.")
MODEL = flags.DEFINE_string("model", "1", "Model of the part profile, as --models of benchmarks.train_step.")
FOLDER = flags.DEFINE_string(
    "folder", "runs/accelerator-traces", "Folder of the traces of the part profile, and of the runs of the part run."
)

STEPS = 3  # compared, and traced
CALLS_PER_TIMING = 5  # of a grouped product
# rows, units out and units in of a tile, stages, whether programs loop over tiles, the dimension along which tiles are
# numbered first, and in groups of how many
TILES = (
    (128, 64, 128, 4, True, "N", 8),
    (128, 128, 64, 4, True, "N", 8),
    (128, 128, 64, 3, False, "M", 4),
    (128, 128, 128, 3, True, "N", 8),
    (128, 192, 64, 4, True, "N", 8),
    (128, 192, 64, 4, False, "N", 8),
)
# |a - b| / |b|. Devices sum float32 in different orders; a token whose router is undecided may then take another
# expert, which changes 1 / tokens of a gradient. bfloat16 has 8 bits: 0.4% per rounding. A GPU sums what it scatters in
# any order; the difference grows over hundreds of steps, and more so between devices.
EXACT = 1e-5
ROUTED = 2e-3
ROUNDED = 5e-3
ROUNDED_GRADIENT = 5e-2
RESUMED = 1e-3
TRAINED = 1e-2


def machine() -> dict:
    """Returns the device that is measured, with its published figures."""
    device = jax.devices()[0]
    chip = chips.of_device(device)
    return measure.machine() | {
        "kind": device.device_kind,
        "name": chips.file_name(device.device_kind),
        "published": vars(chip) if chip else None,
        "memory": (device.memory_stats() or {}).get("bytes_limit"),
    }


def peak() -> dict:
    """Returns FLOP/s of a bfloat16 product of [8192, 8192], and bytes per second, read and written, of a 4 GB copy."""
    n, size, times = (256, 2**20, 2) if TOY.value else (8_192, 4 * 10**9, 20)
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (n, n), jnp.bfloat16) for key in keys)
    b /= n**0.5  # the products keep the size of their numbers: chips draw less power, and run faster, on zeros
    product = jax.jit(lambda a, b: jax.lax.fori_loop(0, times, lambda _, x: x @ b, a))
    full = [jnp.arange(size // 4, dtype=jnp.int32)]
    negate = jax.jit(lambda x: -x, donate_argnums=0)

    def copies() -> jax.Array:
        for _ in range(times):
            full[0] = negate(full[0])
        return full[0]

    seconds, _ = measure.in_turn({"product": lambda: product(a, b), "copy": copies}, 3 if TOY.value else 7)
    median = {name: sorted(rounds)[len(rounds) // 2] / times for name, rounds in seconds.items()}
    bandwidth = 2 * full[0].nbytes / median["copy"]
    return {"flops": 2 * n**3 / median["product"], "bandwidth": bandwidth, "n": n, "bytes": size}


def grouped() -> list[dict]:
    """Compares the kernels for products of rows sorted by expert, of 2 of 8 and of 8 of 64 experts.

    Returns time and FLOP/s under the loads of a random router, and the relative error under equal loads.

    "batched matmul" multiplies an equal number of rows for each expert, as a mixture with capacity 1.0 does.
    """
    n, d, f = (256, 16, 24) if TOY.value else (32_768, 1_280, 3_840)
    dtype = jnp.bfloat16
    rows = []
    for n_experts, top_k in ((8, 2), (64, 8)):
        width = 2 * f // top_k  # gate and up in one matrix
        n_rows = n * top_k
        keys = jax.random.split(jax.random.key(0), 4)
        rows_MK = jax.random.normal(keys[0], (n_rows, d), dtype)
        weights_EKN = jax.random.normal(keys[1], (n_experts, d, width), dtype) / d**0.5
        dy_MN = jax.random.normal(keys[2], (n_rows, width), dtype)
        count_E = jnp.bincount(jax.random.randint(keys[3], n_rows, 0, n_experts), length=n_experts).astype(jnp.int32)
        equal_E = jnp.full(n_experts, n_rows // n_experts, jnp.int32)
        for name, dimensions, a, b in (
            ("forward", gpu_kernels.FORWARD, rows_MK, weights_EKN),
            ("rows' gradient", gpu_kernels.TO_ROWS, dy_MN, weights_EKN),
            ("weights' gradient", gpu_kernels.TO_WEIGHTS, rows_MK, dy_MN),
        ):
            arms = {}
            results = {}
            for kernel, function in _functions_of_products().items():
                compiled = jax.jit(functools.partial(function, dimensions=dimensions)).lower(a, b, count_E).compile()
                arms[kernel] = functools.partial(_call_repeatedly, compiled, a, b, count_E)
                results[kernel] = compiled(a, b, equal_E)
            seconds, _ = measure.in_turn(arms, 3 if TOY.value else 11)
            for kernel in arms:
                median = sorted(seconds[kernel])[len(seconds[kernel]) // 2] / CALLS_PER_TIMING
                rows.append(
                    {
                        "product": f"{name}, {n_experts} experts: [{n_rows:,}, {d:,}] and [{d:,}, {width:,}]",
                        "kernel": kernel,
                        "ms": median * 1e3,
                        "flops": 2 * n_rows * d * width / median,
                        "error": relative_error(results[kernel], results["batched matmul"]),
                    }
                )
    return rows


def tiles() -> list[dict]:
    """Compares tiles of Mosaic's kernel for Hopper, in the forward product, of 2 of 8 and of 8 of 64 experts.

    Returns time and FLOP/s under the loads of a random router, and the largest error of one expert's rows. Without such
    a chip there is nothing to compare.
    """
    if jax.default_backend() != "gpu":
        return []
    import tokamax
    from tokamax._src import gpu_utils
    from tokamax._src.ops.ragged_dot import pallas_mosaic_gpu as mosaic

    if not gpu_utils.is_sm90():
        return []
    rows = []
    for n_experts, n_rows, widths in (
        (8, 131_072, ((1_280, 3_840), (3_840, 1_280), (1_920, 1_280))),
        (64, 524_288, ((1_280, 960), (960, 1_280))),
    ):
        keys = jax.random.split(jax.random.key(0), 3)
        count_E = jnp.bincount(jax.random.randint(keys[2], n_rows, 0, n_experts), length=n_experts).astype(jnp.int32)
        first = int(count_E[0])  # of the rows of expert 1
        last = first + int(count_E[1])
        for units_in, units_out in widths:
            rows_MK = jax.random.normal(keys[0], (n_rows, units_in), jnp.bfloat16)
            weights_EKN = jax.random.normal(keys[1], (n_experts, units_in, units_out), jnp.bfloat16) / units_in**0.5
            reference = (rows_MK[first:last] @ weights_EKN[1]).astype(jnp.float32)
            for block_m, block_n, block_k, num_stages, persistent, minor, group in TILES:
                config = mosaic.Config(
                    block_m=block_m,
                    block_n=block_n,
                    block_k=block_k,
                    num_stages=num_stages,
                    split_k=1,
                    persistent=persistent,
                    grid_minor_dim=mosaic.common.MatmulDimension[minor],
                    grid_tile_width=group,
                )
                kernel = mosaic.PallasMosaicGpuRaggedDot(config=config)
                product = functools.partial(
                    tokamax.ragged_dot_general,
                    ragged_dot_dimension_numbers=gpu_kernels.FORWARD,
                    implementation=(kernel,),
                )
                compiled = jax.jit(product).lower(rows_MK, weights_EKN, count_E).compile()
                arm = {"product": functools.partial(_call_repeatedly, compiled, rows_MK, weights_EKN, count_E)}
                seconds, _ = measure.in_turn(arm, 5)
                median = sorted(seconds["product"])[2] / CALLS_PER_TIMING
                y = compiled(rows_MK, weights_EKN, count_E)[first:last].astype(jnp.float32)
                rows.append(
                    {
                        "product": f"{n_rows:,} x {units_in:,} by {n_experts} of {units_out:,}",
                        "tiles": f"{block_m} x {block_n} x {block_k}, {num_stages} stages, "
                        f"{'persistent, ' if persistent else ''}{minor} first by {group}",
                        "ms": median * 1e3,
                        "flops": 2 * n_rows * units_in * units_out / median,
                        "error": float(jnp.max(jnp.abs(y - reference))),
                    }
                )
    return rows


def _call_repeatedly(compiled: jax.stages.Compiled, *args: jax.Array) -> list:
    """Returns the results of CALLS_PER_TIMING calls, which hide the time that a launch takes."""
    return [compiled(*args) for _ in range(CALLS_PER_TIMING)]


def _functions_of_products() -> dict[str, Callable]:
    """Returns {name: a function of two arrays, the experts' counts and the product's dimensions}."""
    functions = {"batched matmul": _of_equal_loads, "chosen": gpu_kernels.product}
    if jax.default_backend() == "gpu":
        functions["Mosaic"] = gpu_kernels.by_mosaic
        if gpu_kernels.has_triton():
            functions["Triton"] = gpu_kernels.by_triton
    return functions


def _of_equal_loads(a: jax.Array, b: jax.Array, count_E: jax.Array, dimensions: Any) -> jax.Array:
    """Returns the grouped product if all experts have equally many rows."""
    n_experts = len(count_E)
    a_ERI = a.reshape(n_experts, -1, a.shape[1])
    if dimensions == gpu_kernels.TO_WEIGHTS:
        return jnp.einsum("erk,ern->ekn", a_ERI, b.reshape(n_experts, -1, b.shape[1]))
    product_of = "erk,ekn->ern" if dimensions == gpu_kernels.FORWARD else "ern,ekn->erk"
    y_ERO = jnp.einsum(product_of, a_ERI, b)
    return y_ERO.reshape(len(a), -1)


def here_and_on_the_cpu() -> tuple[jax.Device, jax.Device]:
    """Returns the device that is measured, and the CPU of its host."""
    return jax.devices()[0], jax.devices("cpu")[0]


def layer() -> list[dict]:
    """Compares forward and backward of mixtures with the CPU's, with slots and dropless, in float32.

    The dropless one is compared in bfloat16 too, since its kernels on a GPU are others.
    """
    n, d, f = (256, 16, 24) if TOY.value else (4_096, 256, 384)
    checks = Checks()
    rng = np.random.default_rng(0)
    exact = (EXACT, ROUTED)
    rounded = (ROUNDED, ROUNDED_GRADIENT)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) / shape[-2] ** 0.5

    for name, e, k, width, layer_of, dtype, (tolerance, on_gradient) in (
        ("E = 8", 8, 1, f, functools.partial(moe_layer.moe_layer, capacity_factor=1.0), jnp.float32, exact),
        ("8 of 64", 64, 8, f // 8, functools.partial(moe_layer.moe_layer, capacity_factor=1.0), jnp.float32, exact),
        ("E = 8, dropless", 8, 1, f, moe_layer.moe_layer, jnp.float32, exact),
        ("2 of 8, dropless, bfloat16", 8, 2, f, moe_layer.moe_layer, jnp.bfloat16, rounded),
    ):
        args = [normal(n, d) * n**0.5, normal(d, e), normal(e, d, width), normal(e, d, width), normal(e, width, d)]
        args = [args[0].astype(dtype), args[1], *(weight.astype(dtype) for weight in args[2:])]
        dy_ND = normal(n, d)

        def forward_and_backward(
            *args: jax.Array, k: int = k, layer_of: Callable = layer_of, dy_ND: np.ndarray = dy_ND
        ) -> tuple:
            def loss(x_ND: jax.Array, router_DE: jax.Array, *weights: jax.Array) -> tuple[jax.Array, jax.Array]:
                y_ND, _ = layer_of(x_ND, router_DE, weights, group_tokens=n // 2, top_k=k)
                return jnp.sum(y_ND.astype(jnp.float32) * dy_ND), y_ND

            grads, y_ND = jax.grad(loss, argnums=range(len(args)), has_aux=True)(*args)
            return y_ND, grads

        with checks.named(f"layer, {name}") as compare:
            ours, reference = (
                jax.device_get(_on(device, forward_and_backward, args)) for device in here_and_on_the_cpu()
            )
            compare("outputs", ours[0], reference[0], tolerance)
            compare("gradients", ours[1], reference[1], on_gradient)
    return checks.rows


def _on(device: jax.Device, function: Callable, args: list) -> tuple:
    """Returns (outputs, gradients) of the function on a device."""
    explicit = (jax.sharding.AxisType.Explicit,) * 3
    mesh = jax.make_mesh((1, 1, 1), sharding.AXES, axis_types=explicit, devices=[device])
    specs = (jax.sharding.PartitionSpec(),) * len(args)
    outputs = (specs[0], specs)
    with jax.set_mesh(mesh), jax.default_matmul_precision("highest"):
        args = jax.device_put(args, jax.NamedSharding(mesh, specs[0]))
        return jax.jit(sharding.per_device(function, mesh, specs, outputs))(*args)


def small_config(n_experts: int, dtype: str, attention: str) -> ConfigDict:
    """Returns a config with sizes of heads and rows that the kernels of GPUs and TPUs take."""
    config = joint_moe.get_config()
    model = config.model
    model.d_model, model.n_blocks, model.n_heads, model.vocab_size = (32, 2, 2, 256) if TOY.value else (256, 2, 2, 512)
    config.data.seq_len, model.group_tokens = (64, 256) if TOY.value else (512, 1_024)
    config.batch_tokens = ((0, 512 if TOY.value else 4_096),)
    model.n_experts = n_experts
    model.dtype = dtype
    model.attention = attention
    model.final_norm = True
    return config


def step_on(device: jax.Device, config: ConfigDict, precision: str) -> dict:
    """Returns losses of STEPS steps, the first gradient, and the dropless evaluation, from the same weights."""
    cpu = sharding.make_mesh(config, jax.devices("cpu")[:1])
    with jax.set_mesh(cpu):
        state = jax.device_get(train_step.start(config))
    mesh = sharding.make_mesh(config, [device])
    shape = (config.batch_tokens[0][1] // config.data.seq_len, config.data.seq_len + 1)
    batch = np.random.default_rng(1).integers(config.model.vocab_size, size=shape, dtype=np.int32)
    with jax.set_mesh(mesh), jax.default_matmul_precision(precision):
        params, opt_state = jax.device_put(state, jax.NamedSharding(mesh, sharding.REPLICATED))
        batch = jax.device_put(batch, jax.NamedSharding(mesh, sharding.TOKENS))
        weight = jax.device_put(np.ones(shape[0], np.float32), jax.NamedSharding(mesh, sharding.TOKENS))
        evaluated = make_eval_step(config, mesh)(params, batch, weight)
        _, grads = jax.jit(functools.partial(gradient, config=config, mesh=mesh))(params, batch)
        results = jax.device_get({"evaluation": evaluated, "gradient": grads})
        step = make_train_step(config, mesh)
        losses = []
        for _ in range(STEPS):
            params, opt_state, metrics = step(params, opt_state, batch, np.float32(1e-3))
            losses.append(float(metrics["loss"]))
    return results | {"losses": losses}


def steps_agree(dtype: str, attention: str, precision: str, tolerance: float, on_gradient: float) -> list[dict]:
    """Compares train steps and evaluation with the CPU's, of a dense model and of 8 experts."""
    checks = Checks()
    for n_experts in (1, 8):
        config = small_config(n_experts, dtype, attention)
        with checks.named(f"step, {dtype}, {attention} attention, E = {n_experts}") as compare:
            ours, reference = (step_on(device, config, precision) for device in here_and_on_the_cpu())
            compare(f"losses of {STEPS} steps", ours["losses"], reference["losses"], tolerance)
            compare("gradient", ours["gradient"], reference["gradient"], on_gradient)
            compare("dropless evaluation", ours["evaluation"], reference["evaluation"], tolerance)
    return checks.rows


def run() -> list[dict]:
    """Compares configs/quickstart.py undisturbed, killed and resumed, and on the CPU."""
    checks = Checks()
    with checks.named("configs/quickstart.py") as compare:
        whole, again, cpu = resumed_run.losses(pathlib.Path(FOLDER.value) / "quickstart", TOY.value)
        compare("killed and resumed, against undisturbed", again, whole, RESUMED)
        compare("against the CPU", whole, cpu, TRAINED)
    return checks.rows


def profile() -> dict:
    """Returns the table of STEPS steps of one model; the trace stays in --folder."""
    size = "toy" if TOY.value else "gpu"
    base, _ = (train_step.toy_config if size == "toy" else train_step.gpu_config)()
    name, config = train_step.with_experts(base, MODEL.value)
    folder = pathlib.Path(FOLDER.value) / f"profile-{MODEL.value.replace(',', '-')}"
    if train_step.DROPLESS.value:
        name += " dropless"
        folder = folder.with_name(f"{folder.name}-dropless")
        config.model.capacity_factor = None
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        step, compiled = train_step.stepper(config, mesh)
        for _ in range(2):
            jax.block_until_ready(step())
        begin = time.perf_counter()
        with jax.profiler.trace(str(folder)):
            jax.block_until_ready([step() for _ in range(STEPS)])
    table = kernels.reduced(folder, compiled.as_text(), STEPS)
    return {"model": name, "batch": config.batch_tokens[0][1], "wall ms": (time.perf_counter() - begin) * 1e3} | table


PARTS = {
    "machine": machine,
    "peak": peak,
    "grouped": grouped,
    "tiles": tiles,
    "layer": layer,
    "float32": functools.partial(steps_agree, "float32", "float32", "highest", EXACT, ROUTED),
    "flash": functools.partial(steps_agree, "bfloat16", "flash", "default", ROUNDED, ROUNDED_GRADIENT),
    "run": run,
    "profile": profile,
}


def main(_: object) -> None:
    """Runs --part, and prints and writes its result."""
    result = PARTS[PART.value]()
    text = json.dumps(result, indent=1)
    print(text)
    if measure.JSON.value:
        pathlib.Path(measure.JSON.value).write_text(text)
    checks = [row for row in result if "passed" in row] if isinstance(result, list) else []
    failed = [row["check"] for row in checks if not row["passed"]]
    if failed:
        print(f"error: not within the tolerance: {'; '.join(failed)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    app.run(main)
