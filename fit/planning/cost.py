"""What a plan costs on chips: hours, dollars, the memory that training takes, and how fast the model answers."""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fit.aliases import Floats, Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.planning import memory, optimum
from fit.planning.constraints import Chips, Constraints, Mesh
from fit.shape.architecture import Architecture

MFU = 0.4  # share of the chips' peak that training reaches, unless one is given


def mfu_of(given: Any, experts: tuple[int, ...]) -> float | dict[int, float]:
    """The MFU that is `given`: a number, a dictionary by n_experts that names all `experts`, or text of either: the
    number, {"1": 0.45, "8": 0.38}, or the path of a file of these. Raises UserError where it is no such MFU."""
    refused = lambda found: UserError(sentences.NO_MFU.format(value=given, found=found))
    table: Any = given
    try:
        mfu = float(given)
        if 1e-6 <= mfu <= 1:
            return mfu
        raise refused(f"{mfu:g}")
    except (TypeError, ValueError):  # no number
        pass
    try:
        if isinstance(given, (str, os.PathLike)):
            text = str(given)
            table = json.loads(text if text.startswith("{") else pathlib.Path(given).read_text(encoding="utf-8"))
        table = {int(e): value for e, value in table.items()}
    except FileNotFoundError:
        raise refused("neither a number nor a file") from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise refused("no such table") from error
    for e, value in table.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1e-6 <= value <= 1:
            raise refused(f"{json.dumps(value)} at E = {e}")
    if missing := [e for e in experts if e not in table]:
        raise UserError(sentences.MFU_MISSING.format(value=given, missing=missing[0], known=", ".join(map(str, table))))
    return {e: float(value) for e, value in sorted(table.items())}


def _on_mesh(built: Json, architecture: Architecture, chips: Chips, mesh: Mesh) -> Json:
    """The mesh's sizes; least_bytes and step_bytes of a device of it, for the smallest step and for the largest batch
    at once (None where that is not known); the fewest chips that hold the smallest (None where no number does)."""
    data, d_model = chips.count // (mesh.expert * mesh.model), built["d_model"]
    n_mixtures = built["n_blocks"] - built.get("n_dense_blocks", 0) if built["n_experts"] > 1 else 0
    expert = 3 * d_model * (built.get("d_expert") or built["d_ff"])
    experts = n_mixtures * expert * built.get("routed_experts", built["n_experts"])
    ends = architecture.embedding_and_head_rows * d_model
    state = memory.state_bytes(experts, built["exact_parameters"] - experts - ends, ends, mesh.expert, mesh.model)
    shape = (built[name] for name in ("d_model", "n_blocks", "n_heads", "sequence"))
    token = memory.token_bytes(memory.REMAT[mesh.remat], *shape, mesh.model)
    rows = memory.fewest(state, token, chips.chip.memory, mesh.expert)
    on_each = lambda n_tokens: n_tokens and memory.device_bytes(state, token, n_tokens, data, mesh.expert)
    return dict(
        data=data,
        **dataclasses.asdict(mesh),
        least_bytes=on_each(memory.least_tokens(data, mesh.expert)),
        step_bytes=on_each(built["cost"]["step_tokens"]),
        chips=int(rows) * mesh.expert * mesh.model if math.isfinite(rows) else None,
    )


def _uneven(built: Json, mesh: Mesh) -> Iterator[str]:
    """Sentences on what of the buildable model the trainer does not divide over the mesh."""
    counts = [("expert", "experts", built.get("routed_experts", built["n_experts"]))] * (built["n_experts"] > 1)
    counts += [("model", "heads", built["n_heads"])]
    counts += [("model", "heads of keys", built.get("n_kv_heads", built["n_heads"]))]
    for axis, what, count in counts:
        if count % (size := getattr(mesh, axis)):
            yield sentences.MESH_UNEVEN.format(axis=axis, size=size, what=what, count=count)


