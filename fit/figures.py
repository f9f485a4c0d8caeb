"""The paper's figures for any law. Each function draws into a new matplotlib figure and returns it with the numbers.

Return value: (figure, columns): columns is a dictionary of equally long lists, what the curves are made of.
"""

import dataclasses

import matplotlib

matplotlib.use("Agg")  # files only: works without a display
import matplotlib.figure
import numpy as np

from fit import optimum
from fit.architecture import FLOPS_PER_PARAMETER_TRAINING as TRAINING

# One hue per number of experts, dark for dense to light for many, legible in grey.
COLOURS = matplotlib.colormaps["viridis"]
POINTS = 200


def _colour(experts, e):
    experts = list(experts)
    return COLOURS(0.9 * experts.index(e) / max(len(experts) - 1, 1))


def _new(n=1, width=5.5):
    figure = matplotlib.figure.Figure(figsize=(width * n, 4.2), layout="constrained")
    return figure, figure.subplots(1, n, squeeze=False)[0]


class _Columns(dict):
    """Columns that grow by blocks of rows."""

    def add(self, **blocks):
        for name, values in zip(blocks, np.broadcast_arrays(*blocks.values())):
            self.setdefault(name, []).extend(np.ravel(values).tolist())


def compute_range(fitted):
    """(least, most) training FLOPs of the runs behind a law; the paper's 1e20 to 1e22 for a published one."""
    return (1e20, 1e22) if fitted.published else fitted.ranges.get("training_flops", (1e20, 1e22))


def dense_optimum(fitted, architecture, flops):
    """(n_active, n_tokens) of the compute-optimal dense model."""
    found = optimum.optima(fitted, architecture, optimum.Constraints(flops=flops), [1])
    return float(found.n_active[0]), float(found.n_tokens[0])


def _solve(fitted, architecture, constraints, e):
    return optimum.solve(fitted.at_experts(e), e, architecture, constraints)


def memory_curves(fitted, architecture, experts, flops):
    """Fig. 1a: loss against total parameters at one training budget, cut at the compute-optimal size."""
    experts = optimum.allowed_experts(fitted, experts)
    figure, (axis,) = _new()
    columns = _Columns()
    free = optimum.optima(fitted, architecture, optimum.Constraints(flops=flops), experts)
    low = architecture.n_total(float(architecture.width_per_block) * 2, 1)
    grid = np.geomspace(max(low, np.nanmin(free.n_total) / 30), np.nanmax(free.n_total), POINTS)
    losses = []
    for i, e in enumerate(experts):
        found = _solve(
            fitted, architecture, optimum.Constraints(flops=flops, memory_bytes=grid, bytes_per_parameter=1.0), e
        )
        losses.append(np.where(found.feasible, found.loss, np.inf))
        shown = found.feasible & (found.size_bound == "memory")
        axis.plot(grid[shown], found.loss[shown], color=_colour(experts, e), label=f"E = {e:g}")
        axis.plot(free.n_total[i], free.loss[i], "o", color=_colour(experts, e), markersize=4)
        columns.add(
            n_experts=e,
            n_total=grid[shown],
            n_active=found.n_active[shown],
            n_tokens=found.n_tokens[shown],
            loss=found.loss[shown],
        )
    best = np.argmin(losses, axis=0)
    edges = np.flatnonzero(np.diff(best)) + 1
    for start, stop in zip([0, *edges], [*edges, len(grid) - 1]):
        axis.axvspan(
            grid[start], grid[min(stop, len(grid) - 1)], color=_colour(experts, experts[best[start]]), alpha=0.12, lw=0
        )
    axis.set(
        xscale="log",
        xlabel="total parameters",
        ylabel="loss (nats per token)",
        title=f"Loss at {flops:.3g} training FLOPs; shade: best E",
    )
    axis.legend(fontsize=8)
    return figure, columns


def isoflop(fitted, architecture, experts, budgets):
    """Fig. 2a: loss against tokens at each training budget, the optimum of each curve marked."""
    experts = optimum.allowed_experts(fitted, experts)
    figure, axes = _new(len(budgets), 4.2)
    columns = _Columns()
    for axis, flops in zip(axes, budgets):
        free = optimum.optima(fitted, architecture, optimum.Constraints(flops=flops), experts)
        for i, e in enumerate(experts):
            m, mu, n, nu, c = fitted.at_experts(e)
            if not free.feasible[i]:
                continue
            d = free.n_tokens[i] * np.geomspace(1 / 20, 20, POINTS)
            size = flops / (TRAINING * d)
            loss = m * size**mu + n * d**nu + c
            axis.plot(d, loss, color=_colour(experts, e), label=f"E = {e:g}")
            axis.plot(free.n_tokens[i], free.loss[i], "o", color=_colour(experts, e), markersize=4)
            columns.add(flops=flops, n_experts=e, n_active=size, n_tokens=d, loss=loss)
        axis.set(xscale="log", xlabel="training tokens", title=f"{flops:.3g} training FLOPs")
        optima = free.loss[free.feasible]
        if optima.size:  # the curves' far ends would flatten what lies between them
            axis.set_ylim(0.98 * optima.min(), 1.25 * optima.max())
    axes[0].set_ylabel("loss (nats per token)")
    axes[0].legend(fontsize=8)
    return figure, columns


