"""The model that a plan builds on the grid of shapes that hardware likes, with its recipe and its mesh: what the
trainer starts as it is emitted."""

import dataclasses
import functools

from fit.aliases import Json
from fit.lawbook.lawfile import Law
from fit.planning import building, mesh, recipe
from fit.planning.constraints import Constraints
from fit.shape import hardware
from fit.shape.architecture import BATCH_RAMP, Architecture, Model, training_flops


@dataclasses.dataclass(frozen=True)
class Shapes:
    """asked: fields of the architecture that the user gave; mesh_asked: what the user asked of the mesh."""

    asked: frozenset[str] = frozenset()
    mesh_asked: mesh.Asked = mesh.Asked()


def buildable(
    law: Law, architecture: Architecture, constraints: Constraints, optima: list[Json], best: Json, shapes: Shapes
) -> Json | None:
    """The row of the model to build, with its recipe and layout. None where none fits.

    n_experts counts as the trainer does, law_experts as the law does. loss_of_building: by how much its loss is above
    the best optimum's. layout: how the chips train it, None without chips.
    """

    # at the sizes of the law's runs a model has their shape and recipe; rounding may take it beyond them, or back
    beyond = not _of_own_sizes(law, best)
    for as_published in (beyond, not beyond):
        style = hardware.style_of(architecture, as_published, shapes.asked)
        layouts = functools.partial(_layout, law, constraints, shapes) if constraints.chips else None
        found = building.on_grid(law, architecture, constraints, optima, best, style, layouts)
        if found is None:
            return None
        own = recipe.recipe_of(law, found.model, found.n_tokens)
        if own.of_published_models == as_published:
            break
    return _row(architecture, best, found, own)


def _of_own_sizes(law: Law, planned: Json) -> bool:
    """Whether a planned optimum is not larger than the law's runs."""
    ends = law.ranges.get("n_active")
    return ends is not None and planned["n_active"] <= ends[1]


def _layout(
    law: Law, constraints: Constraints, shapes: Shapes, model: Model, n_tokens: int
) -> mesh.Layout | None:
    """How the chips train a model by its recipe; None where they cannot."""
    chips = constraints.chips
    own = recipe.recipe_of(law, model, n_tokens)
    ramp = own.batch_tokens or BATCH_RAMP
    shape = model.shape | dict(n_experts=model.n_experts)
    return chips and mesh.choose(shape, own.sequence, ramp, chips, shapes.mesh_asked, own.of_published_models)


def _row(architecture: Architecture, best: Json, found: building.Found, own: recipe.Recipe) -> Json:
    """The row of a plan's buildable model."""
    model, n_tokens = found.model, found.n_tokens
    forward = model.exact_flops_per_token(own.sequence)
    layout = found.layout
    if layout and own.batch_tokens:
        own = dataclasses.replace(own, batch_tokens=layout.batch_tokens)
    return dict(
        n_experts=model.n_experts,
        **model.shape,
        law_experts=hardware.law_experts(architecture, model.n_experts),
        **{name: getattr(model, name) for name in ("n_active", "n_total", "exact_parameters")},
        n_tokens=n_tokens,
        loss=found.loss,
        loss_of_building=found.loss - best["loss"],
        memory_bytes=found.memory,
        training_flops=training_flops(model.n_active, n_tokens),
        exact_forward_flops_per_token=forward,
        exact_training_flops=3 * forward * n_tokens,
        **own.row(),
        layout=dataclasses.asdict(layout) if layout else None,
    )
