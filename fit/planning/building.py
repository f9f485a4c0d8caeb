"""The model that is built for a plan: depths and widths around an optimum.

`nearest` looks at models of whole blocks and heads of the plan's own architecture, `on_grid` at those of the grid of
shapes that hardware likes.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np

from fit.aliases import Array
from fit.fitted_law import own_counts
from fit.fitted_law.law import Law
from fit.planning import mesh, optimum
from fit.planning.constraints import Constraints
from fit.planning.results import Optimum
from fit.shape import hardware
from fit.shape.architecture import ROUNDED, Architecture, Model

TRIED = 300  # depths around the planned one, and widths at each, at most: steps between them are then below 0.4%
COST = 5e-4  # share of the loss that a preferred shape may cost
WINDOWS = (1.3, 0.75, 0.5, 0.3, 0.15, 0.05, 0.01)  # ends of windows of sizes to try, as shares of the planned size
MODELS_IN_WINDOW = 400  # models of a window that are looked at
SMALLER = 0.97  # after a model that the chips cannot train, the next one tried has at most this share of its size

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A model that may be built.

    Attributes:
      loss: Predicted loss in nats per token.
      model: Its shape and counts.
      n_tokens: Training tokens that the constraints leave.
      memory_bytes: Of weights and cache.
      layout: How the chips train it; None without chips.
      speed: Tokens per second of all chips; None where no speed is modelled.
    """

    loss: float
    model: Model
    n_tokens: int
    memory_bytes: float
    layout: mesh.Layout | None = None
    speed: float | None = None


class Layouts(Protocol):
    """How chips would train models."""

    def can_start(self, model: Model, n_tokens: int) -> bool:
        """Whether some mesh divides the model."""

    def of(self, model: Model, n_tokens: int) -> mesh.Layout | None:
        """The layout of its training; None where the chips cannot train it."""


def nearest(
    law: Law, architecture: Architecture, constraints: Constraints, optima: list[Optimum], best: Optimum
) -> Candidate | None:
    """The model of whole blocks and heads to build.

    It has as many experts as the best optimum or, where none of those fits, any other number. Of the models within NEAR
    of the lowest loss it is the one whose ratios are the architecture's, and then the one nearest in size to the
    optimum. None where nothing fits.
    """
    candidates = _whole(law, architecture, constraints, best)
    if not candidates:
        candidates = [candidate for row in optima for candidate in _whole(law, architecture, constraints, row)]
    if not candidates:
        return None
    close = [pair for pair in candidates if pair[0].model.rounding_factor <= 1 + ROUNDED]
    candidates = close or candidates
    most = (1 + optimum.NEAR) * max(best.loss, min(candidate.loss for candidate, _ in candidates))
    good = [pair for pair in candidates if pair[0].loss <= most]
    chosen, _ = min(good, key=lambda pair: (pair[0].model.rounding_factor, pair[1]))
    return chosen


def _whole(
    law: Law, architecture: Architecture, constraints: Constraints, planned: Optimum
) -> list[tuple[Candidate, float]]:
    """(candidate, factor between its size and the planned one) of models around an optimum that meet the constraints.

    Their width per block is within ROUNDED of the architecture's. Where none of these fits, the deepest models that fit
    are returned.
    """
    chips = constraints.chips
    constraints = constraints.at(planned.n_experts)
    blocks = planned.d_model / architecture.width_per_block
    least = round(architecture.smallest / architecture.width_per_block)
    step = math.ceil(blocks / TRIED)
    feasible: list[tuple[Model, int, float]] = []
    for n_blocks in range(max(least, math.ceil(blocks * (1 + ROUNDED))), least - 1, -step):
        if feasible and n_blocks < blocks / (1 + ROUNDED) - 1:
            break
        widths = architecture.widths(n_blocks)
        for width in widths[:: math.ceil(len(widths) / TRIED)]:
            model = Model(architecture, n_blocks, planned.n_experts, width)
            n_tokens = math.floor(constraints.tokens(model.n_active))
            fits = constraints.can_serve(model)
            if chips:
                fewest = chips.holding(architecture, width, model.exact_parameters)
                fits &= fewest is not None and fewest <= chips.count
            if fits and n_tokens >= 1:
                feasible.append((model, n_tokens, constraints.memory_of(model)))
    if not feasible:
        return []
    losses = _losses_of_whole(law, architecture, planned.n_experts, feasible)
    candidates = []
    for loss, (model, n_tokens, memory_bytes) in zip(losses, feasible, strict=True):
        factor = planned.n_active / model.n_active
        candidate = Candidate(float(loss), model, n_tokens, memory_bytes)
        candidates.append((candidate, max(factor, 1 / factor)))
    return candidates


