"""Pictures of the loss: isoFLOP curves, what a mixture saves, how well a law fits its runs.

Axes: n_runs runs.
"""

from collections.abc import Sequence

import matplotlib.cm
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from fit.aliases import Array, Floats, Numbers
from fit.errors import UserError
from fit.fitted_law import extrapolation, planned_models
from fit.fitted_law.law import Law
from fit.form import Reduced
from fit.messages import units
from fit.model.architecture import TRAINING, Architecture
from fit.planning.search import best_size, unconstrained
from fit.render.figures import style
from fit.table.runs import Runs

# Sizes (n_active), each with a line; above MOST_SIZES only SOME_SIZES have lines.
MOST_SIZES = 16
SOME_SIZES = 6


def isoflop(picture: style.Picture, budgets: Sequence[float], runs: Runs | None) -> style.Drawn:
    """Fig. 2a: loss against tokens at each training budget, with each curve's optimum marked.

    Runs NEAR a budget are points. They are moved along the law to the tokens of the budget, where their distance from
    the curve is their error. A law whose loss does not fall with size or tokens has no optimum; it is drawn over the
    sizes it was fitted to.
    """
    figure, axes = style.panels(len(budgets), sharey=True)
    losses = []
    for axis, flops in zip(axes, budgets, strict=True):
        losses += _isoflop_panel(picture, axis, flops, runs)
    # the curves' far ends would flatten what lies between them
    axes[0].set_ylim(0.985 * min(losses), 1.06 * max(losses))
    axes[0].set_ylabel("loss (nats per token)")
    notes = [style.handle("optimum", marker="o", markerfacecolor="white")]
    if runs is not None:
        label = f"runs within {style.NEAR - 1:.0%} of the budget, moved to it along the law"
        notes.append(style.handle(label, marker="o", markeredgecolor="black", color="0.6"))
    return picture.done(figure, *notes)


def _isoflop_panel(picture: style.Picture, axis: Axes, flops: float, runs: Runs | None) -> list[float]:
    """Draws the curves and runs of one budget; returns losses that the panel has to show."""
    law = picture.law
    architecture = picture.architecture
    best = {e: unconstrained.optima(law, e, architecture, flops)[1:] for e in picture.experts}
    points = {} if runs is None else _near(law, runs, flops, picture.experts)
    tokens_needed = [tokens for tokens, _ in (*best.values(), *points.values())]
    tokens = np.geomspace(*_tokens_shown(law, flops, tokens_needed), style.POINTS)
    size = flops / (TRAINING * tokens)
    curves = {e: planned_models.loss_of_sizes(law, architecture, e, size, tokens) for e in picture.experts}
    lowest = min(curves, key=lambda e: curves[e].min())
    losses = []
    for e, loss in curves.items():
        picture.curve(axis, tokens, (size, tokens, loss), e, with_band=e == lowest, flops=flops)
        style.point(axis, *best[e], picture.looks[e])
        losses.append(loss.min())
    for e, (run_tokens, loss) in points.items():
        edge: style.Look = dict(markeredgecolor="black", markeredgewidth=0.6, rasterized=len(run_tokens) > style.MANY)
        axis.plot(run_tokens, loss, linestyle="none", **edge, **picture.looks[e])
        losses += [loss.min(), loss.max() / 1.04]
    style.log_axis(axis.xaxis, *axis.dataLim.intervalx)
    axis.set(xlabel="training tokens", title=f"{units.flops_math(flops)} training FLOPs")
    return losses


def _near(law: Law, runs: Runs, flops: float, experts: Floats) -> dict[float, tuple[Array, Array]]:
    """The runs whose training FLOPs are NEAR a budget, moved to it.

    Returns:
      {number of experts: (tokens, losses)}: the tokens that the budget buys for their size, and their loss times what
      these change by the law.
    """
    near = np.abs(np.log(runs.flops / flops)) < np.log(style.NEAR)
    tokens = flops / (TRAINING * runs.n_active)
    moved = law.loss(law.coefficients, runs.columns | dict(n_tokens=tokens))
    loss = runs.loss * moved / law.loss(law.coefficients, runs.columns)
    rows = {e: near & (runs.n_experts == e) for e in experts}
    return {e: (tokens[r], loss[r]) for e, r in rows.items() if r.any()}


