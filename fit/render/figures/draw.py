"""Draws any figure by its name, at the budgets and sizes that suit the law."""

from typing import TYPE_CHECKING

import numpy as np

from fit.aliases import Floats
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import units
from fit.model.architecture import Architecture
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.options import BudgetOptions
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import SECONDS_PER_HOUR
from fit.planning.search import solver
from fit.planning.space import calibration
from fit.render.figures import COMPUTE, ON_CHIPS, Measured
from fit.table.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_FLOPS = (1e20, 1e21, 1e22)  # of its figures, for a published law
PAPER_SINGLE_FLOPS = {"1a": 1e22, "3": 5e22, "4": 5e22}  # of its figures of one budget
PAPER_SIZES = (2e9, 5e9, 10e9)  # of dense models whose memory is the limit
PAPER_SERVED_TOKENS = 1e11


def draw(  # noqa: PLR0913  most are by name
    which: str,
    law: Law,
    architecture: Architecture,
    experts: tuple[int, ...],
    budgets: Floats = (),
    measured_runs: Measured = None,
    *,
    chips: str | None = None,
    speeds: str | None = None,
) -> tuple["Figure", dict[str, list]]:
    """Draws one of FIGURES, of ON_CHIPS, or COMPUTE.

    Args:
      which: of FIGURES, of ON_CHIPS, or COMPUTE.
      experts: the numbers of experts to draw.
      budgets: training FLOPs; by default those that suit the law.
      measured_runs: runs to draw points of.
      chips: of ON_CHIPS: the chips, such as H100:64.
      speeds: of ON_CHIPS: path of a table of the user's speeds.

    Returns:
      The figure, and its numbers as columns {name: list}.

    Raises:
      UserError: where the law or the runs do not allow the figure.
    """
    from fit.render.figures import compute, loss, memory, style

    if which in ON_CHIPS:
        return _draw_by_hours(law, architecture, experts, chips, speeds, budgets)
    several = list(budgets) or budgets_of(law)
    single = several[0] if budgets else several[1]
    if law.published and not budgets:
        single = PAPER_SINGLE_FLOPS.get(which, single)
    with style.in_style():
        if which == "5":
            if measured_runs is None:
                raise UserError("--figure=5 needs --runs")
            return loss.fit_quality(law, architecture, *measured_runs)
        picture = style.Picture(law, architecture, experts)
        if which == COMPUTE:
            ends = law.ranges.get("training_flops", (PAPER_FLOPS[0], PAPER_FLOPS[-1]))
            runs, held_out_runs = (None, None) if measured_runs is None else measured_runs
            return compute.loss_against_compute(picture, ends, runs, held_out_runs)
        if which == "2a":
            runs = None if measured_runs is None else measured_runs[0]
            return loss.isoflop(picture, list(budgets) or budgets_of(law, runs), runs)
        if which == "2b":
            return loss.savings(picture, several)
        if which == "memory":
            return memory.experts_against_memory(picture, several)
        if which == "1a":
            return memory.memory_curves(picture, single)
        sizes, kv_tokens, served = _memories(which, law, architecture, single)
        if which == "3":
            return memory.matched_memory(picture, single, kv_tokens, served)
        return memory.best_experts(picture, single, sizes, kv_tokens, served)


def _memories(which: str, law: Law, architecture: Architecture, flops: float) -> tuple[tuple[float, ...], float, float]:
    """What figures 3 and 4 hold in memory: the paper's, or of a user's own law what suits its models at these FLOPs.

    Returns:
      Sizes of dense models whose memory is the limit, the tokens of a cache, and the tokens served.
    """
    if law.published:
        return PAPER_SIZES, 8192.0 if which == "3" else 32768.0, PAPER_SERVED_TOKENS
    dense = solver.best_of_each_number(Problem(law, architecture, Constraints(flops=flops), [1]))
    size = float(dense.n_active[0])
    sizes = tuple(units.rounded(share * size) for share in (0.3, 0.7, 1.4))
    # a cache of a third of a dense model's weights, about what the paper's is
    kv_tokens = units.rounded(size / 3 / architecture.kv_elements(architecture.d_model(size, 1), 1.0))
    return sizes, kv_tokens, units.rounded(float(dense.n_tokens[0]))


def _draw_by_hours(
    law: Law,
    architecture: Architecture,
    experts: tuple[int, ...],
    chips: str | None,
    speeds: str | None,
    budgets: Floats,
) -> tuple["Figure", dict[str, list]]:
    """Draws the figure of ON_CHIPS: the least loss against hours, each model at its own modelled speed.

    Args:
      law: The law.
      architecture: How models are built.
      experts: The numbers of experts to draw.
      chips: The chips, such as H100:64.
      speeds: Path of a table of the user's speeds.
      budgets: Training FLOPs that the middle of the axis is at, at the usual MFU; by default a budget of the law.

    Returns:
      The figure, and its numbers as columns {name: list}.

    Raises:
      UserError: There are no such chips, they train no model, or the table of speeds cannot be read.
    """
    from fit.render.figures import budget

    if chips is None:
        raise UserError("--figure=hours needs --chips, such as H100:64")
    flops = budgets[0] if budgets else budgets_of(law)[1]
    options = BudgetOptions(chips=chips, hours=1.0, speeds=speeds)
    training_chips = options.training_chips(experts)
    shapes = options.shape_request
    assert training_chips is not None and shapes is not None
    hours = flops / training_chips.rate(1) / SECONDS_PER_HOUR
    problem = Problem(law, architecture, Constraints(hours=hours, chips=training_chips, request=shapes), experts)
    return budget.frontier(calibration.at_modelled_speeds(problem, speeds))


def budgets_of(law: Law, runs: Runs | None = None) -> list[float]:
    """Three training budgets that suit a law: its paper's, or spread over the upper two thirds of its runs.

    Args:
      runs: if given, the budgets are those that most of them are near.
    """
    if law.published or "training_flops" not in law.ranges:
        return list(PAPER_FLOPS)
    low, high = law.ranges["training_flops"]
    if runs is None:
        return [units.rounded(low ** (1 - share) * high**share) for share in (1 / 3, 2 / 3, 1)]
    from fit.render.figures import style

    log_flops = np.log(runs.flops)
    budgets = []
    for start in (0.2, 0.5, 0.8):
        candidates = np.log(low) + np.log(high / low) * np.linspace(start, start + 0.2, 20)
        n_near = [np.sum(np.abs(log_flops - candidate) < np.log(style.NEAR)) for candidate in candidates]
        budgets.append(units.rounded(np.exp(candidates[np.argmax(n_near)])))
    return budgets
