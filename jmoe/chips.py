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
TPU_KINDS = {"TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e"}  # jax's device_kind


def of_device(device) -> Chip | None:
    """The peaks of a jax device, None where no published ones are listed (a CPU)."""
    kind = device.device_kind
    return next((chip for name, chip in CHIPS.items() if name == TPU_KINDS.get(kind) or f" {name}" in kind), None)
