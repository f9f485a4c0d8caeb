"""The schedule: batch sizes, learning rate, trunk and branches, all counted in tokens. Plain Python, no arrays.

A run is one trunk at constant learning rate and, for each budget D in `config.n_tokens`, one branch that leaves the
trunk at 80% of D and decays to zero at D (Sec. 5.1.3). Step t sees the tokens [tokens_at(t), tokens_at(t + 1)): the
position in the data is one integer and follows from the step.
"""

import dataclasses
import math

from jmoe.config import counts
from jmoe.config.check import check_config
from jmoe.errors import UserError


@dataclasses.dataclass(frozen=True)
class Segment:
    """Steps [start, stop) of the trunk (`decays` false) or of one branch (true)."""

    name: str  # directory under the workdir
    start: int
    stop: int
    decays: bool


class Schedule:
    """The schedule of one config; UserError for a config that check_config refuses, and for budgets and a warm-up that
    do not fit together."""

    def __init__(self, config):
        check_config(config)
        self._phases, self._warmup_tokens = _phases(config), config.optimizer.warmup_tokens
        law, budgets, constant = config.optimizer.lr_law, tuple(config.n_tokens), 1 - config.optimizer.decay_fraction
        by_size = law.n_active * math.log(counts.n_active(config.model))  # Eq. 10, full active count
        log_peak = law.constant + by_size + law.n_experts * math.log(config.model.n_experts)
        log_peak += law.get("n_tokens", 0.0) * math.log(budgets[-1])
        log_peak += law.get("batch_tokens", 0.0) * math.log(self.batch_at(self.step_at(budgets[-1]) - 1))
        if not -88 < log_peak < 88:
            raise UserError(f"config.optimizer.lr_law gives a peak learning rate of e^{log_peak:g}, beyond any float32")
        self.peak = math.exp(log_peak)

        first = constant * budgets[0]
        if self._warmup_tokens > first:
            raise UserError(
                f"config.optimizer.warmup_tokens={self._warmup_tokens} is longer than the constant part of "
                f"the smallest budget in config.n_tokens, {first:.0f} tokens of {budgets[0]}"
            )
        self.segments = []  # trunk up to a fork, its branch, trunk up to the next fork, ...
        trunk = 0
        for budget in budgets:
            fork, stop = self.step_at(constant * budget), self.step_at(budget)
            if not trunk < fork < stop:
                raise UserError(
                    f"config.n_tokens={budgets}: budget {budget} has no step of its own at "
                    f"batches of {self.batch_at(stop)} tokens; space the budgets wider"
                )
            self.segments.append(Segment("trunk", trunk, fork, False))
            self.segments.append(Segment(f"branch-{budget}", fork, stop, True))
            trunk = fork

    def tokens_at(self, step: int) -> int:
        """Tokens seen before `step`."""
        first_step, first_token, batch = self._phase(lambda phase: phase[0] <= step)
        return first_token + (step - first_step) * batch

    def batch_at(self, step: int) -> int:
        """Tokens in the batch of `step`."""
        return self._phase(lambda phase: phase[0] <= step)[2]

    def step_at(self, n_tokens: float) -> int:
        """The first step before which at least `n_tokens` were seen."""
        first_step, first_token, batch = self._phase(lambda phase: phase[1] < n_tokens or phase[1] == 0)
        return first_step + math.ceil((n_tokens - first_token) / batch)

    def learning_rate(self, step: int, segment: Segment) -> float:
        """Learning rate of `step`: zero at step 0, linear warm-up, peak, and in a branch linearly to zero."""
        n_tokens = self.tokens_at(step)
        rate = self.peak * min(1.0, n_tokens / max(self._warmup_tokens, 1))
        if segment.decays:
            fork, stop = self.tokens_at(segment.start), self.tokens_at(segment.stop)
            rate *= (stop - n_tokens) / (stop - fork)
        return rate

    def _phase(self, holds):
        return next(phase for phase in reversed(self._phases) if holds(phase))


def _phases(config) -> list[tuple[int, int, int]]:
    """(first step, first token, batch tokens) of each phase of the batch ramp; a phase starts on a whole step."""
    (_, batch), *later = config.batch_tokens
    phases = [(0, 0, batch)]
    for from_token, batch in later:
        step, token, previous = phases[-1]
        steps = math.ceil((from_token - token) / previous)
        phases.append((step + steps, token + steps * previous, batch))
    return phases