def _tokens_shown(law: Law, flops: float, needed: Sequence[Numbers]) -> tuple[float, float]:
    """The least and the most tokens of the curves at a budget: four times beyond those needed, or the fitted sizes.

    Raises:
      UserError: where neither is known.
    """
    known = np.hstack(needed)
    if np.isfinite(known).any():
        return np.nanmin(known) / 4, np.nanmax(known) * 4
    if "n_active" not in law.ranges:
        raise UserError(f"--law={law.name}: has no optimum, nor says what sizes it was fitted to: nothing to draw")
    low, high = law.ranges["n_active"]
    return flops / (TRAINING * high) / 2, flops / (TRAINING * low) * 2


def savings(picture: style.Picture, budgets: Sequence[float]) -> style.Drawn:
    """Fig. 2b: the training FLOPs a compute-optimal dense model needs for the loss of an MoE, over the MoE's."""
    law = picture.law
    figure, (axis,) = style.panels()
    if not law.holds_for_dense:
        raise UserError(
            f"--law={law.name} was fitted to mixtures of {law.experts[0]} experts alone: it says nothing of dense "
            "models"
        )
    flops = np.geomspace(min(budgets), max(budgets) * 10, 40)
    saved = {
        e: _dense_over_flops(law.chinchilla_coefficients_at(e), law.chinchilla_coefficients_at(1.0), flops)
        for e in picture.experts
    }
    most = max(saved, key=lambda e: np.nan_to_num(saved[e][2][-1]))
    for i, (e, (size, tokens, ratio)) in enumerate(saved.items()):
        ends = None
        if law.draws and e == most:
            draws = style.drawn(law)
            ratios = _dense_over_flops(
                law.chinchilla_coefficients_at(e, draws), law.chinchilla_coefficients_at(1.0, draws), flops
            )[2]
            ends = style.percentiles(law, ratios)
        within = extrapolation.are_inside(law, n_active=size, n_tokens=tokens, n_experts=e)
        style.curve(axis, flops, ratio, within, picture.looks[e] | dict(every=(i % 6, 6)), ends)
        picture.add(n_experts=e, flops=flops, dense_flops_over_flops=ratio, extrapolated=~within)
    if not np.isfinite(picture.columns["dense_flops_over_flops"]).any():
        raise UserError(f"--law={law.name}: its loss of dense models does not fall with size and tokens: no optimum")
    style.log_axis(axis.xaxis, flops[0], flops[-1], units.flops_math)
    shown = np.concatenate([np.asarray(line.get_ydata(), float) for line in axis.lines])
    style.log_axis(axis.yaxis, 0.95 * np.nanmin(shown), 1.1 * np.nanmax(shown), "{:.3g}×".format)
    axis.set(xlabel="training FLOPs of the mixture", ylabel="dense FLOPs for equal loss, ratio")
    return picture.done(figure)


def _dense_over_flops(reduced: Reduced, dense: Reduced, flops: Array) -> tuple[Array, Array, Array]:
    """The compute-optimal mixtures at these FLOPs against dense models.

    Args:
      reduced: the law at a number of experts.
      dense: the law of dense models.

    Returns:
      n_active and n_tokens of the mixture, and the FLOPs of the compute-optimal dense model of equal loss over the
      mixture's; NaN where there is none.
    """
    with np.errstate(all="ignore"):
        size, tokens = best_size.compute_optimal(*reduced[:4], flops)
        loss = np.where((reduced.mu < 0) & (reduced.nu < 0), reduced.loss(size, tokens), np.nan)
        m, mu, n, nu, c, k = dense
        unit_size, unit_tokens = best_size.compute_optimal(m, mu, n, nu, 1.0)  # at one FLOP
        fall = -mu * nu / (mu + nu)  # of dense models: (loss - c) ** (1 / k) is proportional to flops ** -fall
        ratio = ((loss - c) ** (1 / k) / (m * unit_size**mu + n * unit_tokens**nu)) ** (-1 / fall) / flops
    return size, tokens, ratio


