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
from fit.planning.grid import MeshRequest
from fit.shape import architecture

DIVISIBILITY: Json = json.loads(
    (pathlib.Path(architecture.__file__).parent / "divisibility.json").read_text(encoding="utf-8")
)
MODEL_AXES = (1, 2, 4, 8)  # sizes of the model axis: within a machine, whose links are fast

Ramp = tuple[tuple[int, int], ...]  # ((from token, tokens of a batch), ...)


@dataclasses.dataclass(frozen=True)
class Run:
    """What a mesh is chosen for.

    Attributes:
      shape: fields of config.model, n_experts as the trainer counts them.
      sequence: tokens in a row.
      ramp: the batches that the recipe asks for.
      group_tokens: tokens that share the experts' capacity, where the mesh leaves each device so many.
      flash: whether attention keeps no scores.
    """

    shape: Json
    sequence: int
    ramp: Ramp
    group_tokens: int
    flash: bool


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh, and how the trainer works on it. The trainer can start it.

    Attributes:
      data, expert, model: devices of the mesh's axes.
      remat: as config.remat.
      microbatch_tokens: tokens at once; 0 stands for the whole batch.
      group_tokens: as config.model.group_tokens.
      batch_tokens: the ramp, each batch a multiple of what the mesh must divide.
      device_bytes: memory of a device in its largest step.
      sent_bytes: what a device sends in a step of the largest batch.
      sending_share: how long that takes at the peak of the chips' links, over how long a step computes.
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

    @property
    def n_devices(self) -> int:
        """Devices of the mesh."""
        return self.data * self.expert * self.model


def choose(
    run: Run, chips: Chips, request: MeshRequest, slowness: Callable[[Layout], float] | None = None
) -> Layout | None:
    """Chooses a layout of those whose devices hold a step.

    Args:
      run: what to train.
      chips: what to train it on.
      request: what the user fixes.
      slowness: what is to be least, then the bytes sent and the memory taken. Without it, those alone.

    Returns:
      The layout; None where no devices hold a step.
    """
    limit = chips.room * chips.device_memory

    def cost(layout: Layout) -> tuple[float, ...]:
        """What is to be least."""
        if slowness is None:
            return layout.sent_bytes, layout.device_bytes
        return slowness(layout), layout.sent_bytes, layout.device_bytes

    candidates = (
        layout for mesh in meshes(run, chips.n_devices, request) for layout in _layouts(run, mesh, limit, request.remat)
    )
    return min(candidates, key=cost, default=None)


def meshes(run: Run, n_devices: int, request: MeshRequest) -> Iterator[tuple[int, int, int]]:
    """All meshes (data, expert, model) of so many devices that divide the model."""
    for model in MODEL_AXES if request.model is None else (request.model,):
        if n_devices % model:
            continue
        for expert in _divisors(n_devices // model) if request.expert is None else (request.expert,):
            data, rest = divmod(n_devices, model * expert)
            if not rest and not undivided(run.shape, run.sequence, (data, expert, model)):
                yield data, expert, model


def undivided(shape: Json, sequence: int, mesh: tuple[int, int, int]) -> list[tuple[str, int, str, int]]:
    """What a mesh must divide and does not.

    Args:
      shape: fields of config.model.
      sequence: tokens in a row.
      mesh: devices of the axes (data, expert, model).

    Returns:
      [(field, its value, axis, its size)].
    """
    size_of = dict(zip(("data", "expert", "model"), mesh, strict=True))
    has_narrow_experts = shape["n_experts"] > 1 and bool(shape.get("d_expert"))
    of_kinds = kinds(shape["n_experts"] > 1, has_narrow_experts, bool(shape.get("n_dense_blocks")))
    conflicts = []
    for rule in DIVISIBILITY["fields"]:
        (axis,) = rule["axes"]
        value = _value(shape, sequence, rule["field"])
        if rule["of"] in of_kinds and value % size_of[axis]:
            conflicts.append((rule["field"], value, axis, size_of[axis]))
    return conflicts


def kinds(is_mixture: bool, has_narrow_experts: bool, has_dense_blocks: bool) -> set[str]:
    """The kinds of models, as DIVISIBILITY calls them, that a model is of.

    Args:
      is_mixture: whether it has experts.
      has_narrow_experts: whether these have a width of their own.
      has_dense_blocks: whether some blocks of a mixture have none.
    """
    found = {"all"}
    if is_mixture:
        found.add("mixtures")
    if not has_narrow_experts or has_dense_blocks:
        found.add("layers of d_ff")
    return found


def _value(shape: Json, sequence: int, field: str) -> int:
    """The value of a field of DIVISIBILITY, the trainer's default where the shape leaves it out."""
    name = field.partition(".")[2]
    if name == "seq_len":
        return sequence
    if name == "n_kv_heads":
        return shape.get(name) or shape["n_heads"]
    if name == "d_expert":
        return shape.get(name, 0)
    return shape[name]


@functools.cache
def _divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


def _layouts(run: Run, mesh: tuple[int, int, int], limit: float, remat: str | None) -> Iterator[Layout]:
    """The layouts of a mesh that devices of `limit` bytes hold: for each remat the one with the most tokens at once."""
    data, expert, model = mesh
    group_tokens = group_of(run, data * expert)
    unit = data * expert * max(run.sequence, group_tokens)  # one is a multiple of the other
    batches = rounded(run.ramp, unit)
    first = batches[0][1]
    largest = batches[-1][1]
    for name in memory.REMAT if remat is None else (remat,):
        step = step_lib.Step(run.shape, run.sequence, mesh, name, run.flash)
        for tokens_at_once in (largest, *_parts(first, unit)):
            device_bytes = step.device_bytes(tokens_at_once, in_parts=tokens_at_once != largest)
            if device_bytes <= limit:
                yield Layout(
                    data=data,
                    expert=expert,
                    model=model,
                    remat=name,
                    microbatch_tokens=0 if tokens_at_once == largest else tokens_at_once,
                    group_tokens=group_tokens,
                    batch_tokens=batches,
                    device_bytes=device_bytes,
                    sent_bytes=step.sent_bytes(largest, tokens_at_once),
                )
                break


def _parts(batch: int, unit: int) -> Iterator[int]:
    """Multiples of `unit` that divide a batch, the largest first."""
    return (unit * n for n in reversed(_divisors(batch // unit)))


def group_of(run: Run, n_rows: int) -> int:
    """Tokens of a group, in whole rows.

    A group has as many tokens as the recipe asks for. It has fewer where the first batch leaves each of the mesh's
    n_rows devices that share its tokens fewer, and at least a row.
    """
    tokens_of_a_device = run.ramp[0][1] // n_rows
    rows = max(1, min(run.group_tokens, tokens_of_a_device) // run.sequence)
    return run.sequence * 2 ** int(math.log2(rows))


def rounded(ramp: Ramp, unit: int) -> Ramp:
    """A ramp whose batches are multiples of a unit and of the first batch, none smaller than the previous one."""
    steps: list[tuple[int, int]] = []
    for start, batch in ramp:
        divisor = steps[0][1] if steps else unit
        batch = divisor * max(1, round(batch / divisor))
        if not steps or batch > steps[-1][1]:
            steps.append((start, batch))
    return tuple(steps)
