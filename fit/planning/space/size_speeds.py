"""The speed of a size, between those of shapes of the grid, and the largest size that chips train.

Axes: [n_shapes] models of one number of experts.
"""

import dataclasses
import functools
import math

import numpy as np

from fit.aliases import Array
from fit.planning.inputs.problem import Problem
from fit.planning.space import on_tokens
from fit.planning.space.model_grid import ModelGrid, models_of

N_SMALLEST = 8  # smallest shapes, of which chips train one if they train any
LARGEST_AT_ONCE = 32  # shapes that are looked at together, from the largest on
NEXT_SIZES = 8  # shapes that are looked at together beside a size
TOKENS_PER_PARAMETER = 200  # where chips bound the size, FLOPs leave several times the tokens that are best
AROUND = 1.25  # factor between a size and the shapes that its speed is interpolated between


@dataclasses.dataclass(frozen=True)
class SizeSpeed:
    """The speed of a size.

    Attributes:
      tokens_per_second: Of the chips that train it.
      n_chips: How many these are: fewer than all of them where more would not be faster.
    """

    tokens_per_second: float
    n_chips: int


def speed_of_size(problem: Problem, e: float, n_active: float, n_tokens: float) -> SizeSpeed | None:
    """The speed of a model whose size lies between shapes of the grid.

    It is interpolated linearly in logarithms between shapes of the recipe that models of its size have, as if a smaller
    one were never slower. Above the largest shape that the chips train, the MFU stays the same. The chips are those of
    the two shapes, or the more of them.

    Args:
      problem: The problem.
      e: Its number of experts, as the law counts them.
      n_active: Its active parameters.
      n_tokens: Its training tokens.

    Returns:
      The speed; None where the chips train no model of this size or smaller.
    """
    by_recipe = []
    for models in models_of(problem, e):
        all_sizes = models.n_active
        tokens = np.full(all_sizes.shape, n_tokens)
        order = np.argsort(-all_sizes, kind="stable")
        rows = order[(all_sizes[order] <= AROUND * n_active) & (models.limited_by[order] == "")]
        n_near = int(np.sum(all_sizes[rows] >= n_active / AROUND))
        start = max(n_near, 1)
        part = on_tokens.candidates_of(problem, models, rows[:start], tokens)
        while part is None and start < len(rows):  # the chips train none of these: look at smaller ones
            part = on_tokens.candidates_of(problem, models, rows[start : start + NEXT_SIZES], tokens)
            start += NEXT_SIZES
        if part is not None:
            by_recipe.append(np.array([all_sizes[part.row], 1 / part.seconds_per_token, part.n_chips]))
    if not by_recipe:
        return None
    bracketing = [part for part in by_recipe if part[0].min() <= n_active <= part[0].max()]
    if bracketing:
        speeds = [_interpolated(part, n_active) for part in bracketing]
        return max(speeds, key=lambda speed: speed.tokens_per_second)
    return _interpolated(np.concatenate(by_recipe, axis=1), n_active)


def _interpolated(candidates: Array, n_active: float) -> SizeSpeed:
    """The speed at a size, between the fastest candidates. candidates: sizes, speeds and numbers of chips, [3, n]."""
    sizes, speeds, n_chips = candidates
    order = np.lexsort((n_chips, -speeds, sizes))
    log_sizes, first = np.unique(np.log(sizes[order]), return_index=True)
    own_speeds = np.log(speeds[order])[first]
    log_speeds = np.maximum.accumulate(own_speeds[::-1])[::-1]  # a smaller model is at least as fast
    is_own = own_speeds == log_speeds
    as_fast_as = np.minimum.accumulate(np.where(is_own, np.arange(len(is_own)), len(is_own))[::-1])[::-1]
    counts = n_chips[order][first][as_fast_as]
    above_largest = max(math.log(n_active) - log_sizes[-1], 0.0)
    log_speed = float(np.interp(math.log(n_active), log_sizes, log_speeds)) - above_largest
    above = min(int(np.searchsorted(log_sizes, math.log(n_active))), len(log_sizes) - 1)
    below = above if log_sizes[above] <= math.log(n_active) else max(above - 1, 0)
    return SizeSpeed(math.exp(log_speed), int(counts[[below, above]].max()))


def largest_on_tokens(problem: Problem, e: float, n_tokens: float) -> float:
    """n_active of the largest shape with e experts that the chips train on n_tokens; 0 for none."""
    most = 0.0
    for models in models_of(problem, e):
        tokens = np.full(models.n_active.shape, n_tokens)
        most = _largest_of_shapes(problem, models, models.limited_by == "", tokens, most)
    return most


def largest_trained(problem: Problem, e: float) -> float:
    """n_active of the largest shape with e experts that the chips train on TOKENS_PER_PARAMETER; 0 for none.

    It does not depend on the budget, so that more FLOPs never allow a smaller model.
    """
    return _largest_of_any_budget(problem.candidates_key, float(e))


@functools.lru_cache(maxsize=128)
def _largest_of_any_budget(problem: Problem, e: float) -> float:
    """As largest_trained."""
    most = 0.0
    for models in models_of(problem, e):
        tokens = np.clip(TOKENS_PER_PARAMETER * models.n_active, models.least_tokens + 1, models.most_tokens)
        most = _largest_of_shapes(problem, models, models.has_recipe(tokens), tokens, most)
    return most


def _largest_of_shapes(problem: Problem, models: ModelGrid, is_allowed: Array, tokens: Array, at_least: float) -> float:
    """n_active of the largest allowed shape that the chips train, where that is above `at_least`; else `at_least`."""
    sizes = models.n_active
    order = np.argsort(-sizes, kind="stable")
    rows = order[is_allowed[order] & (sizes[order] > at_least)]
    for start in range(0, len(rows), LARGEST_AT_ONCE):
        trained = on_tokens.trained(problem, models, rows[start : start + LARGEST_AT_ONCE], tokens)
        if len(trained):
            return float(sizes[trained].max())
    return at_least


def trains_any(problem: Problem, e: float) -> bool:
    """Whether the chips train any model with one number of experts, however long it takes."""
    for models in models_of(problem, e):
        rows = np.argsort(models.n_active, kind="stable")[:N_SMALLEST]
        tokens = np.maximum(models.least_tokens + 1, 1e9)
        if len(on_tokens.trained(problem, models, rows, tokens)):
            return True
    return False
