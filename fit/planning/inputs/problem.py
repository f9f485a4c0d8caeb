"""The problem of a plan: a law, an architecture, a budget with limits, numbers of experts, and what the chips reach."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from fit.aliases import Array, Floats, Numbers
from fit.fitted_law.law import Law
from fit.model import efficiencies, hardware
from fit.model.architecture import INFERENCE, TRAINING, Architecture
from fit.model.efficiencies import Calibration, Efficiencies
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.grid import Grid
from fit.planning.inputs.requests import ShapeRequest
from fit.planning.inputs.training_chips import MFU, SECONDS_PER_HOUR, Chips

AS_GOOD = 1e-4  # as good as the best: within this share of its loss
BAND = 1e-3  # near-optimal: within this share of the best loss; a search by hours evaluates all such candidates
PLATEAU = 0.75  # where a model of this share of the best size is as good, larger ones gain nothing


@dataclasses.dataclass(frozen=True)
class Problem:
    """The problem of a plan.

    Hours are the budget, and speeds are modelled, where chips are given without --mfu and --shape=paper. Otherwise
    hours become the FLOPs of an MFU. A loss to reach becomes the least budget that reaches it (search/target.py).

    options                             is_by_hours   has_modelled_speeds   has_paper_shape   best size by
    --chips --hours                     yes           yes                   no                search/by_hours.py
    --chips --flops                     no            yes                   no                search/by_flops.py
    --chips --mfu --hours or --flops    no            no                    no                search/by_flops.py
    --flops, or limits alone            no            no                    no                search/by_flops.py
    any of these, --shape=paper         no            no                    yes               search/by_flops.py

    By hours the best candidate is the model to build. By FLOPs the best size is a real number, near which
    chosen/shape_choice.py finds the model to build.

    Attributes:
      law: The law of the loss.
      architecture: How models are built.
      constraints: The budget and the limits on models.
      experts: The numbers of experts to compare, as the law counts them.
      calibration: What the chips reach, where hours are the budget, or follow from the speed of each model.
      grid: Shapes and layouts to choose from.
      loss_cutoff: The search by hours may skip models that lose more: another reaches this loss.
      plateau_tolerance: On a plateau of the loss, the smallest model counts as the best whose loss is within this share
        of the lowest.
    """

    law: Law
    architecture: Architecture
    constraints: Constraints
    experts: Floats = ()
    calibration: Calibration | None = None
    grid: Grid = Grid()
    loss_cutoff: float = math.inf
    plateau_tolerance: float = 0.0

    @property
    def is_by_hours(self) -> bool:
        """Whether hours on the chips are the budget, at the speed of each model."""
        return self.constraints.hours is not None

    @property
    def has_modelled_speeds(self) -> bool:
        """Whether each model has its own speed on the chips."""
        return self.calibration is not None

    @property
    def has_paper_shape(self) -> bool:
        """Whether models have whole blocks and heads of the paper's shape, not widths and meshes that are chosen."""
        return self.constraints.has_paper_shape

    @property
    def budget_hours(self) -> float:
        """The budget of a problem by hours, one number."""
        assert self.constraints.hours is not None
        return float(np.asarray(self.constraints.hours))

    @property
    def chips(self) -> Chips:
        """The chips to train on, of a problem that has some."""
        assert self.constraints.chips is not None
        return self.constraints.chips

    @functools.cached_property
    def efficiencies(self) -> Efficiencies:
        """The efficiencies of the chips: our trainer's, unless the problem has a calibration."""
        chips = self.chips
        calibration = self.calibration
        if calibration is None:
            calibration = efficiencies.of_our_trainer(chips.kind, chips.count)
        return calibration.efficiencies(chips.kind)

    @property
    def request(self) -> ShapeRequest:
        """The fields of shape and mesh that the user fixes."""
        return self.constraints.request

    @property
    def padded_architecture(self) -> Architecture:
        """The architecture with the vocabulary that is built."""
        vocab_size = hardware.padded(self.architecture.vocab_size)
        return dataclasses.replace(self.architecture, vocab_size=vocab_size)

    @property
    def as_counted(self) -> Architecture:
        """The architecture with the vocabulary that counts of the best models have: by hours that which is built."""
        return self.padded_architecture if self.is_by_hours else self.architecture

    @property
    def cap(self) -> float:
        """The most tokens to train on; infinite without a limit."""
        most = self.constraints.max_tokens_read
        return math.inf if most is None else float(np.asarray(most))

    def tokens_within_hours(self, hours: Numbers, seconds_per_token: Numbers) -> Array:
        """Whole training tokens that hours leave beside inference tokens, each a third of one; perhaps negative."""
        return np.floor(
            np.minimum(SECONDS_PER_HOUR * np.asarray(hours) / seconds_per_token - self.inference_equivalent, self.cap)
        )

    def hours(self, n_tokens: Numbers, seconds_per_token: Numbers) -> Array:
        """Hours of n_tokens of training and of the inference tokens."""
        return (np.asarray(n_tokens) + self.inference_equivalent) * seconds_per_token / SECONDS_PER_HOUR

    @property
    def inference_equivalent(self) -> Numbers:
        """Training tokens that take as long as the inference tokens."""
        return INFERENCE / TRAINING * self.constraints.inference_tokens

    def within(self, **changes: Any) -> "Problem":
        """This problem within constraints of which some fields are others."""
        return dataclasses.replace(self, constraints=dataclasses.replace(self.constraints, **changes))

    def on_chips(self, count: int) -> "Problem":
        """This problem on `count` of its chips."""
        return self.within(chips=dataclasses.replace(self.chips, count=count))

    def at(self, n_experts: Numbers) -> "Problem":
        """This problem for models of n_experts, a number or an array: with the FLOPs of these."""
        return dataclasses.replace(self, constraints=self.constraints.at(n_experts))

    def with_budget(self, budget: Numbers) -> "Problem":
        """This problem with another budget of the same kind."""
        return self.within(hours=budget) if self.is_by_hours else self.within(flops=budget)

    @functools.cached_property
    def candidates_key(self) -> "Problem":
        """The key of its candidates: this problem without its budget and numbers of experts. It is hashable."""
        chips = self.constraints.chips
        if chips is not None:
            chips = dataclasses.replace(chips, mfu=MFU)
        problem = self.within(flops=None, hours=None, chips=chips)
        return dataclasses.replace(problem, experts=())

    @functools.cached_property
    def shapes_key(self) -> "Problem":
        """The key of its models: this problem without budget, tokens, chips and their speeds. It is hashable."""
        problem = self.candidates_key.within(chips=None, max_tokens=None, epochs=None, inference_tokens=0.0)
        return dataclasses.replace(problem, calibration=None, loss_cutoff=math.inf)
