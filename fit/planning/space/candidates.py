"""Candidates: shapes of a grid in layouts of a grid, with the seconds of a token, as arrays.

A candidate is a shape with its recipe, on a number of chips, a mesh, remat, a batch and tokens at once: all that the
emitted config says. It may be trained on `least` to `most` tokens. There its batch is one that the laws of batch allow,
and its recipe is the one that a run of its size has: the law's own, or that of published models. Its tokens follow from
its own speed. So nothing is iterated, and more hours never remove a candidate.

Axes: [n] candidates.
"""

import dataclasses
from typing import Self

import numpy as np

from fit.aliases import Array, Numbers
from fit.model.layout import Layout
from fit.model.step_cost import StepCost, step_cost
from fit.planning.inputs.problem import Problem
from fit.planning.space.model_grid import ModelGrid, TrainedModel


@dataclasses.dataclass(frozen=True)
class OnMeshes:
    """Models on meshes: arrays [n].

    Attributes:
      models: The shapes.
      row: Index of the shape in `models`.
      n_chips: Number of chips.
      data, expert, model: Devices of the mesh's axes.
      group_tokens: As config.model.group_tokens.
    """

    models: ModelGrid
    row: Array
    n_chips: Array
    data: Array
    expert: Array
    model: Array
    group_tokens: Array

    @property
    def unit(self) -> Array:
        """The fewest tokens that the mesh divides."""
        return self.data * self.expert * self.group_tokens

    def part(self, rows: Array) -> Self:
        """Those of these rows."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "models"]
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in names})


@dataclasses.dataclass(frozen=True)
class InLayouts(OnMeshes):
    """Models in layouts: arrays [n].

    Attributes:
      batch_tokens: Tokens of the largest batch.
      microbatch_tokens: Tokens at once.
      remat: Index in the grid's remats.
      least, most: Training tokens from which, and up to which, the batch is allowed.
    """

    batch_tokens: Array
    microbatch_tokens: Array
    remat: Array
    least: Array
    most: Array

    def layout(self, problem: Problem) -> Layout:
        """The layouts."""
        return Layout(
            batch_tokens=self.batch_tokens,
            sequence=self.models.sequence,
            data=self.data,
            expert=self.expert,
            model=self.model,
            microbatch_tokens=self.microbatch_tokens,
            remat=np.array(problem.grid.remats)[self.remat],
            flash=self.models.as_published,
        )

    def step(self, problem: Problem) -> StepCost:
        """A step of the largest batch of each."""
        shape = self.models.of(self.row)
        return step_cost(shape, self.layout(problem), problem.chips.chip, problem.efficiencies)


@dataclasses.dataclass(frozen=True)
class Candidates(InLayouts):
    """Models in layouts, with their speed: arrays [n].

    Attributes:
      seconds_per_token: Seconds of a step of the largest batch over its tokens.
    """

    seconds_per_token: Array

    def tokens_within_hours(self, problem: Problem, hours: Numbers) -> Array:
        """Whole training tokens of each within hours [...]: [..., n]; 0 where these are fewer than it may have."""
        tokens = problem.tokens_within_hours(np.asarray(hours)[..., None], self.seconds_per_token)
        tokens = np.minimum(tokens, self.most)
        return np.where((tokens >= self.least) & (tokens >= 1), tokens, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestCandidate(TrainedModel):
    """The best candidate of a problem. It is built as it is.

    Attributes:
      problem: The problem.
      candidate: The candidate alone: arrays [1].
      on_plateau: Whether larger models gain nothing.
    """

    problem: Problem
    candidate: Candidates
    on_plateau: bool = False

    @classmethod
    def of(cls, problem: Problem, candidate: Candidates, n_tokens: float, loss: float) -> Self:
        """A candidate of a problem, trained on n_tokens. candidate: arrays [1]."""
        return cls(
            models=candidate.models,
            row=int(candidate.row[0]),
            n_tokens=int(n_tokens),
            loss=float(loss),
            problem=problem,
            candidate=candidate,
        )

    @property
    def tokens_per_second(self) -> float:
        """Speed of all its chips together."""
        return 1 / float(self.candidate.seconds_per_token[0])

    @property
    def n_chips(self) -> int:
        """Number of chips that train it."""
        return int(self.candidate.n_chips[0])


def joined(parts: list[Candidates]) -> Candidates:
    """Concatenates candidates of the same models."""
    names = [field.name for field in dataclasses.fields(Candidates) if field.name != "models"]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Candidates(models=parts[0].models, **columns)
