"""The model to build, with its recipe and, on chips, its mesh. The trainer starts it as it is emitted."""

import dataclasses

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import law_counts
from fit.fitted_law.law import Law
from fit.model import hardware
from fit.model.architecture import Architecture, training_flops
from fit.planning import by_hours, recipe, repeats, shape_choice
from fit.planning.extrapolation import extrapolation_of
from fit.planning.problem import Problem, problem_on_chips
from fit.planning.results import Buildable, Optimum
from fit.planning.shape_choice import ChosenModel


def of_plan(problem: Problem, optima: list[Optimum], best: Optimum) -> tuple[Buildable | None, recipe.Recipe | None]:
    """The model of whole blocks and heads to build, with exact counts, and the recipe to train it by.

    Both are None where no model fits.
    """
    law = problem.law
    architecture = problem.architecture
    constraints = problem.constraints
    if constraints.time_budget is not None:
        of_hours = by_hours.best_of(law, architecture, constraints, best.n_experts)
        assert of_hours is not None
        chosen = shape_choice.of_candidate(of_hours)
    elif constraints.request is None or best.d_model < hardware.NARROW:
        chosen = shape_choice.of_whole_blocks(problem, optima, best)
    elif constraints.chips is None:
        chosen = shape_choice.on_grid(problem, optima, best)
    else:
        chosen = shape_choice.on_grid(problem_on_chips(law, architecture, constraints), optima, best)
    if chosen is None:
        return None, None
    built, run_recipe = _with_recipe(law, architecture, best, chosen, problem.request.family)
    return _with_interval(law, built, architecture), run_recipe


def _with_recipe(
    law: Law, architecture: Architecture, best: Optimum, chosen: ChosenModel, family: bool
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


def _with_interval(law: Law, built: Buildable, architecture: Architecture) -> Buildable:
    """The model to build, with the interval of its loss by the law's draws.

    It is the interval of a new run's loss where the law knows the noise of runs, else of the law's own value. A law
    without draws, or of repeated text, gives none.
    """
    if not law.draws or isinstance(law, repeats.Repeated):
        return built
    with_its_vocabulary = dataclasses.replace(architecture, vocab_size=built.vocab_size)
    uncounted = law_counts.uncounted_rows(law, with_its_vocabulary) * built.d_model
    columns = architecture.structure(built.experts_of_law) | dict(
        n_active=built.n_active - uncounted, n_total=built.n_total - uncounted, n_tokens=built.n_tokens
    )
    columns = {name: columns[name] for name in dict.fromkeys((*law.form.columns, "n_active", "n_tokens"))}
    noise_is_known = law.noise is not None
    try:
        low, high = law.predict_interval(**columns, new_run=noise_is_known)
    except UserError:  # a size beyond any that a table may have, such as that of 20 training tokens
        return built
    return dataclasses.replace(built, loss_interval=[float(low), float(high)], interval_of_a_run=noise_is_known)
