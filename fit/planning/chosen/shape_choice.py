"""The shape of the grid that is built for a plan by FLOPs.

Each shape is trained on the tokens that the FLOPs leave to it. The losses of the best differ by less than any law
knows. Of those that lose at most SHAPE_TOLERANCE more than the optimum in real numbers, chips train the one of least
hours. Without chips it is the one whose ratios are preferred, and whose size is what was planned. Where none is as
good, it is the one of the lowest loss.

Axes: [n_shapes] models of one number of experts.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array
from fit.model import hardware
from fit.planning.chosen.optimum import Optimum
from fit.planning.inputs.grid import Grid
from fit.planning.inputs.problem import AS_GOOD, Problem
from fit.planning.space import on_tokens
from fit.planning.space.candidates import BestCandidate, Candidates
from fit.planning.space.model_grid import ModelGrid, TrainedModel, loss_of_shapes, models_of

SHAPES_AT_ONCE = 32  # shapes that are weighed together
SHAPE_TOLERANCE = AS_GOOD  # part of the loss by which a preferred shape may exceed the optimum's
WIDER = 1.5  # shapes of the grid are up to this factor wider than the widest optimum
MOST_WIDTHS = 200  # about as many widths beyond the grid's own, at most
MORE_DEPTHS = 8  # laws may read the shape: other depths than the preferred ones may lose less


def with_shapes_around(problem: Problem, d_model: float) -> Problem:
    """The problem with a grid that has shapes around a width. A grid other than the default is not extended."""
    if problem.grid != Grid():
        return problem
    grid = Grid(more_depths=MORE_DEPTHS)
    widest = grid.widths[-1]
    if WIDER * d_model > widest:
        wider = hardware.widths(widest + 1, WIDER * d_model)
        grid = dataclasses.replace(grid, widths=(*grid.widths, *wider[:: math.ceil(len(wider) / MOST_WIDTHS)]))
    return dataclasses.replace(problem, grid=grid)


def closest_shape(problem: Problem, planned: Optimum) -> TrainedModel | None:
    """The shape to build with as many experts as an optimum; None where none is within the limits.

    Where memory binds, fewer heads of keys and values may cost loss: then they are as many as the architecture has.
    """
    chosen = _of_style(problem, planned)
    if chosen is not None and chosen.loss <= planned.loss * (1 + SHAPE_TOLERANCE):
        return chosen
    request = problem.request
    request = dataclasses.replace(request, fixed=request.fixed | {"kv_share"})
    with_architecture_heads = _of_style(problem.within(request=request), planned)
    if chosen is None:
        return with_architecture_heads
    if with_architecture_heads is not None and with_architecture_heads.loss < chosen.loss * (1 - SHAPE_TOLERANCE):
        return with_architecture_heads
    return chosen


def _of_style(problem: Problem, planned: Optimum) -> TrainedModel | None:
    """The shape to build with as many experts as an optimum: of least hours on chips, else of the preferred ratios.

    None where none fits.
    """
    if problem.constraints.chips is None:
        return _preferred(problem, planned)
    return _fastest(problem, planned)


def _by_recipe(problem: Problem, planned: Optimum) -> Iterator[tuple[ModelGrid, Array, Array]]:
    """(models, training tokens of each, loss of each) with as many experts as an optimum, in parts of the grid.

    Tokens and losses are [n_shapes]. The loss is infinite where limits exclude a model.
    """
    constraints = problem.constraints.at(planned.n_experts)
    for models in models_of(problem, planned.n_experts):
        tokens = models.tokens_within_flops(constraints)
        losses = loss_of_shapes(problem, models, slice(None), tokens)
        yield models, tokens, np.where(models.has_recipe(tokens) & (models.limited_by == ""), losses, np.inf)


def _preferred(problem: Problem, planned: Optimum) -> TrainedModel | None:
    """Of the shapes close to the lowest loss, the one with the ratios and the size that are preferred."""
    by_recipe = list(_by_recipe(problem, planned))
    lowest = min((float(losses.min()) for _, _, losses in by_recipe), default=math.inf)
    if not math.isfinite(lowest):
        return None
    highest_allowed = max(lowest, planned.loss * (1 + SHAPE_TOLERANCE))
    chosen = None
    least_unlike = math.inf
    for models, tokens, losses in by_recipe:
        unlike = np.where(losses <= highest_allowed, _shape_penalty(problem, models, planned), np.inf)
        row = int(np.argmin(unlike))
        if unlike[row] < least_unlike:
            least_unlike = float(unlike[row])
            chosen = TrainedModel(models=models, row=row, n_tokens=int(tokens[row]), loss=float(losses[row]))
    return chosen


def _shape_penalty(problem: Problem, models: ModelGrid, planned: Optimum) -> Array:
    """How far ratios are from the style's and sizes from the planned one, [n_shapes]: the sum of |ln factor|."""
    shape = models.shape
    assert models.style is not None
    _, preferred_aspect, _ = models.style.aspects
    factors = (
        shape.d_model / shape.n_blocks / preferred_aspect,
        shape.query_units / shape.d_model / problem.architecture.attention,
        models.n_active / planned.n_active,
    )
    return np.sum([np.abs(np.log(factor)) for factor in factors], axis=0)


def _fastest(problem: Problem, planned: Optimum) -> BestCandidate | None:
    """Of the shapes close to the lowest loss that the chips reach, the one of least hours, in its fastest layout."""
    lowest = math.inf
    parts: list[tuple[Candidates, Array, Array]] = []
    # Meshes are costly to weigh. So it begins with the lowest losses, and ends where no other shape can be chosen.
    for models, tokens, losses in _by_recipe(problem, planned):
        order = np.argsort(losses, kind="stable")
        order = order[np.isfinite(losses[order])]
        for start in range(0, len(order), SHAPES_AT_ONCE):
            rows = order[start : start + SHAPES_AT_ONCE]
            rows = rows[losses[rows] <= max(lowest, planned.loss * (1 + SHAPE_TOLERANCE))]
            if not len(rows):
                break
            part = on_tokens.candidates_of(problem, models, rows, tokens)
            if part is not None:
                parts.append((part, tokens[part.row], losses[part.row]))
                lowest = min(lowest, float(losses[part.row].min()))
    highest_allowed = max(lowest, planned.loss * (1 + SHAPE_TOLERANCE))
    best = None
    least_cost = (math.inf, math.inf)  # seconds and chips
    for part, tokens, losses in parts:
        seconds = np.where(losses <= highest_allowed, tokens * part.seconds_per_token, np.inf)
        first = np.lexsort((part.n_chips, seconds))[:1]
        cost = float(seconds[first[0]]), float(part.n_chips[first[0]])
        if cost < least_cost:
            least_cost = cost
            best = BestCandidate.of(problem, part.part(first), tokens[first[0]], losses[first[0]])
    return best
