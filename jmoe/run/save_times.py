"""When a run saves: every `checkpoint_every` steps, or by wall-clock time. All processes save after the same step.

config.checkpoint_minutes replaces config.checkpoint_every. The clock is that of the first process. A process that runs
alone reads its clock in every step, and so saves after the first step that ends later. For several processes, reading
the first one's clock in every step would make every host wait for the devices in every step. So they agree on the next
step at which they read it: when, at the current pace, 2/3 of the remaining time will have passed, or LONGEST_WAIT of
the whole if that is less. That is about log3(steps between two saves) reads for each save. If steps become f times
slower, a save is late by at most LONGEST_WAIT times f of the time between two saves.
"""

import time
from collections.abc import Callable

import jax
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from jmoe.run import distributed

LONGEST_WAIT = 1 / 6  # of the time between two saves, from one look to the next


class SaveTimes:
    """Says after which steps of a segment to save. Every process must ask it after every step."""

    def __init__(self, config: ConfigDict, start: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts the clock.

        Args:
          config: The run's config.
          start: The number of steps that are done.
          clock: Returns seconds; that of the first process counts.
        """
        self._every = config.checkpoint_every
        self._keep_every = config.keep_every
        self._seconds = 60 * config.checkpoint_minutes
        self._clock = clock
        self._saved_at = clock()
        self._looked_at = (start, self._saved_at)  # steps that were done at the last look or save, and its time
        self._next_look = start + 1

    def due(self, step: int, params: PyTree[Array] | None = None) -> bool:
        """Whether to save now that `step` steps are launched.

        Args:
          step: The number of steps.
          params: What the last one computes. A look waits for it, since two programs that send must not run at once.
        """
        if self._keep_every and step % self._keep_every == 0:
            return True
        if not self._seconds:
            return step % self._every == 0
        if jax.process_count() == 1:
            return self._remaining() <= 0
        if step < self._next_look:
            return False
        jax.block_until_ready(params)
        n_steps = distributed.agreed(self._steps_until_look(step))
        self._next_look = step + n_steps
        return n_steps == 0

    def saved(self, step: int) -> None:
        """Called when the state after `step` steps was handed to the writer: the clock restarts."""
        self._saved_at = self._clock()
        self._looked_at = (step, self._saved_at)
        self._next_look = step + 1

    def _remaining(self) -> float:
        """Seconds until the next save."""
        return self._saved_at + self._seconds - self._clock()

    def _steps_until_look(self, step: int) -> int:
        """Steps until the next look, at least 1; 0 if the time of the save has come."""
        remaining = self._remaining()
        if remaining <= 0:
            return 0
        last_step, last_time = self._looked_at
        now = self._clock()
        n_steps = step - last_step
        self._looked_at = (step, now)
        seconds_per_step = max(now - last_time, 1e-9) / n_steps
        wait = min(remaining * 2 / 3, LONGEST_WAIT * self._seconds)
        return max(1, min(int(wait / seconds_per_step), 10 * n_steps))
