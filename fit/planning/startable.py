"""The model that a plan builds on the grid of shapes that hardware likes, with its recipe and its mesh: what the
trainer starts as it is emitted."""

import dataclasses
import functools
import math

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.planning import building, memory, mesh, recipe
from fit.planning.clock import Clock
from fit.planning.constraints import Chips, Constraints
from fit.planning.timing import tokens_per_second
from fit.shape import hardware
from fit.shape.architecture import BATCH_RAMP, Architecture, Model, training_flops

GROUP_TOKENS = 8192  # tokens that share the experts' capacity by the paper's recipe


@dataclasses.dataclass(frozen=True)
class Shapes:
    """asked: fields of the architecture that the user gave; mesh_asked: what the user asked of the mesh; family:
    whether models are built like a published one."""

    asked: frozenset[str] = frozenset()
    mesh_asked: mesh.MeshRequest = mesh.MeshRequest()
    family: bool = False


def buildable(
    law: Law, architecture: Architecture, constraints: Constraints, optima: list[Json], best: Json, shapes: Shapes
) -> tuple[Json | None, recipe.Recipe | None]:
    """(the row of the model to build, its recipe); None for both where none fits.

    n_experts counts as the trainer does, law_experts as the law does. loss_of_building: by how much its loss is above
    the best optimum's. layout: how the chips train it, None without chips. modelled_speed: tokens per second in that
    layout; only by the clock, under which it trains on the tokens that its own speed leaves.
    """

    # at the sizes of the law's runs a model has their shape and recipe; rounding may take it beyond them, or back
    beyond = shapes.family or not of_own_sizes(law, best)
    for as_published in (beyond, not beyond):
        style = hardware.style_of(architecture, as_published, shapes.asked)
        found = None
        for hidden in (True, False) if constraints.clock is None else (False,):
            layouts = timed = None
            if constraints.chips:
                layouts = Layouts(law, constraints.chips, shapes, hidden, constraints.clock)
            if layouts and constraints.clock:
                timed = functools.partial(_timed, law, architecture, constraints, layouts)
            found = found or building.on_grid(law, architecture, constraints, optima, style, layouts, timed)
        if found is None:
            asked = [f"--{name}" for name, value in _flags(shapes.mesh_asked) if value is not None]
            if asked:
                raise UserError(sentences.NO_SUCH_MESH.format(flags=" and ".join(asked)))
            return None, None
        own = recipe.recipe_of(law, found.model, found.n_tokens, shapes.family)
        if own.of_published_models == as_published:
            break
    row = _row(architecture, constraints, best, found, own)
    if found.speed is not None:
        row["modelled_speed"] = found.speed
    return row, own


def _timed(
    law: Law, architecture: Architecture, constraints: Constraints, layouts: "Layouts", found: building.Found
) -> building.Found | None:
    """The model on the tokens that its own speed in its own layout leaves; None where the chips cannot train it, or on
    no token."""
    model, n_tokens = found.model, found.n_tokens
    for _ in range(2):  # the recipe's batch, and with it the speed, depends on the tokens
        timed = layouts.timed(model, n_tokens)
        if timed is None:
            return None
        layout, speed = timed
        n_tokens = math.floor(constraints.tokens_at(speed))
        if n_tokens < 1:
            return None
    loss = building.loss_of(law, architecture, model, n_tokens)
    return dataclasses.replace(found, n_tokens=n_tokens, loss=loss, layout=layout, speed=speed)


def _flags(asked: mesh.MeshRequest) -> list[tuple[str, object]]:
    """(flag, value) of what may be asked of a mesh."""
    return [("mesh_expert", asked.expert), ("mesh_model", asked.model), ("remat", asked.remat)]


def of_own_sizes(law: Law, planned: Json) -> bool:
    """Whether a planned optimum is not larger than the law's runs."""
    ends = law.ranges.get("n_active")
    return ends is not None and planned["n_active"] <= ends[1]


class Layouts:
    """Which layouts models have: what building.on_grid asks."""

    def __init__(
        self, law: Law, chips: Chips, shapes: Shapes, hidden: bool = False, clock: Clock | None = None
    ) -> None:
        """hidden: whether what a layout sends must take no longer than what it computes, at the chips' MFU. clock: with
        it, layouts are those of least time."""
        self.law, self.chips, self.shapes, self.hidden, self.clock = law, chips, shapes, hidden, clock

    def can_start(self, model: Model, n_tokens: int) -> bool:
        """Whether there is a mesh of the chips that divides the model."""
        chips = self.chips
        return any(mesh.meshes(self.run(model, n_tokens), chips.n_devices, self.shapes.mesh_asked))

    def of(self, model: Model, n_tokens: float) -> mesh.Layout | None:
        """How the chips train a model by its recipe; None where they cannot."""
        chips = self.chips
        if memory.STATE * model.exact_parameters > chips.memory * chips.room:
            return None
        run, clock = self.run(model, n_tokens), self.clock

        def slowness(one: mesh.Layout) -> float:
            """Seconds of a token."""
            assert clock is not None
            return 1 / tokens_per_second(clock.calibration, run, one, chips)

        layout = mesh.choose(run, chips, self.shapes.mesh_asked, slowness if clock else None)
        if layout is None:
            return None
        share = sending_share(layout, model, chips)
        if self.hidden and share > 1:
            return None
        return dataclasses.replace(layout, sending_share=share)

    def timed(self, model: Model, n_tokens: float) -> tuple[mesh.Layout, float] | None:
        """A model's layout by the clock, and its tokens per second there; None where the chips cannot train it."""
        assert self.clock is not None
        layout = self.of(model, n_tokens)
        if layout is None:
            return None
        return layout, tokens_per_second(self.clock.calibration, self.run(model, n_tokens), layout, self.chips)

    def run(self, model: Model, n_tokens: float) -> mesh.Run:
        """What a mesh is chosen for."""
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
