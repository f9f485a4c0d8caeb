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
from fit.model.chips import CHIPS
from fit.planning import memory, optimum
from fit.planning.constraints import Chips, Constraints, Mesh
from fit.planning.mesh import Layout
from fit.planning.results import (
    Buildable,
    BuildableCost,
    Cost,
    Decoding,
    Energy,
    MeshCost,
    Optimum,
    Plan,
    Serving,
)
from fit.planning.serving import BATCHES, LABEL, Served, ServingChips, experts_touched
from fit.shape.architecture import Architecture

MFU = 0.4  # share of the chips' peak that training reaches, unless one is given


def mfu_of(option: Any, experts: tuple[int, ...]) -> float | dict[int, float]:
    """The MFU that --mfu gives.

    Args:
      option: A number, a dictionary by n_experts, or text of either: 0.4, {"1": 0.45, "8": 0.38}, or the path of a file
        of these.
      experts: Numbers of experts that a dictionary must name.

    Raises:
      UserError: It is no such MFU.
    """

    def refused(reason: str) -> UserError:
        """The error for what is no MFU."""
        return UserError(sentences.NO_MFU.format(value=option, found=reason))

    table: Any = option
    try:
        mfu = float(option)
        if 1e-6 <= mfu <= 1:
            return mfu
        raise refused(f"{mfu:g}")
    except (TypeError, ValueError):  # no number
        pass
    try:
        if isinstance(option, (str, os.PathLike)):
            text = str(option)
            table = json.loads(text if text.startswith("{") else pathlib.Path(option).read_text(encoding="utf-8"))
        table = {int(e): value for e, value in table.items()}
    except FileNotFoundError:
        raise refused("neither a number nor a file") from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise refused("no such table") from error
    for e, value in table.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1e-6 <= value <= 1:
            raise refused(f"{json.dumps(value)} at E = {e}")
    missing = [e for e in experts if e not in table]
    if missing:
        raise UserError(
            sentences.MFU_MISSING.format(value=option, missing=missing[0], known=", ".join(map(str, table)))
        )
    return {e: float(value) for e, value in sorted(table.items())}


def cost_of(
    model: Optimum | Buildable, n_parameters: float, architecture: Architecture, constraints: Constraints, chips: Chips
) -> Cost:
    """What a model costs on the chips.

    Args:
      model: An optimum, or the model to build.
      n_parameters: Its parameters in training.
      architecture: That of the plan.
      constraints: Bytes of weights and cache.
      chips: The chips to train on.
    """
    serving = _serving_of_row(model, n_parameters, architecture, constraints, chips)
    training_chips = chips.holding(architecture, model.d_model, n_parameters)
    training_bytes = None
    if training_chips:
        fewest = dataclasses.replace(chips, count=training_chips)
        training_bytes = float(fewest.least_bytes(architecture, model.d_model, n_parameters))
    return Cost(
        **_price(model, chips),
        training_bytes=training_bytes,
        training_chips=training_chips,
        serving_chips=serving.chips,
        serving=serving,
    )


def _serving_of_row(
    model: Optimum | Buildable, n_parameters: float, architecture: Architecture, constraints: Constraints, chips: Chips
) -> Serving:
    """How fast the chips serve a model of a plan. n_parameters: its parameters in training."""
    looked_up = architecture.looked_up(model.d_model)
    routed_experts = float(architecture.routed_experts(model.experts_of_law))
    chosen_share = float(architecture.chosen_share(model.experts_of_law))
    if isinstance(model, Buildable):
        is_tied = architecture.tied if model.tied_embeddings is None else model.tied_embeddings
        looked_up = 0 if is_tied else model.d_model * model.vocab_size
        routed_experts = float(model.experts_of_trainer)
        chosen_share = (model.top_k or 1) / routed_experts
    served = Served(
        n_active=model.n_active - looked_up,
        n_unused=model.n_total - model.n_active,
        chosen_share=chosen_share,
        bytes_per_parameter=constraints.bytes_per_parameter,
        cache_bytes=max(0.0, model.memory_bytes - constraints.bytes_per_parameter * n_parameters),
    )
    return serving_of(served, model.memory_bytes, routed_experts, chips)


