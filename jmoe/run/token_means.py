"""Means of a segment's metrics over the tokens of all its steps, logged or not.

The checkpoint's record has the sums, so a run that resumes ends with the same means. This file does not import JAX.
"""

from typing import Any

METRICS = ("cross_entropy", "drop_rate")  # whose means a result has


class TokenMeans:
    """Sums the metrics of steps, each times the tokens of its step."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        """Begins at 0, or continues from a `state()` that a checkpoint has saved."""
        self._n_tokens = 0
        self._sums: dict[str, float] = {}
        if state is not None:
            self._n_tokens = state["n_tokens"]
            self._sums = dict(state["sums"])

    def state(self) -> dict[str, Any]:
        """The sums so far, in JSON types."""
        return {"n_tokens": self._n_tokens, "sums": dict(self._sums)}

    def add(self, n_tokens: int, values: dict[str, Any]) -> None:
        """Adds a step of `n_tokens` with the metrics `values`."""
        self._n_tokens += n_tokens
        for name in METRICS:
            if name in values:
                self._sums[name] = self._sums.get(name, 0.0) + n_tokens * values[name]

    def mean(self, name: str) -> float | None:
        """The mean of a metric: 0 if no step had it, None if no step was added."""
        if not self._n_tokens:
            return None
        return self._sums.get(name, 0.0) / self._n_tokens
