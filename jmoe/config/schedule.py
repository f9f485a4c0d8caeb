"""The schedule: batch sizes, learning rate, trunk and branches, all counted in tokens. Plain Python, no arrays.

A run is one trunk at constant learning rate and, for each budget D in `config.n_tokens`, one branch that leaves the
trunk at 80% of D and decays to zero at D (Sec. 5.1.3). Step t sees the tokens [tokens_at(t), tokens_at(t + 1)): the
position in the data is one integer and follows from the step.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from ml_collections import ConfigDict

from jmoe.config import counts
from jmoe.config.check import check_config
from jmoe.errors import UserError

MAX_LOG_RATE = 88  # e^88 is about the largest float32


@dataclasses.dataclass(frozen=True)
class Segment:
    """Steps [start, stop) of the trunk (`decays` false) or of one branch (true)."""

    name: str  # directory under the workdir
    start: int
    stop: int
    decays: bool


class _Phase(NamedTuple):
    """Steps with batches of one size."""

    first_step: int
    first_token: int
    batch_tokens: int


class Schedule:
    """The schedule of one config.

    Attributes:
      peak: The peak learning rate.
      segments: The trunk up to a fork, its branch, the trunk up to the next fork, its branch, and so on.
    """

    def __init__(self, config: ConfigDict) -> None:
        """Raises UserError for a config that check_config refuses, and for budgets or a warm-up that do not fit."""
        check_config(config)
        self._phases = _phases(config)
        self._warmup_tokens = config.optimizer.warmup_tokens
        self.peak = self._peak_learning_rate(config)
        constant_fraction = 1 - config.optimizer.decay_fraction
        budgets = tuple(config.n_tokens)
        constant_tokens = constant_fraction * budgets[0]
        if self._warmup_tokens > constant_tokens:
            raise UserError(
                f"config.optimizer.warmup_tokens={self._warmup_tokens} is longer than the constant part of "
                f"the smallest budget in config.n_tokens, {constant_tokens:.0f} tokens of {budgets[0]}"
            )
        self.segments = self._segments(budgets, constant_fraction)

    def tokens_at(self, step: int) -> int:
        """Tokens seen before `step`."""
        phase = self._phase_of_step(step)
        return phase.first_token + (step - phase.first_step) * phase.batch_tokens

    def batch_at(self, step: int) -> int:
        """Tokens in the batch of `step`."""
        return self._phase_of_step(step).batch_tokens

    def step_at(self, n_tokens: float) -> int:
        """The first step before which at least `n_tokens` were seen."""
        phase = self._last_phase(lambda phase: phase.first_token < n_tokens or phase.first_token == 0)
        return phase.first_step + math.ceil((n_tokens - phase.first_token) / phase.batch_tokens)

    def learning_rate(self, step: int, segment: Segment) -> float:
        """Learning rate of `step`: zero at step 0, linear warm-up, peak, and in a branch linearly to zero."""
        n_tokens = self.tokens_at(step)
        rate = self.peak * min(1.0, n_tokens / max(self._warmup_tokens, 1))
        if segment.decays:
            fork = self.tokens_at(segment.start)
            stop = self.tokens_at(segment.stop)
            rate *= (stop - n_tokens) / (stop - fork)
        return rate

    def _peak_learning_rate(self, config: ConfigDict) -> float:
        """The learning rate of Eq. 10, by the full count of active parameters; UserError beyond float32."""
        law = config.optimizer.lr_law
        budget = tuple(config.n_tokens)[-1]
        log_peak = law.constant + law.n_active * math.log(counts.n_active(config.model))
        log_peak += law.n_experts * math.log(config.model.n_experts)
        log_peak += law.n_tokens * math.log(budget)
        log_peak += law.batch_tokens * math.log(self.batch_at(self.step_at(budget) - 1))
        if not -MAX_LOG_RATE < log_peak < MAX_LOG_RATE:
            raise UserError(f"config.optimizer.lr_law gives a peak learning rate of e^{log_peak:g}, beyond any float32")
        return math.exp(log_peak)

    def _segments(self, budgets: tuple[int, ...], constant_fraction: float) -> list[Segment]:
        """The segments of `self.segments`; UserError where a budget has no step of its own."""
        segments = []
        trunk_start = 0
        for budget in budgets:
            fork = self.step_at(constant_fraction * budget)
            stop = self.step_at(budget)
            if not trunk_start < fork < stop:
                raise UserError(
                    f"config.n_tokens={budgets}: budget {budget} has no step of its own at "
                    f"batches of {self.batch_at(stop)} tokens; space the budgets wider"
                )
            segments.append(Segment("trunk", trunk_start, fork, False))
            segments.append(Segment(f"branch-{budget}", fork, stop, True))
            trunk_start = fork
        return segments

    def _phase_of_step(self, step: int) -> _Phase:
        return self._last_phase(lambda phase: phase.first_step <= step)

    def _last_phase(self, has_begun: Callable[[_Phase], bool]) -> _Phase:
        return next(phase for phase in reversed(self._phases) if has_begun(phase))


def _phases(config: ConfigDict) -> list[_Phase]:
    """The phases of the batch ramp; each starts on a whole step."""
    (_, first_batch), *later = config.batch_tokens
    phases = [_Phase(0, 0, first_batch)]
    for from_token, batch_tokens in later:
        last = phases[-1]
        n_steps = math.ceil((from_token - last.first_token) / last.batch_tokens)
        first_token = last.first_token + n_steps * last.batch_tokens
        phases.append(_Phase(last.first_step + n_steps, first_token, batch_tokens))
    return phases