def serving_of(served: Served, memory_bytes: float, routed_experts: float, chips: Chips) -> Serving:
    """How fast chips serve a model.

    Args:
      served: What serving reads of the model.
      memory_bytes: Its weights and cache.
      routed_experts: Experts that its tokens choose from.
      chips: The chips to train on. Of their kind, the fewest that hold the model serve it, and at least `devices`.
    """
    count = max(chips.devices, math.ceil(memory_bytes / chips.chip.memory * (1 - 1e-12)))
    serving_chips = ServingChips(chips.kind, count)
    decoding = []
    for batch in sorted({*BATCHES, chips.serve_batch}):
        seconds = float(served.step_seconds(batch, serving_chips))
        reading = served.step_bytes(batch) / serving_chips.bandwidth
        decoding.append(
            Decoding(
                batch=batch,
                experts_touched=float(experts_touched(routed_experts, served.chosen_share, batch)),
                read_bytes=float(served.step_bytes(batch)),
                decode_tokens_per_second=batch / seconds,
                limited_by="bandwidth" if seconds <= reading else "flops",
            )
        )
    return Serving(
        label=LABEL,
        chips=count,
        routed_experts=routed_experts,
        decoding=decoding,
        prefill_tokens_per_second=float(serving_chips.flops / served.token_flops()),
    )


def energy_of(plan: Plan) -> Energy | None:
    """What the plan's training takes from the grid; None without chips, or where their power is not published."""
    model = plan.buildable or plan.best
    if plan.chips is None or model.cost is None:
        return None
    watts = CHIPS[plan.chips.kind].watts
    if not watts:
        return None
    kwh = model.cost.training_hours * plan.chips.in_use * watts / 1000
    return Energy(kwh=kwh, watts=watts)


def _price(model: Optimum | Buildable, chips: Chips) -> Json:
    """{training_hours, training_dollars}: at the model's own modelled speed, else at the chips' MFU."""
    if model.speed is None:
        return chips.price(model.training_flops, model.experts_of_law, "training_")
    return chips.price_of_hours(model.speed.hours[1], "training_")


def cost_of_buildable(
    built: Buildable, architecture: Architecture, constraints: Constraints, chips: Chips
) -> BuildableCost:
    """What the model to build costs on the chips, with the memory of a step and the mesh."""
    cost = cost_of(built, built.exact_parameters, architecture, constraints, chips)
    values = {name: cost[name] for name in cost}
    if built.layout is not None:
        return BuildableCost(**values, **_step_in_layout(built.layout, chips))
    step_tokens, step_bytes, microbatch_tokens = _step(built, chips)
    mesh = None
    if chips.mesh:
        mesh = _on_mesh(built, architecture, chips, chips.mesh, step_tokens)
    return BuildableCost(
        **values,
        step_tokens=step_tokens,
        step_bytes=step_bytes,
        microbatch_tokens=microbatch_tokens,
        mesh=mesh,
    )


def warnings_of(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    experts: Floats,
    best: Optimum,
    built: Buildable | None,
) -> Iterator[str]:
    """Sentences on where the chips bound the best, and on what the model to build asks of them. None without chips.

    Args:
      law: The law that plans.
      architecture: That of the plan.
      constraints: The budget and the limits.
      experts: The numbers of experts compared.
      best: The plan's best.
      built: The model to build, with its cost; None where none can be built.
    """
    chips = constraints.chips
    if chips is None:
        return
    names = dict(kind=chips.kind, count=chips.count)
    if best.size_bound == "chips" and (constraints.has_budget or constraints.memory_bytes is not None):
        yield _chips_bind(law, architecture, constraints, experts, best)
    if built is None or built.cost is None:
        return
    cost = built.cost
    mesh = cost.mesh
    if built.layout is not None:
        if mesh and mesh.sending_share is not None and mesh.sending_share > 1 and built.speed is None:
            yield sentences.SENDS_LONGER.format(share=mesh.sending_share, **names)
        return
    if chips.mesh:
        yield from _uneven(built, chips.mesh)
    if cost.microbatch_tokens and cost.step_bytes is not None:
        gb = dict(need=cost.step_bytes / 1e9, limit=chips.memory / 1e9)
        yield sentences.STEP_TOO_LARGE.format(**gb, **cost, **names)


def _chips_bind(law: Law, architecture: Architecture, constraints: Constraints, experts: Floats, best: Optimum) -> str:
    """The sentence on what the best would be if the chips held larger models."""
    chips = constraints.chips
    assert chips is not None
    if constraints.clock is not None:  # nobody knows the speed of a model that the chips cannot train
        return sentences.CHIPS_BIND_BY_TIME.format(e=best.n_experts, kind=chips.kind, count=chips.count)
    unbound = optimum.optima(law, architecture, dataclasses.replace(constraints, chips=None), experts)
    row = unbound.row(int(np.nanargmin(unbound.loss)), ("n_active", "n_total", "n_tokens", "loss", "d_model"))
    n_chips = chips.holding(architecture, row["d_model"], row["n_total"])
    needed = sentences.CHIPS_NEEDED.format(needed=n_chips) if n_chips else ""
    return sentences.CHIPS_BIND.format(
        needed=needed, e=row["n_experts"], loss=best.loss - row["loss"], kind=chips.kind, count=chips.count
    )


