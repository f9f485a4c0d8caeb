"""Describes devices that this machine need not have: TPU slices by libtpu, GPUs by the [cuda] extra's compiler."""

import contextlib
import importlib.util
import os
import re

import jax
from jax.experimental import topologies
from jax.extend import backend

from jmoe.cost.chips import CHIPS, TPU_KINDS
from jmoe.errors import UserError

# What XLA's compiler must know of an absent GPU: name, compute capability, cores; of a core its float32 units, bytes of
# shared memory, and how many of them one block may have; bytes of L2, GHz, bytes of memory (sources as in chips.py).
GPUS = {
    "A100": ("NVIDIA A100-SXM4-80GB", 8, 108, 64, 167_936, 166_912, 41_943_040, 1.41, 84_929_347_584),
    "H100": ("NVIDIA H100 80GB HBM3", 9, 132, 128, 233_472, 232_448, 52_428_800, 1.98, 84_929_347_584),
    "H200": ("NVIDIA H200", 9, 132, 128, 233_472, 232_448, 52_428_800, 1.98, 150_754_820_096),
    "B200": ("NVIDIA B200", 10, 148, 128, 233_472, 232_448, 132_644_864, 1.965, 191_502_471_168),
}


def topology_devices(name: str, n_slices: int = 1):
    """jax's descriptions of the devices of `n_slices` TPU slices, or of machines with GPUs, which need not be here.
    UserError where there is no such slice, or its compiler is not installed."""
    typed, _, size = name.partition(":")
    kind_by_lower_name = {known.lower(): known for known in (*GPUS, *TPU_KINDS.values())}
    kind = kind_by_lower_name.get(typed.lower(), typed)
    if kind in GPUS:
        if n_slices > 1:
            raise UserError(
                f"--n_slices={n_slices} is for TPU slices, found --topology={name}: {kind}:2x8 names two machines"
            )
        return _gpus(name, kind, size)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology={name} needs the TPU compiler: install the [tpu] extra, pip install -e '.[tpu]'")
    if kind not in TPU_KINDS.values() or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", size):  # a 0 would end libtpu
        raise UserError(
            f"--topology={name} is none of v4:XxYxZ, v5e:XxY, v5p:XxYxZ, v6e:XxY, tpu7x:XxYxZ, for example v5e:4x4, or "
            f"of {', '.join(GPUS)}, for example H100:2x8"
        )
    # keep libtpu from asking a metadata server, warning that this is no TPU host, and locking the chips
    for variable, value in {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_MIN_LOG_LEVEL": "3",
    }.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")
    options = {"wrap": wraparounds([int(n) for n in size.split("x")])}
    if n_slices > 1:
        options["num_slices"] = n_slices
    if kind == "v4":
        options["chip_config_name"] = "megacore"  # both cores of a chip as one device
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=f"{kind}:{size}", **options).devices
    except Exception as error:  # noqa: BLE001  libtpu's own kinds of error
        reason = " ".join(str(error).split("\n")[0].split())
        raise UserError(
            f"--topology={name} is no slice that libtpu knows ({reason}); accepted are v4:XxYxZ, v5e:XxY, v5p:XxYxZ, "
            "tpu7x:XxYxZ and v6e:XxY with X and Y multiples of 2, for example v5e:4x4 or v5p:8x8x8"
        ) from None


@contextlib.contextmanager
def kernels_for(device):
    """Lets tokamax choose its kernels for `device`, a GPU that need not be here.

    tokamax asks jax's default device what it is and can do, and refuses kernels for a GPU that it does not see.
    """
    if device.platform != "gpu" or jax.default_backend() == "gpu" or importlib.util.find_spec("tokamax") is None:
        yield
        return
    import tokamax

    of_this_machine = backend.get_default_device
    backend.get_default_device = lambda: device
    try:
        with tokamax.config.cross_compile(True):
            yield
    finally:
        backend.get_default_device = of_this_machine


def wraparounds(sizes: list[int]) -> tuple[bool, ...]:
    """Along which axes of a TPU slice of these sizes the last chip is linked to the first. Unless told, libtpu takes
    none to be, and makes all-reduces of many all-gathers.

    In three dimensions optical switches close all axes of whole cubes of 4 x 4 x 4 and none of other slices; in two
    dimensions (v5e, v6e) an axis of 16 is closed ("How to Scale Your Model", jax-ml.github.io/scaling-book/tpus).
    """
    if len(sizes) == 3:
        return (all(n % 4 == 0 for n in sizes),) * 3
    return (*(n == 16 for n in sizes), False)


def _gpus(name: str, kind: str, size: str):
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        raise UserError(f"--topology={name} needs the GPU compiler: install the [cuda] extra, pip install -e '.[cuda]'")
    if not (parts := re.fullmatch(r"(?:(\d+)x)?(\d+)", size)) or "0" in parts.groups():
        raise UserError(f"--topology={name} is neither {kind}:GPUS nor {kind}:MACHINESxGPUS, for example {kind}:2x8")
    jax.config.update("jax_platforms", "cpu")
    shape = f"1x{parts[1] or 1}x{parts[2]}"
    return topologies.get_topology_desc(platform="cuda", target_config=_gpu_target(kind), topology=shape).devices


def _gpu_target(kind: str) -> str:
    """XLA's GpuTargetConfigProto of one of GPUS, as text."""
    name, capability, cores, units, shared, shared_block, l2, clock, memory = GPUS[kind]
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {shared} shared_memory_per_block_optin: {shared_block}
  core_count: {cores} fpus_per_core: {units} clock_rate_ghz: {clock} l2_cache_size: {l2}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: {int(CHIPS[kind].bandwidth)} device_memory_size: {memory}
  cuda_compute_capability {{ major: {capability} }}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 12 minor: 8 }}
device_description_str: "{name}"
"""
