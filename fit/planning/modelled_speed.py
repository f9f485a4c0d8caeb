"""Modelled speeds in plans: the speed of each model, and the best model under the other budget."""

import dataclasses
import math

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
from fit.planning.constraints import Constraints
from fit.planning.grid import ShapeRequest
from fit.planning.problem import ProblemOnChips, problem_on_chips
from fit.planning.results import ClockComparison, Optimum, Speed, Target, TargetRow
from fit.planning.training_chips import MFU, SECONDS_PER_HOUR, Chips

# fields of config.model that a table of speeds may have as columns
MODEL_FIELDS = (
    *("n_blocks", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size"),
    *("d_expert", "top_k", "n_shared_experts", "n_dense_blocks"),
)


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


def speed_of_optimum(problem: ProblemOnChips, n_experts: float, n_active: float, n_tokens: float) -> Speed | None:
    """The speed of a model of real size, between shapes of the grid; None where the chips train no such model."""
    rate = by_hours.tokens_per_second(problem, n_experts, n_active, n_tokens)
    if rate is None:
        return None
    return speed_of(problem.calibration, problem.chips, rate, n_active, n_tokens)


def speed_of_best(best: by_hours.Best) -> Speed:
    """The speed of a candidate on its chips."""
    chips = dataclasses.replace(best.problem.chips, count=best.chips)
    n_active = float(best.models.n_active[best.row])
    return speed_of(best.problem.calibration, chips, best.tokens_per_second, n_active, best.n_tokens)


def with_modelled_mfu(chips: Chips, optima: list[Optimum], built_is_timed: bool) -> Chips:
    """The chips with the MFU of each optimum: that of its speed, or the assumed one for an optimum without a speed."""
    mfu = {row.n_experts: float(f"{row.speed.mfu[1]:.3g}") if row.speed else MFU for row in optima}
    is_assumed = any(row.speed is None for row in optima) or not built_is_timed
    return dataclasses.replace(chips, mfu=mfu, mfu_is_assumed=is_assumed)


def against_flops(
    law: Law, architecture: Architecture, constraints: Constraints, best: Optimum | dict, experts: Floats
) -> ClockComparison:
    """The best number of experts under the FLOPs of a plan by hours, beside the best by hours.

    Args:
      law: The law that plans.
      architecture: How models are built.
      constraints: With hours as the budget.
      best: The best model in the hours.
      experts: The numbers of experts to choose from.
    """
    n_active = best["n_active"]
    flops = n_active * (TRAINING * best["n_tokens"] + INFERENCE * constraints.inference_tokens)
    by_flops = dataclasses.replace(constraints, flops=flops, time_budget=None)
    solved = optimum.optima(law, architecture, by_flops, experts)
    chosen = int(solved.n_experts[int(np.nanargmin(solved.loss))])
    problem = problem_on_chips(law, architecture, constraints)
    hours = float(np.asarray(constraints.hours))
    return _comparison(problem, hours, chosen, best["n_experts"], n_active, best["n_tokens"])


def _comparison(
    problem: ProblemOnChips, hours: float, by_flops: int, by_time: int, n_active: float, n_tokens: float
) -> ClockComparison:
    """The best numbers of experts by FLOPs and by hours, beside each other.

    n_active, n_tokens: those of the best model by hours.
    """
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
        label=problem.calibration.label,
        by_flops=by_flops,
        by_time=by_time,
        n_active=size,
        largest=largest if largest < n_active else None,
        ratio=[ratio * factor for factor in problem.calibration.factors(of_ratio=True)],
    )


def hours_with_serving(constraints: Constraints, n_tokens: float, speed: Speed) -> float:
    """Hours of training on n_tokens tokens, and of the inference tokens of the constraints."""
    tokens = n_tokens + INFERENCE / TRAINING * constraints.inference_tokens
    return tokens / speed.tokens_per_second[1] / SECONDS_PER_HOUR


def against_hours(problem: ProblemOnChips, n_experts: int, hours: float, experts: Floats) -> ClockComparison | None:
    """The best number of experts in the hours that a plan by FLOPs takes, beside the best by FLOPs.

    Args:
      problem: The problem, whose budget is FLOPs.
      n_experts: Those of the best model by FLOPs.
      hours: The hours of that model, as hours_with_serving counts them.
      experts: The numbers of experts to choose from.

    Returns:
      The comparison; None where the chips train no model in these hours.
    """
    constraints = problem.constraints.in_hours(hours, problem.calibration)
    solved = optimum.solve(problem.law, np.asarray(experts, float), problem.architecture, constraints)
    if not solved.feasible.any():
        return None
    best = solved.row(int(np.nanargmin(solved.loss)))
    return _comparison(problem, hours, n_experts, best["n_experts"], best["n_active"], best["n_tokens"])


def priced_target(target: Target, problem: ProblemOnChips) -> Target:
    """A target whose models are priced at their modelled speeds, where the chips train such models."""

    def priced(row: TargetRow) -> TargetRow:
        """The model of a row with its hours and dollars."""
        if row.flops is None or row.n_active is None or row.n_tokens is None:
            return row
        rate = by_hours.tokens_per_second(problem, row.n_experts, row.n_active, row.n_tokens)
        if rate is None:
            return row
        hours = row.flops / training_flops(row.n_active, rate) / SECONDS_PER_HOUR
        return dataclasses.replace(row, **problem.chips.price_of_hours(hours))

    return dataclasses.replace(
        target,
        optima=[priced(row) for row in target.optima],
        best=priced(target.best),
        front=[priced(row) for row in target.front],
    )


def speed_of(
    calibration: Calibration, chips: Chips, tokens_per_second: float, n_active: float, n_tokens: float
) -> Speed:
    """The speed of the training of a model of n_active parameters on n_tokens tokens.

    Args:
      calibration: The spread of speeds around the modelled ones.
      chips: The chips that train it.
      tokens_per_second: The modelled speed, of all chips.
      n_active: Active parameters.
      n_tokens: Training tokens.
    """
    speeds = [tokens_per_second * factor for factor in calibration.factors()]
    peak = chips.count * chips.chip.flops
    return Speed(
        tokens_per_second=speeds,
        mfu=[training_flops(n_active, speed) / peak for speed in speeds],
        hours=[n_tokens / speed / SECONDS_PER_HOUR for speed in reversed(speeds)],
    )
