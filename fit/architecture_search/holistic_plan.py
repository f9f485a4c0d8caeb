"""The complete architecture of a budget by the holistic laws, and the origin of each number (holistic.py)."""

import math
from collections.abc import Sequence

import numpy as np

from fit.aliases import Json
from fit.architecture_search import holistic
from fit.errors import UserError

LARGEST = 1e27  # FLOPs: far beyond what the laws can know


def published(flops: float) -> tuple[dict[str, tuple], dict[str, tuple]]:
    """{name: (value, origin)} of what determines a budget's architecture, and {name: (low, high, origin)} of its
    near-optimal band. origin: "published", "recovered" from tables of configurations, or "missing" (None as values).

    Between the six budgets, values of their table are interpolated in ln C; beyond them they keep the value at the end,
    except for the learning rate and the batch, which continue from there along the power laws through the table.
    """
    log_c, grid = math.log(flops), np.log(holistic.BUDGETS)
    of_table = lambda values: float(np.interp(log_c, grid, values))

    def line(values: Sequence[float]) -> float:
        slope = np.polyfit(grid, np.log(values), 1)[0]
        return math.exp(of_table(np.log(values)) + slope * (log_c - np.clip(log_c, grid[0], grid[-1])))

    held = holistic.setting(flops)
    values = dict(
        n_tokens=(holistic.power(holistic.TOKENS, flops), "published"),
        flops_per_token=(holistic.power(holistic.FLOPS_PER_TOKEN, flops), "published"),
        m_over_active=(6 + holistic.power(holistic.RECOVERED, flops), "recovered"),
        total_over_active=(of_table(holistic.RATIO_USED), "published"),
        d_model=(None, "missing"),
        n_heads=(held.n_heads, "published"),
        n_kv_heads=(held.n_heads // 2, "published"),
        head_dim=(held.head_dim, "published"),
        n_experts=(held.n_experts, "published"),
        top_k=(held.top_k, "published"),
        n_shared=(held.n_shared, "published"),
        learning_rate=(line(holistic.LEARNING_RATE), "published"),
        batch_rows=(round(line(holistic.BATCH_ROWS)), "published"),
    )
    band = dict(
        m_over_active=(None, None, "missing"),
        total_over_active=(*holistic.FLAT, "published"),
        d_model=(None, None, "missing"),
    )
    return values, band


def architecture(flops: float, laws: Json | None = None) -> Json:
    """The complete architecture for a budget: {flops, values: {name: {value, origin, low, high}}, model, off, widths,
    outside}.

    values: those of published(), or of origin "fitted" where `laws` (of holistic_runs.fit) has a power law for them;
    low and high are the ends of the near-optimal band, None where not known. model: the nearest buildable one, its
    fields as the trainer names them; off: how far its triad is from the one asked for; widths: the feasible ones. Where
    no law gives the width, it is the middle one of these, as in phase 1. outside: whether the budget is outside the
    paper's. UserError where no model can be built.
    """
    if flops > LARGEST:
        raise UserError(f"--flops={flops:g}: expected at most {LARGEST:g}: the laws are of 1e18 to 3e20")
    values, band = published(flops)
    for name, law in (laws or {}).items():
        if law["best"]:
            add = 6 if name == "m_over_active" else 0
            at = lambda end: None if law[end] is None else add + holistic.power(law[end], flops)
            values[name], band[name] = (at("best"), "fitted"), (at("low"), at("high"), "fitted")
    held = holistic.setting(flops)
    m, x, y = (values[name][0] for name in ("flops_per_token", "m_over_active", "total_over_active"))
    triad = m, m / x, m / x * y
    found, nearest = holistic.buildable(triad, held)
    if not found:
        raise UserError(f"--flops={flops:g}: no model can be built: {holistic.why_none(triad, held, nearest)}")
    wanted = values["d_model"][0]
    width = holistic.median(found) if wanted is None else min(found, key=lambda d: abs(math.log(d / wanted)))
    shape, off = found[width]
    rows = {
        name: dict(
            value=value, origin=origin, low=band.get(name, (None, None))[0], high=band.get(name, (None, None))[1]
        )
        for name, (value, origin) in values.items()
    }
    outside = not holistic.BUDGETS[0] <= flops <= holistic.BUDGETS[-1]
    widths = [min(found), max(found)]
    return dict(
        flops=flops, values=rows, model=holistic.model_of(shape, flops), off=off, widths=widths, outside=outside
    )
