"""Pictures of what memory allows: loss against size, models of equal memory, the best number of experts.

A memory of the size of a dense model with P parameters holds P weights, and that model's cache if there is one. Where
only ratios matter, the pictures count one byte a number.

Axes: k points of a curve.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes

from fit.aliases import Array
from fit.errors import UserError
from fit.fitted_law import extrapolation
from fit.messages import units
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.planning.search.best_models import BestModels
from fit.planning.uncertainty import joint_draws
from fit.render.figures import style

MOST_DRAWS = 50  # of the band of the best E: each is solved at every memory

RING: style.Look = dict(marker="o", color="black", markerfacecolor="none", markersize=8, linestyle="none")


def _models(optima: BestModels) -> tuple[Array, Array, Array]:
    """n_active, n_tokens and loss [k] of optima."""
    return optima.n_active, optima.n_tokens, optima.loss


def memory_curves(picture: style.Picture, flops: float) -> style.Drawn:
    """Fig. 1a: loss against total parameters at one training budget, up to the compute-optimal size of each number of
    experts, which is marked; the strip below says which number is the best."""
    law = picture.law
    architecture = picture.architecture
    experts = picture.experts
    figure, (axis,) = style.panels()
    free = solver.best_of_each_number(Problem(law, architecture, Constraints(flops=flops), experts))
    low = architecture.n_total(float(architecture.width_per_block) * 2, 1)
    grid = np.geomspace(max(low, np.nanmin(free.n_total) / 30), 1.15 * np.nanmax(free.n_total), style.POINTS)
    limit = Constraints(flops=flops, memory_bytes=grid, bytes_per_parameter=1.0)
    losses = []
    for i, e in enumerate(experts):
        optima = solver.best_models(Problem(law, architecture, limit), e)
        losses.append(np.where(optima.feasible, optima.loss, np.inf))
        shown = optima.feasible & (optima.size_bound == "memory")
        is_best = i == np.nanargmin(free.loss)
        picture.curve(axis, grid, _models(optima), e, shown=shown, with_band=is_best, n_total=grid)
        style.point(axis, free.n_total[i], free.loss[i], picture.looks[e])
    least = np.min(losses, axis=0)
    holds_one = np.isfinite(least)  # the least memory may hold a dense model, and no mixture that is compared
    grid = grid[holds_one]
    least = least[holds_one]
    best = experts[np.argmin(losses, axis=0)[holds_one]]
    span = least[0] - least[-1]
    if span > 0:
        axis.set_ylim(least[-1] - 0.18 * span, least[0] + 0.05 * span)
    _strip_of_best(axis, grid, best, picture.looks)
    style.log_axis(axis.xaxis, grid[0], grid[-1])
    title = f"{units.flops_math(flops)} training FLOPs"
    axis.set(xlabel="total parameters", ylabel="loss (nats per token)", title=title)
    return picture.done(figure, style.handle("optimum", marker="o", markerfacecolor="white"))


def _strip_of_best(axis: Axes, grid: Array, best: Array, looks: style.Looks) -> None:
    """A strip along the foot of an axis that names the best number of experts at each place."""
    edges = np.concatenate([[0], np.flatnonzero(np.diff(best)) + 1, [len(grid) - 1]])
    at = axis.get_xaxis_transform()  # x in data, y as a share of the axis
    for e, low, high in zip(best[edges[:-1]], grid[edges[:-1]], grid[edges[1:]], strict=True):
        colour = looks[e]["color"]
        axis.axvspan(low, high, 0, 0.07, color=colour, linewidth=0)
        if np.log(high / low) > 0.05 * np.log(grid[-1] / grid[0]):
            ink = "white" if np.dot(colour[:3], (0.299, 0.587, 0.114)) < 0.55 else "black"  # which is read better
            middle = (low * high) ** 0.5
            axis.text(middle, 0.035, f"{e:g}", transform=at, color=ink, ha="center", va="center", fontsize=6)
    axis.text(0, 0.08, " best E", transform=axis.transAxes, fontsize=6, va="bottom")


def matched_memory(picture: style.Picture, flops: float, kv_tokens: float, inference_tokens: float) -> style.Drawn:
    """Fig. 3: loss against the dense model of equal memory: weights alone; with cache; with inference too."""
    law = picture.law
    architecture = picture.architecture
    figure, axes = style.panels(3, sharex=True, sharey=True)
    inference = f"and {units.amount(inference_tokens)} tokens of inference", kv_tokens, inference_tokens
    for axis, title, base in _scenarios(axes, flops, kv_tokens, inference):
        free = solver.best_of_each_number(Problem(law, architecture, base, picture.experts))
        top = np.nanmax(free.n_total)
        smallest = architecture.n_active(2.0 * architecture.width_per_block, 1)
        dense = np.geomspace(max(smallest, top / 1e4), top, style.POINTS)
        memory = base.memory(architecture, architecture.d_model(dense, 1), 1)
        for i, e in enumerate(picture.experts):
            optima = solver.best_models(Problem(law, architecture, base).within(memory_bytes=memory), e)
            shown = optima.feasible & (optima.size_bound == "memory")
            look = picture.looks[e] | dict(every=(7 * i, 40))
            is_best = i == np.nanargmin(free.loss)
            picture.curve(axis, dense, _models(optima), e, look, shown, is_best, panel=title, dense_parameters=dense)
    if not picture.columns["loss"]:
        raise UserError(f"--law={law.name}: memory bounds none of its models: nothing to draw")
    style.log_axis(axes[0].xaxis, *style.extent(axes))
    axes[1].set_xlabel("parameters of the dense model of equal memory")
    return picture.done(figure)


def _scenarios(
    axes: Array, flops: float, kv_tokens: float, inference: tuple[str, float, float]
) -> Iterator[tuple[Axes, str, Constraints]]:
    """(axis, title, Constraints) of three panels: weights only; with a cache; and inference.

    Args:
      inference: title, tokens in the cache, and tokens served.
    """
    axes[0].set_ylabel(f"loss (nats per token)\nat {units.flops_math(flops)} FLOPs")
    scenarios = ("weights only", 0.0, 0.0), (f"cache of {kv_tokens:,.0f} tokens too", kv_tokens, 0.0), inference
    for axis, (title, cache, served) in zip(axes, scenarios, strict=True):
        axis.set(title=title)
        limits = Constraints(flops=flops, kv_tokens=cache, inference_tokens=served)
        yield axis, title, dataclasses.replace(limits, bytes_per_parameter=1.0, bytes_per_kv_element=1.0)


def best_experts(
    picture: style.Picture, flops: float, sizes: Sequence[float], kv_tokens: float, inference_tokens: float
) -> style.Drawn:
    """Fig. 4: loss against E for a few memory sizes (parameters of a dense model), in three scenarios; a ring around
    the best."""
    architecture = picture.architecture
    experts = picture.experts
    figure, axes = style.panels(3, sharex=True, sharey=True)
    inference = f"{units.amount(inference_tokens)} tokens of inference", 0.0, inference_tokens
    greys = [
        dict(color=str(0.65 * i / max(len(sizes) - 1, 1)), marker=m)
        for i, m in zip(range(len(sizes)), "os^DvP", strict=False)
    ]
    for axis, title, base in _scenarios(axes, flops, kv_tokens, inference):
        for size, grey in zip(sizes, greys, strict=True):
            memory = base.memory(architecture, architecture.d_model(size, 1), 1)
            optima = solver.best_models(Problem(picture.law, architecture, base).within(memory_bytes=memory), experts)
            if not optima.feasible.any():
                continue
            names: style.Look = dict(panel=title, dense_parameters=size)
            picture.curve(axis, experts, _models(optima), experts, grey, with_band=size == max(sizes), **names)
            for e, loss in zip(experts, optima.loss, strict=True):
                axis.plot(e, loss, grey["marker"], color=picture.looks[e]["color"], markersize=3.5)
            best = optima.best
            axis.plot(experts[best], optima.loss[best], **RING)
        style.experts_axis(axis.xaxis, experts)
        axis.set(xlabel="number of experts E")
    lines = [
        style.handle(f"memory of a {units.amount(size)} dense model", **grey | dict(linestyle="-"))
        for size, grey in zip(sizes, greys, strict=True)
    ]
    return picture.done(figure, *lines, style.handle("best E", **RING), experts=False)


def experts_against_memory(picture: style.Picture, budgets: Sequence[float]) -> style.Drawn:
    """The best E against memory (weights of 2 bytes, no cache) at each training budget, and how the draws spread;
    Table 2 as a picture."""
    law = picture.law
    architecture = picture.architecture
    experts = picture.experts
    figure, axes = style.panels(len(budgets), height=2.3, sharex=True, sharey=True)
    free = [
        solver.best_of_each_number(Problem(law, architecture, Constraints(flops=f), experts)).n_total for f in budgets
    ]
    least = 2.0 * architecture.n_total(float(architecture.width_per_block), 1)
    grid = np.geomspace(max(least, np.nanmin(free) / 20), 3.0 * np.nanmax(free), style.POINTS)
    for axis, flops in zip(axes, budgets, strict=True):
        limit = Constraints(flops=flops, memory_bytes=grid)
        optima = [solver.best_models(Problem(law, architecture, limit), e) for e in experts]
        rows = np.argmin([np.where(f.feasible, f.loss, np.inf) for f in optima], axis=0), np.arange(len(grid))
        best = experts[rows[0]]
        size, tokens = (np.stack([getattr(f, name) for f in optima])[rows] for name in ("n_active", "n_tokens"))
        columns = extrapolation.columns_of_sizes(law, architecture, size, best)
        within = extrapolation.are_inside(law, n_tokens=tokens, **columns)
        ends = _spread_of_best(picture, dataclasses.replace(limit, memory_bytes=grid[::4]))
        if ends is not None:
            axis.fill_between(grid[::4], *ends, step="mid", color="0.3", alpha=0.15, linewidth=0)
        for e in np.unique(best):
            style.curve(axis, grid, np.where(best == e, e, np.nan), within, picture.looks[e])
        steps = np.flatnonzero(np.diff(best))
        axis.vlines(grid[steps], best[steps], best[steps + 1], color="0.5", linewidth=0.5)
        axis.set(title=f"{units.flops_math(flops)} training FLOPs", xlabel="memory (2 bytes a weight)")
        picture.add(flops=flops, memory_bytes=grid, n_experts=best, extrapolated=~within)
    style.experts_axis(axes[0].yaxis, experts)
    style.log_axis(axes[0].xaxis, grid[0], grid[-1], units.memory)
    axes[0].set_ylabel("best number of experts E")
    return picture.done(figure, experts=False, band="")


def _spread_of_best(picture: style.Picture, limit: Constraints) -> Array | None:
    """(low, high) percentiles over the bootstrap draws of the best E at each memory; None without draws."""
    law = picture.law
    experts = picture.experts
    if not law.draws:
        return None
    usable = joint_draws.usable_draws(law, experts)
    if not usable.any():
        return None
    draws = {name: values[usable][:MOST_DRAWS] for name, values in style.drawn(law).items()}
    optima = [solver.best_models(Problem(law, picture.architecture, limit), e, draws) for e in experts]
    best = experts[np.argmin([np.where(f.feasible, f.loss, np.inf) for f in optima], axis=0)]
    return np.percentile(best, law.percentiles, axis=0, method="nearest")
