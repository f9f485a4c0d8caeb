"""What a plan was solved for: the law, the models and the limits that its numbers follow from."""

import dataclasses

from fit.aliases import Floats
from fit.fitted_law.law import Law
from fit.planning.constraints import Constraints
from fit.shape.architecture import Architecture


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a plan was solved for.

    Attributes:
      law: The law, of repeated text where the plan reads its text again.
      architecture: How models are built.
      constraints: The budget and the limits.
      experts: The numbers of experts compared.
    """

    law: Law
    architecture: Architecture
    constraints: Constraints
    experts: Floats
