"""The model of whole blocks and heads that is built for a plan: depths and widths around an optimum."""

import math

import numpy as np

from fit.aliases import Json
from fit.lawbook.lawfile import Law
from fit.planning import optimum
from fit.planning.constraints import Constraints
from fit.shape.architecture import ROUNDED, Architecture, Model

TRIED = 300  # depths around the planned one, and widths at each; beyond, steps between them are below 0.4%


def whole(
    law: Law, architecture: Architecture, constraints: Constraints, planned: Json
) -> list[tuple[float, Model, int, float]]:
    """[(loss, Model, n_tokens, bytes of weights and cache)] of the models of whole blocks and heads around a planned
    optimum that meet the constraints: depths and widths with a width per block within ROUNDED of the architecture's or,
    where none of those fits, the deepest that fit."""
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
                kept.append((model, n_tokens, float(memory)))
    if not kept:
        return []
    size, total, tokens, width = np.array([(m.n_active, m.n_total, n, m.d_model) for m, n, _ in kept], float).T
    if law.form.at_experts:
        losses = optimum.loss_of(law, architecture, e, size, tokens)
    else:
        less = 0 if law.counts_embedding else architecture.ends * width
        counts = dict(n_active=size - less, n_total=total - less, n_tokens=tokens)
        losses = law.loss(law.coefficients, architecture.structure(e) | counts)
    return [(float(loss), *one) for loss, one in zip(losses, kept)]


def nearest(
    law: Law, architecture: Architecture, constraints: Constraints, optima: optimum.Optima
) -> tuple[float, float, Model, int, float] | None:
    """The model of whole blocks and heads to build, with as many experts as the best optimum has; where none fits, with
    any other number. Of those as good as the best (within NEAR of the lowest loss) it is the one whose ratios are the
    architecture's, and then the one nearest in size to what was planned.

    Returns (loss, loss less the best optimum's, Model, n_tokens, bytes of weights and cache); None where nothing fits.
    """
    rows = [optima.row(i, ("n_active", "loss", "d_model")) for i in np.flatnonzero(optima.feasible)]
    best = min(rows, key=lambda row: row["loss"])
    around = lambda row: [(row["n_active"], *one) for one in whole(law, architecture, constraints, row)]
    found = around(best) or [one for row in rows for one in around(row)]
    if not found:
        return None
    found = [one for one in found if one[2].off <= 1 + ROUNDED] or found
    most = (1 + optimum.NEAR) * max(best["loss"], min(loss for _, loss, *_ in found))
    apart = lambda a, b: max(a / b, b / a)
    order = lambda one: (one[2].off, apart(one[0], one[2].n_active))
    _, loss, model, n_tokens, memory = min((one for one in found if one[1] <= most), key=order)
    return loss, loss - best["loss"], model, n_tokens, memory
