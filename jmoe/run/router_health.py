"""How the experts of each layer are used over a hundred steps: config.router_health. Without JAX.

Choices are counted over blocks of BLOCK steps, which begin at multiples of BLOCK. A line of metrics says what the last
whole block showed. The counts of the block that has begun lie in the checkpoint's record. So a run that resumes writes
the same lines.

Axes: L layers that have a mixture, E experts.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from jmoe.errors import first_few

BLOCK = 100  # steps
# A layer has collapsed where its effective experts are below top_k + COLLAPSED_BELOW * (E - top_k): top_k is the worst
# case, E an even load.
COLLAPSED_BELOW = 0.25


class RouterHealth:
    """Counts the choices of the experts of each layer."""

    def __init__(self, model: ConfigDict, state: dict[str, Any] | None = None) -> None:
        """Begins to count, or continues.

        Args:
          model: config.model, a mixture.
          state: What `state()` returned when a checkpoint was saved; None at the beginning of a segment.
        """
        top_k = model.top_k
        self._n_experts = model.n_experts
        self._first_layer = model.n_dense_blocks
        # where every token chooses every expert, the load is even
        can_collapse = top_k < model.n_experts
        self._fewest_effective = top_k + COLLAPSED_BELOW * (model.n_experts - top_k) if can_collapse else 0.0
        n_layers = model.n_blocks - self._first_layer
        self._count_LE = np.zeros((n_layers, self._n_experts), np.int64)
        self._n_steps = 0  # counted of the block
        self._last: dict[str, list[float]] = {}  # what the last whole block showed, by layer
        if state is not None:
            self._count_LE += np.array(state["count"])
            self._n_steps = state["steps"]
            self._last = state["last"]

    def state(self) -> dict[str, Any]:
        """The counts so far, in JSON types."""
        return {"count": self._count_LE.tolist(), "steps": self._n_steps, "last": self._last}

    def add(self, step: int, chosen_LE: list[list[int]]) -> tuple[dict[str, list[float]], str]:
        """Counts the choices of a step.

        Args:
          step: The step.
          chosen_LE: How many choices fell on each expert of each layer.

        Returns:
          By name, a value of each layer over the last whole block, for metrics.jsonl; before the first whole block
          nothing. `unchosen`: experts that no token chose. `effective_experts`: exp of the entropy of the experts'
          shares, which is E for an even load. `collapsed`: 1 where these are too few, else 0. And a warning on layers
          that collapsed in the block that this step ends, or "".
        """
        self._count_LE += np.array(chosen_LE)
        self._n_steps += 1
        if (step + 1) % BLOCK:
            return self._last, ""
        is_whole = self._n_steps == BLOCK
        self._n_steps = 0
        if not is_whole:  # counting began within the block
            self._count_LE[:] = 0
            return self._last, ""
        effective_L = effective_experts(self._count_LE)
        collapsed_before = self._last.get("collapsed", [0] * len(effective_L))
        self._last = {
            "unchosen": np.sum(self._count_LE == 0, axis=1).tolist(),
            "effective_experts": effective_L.round(3).tolist(),
            "collapsed": (effective_L < self._fewest_effective).astype(int).tolist(),
        }
        self._count_LE[:] = 0
        return self._last, self._warning(step, collapsed_before)

    def _warning(self, step: int, collapsed_before: list[float]) -> str:
        """A line on the layers that have collapsed since the block before; "" where none has."""
        layers = []
        for i, was_collapsed in enumerate(collapsed_before):
            if self._last["collapsed"][i] and not was_collapsed:
                block = self._first_layer + i + 1
                n_effective = self._last["effective_experts"][i]
                layers.append(f"block {block} uses {n_effective:.1f} ({self._last['unchosen'][i]} unchosen)")
        if not layers:
            return ""
        return (
            f"WARNING: routers have collapsed in steps {step + 1 - BLOCK} to {step}: of {self._n_experts} experts, "
            f"{first_few(layers)}; a higher config.loss.load_balance, a lower rate, or config.model.balance=bias evens "
            "the load"
        )


def effective_experts(count_LE: Int[np.ndarray, "L E"]) -> Float[np.ndarray, " L"]:
    """exp of the entropy of the shares of each layer's experts: n where n of them share all choices evenly."""
    share_LE = count_LE / np.maximum(count_LE.sum(axis=1, keepdims=True), 1)
    log_LE = np.log(share_LE, out=np.zeros(share_LE.shape), where=share_LE > 0)
    return np.exp(-np.sum(share_LE * log_LE, axis=1))
