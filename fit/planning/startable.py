"""The model that a plan builds on the grid of shapes that hardware likes, with its recipe and its mesh.

The trainer starts it as it is emitted.
"""

import dataclasses

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.model.efficiencies import Calibration
from fit.planning import building, candidates, memory, mesh, recipe, solve
from fit.planning.candidates import Problem
from fit.planning.constraints import Chips, Constraints
from fit.planning.extrapolation import extrapolation_of
from fit.planning.grid import Grid, ShapeRequest
from fit.planning.results import Buildable, Optimum
from fit.shape import hardware
from fit.shape.architecture import BATCH_RAMP, Architecture, Model, training_flops


def buildable(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    optima: list[Optimum],
    best: Optimum,
    shapes: ShapeRequest,
) -> tuple[Buildable | None, recipe.Recipe | None]:
    """The model to build and its recipe; None for both where no model fits.

    Where hours are priced at modelled speeds, its layout is that of least time.

    Args:
      law: The law that plans.
      architecture: How the optima are built.
      constraints: What the model must respect.
      optima: The best model with each number of experts.
      best: The best of them.
      shapes: The fields of shape and mesh that the user fixes.

    Raises:
      UserError: The user fixes a mesh that no model fits.
    """
    # at the sizes of the law's runs a model has their shape and recipe; rounding may take it beyond them, or back
    is_beyond = shapes.family or not is_within_runs(law, best.n_active)
    for as_published in (is_beyond, not is_beyond):
        style = hardware.style_of(architecture, as_published, shapes.fixed)
        candidate = _candidate(law, architecture, constraints, optima, style, shapes)
        if candidate is None:
            flags = [f"--{name}" for name, value in _mesh_options(shapes.fixed_mesh) if value is not None]
            if flags:
                raise UserError(sentences.NO_SUCH_MESH.format(flags=" and ".join(flags)))
            return None, None
        candidate = _in_least_time(law, architecture, constraints, candidate, shapes)
        batches = candidate.layout.batch_tokens if candidate.layout and constraints.calibration else None
        run_recipe = recipe.recipe_of(law, candidate.model, candidate.n_tokens, shapes.family, batches)
        if run_recipe.of_published_models == as_published:
            break
    experts = hardware.law_experts(architecture, candidate.model.n_experts)
    # the recipe's norms are not those of the candidate's count
    more = run_recipe.exact_parameters(candidate.model) - candidate.model.exact_parameters
    candidate = dataclasses.replace(
        candidate, memory_bytes=candidate.memory_bytes + constraints.bytes_per_parameter * more
    )
    batch_tokens = run_recipe.batch_tokens
    if candidate.layout and batch_tokens:  # each batch a multiple of what the mesh divides
        batch_tokens = candidate.layout.batch_tokens
    on_mesh = dataclasses.replace(run_recipe, batch_tokens=batch_tokens)
    return buildable_of(law, architecture, best, candidate, on_mesh, experts), run_recipe


def _candidate(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    optima: list[Optimum],
    style: hardware.Style,
    shapes: ShapeRequest,
) -> building.Candidate | None:
    """The model of the grid to build.

    A model that sends no longer than it computes is preferred. Where few models divide over all chips, some chips may
    stand idle.
    """
    chips = constraints.chips
    if chips is None:
        return building.on_grid(law, architecture, constraints, optima, style, None)
    fewer = Grid().counts_of(chips.chip, chips.count)[-1]
    built = []
    for count in dict.fromkeys((chips.count, fewer)):
        for hidden in (True, False):
            layouts = Layouts(law, dataclasses.replace(chips, count=count), shapes, hidden)
            candidate = building.on_grid(law, architecture, constraints, optima, style, layouts)
            if candidate:
                built.append(candidate)
                break
    return min(built, key=lambda candidate: candidate.loss, default=None)


