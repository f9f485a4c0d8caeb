"""Decides after each step of a segment whether to evaluate, save, export or stop.

All processes of a run call Timetable.after once a step, in the same order.
"""

import dataclasses
from collections.abc import Callable

from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from jmoe.config.schedule import Segment
from jmoe.run.save_times import SaveTimes


@dataclasses.dataclass(frozen=True)
class Due:
    """The actions that are due after a step, in the order in which they are done.

    Attributes:
      evaluation: Whether to measure the validation losses.
      save: Whether to save the state.
      stop: The signal for which to stop, once the state is saved; 0 for none.
      export: Whether to write the parameters for transformers.
    """

    evaluation: bool
    save: bool
    stop: int
    export: bool

    def __bool__(self) -> bool:
        """Whether anything is due. A stop always comes with a save."""
        return self.evaluation or self.save or self.export


class Timetable:
    """Says what is due after each step of a segment."""

    def __init__(self, config: ConfigDict, segment: Segment, start: int, stop_signal: Callable[[], int]) -> None:
        """Starts the clock of saves.

        Args:
          config: The run's config.
          segment: The segment that is trained.
          start: The steps that were done before: the segment's first step, or where it resumes.
          stop_signal: Returns the signal for which to save and stop, or 0.
        """
        self._segment = segment
        self._start = start
        self._stop_signal = stop_signal
        self._eval_every = config.eval_every
        self._snapshot_every = config.snapshot_every
        self._save_times = SaveTimes(config, start)

    def export_was_missed(self) -> bool:
        """Whether the process that trained the segment before may have ended between a save and the export after it."""
        return self._start > self._segment.start and _is_multiple(self._start, self._snapshot_every)

    def after(self, n_steps: int, params: PyTree[Array]) -> Due:
        """The actions that are due once `n_steps` steps are launched; `params` is the result of the last one."""
        stop = self._stop_signal()
        save_is_due = self._save_times.due(n_steps, params)
        return Due(
            evaluation=_is_multiple(n_steps, self._eval_every),
            save=save_is_due or stop != 0 or n_steps == self._segment.stop,
            stop=stop,
            export=_is_multiple(n_steps, self._snapshot_every),
        )

    def saved(self, n_steps: int) -> None:
        """Called when the state after `n_steps` steps was handed to the writer."""
        self._save_times.saved(n_steps)


def _is_multiple(n_steps: int, every: int) -> bool:
    """Whether an action of every `every` steps is due after `n_steps`; never if `every` is 0."""
    return every > 0 and n_steps % every == 0
