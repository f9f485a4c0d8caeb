"""How fast chips train all models that a page may plan: a grid of shapes and numbers of chips, ready for JSON.

The grid is a part of the one that plans choose from, so each of its models can be built and takes as long as a plan
says. Left out are other numbers of chips, widths and batches that hardly lower a loss, and models that no budget
within HOURS suits.
"""

import bisect
import dataclasses
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array, Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.model import efficiencies
from fit.model.architecture import TRAINING
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.grid import Grid
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.requests import ShapeRequest
from fit.planning.inputs.training_chips import MEMORY_SHARE, MFU, SECONDS_PER_HOUR, Chips
from fit.planning.space import layout_choices, within_hours
from fit.planning.space.candidates import Candidates
from fit.planning.space.model_grid import ModelGrid, models_of

HOURS = (1.0, 1e4)  # the budgets that the grid is for
TOKENS_PER_PARAMETER = (1.0, 3000.0)  # of the models that the grid is for
MANY_CHIPS = 64  # more are better shared by larger model axes
FINE_WIDTH = 8192  # above this, every second width
COARSE = Grid(
    widths=tuple(width for width in Grid().widths if width <= FINE_WIDTH or width % 256 == 0),
    models=(1, 2),
)
SHORTEST = 0.5  # of the least hours: shorter runs need no speed
MFU_UNIT = 1e-4  # an MFU is written in these
TOKENS_UNIT = 0.01  # ln of training tokens is written in these
NEVER = 2**31  # ln of more tokens than any run has, in the unit of tokens
SAME_SPEED = 4e-3  # a larger batch that trains faster by less is left out


def speeds_of(law: Law, kind: str, count: int) -> Json | None:
    """The speeds of a law's models on chips.

    Args:
      law: What says which recipe a run has.
      kind: Of the chips.
      count: The most chips. The grid has the powers of two below it, too.

    Returns:
      {law, kind, counts: numbers of chips that may be asked about; hours, tokens_per_parameter: ranges of the grid;
      mfu_unit, tokens_unit, uncounted_rows: of embedding and head, which the law does not count; label, factors: 10th
      percentile, 1 and 90th of a speed over the modelled, for one chip and for several; models: see `_rows`}. None
      where the law does not say what its models look like, or where none has just the experts that it compares.
    """
    try:
        architecture = law.shaped(None, None)
    except UserError:
        return None
    chips = Chips(kind, count, MFU, memory_share=MEMORY_SHARE)
    counts = [n for n in Grid().counts_of(chips.chip, count) if n == 2 ** (n.bit_length() - 1)]
    largest = Grid().counts_of(chips.chip, count)[-1]
    trained_on = sorted({*counts, largest})
    calibrations = [efficiencies.of_our_trainer(kind, n) for n in (1, 2)]
    constraints = Constraints(chips=chips, request=ShapeRequest())
    problem = Problem(law, architecture, constraints, calibration=calibrations[0], grid=COARSE)
    rows = []
    for n_experts in law.experts:
        for models in models_of(problem, float(n_experts)):
            if models.law_experts != n_experts:  # the page would ask the law about others
                return None
            rows.append(_rows(problem, models, n_experts, trained_on))
    return dict(
        law=law.name,
        kind=kind,
        counts=sorted({*counts, count}),
        hours=HOURS,
        tokens_per_parameter=TOKENS_PER_PARAMETER,
        mfu_unit=MFU_UNIT,
        tokens_unit=TOKENS_UNIT,
        uncounted_rows=law.counting.uncounted_rows(problem.padded_architecture),
        label=calibrations[0].label,
        factors=[calibration.factors() for calibration in calibrations],
        models=rows,
    )


