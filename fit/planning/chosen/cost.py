"""The cost of a plan on chips: hours, dollars, the memory that training takes, and how fast the model answers."""

import dataclasses
import math
from typing import Any

from fit.aliases import Json
from fit.model import step_counts
from fit.model.chips import CHIPS
from fit.model.layout import Layout
from fit.model.serving import BATCHES, LABEL, Served, ServingChips, experts_touched
from fit.model.shape import ModelShape
from fit.planning.chosen.modelled_speed import Speed
from fit.planning.chosen.planned_layout import PlannedLayout
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.requests import MeshRequest
from fit.planning.inputs.training_chips import Chips
from fit.planning.recipe.recipe import Recipe
from fit.planning.space import fewest_chips
from fit.planning.space.meshes import GROUP_TOKENS
from fit.results import Record, optional


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshCost(Record):
    """How the chips share a step of the training.

    Attributes:
      data: Size of the data axis.
      expert: Size of the expert axis.
      model: Size of the model axis.
      remat: What the backward pass computes again, as config.remat.
      group_tokens: Tokens that share the experts' capacity.
      sent_bytes: What a device sends in a step of the largest batch.
      sending_share: How long that takes at the peak of the chips' links, over how long the step computes.
      least_bytes: Memory of a device in the smallest step.
      step_bytes: Memory of a device in a step of the largest batch; None where the batch is not known.
      chips: The chips used or, with --shape=paper, the fewest that hold the smallest step; None where no number does.
      tokens_at_once: Tokens of a step that the chips hold at once.
      device_memory: Memory of a device.
    """

    data: int
    expert: int
    model: int
    remat: str
    group_tokens: int | None = optional()
    sent_bytes: float | None = optional()
    sending_share: float | None = optional()
    least_bytes: float | None
    step_bytes: float | None
    chips: int | None
    tokens_at_once: int | None = optional()
    device_memory: float | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding(Record):
    """How fast chips decode with a model (fit/model/serving.py).

    Attributes:
      batch: Sequences decoded at once, which share the cache.
      experts_touched: Routed experts of a mixture that a token of the batch chooses, on average; 1 for a dense model.
      read_bytes: Bytes of weights and cache that a step reads.
      decode_tokens_per_second: Of all sequences together.
      limited_by: "bandwidth" of memory, or "flops".
    """

    batch: int
    experts_touched: float
    read_bytes: float
    decode_tokens_per_second: float
    limited_by: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serving(Record):
    """How fast chips serve a model.

    Attributes:
      label: How the figures are known: "modelled".
      chips: Chips that serve: the fewest, and at least --devices, that hold weights and cache.
      routed_experts: Experts of a mixture that tokens choose from; 1 for a dense model.
      decoding: A row for each batch.
      prefill_tokens_per_second: Tokens of prompts that the chips read.
    """

    label: str
    chips: int
    routed_experts: float
    decoding: list[Decoding]
    prefill_tokens_per_second: float

    def at(self, batch: int) -> Decoding:
        """The row of a batch.

        Raises:
          KeyError: There is no such row.
        """
        for row in self.decoding:
            if row.batch == batch:
                return row
        raise KeyError(batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost(Record):
    """The cost of training and of serving a model.

    Attributes:
      training_hours: On the chips that are used.
      training_dollars: None where no price is given.
      training_bytes: Over the fewest chips that hold the smallest step.
      training_chips: These fewest chips; None where no number holds it.
      serving_chips: The fewest chips, and at least --devices, that hold weights and cache.
      serving: How fast these chips decode and read prompts.
    """

    training_hours: float
    training_dollars: float | None
    training_bytes: float | None
    training_chips: int | None
    serving_chips: int
    serving: Serving


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildableCost(Cost):
    """As Cost, for a model that can be built.

    Attributes:
      step_tokens: Tokens of the largest batch; None where it is not known.
      step_bytes: What a compiled step of that batch takes.
      microbatch_tokens: Tokens that the chips hold at once; None where they hold the whole batch.
      mesh: How the chips share the step; None where no mesh is chosen.
    """

    step_tokens: int | None
    step_bytes: float | None
    microbatch_tokens: int | None
    mesh: MeshCost | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Energy(Record):
    """The energy that training takes from the grid, at the full power of the chips, without hosts, network and cooling.

    Attributes:
      kwh: Kilowatt-hours.
      watts: Power of one chip.
    """

    kwh: float
    watts: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostedModel:
    """A model whose cost is asked.

    Attributes:
      shape: Its shape.
      n_active, n_total: Parameters.
      n_parameters: Those that are stored.
      memory_bytes: Of weights and cache when it is served.
      price: {training_hours, training_dollars}, as `price_of` gives it.
    """

    shape: ModelShape
    n_active: float
    n_total: float
    n_parameters: float
    memory_bytes: float
    price: Json


def cost_of(model: CostedModel, constraints: Constraints, chips: Chips) -> Cost:
    """The cost of a model on the chips to train on. constraints: bytes of weights and cache."""
    return Cost(**_fields_of_cost(model, constraints, chips))


def _fields_of_cost(model: CostedModel, constraints: Constraints, chips: Chips) -> Json:
    """The fields of Cost."""
    shape = model.shape
    cache_bytes = max(0.0, model.memory_bytes - constraints.bytes_per_parameter * model.n_parameters)
    served = dataclasses.replace(
        Served.of(shape, constraints.bytes_per_parameter, cache_bytes),
        n_active=model.n_active - float(shape.looked_up),
        n_unused=model.n_total - model.n_active,
    )
    serving = serving_of(served, model.memory_bytes, float(shape.n_experts), chips)
    fewest = fewest_chips.fewest_chips(chips, shape, on_any_mesh=not constraints.has_paper_shape)
    training_chips = None
    training_bytes = None
    if fewest is not None:
        training_chips, training_bytes = fewest
    return dict(
        **model.price,
        training_bytes=training_bytes,
        training_chips=training_chips,
        serving_chips=serving.chips,
        serving=serving,
    )


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


def energy_of(kind: str, n_chips: int, hours: float) -> Energy | None:
    """The energy of these hours of training; None where the chips' power is not published."""
    watts = CHIPS[kind].watts
    if not watts:
        return None
    return Energy(kwh=hours * n_chips * watts / 1000, watts=watts)


def price_of(chips: Chips, flops: float, n_experts: float) -> Json:
    """{training_hours, training_dollars} of FLOPs at the MFU of chips. n_experts: as the law counts them."""
    return chips.price(flops, n_experts, "training_")


def price_of_speed(chips: Chips, speed: Speed) -> Json:
    """{training_hours, training_dollars} at a modelled speed, on the chips that reach it."""
    return chips.price_of_hours(speed.hours[1], "training_")


def cost_of_buildable(
    model: CostedModel, constraints: Constraints, chips: Chips, layout: PlannedLayout | None, run_recipe: Recipe
) -> BuildableCost:
    """The cost of the model to build, with the memory of a step and the mesh.

    Args:
      model: The model.
      constraints: Bytes of weights and cache.
      chips: Those that train it.
      layout: How they train it, where the plan has chosen that.
      run_recipe: Its batches and rows.
    """
    values = _fields_of_cost(model, constraints, chips)
    if layout is not None:
        return BuildableCost(**values, **_step_in_layout(layout, chips))
    fixed = constraints.request.fixed_mesh
    step_tokens, step_bytes, microbatch_tokens = _step(run_recipe, model.shape, chips, fixed)
    mesh = None
    if fixed.is_given:
        mesh = _on_mesh(run_recipe, model.shape, chips, fixed, step_tokens)
    return BuildableCost(
        **values,
        step_tokens=step_tokens,
        step_bytes=step_bytes,
        microbatch_tokens=microbatch_tokens,
        mesh=mesh,
    )


def _on_mesh(
    run_recipe: Recipe, shape: ModelShape, chips: Chips, fixed: MeshRequest, step_tokens: int | None
) -> MeshCost:
    """The memory of a device of the mesh that the user fixes. That of a step is known where its tokens are."""
    expert, model, remat = fixed.with_defaults
    data = chips.n_devices // (expert * model)
    smallest = fewest_chips.smallest_step(data, expert, model, remat)
    step_bytes = None
    if step_tokens:
        step = dataclasses.replace(smallest, **_rows_of(run_recipe), batch_tokens=step_tokens)
        step_bytes = float(step_counts.memory_of(shape, step))
    return MeshCost(
        data=data,
        expert=expert,
        model=model,
        remat=remat,
        least_bytes=float(step_counts.memory_of(shape, smallest)),
        step_bytes=step_bytes,
        chips=fewest_chips.fewest_chips_on_mesh(chips, shape, smallest),
    )


def _rows_of(run_recipe: Recipe) -> dict[str, Any]:
    """The fields of Layout on the rows of a recipe."""
    return dict(sequence=run_recipe.sequence, flash=run_recipe.as_published)


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


def _step(
    run_recipe: Recipe, shape: ModelShape, chips: Chips, fixed: MeshRequest
) -> tuple[int | None, float | None, int | None]:
    """(tokens of the largest batch, bytes of its step, tokens at once where the chips do not hold the whole batch).

    On the mesh that the user fixes, else on one of data alone. All are None where the batch is not known.
    """
    expert, model, remat = fixed.with_defaults
    data = chips.n_devices // (expert * model)
    batches = [tokens for _, tokens in run_recipe.batch_tokens or []]
    if not batches:
        return None, None, None
    largest = max(batches)

    def step_bytes(n_tokens: int) -> float:
        """Memory of all chips in a step of the largest batch with n_tokens at once."""
        layout = Layout(
            largest,
            data=data,
            expert=expert,
            model=model,
            remat=remat,
            microbatch_tokens=n_tokens,
            **_rows_of(run_recipe),
        )
        return chips.n_devices * float(step_counts.memory_of(shape, layout))

    of_whole_batch = step_bytes(largest)
    if of_whole_batch <= chips.memory:
        return largest, of_whole_batch, None
    fewer = min(batches)
    while fewer > GROUP_TOKENS and step_bytes(fewer) > chips.memory:
        fewer //= 2
    return largest, of_whole_batch, fewer
