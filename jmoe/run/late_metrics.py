"""The metrics of each step, fetched one step late, so that the device never waits for the host."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from jmoe.run.checkpoint import Checkpoints
from jmoe.run.metrics import Report
from jmoe.run.schedule import Segment


class LateMetrics:
    """Tells a report of each step once, in order: when the next one is launched, or when `finish` is called."""

    def __init__(self, report: Report, segment: Segment, checkpoints: Checkpoints) -> None:
        """`checkpoints`: of the segment; an error names the newest one."""
        self._report = report
        self._segment = segment
        self._checkpoints = checkpoints
        self._pending: tuple[int, PyTree[Array]] | None = (
            None  # the last step and its metrics, if they were not fetched
        )

    def launched(self, step: int, metrics: PyTree[Array]) -> None:
        """Called when `step` was launched. UserError where loss or gradient of the step before is not finite."""
        self._report.started(step, metrics)
        self.finish()
        self._pending = step, metrics

    def finish(self, losses: dict[str, float] | None = None) -> None:
        """Waits for the last step that was launched, if it was not told of yet.

        Args:
          losses: Validation losses and perplexities after it.

        Raises:
          UserError: Its loss or gradient is not finite.
        """
        if self._pending is None:
            return
        step, metrics = self._pending
        self._pending = None
        self._report.finished(step, self._fetched(step, metrics) | (losses or {}))

    def _fetched(self, step: int, metrics: PyTree[Array]) -> dict[str, Any]:
        """The metrics of `step` as Python numbers, once it is done."""
        values = jax.tree.map(lambda x: x.tolist(), jax.device_get(metrics))
        if not np.isfinite(values["loss"]) or not np.isfinite(values["grad_norm"]):
            raise self._checkpoints.diverged(
                f"non-finite loss at step {step} of {self._segment.name} (loss {values['loss']}, gradient norm "
                f"{values['grad_norm']})"
            )
        return values
