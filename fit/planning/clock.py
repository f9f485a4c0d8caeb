"""Hours on chips as the budget of a plan: each model trains at its own modelled speed."""

import dataclasses
import math

from fit.aliases import Numbers
from fit.model.efficiencies import Calibration
from fit.planning.grid import Grid

SECONDS = 3600  # of an hour


@dataclasses.dataclass(frozen=True)
class Clock:
    """Hours as the budget.

    Attributes:
      hours: The budget.
      calibration: What the chips reach.
      grid: Shapes and layouts to choose from.
      at_most: A loss that is reached otherwise: the search may skip models that lose more.
    """

    hours: Numbers
    calibration: Calibration
    grid: Grid = Grid()
    at_most: float = math.inf
