"""The model that is built for a plan by FLOPs: of the grid's shapes, or of the law's own whole blocks and heads.

Each shape is trained on the tokens that the FLOPs leave to it. The losses of the best differ by less than any law
knows. Of those that lose at most SHAPE_TOLERANCE more than the optimum in real numbers, chips train the one of least
hours. Without chips it is the one whose ratios are preferred, and whose size is what was planned. Where none is as
good, it is the one of the lowest loss.

Axes: [n_shapes] models of one number of experts.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from fit.aliases import Array
from fit.model import hardware
from fit.model.architecture import ROUNDED, Architecture, Model, training_flops
from fit.planning.chosen.optimum import Optimum
from fit.planning.chosen.planned_layout import PlannedLayout
from fit.planning.inputs.grid import Grid
from fit.planning.inputs.problem import AS_GOOD, Problem
from fit.planning.recipe import ramps
from fit.planning.space import fewest_chips, on_tokens
from fit.planning.space.candidates import BestCandidate, Candidates
from fit.planning.space.model_grid import ModelGrid, loss_of_shapes, models_of, whole_models

SHAPES_AT_ONCE = 32  # shapes that are weighed together
SHAPE_TOLERANCE = AS_GOOD  # part of the loss by which a preferred shape may exceed the optimum's
WIDER = 1.5  # shapes of the grid are up to this factor wider than the widest optimum
MOST_WIDTHS = 200  # about as many widths beyond the grid's own, at most
MORE_DEPTHS = 8  # laws may read the shape: other depths than the preferred ones may lose less
TRIED = 300  # depths around the planned one, and widths at each, at most: steps between them are then below 0.4%
# Ranges of depths, over the planned one, each from one number to the next: smaller models are built where none fits.
WINDOWS = (1 + ROUNDED, 1 / (1 + ROUNDED), 0.75, 0.5, 0.3, 0.15, 0.05, 0.01, 0)


@dataclasses.dataclass(frozen=True)
class ChosenModel:
    """A model that may be built.

    Attributes:
      loss: Predicted loss in nats per token.
      model: Its shape and counts.
      n_tokens: Training tokens.
      law_experts: Its number of experts as the law counts them; None where the model counts as the law does.
      as_published: Whether its recipe is that of published models; None where its size tells.
      layout: How the chips train it; None without chips.
      tokens_per_second: Of its chips; None where no speed is modelled.
    """

    loss: float
    model: Model
    n_tokens: int
    law_experts: float | None = None
    as_published: bool | None = None
    layout: PlannedLayout | None = None
    tokens_per_second: float | None = None


def on_grid(problem: Problem, optima: list[Optimum], best: Optimum) -> ChosenModel | None:
    """The shape of the grid to build; None where none is within the limits.

    It has as many experts as the best optimum or, where none of those fits, any other number.

    Args:
      problem: The problem. A grid other than the default is not extended.
      optima: The best model with each number of experts, in real numbers.
      best: The one of them to build.
    """
    if problem.grid == Grid():
        problem = dataclasses.replace(problem, grid=_grid_for(max(row.d_model for row in optima)))

    def closest(planned: Optimum) -> ChosenModel | None:
        """The shape to build with as many experts as an optimum.

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

    return _first_of(closest, optima, best)


def _of_style(problem: Problem, planned: Optimum) -> ChosenModel | None:
    """The shape to build with as many experts as an optimum: of least hours on chips, else of the preferred ratios.

    None where none fits.
    """
    if problem.constraints.chips is None:
        return _preferred(problem, planned)
    return _trained(problem, planned)


def _first_of(
    choose: Callable[[Optimum], ChosenModel | None], optima: list[Optimum], best: Optimum
) -> ChosenModel | None:
    """The model chosen for the best optimum, else the one of least loss of those chosen for the others, if any."""
    chosen = choose(best)
    if chosen is not None:
        return chosen
    others = [choose(row) for row in optima if row is not best]
    return min((other for other in others if other is not None), key=lambda other: other.loss, default=None)


def _grid_for(d_model: float) -> Grid:
    """A grid with shapes around such a width."""
    grid = Grid(more_depths=MORE_DEPTHS)
    widest = grid.widths[-1]
    if WIDER * d_model <= widest:
        return grid
    wider = hardware.widths(widest + 1, WIDER * d_model)
    return dataclasses.replace(grid, widths=(*grid.widths, *wider[:: math.ceil(len(wider) / MOST_WIDTHS)]))