def fit_quality(law: Law, architecture: Architecture, runs: Runs, held_out: Array) -> style.Drawn:
    """Fig. 5: predicted against measured loss by E, held-out runs hollow, with the residuals below; beside it loss
    against tokens for the least and a larger E, lines predicted, points measured.

    Args:
      held_out: which runs the fit did not see, boolean [n_runs].
    """
    predicted = law.loss(law.coefficients, runs.columns)
    experts = sorted(set(runs.n_experts))
    looks = style.looks(law, experts)
    shown = dict.fromkeys((experts[0], 4.0 if 4.0 in experts else experts[-1]))
    shown = list(shown) if "n_tokens" in law.form.columns else []
    figure, (scatter, residuals), panels = _panels(len(shown))
    _predicted_against_measured(scatter, residuals, runs, predicted, held_out, looks)
    notes = [style.handle("held out", marker="o", markerfacecolor="white")] if held_out.any() else []
    if shown:
        sizes = runs.n_active[np.isin(runs.n_experts, shown)]
        ends = sizes.min(), sizes.max() if np.ptp(sizes) else 2 * sizes.min()
        norm = LogNorm(*ends)
        for axis, e in zip(panels, shown, strict=True):
            _loss_against_tokens(law, architecture, axis, runs, e, norm)
        style.log_axis(panels[0].xaxis, *style.extent(panels, 1.1))
        panels[0].set_ylabel("loss (nats per token)")
        scale = matplotlib.cm.ScalarMappable(norm, style.SIZES_MAP)
        bar = figure.colorbar(scale, ax=panels, label="active parameters", pad=0.02)
        style.log_axis(bar.ax.yaxis, *ends)
        notes += [style.handle("law", linestyle="-"), style.handle("runs", marker="o", markersize=3)]
    style.legends(figure, law, looks, notes, line="none")
    columns = dict(
        n_active=runs.n_active,
        n_tokens=runs.n_tokens,
        n_experts=runs.n_experts,
        loss=runs.loss,
        predicted_loss=predicted,
        held_out=held_out,
    )
    return figure, {name: values.tolist() for name, values in columns.items()}


def _panels(n: int) -> tuple[Figure, tuple[Axes, Axes], list[Axes]]:
    """A figure, its panels of predicted against measured loss and of the residuals below, and n panels beside them."""
    figure, _ = style.panels(1 + n, height=3.2)
    figure.clear()
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
    scatter: Axes, residuals: Axes, runs: Runs, predicted: Array, held_out: Array, looks: style.Looks
) -> None:
    """Draws all runs by their number of experts, and their residuals."""
    relative = 100 * (predicted / runs.loss - 1)
    many = len(runs) > style.MANY
    filled: style.Look = {}
    hollow: style.Look = dict(markerfacecolor="white", markeredgewidth=1)
    for e in sorted(set(runs.n_experts)):
        for is_held_out, marker in ((False, filled), (True, hollow)):
            rows = (runs.n_experts == e) & (held_out == is_held_out)
            look: style.Look = dict(linestyle="none", markersize=3, rasterized=many) | looks[e] | marker
            scatter.plot(runs.loss[rows], predicted[rows], **look)
            residuals.plot(runs.loss[rows], relative[rows], **look)
    ends = [min(runs.loss.min(), predicted.min()), max(runs.loss.max(), predicted.max())]
    scatter.plot(ends, ends, "-", color="0.5", linewidth=0.8, zorder=0)
    residuals.axhline(0, color="0.5", linewidth=0.8, zorder=0)
    largest = 1.15 * max(np.abs(relative).max(), 1e-3)
    residuals.set(xlabel="measured loss (nats per token)", ylabel="residual (%)", ylim=(-largest, largest))
    scatter.set(ylabel="predicted loss", title="all runs")


def _loss_against_tokens(law: Law, architecture: Architecture, axis: Axes, runs: Runs, e: float, norm: LogNorm) -> None:
    """Draws the runs of e experts, and the law's line of each size."""
    rows = runs.n_experts == e
    sizes = np.unique(runs.n_active[rows])
    some_sizes = len(sizes) > MOST_SIZES
    if some_sizes:
        sizes = sizes[np.linspace(0, len(sizes) - 1, SOME_SIZES).round().astype(int)]
    for size in sizes:
        spanned = runs.n_tokens[rows if some_sizes else rows & (runs.n_active == size)]
        tokens = np.geomspace(spanned.min(), spanned.max(), 50)
        loss = planned_models.loss_of_sizes(law, architecture, e, size, tokens)
        look = dict(color=style.SIZES_MAP(norm(size)), marker="")
        band = style.band(law, architecture, size, tokens, e)
        within = extrapolation.are_inside(law, n_active=size, n_tokens=tokens, n_experts=e)
        style.curve(axis, tokens, loss, within, look, band)
    looks: style.Look = dict(norm=norm, cmap=style.SIZES_MAP, s=9, edgecolors="white", linewidths=0.3, zorder=3)
    many = rows.sum() > style.MANY
    axis.scatter(runs.n_tokens[rows], runs.loss[rows], c=runs.n_active[rows], rasterized=many, **looks)
    axis.set(xlabel="training tokens", title=f"E = {e:g}")
