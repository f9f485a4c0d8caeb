"""The compiled train step beside MaxText's, for chips that need not be here:

    python -m benchmarks.peers --environment=DIR [--chips=v5p:64] [--models=dense,olmoe] [--json=PATH]

--chips is v5p:64 (default) or H100:8; the latter needs the [cuda] extra. Both sides are compiled for the same chips.
One counter (jmoe/cost/program.py) reads both programs. It prints, per device and step, FLOPs of products, bytes of the
main memory read and written, peak memory and bytes sent, then ours over MaxText's. The first call makes an environment
for MaxText in DIR (2 GB for TPUs, 6 GB for GPUs; Python 3.12 or later). On both sides: 16,384 tokens a device and step
in rows of 4,096, bfloat16, float32 weights, everything recomputed, flash attention. Nothing is dropped but where the
name says `capacity`, a balanced load's.

On 64 v5p, two things are estimated. MaxText's grouped products declare the FLOPs of their whole buffers, of which a
balanced load fills N top_k rows on each device; they are counted as that share. Its attention declares none, and is
counted as ours, whose blocks above the diagonal do nothing. Mixtral is spread over expert = 8 on both sides: its rows
travel to their experts. The experts of OLMoE and Qwen3 are gathered on both sides: jmoe.compile says that ours then
send least, and MaxText's (fsdp = 64) take a seventh of the memory traffic. MaxText's jax cannot read what the newest
libtpu compiles, so each side has its own. Nor can it read calls to sparse cores that are prepared ahead of their
operands, so there are none of those. All models take half an hour of two busy cores.

On 8 H100 the models are as deep as eight chips hold. MaxText's jax also compiles our side of the dense model and of the
mixtures with a capacity. Where nothing is dropped, our kernels need a newer jax, whose compiler moves more memory: the
dense model reads and writes 365 GB by jax 0.12.0.1, 275 GB by 0.10.2. cuDNN's attention is counted from its shapes on
both sides, and so are the FLOPs and bytes of our grouped products (tokamax's kernels). MaxText 0.2.5 has no grouped
product for GPUs: its kernels are for TPUs, and XLA turns its jax.lax.ragged_dot into a product of every row by every
expert.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys

from jmoe.cost import chips, instruction_flops
from jmoe.cost.program import Program

ROOT = pathlib.Path(__file__).parents[1]
TOKENS_PER_DEVICE = 16_384
SEQ_LEN = 4_096
JAX = "0.10.2"  # the newest that MaxText's release works with
LIBTPU = "0.0.42.1"  # the newest that this jax reads
NEEDS = (
    f"jax=={JAX} jaxlib=={JAX} flax<0.13 optax orbax-checkpoint grain "
    "tensorflow-datasets transformers omegaconf "
    "pydantic absl-py ml-collections tensorboardX tensorboard jaxtyping aqtp qwix sentencepiece tiktoken datasets "
    "cloud-accelerator-diagnostics google-cloud-storage google-cloud-mldiagnostics ml-goodput-measurement "
    "pathwaysutils tokamax etils tabulate jinja2 drjax sympy psutil einshape pillow aiofiles"
).split()
MAXTEXT = "maxtext==0.2.5"
COMMON = (
    "compile_topology_num_slices=1 per_device_batch_size=4 max_target_length=4096 "
    "dtype=bfloat16 weight_dtype=float32 remat_policy=full enable_checkpointing=false "
    "dataset_type=synthetic allow_split_physical_axes=True base_output_directory=/tmp/maxtext run_name=peers"
).split()
READABLE = {"JAX_PLATFORMS": "cpu", "LIBTPU_INIT_ARGS": "--xla_tpu_sparse_core_maximum_preloaded_async_calls=0"}
SPLASH = {"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4}  # products of MaxText's attention on TPUs
BLOCK = 512  # of ours: as many positions beyond the diagonal are worked on


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as flags of both trainers.

    Attributes:
      ours: flags of jmoe.compile.
      maxtexts: settings of MaxText.
      top_k: experts that a token uses; 0: a dense model.
    """

    ours: str
    maxtexts: str
    top_k: int


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Chips to compile for.

    Attributes:
      chip: a name of jmoe.cost.chips.CHIPS.
      topology: all of the chips, as jmoe.compile names them.
      n_devices: their number.
      maxtexts: settings of MaxText for these chips.
      packages: what MaxText's environment needs for them beside NEEDS.
      models: by name.
      same_jax: the models that MaxText's environment also compiles for our side; others take that of this process.
    """

    chip: str
    topology: str
    n_devices: int
    maxtexts: str
    packages: tuple[str, ...]
    models: dict[str, Model]
    same_jax: tuple[str, ...] = ()


DENSE_1B = (
    "--config=configs/joint_moe.py --config.model.d_model=2048 --config.model.n_blocks=16 --config.model.n_heads=16"
    " --config.model.d_ff=8192 --config.model.vocab_size=50304 --config.model.norm=rms --config.model.final_norm"
)
MAXTEXTS_DENSE_1B = (
    "decoder_block=llama2 base_emb_dim=2048 base_num_decoder_layers=16 base_num_query_heads=16 "
    "base_num_kv_heads=16 head_dim=128 base_mlp_dim=8192 vocab_size=50304"
)
MAXTEXTS_OLMOE = (
    "decoder_block=mixtral base_emb_dim=2048 base_num_decoder_layers=16 base_num_query_heads=16 "
    "base_num_kv_heads=16 head_dim=128 base_mlp_dim=1024 base_moe_mlp_dim=1024 num_experts=64 "
    "num_experts_per_tok=8 vocab_size=50304"
)
DROPLESS = "--config.model.capacity_factor=None"
CAPACITY = "--config.model.capacity_factor=1.0"
MAXTEXTS_CAPACITY = "megablox=False sparse_matmul=False capacity_factor=1.0"


def v5p_64() -> Cluster:
    """64 TPU v5p."""
    dropless = "megablox=True sparse_matmul=True capacity_factor=-1"
    travelling = "ici_expert_parallelism=8 ici_fsdp_parallelism=8"
    gathered = "ici_fsdp_parallelism=64"
    models = {
        "dense": Model(DENSE_1B, f"{MAXTEXTS_DENSE_1B} {gathered}", top_k=0),
        "olmoe": Model("--config=configs/olmoe.py", f"{MAXTEXTS_OLMOE} {gathered} {dropless}", top_k=8),
        "mixtral": Model(
            f"--config=configs/mixtral.py {DROPLESS}", f"model_name=mixtral-8x7b {travelling} {dropless}", top_k=2
        ),
        "mixtral-capacity": Model(
            f"--config=configs/mixtral.py {CAPACITY}",
            f"model_name=mixtral-8x7b {travelling} {MAXTEXTS_CAPACITY}",
            top_k=2,
        ),
        "qwen3": Model(
            f"--config=configs/qwen3_moe.py {DROPLESS} --config.mesh.expert=1",
            f"model_name=qwen3-30b-a3b {gathered} {dropless}",
            top_k=8,
        ),
    }
    return Cluster(
        chip="v5p",
        topology="v5p:4x4x4",
        n_devices=64,
        maxtexts="compile_topology=v5p-128 attention=flash",
        packages=(f"libtpu=={LIBTPU}",),
        models=models,
    )


def h100_8() -> Cluster:
    """One machine of 8 H100. Mixtral has 8 of its 32 layers, Qwen3 12 of its 48."""
    dropless = "megablox=False sparse_matmul=True capacity_factor=-1"
    travelling = "ici_expert_parallelism=8 ici_fsdp_parallelism=1"
    gathered = "ici_fsdp_parallelism=8"
    mixtral = "--config=configs/mixtral.py --config.model.n_blocks=8"
    maxtexts_mixtral = "model_name=mixtral-8x7b override_model_config=True base_num_decoder_layers=8"
    models = {
        "dense": Model(DENSE_1B, f"{MAXTEXTS_DENSE_1B} {gathered}", top_k=0),
        "olmoe": Model("--config=configs/olmoe.py", f"{MAXTEXTS_OLMOE} {gathered} {dropless}", top_k=8),
        "olmoe-capacity": Model(
            f"--config=configs/olmoe.py {CAPACITY}", f"{MAXTEXTS_OLMOE} {gathered} {MAXTEXTS_CAPACITY}", top_k=8
        ),
        "mixtral": Model(f"{mixtral} {DROPLESS}", f"{maxtexts_mixtral} {travelling} {dropless}", top_k=2),
        "mixtral-capacity": Model(
            f"{mixtral} {CAPACITY}", f"{maxtexts_mixtral} {travelling} {MAXTEXTS_CAPACITY}", top_k=2
        ),
        "qwen3": Model(
            f"--config=configs/qwen3_moe.py --config.model.n_blocks=12 {DROPLESS} --config.mesh.expert=1",
            f"model_name=qwen3-30b-a3b override_model_config=True base_num_decoder_layers=12 {gathered} {dropless}",
            top_k=8,
        ),
    }
    return Cluster(
        chip="H100",
        topology="H100:8",
        n_devices=8,
        maxtexts="compile_topology=a3 hardware=gpu attention=cudnn_flash_jax",
        packages=(f"jax[cuda13]=={JAX}",),
        models=models,
        same_jax=("dense", "olmoe-capacity", "mixtral-capacity"),
    )


CLUSTERS = {"v5p:64": v5p_64(), "H100:8": h100_8()}
START = """
import json, sys
import jax
import jax.experimental.xla_metadata as metadata
metadata.must_fuse_call = getattr(metadata, "must_fuse_call", lambda f, *_, **__: f)  # missing in this jax
"""
DRIVER = f"""{START}
out, topology, root = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
if topology.startswith("H100"):  # MaxText compiles for the GPUs that jax sees
    sys.path.append(root)
    from jmoe.cost.topologies import topology_devices
    devices = topology_devices(topology)
    jax.devices = lambda *_: devices
