"""What a chosen model costs: its training at its modelled speed or at an MFU, and serving it."""

import dataclasses
import math

from fit.aliases import Json
from fit.model.chips import CHIPS
from fit.model.serving import BATCHES, LABEL, ServingChips, experts_touched
from fit.planning.chosen import step_memory
from fit.planning.chosen.buildable import Buildable, ChosenModel
from fit.planning.chosen.chips_used import ChipsUsed
from fit.planning.chosen.cost import BuildableCost, Cost, Decoding, Energy, Serving
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.training_chips import Chips
from fit.planning.space import fewest_chips


def cost_of(model: ChosenModel, constraints: Constraints) -> Cost:
    """The cost of a model on the chips of a plan. constraints: the chips, and the bytes of weights and cache."""
    chips = constraints.chips
    assert chips is not None
    serving = _serving(model, constraints, chips)
    fewest = fewest_chips.fewest_chips(chips, model.shape, on_any_mesh=not constraints.has_paper_shape)
    training_chips = None
    training_bytes = None
    if fewest is not None:
        training_chips, training_bytes = fewest
    return Cost(
        **_price(model, chips),
        training_bytes=training_bytes,
        training_chips=training_chips,
        serving_chips=serving.chips,
        serving=serving,
    )


def cost_of_buildable(built: Buildable, constraints: Constraints) -> BuildableCost:
    """The cost of the model to build, with the memory of a step and the mesh. The arguments are those of `cost_of`."""
    return BuildableCost(**cost_of(built, constraints), **step_memory.of_buildable(built, constraints))


def _price(model: ChosenModel, chips: Chips) -> Json:
    """{training_hours, training_dollars}: at the modelled speed of the chips that train it, else at the MFU of all."""
    if model.speed is None:
        return chips.price(model.training_flops, model.law_experts, "training_")
    _, hours, _ = model.speed.hours
    return chips.with_count(model.chips).price_of_hours(hours, "training_")


def _serving(model: ChosenModel, constraints: Constraints, chips: Chips) -> Serving:
    """How fast chips serve a model: the fewest of the kind of `chips` that hold it, and at least `devices`."""
    served = dataclasses.replace(  # of a real size, the plan's own counts have other last digits than its shape's
        constraints.served(model.shape),
        n_active=model.n_active - float(model.shape.looked_up),
        n_unused=model.n_total - model.n_active,
    )
    count = max(chips.devices, math.ceil(model.memory_bytes / chips.chip.memory * (1 - 1e-12)))
    serving_chips = ServingChips(chips.kind, count)
    routed_experts = float(model.shape.n_experts)
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


def energy_of(model: ChosenModel, chips: ChipsUsed) -> Energy | None:
    """The energy of a model's training; None where the chips' power is not published.

    At an MFU its hours are those of all chips, else of those that train it.
    """
    watts = CHIPS[chips.kind].watts
    if not watts or model.cost is None:
        return None
    n_chips = chips.count if model.speed is None else chips.n_used
    return Energy(kwh=model.cost.training_hours * n_chips * watts / 1000, watts=watts)
