"""The parts of the time until a process's first step."""

import time

import jax
from jaxtyping import Array, PyTree

from jmoe import startup
from jmoe.run import distributed


class FirstStep:
    """Measures the parts of the time until the first step, in the order in which they happen."""

    def __init__(self) -> None:
        """Begins where the process did, or now in a program that calls `train` itself."""
        now = time.monotonic()
        self._began = startup.began_at() or now
        self._parts = {"start-up": now - self._began}  # seconds by part
        self._last = now
        self._done = False

    def mark(self, part: str) -> None:
        """Ends a part, which began at the end of the previous one; does nothing after the first step."""
        if self._done:
            return
        now = time.monotonic()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now

    def finish(self, metrics: PyTree[Array]) -> None:
        """Waits for the metrics of the first step, and prints the parts; does nothing after the first step."""
        if self._done:
            return
        jax.block_until_ready(metrics)
        self.mark("step")
        self._done = True
        parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in self._parts.items())
        distributed.log(f"first step after {self._last - self._began:.1f} s: {parts}")