def _on_mesh(
    built: Buildable, architecture: Architecture, chips: Chips, mesh: Mesh, step_tokens: int | None
) -> MeshCost:
    """What a device of the given mesh takes.

    The memory of a step is known where its tokens are. `chips`: the fewest that hold the smallest step.
    """
    data = chips.count // (mesh.expert * mesh.model)
    n_mixtures = built.n_blocks - (built.n_dense_blocks or 0) if built.n_experts > 1 else 0
    expert_weights = n_mixtures * 3 * built.d_model * built.width_of_expert * built.experts_of_trainer
    end_weights = architecture.embedding_and_head_rows * built.d_model
    other_weights = built.exact_parameters - expert_weights - end_weights
    state = memory.state_bytes(expert_weights, other_weights, end_weights, mesh.expert, mesh.model)
    shape = (built.d_model, built.n_blocks, built.n_heads, built.sequence)
    token = memory.token_bytes(memory.REMAT[mesh.remat], *shape, mesh.model)
    rows = memory.fewest(state, token, chips.chip.memory, mesh.expert)

    def device_bytes(n_tokens: int) -> float:
        """Memory of a device in a step of so many tokens."""
        return float(memory.device_bytes(state, token, n_tokens, data, mesh.expert))

    return MeshCost(
        data=data,
        **dataclasses.asdict(mesh),
        least_bytes=device_bytes(memory.least_tokens(data, mesh.expert)),
        step_bytes=device_bytes(step_tokens) if step_tokens else None,
        chips=int(rows) * mesh.expert * mesh.model if math.isfinite(rows) else None,
    )


def _uneven(built: Buildable, mesh: Mesh) -> Iterator[str]:
    """Sentences on what of the model the trainer does not divide over the mesh."""
    counts = [
        ("model", mesh.model, "heads", built.n_heads),
        ("model", mesh.model, "heads of keys", built.n_heads if built.n_kv_heads is None else built.n_kv_heads),
    ]
    if built.n_experts > 1:
        counts.insert(0, ("expert", mesh.expert, "experts", built.experts_of_trainer))
    for axis, size, what, count in counts:
        if count % size:
            yield sentences.MESH_UNEVEN.format(axis=axis, size=size, what=what, count=count)


def _step_in_layout(layout: Layout, chips: Chips) -> dict[str, Any]:
    """The fields of BuildableCost on a step, where the plan has chosen how the chips share it."""
    batch = layout.batch_tokens[-1][1]
    mesh = MeshCost(
        data=layout.data,
        expert=layout.expert,
        model=layout.model,
        remat=layout.remat,
        group_tokens=layout.group_tokens,
        sent_bytes=layout.sent_bytes,
        sending_share=layout.sending_share,
        least_bytes=None,
        step_bytes=layout.device_bytes,
        chips=chips.count,
        tokens_at_once=layout.microbatch_tokens or batch,
        device_memory=chips.device_memory,
    )
    return dict(
        step_tokens=batch,
        step_bytes=layout.device_bytes * chips.n_devices,
        microbatch_tokens=layout.microbatch_tokens or None,
        mesh=mesh,
    )


def _step(built: Buildable, chips: Chips) -> tuple[int | None, float | None, int | None]:
    """(tokens of the largest batch, bytes of its step, tokens at once where the chips do not hold the whole batch).

    All are None where the batch is not known.
    """
    batches = [tokens for _, tokens in built.batch_tokens or []]
    if not batches:
        return None, None, None
    shape = (built.exact_parameters, built.d_model, built.n_blocks, built.n_heads)

    def step_bytes(n_tokens: int) -> float:
        """Memory of all chips in a step of so many tokens."""
        return float(memory.step_bytes(*shape, n_tokens, built.sequence))

    largest = max(batches)
    if step_bytes(largest) <= chips.memory:
        return largest, step_bytes(largest), None
    fewer = min(batches)
    while fewer > memory.GROUP and step_bytes(fewer) > chips.memory:
        fewer //= 2
    return largest, step_bytes(largest), fewer
