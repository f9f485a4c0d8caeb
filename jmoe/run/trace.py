"""A trace of some steps of a segment, for TensorBoard's profiler and Perfetto: config.profile_steps."""

import contextlib
import tempfile
from collections.abc import Generator
from types import TracebackType

import jax
from etils import epath
from jaxtyping import Array, PyTree

from jmoe.errors import is_orderly
from jmoe.storage.files import copy_files


class Trace:
    """Traces the steps of config.profile_steps; the loop tells it what it launches."""

    def __init__(self, profile_steps: tuple[int, int] | None, folder: epath.Path, stop: int) -> None:
        """Begins without a trace.

        Args:
          profile_steps: The first step to trace and the step behind the last; None traces nothing.
          folder: The segment's folder, for the trace.
          stop: The step behind the segment's last one, where a trace ends at the latest.
        """
        self._steps = range(*(profile_steps or (0, 0)))
        self._last = min(self._steps.stop, stop) - 1
        self._folder = folder
        self._open = contextlib.ExitStack()

    def launching(self, step: int) -> None:
        """Called when `step` is about to be launched."""
        if self._steps and step == self._steps.start:
            self._open.enter_context(_tracing(self._folder))

    def launched(self, step: int, metrics: PyTree[Array]) -> None:
        """Called when `step` was launched; `metrics` will be ready when it is done."""
        if step == self._last:
            jax.block_until_ready(metrics)
            self._open.close()

    def __enter__(self) -> "Trace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if is_orderly(kind):
            self._open.close()


@contextlib.contextmanager
def _tracing(folder: epath.Path) -> Generator[None]:
    """Traces what runs in the `with` block, into `folder`."""
    with tempfile.TemporaryDirectory(prefix="jmoe-trace-") as scratch:
        with jax.profiler.trace(scratch):
            yield
        copy_files(scratch, folder)
