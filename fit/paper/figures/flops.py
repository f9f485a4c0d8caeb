"""Pictures against training compute: isoFLOP curves, and what a mixture saves."""

from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Floats, Numbers
from fit.data.runs import Runs
from fit.errors import UserError
from fit.form import Reduced
from fit.lawbook.lawfile import Law
from fit.paper.figures import style
from fit.paper.figures.style import NEAR
from fit.planning import optimum
from fit.shape.architecture import TRAINING
from fit.words import units


def isoflop(picture: style.Picture, budgets: Sequence[float], runs: Runs | None) -> style.Drawn:
    """Fig. 2a: loss against tokens at each training budget, each curve's optimum marked; runs NEAR a budget as points,
    moved along the law to the budget's own tokens, where their distance from the curve is their error.

    Needs no optimum: a law whose loss does not fall with size or tokens is drawn over the sizes it was fitted to.
    """
    law, architecture, experts = picture.law, picture.architecture, picture.experts
    axes = picture.panels(len(budgets), sharey=True)
    seen, notes = [], [style.handle("optimum", marker="o", markerfacecolor="white")]
    for axis, flops in zip(axes, budgets):
        best = {e: float(optimum.unconstrained(law, e, architecture, flops)[1]) for e in experts}
        points = {} if runs is None else _near(law, runs, flops, experts)
        needed = [*best.values(), *(tokens for tokens, _ in points.values())]
        d = np.geomspace(*_tokens_shown(law, flops, needed), style.POINTS)
        size = flops / (TRAINING * d)
        losses = {e: optimum.loss_of(law, architecture, e, size, d) for e in experts}
        lowest = min(losses, key=lambda e: losses[e].min())
        for e, loss in losses.items():
            picture.curve(axis, d, (size, d, loss), e, sure=e == lowest, flops=flops)
            if np.isfinite(best[e]):
                its_loss = optimum.loss_of(law, architecture, e, flops / (TRAINING * best[e]), best[e])
                style.point(axis, best[e], its_loss, picture.looks[e])
            seen.append(loss.min())
        for e, (d, loss) in points.items():
            edge = dict(markeredgecolor="black", markeredgewidth=0.6, rasterized=len(d) > style.MANY)
            axis.plot(d, loss, linestyle="none", **edge, **picture.looks[e])
            seen += [loss.min(), loss.max() / 1.04]
        style.log_axis(axis.xaxis, *axis.dataLim.intervalx)
        axis.set(xlabel="training tokens", title=f"{units.flops_math(flops)} training FLOPs")
    axes[0].set_ylim(0.985 * min(seen), 1.06 * max(seen))  # the curves' far ends would flatten what lies between them
    axes[0].set_ylabel("loss (nats per token)")
    if runs is not None:
        label = f"runs within {NEAR - 1:.0%} of the budget, moved to it along the law"
        notes.append(style.handle(label, marker="o", markeredgecolor="black", color="0.6"))
    return picture.done(*notes)


def _near(law: Law, runs: Runs, flops: float, experts: Floats) -> dict[float, tuple[Array, Array]]:
    """{number of experts: (tokens, losses)} of the runs whose training FLOPs are NEAR a budget: the tokens that the
    budget buys for their size, and their loss times what these change by the law."""
    near = np.abs(np.log(runs.flops / flops)) < np.log(NEAR)
    tokens = flops / (TRAINING * runs.n_active)
    moved = law.loss(law.coefficients, runs.columns | dict(n_tokens=tokens))
    loss = runs.loss * moved / law.loss(law.coefficients, runs.columns)
    rows = {e: near & (runs.n_experts == e) for e in experts}
    return {e: (tokens[r], loss[r]) for e, r in rows.items() if r.any()}


def _tokens_shown(law: Law, flops: float, needed: Sequence[Numbers]) -> tuple[float, float]:
    """(least, most) tokens of the curves at a budget: four times beyond what is needed, or else the fitted sizes."""
    known = np.hstack(needed)
    if np.isfinite(known).any():
        return np.nanmin(known) / 4, np.nanmax(known) * 4
    if "n_active" not in law.ranges:
        raise UserError(f"--law={law.name}: has no optimum, nor says what sizes it was fitted to: nothing to draw")
    low, high = law.ranges["n_active"]
    return flops / (TRAINING * high) / 2, flops / (TRAINING * low) * 2


def savings(picture: style.Picture, budgets: Sequence[float]) -> style.Drawn:
    """Fig. 2b: the training FLOPs a compute-optimal dense model needs for the loss of an MoE, over the MoE's."""
    law, (axis,) = picture.law, picture.panels()
    flops = np.geomspace(min(budgets), max(budgets) * 10, 40)
    saved = {e: _dense_over_flops(law.at_experts(e), law.at_experts(1.0), flops) for e in picture.experts}
    most = max(saved, key=lambda e: np.nan_to_num(saved[e][2][-1]))
    for i, (e, (size, tokens, ratio)) in enumerate(saved.items()):
        ends = None
        if law.draws and e == most:
            at = [law.at_experts(number, style.drawn(law)) for number in (e, 1.0)]
            ends = style.percentiles(law, _dense_over_flops(*at, flops)[2])
        within = law.inside(size, tokens, e)
        style.curve(axis, flops, ratio, within, picture.looks[e] | dict(every=(i % 6, 6)), ends)
        picture.add(n_experts=e, flops=flops, dense_flops_over_flops=ratio, extrapolated=~within)
    if not np.isfinite(picture.columns["dense_flops_over_flops"]).any():
        raise UserError(f"--law={law.name}: its loss of dense models does not fall with size and tokens: no optimum")
    style.log_axis(axis.xaxis, flops[0], flops[-1], units.flops_math)
    shown = np.concatenate([np.asarray(line.get_ydata(), float) for line in axis.lines])
    style.log_axis(axis.yaxis, 0.95 * np.nanmin(shown), 1.1 * np.nanmax(shown), "{:.3g}×".format)
    axis.set(xlabel="training FLOPs of the mixture", ylabel="dense FLOPs for equal loss, ratio")
    return picture.done()


def _dense_over_flops(reduced: Reduced, dense: Reduced, flops: Array) -> tuple[Array, Array, Array]:
    """(n_active, n_tokens) of the compute-optimal mixture, and the FLOPs of the compute-optimal dense model of equal
    loss over the mixture's; NaN where there is none."""
    with np.errstate(all="ignore"):
        size, tokens = optimum.compute_optimal(*reduced[:4], flops)
        loss = np.where((reduced.mu < 0) & (reduced.nu < 0), reduced.loss(size, tokens), np.nan)
        m, mu, n, nu, c, k = dense
        one, its_tokens = optimum.compute_optimal(m, mu, n, nu, 1.0)
        fall = -mu * nu / (mu + nu)  # of dense models: (loss - c) ** (1 / k) is proportional to flops ** -fall
        ratio = ((loss - c) ** (1 / k) / (m * one**mu + n * its_tokens**nu)) ** (-1 / fall) / flops
    return size, tokens, ratio
