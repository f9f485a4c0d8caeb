"""The compiled train step beside MaxText's, for 64 TPU v5p that need not be here:

    python -m benchmarks.peers --environment=DIR [--models=dense,olmoe,mixtral,mixtral-capacity,qwen3] [--json=PATH]

Makes an environment for MaxText in DIR (2 GB, made once; Python 3.12 or later), compiles each model on both sides and
reads both programs with one counter (jmoe/cost/program.py): per device and step, FLOPs of products, bytes of the main
memory read and written, peak memory and bytes sent; then ours over theirs. On both sides: 1,048,576 tokens a step in
rows of 4,096, bfloat16, float32 weights, everything recomputed, flash attention, nothing dropped but where `capacity`
(a balanced load's) is said.

What is estimated: MaxText's grouped products declare the FLOPs of their whole buffers, of which a balanced load fills
N top_k rows on each device, and are counted as that share; its attention declares none, and is counted as ours, whose
blocks above the diagonal do nothing. Mixtral is spread over expert = 8 on both sides, its rows travel to their experts;
the experts of OLMoE and Qwen3 are gathered on both sides: ours since jmoe.compile says that this sends least, MaxText's
(fsdp = 64) since it costs a seventh of the memory traffic. MaxText's jax cannot read what the newest libtpu compiles,
so each side has its own, nor calls to sparse cores that are prepared ahead of their operands, so there are none of
those. Half an hour of two busy cores for all.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys

from jmoe.cost import chips
from jmoe.cost.program import Program

TOPOLOGY, MAXTEXTS = "v5p:4x4x4", "v5p-128"  # both 64 chips
TOKENS_PER_DEVICE, SEQ_LEN = 16_384, 4_096
JAX, LIBTPU = "0.10.2", "0.0.42.1"  # the newest that MaxText's release works with, and the newest that this jax reads
NEEDS = (
    f"jax=={JAX} jaxlib=={JAX} libtpu=={LIBTPU} flax<0.13 optax orbax-checkpoint grain "
    "tensorflow-datasets transformers omegaconf "
    "pydantic absl-py ml-collections tensorboardX tensorboard jaxtyping aqtp qwix sentencepiece tiktoken datasets "
    "cloud-accelerator-diagnostics google-cloud-storage google-cloud-mldiagnostics ml-goodput-measurement "
    "pathwaysutils tokamax etils tabulate jinja2 drjax sympy psutil einshape pillow aiofiles"
).split()
MAXTEXT = "maxtext==0.2.5"
COMMON = (
    f"compile_topology={MAXTEXTS} compile_topology_num_slices=1 per_device_batch_size=4 max_target_length=4096 "
    "dtype=bfloat16 weight_dtype=float32 remat_policy=full attention=flash enable_checkpointing=false "
    "dataset_type=synthetic allow_split_physical_axes=True base_output_directory=/tmp/maxtext run_name=peers"
).split()
DROPLESS = "megablox=True sparse_matmul=True capacity_factor=-1"
TRAVELLING, GATHERED = "ici_expert_parallelism=8 ici_fsdp_parallelism=8", "ici_fsdp_parallelism=64"  # of MaxText
OURS = (
    "--config.model.attention=flash",
    f"--config.data.seq_len={SEQ_LEN}",
    f"--config.batch_tokens=((0, {64 * TOKENS_PER_DEVICE}),)",
)
MODELS = {  # name: (our flags, MaxText's, choices of a token)
    "dense": (
        "--config=configs/joint_moe.py --config.model.d_model=2048 --config.model.n_blocks=16 --config.model.n_heads=16"
        " --config.model.d_ff=8192 --config.model.vocab_size=50304 --config.model.norm=rms --config.model.final_norm",
        "decoder_block=llama2 base_emb_dim=2048 base_num_decoder_layers=16 base_num_query_heads=16 "
        "base_num_kv_heads=16 head_dim=128 base_mlp_dim=8192 vocab_size=50304 ici_fsdp_parallelism=64",
        0,
    ),
    "olmoe": (
        "--config=configs/olmoe.py",
        "decoder_block=mixtral base_emb_dim=2048 base_num_decoder_layers=16 base_num_query_heads=16 "
        "base_num_kv_heads=16 head_dim=128 base_mlp_dim=1024 base_moe_mlp_dim=1024 num_experts=64 "
        f"num_experts_per_tok=8 vocab_size=50304 {GATHERED} {DROPLESS}",
        8,
    ),
    "mixtral": (
        "--config=configs/mixtral.py --config.model.capacity_factor=None",
        f"model_name=mixtral-8x7b {TRAVELLING} {DROPLESS}",
        2,
    ),
    "mixtral-capacity": (
        "--config=configs/mixtral.py --config.model.capacity_factor=1.0",
        f"model_name=mixtral-8x7b {TRAVELLING} megablox=False sparse_matmul=False capacity_factor=1.0",
        2,
    ),
    "qwen3": (
        "--config=configs/qwen3_moe.py --config.model.capacity_factor=None --config.mesh.expert=1",
        f"model_name=qwen3-30b-a3b {GATHERED} {DROPLESS}",
        8,
    ),
}
READABLE = {"JAX_PLATFORMS": "cpu", "LIBTPU_INIT_ARGS": "--xla_tpu_sparse_core_maximum_preloaded_async_calls=0"}
SPLASH = {"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4}  # products of MaxText's attention
BLOCK = 512  # of ours: as many positions beyond the diagonal are worked on
START = """
import json, sys
import jax
import jax.experimental.xla_metadata as metadata
metadata.must_fuse_call = getattr(metadata, "must_fuse_call", lambda f, *_, **__: f)  # missing in this jax
"""
DRIVER = f"""{START}
out, compile_ = sys.argv.pop(1), jax.stages.Lowered.compile

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


