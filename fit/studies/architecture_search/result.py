"""What `fit holistic` and `fit.holistic` return."""

import dataclasses

from fit.aliases import Json
from fit.results import Result, optional
from fit.studies.architecture_search.architecture import BudgetArchitecture
from fit.studies.architecture_search.fitted import SearchFit
from fit.studies.architecture_search.ranks import Ranks, Spread


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Holistic(Result):
    """A mixture's architecture and the laws behind it. Each part is None where nothing asks for it.

    Attributes:
      fit: The laws fitted to runs of several M/N_a and N/N_a, and to runs of several widths.
      control: How much the loss of these runs changes with what the laws leave out.
      rank: Whether architectures keep their rank when the width changes.
      refit: Eq. 2, the best FLOPs per token and tokens for each budget, fitted again.
      architecture: The complete architecture for a budget.
    """

    fit: SearchFit | None = optional()
    control: list[Spread] | None = optional()
    rank: Ranks | None = optional()
    refit: Json | None = optional()
    architecture: BudgetArchitecture | None = optional()
