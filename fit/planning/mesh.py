"""How chips share the training of a planned model: the mesh, what the backward pass computes again, tokens at once.

The trainer starts what this module chooses: both read what a mesh must divide from fit/shape/divisibility.json.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Callable, Iterator

from fit.aliases import Json
from fit.planning import memory
from fit.planning import step as step_lib
from fit.planning.constraints import Chips
from fit.shape import architecture

DIVISIBILITY: Json = json.loads(
    (pathlib.Path(architecture.__file__).parent / "divisibility.json").read_text(encoding="utf-8")
)
MODEL_AXES = (1, 2, 4, 8)  # sizes of the model axis: within a machine, whose links are fast

Ramp = tuple[tuple[int, int], ...]  # ((from token, tokens of a batch), ...)


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a user asked of the mesh: None where it is left to the plan."""

    expert: int | None = None
    model: int | None = None
    remat: str | None = None


@dataclasses.dataclass(frozen=True)
class Run:
    """What a mesh is chosen for.

    shape: fields of config.model, n_experts as the trainer counts them. sequence: tokens in a row. ramp: the batches
    that the recipe wants. group_tokens: tokens that share the experts' capacity, where the mesh leaves each device so
    many. flash: whether attention keeps no scores.
    """

    shape: Json
    sequence: int
    ramp: Ramp
    group_tokens: int
    flash: bool


@dataclasses.dataclass(frozen=True)
class Layout:
    """A choice that the trainer can start.

    data, expert, model: sizes of the mesh's axes. remat: as config.remat. microbatch_tokens: tokens at once, 0 for the
    whole batch. group_tokens: as config.model.group_tokens. batch_tokens: the ramp, each batch a multiple of what the
    mesh divides. device_bytes: memory of a device in its largest step. sent_bytes: what a device sends in a step of the
    largest batch. sending_share: how long that takes at the peak of the chips' links, over how long a step computes.
    """

    data: int
    expert: int
    model: int
    remat: str
    microbatch_tokens: int
    group_tokens: int
    batch_tokens: Ramp
    device_bytes: float
    sent_bytes: float
    sending_share: float = 0.0


def choose(run: Run, chips: Chips, asked: Asked, slowness: Callable[[Layout], float] | None = None) -> Layout | None:
    """The layout of the least `slowness`, of those whose devices hold a step; without it, the layout that sends the
    fewest bytes. None where no devices hold one."""
    limit = chips.room * chips.device_memory
    found = (one for sizes in meshes(run, chips.n_devices, asked) for one in _layouts(run, sizes, limit, asked.remat))

    def key(one: Layout) -> tuple[float, ...]:
        """What is to be least."""
        sent = one.sent_bytes, one.device_bytes
        return sent if slowness is None else (slowness(one), *sent)

    return min(found, key=key, default=None)


def meshes(run: Run, n_devices: int, asked: Asked) -> Iterator[tuple[int, int, int]]:
    """(data, expert, model) of all meshes of so many devices that divide the model."""
    for model in MODEL_AXES if asked.model is None else (asked.model,):
        if n_devices % model:
            continue
        for expert in _divisors(n_devices // model) if asked.expert is None else (asked.expert,):
            data, rest = divmod(n_devices, model * expert)
            if not rest and not undivided(run.shape, run.sequence, (data, expert, model)):
                yield data, expert, model


def undivided(shape: Json, sequence: int, sizes: tuple[int, int, int]) -> list[tuple[str, int, str, int]]:
    """(field, its value, axis, its size) of all that a mesh (data, expert, model) does not divide."""
    size_of = dict(zip(("data", "expert", "model"), sizes))
    kinds = _kinds(shape)
    found = []
    for rule in DIVISIBILITY["fields"]:
        (axis,) = rule["axes"]
        value = _value(shape, sequence, rule["field"])
        if rule["of"] in kinds and value % size_of[axis]:
            found.append((rule["field"], value, axis, size_of[axis]))
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


def _layouts(run: Run, sizes: tuple[int, int, int], limit: float, remat: str | None) -> Iterator[Layout]:
    """The layouts of a mesh that devices of `limit` bytes hold: for each remat the one with the most tokens at once."""
    n_rows = sizes[0] * sizes[1]
    group_tokens = group_of(run, n_rows)
    unit = n_rows * max(run.sequence, group_tokens)  # one is a multiple of the other
    batches = rounded(run.ramp, unit)
    first, largest = batches[0][1], batches[-1][1]
    for name in memory.REMAT if remat is None else (remat,):
        step = step_lib.Step(run.shape, run.sequence, sizes, name, run.flash)
        for at_once in (largest, *_parts(first, unit)):
            n_bytes = step.device_bytes(at_once, several=at_once != largest)
            if n_bytes <= limit:
                microbatch = 0 if at_once == largest else at_once
                sent = step.sent_bytes(largest, at_once)
                yield Layout(*sizes, name, microbatch, group_tokens, batches, n_bytes, sent)
                break


def _parts(batch: int, unit: int) -> Iterator[int]:
    """Multiples of `unit` that divide a batch, the largest first."""
    return (unit * n for n in reversed(_divisors(batch // unit)))


def group_of(run: Run, n_rows: int) -> int:
    """Tokens of a group: those of the recipe in whole rows, or fewer rows where the first batch leaves each device
    fewer; at least a row."""
    on_each = run.ramp[0][1] // n_rows
    rows = max(1, min(run.group_tokens, on_each) // run.sequence)
    return run.sequence * 2 ** int(math.log2(rows))


def rounded(ramp: Ramp, unit: int) -> Ramp:
    """A ramp of batches that are multiples of a unit, and of the first batch, none below the one before."""
    found: list[tuple[int, int]] = []
    for start, batch in ramp:
        of = found[0][1] if found else unit
        batch = of * max(1, round(batch / of))
        if not found or batch > found[-1][1]:
            found.append((start, batch))
    return tuple(found)
