"""The loss against training compute: a law's best model of each number of experts, and the runs.

Axes: k points of a curve; n_runs runs.
"""

import numpy as np
from matplotlib.axes import Axes

from fit.aliases import Array
from fit.errors import UserError
from fit.messages import units
from fit.planning.search import unconstrained
from fit.render.figures import style
from fit.table.runs import Runs

WIDTH = 5.0  # of the picture in inches
BEYOND = 10.0  # times the law's largest compute: as far as curves go


def loss_against_compute(
    picture: style.Picture, ends: tuple[float, float], runs: Runs | None, held_out: Array | None
) -> style.Drawn:
    """A curve for each number of experts: the loss of the law's compute-optimal model. Runs are points.

    A run lies above the curve of its number of experts where its size is not the best for its compute.

    Args:
      picture: The law, and the numbers of experts to draw.
      ends: The least and the largest training FLOPs of the law's runs. Curves go BEYOND times further.
      runs: Runs to draw; None for none.
      held_out: Which runs the fit did not see, boolean [n_runs]; they are hollow.

    Raises:
      UserError: The law has no compute-optimal model.
    """
    law = picture.law
    low, high = ends
    flops = np.geomspace(low, high * BEYOND, style.POINTS)
    best = {e: unconstrained.optima(law, e, picture.architecture, flops) for e in picture.experts}
    losses = np.concatenate([loss for _, _, loss in best.values()])
    if not np.isfinite(losses).any():
        raise UserError(f"--law={law.name}: its loss does not fall with size and tokens, so it has no best model")
    lowest = min(best, key=lambda e: np.nanmin(np.append(best[e][2], np.inf)))
    figure, (axis,) = style.panels(height=3.2)
    figure.set_figwidth(WIDTH)
    for e, (size, tokens, loss) in best.items():
        picture.curve(axis, flops, (size, tokens, loss), e, with_band=e == lowest, flops=flops)
    notes = [style.handle("law, at the best size", linestyle="-")]
    if runs is not None:
        _runs(picture, axis, runs, np.zeros(len(runs), bool) if held_out is None else held_out)
        losses = np.append(losses, runs.loss)
        notes.append(style.handle("runs", marker="o", markersize=3))
        if held_out is not None and held_out.any():
            notes.append(style.handle("held out", marker="o", markerfacecolor="white"))
    style.log_axis(axis.xaxis, *style.extent([axis], 1.2), units.flops_math)
    axis.set_ylim(0.98 * np.nanmin(losses), 1.02 * np.nanmax(losses))
    axis.set(xlabel="training FLOPs", ylabel="loss (nats per token)")
    return picture.done(figure, *notes)


def _runs(picture: style.Picture, axis: Axes, runs: Runs, held_out: Array) -> None:
    """Draws the runs of the picture's numbers of experts. held_out: boolean [n_runs]."""
    for e, look in picture.looks.items():
        for is_held_out, face in ((False, look["color"]), (True, "white")):
            rows = (runs.n_experts == e) & (held_out == is_held_out)
            axis.plot(
                runs.flops[rows],
                runs.loss[rows],
                look["marker"],
                color=look["color"],
                markerfacecolor=face,
                markersize=3,
                rasterized=bool(rows.sum() > style.MANY),
            )
