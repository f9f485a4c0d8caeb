"""The candidates of models of one number of experts that could be the best within hours (branch and bound).

The bound of a shape is its loss on the tokens that it could have if only products and memory took time. Shapes come in
the order of their bounds, until no bound is below the best loss so far. Of a shape, layouts are skipped that cannot be
faster than one that trains it for all hours.

Axes: [n_shapes] models of one number of experts, [n_rows] some of them, [n] candidates.
"""

import functools
import math

import numpy as np

from fit.aliases import Array, Numbers
from fit.planning.inputs.problem import BAND, Problem
from fit.planning.space.candidates import Candidates, InLayouts, joined
from fit.planning.space.layout_choices import LayoutChoices
from fit.planning.space.model_grid import ModelGrid, loss_of_shapes

# Candidates that lose up to this share more than the best are evaluated, too: BAND, or for a law with draws, in one of
# which (odds.py) another may be the best, this much wider one.
BAND_OF_DRAWS = 0.1
FIRST_SHAPES = 8  # that are evaluated together at first
GROWTH = 4  # factor by which more are evaluated together later


def could_be_best(problem: Problem, by_recipe: list[ModelGrid], hours: tuple[float, float]) -> list[Candidates]:
    """The candidates that could be the best between two numbers of hours, or lose little more.

    Args:
      problem: The problem; its `loss_cutoff` is reached otherwise in the least hours.
      by_recipe: The shapes.
      hours: The least and the most hours.

    Returns:
      The candidates of each recipe that has some, in the order of the recipes.
    """
    searches = [_Search(problem, models, hours) for models in by_recipe]
    lowest = problem.loss_cutoff
    candidates: dict[int, Candidates] = {}
    for i in sorted(range(len(searches)), key=lambda i: searches[i].least_loss):
        parts, lowest = searches[i].candidates(lowest)
        if parts:
            candidates[i] = joined(parts)
    return [candidates[i] for i in sorted(candidates)]


def least_loss(problem: Problem, models: ModelGrid, hours: float) -> float:
    """A lower bound of the losses of all shapes within the hours; infinite where limits exclude them all."""
    return _Search(problem, models, (hours, hours)).least_loss


class _Search:
    """The search among the shapes of one recipe."""

    def __init__(self, problem: Problem, models: ModelGrid, hours: tuple[float, float]) -> None:
        """Prepare it. hours: The least and the largest budget."""
        self.problem = problem
        self.models = models
        self.hours = hours
        self.choices = LayoutChoices(problem, models)
        self.band = BAND_OF_DRAWS if problem.law.draws else BAND
        # seconds of a token of each shape in its fastest layout that may be trained for all of the hours
        self.fastest = np.full(models.exact_parameters.shape, np.inf)

    @functools.cached_property
    def by_bound(self) -> tuple[Array, Array]:
        """(indices of the shapes that limits allow, lower bounds of their losses), ascending."""
        allowed = np.flatnonzero(self.models.limited_by == "")
        bound = self.bound(allowed, self.choices.counts[-1])
        order = np.argsort(bound, kind="stable")
        return allowed[order], bound[order]

    @property
    def least_loss(self) -> float:
        """A lower bound of the losses of all shapes; infinite where limits exclude them all."""
        _, bound = self.by_bound
        return float(bound[0]) if len(bound) else math.inf

    def candidates(self, lowest: float) -> tuple[list[Candidates], float]:
        """The candidates that lose little more than the best, in parts.

        Shapes are evaluated some at a time, and more at a time once some are found: the losses of the first ones
        exclude many others.

        Args:
          lowest: The lowest loss that others reach in the least hours.

        Returns:
          (parts, the lowest loss of these and others in the least hours).
        """
        parts: list[Candidates] = []
        order, bound = self.by_bound
        start = 0
        n_shapes = FIRST_SHAPES
        while start < len(order) and bound[start] <= self.cutoff(lowest) and math.isfinite(bound[start]):
            stop = start + n_shapes
            rows = order[start:stop][bound[start:stop] <= self.cutoff(lowest)]
            n_before = len(parts)
            for counts in (self.choices.counts[-1:], self.choices.counts[:-1]):  # on all chips, then on fewer
                layouts = self.in_layouts(rows, counts, self.cutoff(lowest))
                if layouts is not None:
                    part = self.choices.timed(layouts)
                    self.note_fastest(part)
                    tokens = part.tokens_within_hours(self.problem, self.hours[0])
                    losses = loss_of_shapes(self.problem, self.models, part.row, tokens)
                    lowest = min(lowest, float(losses.min()))
                    parts.append(part)
            start = stop
            if len(parts) > n_before:
                n_shapes *= GROWTH
        return parts, lowest

    def cutoff(self, lowest: float) -> float:
        """The loss above which candidates are skipped."""
        return lowest * (1 + self.band)

    def most_tokens(self, rows: Array, chips: Numbers) -> Array:
        """An upper bound of the tokens that a number of chips trains shapes on."""
        tokens = self.problem.tokens_within_hours(self.hours[1], self.choices.least_seconds[rows] / chips)
        return np.minimum(tokens, self.models.most_tokens[rows])

    def bound(self, rows: Array, chips: Numbers) -> Array:
        """A lower bound of the loss of shapes on a number of chips."""
        return loss_of_shapes(self.problem, self.models, rows, self.most_tokens(rows, chips))

    def in_layouts(self, rows: Array, counts: Array, cutoff: float) -> InLayouts | None:
        """The layouts of shapes on these numbers of chips that the devices hold, and that could be the best."""
        rows = rows[self.choices.holds_weights[rows]]
        could_be_faster = self.choices.least_seconds[rows, None] / counts <= self.fastest[rows, None]
        could_be_best = could_be_faster & (self.bound(rows[:, None], counts) <= cutoff)
        on_meshes = self.choices.on_meshes(rows, counts, could_be_best)
        batches = self.choices.batches(on_meshes)
        tokens = np.minimum(self.most_tokens(on_meshes.row, on_meshes.n_chips)[:, None], batches.most)
        tokens_of_fastest = self.problem.tokens_within_hours(self.hours[0], self.fastest[on_meshes.row, None])
        is_allowed = (batches.tokens > 0) & (batches.least <= tokens) & (batches.most >= tokens_of_fastest)
        i, j = np.nonzero(is_allowed)
        is_allowed[i, j] = loss_of_shapes(self.problem, self.models, on_meshes.row[i], tokens[i, j]) <= cutoff
        return self.choices.in_layouts(on_meshes, batches, is_allowed)

    def note_fastest(self, part: Candidates) -> None:
        """Note the fastest layouts of those that may be trained for all of the hours."""
        seconds = part.seconds_per_token
        least_tokens, most_tokens = (self.problem.tokens_within_hours(hours, seconds) for hours in self.hours)
        is_limited = (least_tokens < part.least) | (most_tokens > part.most) | (most_tokens >= self.problem.cap)
        np.minimum.at(self.fastest, part.row, np.where(is_limited, np.inf, seconds))
