"""The model of whole blocks and heads that is built for a plan: depths and widths around an optimum, any
(`nearest`) or those of the grid that hardware likes (`on_grid`)."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from fit.aliases import Array, Json
from fit.fitted_law.law import Law
from fit.planning import mesh, optimum
from fit.planning.constraints import Constraints
from fit.shape import hardware
from fit.shape.architecture import ROUNDED, Architecture, Model

TRIED = 300  # depths around the planned one, and widths at each; beyond, steps between them are below 0.4%


def _whole(
    law: Law, architecture: Architecture, constraints: Constraints, planned: Json
) -> list[tuple[float, Model, int, float, float]]:
    """[(loss, Model, n_tokens, bytes of weights and cache, factor between its size and the planned one)] of the models
    of whole blocks and heads around a planned optimum that meet the constraints: depths and widths with a width per
    block within ROUNDED of the architecture's or, where none of those fits, the deepest that fit."""
    blocks, chips, kept = planned["d_model"] / architecture.width_per_block, constraints.chips, []
    constraints, e = constraints.at(planned["n_experts"]), planned["n_experts"]
    least = round(architecture.smallest / architecture.width_per_block)
    step = math.ceil(blocks / TRIED)
    for n_blocks in range(max(least, math.ceil(blocks * (1 + ROUNDED))), least - 1, -step):
        if kept and n_blocks < blocks / (1 + ROUNDED) - 1:
            break
        widths = architecture.widths(n_blocks)
        for width in widths[:: math.ceil(len(widths) / TRIED)]:
            model = Model(architecture, n_blocks, e, width)
            memory = constraints.bytes_per_parameter * model.exact_parameters
            memory += constraints.bytes_per_kv_element * model.kv_elements(constraints.kv_tokens)
            n_tokens = math.floor(constraints.tokens(model.n_active))
            fits = constraints.memory_bytes is None or memory <= constraints.memory_bytes
            if chips:
                fits &= (chips.holding(architecture, width, model.exact_parameters) or math.inf) <= chips.count
            if fits and n_tokens >= 1:
                apart = planned["n_active"] / model.n_active
                kept.append((model, n_tokens, float(memory), max(apart, 1 / apart)))
    if not kept:
        return []
    size, total, tokens, width = np.array([(m.n_active, m.n_total, n, m.d_model) for m, n, *_ in kept], float).T
    if law.closed_form:
        losses = optimum.loss_of(law, architecture, e, size, tokens)
    else:
        less = 0 if law.counts_embedding else architecture.ends * width
        counts = dict(n_active=size - less, n_total=total - less, n_tokens=tokens)
        losses = law.loss(law.coefficients, architecture.structure(e) | counts)
    return [(float(loss), *one) for loss, one in zip(losses, kept)]


def nearest(
    law: Law, architecture: Architecture, constraints: Constraints, optima: list[Json], best: Json
) -> tuple[float, Model, int, float] | None:
    """(loss, Model, n_tokens, bytes of weights and cache) of the model of whole blocks and heads to build, with as many
    experts as the best of the optima has; where none fits, with any other number. Of those as good as the best (within
    NEAR of the lowest loss) it is the one whose ratios are the architecture's, and then the one nearest in size to what
    was planned. None where nothing fits."""
    found = _whole(law, architecture, constraints, best)
    found = found or [one for row in optima for one in _whole(law, architecture, constraints, row)]
    if not found:
        return None
    found = [one for one in found if one[1].off <= 1 + ROUNDED] or found
    most = (1 + optimum.NEAR) * max(best["loss"], min(loss for loss, *_ in found))
    return min((one for one in found if one[0] <= most), key=lambda one: (one[1].off, one[4]))[:4]


