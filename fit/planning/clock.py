"""Hours on chips as the budget of a plan: each model trains at its own modelled speed."""

import dataclasses
import math
from typing import Any

from fit.aliases import Numbers
from fit.model.efficiencies import Calibration
from fit.planning.grid import Grid, ShapeRequest

SECONDS = 3600  # of an hour


@dataclasses.dataclass(frozen=True)
class Clock:
    """Hours as the budget.

    Attributes:
      hours: That there are.
      calibration: What the chips reach.
      request: What the user fixes of shape and mesh.
      grid: What candidates are made of.
      at_most: A loss that is reached otherwise: models that lose more need not be found.
      found: Candidates that were evaluated, by what they were asked for (solve.py).
    """

    hours: Numbers
    calibration: Calibration
    request: ShapeRequest = ShapeRequest()
    grid: Grid = Grid()
    at_most: float = math.inf
    found: dict[tuple, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)
