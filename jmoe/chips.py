"""Published peaks of accelerators, for MFU and for what fits where. One device of jax is one chip."""

import dataclasses

GiB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    flops: float  # bfloat16 FLOP/s, dense
    capacity: float  # bytes of main memory
    bandwidth: float  # bytes a second of main memory
    network: float  # bytes a second that leave over all fast links (ICI, NVLink): half of the bidirectional figure


# TPU: cloud.google.com/tpu/docs, system architecture of each version; links of v4 from Jouppi et al. 2023
# (arXiv:2304.01433). GPU: NVIDIA's data sheets, SXM, without sparsity.
CHIPS = {
    "v4": Chip(275e12, 32 * GiB, 1228e9, 300e9),
    "v5e": Chip(197e12, 16 * GiB, 819e9, 200e9),
    "v5p": Chip(459e12, 95 * GiB, 2765e9, 600e9),
    "v6e": Chip(918e12, 32 * GiB, 1638e9, 400e9),
    "A100": Chip(312e12, 80 * GiB, 2039e9, 300e9),
    "H100": Chip(989e12, 80 * GiB, 3350e9, 450e9),
    "H200": Chip(989e12, 141e9, 4800e9, 450e9),
}
# What XLA's compiler asks of a GPU, for compiling without one: name, compute capability, cores, float32 units and bytes
# of shared memory of a core, of which one block may have so many, bytes of L2, GHz, bytes (the same data sheets).
GPUS = {
    "A100": ("NVIDIA A100-SXM4-80GB", 8, 108, 64, 167_936, 166_912, 41_943_040, 1.41, 84_929_347_584),
    "H100": ("NVIDIA H100 80GB HBM3", 9, 132, 128, 233_472, 232_448, 52_428_800, 1.98, 84_929_347_584),
    "H200": ("NVIDIA H200", 9, 132, 128, 233_472, 232_448, 52_428_800, 1.98, 150_754_820_096),
}
TPU_KINDS = {"TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e"}  # jax's device_kind


def gpu_target(kind: str) -> str:
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


def of_device(device) -> Chip | None:
    """The peaks of a jax device, None where no published ones are listed (a CPU)."""
    kind = device.device_kind
    return next((chip for name, chip in CHIPS.items() if name == TPU_KINDS.get(kind) or f" {name}" in kind), None)