def _rows(problem: Problem, models: ModelGrid, n_experts: int, counts: list[int]) -> Json:
    """The models of one number of experts and one recipe.

    Returns:
      {n_experts; n_active, n_total, d_model, n_blocks, exact_parameters, cache_elements (of a token), most_tokens:
      lists by size, the last one with null for no limit; speeds: for each model [[chips, tokens, mfu, tokens, mfu,
      ...], ...]: from so many tokens on, the MFU of so many chips, each a whole number in its unit}.
    """
    speeds: dict[int, list[list[int]]] = {}
    least_seconds = layout_choices.least_seconds(problem, models)  # of a token on one chip
    for count in counts:
        for row, steps in _steps(problem, models, least_seconds, count):
            speeds.setdefault(row, []).append([count, *steps])
    order = sorted(speeds, key=lambda row: (models.n_active[row], models.exact_parameters[row]))
    shape = models.of(np.array(order, int))
    most_tokens = [None if not np.isfinite(most) else float(most) for most in models.most_tokens[order]]
    return dict(
        n_experts=n_experts,
        n_active=_whole(models.n_active[order]),
        n_total=_whole(models.n_total[order]),
        d_model=_whole(shape.d_model),
        n_blocks=_whole(shape.n_blocks),
        exact_parameters=_whole(models.exact_parameters[order]),
        cache_elements=_whole(shape.kv_elements(1)),
        most_tokens=most_tokens,
        speeds=[speeds[row] for row in order],
    )


def _whole(values: object) -> list[int]:
    """Values as whole numbers."""
    return [round(value) for value in np.asarray(values).tolist()]


def _steps(problem: Problem, models: ModelGrid, least_seconds: Array, count: int) -> Iterator[tuple[int, list[int]]]:
    """(row of the model, [tokens, MFU, tokens, MFU, ...]) of all models that `count` chips train, as `_rows` has it."""
    model_axes = (1, 2, 4) if count > MANY_CHIPS else COARSE.models
    grid = dataclasses.replace(problem.grid, counts=(count,), models=model_axes)
    of_count = dataclasses.replace(problem.on_chips(count), grid=grid)
    # tokens that these hours allow, were there nothing but products and memory; and those that suit the size
    in_hours = np.array(HOURS)[:, None] * SECONDS_PER_HOUR * count / least_seconds
    of_size = np.array(TOKENS_PER_PARAMETER)[:, None] * models.n_active
    least_tokens = np.maximum.reduce([models.least_tokens, SHORTEST * in_hours[0], of_size[0]])
    most_tokens = np.minimum.reduce([models.most_tokens, in_hours[1], of_size[1]])
    suited = dataclasses.replace(
        models,
        least_tokens=least_tokens,
        most_tokens=most_tokens,
        limited_by=np.where(least_tokens < most_tokens, "", "hours").astype(object),
    )
    found = within_hours.could_be_best(of_count, [suited], HOURS)
    if not found:
        return
    part = _fastest_of_batches(found[0])
    peak = count * problem.chips.chip.flops
    mfu = TRAINING * models.n_active[part.row] / part.seconds_per_token / peak
    written = np.floor(mfu / MFU_UNIT + 0.5).astype(int)
    first = np.ceil(np.log(np.maximum(part.least, 1)) / TOKENS_UNIT).astype(int).tolist()
    end = np.floor(np.log(part.most) / TOKENS_UNIT)
    end = np.where(part.most < np.floor(most_tokens[part.row]), end, NEVER).astype(int).tolist()
    reached = written.tolist()
    starts = np.flatnonzero(np.diff(part.row, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(part.row)], strict=True):
        yield int(part.row[start]), _steps_of_model(first[start:stop], end[start:stop], reached[start:stop])


def _fastest_of_batches(evaluated: Candidates) -> Candidates:
    """The fastest candidate of each model and batch, by model and batch."""
    part = evaluated.part(np.lexsort((evaluated.seconds_per_token, evaluated.batch_tokens, evaluated.row)))
    is_first = np.diff(part.row, prepend=-1).astype(bool) | np.diff(part.batch_tokens, prepend=-1).astype(bool)
    return part.part(np.flatnonzero(is_first))


def _steps_of_model(first: list[int], end: list[int], mfu: list[int]) -> list[int]:
    """[tokens, MFU, tokens, MFU, ...] of the best batch from so many tokens on; an MFU of 0 where none is allowed.

    Left out is what is hardly faster than the step before.

    Args:
      first: ln of the tokens from which each batch is allowed, ascending.
      end: ln of those up to which it is, ascending.
      mfu: The MFU with each batch.
    """
    steps: list[int] = []
    for tokens in sorted({*first, *end} - {NEVER}):
        stop = bisect.bisect_right(first, tokens)
        start = bisect.bisect_right(end, tokens, 0, stop)
        reached = max(mfu[start:stop], default=0)
        if not steps or not steps[-1] <= reached <= steps[-1] * (1 + SAME_SPEED):
            steps += [tokens, reached]
    return steps
