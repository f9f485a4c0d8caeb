"""The model that a plan builds on the grid of shapes that hardware likes, with its recipe and its mesh: what the
trainer starts as it is emitted."""

import dataclasses

from fit.aliases import Json
from fit.lawbook.lawfile import Law
from fit.planning import building, mesh, recipe
from fit.planning.constraints import Constraints
from fit.shape import hardware
from fit.shape.architecture import Architecture, Model, training_flops


@dataclasses.dataclass(frozen=True)
class Shapes:
    """asked: fields of the architecture that the user gave; mesh: what the user asked of the mesh."""

    asked: frozenset[str] = frozenset()
    mesh: mesh.Asked = mesh.Asked()


def buildable(
    law: Law, architecture: Architecture, constraints: Constraints, optima: list[Json], best: Json, shapes: Shapes
) -> Json | None:
    """The row of the model to build, with exact counts, recipe and layout. None if none fits.

    n_experts counts as the trainer does; law_experts as the law does. loss_of_building: by how much its loss is above
    the best optimum's. layout: how the chips train it, None without chips.
    """
    # at the sizes of the law's runs a model has their shape, and their recipe
    for own_sizes in (_of_own_sizes(law, best), False):
        style = hardware.style_of(architecture, own_sizes, shapes.asked)
        layouts = None
        if constraints.chips:

            def layouts(model: Model, n_tokens: int) -> mesh.Layout | None:
                return _layout(law, model, n_tokens, constraints, shapes)

        found = building.on_grid(law, architecture, constraints, optima, best, style, layouts)
        if found is None or not own_sizes:
            break
        if not recipe.recipe_of(law, found.model, found.n_tokens).of_published_models:
            break
    if found is None:
        return None
    return _row(law, architecture, best, found)


def _of_own_sizes(law: Law, planned: Json) -> bool:
    """Whether a planned optimum is not larger than the law's runs."""
    high = law.ranges.get("n_active")
    return high is not None and planned["n_active"] <= high[1]


def _layout(law: Law, model: Model, n_tokens: int, constraints: Constraints, shapes: Shapes) -> mesh.Layout | None:
    """How the chips train a model by its recipe; None where they cannot."""
    own = recipe.recipe_of(law, model, n_tokens)
    ramp = own.batch_tokens or DEFAULT_BATCHES
    shape = model.shape | dict(n_experts=model.n_experts)
    return mesh.choose(shape, own.sequence, ramp, constraints.chips, shapes.mesh, own.of_published_models)
