"""The efficiencies of a problem's chips: our trainer's, or those of a table of the user's speeds."""

import dataclasses

from fit.errors import UserError
from fit.messages import sentences
from fit.messages.units import say
from fit.model import efficiencies, hardware, measured
from fit.model.architecture import Model
from fit.model.efficiencies import Calibration
from fit.model.measured import MeasuredRun
from fit.model.shape import ModelShape
from fit.planning.inputs.problem import Problem
from fit.planning.recipe import which_recipe

# fields of config.model that a table of speeds may have as columns
MODEL_FIELDS = (
    *("n_blocks", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size"),
    *("d_expert", "top_k", "n_shared_experts", "n_dense_blocks"),
)


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
        return ModelShape.of_config(model.fields | columns)

    chips = problem.chips
    return measured.read_own(path, shape_of, chips.kind, chips.count, which_recipe.PRETRAIN_SEQUENCE)


def _model_of(problem: Problem, width: int, routed: int) -> Model:
    """The model of a width and a number of experts, as the plan's grid has it.

    It has the style of published models if its size is beyond the law's runs. `routed`: experts as the trainer counts.
    """
    request = problem.request
    base, _ = which_recipe.runs_config(problem.law, False)
    published = _of_style(problem, True, width, routed)
    has_recipe, least, _ = which_recipe.tokens_of_recipe(
        problem.law, problem.padded_architecture, published.shape, True, base, request.like_published
    )
    if has_recipe and least == 0:
        return published
    return _of_style(problem, False, width, routed)


def _of_style(problem: Problem, as_published: bool, width: int, routed: int) -> Model:
    """The model of a width and a number of experts, of the style of published models or of the law's runs."""
    style = hardware.style_of(problem.architecture, as_published, problem.request.fixed)
    n_blocks = max(round(width / style.aspects[1]), problem.architecture.n_dense + 1)
    return hardware.built(problem.padded_architecture, style, width, n_blocks, routed)
