"""The layout that a plan chooses."""

import dataclasses

from fit.model.architecture import Ramp
from fit.model.layout import Layout


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