def _losses_of_whole(
    law: Law, architecture: Architecture, n_experts: float, feasible: list[tuple[Model, int, float]]
) -> Array:
    """The predicted loss [n_models] of each of (model, n_tokens, memory)."""
    n_active = np.array([model.n_active for model, _, _ in feasible], float)
    n_total = np.array([model.n_total for model, _, _ in feasible], float)
    d_model = np.array([model.d_model for model, _, _ in feasible], float)
    n_tokens = np.array([n_tokens for _, n_tokens, _ in feasible], float)
    uncounted = own_counts.uncounted_rows(law, architecture) * d_model
    if law.closed_form:
        return law.chinchilla_coefficients_at(n_experts).loss(n_active - uncounted, n_tokens)
    counts = dict(n_active=n_active - uncounted, n_total=n_total - uncounted, n_tokens=n_tokens)
    return law.loss(law.coefficients, architecture.structure(n_experts) | counts)


def on_grid(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    optima: list[Optimum],
    style: hardware.Style,
    layouts: Layouts | None,
) -> Candidate | None:
    """The model of the grid to build.

    It has as many experts as the best of the optima, or another number where that loses less. Of the models whose loss
    is within COST of the lowest it is the one whose ratios the style prefers, and whose size is what was planned.

    Args:
      law: The law that plans.
      architecture: How the optima are built.
      constraints: What the model must respect.
      optima: The best model with each number of experts.
      style: The shapes that hardware likes.
      layouts: What the chips can start and hold; None without chips.

    Returns:
      None where nothing fits.
    """
    chosen = None
    for row in sorted(optima, key=lambda row: row.loss):
        if chosen and row.loss >= chosen.loss * (1 - COST):
            break
        for high, low in itertools.pairwise(WINDOWS):
            near = _near(law, architecture, constraints, row, style, (low, high))
            if layouts:
                near = [candidate for candidate in near if layouts.can_start(candidate.model, candidate.n_tokens)]
            preferred = _preferred(architecture, style, row, near, layouts)
            if preferred:
                if chosen is None or preferred.loss < chosen.loss * (1 - COST):
                    chosen = preferred
                break
    return chosen


def _unlikeness(architecture: Architecture, style: hardware.Style, planned: Optimum, model: Model) -> float:
    """How far a model's ratios are from the style's, and its size from the planned one."""
    size = abs(math.log(model.n_active / planned.n_active))
    return hardware.distance_from_preferred(architecture, style, model) + size