COST = 5e-4  # share of the loss that a preferred shape may cost
WINDOWS = (1.3, 0.75, 0.5, 0.3, 0.15, 0.05, 0.01)  # sizes tried, as shares of the planned one, from these to the next
KEPT = 400  # models of a window that are looked at
TIMED = 100  # models around an optimum whose own speed is asked for
SMALLER = 0.97  # share in total size of a model that chips cannot train, from which they are asked again


class Layouts(Protocol):
    """How chips would train models."""

    def can_start(self, model: Model, n_tokens: int) -> bool:
        """Whether some mesh divides the model."""

    def of(self, model: Model, n_tokens: int) -> mesh.Layout | None:
        """The layout of its training; None where the chips cannot."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A model on the grid of hardware.py: its loss, tokens, bytes of weights and cache; how the chips train it, and by
    the clock at how many tokens per second."""

    loss: float
    model: Model
    n_tokens: int
    memory: float
    layout: mesh.Layout | None
    speed: float | None = None


def on_grid(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    optima: list[Json],
    style: hardware.Style,
    layouts: Layouts | None,
    timed: Callable[[Found], Found | None] | None = None,
) -> Found | None:
    """The model of the grid to build, with as many experts as the best of the optima has, or with another number where
    that loses less. Of those whose loss is within COST of the lowest it is the one whose ratios are those that the
    style prefers, and whose size is what was planned. None where nothing fits.

    layouts: where chips train the model; it must be one that they can start and hold. timed: by the clock, the model
    with its layout, its own speed, and the tokens and the loss that follow from it; None where the chips cannot train
    it.
    """
    chosen = None
    for row in sorted(optima, key=lambda row: row["loss"]):
        if chosen and row["loss"] >= chosen.loss * (1 - COST):
            break
        for high, low in zip(WINDOWS, WINDOWS[1:]):
            near = _near(law, architecture, constraints, row, style, (low, high))
            if layouts:
                near = [one for one in near if layouts.can_start(one.model, one.n_tokens)]
            if timed:
                found = _preferred_by_clock(architecture, style, row, near, timed)
            else:
                found = _preferred(architecture, style, row, near, layouts)
            if found:
                if chosen is None or found.loss < chosen.loss * (1 - COST):
                    chosen = found
                break
    return chosen


def _apart(architecture: Architecture, style: hardware.Style, planned: Json, model: Model) -> float:
    """How far a model's ratios are from the style's, and its size from the planned one."""
    size = abs(math.log(model.n_active / planned["n_active"]))
    return hardware.unlikeness(architecture, style, model) + size


def _near(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    planned: Json,
    style: hardware.Style,
    window: tuple[float, float],
) -> list[Found]:
    """The models of the grid within the window around a planned optimum that meet the limits, without their layouts, in
    order of their losses."""
    constraints = constraints.at(planned["n_experts"])
    least, most = (share * planned["n_active"] for share in window)
    padded = dataclasses.replace(architecture, vocab_size=hardware.padded(architecture.vocab_size))
    found = []
    for routed in hardware.whole_experts(architecture, planned["n_experts"]):
        models = list(_models(padded, style, routed, least, most))
        for model in _spread(models, KEPT):
            memory = constraints.bytes_per_parameter * model.exact_parameters
            memory += constraints.bytes_per_kv_element * model.kv_elements(constraints.kv_tokens)
            n_tokens = math.floor(constraints.tokens(model.n_active))
            if n_tokens >= 1 and (constraints.memory_bytes is None or memory <= constraints.memory_bytes):
                found.append((model, n_tokens, float(memory)))
    if not found:
        return []
    losses = _losses(law, padded, [model for model, *_ in found], [n_tokens for _, n_tokens, _ in found])
    rows = [Found(float(loss), *one, None) for loss, one in zip(losses, found)]
    return sorted(rows, key=lambda one: one.loss)


