"""The accelerators that --accelerator names: a sweep is priced by them, and its jobs run on them."""

import dataclasses
import math
import os
import re

from jmoe.cost.chips import CHIPS, DEVICES_OF_CHIP, GPUS_OF_MACHINE
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
KIND_BY_LOWER_NAME = {kind.lower(): kind for kind in GKE}  # case does not matter
# The topologies of TPU slices that GKE has (its "Plan TPUs in GKE"). FLAT holds the two-dimensional ones, each with
# (machines, chips of each). The three-dimensional ones are CUBES, and every AxBxC of multiples of 4 with A <= B <= C,
# up to MOST_CHIPS chips.
FLAT = {"1x1": (1, 1), "2x2": (1, 4), "2x4": (1, 8), "4x4": (4, 4), "4x8": (8, 4), "8x8": (16, 4), "8x16": (32, 4)}
FLAT |= {"16x16": (64, 4), "2x4/4": (2, 4)}
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
MOST_CHIPS = {"v4": 4_096, "v5p": 6_144, "tpu7x": 9_216}
CHIP_OF = {"H100-mega": "H100"}  # the kind's name in jmoe.cost.chips, where it differs
TPUS = ("v", "tpu")  # how their kinds begin
ARM = ("GB200",)  # machines with an Arm CPU, which GKE taints


@dataclasses.dataclass(frozen=True)
class Slice:
    """The chips of one job: `n_slices` times `n_hosts` machines of `chips_per_host` chips.

    Attributes:
      kind: The kind of chip, a key of GKE.
      topology: That of a TPU slice, such as "4x4"; "" for GPUs.
      n_slices: Slices of the job; for GPUs, groups of machines.
      n_hosts: Machines of a slice.
      chips_per_host: Chips of a machine.
    """

    kind: str
    topology: str
    n_slices: int
    n_hosts: int
    chips_per_host: int

    @property
    def n_devices(self) -> int:
        """The devices of all machines, as jax counts them."""
        return self.n_slices * self.n_hosts * self.chips_per_host * DEVICES_OF_CHIP.get(self.kind, 1)


def chip(text: str) -> str:
    """The kind of chip, a key of CHIPS, that --accelerator names with a size or without.

    Raises:
      UserError: As `parse` does.
    """
    kind = parse(text).kind if ":" in text else _kind(text)
    return CHIP_OF.get(kind, kind)


def _kind(text: str) -> str:
    """The kind, a key of GKE, at the beginning of --accelerator's value; UserError if there is no such kind."""
    typed = text.partition(":")[0]
    kind = KIND_BY_LOWER_NAME.get(typed.lower())
    if kind is None:
        raise UserError(f"--accelerator={text}: {typed!r} is none of {', '.join(GKE)}")
    return kind


def peak_flops(kind: str) -> float:
    """The peak FLOP/s of one chip in dense bfloat16."""
    return CHIPS[kind].flops * DEVICES_OF_CHIP.get(kind, 1)


def devices(text: str | None, n_slices: int = 1) -> tuple[int | None, float | None]:
    """How many devices --accelerator names, and the bytes of memory of each; None for what it does not say."""
    if not text:
        return None, None
    n_devices = parse(text, n_slices).n_devices if ":" in text else None
    return n_devices, CHIPS[chip(text)].capacity


def tpu_slices(text: str | None, n_slices: int) -> int:
    """How many TPU slices a job of `n_slices` has; 1 on GPUs, whose machines one expert group may span."""
    on_tpus = bool(text) and _kind(text).startswith(TPUS)
    return n_slices if on_tpus else 1


def n_chips(text: str | None, n_devices: int | None) -> int | None:
    """How many chips, as they are priced, make up `n_devices` of --accelerator; None for None."""
    if n_devices is None or not text:
        return n_devices
    return n_devices // DEVICES_OF_CHIP.get(_kind(text), 1)


def host_devices() -> int:
    """The number of CPU devices that XLA_FLAGS asks for; 1 by default."""
    numbers = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(numbers[-1]) if numbers else 1


def parse(text: str, n_slices: int = 1) -> Slice:
    """The slice that --accelerator names.

    A 2x4 slice of v5e or v6e exists in two forms: v5e:2x4 is one machine of eight chips, v5e:2x4/4 two of four.

    Args:
      text: A TPU slice such as v5e:4x4, or GPUs: H100:8 for one machine, H100:2x8 for two.
      n_slices: Slices of the job.

    Raises:
      UserError: There is no such accelerator, or none of that size.
    """
    kind = _kind(text)
    size = text.partition(":")[2]
    if kind.startswith(TPUS):
        topology = size.partition("/")[0]
        machines = _tpu_machines(kind, size)
    else:
        topology = ""
        machines = _gpu_machines(kind, size)
    if machines is None:
        raise UserError(f"--accelerator={text}: there is no such {kind}; there are {_shapes(kind)}")
    n_hosts, chips_per_host = machines
    return Slice(kind, topology, n_slices, n_hosts, chips_per_host)


def _shapes(kind: str) -> str:
    """The sizes in which an accelerator comes, in words."""
    if not kind.startswith(TPUS):
        n = GPUS_OF_MACHINE.get(kind, 8)
        return f"{kind}:1 to {kind}:{n} on one machine, and {kind}:MACHINESxGPUS, for example {kind}:2x{n}"
    if kind not in MOST_CHIPS:
        *listed, halves = [f"{kind}:{size}" for size in FLAT]
        return f"{', '.join(listed)}, and {halves} on two machines of four chips"
    cubes = ("1x1x1", *CUBES) if kind == "tpu7x" else CUBES
    listed = ", ".join(f"{kind}:{size}" for size in cubes)
    return f"{listed}, and {kind}:AxBxC of multiples of 4, A <= B <= C, up to {MOST_CHIPS[kind]:,} chips"


def _gpu_machines(kind: str, size: str) -> tuple[int, int] | None:
    """(machines, GPUs of each); None if there is no such size."""
    match = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)", size)
    if match is None or int(match[2]) > GPUS_OF_MACHINE.get(kind, 8):
        return None
    return int(match[1] or 1), int(match[2])


def _tpu_machines(kind: str, size: str) -> tuple[int, int] | None:
    """(machines, chips of each): one machine, or machines of four chips; None if there is no such slice."""
    if kind not in MOST_CHIPS:
        return FLAT.get(size)
    if (kind, size) == ("tpu7x", "1x1x1"):
        return 1, 1
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", size):
        return None
    sides = [int(side) for side in size.split("x")]
    n_chips = math.prod(sides)
    ascending = sides == sorted(sides)
    is_cuboid = ascending and all(side % 4 == 0 for side in sides) and n_chips <= MOST_CHIPS[kind]
    return (n_chips // 4, 4) if size in CUBES or is_cuboid else None
