"""How the chips share a step of the model to build, and the memory that it takes."""

import dataclasses

from fit.aliases import Json
from fit.model import step_counts
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.cost import MeshCost
from fit.planning.chosen.planned_layout import PlannedLayout
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.training_chips import Chips
from fit.planning.space import fewest_chips
from fit.planning.space.meshes import GROUP_TOKENS


def of_buildable(built: Buildable, constraints: Constraints) -> Json:
    """{step_tokens, step_bytes, microbatch_tokens, mesh}: fields of BuildableCost.

    Args:
      built: The model to build. Without a layout the chips share a step as the user says, else by data alone.
      constraints: The chips, and the mesh that the user fixes.
    """
    assert constraints.chips is not None
    chips = constraints.chips.with_count(built.chips)
    if built.layout is not None:
        return _in_layout(built.layout, chips)
    return _on_fixed_mesh(built, constraints, chips)


def _in_layout(layout: PlannedLayout, chips: Chips) -> Json:
    """As of_buildable, in the layout that the plan has chosen."""
    batch = layout.ramp[-1][1]
    at_once = int(layout.microbatch_tokens)
    mesh = MeshCost(
        data=int(layout.data),
        expert=int(layout.expert),
        model=int(layout.model),
        remat=str(layout.remat),
        group_tokens=layout.group_tokens,
        sent_bytes=layout.sent_bytes,
        sending_share=layout.sending_share,
        least_bytes=None,
        step_bytes=layout.device_bytes,
        chips=chips.count,
        tokens_at_once=at_once or batch,
        device_memory=chips.device_memory,
    )
    return dict(
        step_tokens=batch,
        step_bytes=layout.device_bytes * chips.n_devices,
        microbatch_tokens=at_once or None,
        mesh=mesh,
    )


def _on_fixed_mesh(built: Buildable, constraints: Constraints, chips: Chips) -> Json:
    """As of_buildable, on the mesh that the user fixes, else on one of data alone.

    Where batches are not known, neither is the step.
    """
    fixed = constraints.request.fixed_mesh
    expert, model, remat = fixed.with_defaults
    data = chips.n_devices // (expert * model)
    smallest = fewest_chips.smallest_step(data, expert, model, remat)
    batches = [tokens for _, tokens in built.batch_tokens or []]

    def device_bytes(at_once: int) -> float:
        """Memory of a device in a step of the largest batch with so many tokens at once."""
        step = dataclasses.replace(
            smallest,
            batch_tokens=max(batches),
            microbatch_tokens=at_once,
            sequence=built.sequence,
            flash=built.recipe.as_published,
        )
        return float(step_counts.memory_of(built.shape, step))

    largest = None
    step_bytes = None
    at_once = None
    if batches:
        largest = max(batches)
        step_bytes = device_bytes(largest)
        if chips.n_devices * step_bytes > chips.memory:
            at_once = min(batches)
            while at_once > GROUP_TOKENS and chips.n_devices * device_bytes(at_once) > chips.memory:
                at_once //= 2
    mesh = None
    if fixed.is_given:
        mesh = MeshCost(
            data=data,
            expert=expert,
            model=model,
            remat=remat,
            least_bytes=float(step_counts.memory_of(built.shape, smallest)),
            step_bytes=step_bytes,
            chips=fewest_chips.fewest_chips_on_mesh(chips, built.shape, smallest),
        )
    return dict(
        step_tokens=largest,
        step_bytes=None if step_bytes is None else chips.n_devices * step_bytes,
        microbatch_tokens=at_once,
        mesh=mesh,
    )
