"""How chips share the training of a planned model: the mesh, what the backward pass computes again, tokens at once.

The trainer starts what this module chooses: both read what a mesh must divide from fit/shape/divisibility.json.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Iterator

from fit.aliases import Json
from fit.planning import memory
from fit.planning import step as step_lib
from fit.planning.constraints import Chips
from fit.shape import architecture

DIVISIBILITY: Json = json.loads(
    (pathlib.Path(architecture.__file__).parent / "divisibility.json").read_text(encoding="utf-8")
)
MODEL_AXES = (1, 2, 4, 8)  # sizes of the model axis: within a machine, whose links are fast
ROOM = 0.85  # share of a device's memory that a planned step may take: the estimate is within 15% of a compiled one
GROUP_TOKENS = 8192  # tokens that share the experts' capacity, where the mesh leaves each device so many


@dataclasses.dataclass(frozen=True)
class Layout:
    """A choice that the trainer can start.

    data, expert, model: sizes of the mesh's axes. remat: as config.remat. microbatch_tokens: tokens at once, 0 for the
    whole batch. group_tokens: as config.model.group_tokens. batch_tokens: ((from token, tokens of a batch), ...), each
    a multiple of what the mesh divides. device_bytes: memory of a device in its largest step. sent_bytes: what a device
    sends in a step of the largest batch.
    """

    data: int
    expert: int
    model: int
    remat: str
    microbatch_tokens: int
    group_tokens: int
    batch_tokens: tuple[tuple[int, int], ...]
    device_bytes: float
    sent_bytes: float


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a user asked of the mesh: None where it is left to the plan."""

    expert: int | None = None
    model: int | None = None
    remat: str | None = None


def choose(
    shape: Json, sequence: int, ramp: tuple[tuple[int, int], ...], chips: Chips, asked: Asked, flash: bool
) -> Layout | None:
    """The layout that sends the fewest bytes, of those whose devices hold a step; None where none does.

    Args:
      shape: fields of config.model; n_experts as the trainer counts them.
      sequence: tokens in a row.
      ramp: the batches that a recipe wants, which are rounded to multiples that the mesh divides.
      flash: whether attention keeps no scores.
    """
    best = None
    limit = ROOM * chips.device_memory
    if memory.STATE * step_lib.parameters(shape) / chips.n_devices > limit:
        return None
    for data, expert, model in meshes(shape, sequence, chips.n_devices, asked):
        for one in _layouts(shape, sequence, ramp, (data, expert, model), limit, asked.remat, flash):
            if best is None or (one.sent_bytes, one.device_bytes) < (best.sent_bytes, best.device_bytes):
                best = one
    return best


def meshes(shape: Json, sequence: int, n_devices: int, asked: Asked) -> Iterator[tuple[int, int, int]]:
    """(data, expert, model) of all meshes of so many devices that divide the model."""
    for model in MODEL_AXES if asked.model is None else (asked.model,):
        if n_devices % model:
            continue
        for expert in _divisors(n_devices // model) if asked.expert is None else (asked.expert,):
            data, rest = divmod(n_devices, model * expert)
            if not rest and not undivided(shape, sequence, (data, expert, model)):
                yield data, expert, model


def undivided(shape: Json, sequence: int, mesh: tuple[int, int, int]) -> list[tuple[str, int, str, int]]:
    """(field, its value, axis, its size) of all that a mesh (data, expert, model) does not divide."""
    sizes = dict(zip(("data", "expert", "model"), mesh))
    kinds = _kinds(shape)
    found = []
    for rule in DIVISIBILITY["fields"]:
        (axis,) = rule["axes"]
        value = _value(shape, sequence, rule["field"])
        if rule["of"] in kinds and value % sizes[axis]:
            found.append((rule["field"], value, axis, sizes[axis]))
    return found


def _kinds(shape: Json) -> set[str]:
    """The kinds of models, as DIVISIBILITY calls them, that a shape is of."""
    kinds = {"all"}
    if shape["n_experts"] > 1:
        kinds.add("mixtures")
    if not shape.get("d_expert") or shape.get("n_dense_blocks"):
        kinds.add("layers of d_ff")
    return kinds


def _value(shape: Json, sequence: int, field: str) -> int:
    """A field of DIVISIBILITY, with what it is where the shape leaves it out."""
    name = field.partition(".")[2]
    if name == "seq_len":
        return sequence
    if name == "n_kv_heads":
        return shape.get(name) or shape["n_heads"]
    return shape.get(name, 0) if name == "d_expert" else shape[name]


@functools.cache
def _divisors(n: int) -> list[int]:
    small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


def _layouts(
    shape: Json,
    sequence: int,
    ramp: tuple[tuple[int, int], ...],
    mesh: tuple[int, int, int],
    limit: float,
    remat: str | None,
    flash: bool,
) -> Iterator[Layout]:
    """The layouts of a mesh that devices of `limit` bytes hold: for each remat the one with the most tokens at once."""
    data, expert, model = mesh
    n_rows = data * expert
    group_tokens = group_of(sequence, ramp[0][1], n_rows)
    unit = n_rows * math.lcm(sequence, group_tokens)
    batches = rounded(ramp, unit)
    first, largest = batches[0][1], max(batch for _, batch in batches)
    for name in memory.REMAT if remat is None else (remat,):
        step = step_lib.Step(shape, sequence, mesh, name, flash)
        for at_once in (largest, *_parts(first, unit)):
            n_bytes = step.device_bytes(at_once, several=at_once != largest)
            if n_bytes <= limit:
                micro = 0 if at_once == largest else at_once
                sent = step.sent_bytes(largest, at_once)
                yield Layout(*mesh, name, micro, group_tokens, batches, n_bytes, sent)
                break


def _parts(batch: int, unit: int) -> Iterator[int]:
    """Multiples of `unit` that divide a batch, the largest first."""
    return (unit * n for n in reversed(_divisors(batch // unit)))


def group_of(sequence: int, batch: int, n_rows: int) -> int:
    """Tokens of a group: GROUP_TOKENS in whole rows, or fewer rows where a batch leaves each device fewer."""
    rows = max(1, min(GROUP_TOKENS, batch // n_rows) // sequence)
    return sequence * 2 ** int(math.log2(rows))


def rounded(ramp: tuple[tuple[int, int], ...], unit: int) -> tuple[tuple[int, int], ...]:
    """A ramp of batches that are multiples of a unit, and of the first batch, none below the one before."""
    found: list[tuple[int, int]] = []
    for start, batch in ramp:
        of = found[0][1] if found else unit
        batch = of * max(1, round(batch / of))
        if not found or batch > found[-1][1]:
            found.append((start, batch))
    return tuple(found)
