"""Chips to train and serve on, and their peaks, from chips.json, which the trainer reads too."""

import dataclasses
import json
import math
import pathlib

from fit.aliases import Json

GPU_SILICON = ("Ampere", "Hopper", "Blackwell")


@dataclasses.dataclass(frozen=True)
class Chip:
    """The peaks of one chip, by its maker's data sheet.

    Attributes:
      kind: its name.
      silicon: its architecture: "Hopper" of H100 and H200, the kind itself of a TPU.
      flops: bfloat16 FLOP/s, dense.
      memory: bytes.
      bandwidth: bytes/s of that memory.
      network: bytes/s that leave over all fast links (ICI, NVLink), one way.
      domain: chips that the fast links join.
      between: bytes/s of a chip to another domain.
      devices: devices that the trainer sees in a chip.
      domain_source: where domain and between are from. Those of TPUs between slices are assumed, as it says.
      machine: GPUs of a machine.
      watts: the most power of a chip; 0 where its maker does not publish it.
      gathers_between: whether weights are gathered over all machines (one FSDP group), and not only within a slice of
        TPUs.
    """

    kind: str
    silicon: str
    flops: float
    memory: float
    bandwidth: float
    network: float = math.inf
    domain: int = 1
    between: float = math.inf
    devices: int = 1
    domain_source: str = ""
    machine: int = 8
    watts: float = 0.0
    gathers_between: bool = False


def _read() -> dict[str, Chip]:
    """The chips of chips.json whose domain is known, by their kind."""
    path = pathlib.Path(__file__).parent / "chips.json"
    rows: list[Json] = json.loads(path.read_text(encoding="utf-8"))["chips"]
    names = [field.name for field in dataclasses.fields(Chip)]
    chips = {}
    for row in rows:
        if "domain" in row:
            known = dict(silicon=row["kind"]) | row
            known["gathers_between"] = known["silicon"] in GPU_SILICON
            chips[row["kind"]] = Chip(**{name: known[name] for name in names if name in known})
    return chips


CHIPS = _read()