def savings(fitted, architecture, experts, budgets):
    """Fig. 2b: the training FLOPs a compute-optimal dense model needs for the loss of an MoE, over the MoE's."""
    experts = optimum.allowed_experts(fitted, experts)
    figure, (axis,) = _new()
    columns = _Columns()
    grid = np.geomspace(min(budgets), max(budgets) * 10, 40)
    m, mu, n, nu, c = fitted.at_experts(1.0)
    size, tokens = optimum.compute_optimal(m, mu, n, nu, 1e20)
    fall = -mu * nu / (mu + nu)  # dense: loss - c is proportional to flops ** -fall
    dense_scale = (m * size**mu + n * tokens**nu) * 1e20**fall
    for e in experts:
        found = _solve(fitted, architecture, optimum.Constraints(flops=grid), e)
        with np.errstate(invalid="ignore"):
            ratio = ((found.loss - c) / dense_scale) ** (-1 / fall) / grid
        axis.plot(grid, ratio, color=_colour(experts, e), label=f"E = {e:g}")
        columns.add(n_experts=e, flops=grid, dense_flops_over_flops=ratio)
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="training FLOPs of the MoE",
        ylabel="dense FLOPs for the same loss, ratio",
        title="FLOPs saved against compute-optimal dense models",
    )
    axis.legend(fontsize=8)
    return figure, columns


def matched_memory(fitted, architecture, experts, flops, kv_tokens=8192.0, inference_tokens=1e11):
    """Fig. 3: loss against the dense model whose memory an MoE matches: weights; with cache; with inference too."""
    experts = optimum.allowed_experts(fitted, experts)
    figure, axes = _new(3, 4.2)
    columns = _Columns()
    panels = (
        ("weights only", 0.0, 0.0),
        (f"with a cache of {kv_tokens:g} tokens", kv_tokens, 0.0),
        (f"and {inference_tokens:g} tokens of inference", kv_tokens, inference_tokens),
    )
    for axis, (title, cache, served) in zip(axes, panels):
        base = optimum.Constraints(
            flops=flops, bytes_per_parameter=1.0, bytes_per_kv_element=1.0, kv_tokens=cache, inference_tokens=served
        )
        free = optimum.optima(fitted, architecture, base, experts)
        top = np.nanmax(free.n_total)
        dense = np.geomspace(max(architecture.n_active(2.0 * architecture.width_per_block), top / 1e4), top, POINTS)
        memory = optimum.memory_bytes(architecture, base, architecture.d_model(dense), 1)
        for e in experts:
            found = _solve(fitted, architecture, dataclasses.replace(base, memory_bytes=memory), e)
            shown = found.feasible & (found.size_bound == "memory")
            axis.plot(dense[shown], found.loss[shown], color=_colour(experts, e), label=f"E = {e:g}")
            columns.add(
                panel=title,
                n_experts=e,
                dense_parameters=dense[shown],
                n_active=found.n_active[shown],
                n_tokens=found.n_tokens[shown],
                loss=found.loss[shown],
            )
        axis.set(xscale="log", xlabel="parameters of the dense model of equal memory", title=title)
    axes[0].set_ylabel(f"loss (nats per token) at {flops:.3g} FLOPs")
    axes[0].legend(fontsize=8)
    return figure, columns


def best_experts(fitted, architecture, experts, flops, sizes, kv_tokens=32768.0, inference_tokens=1e11):
    """Fig. 4: loss against E for a few memory sizes (parameters of a dense model), in three scenarios; best marked."""
    experts = optimum.allowed_experts(fitted, experts)
    figure, axes = _new(3, 4.2)
    columns = _Columns()
    panels = (
        ("weights only", 0.0, 0.0),
        (f"with a cache of {kv_tokens:g} tokens", kv_tokens, 0.0),
        (f"with {inference_tokens:g} tokens of inference", 0.0, inference_tokens),
    )
    for axis, (title, cache, served) in zip(axes, panels):
        base = optimum.Constraints(
            flops=flops, bytes_per_parameter=1.0, bytes_per_kv_element=1.0, kv_tokens=cache, inference_tokens=served
        )
        for i, size in enumerate(sizes):
            memory = optimum.memory_bytes(architecture, base, architecture.d_model(size), 1)
            found = _solve(fitted, architecture, dataclasses.replace(base, memory_bytes=memory), experts)
            if not found.feasible.any():
                continue
            (line,) = axis.plot(experts, found.loss, "-", marker=".", label=f"{size:.3g} parameters")
            best = int(np.nanargmin(found.loss))
            axis.plot(experts[best], found.loss[best], "*", color=line.get_color(), markersize=12)
            columns.add(
                panel=title,
                dense_parameters=size,
                n_experts=experts,
                n_active=found.n_active,
                n_tokens=found.n_tokens,
                loss=found.loss,
            )
        axis.set_xscale("log", base=2)
        axis.set(xlabel="number of experts E", title=title)
        axis.set_xticks(experts, [f"{e:g}" for e in experts])
    axes[0].set_ylabel(f"loss (nats per token) at {flops:.3g} FLOPs")
    axes[0].legend(fontsize=8, title="memory of a dense model of")
    return figure, columns


