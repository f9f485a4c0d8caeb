"""Modelled speeds in plans: the speed of each model, and the best model under the other budget."""

import dataclasses

from fit.errors import UserError
from fit.messages import sentences
from fit.messages.units import say
from fit.model import efficiencies, hardware, measured
from fit.model.architecture import Model, training_flops
from fit.model.efficiencies import Calibration
from fit.model.measured import MeasuredRun
from fit.model.shape import ModelShape
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import SECONDS_PER_HOUR, Chips
from fit.planning.search import by_hours
from fit.planning.space import recipe, size_speeds
from fit.results import Record

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
      hours: Of the whole training, without inference tokens.
    """

    tokens_per_second: list[float]
    mfu: list[float]
    hours: list[float]


def at_modelled_speeds(problem: Problem, path: str | None) -> Problem:
    """The problem on chips at the speed of each model.

    Args:
      problem: The problem.
      path: Of a table of the user's speeds, or None.

    Raises:
      UserError: The table cannot be read.
    """
    return dataclasses.replace(problem, calibration=calibration_of(problem, path))


def calibration_of(problem: Problem, path: str | None) -> Calibration:
    """The efficiencies of the chips: our trainer's or, with a table of the user's speeds at `path`, recalibrated.

    Raises:
      UserError: The table cannot be read, has fewer than two rows, or none on these chips.
    """
    chips = problem.chips
    published = efficiencies.of_our_trainer(chips.kind, chips.count)
    if path is None:
        return published
    runs = measured_runs(problem, path)
    if chips.kind not in {run.kind for run in runs}:
        raise UserError(say(sentences.NO_SPEED_OF_CHIPS, path=path, kind=chips.kind))
    return efficiencies.recalibrated(published, runs)


def measured_runs(problem: Problem, path: str) -> list[MeasuredRun]:
    """The runs in a table of the user's speeds.

    Fields of the model that the table has no column for (MODEL_FIELDS) are those of the plan's models.

    Raises:
      UserError: The table cannot be read.
    """

    def shape_of(row: dict[str, str]) -> ModelShape:
        """The model of a row."""
        width = int(float(row["d_model"]))
        routed = int(float(row["n_experts"]))
        model = _model_of(problem, width, routed)
        columns = {name: measured.whole(row, name, f"--speeds={path}") for name in MODEL_FIELDS if row.get(name)}
        return ModelShape.of_config(model.fields | dict(n_experts=routed) | columns)

    chips = problem.chips
    return measured.read_own(path, shape_of, chips.kind, chips.count, recipe.PRETRAIN_SEQUENCE)


def _model_of(problem: Problem, width: int, routed: int) -> Model:
    """The model of a width and so many experts, as the plan's grid has it.

    It has the style of published models if its size is beyond the law's runs. `routed`: experts as the trainer counts.
    """
    architecture = problem.architecture
    request = problem.request
    padded = problem.padded
    ends = problem.law.ranges.get("n_active")
    is_beyond = request.family or ends is None or float(padded.n_active(width, routed)) > ends[1]
    style = hardware.style_of(architecture, is_beyond, request.fixed)
    n_blocks = max(round(width / style.aspects[1]), architecture.n_dense + 1)
    return hardware.built(padded, style, width, n_blocks, routed)


def speed_of_optimum(problem: Problem, n_experts: float, n_active: float, n_tokens: float) -> Speed | None:
    """The speed of a model of real size, between shapes of the grid; None where the chips train no such model."""
    rate = size_speeds.tokens_per_second(problem, n_experts, n_active, n_tokens)
    if rate is None:
        return None
    return speed_of(problem, problem.chips, rate, n_active, n_tokens)


def speed_of_candidate(best: by_hours.BestCandidate) -> Speed:
    """The speed of a candidate on its chips."""
    chips = best.problem.chips.with_count(best.n_chips)
    n_active = float(best.models.n_active[best.row])
    return speed_of(best.problem, chips, best.tokens_per_second, n_active, best.n_tokens)


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