compile_ = jax.stages.Lowered.compile

def compile(self, *args, **options):
    compiled = compile_(self, *args, **options)
    memory = compiled.memory_analysis()
    sizes = {{name: getattr(memory, name) for name in dir(memory) if name.endswith("_in_bytes")}}
    with open(out, "w") as file:  # the last program compiled is the train step
        json.dump({{"hlo": compiled.as_text(), "sizes": sizes}}, file)
    return compiled

jax.stages.Lowered.compile = compile
from absl import app
from maxtext.trainers.pre_train import train_compile
app.run(train_compile.main)
"""


def environment(folder: pathlib.Path, packages: tuple[str, ...]) -> pathlib.Path:
    """The Python of MaxText's environment in `folder`, which is made if it is not there, with these packages."""
    python = folder / "bin" / "python"
    made = folder / ("made-" + "-".join(package.partition("=")[0] for package in packages))
    if not made.exists():
        print(f"making MaxText's environment in {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "-q"]
        subprocess.run([*install, *NEEDS, *packages], check=True)
        subprocess.run([*install, "--no-deps", MAXTEXT], check=True)
        made.touch()
    return python


def base(folder: pathlib.Path) -> pathlib.Path:
    """MaxText's own settings in its environment."""
    return next(folder.glob("lib/python3*/site-packages/maxtext/configs/base.yml"))


def maxtexts(name: str, cluster: Cluster, folder: pathlib.Path) -> dict[str, float]:
    """The cost of MaxText's step on a device."""
    model = cluster.models[name]
    path = folder / f"{cluster.chip}-{name}.json"
    if not path.exists():
        part = path.with_suffix(".part")
        driver = folder / "driver.py"
        driver.write_text(DRIVER)
        python = environment(folder, cluster.packages)
        settings = [*COMMON, *cluster.maxtexts.split(), *model.maxtexts.split()]
        command = [python, driver, part, cluster.topology, ROOT, base(folder), *settings]
        with open(path.with_suffix(".log"), "w") as log:
            done = subprocess.run(command, env=os.environ | READABLE, stdout=log, stderr=log)
        if done.returncode:
            sys.exit(f"MaxText's step of {name} was not compiled: {log.name} says why")
        part.rename(path)
    compiled = json.loads(path.read_text())
    program = Program(compiled["hlo"])
    sizes = compiled["sizes"]
    parts = ("argument", "temp", "generated_code", "output")
    peak = sum(sizes[f"{part}_size_in_bytes"] for part in parts) - sizes["alias_size_in_bytes"]
    return {
        "matmul_flops": program.matmul_flops() + correction(program, TOKENS_PER_DEVICE * model.top_k),
        "main_memory_bytes": program.main_memory_bytes(),
        "peak_memory_bytes": peak,
        "sent_bytes": sum(collective.times * collective.bytes for collective in program.collectives()),
    }


def correction(program: Program, n_rows: int) -> int:
    """FLOPs of a TPU's attention, less those of rows beyond `n_rows` in the buffers of grouped products."""
    total = 0
    for instruction, times, _ in program.runs:
        if instruction.opcode != "custom-call":
            continue
        arrays = [source.arrays[0].dims for source in instruction.operands]
        products = next((n for name, n in SPLASH.items() if name in instruction.name), 0)
        if products:
            queries = next(dims for dims in arrays if len(dims) == 4)  # B, H, T, K
            total += times * products * math.prod(queries) * (queries[2] + BLOCK)
        elif "gmm" in instruction.name:
            rows = max(dims[0] for dims in arrays if len(dims) == 2)
            total -= int(times * instruction_flops.matmul_flops(instruction) * max(0, 1 - n_rows / rows))
    return total


def ours(name: str, cluster: Cluster, folder: pathlib.Path) -> dict[str, float]:
    """The cost of our step on a device."""
    path = folder / f"jmoe-{cluster.chip}-{name}.json"
    flags = (
        *cluster.models[name].ours.split(),
        "--config.model.attention=flash",
        f"--config.data.seq_len={SEQ_LEN}",
        f"--config.batch_tokens=((0, {cluster.n_devices * TOKENS_PER_DEVICE}),)",
        f"--topology={cluster.topology}",
        f"--json={path}",
    )
    python = environment(folder, cluster.packages) if name in cluster.same_jax else sys.executable
    subprocess.run([python, "-m", "jmoe.compile", *flags], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    report = json.loads(path.read_text())
    return {
        "matmul_flops": report["flops"]["matmul"],
        "main_memory_bytes": report["main_memory_bytes"],
        "peak_memory_bytes": report["memory_bytes"]["peak"],
        "sent_bytes": sum(total["bytes"] for total in report["collectives"].values()),
    }


def with_roofline(costs: dict[str, float], chip: chips.Chip) -> dict[str, float]:
    """`costs`, and the seconds of a step at the chip's published peaks if all overlaps, and if nothing does."""
    parts = (
        costs["matmul_flops"] / chip.flops,
        costs["main_memory_bytes"] / chip.bandwidth,
        costs["sent_bytes"] / chip.network,
    )
    return costs | {"overlapped_seconds": max(parts), "serial_seconds": sum(parts)}


def table(figures: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Rows of ours over MaxText's, and both in brackets."""
    lines = [f"| ours over MaxText's | {' | '.join(figures)} |", f"|---|{'---|' * len(figures)}"]
    costs = next(iter(figures.values()))["jmoe"]
    for cost in costs:
        cells = []
        for sides in figures.values():
            ratio = sides["jmoe"][cost] / sides["MaxText"][cost]
            cells.append(f"{ratio:.2f} ({sides['jmoe'][cost]:.3g}, {sides['MaxText'][cost]:.3g})")
        lines.append(f"| {cost} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--environment", required=True, type=pathlib.Path, help="MaxText's environment, made if missing"
    )
    parser.add_argument("--chips", choices=list(CLUSTERS), default="v5p:64", help="the chips to compile for")
    parser.add_argument("--models", help="of the models of these chips, separated by commas; default: all")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    args = parser.parse_args()
    cluster = CLUSTERS[args.chips]
    names = args.models.split(",") if args.models else list(cluster.models)
    unknown = sorted(set(names) - set(cluster.models))
    if unknown:
        parser.error(f"--models={args.models}: found {', '.join(unknown)}, expected {', '.join(cluster.models)}")
    folder = args.environment.absolute()
    environment(folder, cluster.packages)
    chip = chips.CHIPS[cluster.chip]
    figures = {}
    for name in names:
        print(f"compiling {name} on both sides", file=sys.stderr)
        figures[name] = {
            "jmoe": with_roofline(ours(name, cluster, folder), chip),
            "MaxText": with_roofline(maxtexts(name, cluster, folder), chip),
        }
    print("\n".join(table(figures)))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