def _models(
    architecture: Architecture, style: hardware.Style, routed: int, least: float, most: float
) -> Iterator[Model]:
    """The models of the grid with from `least` to `most` active parameters."""
    low, _, high = style.aspects
    narrowest = float(dataclasses.replace(architecture, width_per_block=low).d_model(least, routed))
    widest = float(dataclasses.replace(architecture, width_per_block=high).d_model(most, routed))
    widths = hardware.widths(0.8 * narrowest, 1.2 * widest)
    for width in widths[:: max(1, math.ceil(len(widths) / TRIED))]:
        depths = hardware.depths(style, width)
        depths = range(max(depths.start, architecture.n_dense + 1), depths.stop)
        if not depths:
            continue
        first = hardware.built(architecture, style, width, depths[0], routed).n_active
        of_a_block = hardware.built(architecture, style, width, depths[0] + 1, routed).n_active - first
        # the depths whose sizes are within the limits: a block more adds as much at each depth
        start = max(depths.start, depths.start + math.ceil((least - first) / of_a_block))
        stop = min(depths.stop, depths.start + math.ceil((most - first) / of_a_block))
        for n_blocks in range(start, stop, math.ceil(max(stop - start, 1) / TRIED)):
            yield hardware.built(architecture, style, width, n_blocks, routed)


def loss_of(law: Law, architecture: Architecture, model: Model, n_tokens: int) -> float:
    """What the law says of a model of the grid on so many tokens."""
    padded = dataclasses.replace(architecture, vocab_size=hardware.padded(architecture.vocab_size))
    return float(_losses(law, padded, [model], [n_tokens])[0])


def _losses(law: Law, architecture: Architecture, models: list[Model], n_tokens: list[int]) -> Array:
    """What the law says of the models, as it counts them."""
    size, total, width = np.array([(m.n_active, m.n_total, m.d_model) for m in models], float).T
    experts = np.array([hardware.law_experts(architecture, m.n_experts) for m in models], float)
    tokens = np.array(n_tokens, float)
    if law.form.chinchilla_coefficients_at:
        return optimum.loss_of(law, architecture, experts, size, tokens)
    less = 0 if law.counts_embedding else architecture.ends * width
    counts = dict(n_active=size - less, n_total=total - less, n_tokens=tokens)
    return law.loss(law.coefficients, architecture.structure(experts) | counts)


def _preferred(
    architecture: Architecture, style: hardware.Style, planned: Json, near: list[Found], layouts: Layouts | None
) -> Found | None:
    """The model to build of those near a planned one, in order of their losses."""

    def with_layout(one: Found) -> Found | None:
        if layouts is None:
            return one
        layout = layouts.of(one.model, one.n_tokens)
        return dataclasses.replace(one, layout=layout) if layout else None

    lowest, most = None, math.inf
    for one in near:
        if one.model.n_total <= most:
            lowest = with_layout(one)
            if lowest:
                break
            most = SMALLER * one.model.n_total
    if lowest is None:
        return None
    good = [one for one in near if lowest.loss <= one.loss <= lowest.loss * (1 + COST)]
    most = math.inf
    for one in sorted(good, key=lambda one: _apart(architecture, style, planned, one.model)):
        if one.model.n_total <= most:
            if found := with_layout(one):
                return found
            most = one.model.n_total
    return lowest


def _preferred_by_clock(
    architecture: Architecture,
    style: hardware.Style,
    planned: Json,
    near: list[Found],
    timed: Callable[[Found], Found | None],
) -> Found | None:
    """The model to build of those near a planned one, by the losses on the tokens that their own speeds leave: a mesh
    can halve the speed from one width to the next."""
    known = []
    for one in _spread(near, TIMED):
        found = timed(one)
        if found:
            known.append(found)
    if not known:
        return None
    most = (1 + COST) * min(one.loss for one in known)
    good = [one for one in known if one.loss <= most]
    return min(good, key=lambda one: _apart(architecture, style, planned, one.model))


def _spread(values: list, most: int) -> list:
    """At most so many of the values, evenly spread over them."""
    return values[:: max(1, math.ceil(len(values) / most))]
