"""The model to build, with its recipe and, on chips, its mesh. The trainer starts it as it is emitted."""

import dataclasses

import numpy as np

from fit.aliases import Json
from fit.fitted_law.law import Law
from fit.model import hardware
from fit.model.architecture import Architecture, Model, training_flops
from fit.planning import by_hours, candidates, recipe
from fit.planning.candidates import ModelGrid
from fit.planning.constraints import Chips
from fit.planning.extrapolation import extrapolation_of
from fit.planning.mesh import PlannedLayout
from fit.planning.results import Buildable, Optimum


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A model that may be built.

    Attributes:
      loss: Predicted loss in nats per token.
      model: Its shape and counts.
      n_tokens: Training tokens.
      memory_bytes: Of weights and cache.
      law_experts: Its number of experts as the law counts them; None where the model counts as the law does.
      layout: How the chips train it; None without chips.
      speed: Tokens per second of its chips; None where no speed is modelled.
    """

    loss: float
    model: Model
    n_tokens: int
    memory_bytes: float
    law_experts: float | None = None
    layout: PlannedLayout | None = None
    speed: float | None = None


def on_chips(best: by_hours.Best) -> Chosen:
    """A candidate on chips."""
    return Chosen(
        loss=best.loss,
        model=grid_model(best.problem, best.models, best.row),
        n_tokens=best.n_tokens,
        memory_bytes=best.memory_bytes,
        law_experts=best.models.law_experts,
        layout=layout_of(best),
        speed=best.tokens_per_second,
    )


def grid_model(question: by_hours.Question, models: ModelGrid, row: int) -> Model:
    """A shape of the grid as a Model."""
    style = hardware.style_of(question.architecture, models.as_published, question.request.fixed)
    shape = models.shape
    width = int(np.asarray(shape.d_model)[row])
    n_blocks = int(np.asarray(shape.n_blocks)[row])
    return hardware.built(question.padded, style, width, n_blocks, int(np.asarray(shape.n_experts)))


def layout_of(best: by_hours.Best) -> PlannedLayout:
    """How the chips train a candidate."""
    problem = best.problem
    candidate = best.candidate
    models = best.models
    batch = int(candidate.batch_tokens[0])
    at_once = int(candidate.microbatch_tokens[0])
    device_bytes, sent_bytes = by_hours.bytes_of(best)
    layout = PlannedLayout(
        batch_tokens=batch,
        sequence=candidates.sequence_of(problem.law, models.as_published),
        data=int(candidate.data[0]),
        expert=int(candidate.expert[0]),
        model=int(candidate.model[0]),
        remat=problem.grid.remats[int(candidate.remat[0])],
        microbatch_tokens=0 if at_once == batch else at_once,
        flash=models.as_published,
        group_tokens=int(candidate.group_tokens[0]),
        ramp=recipe.ramp_on_mesh(batch, int(candidate.unit[0]), best.n_tokens, models.as_published),
        device_bytes=device_bytes,
        sent_bytes=sent_bytes,
    )
    chips = dataclasses.replace(problem.chips, count=best.chips)
    n_experts = int(np.asarray(models.shape.n_experts))
    share = sending_share(layout, float(models.n_active[best.row]), n_experts, chips)
    return dataclasses.replace(layout, sending_share=share)


def sending_share(layout: PlannedLayout, n_active: float, n_experts: int, chips: Chips) -> float:
    """Seconds of sending in a step, at the peak of the chips' links, over seconds of computing it at their MFU."""
    batch = layout.ramp[-1][1]
    computing = training_flops(n_active, batch) / chips.rate(max(n_experts, 1))
    return layout.sent_bytes * chips.n_devices / chips.count / chips.chip.network / computing


def buildable_of(
    law: Law, architecture: Architecture, best: Optimum, chosen: Chosen, family: bool = False
) -> tuple[Buildable, recipe.Recipe]:
    """The model that a plan builds, and its recipe.

    Args:
      law: The law that plans.
      architecture: How the optima are built.
      best: The best optimum.
      chosen: The model, its tokens and its loss.
      family: Whether it is built like a published model.
    """
    model = chosen.model
    shape = model.shape
    n_active = int(shape.n_active)
    n_total = int(shape.n_total)
    batches = chosen.layout.ramp if chosen.layout else None
    run_recipe = recipe.recipe_of(law, model, chosen.n_tokens, family, batches)
    fields: Json = dict(model.fields)
    forward = int(shape.forward_flops(run_recipe.sequence))
    built = Buildable(
        n_experts=model.n_experts,
        **fields,
        law_experts=chosen.law_experts,
        n_active=n_active,
        n_total=n_total,
        exact_parameters=run_recipe.exact_parameters(model),
        n_tokens=chosen.n_tokens,
        loss=chosen.loss,
        loss_of_building=chosen.loss - best.loss,
        memory_bytes=chosen.memory_bytes,
        training_flops=training_flops(n_active, chosen.n_tokens),
        exact_forward_flops_per_token=forward,
        exact_training_flops=3 * forward * chosen.n_tokens,
        **run_recipe.row(),
        rate_note=recipe.rate_note(law, model, chosen.n_tokens, run_recipe),
        layout=chosen.layout,
        extrapolation=extrapolation_of(
            law,
            architecture,
            n_experts=model.n_experts if chosen.law_experts is None else chosen.law_experts,
            n_active=n_active,
            n_tokens=chosen.n_tokens,
            n_total=n_total,
            shape=(fields["d_model"], fields["n_blocks"]),
        ),
        modelled_speed=chosen.speed,
        explicit=() if chosen.law_experts is None else ("layout",),
    )
    return built, run_recipe
