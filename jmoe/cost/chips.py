"""Published peaks of accelerators, for MFU and for what fits where. One device of jax is one chip."""

import dataclasses

GiB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device's peaks; 0 where unknown."""

    flops: float = 0.0  # bfloat16 FLOP/s, dense
    capacity: float = 0.0  # bytes of main memory
    bandwidth: float = 0.0  # bytes a second of main memory
    network: float = 0.0  # bytes a second that leave over all fast links (ICI, NVLink), one way


# TPU: docs.cloud.google.com/tpu/docs, the page of each version ("TPU v5p", "TPU7x (Ironwood)", ...); links of v4 from
# Jouppi et al. 2023 (arXiv:2304.01433). Each of the two TensorCores of a TPU7x chip is a device: half of the chip's.
# GPU: NVIDIA's data sheets "A100 Tensor Core GPU", "H100 Tensor Core GPU" (SXM, PCIe and NVL), "H200 Tensor Core GPU",
# "DGX B200" (an eighth of it) and "GB200 NVL72" (a 72nd), without sparsity.
CHIPS = {
    "v4": Chip(275e12, 32 * GiB, 1228e9, 300e9),
    "v5e": Chip(197e12, 16 * GiB, 819e9, 200e9),
    "v5p": Chip(459e12, 95 * GiB, 2765e9, 600e9),
    "v6e": Chip(918e12, 32 * GiB, 1638e9, 400e9),
    "tpu7x": Chip(2307e12 / 2, 96 * GiB, 7380e9 / 2, 600e9 / 2),
    "A100-40GB": Chip(312e12, 40 * GiB, 1555e9, 300e9),
    "A100-PCIe": Chip(312e12, 80 * GiB, 1935e9, 300e9),
    "A100": Chip(312e12, 80 * GiB, 2039e9, 300e9),
    "H100-PCIe": Chip(756e12, 80 * GiB, 2000e9, 300e9),
    "H100-NVL": Chip(835e12, 94e9, 3900e9, 300e9),
    "H100": Chip(989e12, 80 * GiB, 3350e9, 450e9),
    "H200-NVL": Chip(836e12, 141e9, 4800e9, 450e9),
    "H200": Chip(989e12, 141e9, 4800e9, 450e9),
    "B200": Chip(2250e12, 180e9, 8000e9, 900e9),
    "GB200": Chip(2500e12, 186e9, 8000e9, 900e9),
}
# jax's device_kind
TPU_KINDS = {"TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e", "TPU7x": "tpu7x"}


def of_device(device, own=None) -> Chip | None:
    """The peaks of a jax device; None where none are known: a CPU, or a part of a GPU (MIG). `own` is config.chip,
    whose figures other than 0 take the place of the published ones."""
    own = {name: value for name, value in (own or {}).items() if value}
    chip = CHIPS.get(TPU_KINDS.get(device.device_kind) or _gpu(device.device_kind))
    return dataclasses.replace(chip or Chip(), **own) if own else chip


def _gpu(kind: str) -> str | None:
    """The longest name in CHIPS whose words are all in a GPU's name as its driver gives it: "NVIDIA A100-SXM4-40GB"."""
    words = set(kind.upper().replace("-", " ").split())
    names = [name for name in CHIPS if words.issuperset(name.upper().split("-"))]
    return max(names, key=len, default=None) if "MIG" not in words else None