def _by_recipe(problem: Problem, planned: Optimum) -> Iterator[tuple[ModelGrid, Array, Array]]:
    """(models, training tokens of each, loss of each) with as many experts as an optimum, in parts of the grid.

    Tokens and losses are [n_shapes]. The loss is infinite where limits exclude a model.
    """
    constraints = problem.constraints.at(planned.n_experts)
    for models in models_of(problem, planned.n_experts):
        tokens = models.tokens_within_flops(constraints)
        losses = loss_of_shapes(problem, models, slice(None), tokens)
        yield models, tokens, np.where(models.has_recipe(tokens) & (models.limited_by == ""), losses, np.inf)


def _preferred(problem: Problem, planned: Optimum) -> ChosenModel | None:
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
            chosen = ChosenModel(
                loss=float(losses[row]),
                model=_grid_model(problem, models, row),
                n_tokens=int(tokens[row]),
                law_experts=models.law_experts,
                as_published=models.as_published,
            )
    return chosen


def _shape_penalty(problem: Problem, models: ModelGrid, planned: Optimum) -> Array:
    """How far ratios are from the style's and sizes from the planned one, [n_shapes]: the sum of |ln factor|."""
    shape = models.shape
    style = hardware.style_of(problem.architecture, models.as_published, problem.request.fixed)
    factors = (
        shape.d_model / shape.n_blocks / style.aspects[1],
        shape.query_units / shape.d_model / problem.architecture.attention,
        models.n_active / planned.n_active,
    )
    return np.sum([np.abs(np.log(factor)) for factor in factors], axis=0)


def _trained(problem: Problem, planned: Optimum) -> ChosenModel | None:
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
            best = BestCandidate(problem, part.part(first), int(tokens[first[0]]), float(losses[first[0]]))
    return of_candidate(best) if best else None


def of_whole_blocks(problem: Problem, optima: list[Optimum], best: Optimum) -> ChosenModel | None:
    """The model of whole blocks and heads of the law's own shape to build; None where nothing fits.

    It has as many experts as the best optimum or, where none of those fits, any other number. Of the models within
    SHAPE_TOLERANCE of the optimum's loss it is the one whose ratios are the architecture's, and then the one nearest in
    size to the optimum. Where none is as good, it is the one of the lowest loss.
    """
    return _first_of(functools.partial(_whole, problem), optima, best)


def _whole(problem: Problem, planned: Optimum) -> ChosenModel | None:
    """The model of whole blocks and heads with as many experts as an optimum; None where none fits."""
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
        return ChosenModel(float(losses[row]), built[row], int(tokens[row]))
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


def of_candidate(best: BestCandidate) -> ChosenModel:
    """The model of a candidate on chips."""
    return ChosenModel(
        loss=best.loss,
        model=_grid_model(best.problem, best.models, best.row),
        n_tokens=best.n_tokens,
        law_experts=best.models.law_experts,
        as_published=best.models.as_published,
        layout=_planned_layout(best),
        tokens_per_second=best.tokens_per_second,
    )


def _grid_model(problem: Problem, models: ModelGrid, row: int) -> Model:
    """A shape of the grid as a Model."""
    style = hardware.style_of(problem.architecture, models.as_published, problem.request.fixed)
    shape = models.shape
    width = int(np.asarray(shape.d_model)[row])
    n_blocks = int(np.asarray(shape.n_blocks)[row])
    return hardware.built(problem.padded, style, width, n_blocks, int(np.asarray(shape.n_experts)))


def _planned_layout(best: BestCandidate) -> PlannedLayout:
    """How the chips train a candidate."""
    problem = best.problem
    candidate = best.candidate
    models = best.models
    batch = int(candidate.batch_tokens[0])
    at_once = int(candidate.microbatch_tokens[0])
    ramp = ramps.ramp_on_mesh(batch, int(candidate.unit[0]), best.n_tokens, models.ramp)
    step = candidate.step(problem)  # its bytes for the best alone: for all candidates they cost a fourth of the search
    sent_bytes = float(np.squeeze(step.sent_bytes))
    # seconds of sending in a step, at the peak of the chips' links, over seconds of computing it at their MFU
    chips = problem.chips.with_count(best.n_chips)
    step_flops = training_flops(float(models.n_active[best.row]), ramp[-1][1])
    computing = step_flops / chips.rate(round(models.law_experts))
    sending = sent_bytes * chips.n_devices / chips.count / chips.chip.network
    return PlannedLayout(
        batch_tokens=batch,
        sequence=models.sequence,
        data=int(candidate.data[0]),
        expert=int(candidate.expert[0]),
        model=int(candidate.model[0]),
        remat=problem.grid.remats[int(candidate.remat[0])],
        microbatch_tokens=0 if at_once == batch else at_once,
        flash=models.as_published,
        group_tokens=int(candidate.group_tokens[0]),
        ramp=ramp,
        device_bytes=float(np.squeeze(step.device_bytes)),
        sent_bytes=sent_bytes,
        sending_share=sending / computing,
    )