def environment(folder: pathlib.Path) -> pathlib.Path:
    """The Python of MaxText's environment in `folder`, which is made if it is not there."""
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        print(f"making MaxText's environment in {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "-q"]
        subprocess.run([*install, *NEEDS], check=True)
        subprocess.run([*install, "--no-deps", MAXTEXT], check=True)
        (folder / "made").touch()
    return python


def base(folder: pathlib.Path) -> pathlib.Path:
    """MaxText's own settings in its environment."""
    return next(folder.glob("lib/python3*/site-packages/maxtext/configs/base.yml"))


def maxtexts(name: str, folder: pathlib.Path) -> dict:
    """What MaxText's step costs."""
    _, flags, top_k = MODELS[name]
    path, part, driver = folder / f"{name}.json", folder / f"{name}.part", folder / "driver.py"
    if not path.exists():
        driver.write_text(DRIVER)
        command = [environment(folder), driver, part, base(folder), *COMMON, *flags.split()]
        with open(folder / f"{name}.log", "w") as log:
            done = subprocess.run(command, env=os.environ | READABLE, stdout=log, stderr=log)
        if done.returncode:
            sys.exit(f"MaxText's step of {name} was not compiled: {log.name} says why")
        part.rename(path)
    made = json.loads(path.read_text())
    program, sizes = Program(made["hlo"]), made["sizes"]
    kept = ("argument", "temp", "generated_code", "output")
    peak = sum(sizes[f"{part}_size_in_bytes"] for part in kept) - sizes["alias_size_in_bytes"]
    return {
        "matmul_flops": program.matmul_flops() + correction(program, TOKENS_PER_DEVICE * top_k),
        "main_memory_bytes": program.main_memory_bytes(),
        "peak_memory_bytes": peak,
        "sent_bytes": sum(one.times * one.bytes for one in program.collectives()),
    }


def correction(program: Program, n_rows: int) -> int:
    """FLOPs of attention, less those of rows beyond `n_rows` in the buffers of grouped products."""
    total = 0
    for one, times, _ in program.runs:
        if one.opcode != "custom-call":
            continue
        arrays = [source.arrays[0].dims for source in one.operands]
        if products := next((n for name, n in SPLASH.items() if name in one.name), 0):
            queries = next(dims for dims in arrays if len(dims) == 4)  # B, H, T, K
            total += times * products * math.prod(queries) * (queries[2] + BLOCK)
        elif "gmm" in one.name:
            rows = max(dims[0] for dims in arrays if len(dims) == 2)
            total -= int(times * program.instruction_matmul_flops(one) * max(0, 1 - n_rows / rows))
    return total


def ours(name: str, folder: pathlib.Path) -> dict:
    """What our step costs."""
    path = folder / f"jmoe-{name}.json"
    command = [sys.executable, "-m", "jmoe.compile", *MODELS[name][0].split(), *OURS, f"--topology={TOPOLOGY}"]
    subprocess.run([*command, f"--json={path}"], check=True, stdout=subprocess.DEVNULL)
    report = json.loads(path.read_text())
    return {
        "matmul_flops": report["flops"]["matmul"],
        "main_memory_bytes": report["main_memory_bytes"],
        "peak_memory_bytes": report["memory_bytes"]["peak"],
        "sent_bytes": sum(total["bytes"] for total in report["collectives"].values()),
    }


def with_roofline(costs: dict) -> dict:
    """Also the seconds of a step at published peaks if all overlaps, and if nothing does."""
    chip = chips.CHIPS["v5p"]
    parts = costs["matmul_flops"] / chip.flops, costs["main_memory_bytes"] / chip.bandwidth
    parts += (costs["sent_bytes"] / chip.network,)
    return costs | {"overlapped_seconds": max(parts), "serial_seconds": sum(parts)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--environment", required=True, type=pathlib.Path, help="MaxText's environment, made if missing"
    )
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    asked = parser.parse_args()
    if unknown := set(asked.models.split(",")) - set(MODELS):
        parser.error(f"--models={asked.models}: found {', '.join(sorted(unknown))}, expected {', '.join(MODELS)}")
    folder = asked.environment.absolute()
    environment(folder)
    figures = {}
    for name in asked.models.split(","):
        print(f"compiling {name} on both sides", file=sys.stderr)
        sides = {"jmoe": with_roofline(ours(name, folder)), "MaxText": with_roofline(maxtexts(name, folder))}
        figures[name] = sides
    names = list(figures)
    print(f"| ours over MaxText's | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for what in next(iter(figures.values()))["jmoe"]:
        cells = [f"{figures[n]['jmoe'][what] / figures[n]['MaxText'][what]:.2f}" for n in names]
        print(f"| {what} | {' | '.join(cells)} |")
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