def buildable_of(
    law: Law,
    architecture: Architecture,
    best: Optimum,
    candidate: building.Candidate,
    run_recipe: recipe.Recipe,
    law_experts: float | None = None,
) -> Buildable:
    """A candidate as the model that a plan builds.

    Args:
      law: The law that plans.
      architecture: How the optima are built.
      best: The best optimum.
      candidate: The model, its tokens and its loss.
      run_recipe: How to train it.
      law_experts: Its number of experts as the law counts them; None where the model counts as the law does.
    """
    model = candidate.model
    shape: Json = dict(model.shape)
    forward = model.exact_flops_per_token(run_recipe.sequence)
    return Buildable(
        n_experts=model.n_experts,
        **shape,
        law_experts=law_experts,
        n_active=model.n_active,
        n_total=model.n_total,
        exact_parameters=run_recipe.exact_parameters(model),
        n_tokens=candidate.n_tokens,
        loss=candidate.loss,
        loss_of_building=candidate.loss - best.loss,
        memory_bytes=candidate.memory_bytes,
        training_flops=training_flops(model.n_active, candidate.n_tokens),
        exact_forward_flops_per_token=forward,
        exact_training_flops=3 * forward * candidate.n_tokens,
        **run_recipe.row(),
        rate_note=recipe.rate_note(law, model, candidate.n_tokens, run_recipe),
        layout=candidate.layout,
        extrapolation=extrapolation_of(
            law,
            architecture,
            n_experts=model.n_experts if law_experts is None else law_experts,
            n_active=model.n_active,
            n_tokens=candidate.n_tokens,
            n_total=model.n_total,
            shape=(model.d_model, model.n_blocks),
        ),
        modelled_speed=candidate.speed,
        explicit=() if law_experts is None else ("layout",),
    )


def _in_least_time(
    law: Law, architecture: Architecture, constraints: Constraints, candidate: building.Candidate, shapes: ShapeRequest
) -> building.Candidate:
    """The same model on the same tokens, in its layout of least time and with its speed there.

    Its batch is one that the laws of batch allow. Chips that would not make it faster stand idle. Without a calibration
    or a layout, the candidate is returned as it is.
    """
    if constraints.chips is None or constraints.calibration is None or candidate.layout is None:
        return candidate
    problem = Problem(law, architecture, constraints, constraints.chips, shapes, constraints.calibration)
    run_recipe = recipe.recipe_of(law, candidate.model, candidate.n_tokens, shapes.family)
    models = candidates.of_model(problem, candidate.model, run_recipe.of_published_models)
    chosen = solve.fastest(problem, models, candidate.n_tokens)
    if chosen is None:
        layouts = Layouts(law, constraints.chips, shapes, calibration=constraints.calibration)
        timed = layouts.timed(candidate.model, candidate.n_tokens)
        if timed is None:
            return candidate
        return dataclasses.replace(candidate, layout=timed[0], speed=timed[1])
    return dataclasses.replace(candidate, layout=layout_of(chosen), speed=chosen.tokens_per_second)


def layout_of(chosen: solve.Best) -> mesh.Layout:
    """How the chips train a candidate."""
    problem = chosen.problem
    candidate = chosen.candidate
    models = chosen.models
    batch = int(candidate.batch_tokens[0])
    at_once = int(candidate.microbatch_tokens[0])
    device_bytes, sent_bytes = solve.bytes_of(chosen)
    layout = mesh.Layout(
        data=int(candidate.data[0]),
        expert=int(candidate.expert[0]),
        model=int(candidate.model[0]),
        remat=problem.grid.remats[int(candidate.remat[0])],
        microbatch_tokens=0 if at_once == batch else at_once,
        group_tokens=int(candidate.group_tokens[0]),
        batch_tokens=recipe.ramp_on_mesh(batch, int(candidate.unit[0]), chosen.n_tokens, models.as_published),
        device_bytes=device_bytes,
        sent_bytes=sent_bytes,
    )
    chips = dataclasses.replace(problem.chips, count=chosen.chips)
    n_experts = int(np.asarray(models.shape.n_experts))
    share = sending_share(layout, float(models.n_active[chosen.row]), n_experts, chips)
    return dataclasses.replace(layout, sending_share=share)


