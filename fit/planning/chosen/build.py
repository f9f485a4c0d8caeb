"""From the best models of a plan to the one to build: its shape, its recipe, exact counts, speed and cost."""

import dataclasses
import functools
from collections.abc import Callable

from fit.errors import UserError
from fit.fitted_law import extrapolation
from fit.fitted_law.law import Law
from fit.fitted_law.repeated import Repeated
from fit.model import hardware
from fit.model.architecture import Architecture, training_flops
from fit.model.shape import ModelShape
from fit.planning.chosen import shape_choice, whole_blocks
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.model_cost import cost_of_buildable
from fit.planning.chosen.modelled_speed import speed_and_chips
from fit.planning.chosen.optimum import Optimum
from fit.planning.chosen.planned_layout import layout_of
from fit.planning.inputs.problem import Problem
from fit.planning.recipe.make_recipe import recipe_of
from fit.planning.space.candidates import BestCandidate
from fit.planning.space.model_grid import TrainedModel


def build(problem: Problem, optima: list[Optimum], best: Optimum) -> Buildable | None:
    """The model of whole blocks and heads to build; None where none is within the limits.

    It has as many experts as the best optimum or, where none of those fits, any other number.

    Args:
      problem: The problem.
      optima: The best model with each number of experts.
      best: The one of them to build.
    """
    if best.candidate is not None:  # it is built as it is
        return _built(problem, best, best.candidate)
    choose = _chooser(problem, optima, best)
    chosen = choose(best)
    if chosen is None:
        others = [choose(row) for row in optima if row is not best]
        chosen = min((other for other in others if other is not None), key=lambda other: other.loss, default=None)
    return None if chosen is None else _built(problem, best, chosen)


def _chooser(problem: Problem, optima: list[Optimum], best: Optimum) -> Callable[[Optimum], TrainedModel | None]:
    """What finds the model to build near an optimum."""
    if problem.has_paper_shape or best.d_model < hardware.NARROW:
        return functools.partial(whole_blocks.closest_model, problem)
    widest = max(row.d_model for row in optima)
    return functools.partial(shape_choice.closest_shape, shape_choice.with_shapes_around(problem, widest))


def _built(problem: Problem, best: Optimum, chosen: TrainedModel) -> Buildable:
    """The chosen model with all that is known of it."""
    law = problem.law
    model = chosen.model
    shape = model.shape
    n_active = int(shape.n_active)
    n_total = int(shape.n_total)
    n_tokens = chosen.n_tokens
    law_experts = chosen.models.law_experts
    candidate = None
    layout = None
    ramp = None
    if isinstance(chosen, BestCandidate):
        candidate = chosen
        layout = layout_of(candidate)
        ramp = layout.ramp
    as_published = None if chosen.models.style is None else chosen.models.as_published
    recipe = recipe_of(law, model, n_tokens, problem.request.like_published, ramp, as_published)
    has_final_norm = recipe.as_published or model.architecture.final_norm
    forward_flops = int(shape.forward_flops(recipe.sequence))
    exact_parameters = int(shape.exact_parameters(recipe.as_published, has_final_norm))
    constraints = problem.constraints
    cache_bytes = float(constraints.cache_bytes(shape))
    as_built = dataclasses.replace(problem.architecture, vocab_size=model.fields["vocab_size"])
    interval = _interval(law, as_built, shape, law_experts, n_tokens)
    speed, n_chips = speed_and_chips(problem, candidate, law_experts, n_active, n_tokens)
    if layout is None and n_chips is None and constraints.chips is not None:
        chips = constraints.chips
        divided = problem.request.fixed_mesh.most_chips(chips.count, chips.chip.devices)
        n_chips = None if divided == chips.count else divided
    built = Buildable(
        **model.fields,
        law_experts=law_experts,
        n_active=n_active,
        n_total=n_total,
        exact_parameters=exact_parameters,
        n_tokens=n_tokens,
        loss=chosen.loss,
        loss_of_building=chosen.loss - best.loss,
        memory_bytes=constraints.bytes_per_parameter * exact_parameters + cache_bytes,
        training_flops=training_flops(n_active, n_tokens),
        exact_forward_flops_per_token=forward_flops,
        exact_training_flops=3 * forward_flops * n_tokens,
        **recipe.row(),
        layout=layout,
        extrapolation=extrapolation.of_model(
            law,
            as_built,
            n_experts=law_experts,
            n_active=n_active,
            n_tokens=n_tokens,
            n_total=n_total,
            shape=(model.fields["d_model"], model.fields["n_blocks"]),
        ),
        loss_interval=interval,
        interval_of_a_run=interval is not None and law.noise is not None,
        speed=speed,
        shape=shape,
        chips=n_chips,
        recipe=recipe,
    )
    if constraints.chips is None:
        return built
    return dataclasses.replace(built, cost=cost_of_buildable(built, constraints))


def _interval(
    law: Law, architecture: Architecture, shape: ModelShape, law_experts: float, n_tokens: int
) -> list[float] | None:
    """The interval of the loss of the model to build, by the law's draws. architecture: with the built vocabulary.

    It is the interval of a new run's loss where the law knows the noise of runs, else of the law's own value. A law
    without draws, or of repeated text, gives none.
    """
    if not law.draws or isinstance(law, Repeated):
        return None
    columns = extrapolation.columns_of_sizes(
        law, architecture, int(shape.n_active), law_experts, shape.d_model, int(shape.n_total)
    )
    columns["n_tokens"] = n_tokens
    columns = {name: columns[name] for name in dict.fromkeys((*law.form.columns, "n_active", "n_tokens"))}
    try:
        low, high = law.predict_interval(**columns, new_run=law.noise is not None)
    except UserError:  # a size beyond any that a table may have, such as that of 20 training tokens
        return None
    return [float(low), float(high)]
