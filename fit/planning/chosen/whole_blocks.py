"""The model of whole blocks and heads of the architecture's own shape that is built for a plan by FLOPs."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from fit.model.architecture import ROUNDED, Architecture, Model
from fit.planning.chosen.optimum import Optimum
from fit.planning.chosen.shape_choice import SHAPE_TOLERANCE
from fit.planning.inputs.problem import Problem
from fit.planning.space import fewest_chips
from fit.planning.space.model_grid import TrainedModel, loss_of_shapes, whole_models

TRIED = 300  # depths around the planned one, and widths at each, at most: steps between them are then below 0.4%
# Ranges of depths, over the planned one, each from one number to the next: smaller models are built where none fits.
WINDOWS = (1 + ROUNDED, 1 / (1 + ROUNDED), 0.75, 0.5, 0.3, 0.15, 0.05, 0.01, 0)


def closest_model(problem: Problem, planned: Optimum) -> TrainedModel | None:
    """The model of whole blocks and heads to build with as many experts as an optimum; None where none fits.

    Of the models within SHAPE_TOLERANCE of the optimum's loss it is the one whose ratios are the architecture's, and
    then the one nearest in size to the optimum. Where none is as good, it is the one of the lowest loss.
    """
    for most, least in itertools.pairwise(WINDOWS):
        built = list(_models_of_depths(problem.architecture, planned, least, most))
        if not built:
            continue
        models = whole_models(problem, planned.n_experts, built)
        tokens = models.tokens_within_flops(problem.constraints.at(planned.n_experts))
        fits = (models.limited_by == "") & (tokens >= 1)
        chips = problem.constraints.chips
        if chips is not None:
            fits &= fewest_chips.least_bytes(chips, models.shape) <= chips.memory_share * chips.memory
        if not fits.any():
            continue
        losses = np.where(fits, loss_of_shapes(problem, models, slice(None), tokens), np.inf)
        factors = np.array([model.rounding_factor for model in built])
        is_close = fits & (factors <= 1 + ROUNDED)
        allowed = is_close if is_close.any() else fits
        highest_allowed = max(float(losses[allowed].min()), planned.loss * (1 + SHAPE_TOLERANCE))
        good = np.flatnonzero(allowed & (losses <= highest_allowed))
        size = np.abs(np.log(models.n_active[good] / planned.n_active))
        order = np.lexsort((size, factors[good]))  # by factor, then by size
        row = int(good[order[0]])
        return TrainedModel(models=models, row=row, n_tokens=int(tokens[row]), loss=float(losses[row]))
    return None


def _models_of_depths(architecture: Architecture, planned: Optimum, least: float, most: float) -> Iterator[Model]:
    """Models whose depth is from `least` to `most` of the planned one, as shares of it."""
    blocks = planned.d_model / architecture.width_per_block
    fewest = round(architecture.smallest / architecture.width_per_block)
    first = max(fewest, math.floor(least * blocks))
    last = max(fewest, math.ceil(most * blocks))
    step = math.ceil((last - first + 1) / TRIED)
    for n_blocks in range(last, first - 1, -step):
        widths = architecture.widths(n_blocks)
        for width in widths[:: math.ceil(len(widths) / TRIED)]:
            yield Model(architecture, n_blocks, planned.n_experts, width)
