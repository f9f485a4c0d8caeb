"""Peaks of accelerators, published and measured, for MFU and for what fits where. One jax device is one chip.

FLOP/s are dense, of bfloat16; sizes are in bytes, rates in bytes a second.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Protocol

GiB = 2**30
MEASURED = pathlib.Path(__file__).parents[2] / "results" / "accelerators"  # what benchmarks/accelerator writes


class Device(Protocol):
    """What this module asks of a jax.Device."""

    @property
    def device_kind(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device's peaks; 0 where unknown."""

    flops: float = 0.0  # bfloat16 FLOP/s, dense
    capacity: float = 0.0  # bytes of main memory
    bandwidth: float = 0.0  # bytes a second of main memory
    network: float = 0.0  # bytes a second that leave over all fast links (ICI, NVLink), one way
    source: str = ""  # where these are published


# NVIDIA's FLOP/s without sparsity; PCIe cards' links are those of an NVLink bridge.
_A100 = "NVIDIA A100 Tensor Core GPU data sheet"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet"
_TPU = "docs.cloud.google.com/tpu/docs/"
CHIPS = {
    "v4": Chip(275e12, 32 * GiB, 1228e9, 300e9, f"{_TPU}v4; links: Jouppi et al. 2023, arXiv:2304.01433"),
    "v5e": Chip(197e12, 16 * GiB, 819e9, 200e9, f"{_TPU}v5e"),
    "v5p": Chip(459e12, 95 * GiB, 2765e9, 600e9, f"{_TPU}v5p"),
    "v6e": Chip(918e12, 32 * GiB, 1638e9, 400e9, f"{_TPU}v6e"),
    # each of a chip's two TensorCores is a device: half of 2307 TFLOP/s, 192 GiB, 7380 GB/s and 1200 GB/s both ways
    "tpu7x": Chip(2307e12 / 2, 96 * GiB, 7380e9 / 2, 600e9 / 2, f"{_TPU}tpu7x, half of a chip"),
    "A100-40GB": Chip(312e12, 40 * GiB, 1555e9, 300e9, f"{_A100} (40GB PCIe, 40GB SXM)"),
    "A100-PCIe": Chip(312e12, 80 * GiB, 1935e9, 300e9, f"{_A100} (80GB PCIe)"),
    "A100": Chip(312e12, 80 * GiB, 2039e9, 300e9, f"{_A100} (80GB SXM)"),
    "H100-PCIe": Chip(756e12, 80 * GiB, 2000e9, 300e9, f"{_H100} (PCIe)"),
    "H100-NVL": Chip(835e12, 94e9, 3900e9, 300e9, f"{_H100} (NVL)"),
    "H100": Chip(989e12, 80 * GiB, 3350e9, 450e9, f"{_H100} (SXM)"),
    "H200-NVL": Chip(836e12, 141e9, 4800e9, 450e9, f"{_H200} (NVL)"),
    "H200": Chip(989e12, 141e9, 4800e9, 450e9, f"{_H200} (SXM)"),
    "B200": Chip(2250e12, 180e9, 8000e9, 900e9, "NVIDIA DGX B200 data sheet, an eighth"),
    "GB200": Chip(2500e12, 186e9, 8000e9, 900e9, "NVIDIA GB200 NVL72 data sheet, a 72nd"),
}
# jax's device_kind, which differs between the ways to reach a TPU
TPU_KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}


def name_of(kind: str) -> str | None:
    """The name in CHIPS of a jax device_kind.

    None for a CPU, a part of a GPU (MIG), or a chip that is not listed.
    """
    if kind in TPU_KINDS:
        return TPU_KINDS[kind]
    # of a GPU, the longest name whose words are all in the name that its driver gives: "NVIDIA A100-SXM4-40GB"
    words = set(kind.upper().replace("-", " ").split())
    names = [name for name in CHIPS if words.issuperset(name.upper().split("-"))]
    name = max(names, key=len, default=None) if "MIG" not in words else None
    stated = re.search(r"\b(\d+)GB\b", kind.upper())
    if name and stated and abs(int(stated[1]) * 1e9 / CHIPS[name].capacity - 1) > 0.1:
        return None  # an A100 of 64 GB or an H100 of 96 GB is another chip
    return name


def of_device(device: Device, overrides: Mapping[str, float] | None = None) -> Chip | None:
    """The peaks of a jax device; None where none are known.

    Args:
      device: The device.
      overrides: config.chip, whose figures other than 0 replace the published ones.
    """
    name = name_of(device.device_kind)
    chip = CHIPS[name] if name else None
    nonzero: dict[str, Any] = {field: value for field, value in (overrides or {}).items() if value}
    return dataclasses.replace(chip or Chip(), **nonzero) if nonzero else chip


def file_name(kind: str) -> str:
    """NAME of results/accelerators/NAME.json for a device_kind, listed in CHIPS or not."""
    return name_of(kind) or re.sub(r"[^A-Za-z0-9]+", "-", kind).strip("-")


def measured(device: Device, folder: pathlib.Path = MEASURED) -> dict[str, Any] | None:
    """Measured peaks of this kind of device; None where none were measured.

    They are of a bfloat16 product of 8,192 x 8,192 and of a copy in memory (benchmarks/accelerator/parts.py).

    Returns:
      "flops" (FLOP/s), "bandwidth" (bytes a second), and "file", the name of the file with them.
    """
    path = folder / f"{file_name(device.device_kind)}.json"
    if not path.is_file():
        return None
    peak = json.loads(path.read_text(encoding="utf-8"))["parts"].get("peak", {}).get("result")
    if not peak:
        return None
    return {"flops": peak["flops"], "bandwidth": peak["bandwidth"], "file": path.name}
