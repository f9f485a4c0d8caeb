"""What a sweep can be priced for and sent to, as --accelerator names it."""

import dataclasses
import math

from jmoe.chips import CHIPS
from jmoe.cli import UserError

# The value of GKE's node label (its documentation of GPU and TPU node pools) for each of jmoe.chips.
GKE = {
    "A100": "nvidia-a100-80gb",
    "H100": "nvidia-h100-80gb",
    "H200": "nvidia-h200-141gb",
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
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
    def is_tpu(self) -> bool:
        return self.kind.startswith("v")

    @property
    def peak_flops(self) -> float:
        """FLOP/s of one chip, dense bfloat16."""
        return CHIPS[self.kind].flops


def parse(text: str, n_slices: int = 1) -> Slice:
    """The slice that --accelerator names: a TPU as v5e:4x4, GPUs as H100:8 for one machine or H100:2x8 for two.

    Raises:
      UserError: no such accelerator, or a size that is none.
    """
    kind, _, size = text.partition(":")
    if kind not in GKE:
        raise UserError(f"--accelerator={text}: {kind!r} is none of {', '.join(GKE)}")
    try:
        sizes = [int(part) for part in (size or "1").split("x")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or n_slices < 1:
        raise UserError(f"--accelerator={text} with --n_slices={n_slices}: expected a size such as v5e:4x4 or H100:2x8")
    if not kind.startswith("v"):
        n_hosts, chips = sizes if len(sizes) == 2 else (1, math.prod(sizes))
        return Slice(kind, "", n_slices, n_hosts, chips)
    chips = math.prod(sizes)
    per_host = chips if chips <= 4 or (chips == 8 and kind in ("v5e", "v6e")) else 4  # one host, or hosts of four chips
    return Slice(kind, size or "1x1", n_slices, max(1, chips // per_host), per_host)
