"""What a plan solves: a law, an architecture, constraints and, on chips, what these reach."""

import dataclasses
import math

import numpy as np

from fit.aliases import Array, Floats, Numbers
from fit.fitted_law.law import Law
from fit.model import efficiencies, hardware
from fit.model.architecture import INFERENCE, TRAINING, Architecture
from fit.model.efficiencies import Calibration
from fit.planning.constraints import Constraints
from fit.planning.grid import Grid, ShapeRequest
from fit.planning.training_chips import SECONDS_PER_HOUR, Chips


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """What a plan solves.

    Attributes:
      law: The law of the loss.
      architecture: How models are built.
      constraints: The budget and the limits on models.
      experts: The numbers of experts to compare, as the law counts them.
      grid: Shapes and layouts to choose from.
    """

    law: Law
    architecture: Architecture
    constraints: Constraints
    experts: Floats = ()
    grid: Grid = Grid()

    @property
    def request(self) -> ShapeRequest:
        """The fields of shape and mesh that the user fixes."""
        return self.constraints.request or ShapeRequest()

    @property
    def padded(self) -> Architecture:
        """The architecture with the vocabulary that is built."""
        vocab_size = hardware.padded(self.architecture.vocab_size)
        return dataclasses.replace(self.architecture, vocab_size=vocab_size)

    @property
    def cap(self) -> float:
        """The most tokens to train on; infinite without a limit."""
        return math.inf if self.constraints.cap is None else float(np.asarray(self.constraints.cap))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemOnChips(Problem):
    """What a plan on chips solves.

    Attributes:
      chips: The chips to train on.
      calibration: The efficiencies of the chips.
    """

    chips: Chips
    calibration: Calibration

    def tokens(self, hours: Numbers, seconds_per_token: Numbers) -> Array:
        """Whole training tokens that hours leave beside inference tokens, each a third of one; perhaps negative."""
        return np.floor(np.minimum(SECONDS_PER_HOUR * np.asarray(hours) / seconds_per_token - self._served, self.cap))

    def hours(self, n_tokens: Numbers, seconds_per_token: Numbers) -> Array:
        """Hours of so many training tokens and of the inference tokens."""
        return (np.asarray(n_tokens) + self._served) * seconds_per_token / SECONDS_PER_HOUR

    @property
    def _served(self) -> Numbers:
        """Training tokens that take as long as the inference tokens."""
        return INFERENCE / TRAINING * self.constraints.inference_tokens


def problem_on_chips(law: Law, architecture: Architecture, constraints: Constraints) -> ProblemOnChips:
    """The problem of a plan on the chips of the constraints.

    Under a budget of FLOPs its speeds are our trainer's, or those of the constraints' calibration.
    """
    chips = constraints.chips
    assert chips is not None
    time_budget = constraints.time_budget
    grid = Grid()
    if time_budget is not None:
        calibration = time_budget.calibration
        grid = time_budget.grid
    else:
        calibration = constraints.calibration or efficiencies.of_our_trainer(chips.kind, chips.count)
    return ProblemOnChips(
        law=law, architecture=architecture, constraints=constraints, chips=chips, calibration=calibration, grid=grid
    )
