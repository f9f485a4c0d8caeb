"""The cost of a plan on chips: hours, dollars, the memory that training takes, and how fast the model answers."""

import dataclasses
import math
from typing import Any

import numpy as np

from fit.aliases import Json
from fit.model import step_counts
from fit.model.architecture import Architecture
from fit.model.chips import CHIPS
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from fit.planning.constraints import Constraints
from fit.planning.mesh import GROUP_TOKENS, PlannedLayout
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
from fit.planning.training_chips import Chips, fewest_devices


def cost_of(model: Optimum | Buildable, architecture: Architecture, constraints: Constraints, chips: Chips) -> Cost:
    """The cost of a model on the chips.

    Args:
      model: An optimum, or the model to build.
      architecture: That of the plan.
      constraints: Bytes of weights and cache.
      chips: The chips to train on.
    """
    shape = shape_of(model, architecture)
    n_parameters = model.exact_parameters if isinstance(model, Buildable) else model.n_total
    cache_bytes = max(0.0, model.memory_bytes - constraints.bytes_per_parameter * n_parameters)
    served = dataclasses.replace(
        Served.of(shape, constraints.bytes_per_parameter, cache_bytes),
        n_active=model.n_active - float(shape.looked_up),
        n_unused=model.n_total - model.n_active,
    )
    serving = serving_of(served, model.memory_bytes, float(shape.n_experts), chips)
    smallest = chips.holding(shape, on_any_mesh=constraints.request is not None)
    training_chips = None
    training_bytes = None
    if smallest is not None:
        training_chips = math.ceil(smallest.n_devices / chips.chip.devices)
        training_bytes = float(smallest.n_devices * step_counts.memory_of(shape, smallest))
    return Cost(
        **_price(model, chips),
        training_bytes=training_bytes,
        training_chips=training_chips,
        serving_chips=serving.chips,
        serving=serving,
    )


def shape_of(model: Optimum | Buildable, architecture: Architecture) -> ModelShape:
    """The shape of a model of a plan. That of an optimum has the architecture's own depth at its size."""
    if isinstance(model, Optimum):
        width = float(architecture.d_model(model.n_active, model.n_experts))
        return architecture.shape(width, model.n_experts)
    fields = {name: value for name, value in vars(model).items() if value is not None}
    tied = architecture.tied if model.tied_embeddings is None else model.tied_embeddings
    return ModelShape.of_config(fields | dict(n_experts=model.experts_of_trainer, tied_embeddings=tied))


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
    """The energy of the plan's training; None without chips, or where their power is not published."""
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
    """The cost of the model to build on the chips, with the memory of a step and the mesh."""
    cost = cost_of(built, architecture, constraints, chips)
    values = {name: cost[name] for name in cost}
    if built.layout is not None:
        return BuildableCost(**values, **_step_in_layout(built.layout, chips))
    shape = shape_of(built, architecture)
    step_tokens, step_bytes, microbatch_tokens = _step(built, shape, chips)
    mesh = None
    if chips.mesh:
        mesh = _on_mesh(built, shape, chips, chips.mesh, step_tokens)
    return BuildableCost(
        **values,
        step_tokens=step_tokens,
        step_bytes=step_bytes,
        microbatch_tokens=microbatch_tokens,
        mesh=mesh,
    )


def _on_mesh(built: Buildable, shape: ModelShape, chips: Chips, smallest: Layout, step_tokens: int | None) -> MeshCost:
    """The memory of a device of the given mesh, of which `smallest` is the smallest step.

    The memory of a step is known where its tokens are.
    """
    remat = str(smallest.remat)
    axes = np.array([smallest.expert]), np.array([smallest.model])
    fewest = fewest_devices(shape, *axes, remat, chips.chip.memory)
    step_bytes = None
    if step_tokens:
        step = dataclasses.replace(smallest, **_rows_of(built), batch_tokens=step_tokens)
        step_bytes = float(step_counts.memory_of(shape, step))
    return MeshCost(
        data=int(smallest.data),
        expert=int(smallest.expert),
        model=int(smallest.model),
        remat=remat,
        least_bytes=float(step_counts.memory_of(shape, smallest)),
        step_bytes=step_bytes,
        chips=None if fewest is None else int(fewest.n_devices),
    )


def _rows_of(built: Buildable) -> dict[str, Any]:
    """The fields of Layout on the rows of a model's recipe."""
    return dict(sequence=built.sequence, flash=bool(built.recipe_laws))


def _step_in_layout(layout: PlannedLayout, chips: Chips) -> dict[str, Any]:
    """The fields of BuildableCost on a step, where the plan has chosen how the chips share it."""
    batch = layout.ramp[-1][1]
    at_once = int(layout.microbatch_tokens)
    mesh = MeshCost(
        data=int(layout.data),
        expert=int(layout.expert),
        model=int(layout.model),
        remat=str(layout.remat),
        group_tokens=layout.group_tokens,
        sent_bytes=layout.sent_bytes,
        sending_share=layout.sending_share,
        least_bytes=None,
        step_bytes=layout.device_bytes,
        chips=chips.count,
        tokens_at_once=at_once or batch,
        device_memory=chips.device_memory,
    )
    return dict(
        step_tokens=batch,
        step_bytes=layout.device_bytes * chips.n_devices,
        microbatch_tokens=at_once or None,
        mesh=mesh,
    )


def _step(built: Buildable, shape: ModelShape, chips: Chips) -> tuple[int | None, float | None, int | None]:
    """(tokens of the largest batch, bytes of its step, tokens at once where the chips do not hold the whole batch).

    The chips are a mesh of data alone. All are None where the batch is not known.
    """
    batches = [tokens for _, tokens in built.batch_tokens or []]
    if not batches:
        return None, None, None
    largest = max(batches)

    def step_bytes(n_tokens: int) -> float:
        """Memory of all chips in a step of the largest batch with so many tokens at once."""
        layout = Layout(largest, data=chips.n_devices, microbatch_tokens=n_tokens, **_rows_of(built))
        return chips.n_devices * float(step_counts.memory_of(shape, layout))

    of_whole_batch = step_bytes(largest)
    if of_whole_batch <= chips.memory:
        return largest, of_whole_batch, None
    fewer = min(batches)
    while fewer > GROUP_TOKENS and step_bytes(fewer) > chips.memory:
        fewer //= 2
    return largest, of_whole_batch, fewer
