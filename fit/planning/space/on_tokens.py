"""The candidates of shapes that are trained on given tokens.

Of a shape, fewer chips are looked at only where they could be faster than the fastest layout on all of them.

Axes: [n_shapes] models of one number of experts, [n_rows] some of them, [n] candidates.
"""

from collections.abc import Iterator

import numpy as np

from fit.aliases import Array
from fit.planning.inputs.problem import Problem
from fit.planning.space.candidates import Candidates, InLayouts, joined
from fit.planning.space.layout_choices import LayoutChoices
from fit.planning.space.model_grid import ModelGrid


def candidates_of(problem: Problem, models: ModelGrid, rows: Array, n_tokens: Array) -> Candidates | None:
    """The candidates of shapes that may be trained on n_tokens.

    Args:
      problem: The problem.
      models: The shapes.
      rows: Which of them, [n_rows].
      n_tokens: Training tokens of each shape, [n_shapes].

    Returns:
      The candidates; None where there are none.
    """
    parts = list(_on_all_chips_then_fewer(LayoutChoices(problem, models), rows, n_tokens))
    return joined(parts) if parts else None


def trained(problem: Problem, models: ModelGrid, rows: Array, n_tokens: Array) -> Array:
    """Those of the rows that have candidates. The arguments are those of `candidates_of`."""
    choices = LayoutChoices(problem, models)
    could_be_best = np.full((len(rows), len(choices.counts)), True)
    layouts = _in_layouts(choices, rows, choices.counts, n_tokens, could_be_best)
    return np.empty(0, int) if layouts is None else np.unique(layouts.row)


def _on_all_chips_then_fewer(choices: LayoutChoices, rows: Array, n_tokens: Array) -> Iterator[Candidates]:
    """The candidates on all chips, then those on fewer that could be faster."""
    fastest = np.full(choices.models.exact_parameters.shape, np.inf)  # seconds of a token of each shape
    for counts in (choices.counts[-1:], choices.counts[:-1]):
        could_be_best = choices.least_seconds[rows, None] / counts <= fastest[rows, None]
        layouts = _in_layouts(choices, rows, counts, n_tokens, could_be_best)
        if layouts is not None:
            candidates = choices.timed(layouts)
            np.minimum.at(fastest, candidates.row, candidates.seconds_per_token)
            yield candidates


def _in_layouts(
    choices: LayoutChoices, rows: Array, counts: Array, n_tokens: Array, could_be_best: Array
) -> InLayouts | None:
    """The layouts of shapes on these numbers of chips that the devices hold. could_be_best: [n_rows, n_counts]."""
    holds = choices.holds_weights[rows]
    on_meshes = choices.on_meshes(rows[holds], counts, could_be_best[holds])
    batches = choices.batches(on_meshes)
    tokens = n_tokens[on_meshes.row, None]
    is_allowed = (batches.tokens > 0) & (batches.least <= tokens) & (tokens <= batches.most)
    return choices.in_layouts(on_meshes, batches, is_allowed)
