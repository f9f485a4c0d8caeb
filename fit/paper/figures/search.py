"""Pictures of searches: the loss over size and sparsity at equal FLOPs; over ratios and widths of architectures."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fit.aliases import Array, Json, Numbers
from fit.architecture_search.holistic_runs import Search
from fit.equal_flops.surface import reach
from fit.paper.figures import style
from fit.words.units import flops as flops_text

MOST = 4  # surfaces in a picture: the largest budgets


@style.in_style()
def surfaces(rows: Sequence[Json]) -> Figure:
    """A panel for each of the largest budgets of surface.of_table: contours of the loss, the runs, the best sparsity of
    each size, and the best of both."""
    rows = rows[-MOST:]
    figure, axes = style.panels(len(rows), sharey=True)
    for axis, row in zip(axes, rows):
        surface, (n, s) = row["surface"], row["points"]
        sizes = np.geomspace(*surface.size, 80)
        sparsity = -np.expm1(-np.linspace(*(-np.log1p(-np.array(surface.sparsity))), 80))
        low, high = reach(n, s, sizes)
        run = (sparsity[:, None] >= low - 1e-6) & (sparsity[:, None] <= high + 1e-6)  # no contours beyond the runs
        loss = np.where(run, surface.loss(sizes[None], sparsity[:, None]), np.nan)
        lines = axis.contour(sizes, -np.log1p(-sparsity), loss, 12, cmap="viridis", linewidths=0.8)
        axis.clabel(lines, fontsize=5)
        axis.plot(n, -np.log1p(-s), "o", color="0.5", markersize=2)
        axis.plot(sizes, -np.log1p(-surface.best_sparsity(sizes, (low, high))[0]), color="black")
        axis.plot(row["best"]["n_total"], -np.log1p(-row["best"]["sparsity"]), "*", color="black", markersize=7)
        style.log_axis(axis.xaxis, *surface.size)
        ticks = np.unique(s)
        axis.set_yticks(-np.log1p(-ticks), [f"{t:.3g}" for t in ticks])
        axis.set(xlabel="total parameters", title=f"{flops_text(row['flops'])} FLOPs")
    axes[0].set_ylabel("sparsity")
    return figure


@style.in_style()
def architectures(rows: Sequence[Json], ratio_runs: Search | None = None, width_runs: Search | None = None) -> Figure:
    """Loss above the budget's least over M/N_a, N/N_a and d: runs, each budget's fit, and its best."""
    figure, axes = style.panels(3)
    colours = style.EXPERTS_MAP(np.linspace(0, style.LIGHTEST, len(rows)))
    for runs, shown in ((ratio_runs, (("x", axes[0]), ("y", axes[1]))), (width_runs, (("width", axes[2]),))):
        for some, _ in runs.by_budget() if runs else ():
            i = int(np.argmin([abs(np.log(row["flops"] / np.median(some.flops))) for row in rows]))
            for which, axis in shown:
                axis.plot(getattr(some, which), some.loss - some.loss.min(), "o", color=colours[i], markersize=2)
                found = rows[i]["ratios" if which != "width" else "width"]
                _fit(axis, which, found, some, colours[i], f"{flops_text(rows[i]['flops'])} FLOPs")
    for axis, name in zip(axes, ("M / active parameters", "total / active parameters", "width")):
        axis.set_xlabel(name)
    axes[0].set_ylabel("loss above the least (nats per token)")
    handles = [
        style.handle(f"{flops_text(row['flops'])} FLOPs", color=c, linestyle="-") for row, c in zip(rows, colours)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(6, len(handles)))
    return figure


def _fit(axis: Axes, which: str, found: Json | None, some: Search, colour: Array, label: str) -> None:
    """The fitted curve in one variable, the other at its best, and a mark at its own best."""
    best = found and (found if which == "width" else found[which])
    if not best or best["best"] is None:
        return
    values = getattr(some, which)
    at = np.linspace(values.min(), values.max(), 100)

    def curve(v: Numbers) -> Numbers:
        if which == "width":
            return np.polyval(found["coefficients"], v)
        a, b, a2, b2, c = found["coefficients"]
        at_best = lambda name: found[name]["best"] if found[name] else getattr(some, name).mean()
        x, y = (v, at_best("y")) if which == "x" else (at_best("x"), v)
        return a / (x - 6) + b * x + a2 / (y - 1) + b2 / (some.y_max - y) + c

    axis.plot(at, curve(at) - some.loss.min(), color=colour, label=label)
    axis.plot(best["best"], curve(best["best"]) - some.loss.min(), "*", color=colour, markersize=7)
