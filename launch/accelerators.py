"""The accelerators that --accelerator can name, to price a sweep and to run its jobs on."""

import dataclasses
import math
import os
import re

from jmoe.cost.chips import CHIPS
from jmoe.errors import UserError

# The value of GKE's accelerator node label for each kind, from GKE's documentation of GPU and TPU node pools ("GPU
# types", "Plan TPUs in GKE"). None of these values has been tried on a cluster.
GKE = {
    "A100": "nvidia-a100-80gb",
    "H100": "nvidia-h100-80gb",  # a3-highgpu machines
    "H100-mega": "nvidia-h100-mega-80gb",  # a3-megagpu: the same GPU, twice the network
    "H200": "nvidia-h200-141gb",
    "B200": "nvidia-b200",
    "GB200": "nvidia-gb200",
    "A100-40GB": "nvidia-tesla-a100",
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
KIND_BY_LOWER_NAME = {kind.lower(): kind for kind in GKE}  # capitals make no difference
# The topologies of TPU slices that GKE has (its "Plan TPUs in GKE"). Two-dimensional: FLAT, with their machines and the
# chips of each. Three-dimensional: CUBES, and every AxBxC of multiples of 4 with A <= B <= C, up to MOST_CHIPS chips.
FLAT = {"1x1": (1, 1), "2x2": (1, 4), "2x4": (1, 8), "4x4": (4, 4), "4x8": (8, 4), "8x8": (16, 4), "8x16": (32, 4)}
FLAT |= {"16x16": (64, 4), "2x4/4": (2, 4)}
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
MOST_CHIPS = {"v4": 4_096, "v5p": 6_144, "tpu7x": 9_216}
DEVICES_OF_CHIP = {"tpu7x": 2}  # devices that jax sees in a chip, if not 1; jmoe.cost.chips describes one device
CHIP_OF = {"H100-mega": "H100"}  # the kind's name in jmoe.cost.chips, where it differs
GPUS_OF_MACHINE = {"GB200": 4}  # a4x-highgpu-4g; the others have 8
TPUS = ("v", "tpu")  # how their kinds begin
ARM = ("GB200",)  # machines with an Arm CPU, which GKE taints


@dataclasses.dataclass(frozen=True)
class Slice:
    """What one job runs on: `n_slices` times `n_hosts` machines of `chips_per_host` chips."""

    kind: str
    topology: str  # of a TPU slice, else ""
    n_slices: int
    n_hosts: int
    chips_per_host: int

    @property
    def n_devices(self) -> int:
        """The devices of all machines, as jax counts them."""
        return self.n_slices * self.n_hosts * self.chips_per_host * DEVICES_OF_CHIP.get(self.kind, 1)


def chip(text: str) -> str:
    """The kind of chip, a key of CHIPS, that --accelerator names with a size or without. UserError as for `parse`."""
    kind = parse(text).kind if ":" in text else _kind(text)
    return CHIP_OF.get(kind, kind)


def _kind(text: str) -> str:
    typed = text.partition(":")[0]
    kind = KIND_BY_LOWER_NAME.get(typed.lower())
    if kind is None:
        raise UserError(f"--accelerator={text}: {typed!r} is none of {', '.join(GKE)}")
    return kind


def peak_flops(kind: str) -> float:
    """FLOP/s of one chip, dense bfloat16."""
    return CHIPS[kind].flops * DEVICES_OF_CHIP.get(kind, 1)


def devices(text: str | None, n_slices: int = 1) -> tuple[int | None, float | None]:
    """How many devices --accelerator names, and the bytes of memory of each; None for what it does not say."""
    if not text:
        return None, None
    return parse(text, n_slices).n_devices if ":" in text else None, CHIPS[chip(text)].capacity


def tpu_slices(text: str | None, n_slices: int) -> int:
    """How many TPU slices a job of `n_slices` has; 1 on GPUs, whose machines one expert group may span."""
    return n_slices if text and _kind(text).startswith(TPUS) else 1


def n_chips(text: str | None, n_devices: int | None) -> int | None:
    """How many chips, as they are priced, `n_devices` of what --accelerator names are; None for None."""
    if n_devices is None or not text:
        return n_devices
    return n_devices // DEVICES_OF_CHIP.get(_kind(text), 1)


def host_devices() -> int:
    """The number of CPU devices that XLA_FLAGS asks for; 1 by default."""
    numbers = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(numbers[-1]) if numbers else 1


def parse(text: str, n_slices: int = 1) -> Slice:
    """The slice that --accelerator names: a TPU as v5e:4x4, GPUs as H100:8 for one machine or H100:2x8 for two. A 2x4
    slice of v5e or v6e exists in two forms: v5e:2x4 is one machine of eight chips, v5e:2x4/4 two of four. UserError
    where there is no such accelerator, or none of that size."""
    kind, size = _kind(text), text.partition(":")[2]
    is_tpu = kind.startswith(TPUS)
    if (machines := _tpus(kind, size) if is_tpu else _gpus(kind, size)) is None:
        raise UserError(f"--accelerator={text}: there is no such {kind}; there are {_shapes(kind)}")
    return Slice(kind, size.partition("/")[0] if is_tpu else "", n_slices, *machines)


def _shapes(kind: str) -> str:
    """The sizes in which an accelerator comes, in words."""
    if not kind.startswith(TPUS):
        n = GPUS_OF_MACHINE.get(kind, 8)
        return f"{kind}:1 to {kind}:{n} on one machine, and {kind}:MACHINESxGPUS, for example {kind}:2x{n}"
    if kind not in MOST_CHIPS:
        *listed, halves = [f"{kind}:{size}" for size in FLAT]
        return f"{', '.join(listed)}, and {halves} on two machines of four chips"
    listed = ", ".join(f"{kind}:{size}" for size in ("1x1x1",) * (kind == "tpu7x") + CUBES)
    return f"{listed}, and {kind}:AxBxC of multiples of 4, A <= B <= C, up to {MOST_CHIPS[kind]:,} chips"


def _gpus(kind: str, size: str) -> tuple[int, int] | None:
    """(machines, GPUs of each); None if there is no such size."""
    found = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)", size)
    return (int(found[1] or 1), int(found[2])) if found and int(found[2]) <= GPUS_OF_MACHINE.get(kind, 8) else None


def _tpus(kind: str, size: str) -> tuple[int, int] | None:
    """(machines, chips of each): one machine, or machines of four chips; None if there is no such slice."""
    if kind not in MOST_CHIPS:
        return FLAT.get(size)
    if (kind, size) == ("tpu7x", "1x1x1"):
        return 1, 1
    sizes = [int(part) for part in size.split("x")] if re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", size) else []
    n_chips, ascending = math.prod(sizes), sizes and sizes == sorted(sizes)
    cuboid = ascending and not any(part % 4 for part in sizes) and n_chips <= MOST_CHIPS[kind]
    return (n_chips // 4, 4) if size in CUBES or cuboid else None
