"""Transfers between the devices of a compiled program: who takes part, and how many bytes leave a device."""

import dataclasses
import math
import re

COLLECTIVES = ("all-to-all", "ragged-all-to-all", "all-gather", "reduce-scatter", "all-reduce", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A transfer between devices."""

    kind: str
    source: str  # the place in our program that it comes from
    times: int  # in one run of the program
    group: int  # devices that take part; slices, of a transfer between slices
    bytes: int  # that leave one device each time, by the usual ring algorithm


def group_size(attributes: str) -> int:
    """Devices in one replica group, in any of the notations {{0,1},{2,3}}, [2,4]<=[8] and mesh['x'=2,'y'=4] {'y'}."""
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", attributes)
    if listed:
        return len(listed[1].split(","))
    tiled = re.search(r"replica_groups=\[\d+,(\d+)\]", attributes)
    if tiled:
        return int(tiled[1])
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes)
    if mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", mesh[2])  # 'x', or 'x':(1)2: a part of size 2 of the axis x
        return math.prod(int(part) if part else int(sizes[name]) for name, part in axes)
    return 1


def sent_bytes(kind: str, size: int, group: int) -> int:
    """Bytes that leave one device of a group in a collective whose operands on a device have `size` bytes.

    By the ring algorithm. All devices send 1/group of what they have to each other one: an all-gather's operand is
    such a part already, and an all-reduce is a reduce-scatter and an all-gather.
    """
    if kind == "collective-permute":
        return size
    if kind == "all-gather":
        return size * (group - 1)
    if kind == "all-reduce":
        return 2 * size * (group - 1) // group
    return size * (group - 1) // group