def _near(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    planned: Optimum,
    style: hardware.Style,
    window: tuple[float, float],
) -> list[Candidate]:
    """The models of the grid within the window around a planned optimum that meet the limits, in order of their losses.

    They have no layouts yet. `window`: (least, most) size, as shares of the planned one.
    """
    constraints = constraints.at(planned.n_experts)
    least, most = (share * planned.n_active for share in window)
    padded = dataclasses.replace(architecture, vocab_size=hardware.padded(architecture.vocab_size))
    feasible = []
    for routed in hardware.whole_experts(architecture, planned.n_experts):
        models = list(_models(padded, style, routed, least, most))
        for model in _spread(models, MODELS_IN_WINDOW):
            n_tokens = math.floor(constraints.tokens(model.n_active))
            if n_tokens >= 1 and constraints.can_serve(model):
                feasible.append((model, n_tokens, constraints.memory_of(model)))
    if not feasible:
        return []
    losses = _losses(law, padded, [model for model, _, _ in feasible], [n_tokens for _, n_tokens, _ in feasible])
    candidates = [Candidate(float(loss), *parts) for loss, parts in zip(losses, feasible, strict=True)]
    return sorted(candidates, key=lambda candidate: candidate.loss)


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
        per_block = hardware.built(architecture, style, width, depths[0] + 1, routed).n_active - first
        # the depths whose sizes are within the limits: a block more adds as much at each depth
        start = max(depths.start, depths.start + math.ceil((least - first) / per_block))
        stop = min(depths.stop, depths.start + math.ceil((most - first) / per_block))
        for n_blocks in range(start, stop, math.ceil(max(stop - start, 1) / TRIED)):
            yield hardware.built(architecture, style, width, n_blocks, routed)


def loss_of(law: Law, architecture: Architecture, model: Model, n_tokens: int) -> float:
    """The predicted loss of a model of the grid on so many tokens."""
    padded = dataclasses.replace(architecture, vocab_size=hardware.padded(architecture.vocab_size))
    return float(_losses(law, padded, [model], [n_tokens])[0])


def _losses(law: Law, architecture: Architecture, models: list[Model], n_tokens: list[int]) -> Array:
    """The predicted loss [n_models] of each model, as the law counts it."""
    n_active, n_total, d_model = np.array([(m.n_active, m.n_total, m.d_model) for m in models], float).T
    experts = np.array([hardware.law_experts(architecture, m.n_experts) for m in models], float)
    tokens = np.array(n_tokens, float)
    uncounted = own_counts.uncounted_rows(law, architecture) * d_model
    if law.closed_form:
        return law.chinchilla_coefficients_at(experts).loss(n_active - uncounted, tokens)
    if law.form.chinchilla_coefficients_at:
        return optimum.loss_of(law, architecture, experts, n_active, tokens)
    counts = dict(n_active=n_active - uncounted, n_total=n_total - uncounted, n_tokens=tokens)
    return law.loss(law.coefficients, architecture.structure(experts) | counts)


def _preferred(
    architecture: Architecture,
    style: hardware.Style,
    planned: Optimum,
    near: list[Candidate],
    layouts: Layouts | None,
) -> Candidate | None:
    """The model to build of those near a planned one, which come in order of their losses."""

    def with_layout(candidate: Candidate) -> Candidate | None:
        """The candidate with its layout; None where the chips cannot train it."""
        if layouts is None:
            return candidate
        layout = layouts.of(candidate.model, candidate.n_tokens)
        return dataclasses.replace(candidate, layout=layout) if layout else None

    def first_with_layout(candidates: list[Candidate], shrink: float) -> Candidate | None:
        """The first that the chips can train. After one that they cannot, only models of at most `shrink` times its
        total size are tried."""
        most = math.inf
        for candidate in candidates:
            if candidate.model.n_total > most:
                continue
            trainable = with_layout(candidate)
            if trainable:
                return trainable
            most = shrink * candidate.model.n_total
        return None

    lowest = first_with_layout(near, SMALLER)
    if lowest is None:
        return None
    good = [candidate for candidate in near if lowest.loss <= candidate.loss <= lowest.loss * (1 + COST)]
    good.sort(key=lambda candidate: _unlikeness(architecture, style, planned, candidate.model))
    return first_with_layout(good, 1.0) or lowest


def _spread(values: Sequence[T], most: int) -> Sequence[T]:
    """At most so many of the values, evenly spread over them."""
    return values[:: max(1, math.ceil(len(values) / most))]
