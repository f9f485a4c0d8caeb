"""What a plan costs on chips: hours, dollars, the memory that training takes, and how fast the model answers."""

import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from fit.aliases import Floats, Json, Numbers
from fit.errors import UserError
from fit.lawbook.lawfile import Law
from fit.planning import memory, optimum
from fit.planning.constraints import Constraints
from fit.shape.architecture import Architecture
from fit.words import sentences

GiB = 2**30
MFU = 0.4  # share of the chips' peak that training reaches, unless one is given


@dataclasses.dataclass(frozen=True)
class Chip:
    """flops: bfloat16 FLOP/s, dense. memory: bytes. bandwidth: bytes a second of that memory."""

    flops: float
    memory: float
    bandwidth: float


# One chip each, by the makers' data sheets: cloud.google.com/tpu/docs, NVIDIA's A100, H100, H200, DGX B200 (an eighth
# of it) and GB200 NVL72 (a 72nd).
CHIPS = {
    "H100": Chip(989e12, 80 * GiB, 3350e9),
    "H200": Chip(989e12, 141e9, 4800e9),
    "B200": Chip(2250e12, 180e9, 8000e9),
    "GB200": Chip(2500e12, 186e9, 8000e9),
    "A100": Chip(312e12, 80 * GiB, 2039e9),
    "v4": Chip(275e12, 32 * GiB, 1228e9),
    "v5e": Chip(197e12, 16 * GiB, 819e9),
    "v5p": Chip(459e12, 95 * GiB, 2765e9),
    "v6e": Chip(918e12, 32 * GiB, 1638e9),
    "tpu7x": Chip(2307e12, 192 * GiB, 7380e9),
}


@dataclasses.dataclass(frozen=True)
class Mesh:
    """How the chips share the training: `expert` and `model` are sizes of these axes, the data axis has the rest.
    remat: a name in memory.REMAT."""

    expert: int = 1
    model: int = 1
    remat: str = "full"


@dataclasses.dataclass(frozen=True)
class Chips:
    """`count` chips of a kind to train on. mfu: a number, or {n_experts: number}. dollars_per_hour: of one chip, or
    None. devices: chips of the same kind that serve the trained model together. mesh: what to cost the training on."""

    kind: str
    count: int
    mfu: float | dict = MFU
    dollars_per_hour: float | None = None
    devices: int = 1
    mesh: Mesh | None = None

    @property
    def chip(self) -> Chip:
        """The Chip of this kind."""
        return CHIPS[self.kind]

    @property
    def memory(self) -> float:
        """Bytes of all of them."""
        return self.count * self.chip.memory

    def least_bytes(self, architecture: Architecture, d_model: Numbers, n_experts: Numbers) -> Numbers:
        """Bytes over all chips of the smallest step: ROW tokens on each, GROUP in all."""
        return _least_bytes(architecture, d_model, architecture.n_total(d_model, n_experts), self.count)

    def holding(self, architecture: Architecture, d_model: float, n_parameters: float) -> int | None:
        """The fewest chips that hold the training of so many parameters; None where no number does."""
        state, token = memory.state_bytes(0, n_parameters, 0, 1, 1), _token_bytes(architecture, d_model)
        return _whole(memory.fewest(state, token, self.chip.memory, 1))

    def rate(self, n_experts: int | None) -> float:
        """FLOP/s that training a model of so many experts reaches on all of them."""
        mfu = self.mfu[n_experts] if isinstance(self.mfu, dict) else self.mfu
        return self.count * self.chip.flops * mfu

    def flops(self, hours: float) -> float | dict[int, float]:
        """FLOPs that training does in so many hours; {n_experts: FLOPs} where mfu is by n_experts."""
        of = lambda e: 3600 * hours * self.rate(e)
        return {e: of(e) for e in self.mfu} if isinstance(self.mfu, dict) else of(None)

    def price(self, flops: float, n_experts: int, name: str = "") -> dict[str, float | None]:
        """{NAMEhours, NAMEdollars} of so many FLOPs; dollars are None where no price is given."""
        hours = flops / self.rate(n_experts) / 3600
        dollars = None if self.dollars_per_hour is None else hours * self.count * self.dollars_per_hour
        return {f"{name}hours": hours, f"{name}dollars": dollars}


def parse_chips(text: str) -> tuple[str, int]:
    """(kind, count) of KIND:COUNT or KIND alone; UserError otherwise."""
    kind, colon, count = text.partition(":")
    if kind not in CHIPS or (colon and not (count.isascii() and count.isdigit() and 0 < int(count) <= 10**9)):
        raise UserError(sentences.NO_CHIPS.format(value=text, kinds=", ".join(CHIPS)))
    return kind, int(count or 1)


