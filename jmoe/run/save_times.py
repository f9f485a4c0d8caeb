"""When a run saves: every so many steps, or by the clock of its first process. All processes save after the same step.

config.checkpoint_minutes replaces config.checkpoint_every. Reading the first process's clock in every step would make
every host wait for the devices in every step. So the processes agree on the step at which they look again, when half of
the remaining time will have passed: about log2(steps between two saves) looks for each save.
"""

import time
from collections.abc import Callable

import jax
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from jmoe.config.schema import setting_of_run
from jmoe.run import distributed


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
        self._keep_every = setting_of_run(config, "keep_every")
        self._seconds = 60 * setting_of_run(config, "checkpoint_minutes")
        self._clock = clock
        self._saved_at = (start, clock())  # steps that were done at the last save, and its time
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
        if step < self._next_look:
            return False
        jax.block_until_ready(params)
        n_steps = distributed.agreed(self._steps_until_look(step))
        self._next_look = step + n_steps
        return n_steps == 0

    def saved(self, step: int) -> None:
        """Called when the state after `step` steps was handed to the writer: the clock starts anew."""
        self._saved_at = (step, self._clock())
        self._next_look = step + 1

    def _steps_until_look(self, step: int) -> int:
        """Steps in which half of the time until the next save will pass, at least 1; 0 if that time has come."""
        last_step, last_time = self._saved_at
        elapsed = self._clock() - last_time
        remaining = self._seconds - elapsed
        if remaining <= 0:
            return 0
        seconds_per_step = max(elapsed, 1e-9) / (step - last_step)
        return max(1, min(int(remaining / seconds_per_step / 2), 10 * (step - last_step)))
