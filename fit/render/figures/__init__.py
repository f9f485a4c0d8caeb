"""The paper's figures for any law, and a fit's own: draw() makes one of FIGURES.

style.py    sizes, colours, units on axes, dashes where a law is extrapolated, bands, formats
loss.py     isoFLOP curves (2a), savings (2b) against training compute, predicted against measured (5)
searches.py isoFLOP surfaces over size and sparsity; ratios and widths of architectures
budget.py   loss under budgets around one, also in hours on the same chips; residuals of one number of experts
compute.py  the loss against compute, with the runs
memory.py   loss under a memory limit (1a), models of equal memory (3), the best number of experts (4, memory)
"""

import contextlib
import copy
import io
import os
from typing import IO, TYPE_CHECKING

import numpy as np

from fit.aliases import Array, Floats
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
from fit.render.elements import Image
from fit.table.files import replacing
from fit.table.runs import Runs, held_out, read_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measured = tuple[Runs, Array] | None  # runs, and boolean [n_runs]: those that the law's fit kept out
FIGURES = {  # name: caption
    "1a": "Figure 1a: loss under a memory limit",
    "2a": "Figure 2a: isoFLOP profiles",
    "2b": "Figure 2b: savings against dense models",
    "3": "Figure 3: models of equal memory",
    "4": "Figure 4: best number of experts for three sizes",
    "5": "Figure 5: predicted against measured",
    "memory": "Best number of experts against memory",
}
ON_CHIPS = {"hours": "Loss against hours on the same chips"}  # figures that need chips
COMPUTE = "compute"  # not of the paper: the loss against compute
FORMATS = ("pdf", "png", "svg")
PAPER_FLOPS = (1e20, 1e21, 1e22)  # of its figures, for a published law
PAPER_SINGLE_FLOPS = {"1a": 1e22, "3": 5e22, "4": 5e22}  # of its figures of one budget
PAPER_SIZES = (2e9, 5e9, 10e9)  # of dense models whose memory is the limit
PAPER_SERVED_TOKENS = 1e11


def check_ending(path: str, instead: str = "") -> None:
    """Raises UserError where the ending of a file is none of FORMATS. instead: what may be typed in its place."""
    if os.path.splitext(path)[1].removeprefix(".") not in FORMATS:
        raise UserError(f"--out={path}: expected the ending .pdf, .png or .svg{instead}")


def save(figure: "Figure", file: str | IO[bytes]) -> None:
    """Writes a figure. The same figure gives the same bytes.

    Args:
      file: a path, whose ending is one of FORMATS, or an open file, for png.
    """
    from fit.render.figures import style

    kind = file.rpartition(".")[2] if isinstance(file, str) else "png"
    fresh = copy.deepcopy(figure)  # drawing lays a figure out, from where the last drawing left it
    with replacing(file) if isinstance(file, str) else contextlib.nullcontext(file) as target, style.in_style():
        fresh.savefig(target, format=kind, dpi=style.DPI, metadata=dict.fromkeys(style.LEFT_OUT[kind]))


def image(figure: "Figure") -> Image:
    """A figure as a page shows it."""
    from fit.render.figures import style

    png = io.BytesIO()
    save(figure, png)
    width, height = (round(96 * inches * 1.3) for inches in figure.get_size_inches())
    return Image(png.getvalue(), width, height, is_wide=figure.get_figwidth() > style.COLUMN)


def measured(law: Law, table: object) -> Measured:
    """The runs of a table, and which of them the law's fit kept out.

    In a table other than the one that the law was fitted to, none is known to be kept out. A file has its columns by
    the names that the fit read them by.

    Args:
      table: what fit.read takes, or None.

    Raises:
      UserError: where it cannot be read.
    """
    if table is None:
        return None
    runs = read_runs(law.settings.read(table), law.form.columns, mix_corpora=True)
    same = runs.has(law.runs.fingerprint or "")
    return runs, held_out(runs, law.settings.holdout if same else "none")


def draw(  # noqa: PLR0913  most are by name
    which: str,
    law: Law,
    architecture: Architecture,
    experts: tuple[int, ...],
    budgets: Floats = (),
    measured: Measured = None,
    *,
    chips: str | None = None,
    speeds: str | None = None,
) -> tuple["Figure", dict[str, list]]:
    """Draws one of FIGURES, of ON_CHIPS, or COMPUTE.

    Args:
      which: of FIGURES, of ON_CHIPS, or COMPUTE.
      experts: the numbers of experts to draw.
      budgets: training FLOPs; by default those that suit the law.
      measured: runs to draw points of.
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
            if measured is None:
                raise UserError("--figure=5 needs --runs")
            return loss.fit_quality(law, architecture, *measured)
        picture = style.Picture(law, architecture, experts)
        if which == COMPUTE:
            ends = law.ranges.get("training_flops", (PAPER_FLOPS[0], PAPER_FLOPS[-1]))
            runs, held_out_runs = (None, None) if measured is None else measured
            return compute.loss_against_compute(picture, ends, runs, held_out_runs)
        if which == "2a":
            runs = None if measured is None else measured[0]
            return loss.isoflop(picture, list(budgets) or budgets_of(law, runs), runs)
        if which == "2b":
            return loss.savings(picture, several)
        if which == "memory":
            return memory.experts_against_memory(picture, several)
        if which == "1a":
            return memory.memory_curves(picture, single)
        sizes = PAPER_SIZES
        kv_tokens = 8192.0 if which == "3" else 32768.0
        served = PAPER_SERVED_TOKENS
        if not law.published:  # a cache of a third of a dense model's weights, about what the paper's is
            dense = solver.best_of_each_number(Problem(law, architecture, Constraints(flops=single), [1]))
            size = float(dense.n_active[0])
            served = units.rounded(float(dense.n_tokens[0]))
            sizes = tuple(units.rounded(share * size) for share in (0.3, 0.7, 1.4))
            kv_tokens = units.rounded(size / 3 / architecture.kv_elements(architecture.d_model(size, 1), 1.0))
        if which == "3":
            return memory.matched_memory(picture, single, kv_tokens, served)
        return memory.best_experts(picture, single, sizes, kv_tokens, served)


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