def _mesh_options(fixed: mesh.MeshRequest) -> list[tuple[str, object]]:
    """(flag, value) of the options about the mesh."""
    return [("mesh_expert", fixed.expert), ("mesh_model", fixed.model), ("remat", fixed.remat)]


def is_within_runs(law: Law, n_active: float) -> bool:
    """Whether a size is not above those of the law's runs."""
    ends = law.ranges.get("n_active")
    return ends is not None and n_active <= ends[1]


class Layouts:
    """The layouts of models on chips, as building.on_grid asks for them."""

    def __init__(
        self, law: Law, chips: Chips, shapes: ShapeRequest, hidden: bool = False, calibration: Calibration | None = None
    ) -> None:
        """Layouts of models of a law on chips.

        Args:
          law: The law that plans.
          chips: The chips to train on.
          shapes: The fields of shape and mesh that the user fixes.
          hidden: Whether sending must take no longer than computing, at the chips' MFU.
          calibration: The efficiencies of the chips. With them, layouts are the fastest ones.
        """
        self.law = law
        self.chips = chips
        self.shapes = shapes
        self.hidden = hidden
        self.calibration = calibration

    def can_start(self, model: Model, n_tokens: int) -> bool:
        """Whether there is a mesh of the chips that divides the model."""
        return any(mesh.meshes(self.run(model, n_tokens), self.chips.n_devices, self.shapes.fixed_mesh))

    def of(self, model: Model, n_tokens: float) -> mesh.Layout | None:
        """How the chips train a model by its recipe; None where they cannot."""
        chosen = self._chosen(model, n_tokens)
        return None if chosen is None else chosen[0]

    def timed(self, model: Model, n_tokens: float) -> tuple[mesh.Layout, float] | None:
        """A model's layout of least time, and its tokens per second there; None where the chips cannot train it."""
        assert self.calibration is not None
        return self._chosen(model, n_tokens)

    def _chosen(self, model: Model, n_tokens: float) -> tuple[mesh.Layout, float] | None:
        """(the layout, tokens per second), as mesh.choose has them."""
        chips = self.chips
        if memory.STATE * model.exact_parameters > chips.memory * chips.room:
            return None
        chosen = mesh.choose(self.run(model, n_tokens), chips, self.shapes.fixed_mesh, self.calibration)
        if chosen is None:
            return None
        layout, tokens_per_second = chosen
        share = sending_share(layout, model.n_active, model.n_experts, chips)
        if self.hidden and share > 1:
            return None
        return dataclasses.replace(layout, sending_share=share), tokens_per_second

    def run(self, model: Model, n_tokens: float) -> mesh.Run:
        """The training run of a model by its recipe, for which a mesh is chosen."""
        run_recipe = recipe.recipe_of(self.law, model, n_tokens, self.shapes.family)
        shape = model.shape | dict(n_experts=model.n_experts)
        is_published = run_recipe.of_published_models
        group_tokens = run_recipe.sequence if is_published else mesh.GROUP_TOKENS
        batches = run_recipe.batch_tokens or BATCH_RAMP
        return mesh.Run(shape, run_recipe.sequence, batches, group_tokens, flash=is_published)


def sending_share(layout: mesh.Layout, n_active: float, n_experts: int, chips: Chips) -> float:
    """Seconds of sending in a step, at the peak of the chips' links, over seconds of computing it at their MFU."""
    batch = layout.batch_tokens[-1][1]
    computing = training_flops(n_active, batch) / chips.rate(max(n_experts, 1))
    return layout.sent_bytes * chips.n_devices / chips.count / chips.chip.network / computing