def add_to(plan: Json, law: Law, architecture: Architecture, constraints: Constraints, experts: Floats) -> None:
    """Adds to a plan on chips `chips`, what was given, and to its optima and buildable model `cost`:

    training_hours, training_dollars; training_chips, the fewest that hold the smallest step, and
    training_bytes, what it then takes over all of them; serving_chips, the fewest, of at least the devices asked for,
    that hold weights and cache; tokens_per_second of one sequence, by their memory's bandwidth: `alone`, where each
    token reads the weights of its own experts, and `among_many`, where the tokens of a large batch read all; both read
    the whole cache. The buildable model's `cost` also has step_tokens and step_bytes, what a compiled step of its
    largest batch takes, and microbatch_tokens, as many of them at once as the chips hold where they do not hold all;
    None where the batch is not known; and, where a mesh is asked, `mesh`, what a device of it takes. A warning says
    what the chips cost where they bound the best.
    """
    if not (chips := constraints.chips):
        return
    plan["chips"] = {name: value for name, value in vars(chips).items() if name not in ("mesh", "room")}
    for row in plan["optima"]:
        row["cost"] = _cost(row, row["n_total"], architecture, constraints, chips)
    best, kind = plan["best"], dict(kind=chips.kind, count=chips.count)
    if best["size_bound"] == "chips" and (constraints.has_budget or constraints.memory_bytes is not None):
        free = optimum.optima(law, architecture, dataclasses.replace(constraints, chips=None), experts)
        free = free.row(int(np.nanargmin(free.loss)), ("n_active", "n_total", "n_tokens", "loss", "d_model"))
        needed = chips.holding(architecture, free["d_model"], free["n_total"])
        saved = dict(e=free["n_experts"], loss=best["loss"] - free["loss"])
        needed = sentences.CHIPS_NEEDED.format(needed=needed) if needed else ""
        plan["warnings"].append(sentences.CHIPS_BIND.format(needed=needed, **saved, **kind))
    if built := plan["buildable"]:
        cost = _cost(built, built["exact_parameters"], architecture, constraints, chips)
        built["cost"] = cost
        if "layout" in built:
            cost |= _of_layout(built.pop("layout"), chips)
            if (share := cost["mesh"]["sending_share"]) > 1 and constraints.clock is None:
                plan["warnings"].append(sentences.SENDS_LONGER.format(share=share, **kind))
            return
        cost |= _step(built, chips)
        if mesh := chips.mesh:
            cost["mesh"] = _on_mesh(built, architecture, chips, mesh)
            plan["warnings"] += _uneven(built, mesh)
        if cost["microbatch_tokens"]:
            gb = dict(need=cost["step_bytes"] / 1e9, limit=chips.memory / 1e9)
            plan["warnings"].append(sentences.STEP_TOO_LARGE.format(**gb, **cost, **kind))


def _of_layout(layout: Json, chips: Chips) -> Json:
    """What a step takes where the plan has chosen how the chips share it: mesh.Layout."""
    batch = layout["batch_tokens"][-1][1]
    sizes = {
        name: layout[name]
        for name in ("data", "expert", "model", "remat", "group_tokens", "sent_bytes", "sending_share")
    }
    at_once = layout["microbatch_tokens"] or batch
    of_mesh = sizes | dict(
        least_bytes=None, step_bytes=layout["device_bytes"], chips=chips.count, tokens_at_once=at_once
    )
    return dict(
        step_tokens=batch,
        step_bytes=layout["device_bytes"] * chips.n_devices,
        microbatch_tokens=layout["microbatch_tokens"] or None,
        mesh=of_mesh | dict(device_memory=chips.device_memory),
    )


def _step(built: Json, chips: Chips) -> Json:
    batches = [tokens for _, tokens in built["batch_tokens"] or []]
    if not batches:
        return dict(step_tokens=None, step_bytes=None, microbatch_tokens=None)
    shape = [built[name] for name in ("exact_parameters", "d_model", "n_blocks", "n_heads")]
    taken = lambda n_tokens: memory.step_bytes(*shape, n_tokens, built["sequence"])
    fewer, largest = min(batches), max(batches)
    while fewer > memory.GROUP and taken(fewer) > chips.memory:
        fewer //= 2
    fits = taken(largest) <= chips.memory
    return dict(step_tokens=largest, step_bytes=taken(largest), microbatch_tokens=None if fits else fewer)


def _cost(row: Json, n_parameters: float, architecture: Architecture, constraints: Constraints, chips: Chips) -> Json:
    # a token reads only one row of an embedding that is not also the head
    looked_up = row["d_model"] * (architecture.embedding_and_head_rows - architecture.vocab_size)
    cache = constraints.bytes_per_kv_element * architecture.kv_elements(row["d_model"], constraints.kv_tokens)
    serving = max(chips.devices, math.ceil(row["memory_bytes"] / chips.chip.memory * (1 - 1e-12)))
    speed = lambda n: serving * chips.chip.bandwidth / (constraints.bytes_per_parameter * (n - looked_up) + cache)
    holding = chips.holding(architecture, row["d_model"], n_parameters)
    held = holding and dataclasses.replace(chips, count=holding).least_bytes(architecture, row["d_model"], n_parameters)
    price = chips.price(row["training_flops"], row.get("law_experts", row["n_experts"]), "training_")
    if "speed" in row:  # by the clock, the model's own
        price = chips.price_of_hours(row["speed"]["hours"][1], "training_")
    return price | dict(
        training_bytes=held,
        training_chips=holding,
        serving_chips=serving,
        tokens_per_second=dict(alone=speed(row["n_active"]), among_many=speed(row["n_total"])),
    )
