"""The layout that a plan chooses."""

import dataclasses

import numpy as np

from fit.model.architecture import Ramp, training_flops
from fit.model.layout import Layout
from fit.planning.recipe import ramps
from fit.planning.space.candidates import BestCandidate


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedLayout(Layout):
    """A layout that the trainer can start, and what a step in it takes. batch_tokens are those of the largest batch.

    Attributes:
      group_tokens: as config.model.group_tokens.
      ramp: the batches, each a multiple of what the mesh must divide.
      device_bytes: memory of a device in its largest step.
      sent_bytes: bytes that a device sends in a step of the largest batch.
      sending_share: seconds of sending them at the peak of the chips' links, over seconds of computing a step.
    """

    group_tokens: int
    ramp: Ramp
    device_bytes: float
    sent_bytes: float
    sending_share: float


def layout_of(best: BestCandidate) -> PlannedLayout:
    """How the chips train a candidate."""
    problem = best.problem
    candidate = best.candidate
    models = best.models
    batch = int(candidate.batch_tokens[0])
    at_once = int(candidate.microbatch_tokens[0])
    ramp = ramps.ramp_on_mesh(batch, int(candidate.unit[0]), best.n_tokens, models.ramp)
    step = candidate.step(problem)  # its bytes for the best alone: for all candidates they cost a fourth of the search
    sent_bytes = float(np.squeeze(step.sent_bytes))
    # seconds of sending in a step, at the peak of the chips' links, over seconds of computing it at their MFU
    chips = problem.chips.with_count(best.n_chips)
    step_flops = training_flops(best.n_active, ramp[-1][1])
    computing = step_flops / chips.rate(round(models.law_experts))
    sending = sent_bytes * chips.n_devices / chips.count / chips.chip.network
    return PlannedLayout(
        batch_tokens=batch,
        sequence=models.sequence,
        data=int(candidate.data[0]),
        expert=int(candidate.expert[0]),
        model=int(candidate.model[0]),
        remat=problem.grid.remats[int(candidate.remat[0])],
        microbatch_tokens=0 if at_once == batch else at_once,
        flash=models.as_published,
        group_tokens=int(candidate.group_tokens[0]),
        ramp=ramp,
        device_bytes=float(np.squeeze(step.device_bytes)),
        sent_bytes=sent_bytes,
        sending_share=sending / computing,
    )