def experts_against_memory(fitted, architecture, experts, budgets):
    """The best E against memory (weights in bfloat16, no cache) at each training budget; Table 2 as a picture."""
    experts = optimum.allowed_experts(fitted, experts)
    figure, (axis,) = _new()
    columns = _Columns()
    for i, flops in enumerate(budgets):
        free = optimum.optima(fitted, architecture, optimum.Constraints(flops=flops), experts)
        least = 2.0 * architecture.n_total(float(architecture.width_per_block), 1)
        grid = np.geomspace(max(least, np.nanmin(free.n_total) / 20), 3.0 * np.nanmax(free.n_total), POINTS)
        losses = np.stack(
            [_solve(fitted, architecture, optimum.Constraints(flops=flops, memory_bytes=grid), e).loss for e in experts]
        )
        best = experts[np.argmin(np.where(np.isnan(losses), np.inf, losses), axis=0)]
        axis.step(grid / 1e9, best * 1.03 ** (i - len(budgets) / 2), where="mid", label=f"{flops:.3g} FLOPs")
        columns.add(flops=flops, memory_bytes=grid, n_experts=best)
    axis.set_yscale("log", base=2)
    axis.set(
        xscale="log",
        xlabel="memory for weights (GB, 2 bytes per parameter)",
        ylabel="best number of experts E",
        title="Best number of experts against memory",
    )
    axis.set_yticks(experts, [f"{e:g}" for e in experts])
    axis.legend(fontsize=8, title="training budget (lines shifted apart)")
    return figure, columns


def fit_quality(fitted, runs, out):
    """Fig. 5: predicted against measured loss by E; held-out runs (`out`, boolean) hollow; beside it loss against tokens
    for the least and a larger E, lines predicted, points measured."""
    predicted = fitted.predict(runs.n_active, runs.n_tokens, runs.n_experts)
    experts = sorted(set(runs.n_experts))
    shown = [e for e in (experts[0], 4.0 if 4.0 in experts else experts[-1])]
    shown = list(dict.fromkeys(shown)) if "n_tokens" in fitted.law.COLUMNS else []
    figure, axes = _new(1 + len(shown), 4.6)
    for e in experts:
        for rows, marker, fill in (
            ((runs.n_experts == e) & ~out, "o", "full"),
            ((runs.n_experts == e) & out, "s", "none"),
        ):
            label = f"E = {e:g}" + (", held out" if fill == "none" else "")
            if rows.any():
                axes[0].plot(
                    runs.loss[rows],
                    predicted[rows],
                    marker,
                    fillstyle=fill,
                    markersize=4,
                    color=_colour(experts, e),
                    label=label,
                )
    ends = [min(runs.loss.min(), predicted.min()), max(runs.loss.max(), predicted.max())]
    axes[0].plot(ends, ends, "-", color="grey", linewidth=0.8, zorder=0)
    axes[0].set(
        xlabel="measured loss (nats per token)", ylabel="predicted loss (nats per token)", title="Quality of the fit"
    )
    axes[0].legend(fontsize=7)
    for axis, e in zip(axes[1:], shown):
        sizes = sorted(set(runs.n_active[runs.n_experts == e]))
        for i, size in enumerate(sizes):
            rows = (runs.n_experts == e) & (runs.n_active == size)
            d = np.geomspace(runs.n_tokens[rows].min(), runs.n_tokens[rows].max(), 50)
            colour = COLOURS(0.9 * i / max(len(sizes) - 1, 1))
            axis.plot(d, fitted.predict(size, d, e), "--", color=colour, linewidth=1)
            axis.plot(runs.n_tokens[rows], runs.loss[rows], "o", markersize=3, color=colour, label=f"{size:.3g}")
        axis.set(
            xscale="log",
            xlabel="training tokens",
            ylabel="loss (nats per token)",
            title=f"E = {e:g}: predicted (lines), measured (points)",
        )
        axis.legend(fontsize=6, title="n_active", title_fontsize=6, ncols=2)
    return figure, dict(
        n_active=runs.n_active.tolist(),
        n_tokens=runs.n_tokens.tolist(),
        n_experts=runs.n_experts.tolist(),
        loss=runs.loss.tolist(),
        predicted_loss=predicted.tolist(),
        held_out=out.tolist(),
    )
