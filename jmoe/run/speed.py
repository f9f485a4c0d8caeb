"""How fast a segment trains: the fields of speed.jsonl.

tokens_per_second  over the steps since the previous line
mfu                model FLOPs utilisation: tokens_per_second x counts.matmul_flops_per_token / (devices x peak FLOP/s
                   of one): active parameters only, no padding slots, no recomputation; left out on a CPU
input_wait         share of the time that the loop waited for its next batch
memory_bytes       most memory that a device had in use so far; on CPU, the process
save_seconds       that the loop waited for saves since the previous line, where there was a save
seconds            since the segment was started or resumed
"""

import contextlib
import resource
import sys
import time
from collections.abc import Generator

import jax
from ml_collections import ConfigDict

from jmoe.config import counts


class Speed:
    """Measures the speed from one line of speed.jsonl to the next."""

    def __init__(self, config: ConfigDict, peak_flops: float, n_tokens: int) -> None:
        """Begins to measure.

        Args:
          config: The run's config.
          peak_flops: bfloat16 FLOP/s of a device, 0 if unknown.
          n_tokens: Tokens of the run so far.
        """
        self._began = time.monotonic()
        self._since = self._began  # the time of the last line, later by the pauses since then
        self._n_tokens = n_tokens  # at the last line
        self._wait = 0.0  # seconds that the loop waited for input since the last line
        self._save = 0.0  # seconds that it waited for saves since then
        self._mfu_of_rate = 0.0  # MFU for each token a second; 0 if it is unknown
        if peak_flops:
            flops_per_token = sum(counts.matmul_flops_per_token(config.model, config.data.seq_len).values())
            self._mfu_of_rate = flops_per_token / (jax.device_count() * peak_flops)

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Counts the time that the `with` block takes as waiting for input."""
        began = time.monotonic()
        yield
        self._wait += time.monotonic() - began

    @contextlib.contextmanager
    def saving(self) -> Generator[None]:
        """Counts the time that the `with` block takes as waiting for a save."""
        began = time.monotonic()
        yield
        self._save += time.monotonic() - began

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Leaves out the time that the `with` block takes."""
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began

    def line(self, n_tokens: int) -> dict[str, float]:
        """The fields of a line after `n_tokens` of the run; the next line begins here."""
        now = time.monotonic()
        elapsed = max(now - self._since, 1e-9)
        rate = (n_tokens - self._n_tokens) / elapsed
        fields = {"tokens_per_second": round(rate, 1)}
        if self._mfu_of_rate:
            fields["mfu"] = round(rate * self._mfu_of_rate, 4)
        fields |= {"input_wait": round(self._wait / elapsed, 4), "memory_bytes": _memory_bytes()}
        if self._save:
            fields["save_seconds"] = round(self._save, 4)
        self._wait = 0.0
        self._save = 0.0
        self._since = now
        self._n_tokens = n_tokens
        return fields | {"seconds": round(now - self._began, 3)}


def _memory_bytes() -> int:
    """The most memory that a device had in use so far; on CPU, the process."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    if all(stats):
        return max(device_stats["peak_bytes_in_use"] for device_stats in stats)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
