"""Means of a segment's metrics over the tokens of all its steps, whichever of them are logged. Without JAX.

The sums lie in the checkpoint's record. So a run that resumes ends with the same means.
"""

from typing import Any

METRICS = ("cross_entropy", "drop_rate")  # those that a result has the means of


class TokenMeans:
    """Adds up the metrics of steps, each times its tokens."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        """Begins, or continues from what `state()` returned when a checkpoint was saved."""
        self._n_tokens = 0
        self._sums: dict[str, float] = {}
        if state is not None:
            self._n_tokens = state["n_tokens"]
            self._sums = dict(state["sums"])

    def state(self) -> dict[str, Any]:
        """What has been added up, in JSON types."""
        return {"n_tokens": self._n_tokens, "sums": dict(self._sums)}

    def add(self, n_tokens: int, values: dict[str, Any]) -> None:
        """Adds a step of `n_tokens` with the metrics `values`."""
        self._n_tokens += n_tokens
        for name in METRICS:
            if name in values:
                self._sums[name] = self._sums.get(name, 0.0) + n_tokens * values[name]

    def mean(self, name: str) -> float:
        """The mean of a metric; 0 if no step had it."""
        return self._sums.get(name, 0.0) / max(self._n_tokens, 1)
