"""The model that a plan builds on the grid of shapes that hardware likes, with its recipe and its mesh: what the
trainer starts as it is emitted."""

import dataclasses

from fit.aliases import Json
from fit.errors import UserError
from fit.lawbook.lawfile import Law
from fit.planning import building, memory, mesh, recipe
from fit.planning.constraints import Chips, Constraints
from fit.shape import hardware
from fit.shape.architecture import BATCH_RAMP, Architecture, Model, training_flops
from fit.words import sentences

GROUP_TOKENS = 8192  # tokens that share the experts' capacity by the paper's recipe


@dataclasses.dataclass(frozen=True)
class Shapes:
    """asked: fields of the architecture that the user gave; mesh_asked: what the user asked of the mesh; family:
    whether models are built like a published one."""

    asked: frozenset[str] = frozenset()
    mesh_asked: mesh.Asked = mesh.Asked()
    family: bool = False


def buildable(
    law: Law, architecture: Architecture, constraints: Constraints, optima: list[Json], best: Json, shapes: Shapes
) -> tuple[Json | None, recipe.Recipe | None]:
    """(the row of the model to build, its recipe); None for both where none fits.

    n_experts counts as the trainer does, law_experts as the law does. loss_of_building: by how much its loss is above
    the best optimum's. layout: how the chips train it, None without chips.
    """

    # at the sizes of the law's runs a model has their shape and recipe; rounding may take it beyond them, or back
    beyond = shapes.family or not _of_own_sizes(law, best)
    for as_published in (beyond, not beyond):
        style = hardware.style_of(architecture, as_published, shapes.asked)
        found = None
        for hidden in (True, False):
            layouts = _Layouts(law, constraints.chips, shapes, hidden) if constraints.chips else None
            found = found or building.on_grid(law, architecture, constraints, optima, style, layouts)
        if found is None:
            asked = [f"--{name}" for name, value in _flags(shapes.mesh_asked) if value is not None]
            if asked:
                raise UserError(sentences.NO_SUCH_MESH.format(flags=" and ".join(asked)))
            return None, None
        own = recipe.recipe_of(law, found.model, found.n_tokens, shapes.family)
        if own.of_published_models == as_published:
            break
    return _row(architecture, constraints, best, found, own), own


def _flags(asked: mesh.Asked) -> list[tuple[str, object]]:
    """(flag, value) of what may be asked of a mesh."""
    return [("mesh_expert", asked.expert), ("mesh_model", asked.model), ("remat", asked.remat)]


def _of_own_sizes(law: Law, planned: Json) -> bool:
    """Whether a planned optimum is not larger than the law's runs."""
    ends = law.ranges.get("n_active")
    return ends is not None and planned["n_active"] <= ends[1]


class _Layouts:
    """Which layouts models have: what building.on_grid asks."""

    def __init__(self, law: Law, chips: Chips, shapes: Shapes, hidden: bool) -> None:
        """hidden: whether what a layout sends must take no longer than what it computes, at the chips' MFU."""
        self.law, self.chips, self.shapes, self.hidden = law, chips, shapes, hidden

    def can_start(self, model: Model, n_tokens: int) -> bool:
        """Whether there is a mesh of the chips that divides the model."""
        chips = self.chips
        return any(mesh.meshes(self._run(model, n_tokens), chips.n_devices, self.shapes.mesh_asked))

    def of(self, model: Model, n_tokens: int) -> mesh.Layout | None:
        """How the chips train a model by its recipe; None where they cannot."""
        chips = self.chips
        if memory.STATE * model.exact_parameters > chips.memory * chips.room:
            return None
        layout = mesh.choose(self._run(model, n_tokens), chips, self.shapes.mesh_asked)
        if layout is None:
            return None
        share = sending_share(layout, model, chips)
        if self.hidden and share > 1:
            return None
        return dataclasses.replace(layout, sending_share=share)

    def _run(self, model: Model, n_tokens: int) -> mesh.Run:
        own = recipe.recipe_of(self.law, model, n_tokens, self.shapes.family)
        shape = model.shape | dict(n_experts=model.n_experts)
        published = own.of_published_models
        group = own.sequence if published else GROUP_TOKENS
        return mesh.Run(shape, own.sequence, own.batch_tokens or BATCH_RAMP, group, flash=published)


def sending_share(layout: mesh.Layout, model: Model, chips: Chips) -> float:
    """How long a step sends, at the peak of the chips' links, over how long it computes at their MFU."""
    batch = layout.batch_tokens[-1][1]
    computing = training_flops(model.n_active, batch) / chips.rate(max(model.n_experts, 1))
    return layout.sent_bytes * chips.n_devices / chips.count / chips.chip.network / computing


def _row(
    architecture: Architecture, constraints: Constraints, best: Json, found: building.Found, own: recipe.Recipe
) -> Json:
    """The row of a plan's buildable model."""
    model, n_tokens = found.model, found.n_tokens
    forward = model.exact_flops_per_token(own.sequence)
    exact = own.exact_parameters(model)
    layout = found.layout
    if layout and own.batch_tokens:
        own = dataclasses.replace(own, batch_tokens=layout.batch_tokens)
    return dict(
        n_experts=model.n_experts,
        **model.shape,
        law_experts=hardware.law_experts(architecture, model.n_experts),
        n_active=model.n_active,
        n_total=model.n_total,
        exact_parameters=exact,
        n_tokens=n_tokens,
        loss=found.loss,
        loss_of_building=found.loss - best["loss"],
        memory_bytes=found.memory + constraints.bytes_per_parameter * (exact - model.exact_parameters),
        training_flops=training_flops(model.n_active, n_tokens),
        exact_forward_flops_per_token=forward,
        exact_training_flops=3 * forward * n_tokens,
        **own.row(),
        layout=layout and dataclasses.asdict(layout),
    )
