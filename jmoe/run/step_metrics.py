"""The metrics of a segment's steps as metrics.jsonl has them, and what is summed over these steps.

L: layers that have a mixture; E: experts.
"""

from collections.abc import Callable
from typing import Any

from jmoe.run import distributed
from jmoe.run.router_health import RouterHealth
from jmoe.run.token_means import TokenMeans


class StepMetrics:
    """Completes the metrics of each step, once and in order."""

    def __init__(
        self, means: TokenMeans, health: RouterHealth | None, rows_of: Callable[[int], dict[str, list[int]]]
    ) -> None:
        """Begins, or continues.

        Args:
          means: The means over the steps of the segment so far.
          health: The counts of config.router_health; None without it.
          rows_of: The rows of a step's batch, for steps that are skipped (batches.rows_of_step).
        """
        self._means = means
        self._health = health
        self._rows_of = rows_of

    def add(self, step: int, n_tokens: int, values: dict[str, Any]) -> dict[str, Any]:
        """Adds a step of `n_tokens`; returns its metrics for metrics.jsonl.

        Args:
          step: The step.
          n_tokens: Its tokens.
          values: Its metrics as Python numbers.
        """
        self._means.add(n_tokens, values)
        values = self._with_router_health(step, values)
        if values.pop("skipped", 0):
            values["skipped_rows"] = self._rows_of(step)
        return values

    def state(self) -> dict[str, Any]:
        """The sums so far for a checkpoint's record, so that a run that resumes writes the same lines."""
        saved = {"token_means": self._means.state()}
        if self._health is not None:
            saved["router_health"] = self._health.state()
        return saved

    def _with_router_health(self, step: int, values: dict[str, Any]) -> dict[str, Any]:
        """The metrics of a step, with RouterHealth's summary of its layers instead of the counts of choices."""
        chosen_LE = values.get("chosen")
        if self._health is None or chosen_LE is None:
            return values
        values = {name: value for name, value in values.items() if name != "chosen"}
        by_layer, warning = self._health.add(step, chosen_LE)
        if warning:
            distributed.log(warning)
        if not by_layer:
            return values
        totals = {"unchosen": sum(by_layer["unchosen"]), "collapsed_layers": sum(by_layer["collapsed"])}
        return values | totals | {"layers": values["layers"] | by_layer}
