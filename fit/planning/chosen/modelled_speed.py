"""How fast the chips train the models that a plan has chosen, with the spread of what is known of it."""

import dataclasses

from fit.model.architecture import training_flops
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import SECONDS_PER_HOUR, Chips
from fit.planning.space import size_speeds
from fit.planning.space.candidates import BestCandidate
from fit.planning.space.size_speeds import SizeSpeed
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


def speed_and_chips(
    problem: Problem, candidate: BestCandidate | None, n_experts: float, n_active: float, n_tokens: float
) -> tuple[Speed | None, int | None]:
    """(the speed of a model, how many of the chips train it).

    The speed is None where none is modelled, or the chips train no such model. The number is None for all chips.

    Args:
      problem: The problem.
      candidate: The candidate that it is; None for a size between shapes of the grid.
      n_experts: Its experts, as the law counts them.
      n_active: Its active parameters.
      n_tokens: Its training tokens.
    """
    trained: BestCandidate | SizeSpeed | None = candidate
    if candidate is None and problem.has_modelled_speeds:
        trained = size_speeds.speed_of_size(problem, n_experts, n_active, n_tokens)
    if trained is None:
        return None, None
    speed = None
    if problem.has_modelled_speeds:
        chips = problem.chips.with_count(trained.n_chips)
        speed = _speed(problem, chips, trained.tokens_per_second, n_active, n_tokens)
    return speed, None if trained.n_chips == problem.chips.count else trained.n_chips


def _speed(problem: Problem, chips: Chips, tokens_per_second: float, n_active: float, n_tokens: float) -> Speed:
    """The speed of a training.

    Args:
      problem: The problem, with the spread of speeds around the modelled ones.
      chips: The chips that train the model.
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
