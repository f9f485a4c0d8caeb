"""Accelerators that a sweep can be priced for and sent to: peak rates, and what GKE calls them."""

import dataclasses
import math

from jmoe.cli import UserError


@dataclasses.dataclass(frozen=True)
class Accelerator:
    peak_flops: float  # FLOP/s of one chip, dense bfloat16
    gke: str  # value of GKE's node label
    is_tpu: bool = False


# Peaks are the makers' data sheets; labels are from GKE's documentation of GPU and TPU node pools.
ACCELERATORS = {
    "a100": Accelerator(312e12, "nvidia-tesla-a100"),
    "h100": Accelerator(989e12, "nvidia-h100-80gb"),
    "h200": Accelerator(989e12, "nvidia-h200-141gb"),
    "b200": Accelerator(2250e12, "nvidia-b200"),
    "v4": Accelerator(275e12, "tpu-v4-podslice", True),
    "v5e": Accelerator(197e12, "tpu-v5-lite-podslice", True),
    "v5p": Accelerator(459e12, "tpu-v5p-slice", True),
    "v6e": Accelerator(918e12, "tpu-v6e-slice", True),
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """What one job runs on: `n_slices` times `n_hosts` machines of `chips_per_host` chips."""

    kind: str
    topology: str  # of a TPU slice, else ""
    n_slices: int
    n_hosts: int
    chips_per_host: int

    @property
    def accelerator(self) -> Accelerator:
        return ACCELERATORS[self.kind]


def parse(text: str, n_slices: int = 1) -> Slice:
    """The slice that --accelerator names: a TPU as v5e:4x4, GPUs as h100:8 for one machine or h100:2x8 for two.

    Raises:
      UserError: no such accelerator, or a size that is none.
    """
    kind, _, size = text.partition(":")
    if kind not in ACCELERATORS:
        raise UserError(f"--accelerator={text}: {kind!r} is none of {', '.join(ACCELERATORS)}")
    try:
        sizes = [int(part) for part in (size or "1").split("x")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or n_slices < 1:
        raise UserError(f"--accelerator={text} with --n_slices={n_slices}: expected a size such as v5e:4x4 or h100:2x8")
    if not ACCELERATORS[kind].is_tpu:
        n_hosts, chips = sizes if len(sizes) == 2 else (1, math.prod(sizes))
        return Slice(kind, "", n_slices, n_hosts, chips)
    chips = math.prod(sizes)
    per_host = chips if chips <= 4 or (chips == 8 and kind in ("v5e", "v6e")) else 4  # one host, or hosts of four chips
    return Slice(kind, size or "1x1", n_slices, max(1, chips // per_host), per_host)
