"""Peaks of accelerators, published and measured, for MFU and for what fits where. One jax device is one chip.

FLOP/s are dense, of bfloat16; sizes are in bytes, rates in bytes a second.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Protocol

from jmoe.config.schema import PACKAGE

GiB = 2**30
MEASURED = pathlib.Path(__file__).parents[2] / "results" / "accelerators"  # what benchmarks/accelerator writes


class Device(Protocol):
    """The fields of a jax.Device that this module reads."""

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


# Plans by fit read the same file, and neither package imports the other.
_ROWS = json.loads((PACKAGE.parent / "fit" / "model" / "chips.json").read_text(encoding="utf-8"))["chips"]
DEVICES_OF_CHIP = {row["kind"]: row.get("devices", 1) for row in _ROWS}  # that jax sees
GPUS_OF_MACHINE = {row["kind"]: row.get("machine", 8) for row in _ROWS}


def _published() -> dict[str, Chip]:
    """The peaks of one device of each kind of chip. A TensorCore of a tpu7x is a device, half of the chip."""
    chips = {}
    for row in _ROWS:
        devices = row.get("devices", 1)
        chips[row["kind"]] = Chip(
            flops=row["flops"] / devices,
            capacity=row["memory"] // devices,
            bandwidth=row["bandwidth"] / devices,
            network=row["network"] / devices,
            source=row["source"] if devices == 1 else f"{row['source']}, half of a chip",
        )
    return chips


CHIPS = _published()
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
