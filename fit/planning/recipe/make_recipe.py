"""Makes the recipe of a planned run.

Within the sizes of a law's runs, the recipe is that of these runs, so that the law's losses hold for it. Beyond them,
and for a law that does not say how its runs were trained, it is that of published models.
"""

import dataclasses

from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.units import say
from fit.model.architecture import Model, Ramp
from fit.planning.recipe import rates, which_recipe
from fit.planning.recipe.published_recipe import DISAGREEMENT, recipe_of_published_models
from fit.planning.recipe.recipe import Recipe
from fit.planning.recipe.runs_recipe import peak_learning_rate, recipe_of_runs
from fit.planning.recipe.which_recipe import PRETRAIN_SEQUENCE


def recipe_of(
    law: Law,
    model: Model,
    n_tokens: float,
    like_published: bool = False,
    batches: Ramp | None = None,
    as_published: bool | None = None,
) -> Recipe:
    """The recipe of a planned model.

    Args:
      law: What it is planned by.
      model: What is trained.
      n_tokens: Training tokens.
      like_published: Whether the model is built like a published one, whose vocabulary and blocks are not those of the
        law's runs.
      batches: Those of its layout; None for the best.
      as_published: Whether its recipe is that of published models; None where its size tells.
    """
    if as_published is None:
        as_published = which_recipe.is_published(law, model, n_tokens, like_published)
    if as_published:
        recipe = recipe_of_published_models(law, model, n_tokens, batches)
    else:
        recipe = recipe_of_runs(law, model, n_tokens, batches)
    return dataclasses.replace(recipe, rate_note=_rate_note(law, model, n_tokens, like_published, recipe))


def _rate_note(law: Law, model: Model, n_tokens: float, like_published: bool, recipe: Recipe) -> str:
    """Why the peak learning rate jumps where plans leave the law's runs, in words; "" where it does not.

    Within the runs a plan has their recipe, beyond them that of published models. Their rates may be far apart.
    """
    rate = recipe.learning_rate
    run = rates.run_of(model.shape, n_tokens, PRETRAIN_SEQUENCE)
    if rate is None or law.tuning is not None or run.active < rates.SMALLEST_ACTIVE:
        return ""
    if not recipe.as_published:
        other: float | None = rates.learning_rate(run)[0]
        sentence = sentences.RATE_WITHIN
    elif like_published or which_recipe.beyond(law, model, n_tokens) == 1:
        return ""  # plans within the runs have this recipe, too
    else:
        base, _ = which_recipe.runs_config(law, which_recipe.has_papers_shape(model))
        other, _ = peak_learning_rate(law, base, model)
        sentence = sentences.RATE_BEYOND
    if other is None or max(rate / other, other / rate) < DISAGREEMENT:
        return ""
    return say(sentence, other=other)
