"""The candidate of a plan by hours as the model to build, with its recipe and its layout."""

import numpy as np

from fit.fitted_law.law import Law
from fit.planning import building, recipe, solve, startable
from fit.planning.results import Buildable, Optimum
from fit.shape import hardware
from fit.shape.architecture import Architecture, Model


def buildable_of(
    law: Law, architecture: Architecture, best: Optimum, chosen: solve.Best
) -> tuple[Buildable, recipe.Recipe]:
    """The model to build and its recipe.

    Args:
      law: The law that plans.
      architecture: How models are built.
      best: The candidate as an Optimum.
      chosen: The same candidate, with its layout.
    """
    models = chosen.models
    model = model_of(chosen)
    layout = startable.layout_of(chosen)
    request = chosen.problem.request
    run_recipe = recipe.recipe_of(law, model, chosen.n_tokens, request.family, layout.batch_tokens)
    candidate = building.Candidate(
        loss=chosen.loss,
        model=model,
        n_tokens=chosen.n_tokens,
        memory_bytes=chosen.memory_bytes,
        layout=layout,
        speed=chosen.tokens_per_second,
    )
    return startable.buildable_of(law, architecture, best, candidate, run_recipe, models.law_experts), run_recipe


def model_of(chosen: solve.Best) -> Model:
    """The model of a candidate."""
    problem = chosen.problem
    models = chosen.models
    style = hardware.style_of(problem.architecture, models.as_published, problem.request.fixed)
    shape = models.shape
    width = int(np.asarray(shape.d_model)[chosen.row])
    return hardware.built(problem.padded, style, width, chosen.n_blocks, int(np.asarray(shape.n_experts)))
