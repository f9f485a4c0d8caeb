"""Describes devices that this machine need not have: TPU slices by libtpu, GPUs by the [cuda] extra's compiler."""

import contextlib
import importlib.util
import os
import re
from collections.abc import Generator
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jax.extend import backend

from jmoe.cost.chips import CHIPS, TPU_KINDS
from jmoe.errors import UserError


class _Gpu(NamedTuple):
    """An absent GPU as XLA's compiler must know it; sizes in bytes (sources as in chips.py)."""

    name: str
    capability: int  # major version of the compute capability
    n_cores: int  # streaming multiprocessors
    float32_units: int  # of a core
    shared_memory: int  # of a core
    block_shared_memory: int  # what one block may have of it
    l2_cache: int
    clock_ghz: float
    memory: int


GPUS = {
    "A100": _Gpu("NVIDIA A100-SXM4-80GB", 8, 108, 64, 167_936, 166_912, 41_943_040, 1.41, 84_929_347_584),
    "H100": _Gpu("NVIDIA H100 80GB HBM3", 9, 132, 128, 233_472, 232_448, 52_428_800, 1.98, 84_929_347_584),
    "H200": _Gpu("NVIDIA H200", 9, 132, 128, 233_472, 232_448, 52_428_800, 1.98, 150_754_820_096),
    "B200": _Gpu("NVIDIA B200", 10, 148, 128, 233_472, 232_448, 132_644_864, 1.965, 191_502_471_168),
}
# keep libtpu from asking a metadata server, warning that this is no TPU host, and locking the chips
LIBTPU_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
}


def topology_devices(name: str, n_slices: int = 1) -> list[jax.Device]:
    """Describes the devices of TPU slices, or of machines with GPUs, which need not be here.

    Args:
      name: A slice such as "v5e:4x4", GPUs such as "H100:8", or "H100:2x8" on two machines.
      n_slices: TPU slices.

    Raises:
      UserError: There is no such slice, or its compiler is not installed.
    """
    typed, _, size = name.partition(":")
    kind_by_lower_name = {known.lower(): known for known in (*GPUS, *TPU_KINDS.values())}
    kind = kind_by_lower_name.get(typed.lower(), typed)
    if kind not in GPUS:
        return _tpus(name, kind, size, n_slices)
    if n_slices > 1:
        raise UserError(
            f"--n_slices={n_slices} is for TPU slices, found --topology={name}: {kind}:2x8 names two machines"
        )
    return _gpus(name, kind, size)


def _tpus(name: str, kind: str, size: str, n_slices: int) -> list[jax.Device]:
    """The devices of `n_slices` slices of TPUs of this kind and size; `name` is what the user typed."""
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology={name} needs the TPU compiler: install the [tpu] extra, pip install -e '.[tpu]'")
    if kind not in TPU_KINDS.values() or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", size):  # a 0 would end libtpu
        raise UserError(
            f"--topology={name} is none of v4:XxYxZ, v5e:XxY, v5p:XxYxZ, v6e:XxY, tpu7x:XxYxZ, for example v5e:4x4, or "
            f"of {', '.join(GPUS)}, for example H100:2x8"
        )
    for variable, value in LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")
    options: dict[str, Any] = {"wrap": wraparounds([int(n) for n in size.split("x")])}
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
def kernels_for(device: jax.Device) -> Generator[None]:
    """Lets tokamax choose its kernels for a GPU or TPU that need not be here, within the `with` block.

    tokamax asks jax's default device what it is and can do, and refuses kernels for a device that it does not see.
    """
    is_here = device.platform == jax.default_backend()
    if device.platform == "cpu" or is_here or importlib.util.find_spec("tokamax") is None:
        yield
        return
    import tokamax

    get_default_device = backend.get_default_device

    def get_absent_device() -> jax.Device:
        return device

    backend.get_default_device = get_absent_device  # ty: ignore[invalid-assignment]
    try:
        with tokamax.config.cross_compile(True):
            yield
    finally:
        backend.get_default_device = get_default_device


def wraparounds(sizes: list[int]) -> tuple[bool, ...]:
    """The axes of a TPU slice along which the last chip is linked to the first.

    Unless told, libtpu assumes none, and makes all-reduces of many all-gathers.

    In three dimensions optical switches close all axes of whole cubes of 4 x 4 x 4 and none of other slices; in two
    dimensions (v5e, v6e) an axis of 16 is closed ("How to Scale Your Model", jax-ml.github.io/scaling-book/tpus).
    """
    if len(sizes) == 3:
        return (all(n % 4 == 0 for n in sizes),) * 3
    return (*(n == 16 for n in sizes), False)


def _gpus(name: str, kind: str, size: str) -> list[jax.Device]:
    """The devices of machines with GPUs of this kind; `name` is what the user typed."""
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        raise UserError(f"--topology={name} needs the GPU compiler: install the [cuda] extra, pip install -e '.[cuda]'")
    parts = re.fullmatch(r"(?:(\d+)x)?(\d+)", size)
    if parts is None or "0" in parts.groups():
        raise UserError(f"--topology={name} is neither {kind}:GPUS nor {kind}:MACHINESxGPUS, for example {kind}:2x8")
    jax.config.update("jax_platforms", "cpu")
    shape = f"1x{parts[1] or 1}x{parts[2]}"
    return topologies.get_topology_desc(platform="cuda", target_config=_gpu_target(kind), topology=shape).devices


def _gpu_target(kind: str) -> str:
    """XLA's GpuTargetConfigProto of one of GPUS, as text."""
    gpu = GPUS[kind]
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {gpu.shared_memory}
  shared_memory_per_block_optin: {gpu.block_shared_memory}
  core_count: {gpu.n_cores} fpus_per_core: {gpu.float32_units} clock_rate_ghz: {gpu.clock_ghz}
  l2_cache_size: {gpu.l2_cache}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: {int(CHIPS[kind].bandwidth)} device_memory_size: {gpu.memory}
  cuda_compute_capability {{ major: {gpu.capability} }}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 12 minor: 8 }}
device_description_str: "{gpu.name}"
"""
