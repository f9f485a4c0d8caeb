"""Reports on the steps of a segment: its files (jmoe/run/log.py) and its progress."""

from types import TracebackType
from typing import Any

from jmoe.config.schedule import Schedule, Segment
from jmoe.errors import first_few, is_orderly
from jmoe.run import distributed
from jmoe.run.log import Log
from jmoe.run.progress import Progress
from jmoe.run.speed import Speed
from jmoe.run.step_metrics import StepMetrics


class Report:
    """Writes and shows what the loop tells of each step, in order.

    Its files are closed when the `with` block ends, also by UserError or Interrupted. After any other error they are
    left as they are: the store or the disk may be what failed.

    Attributes:
      log: Its files.
      speed: The clock of speed.jsonl.
      metrics: The sums over the segment's steps.
      progress: The bar, or the lines in its place.
    """

    def __init__(
        self,
        schedule: Schedule,
        segment: Segment,
        log_every: int,
        log: Log,
        speed: Speed,
        metrics: StepMetrics,
        progress: Progress,
    ) -> None:
        """Reports on `segment` of a run with this schedule every `log_every` steps; the others are its attributes."""
        self.log = log
        self.speed = speed
        self.metrics = metrics
        self.progress = progress
        self._schedule = schedule
        self._segment = segment
        self._log_every = log_every

    def __enter__(self) -> "Report":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.close()
        if is_orderly(kind):
            self.log.close()

    def finished(self, step: int, values: dict[str, Any]) -> None:
        """Called when `step` is done, once for each step.

        Writes every config.log_every steps, steps with a validation loss, and steps that were skipped.

        Args:
          step: The step.
          values: Its metrics as Python numbers.
        """
        n_tokens = self._schedule.tokens_at(step + 1)
        values = self.metrics.add(step, n_tokens - self._schedule.tokens_at(step), values)
        if "skipped_rows" in values:
            distributed.log(_skipping(step, self._segment, values))
        is_last = step == self._segment.stop - 1
        if step % self._log_every == 0 or is_last or "validation_loss" in values or "skipped_rows" in values:
            learning_rate = self._schedule.learning_rate(step, self._segment)
            speed = self.speed.line(n_tokens)
            self.log.write(step, {"n_tokens": n_tokens, "learning_rate": learning_rate} | values, speed)
            mfu = f", MFU {speed['mfu']:.1%}" if "mfu" in speed else ""
            self.progress.describe(
                f"loss {values['cross_entropy']:.3f}, {speed['tokens_per_second']:,.0f} tokens/s{mfu}"
            )
        self.progress.finished(step, n_tokens, values["cross_entropy"])


def _skipping(step: int, segment: Segment, values: dict[str, Any]) -> str:
    """The line on a step that was skipped."""
    by_source = values["skipped_rows"].items()
    rows = first_few((f"{source} {first_few(rows)}".strip() for source, rows in by_source), 4, "; ")
    return (
        f"WARNING: skipped step {step} of {segment.name}: its gradient norm of {values['grad_norm']:.4g} is "
        f"{values['grad_norm'] / values['grad_norm_median']:.1f} times the median, {values['grad_norm_median']:.4g}; "
        f"{values['skipped_steps']} steps skipped so far; its rows of the training text: {rows}"
    )
