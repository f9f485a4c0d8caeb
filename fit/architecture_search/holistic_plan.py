"""The complete architecture of a budget by the holistic laws, and the origin of each number (holistic.py)."""

import math
from collections.abc import Sequence

import numpy as np

from fit.aliases import Json
from fit.architecture_search import holistic
from fit.errors import UserError

LARGEST = 1e27  # FLOPs: far beyond what the laws can know


def _row(value: float | None, origin: str = "published", low: float | None = None, high: float | None = None) -> Json:
    return dict(value=value, origin=origin, low=low, high=high)


def published(flops: float) -> dict[str, Json]:
    """{name: {value, origin, low, high}} of what determines a budget's architecture. origin: "published", "recovered"
    from tables of configurations, or "missing" (a value of None). low, high: the ends of the near-optimal band, None
    where not known.

    Between the six budgets, values of their table are interpolated in ln C; beyond them they keep the value at the end,
    except for the learning rate and the batch, which continue from there along the power laws through the table.
    """
    log_c, grid = math.log(flops), np.log(holistic.BUDGETS)
    of_table = lambda values: float(np.interp(log_c, grid, values))

    def line(values: Sequence[float]) -> float:
        slope = np.polyfit(grid, np.log(values), 1)[0]
        return math.exp(of_table(np.log(values)) + slope * (log_c - np.clip(log_c, grid[0], grid[-1])))

    held = holistic.setting(flops)
    return dict(
        n_tokens=_row(holistic.power(holistic.TOKENS, flops)),
        flops_per_token=_row(holistic.power(holistic.FLOPS_PER_TOKEN, flops)),
        m_over_active=_row(6 + holistic.power(holistic.RECOVERED, flops), "recovered"),
        total_over_active=_row(of_table(holistic.RATIO_USED), "published", *holistic.FLAT),
        d_model=_row(None, "missing"),
        n_heads=_row(held.n_heads),
        n_kv_heads=_row(held.n_heads // 2),
        head_dim=_row(held.head_dim),
        n_experts=_row(held.n_experts),
        top_k=_row(held.top_k),
        n_shared=_row(held.n_shared),
        learning_rate=_row(line(holistic.LEARNING_RATE)),
        batch_rows=_row(round(line(holistic.BATCH_ROWS))),
    )


def architecture(flops: float, laws: Json | None = None) -> Json:
    """The complete architecture for a budget: {flops, values, model, off, widths, outside}.

    values: those of published(), or of origin "fitted" where `laws` (of holistic_runs.fit) has a power law for them.
    model: the nearest buildable one, its fields as the trainer names them; off: how far its triad is from the one asked
    for; widths: the feasible ones. Where no law gives the width, it is the middle one of these, as in phase 1. outside:
    whether the budget is outside the paper's. UserError where no model can be built.
    """
    if flops > LARGEST:
        raise UserError(f"--flops={flops:g}: expected at most {LARGEST:g}: the laws are of 1e18 to 3e20")
    values = published(flops)
    for name, law in (laws or {}).items():
        if law["best"]:
            add = 6 if name == "m_over_active" else 0
            at = lambda end: None if law[end] is None else add + holistic.power(law[end], flops)
            values[name] = _row(at("best"), "fitted", at("low"), at("high"))
    held = holistic.setting(flops)
    m, x, y = (values[name]["value"] for name in ("flops_per_token", "m_over_active", "total_over_active"))
    triad = m, m / x, m / x * y
    found, nearest = holistic.buildable(triad, held)
    if not found:
        raise UserError(f"--flops={flops:g}: no model can be built: {holistic.why_none(triad, held, nearest)}")
    wanted = values["d_model"]["value"]
    width = holistic.median(found) if wanted is None else min(found, key=lambda d: abs(math.log(d / wanted)))
    shape, off = found[width]
    return dict(
        flops=flops,
        values=values,
        model=holistic.model_of(shape, flops),
        off=off,
        widths=[min(found), max(found)],
        outside=not holistic.BUDGETS[0] <= flops <= holistic.BUDGETS[-1],
    )
