"""How fast the chips train the models that a plan names, with the spread of what is known of it."""

import dataclasses

from fit.model.architecture import training_flops
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import SECONDS_PER_HOUR, Chips
from fit.planning.space import size_speeds
from fit.planning.space.candidates import BestCandidate
from fit.results import Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed(Record):
    """How fast the chips train a model. Each field is [10th percentile, median, 90th percentile].

    Attributes:
      tokens_per_second: Of all chips that train it.
      mfu: Model FLOPs utilisation, with 6 FLOPs for each active parameter and token.
      hours: Of the whole training, without inference tokens.
    """

    tokens_per_second: list[float]
    mfu: list[float]
    hours: list[float]


def speed_of_size(
    problem: Problem, n_experts: float, n_active: float, n_tokens: float
) -> tuple[Speed | None, int | None]:
    """The speed of a model of real size, between shapes of the grid, and how many chips train it.

    Both are None where the chips train no such model.
    """
    speed = size_speeds.speed_of_size(problem, n_experts, n_active, n_tokens)
    if speed is None:
        return None, None
    chips = problem.chips.with_count(speed.n_chips)
    return speed_of(problem, chips, speed.tokens_per_second, n_active, n_tokens), speed.n_chips


def speed_of_candidate(best: BestCandidate) -> Speed:
    """The speed of a candidate on its chips."""
    chips = best.problem.chips.with_count(best.n_chips)
    return speed_of(best.problem, chips, best.tokens_per_second, best.n_active, best.n_tokens)


def speed_of(problem: Problem, chips: Chips, tokens_per_second: float, n_active: float, n_tokens: float) -> Speed:
    """The speed of the training of a model of n_active parameters on n_tokens tokens.

    Args:
      problem: The problem, with the spread of speeds around the modelled ones.
      chips: The chips that train it.
      tokens_per_second: The modelled speed, of all of these chips.
      n_active: Active parameters.
      n_tokens: Training tokens.
    """
    assert problem.calibration is not None
    speeds = [tokens_per_second * factor for factor in problem.calibration.factors()]
    peak = chips.count * chips.chip.flops
    return Speed(
        tokens_per_second=speeds,
        mfu=[training_flops(n_active, speed) / peak for speed in speeds],
        hours=[n_tokens / speed / SECONDS_PER_HOUR for speed in reversed(speeds)],
    )
