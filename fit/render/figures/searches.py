"""Pictures of searches: over size and sparsity at equal FLOPs, over ratios and widths of architectures.

Axes: k points of a curve.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fit.aliases import Array, Numbers
from fit.messages import units
from fit.render.figures import style
from fit.studies.architecture_search.fitted import BestRatio, BudgetFit, RatiosFit, WidthFit
from fit.studies.architecture_search.search_runs import SearchRuns
from fit.studies.surfaces.results import BudgetSurface
from fit.studies.surfaces.within_runs import sparsity_range

MOST_SURFACES = 4  # in a picture: the largest budgets


@style.in_style()
def surfaces(budgets: Sequence[BudgetSurface]) -> Figure:
    """A panel for each of the largest budgets: contours of the loss, the runs, the best sparsity of each size, and the
    best of both."""
    largest = budgets[-MOST_SURFACES:]
    figure, axes = style.panels(len(largest), sharey=True)
    for axis, budget in zip(axes, largest, strict=True):
        surface = budget.surface
        sizes = np.geomspace(*surface.size, 80)
        sparsity = -np.expm1(-np.linspace(*(-np.log1p(-np.array(surface.sparsity))), 80))
        low, high = sparsity_range(budget.n_total, budget.sparsity, sizes)
        within = (sparsity[:, None] >= low - 1e-6) & (sparsity[:, None] <= high + 1e-6)  # no contours beyond the runs
        loss = np.where(within, surface.loss(sizes[None], sparsity[:, None]), np.nan)
        lines = axis.contour(sizes, -np.log1p(-sparsity), loss, 12, cmap="viridis", linewidths=0.8)
        axis.clabel(lines, fontsize=5)
        axis.plot(budget.n_total, -np.log1p(-budget.sparsity), "o", color="0.5", markersize=2)
        axis.plot(sizes, -np.log1p(-surface.best_sparsity(sizes, (low, high))[0]), color="black")
        axis.plot(budget.best.n_total, -np.log1p(-budget.best.sparsity), "*", color="black", markersize=7)
        style.log_axis(axis.xaxis, *surface.size)
        ticks = np.unique(budget.sparsity)
        axis.set_yticks(-np.log1p(-ticks), [f"{t:.3g}" for t in ticks])
        axis.set(xlabel="total parameters", title=f"{units.flops(budget.flops)} FLOPs")
    axes[0].set_ylabel("sparsity")
    return figure


@style.in_style()
def architectures(
    fits: Sequence[BudgetFit], ratio_runs: SearchRuns | None = None, width_runs: SearchRuns | None = None
) -> Figure:
    """Loss above the budget's least over M/N_a, N/N_a and d: runs, each budget's fit, and its best."""
    figure, axes = style.panels(3)
    colours = style.EXPERTS_MAP(np.linspace(0, style.LIGHTEST, len(fits)))
    names = dict(x="M / active parameters", y="total / active parameters", width="width")
    for axis, which, runs in zip(axes, names, (ratio_runs, ratio_runs, width_runs), strict=True):
        axis.set_xlabel(names[which])
        for of_budget, _ in runs.by_budget() if runs else ():
            i = int(np.argmin([abs(np.log(fit.flops / np.median(of_budget.flops))) for fit in fits]))
            axis.plot(
                getattr(of_budget, which), of_budget.loss - of_budget.loss.min(), "o", color=colours[i], markersize=2
            )
            if which == "width":
                _width_fit(axis, fits[i].width, of_budget, colours[i])
            else:
                _ratio_fit(axis, which, fits[i].ratios, of_budget, colours[i])
    axes[0].set_ylabel("loss above the least (nats per token)")
    handles = [
        style.handle(f"{units.flops(fit.flops)} FLOPs", color=c, linestyle="-")
        for fit, c in zip(fits, colours, strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(6, len(handles)))
    return figure


def _width_fit(axis: Axes, fit: WidthFit | None, runs: SearchRuns, colour: Array) -> None:
    """Draws a budget's loss over the width, with a mark at its best; nothing where there is none."""
    if fit and fit.best is not None:
        points = _points(runs.width, fit.best)
        _fit(axis, points, fit.loss(points) - runs.loss.min(), colour)


def _ratio_fit(axis: Axes, which: str, fit: RatiosFit | None, runs: SearchRuns, colour: Array) -> None:
    """Draws a budget's loss over one ratio, the other at its best or its mean; nothing where the one has no best.

    Args:
      which: "x" or "y".
      fit, runs: of the budget.
    """
    if not fit:
        return
    best: dict[str, BestRatio | None] = dict(x=fit.x, y=fit.y)
    optimum = best[which]
    if not optimum:
        return
    points = _points(getattr(runs, which), optimum.best)
    ratios = {name: other.best if other else getattr(runs, name).mean() for name, other in best.items()}
    ratios[which] = points
    _fit(axis, points, fit.loss(ratios["x"], ratios["y"], runs.y_max) - runs.loss.min(), colour)


def _points(values: Array, best: float) -> Array:
    """[k]: points over the values of runs, then the best one."""
    return np.append(np.linspace(values.min(), values.max(), 100), best)


def _fit(axis: Axes, points: Array, loss: Numbers, colour: Array) -> None:
    """Draws a fitted curve through all points but the last, which has a mark."""
    curve = np.asarray(loss)
    axis.plot(points[:-1], curve[:-1], color=colour)
    axis.plot(points[-1], curve[-1], "*", color=colour, markersize=7)
