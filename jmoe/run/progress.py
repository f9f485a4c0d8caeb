"""The progress of a segment: a bar on a terminal, else a line every LINE_SECONDS."""

import time

import jax
from tqdm import tqdm

from jmoe.config.schedule import Segment
from jmoe.run import distributed

LINE_SECONDS = 60.0


class Progress:
    """Shows how far a segment is. The first process of a run alone shows anything."""

    def __init__(self, segment: Segment, start: int, n_tokens: int, n_tokens_left: int) -> None:
        """Shows the progress so far.

        Args:
          segment: What is trained.
          start: The first step of `segment` that is trained now.
          n_tokens: Tokens of the run before it.
          n_tokens_left: Tokens that the run trains from there on, for the time left.
        """
        self._segment = segment
        self._is_first = jax.process_index() == 0
        self._bar = tqdm(
            total=segment.stop,
            initial=start,
            desc=segment.name,
            unit=" steps",
            disable=None if self._is_first else True,
            leave=False,
        )
        self._n_tokens_at_end = n_tokens + n_tokens_left
        # at the last line
        self._last_time = time.monotonic()
        self._last_n_tokens = n_tokens

    def launched(self) -> None:
        """Called when a step was launched."""
        self._bar.update()

    def describe(self, words: str) -> None:
        """Changes the words behind the bar."""
        self._bar.set_postfix_str(words, refresh=False)

    def finished(self, step: int, n_tokens: int, loss: float) -> None:
        """Called when `step` is done, `n_tokens` of the run with it: prints a line if it is time for one."""
        now = time.monotonic()
        if self._is_first and self._bar.disable and now - self._last_time >= LINE_SECONDS:
            rate = (n_tokens - self._last_n_tokens) / max(now - self._last_time, 1e-9)
            self._last_time = now
            self._last_n_tokens = n_tokens
            distributed.log(
                f"{self._segment.name}: step {step + 1} of {self._segment.stop}, {n_tokens:,} tokens, loss "
                f"{loss:.4f}, {rate:,.0f} tokens/s, "
                f"{tqdm.format_interval((self._n_tokens_at_end - n_tokens) / rate)} left"
            )

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()
