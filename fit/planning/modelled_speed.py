"""Modelled speeds in plans: the speed of each model, and the best model under the other budget."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fit.aliases import Floats
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.units import say
from fit.model import efficiencies, hardware, measured
from fit.model.architecture import INFERENCE, TRAINING, Architecture, Model, training_flops
from fit.model.efficiencies import Calibration
from fit.model.measured import MeasuredRun
from fit.model.shape import ModelShape
from fit.planning import by_hours, optimum, recipe
from fit.planning.grid import ShapeRequest
from fit.planning.problem import Problem
from fit.planning.training_chips import SECONDS_PER_HOUR, Chips
from fit.results import Record, optional

# fields of config.model that a table of speeds may have as columns
MODEL_FIELDS = (
    *("n_blocks", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size"),
    *("d_expert", "top_k", "n_shared_experts", "n_dense_blocks"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed(Record):
    """How fast the chips train a model. Each field is [10th percentile, median, 90th percentile].

    Attributes:
      tokens_per_second: Of all chips.
      mfu: Model FLOPs utilisation, with 6 FLOPs for each active parameter and token.
      hours: Of the whole training.
    """

    tokens_per_second: list[float]
    mfu: list[float]
    hours: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockComparison(Record):
    """The choice of FLOPs in place of hours or, where FLOPs are the budget, hours in place of FLOPs.

    Attributes:
      hours: The budget; where that is FLOPs, what the best model takes.
      label: How the speeds are known.
      by_flops: The best number of experts by FLOPs, as many as the best model in these hours takes.
      by_time: The best number of experts in these hours.
      n_active: Size at which the two numbers of experts are compared: of the best model in these hours or, if that is
        less, of the largest one that the chips train with `by_flops` experts.
      largest: That size, where it is less.
      ratio: How fast that model trains over the best one: [10th percentile, median, 90th percentile].
    """

    hours: float
    label: str
    by_flops: int
    by_time: int
    n_active: float
    largest: float | None = optional()
    ratio: list[float]


def at_modelled_speeds(problem: Problem, hours: float | None, path: str | None) -> Problem:
    """The problem on chips at the speed of each model, with hours as the budget where they are given.

    Args:
      problem: The problem.
      hours: The budget in place of FLOPs; None for the problem's own.
      path: Of a table of the user's speeds, or None.

    Raises:
      UserError: The table cannot be read.
    """
    calibration = calibration_of(problem.law, problem.architecture, problem.chips, problem.request, path)
    problem = dataclasses.replace(problem, calibration=calibration)
    return problem if hours is None else problem.within(hours=hours, flops=None)


def calibration_of(
    law: Law, architecture: Architecture, chips: Chips, request: ShapeRequest, path: str | None
) -> Calibration:
    """The efficiencies of the chips: our trainer's or, with a table of the user's speeds at `path`, recalibrated.

    Raises:
      UserError: The table cannot be read, has fewer than two rows, or none on these chips.
    """
    published = efficiencies.of_our_trainer(chips.kind, chips.count)
    if path is None:
        return published
    runs = measured_runs(law, architecture, chips, request, path)
    if chips.kind not in {run.kind for run in runs}:
        raise UserError(say(sentences.NO_SPEED_OF_CHIPS, path=path, kind=chips.kind))
    return efficiencies.recalibrated(published, runs)


def measured_runs(
    law: Law, architecture: Architecture, chips: Chips, request: ShapeRequest, path: str
) -> list[MeasuredRun]:
    """The runs in a table of the user's speeds.

    Fields of the model that the table has no column for (MODEL_FIELDS) are those of the plan's models.

    Raises:
      UserError: The table cannot be read.
    """

    def shape_of(row: dict[str, str]) -> ModelShape:
        """The model of a row."""
        width = int(float(row["d_model"]))
        routed = int(float(row["n_experts"]))
        model = _model_of(law, architecture, request, width, routed)
        columns = {name: measured.whole(row, name, f"--speeds={path}") for name in MODEL_FIELDS if row.get(name)}
        return ModelShape.of_config(model.fields | dict(n_experts=routed) | columns)

    return measured.read_own(path, shape_of, chips.kind, chips.count, recipe.PRETRAIN_SEQUENCE)


def _model_of(law: Law, architecture: Architecture, request: ShapeRequest, width: int, routed: int) -> Model:
    """The model of a width and so many experts, as the plan's grid has it.

    It has the style of published models if its size is beyond the law's runs. `routed`: experts as the trainer counts.
    """
    padded = dataclasses.replace(architecture, vocab_size=hardware.padded(architecture.vocab_size))
    ends = law.ranges.get("n_active")
    is_beyond = request.family or ends is None or float(padded.n_active(width, routed)) > ends[1]
    style = hardware.style_of(architecture, is_beyond, request.fixed)
    n_blocks = max(round(width / style.aspects[1]), architecture.n_dense + 1)
    return hardware.built(padded, style, width, n_blocks, routed)


def speed_of_optimum(problem: Problem, n_experts: float, n_active: float, n_tokens: float) -> Speed | None:
    """The speed of a model of real size, between shapes of the grid; None where the chips train no such model."""
    rate = by_hours.tokens_per_second(problem, n_experts, n_active, n_tokens)
    if rate is None:
        return None
    return speed_of(problem, problem.chips, rate, n_active, n_tokens)


def speed_of_best(best: by_hours.Best) -> Speed:
    """The speed of a candidate on its chips."""
    chips = dataclasses.replace(best.problem.chips, count=best.chips)
    n_active = float(best.models.n_active[best.row])
    return speed_of(best.problem, chips, best.tokens_per_second, n_active, best.n_tokens)


def against_other_budget(problem: Problem, best: Mapping[str, Any], experts: Floats) -> ClockComparison | None:
    """What FLOPs would choose in place of hours, or hours in place of FLOPs; None where no speed is modelled.

    Args:
      problem: The problem.
      best: The best model by the medians, with its speed.
      experts: The numbers of experts to choose from.
    """
    if problem.calibration is None:
        return None
    if problem.is_by_hours:
        return against_flops(problem, best, experts)
    speed = best.get("speed")
    if speed is None:
        return None
    tokens = best["n_tokens"] + INFERENCE / TRAINING * problem.constraints.inference_tokens
    hours = tokens / speed.tokens_per_second[1] / SECONDS_PER_HOUR
    return against_hours(problem, best["n_experts"], hours, experts)


def against_flops(problem: Problem, best: Mapping[str, Any], experts: Floats) -> ClockComparison:
    """The best number of experts under the FLOPs of a plan by hours, beside the best by hours.

    Args:
      problem: The problem, by hours.
      best: The best model in the hours.
      experts: The numbers of experts to choose from.
    """
    n_active = best["n_active"]
    flops = n_active * (TRAINING * best["n_tokens"] + INFERENCE * problem.constraints.inference_tokens)
    by_flops = dataclasses.replace(problem.within(flops=flops, hours=None), experts=experts)
    solved = optimum.optima(by_flops)
    chosen = int(solved.n_experts[int(np.nanargmin(solved.loss))])
    return _comparison(problem, problem.budget_hours, chosen, best["n_experts"], n_active, best["n_tokens"])


def _comparison(
    problem: Problem, hours: float, by_flops: int, by_time: int, n_active: float, n_tokens: float
) -> ClockComparison:
    """The best numbers of experts by FLOPs and by hours, beside each other.

    n_active, n_tokens: those of the best model by hours.
    """
    calibration = problem.calibration
    assert calibration is not None
    largest = math.inf if by_flops == by_time else by_hours.largest(problem, by_flops, n_tokens)
    size = min(n_active, largest)
    ratio = 1.0
    if by_flops != by_time:
        of_flops = by_hours.tokens_per_second(problem, by_flops, size, n_tokens)
        of_time = by_hours.tokens_per_second(problem, by_time, size, n_tokens)
        assert of_flops is not None and of_time is not None
        ratio = of_flops / of_time
    return ClockComparison(
        hours=hours,
        label=calibration.label,
        by_flops=by_flops,
        by_time=by_time,
        n_active=size,
        largest=largest if largest < n_active else None,
        ratio=[ratio * factor for factor in calibration.factors(of_ratio=True)],
    )


def against_hours(problem: Problem, n_experts: int, hours: float, experts: Floats) -> ClockComparison | None:
    """The best number of experts in the hours that a plan by FLOPs takes, beside the best by FLOPs.

    Args:
      problem: The problem, whose budget is FLOPs.
      n_experts: Those of the best model by FLOPs.
      hours: The hours of that model, with those of the inference tokens.
      experts: The numbers of experts to choose from.

    Returns:
      The comparison; None where the chips train no model in these hours.
    """
    solved = optimum.solve(problem.within(hours=hours, flops=None), np.asarray(experts, float))
    if not solved.feasible.any():
        return None
    best = solved.row(int(np.nanargmin(solved.loss)))
    return _comparison(problem, hours, n_experts, best["n_experts"], best["n_active"], best["n_tokens"])


def speed_of(problem: Problem, chips: Chips, tokens_per_second: float, n_active: float, n_tokens: float) -> Speed:
    """The speed of the training of a model of n_active parameters on n_tokens tokens.

    Args:
      problem: The problem, with the spread of speeds around the modelled ones.
      chips: The chips that train it.
      tokens_per_second: The modelled speed, of all chips.
      n_active: Active parameters.
      n_tokens: Training tokens.
    """
    assert problem.calibration is not None
    speeds = [tokens_per_second * factor for factor in problem.calibration.factors()]
    peak = chips.count * chips.chip.flops
    return Speed(
        tokens_per_second=speeds,
        mfu=[training_flops(n_active, speed) / peak for speed in speeds],
        hours=[n_tokens / speed / SECONDS_PER_HOUR for speed in reversed(speeds)],
    )
