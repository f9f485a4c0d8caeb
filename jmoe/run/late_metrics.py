"""The metrics of each step, fetched one step late, so that the device never waits for the host."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from jmoe.config.schedule import Segment
from jmoe.run.checkpoint import Checkpoints
from jmoe.run.report import Report


class LateMetrics:
    """Passes the metrics of each step to a report, once and in order.

    It does so when the next step is launched, or when `finish` is called.
    """

    def __init__(self, report: Report, segment: Segment, checkpoints: Checkpoints) -> None:
        """Begins without a step.

        Args:
          report: The report of the segment.
          segment: The segment.
          checkpoints: Its checkpoints; the error of a divergence names the newest one.
        """
        self._report = report
        self._segment = segment
        self._checkpoints = checkpoints
        # the last step and its metrics, until they are fetched
        self._pending: tuple[int, PyTree[Array]] | None = None

    def launched(self, step: int, metrics: PyTree[Array]) -> None:
        """Called when `step` was launched. UserError where loss or gradient of the step before is not finite."""
        self._report.progress.launched()
        self.finish()
        self._pending = step, metrics

    def finish(self, losses: dict[str, float] | None = None) -> None:
        """Waits for the last step that was launched, and reports it, if that is not done yet.

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
        """The metrics of `step` as Python numbers; UserError where loss or gradient is not finite."""
        values = jax.tree.map(lambda x: x.tolist(), jax.device_get(metrics))
        if not np.isfinite(values["loss"]) or not np.isfinite(values["grad_norm"]):
            raise self._checkpoints.diverged(
                f"non-finite loss at step {step} of {self._segment.name} (loss {values['loss']}, gradient norm "
                f"{values['grad_norm']})"
            )
        return values
