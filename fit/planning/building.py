"""The model of whole blocks and heads that is built for a plan: depths and widths around an optimum."""

import math

import numpy as np

from fit.aliases import Json
from fit.lawbook.lawfile import Law
from fit.planning import optimum
from fit.planning.constraints import Constraints
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
