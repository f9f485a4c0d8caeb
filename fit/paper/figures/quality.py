"""Fig. 5: how well a law fits its runs."""

import matplotlib.cm
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LogNorm
from matplotlib.figure import Figure

from fit.aliases import Array
from fit.data.runs import Runs
from fit.lawbook.lawfile import Law
from fit.paper.figures import style
from fit.paper.figures.style import PAGE
from fit.planning import optimum
from fit.shape.architecture import Architecture

MOST_SIZES, SOME_SIZES = 16, 6  # of n_active, each with a line; beyond so many, lines of some of them


def fit_quality(law: Law, architecture: Architecture, runs: Runs, out: Array) -> style.Drawn:
    """Predicted against measured loss by E, held-out runs (`out`, boolean) hollow, with the residuals below; beside it
    loss against tokens for the least and a larger E, lines predicted, points measured."""
    predicted = law.loss(law.coefficients, runs.columns)
    experts = sorted(set(runs.n_experts))
    looks = style.looks(law, experts)
    shown = dict.fromkeys((experts[0], 4.0 if 4.0 in experts else experts[-1]))
    shown = list(shown) if "n_tokens" in law.form.columns else []
    figure, (scatter, residuals), panels = _panels(len(shown))
    _predicted_against_measured(scatter, residuals, runs, predicted, out, looks)
    sizes = runs.n_active[np.isin(runs.n_experts, shown)]
    if shown:
        ends = sizes.min(), sizes.max() if np.ptp(sizes) else 2 * sizes.min()
        norm, colours = LogNorm(*ends), style.SIZES_MAP
        for axis, e in zip(panels, shown):
            _loss_against_tokens(law, architecture, axis, runs, e, norm, colours)
        style.log_axis(panels[0].xaxis, *style.extent(panels, 1.1))
        panels[0].set_ylabel("loss (nats per token)")
        scale = matplotlib.cm.ScalarMappable(norm, colours)
        bar = figure.colorbar(scale, ax=panels, label="active parameters", pad=0.02)
        style.log_axis(bar.ax.yaxis, *ends)
    notes = [style.handle("held out", marker="o", markerfacecolor="white")] if out.any() else []
    if shown:
        notes += [style.handle("law", linestyle="-"), style.handle("runs", marker="o", markersize=3)]
    style.legends(figure, law, looks, notes, line="none")
    columns = dict(n_active=runs.n_active, n_tokens=runs.n_tokens, n_experts=runs.n_experts, loss=runs.loss)
    columns |= dict(predicted_loss=predicted, held_out=out)
    return figure, {name: values.tolist() for name, values in columns.items()}


def _panels(n: int) -> tuple[Figure, tuple[Axes, Axes], list[Axes]]:
    """(figure, (predicted against measured, the residuals below it), n panels beside them)."""
    figure, axes = style.panels(1, height=3.2)
    figure.clear()
    if n:
        figure.set_figwidth(PAGE)
    grid = figure.add_gridspec(2, 1 + n, height_ratios=(3, 1), width_ratios=(1.25, *[1] * n))
    scatter = figure.add_subplot(grid[0, 0])
    residuals = figure.add_subplot(grid[1, 0], sharex=scatter)
    scatter.tick_params(labelbottom=False)
    panels = [figure.add_subplot(grid[:, 1])] if n else []
    for i in range(1, n):
        panels.append(figure.add_subplot(grid[:, 1 + i], sharex=panels[0], sharey=panels[0]))
        panels[i].tick_params(labelleft=False)
    return figure, (scatter, residuals), panels


def _predicted_against_measured(
    scatter: Axes, residuals: Axes, runs: Runs, predicted: Array, out: Array, looks: style.Looks
) -> None:
    relative = 100 * (predicted / runs.loss - 1)
    many = len(runs) > style.MANY
    for e in sorted(set(runs.n_experts)):
        for kept_out, how in ((False, {}), (True, dict(markerfacecolor="white", markeredgewidth=1))):
            rows = (runs.n_experts == e) & (out == kept_out)
            look: style.Look = dict(linestyle="none", markersize=3, rasterized=many) | looks[e] | how
            scatter.plot(runs.loss[rows], predicted[rows], **look)
            residuals.plot(runs.loss[rows], relative[rows], **look)
    ends = [min(runs.loss.min(), predicted.min()), max(runs.loss.max(), predicted.max())]
    scatter.plot(ends, ends, "-", color="0.5", linewidth=0.8, zorder=0)
    residuals.axhline(0, color="0.5", linewidth=0.8, zorder=0)
    largest = 1.15 * max(np.abs(relative).max(), 1e-3)
    residuals.set(xlabel="measured loss (nats per token)", ylabel="residual (%)", ylim=(-largest, largest))
    scatter.set(ylabel="predicted loss", title="all runs")


def _loss_against_tokens(
    law: Law, architecture: Architecture, axis: Axes, runs: Runs, e: float, norm: LogNorm, colours: Colormap
) -> None:
    rows = runs.n_experts == e
    sizes = np.unique(runs.n_active[rows])
    if many := len(sizes) > MOST_SIZES:
        sizes = sizes[np.linspace(0, len(sizes) - 1, SOME_SIZES).round().astype(int)]
    ends = runs.n_tokens[rows].min(), runs.n_tokens[rows].max()
    for size in sizes:
        mine = runs.n_tokens[rows & (runs.n_active == size)]
        d = np.geomspace(*(ends if many else (mine.min(), mine.max())), 50)
        loss = optimum.loss_of(law, architecture, e, size, d)
        look = dict(color=colours(norm(size)), marker="")
        style.curve(axis, d, loss, law.inside(size, d, e), look, style.band(law, architecture, size, d, e))
    looks: style.Look = dict(norm=norm, cmap=colours, s=9, edgecolors="white", linewidths=0.3, zorder=3)
    many = rows.sum() > style.MANY
    axis.scatter(runs.n_tokens[rows], runs.loss[rows], c=runs.n_active[rows], rasterized=many, **looks)
    axis.set(xlabel="training tokens", title=f"E = {e:g}")
