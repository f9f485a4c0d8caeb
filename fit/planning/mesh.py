"""How chips share the training of a planned model: the mesh, rematerialization, tokens at once.

The trainer starts what this module chooses: both read what a mesh must divide from fit/shape/divisibility.json.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array, Json
from fit.model import layout as layout_lib
from fit.model import step_cost
from fit.model.efficiencies import Calibration
from fit.model.shape import ModelShape
from fit.planning import grid
from fit.planning.constraints import Chips
from fit.planning.grid import MeshRequest
from fit.shape import architecture

DIVISIBILITY: Json = json.loads(
    (pathlib.Path(architecture.__file__).parent / "divisibility.json").read_text(encoding="utf-8")
)
GROUP_TOKENS = 8192  # tokens that share the experts' capacity by the recipe of the paper's runs

Ramp = tuple[tuple[int, int], ...]  # ((from token, tokens of a batch), ...)


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run, for which a mesh is chosen.

    Attributes:
      shape: fields of config.model, n_experts as the trainer counts them.
      sequence: tokens in a row.
      ramp: the batches of the recipe.
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
      sent_bytes: bytes that a device sends in a step of the largest batch.
      sending_share: seconds of sending them at the peak of the chips' links, over seconds of computing a step.
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
    run: Run, chips: Chips, request: MeshRequest, calibration: Calibration | None = None
) -> tuple[Layout, float] | None:
    """Chooses a layout of those whose devices hold a step.

    For each mesh and each remat it considers the most tokens at once that devices hold.

    Args:
      run: the training run.
      chips: the chips to train on.
      request: the sizes and the remat that the user fixes.
      calibration: the efficiencies of the chips. With them, the fastest layout is chosen, then that of the least bytes
        sent and the least memory. Without them, the least bytes sent and the least memory alone decide.

    Returns:
      (the layout, tokens per second of all chips, NaN without a calibration); None where no devices hold a step.
    """
    options = list(_options(run, chips.n_devices, request))
    if not options:
        return None
    remats = np.array(layout_lib.REMATS if request.remat is None else (request.remat,))[:, None]
    sizes = np.array([option.mesh for option in options]).T
    batch = np.array([option.batches[-1][1] for option in options])
    at_once = np.array([option.tokens_at_once for option in options])
    layouts = layout_lib.Layout(
        batch_tokens=batch,
        sequence=run.sequence,
        data=sizes[0],
        expert=sizes[1],
        model=sizes[2],
        microbatch_tokens=at_once,
        remat=remats,
        flash=run.flash,
    )
    shape = ModelShape.of_config(run.shape)
    counts = step_cost.counts_on(shape, layouts, chips.chip)
    device_bytes = np.asarray(counts.device_bytes)
    fitting = _most_at_once(device_bytes <= chips.room * chips.device_memory, sizes)
    if not fitting:
        return None
    sent_bytes = np.asarray(counts.sent_bytes)
    seconds = np.full(device_bytes.shape, np.nan)
    if calibration is not None:
        seconds = np.asarray(step_cost.timed(counts, chips.chip, calibration.efficiencies(chips.kind)).seconds)

    def cost(index: tuple[int, int]) -> tuple[float, ...]:
        """The numbers of a layout that are minimized, in this order."""
        numbers = float(sent_bytes[index]), float(device_bytes[index])
        return numbers if calibration is None else (float(seconds[index] / batch[index[1]]), *numbers)

    best = min(fitting, key=cost)
    option = options[best[1]]
    data, expert, model = option.mesh
    largest = option.batches[-1][1]
    layout = Layout(
        data=data,
        expert=expert,
        model=model,
        remat=str(remats[best[0], 0]),
        microbatch_tokens=0 if option.tokens_at_once == largest else option.tokens_at_once,
        group_tokens=group_of(run, data * expert),
        batch_tokens=option.batches,
        device_bytes=float(device_bytes[best]),
        sent_bytes=float(sent_bytes[best]),
    )
    return layout, float(largest / seconds[best])


def _most_at_once(fits: Array, sizes: Array) -> list[tuple[int, int]]:
    """Indices (remat, option), in the order of the options, of the first option of each mesh that fits.

    Args:
      fits: boolean [n_remats, n_options].
      sizes: of the meshes [3, n_options]; options of one mesh follow one another.
    """
    is_new = np.concatenate([[True], (sizes[:, 1:] != sizes[:, :-1]).any(axis=0)])
    mesh_of_option = np.cumsum(is_new)
    firsts = []
    for remat in range(len(fits)):
        options = np.flatnonzero(fits[remat])
        _, first = np.unique(mesh_of_option[options], return_index=True)
        firsts += [(int(mesh_of_option[option]), remat, int(option)) for option in options[first]]
    return [(remat, option) for _, remat, option in sorted(firsts)]


@dataclasses.dataclass(frozen=True)
class _Option:
    """A mesh (data, expert, model), the batches on it, and tokens at once."""

    mesh: tuple[int, int, int]
    batches: Ramp
    tokens_at_once: int


def _options(run: Run, n_devices: int, request: MeshRequest) -> Iterator[_Option]:
    """All meshes with all numbers of tokens at once, the most first: the largest batch, or a part of the first."""
    for mesh in meshes(run, n_devices, request):
        data, expert, _ = mesh
        unit = data * expert * max(run.sequence, group_of(run, data * expert))  # one is a multiple of the other
        batches = rounded(run.ramp, unit)
        largest = batches[-1][1]
        for tokens_at_once in (largest, *_parts(batches[0][1], unit)):
            yield _Option(mesh, batches, tokens_at_once)


def meshes(run: Run, n_devices: int, request: MeshRequest) -> Iterator[tuple[int, int, int]]:
    """All meshes (data, expert, model) of so many devices that divide the model."""
    for mesh in grid.meshes(n_devices, grid.MODEL_AXES, request.expert, request.model):
        if not undivided(run.shape, run.sequence, mesh):
            yield mesh


def undivided(shape: Json, sequence: int, mesh: tuple[int, int, int]) -> list[tuple[str, int, str, int]]:
    """Sizes of a model that a mesh must divide and does not.

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
    of_model = {"all"}
    if is_mixture:
        of_model.add("mixtures")
    if not has_narrow_experts or has_dense_blocks:
        of_model.add("layers of d_ff")
    return of_model


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


def _parts(batch: int, unit: int) -> Iterator[int]:
    """Multiples of `unit` that divide a batch, the largest first."""
    return (unit * n for n in reversed(grid.divisors(batch // unit)))


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