def mfu_of(given: float | dict | str, experts: tuple[int, ...]) -> float | dict[int, float]:
    """The MFU that is `given`: a number, a dictionary by n_experts that names all `experts`, or text of either: the
    number, {"1": 0.45, "8": 0.38}, or the path of a file of these. Raises UserError where it is no such MFU."""
    if isinstance(given, dict):
        return _mfu_by_experts(given, experts)
    try:
        mfu = float(given)
    except (TypeError, ValueError):
        return _mfu_by_experts(given, experts)
    if not 1e-6 <= mfu <= 1:
        raise UserError(sentences.NO_MFU.format(value=given, found=f"{mfu:g}"))
    return mfu


def _mfu_by_experts(given: object, experts: tuple[int, ...]) -> dict[int, float]:
    try:
        table = {int(e): value for e, value in _table(given).items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(sentences.NO_MFU.format(value=given, found="no such table")) from error
    for e, value in table.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1e-6 <= value <= 1:
            raise UserError(sentences.NO_MFU.format(value=given, found=f"{json.dumps(value)} at E = {e}"))
    if missing := [e for e in experts if e not in table]:
        raise UserError(sentences.MFU_MISSING.format(value=given, missing=missing[0], known=", ".join(map(str, table))))
    return {e: float(value) for e, value in sorted(table.items())}


def _table(given: object) -> dict:
    """The dictionary that is given as such, as JSON or as a file of it."""
    if isinstance(given, dict):
        return given
    if isinstance(given, str) and given.startswith("{"):
        return json.loads(given)
    if not isinstance(given, (str, os.PathLike)) or not os.path.exists(given):
        raise UserError(sentences.NO_MFU.format(value=given, found="neither a number nor a file"))
    return json.loads(pathlib.Path(given).read_text(encoding="utf-8"))


def step_bytes(
    n_parameters: Numbers, d_model: Numbers, n_blocks: Numbers, n_heads: Numbers, n_tokens: float, sequence: float
) -> Numbers:
    """Bytes that a compiled step of the paper's recipe takes over all chips, n_tokens at once in rows of `sequence`."""
    token = memory.token_bytes(memory.REMAT["full"], d_model, n_blocks, n_heads, sequence, 1)
    return memory.device_bytes(memory.state_bytes(0, n_parameters, 0, 1, 1), token, n_tokens, 1, 1)


def _token_bytes(architecture: Architecture, d_model: Numbers) -> Numbers:
    blocks = d_model / architecture.width_per_block
    return memory.token_bytes(memory.REMAT["full"], d_model, blocks, blocks, memory.ROW, 1)


def _least_bytes(architecture: Architecture, d_model: Numbers, n_parameters: Numbers, count: int) -> Numbers:
    state, n_tokens = memory.state_bytes(0, n_parameters, 0, 1, 1), memory.least_tokens(count, 1)
    return memory.device_bytes(state, _token_bytes(architecture, d_model), n_tokens, 1, 1)


def _whole(number: float) -> int | None:
    return None if math.isinf(number) else int(number)


def _on_mesh(built: Json, architecture: Architecture, chips: Chips, mesh: Mesh) -> Json:
    """The sizes of the mesh and, for the buildable model on it: least_bytes and step_bytes of a device, for the
    smallest step and for the largest batch at once (None where that is not known), and the fewest chips that hold the
    smallest (None where no number does)."""
    data, d_model = chips.count // (mesh.expert * mesh.model), built["d_model"]
    n_mixtures = built["n_blocks"] - built.get("n_dense_blocks", 0) if built["n_experts"] > 1 else 0
    expert = 3 * d_model * (built.get("d_expert") or built["d_ff"])
    experts = n_mixtures * expert * built.get("routed_experts", built["n_experts"])
    ends = architecture.ends * d_model
    state = memory.state_bytes(experts, built["exact_parameters"] - experts - ends, ends, mesh.expert, mesh.model)
    shape = (built[name] for name in ("d_model", "n_blocks", "n_heads", "sequence"))
    token = memory.token_bytes(memory.REMAT[mesh.remat], *shape, mesh.model)
    rows = _whole(memory.fewest(state, token, chips.chip.memory, mesh.expert))
    on_each = lambda n_tokens: n_tokens and memory.device_bytes(state, token, n_tokens, data, mesh.expert)
    return dict(
        data=data,
        **dataclasses.asdict(mesh),
        least_bytes=on_each(memory.least_tokens(data, mesh.expert)),
        step_bytes=on_each(built["cost"]["step_tokens"]),
        chips=rows and rows * mesh.expert * mesh.model,
    )


def _uneven(built: Json, mesh: Mesh) -> Iterator[str]:
    """Sentences on what of the buildable model the trainer does not divide over the mesh."""
    over_expert = {"experts": built.get("routed_experts", built["n_experts"])} if built["n_experts"] > 1 else {}
    over_model = {"heads": built["n_heads"], "heads of keys": built.get("n_kv_heads", built["n_heads"])}
    for axis, size, counts in ("expert", mesh.expert, over_expert), ("model", mesh.model, over_model):
        for what, count in counts.items():
            if count % size:
                yield sentences.MESH_UNEVEN.format(axis=axis, size=size, what=what, count=count)


def add_to(
    plan: Json, law: Law, architecture: Architecture, constraints: Constraints, chips: Chips, experts: Floats
) -> None:
    """Adds to a plan `chips`, what was given, and to its optima and buildable model `cost`:

    training_hours, training_dollars; training_chips, the fewest that hold the smallest step, and
    training_bytes, what it then takes over all of them; serving_chips, the fewest, of at least the devices asked for,
    that hold weights and cache; tokens_per_second of one sequence, by their memory's bandwidth: `alone`, where each
    token reads the weights of its own experts, and `among_many`, where the tokens of a large batch read all; both read
    the whole cache. The buildable model's `cost` also has step_tokens and step_bytes, what a compiled step of its
    largest batch takes, and microbatch_tokens, as many of them at once as the chips hold where they do not hold all;
    None where the batch is not known; and, where a mesh is asked, `mesh`, what a device of it takes. A warning says
    what the chips cost where they bound the best.
    """
    plan["chips"] = dataclasses.asdict(chips)
    del plan["chips"]["mesh"]
    for row in plan["optima"]:
        row["cost"] = _cost(row, row["n_total"], architecture, constraints, chips)
    if built := plan["buildable"]:
        built["cost"] = _cost(built, built["exact_parameters"], architecture, constraints, chips) | _step(built, chips)
    best, kind = plan["best"], dict(kind=chips.kind, count=chips.count)
    if best["size_bound"] == "chips" and (constraints.flops is not None or constraints.memory_bytes is not None):
        free = optimum.optima(law, architecture, dataclasses.replace(constraints, chips=None), experts)
        free = free.row(int(np.nanargmin(free.loss)), ("n_active", "n_total", "n_tokens", "loss", "d_model"))
        needed = chips.holding(architecture, free["d_model"], free["n_total"])
        saved = dict(e=free["n_experts"], loss=best["loss"] - free["loss"])
        needed = sentences.CHIPS_NEEDED.format(needed=needed) if needed else ""
        plan["warnings"].append(sentences.CHIPS_BIND.format(needed=needed, **saved, **kind))
    if built and (mesh := chips.mesh):
        built["cost"]["mesh"] = _on_mesh(built, architecture, chips, mesh)
        plan["warnings"] += _uneven(built, mesh)
    if built and built["cost"]["microbatch_tokens"]:
        gb = dict(need=built["cost"]["step_bytes"] / 1e9, limit=chips.memory / 1e9)
        plan["warnings"].append(sentences.STEP_TOO_LARGE.format(**gb, **built["cost"], **kind))


def _step(built: Json, chips: Chips) -> Json:
    batches = [tokens for _, tokens in built["batch_tokens"] or []]
    if not batches:
        return dict(step_tokens=None, step_bytes=None, microbatch_tokens=None)
    shape = (built[name] for name in ("exact_parameters", "d_model", "n_blocks", "n_heads"))
    taken = functools.partial(step_bytes, *shape, sequence=built["sequence"])
    fewer = None
    if taken(max(batches)) > chips.memory:
        fewer = min(batches)
        while fewer > memory.GROUP and taken(fewer) > chips.memory:
            fewer //= 2
    return dict(step_tokens=max(batches), step_bytes=taken(max(batches)), microbatch_tokens=fewer)


def _cost(row: Json, n_parameters: float, architecture: Architecture, constraints: Constraints, chips: Chips) -> Json:
    # a token reads only one row of an embedding that is not also the head
    looked_up = row["d_model"] * (architecture.ends - architecture.vocab_size)
    cache = constraints.bytes_per_kv_element * architecture.kv_elements(row["d_model"], constraints.kv_tokens)
    serving = max(chips.devices, math.ceil(row["memory_bytes"] / chips.chip.memory * (1 - 1e-12)))
    speed = lambda n: serving * chips.chip.bandwidth / (constraints.bytes_per_parameter * (n - looked_up) + cache)
    holding = chips.holding(architecture, row["d_model"], n_parameters)
    return chips.price(row["training_flops"], row["n_experts"], "training_") | dict(
        training_bytes=holding and _least_bytes(architecture, row["d_model"], n_parameters, holding),
        training_chips=holding,
        serving_chips=serving,
        tokens_per_second=dict(alone=speed(row["n_active"]), among_many=speed(row["n_total"])),
    )
