"""The speeds of all models that could be the best in a range of hours, as plain values: what a page needs to plan."""

import numpy as np

from fit.aliases import Array, Floats, Json
from fit.fitted_law.law import Law
from fit.planning import solve
from fit.planning.candidates import Candidates
from fit.planning.constraints import Constraints
from fit.shape.architecture import Architecture

DIGITS = 7  # significant, of seconds and tokens


def speeds(
    law: Law, architecture: Architecture, constraints: Constraints, experts: Floats, hours: tuple[float, float]
) -> list[Json]:
    """The fastest candidates of each shape, for each number of experts.

    The tokens of a shape in h hours are the largest min(3600 h / seconds - served, most, cap) of its candidates for
    which that is at least `least`, where `served` is a third of the inference tokens. A curve against size is that of
    the most tokens of any shape as large or larger.

    Args:
      law: What tells losses, and which recipe a run has.
      architecture: How models are built.
      constraints: With chips and a clock, whose hours are not read.
      experts: As the law counts them.
      hours: The least and the most that are asked about.

    Returns:
      [{n_experts, law_experts, n_active, n_total, d_model, n_blocks, memory_bytes: lists over shapes, by size;
      shape, seconds, least, most, chips, batch_tokens: lists over candidates, of which `shape` is the index}], without
      the numbers of experts that the chips do not train.
    """
    problem = solve.problem_of(law, architecture, constraints)
    clock = constraints.clock
    assert clock is not None
    n_spans = max(1, int(np.ceil(np.log2(hours[1] / hours[0]) / np.log2(solve.SPAN))))
    ends = np.geomspace(*hours, n_spans + 1)
    rows = []
    for e in experts:
        parts: list[Candidates] = []
        for low, high in zip(ends[:-1], ends[1:], strict=True):
            parts += solve.near(problem, clock.found, float(e), (float(low), float(high)))
        if parts:
            rows.append(_row(float(e), parts))
    return rows


def _row(e: float, parts: list[Candidates]) -> Json:
    """The candidates of one number of experts. parts: of both recipes, perhaps of several spans of hours."""
    shapes: dict[tuple, int] = {}
    columns: list[list[float]] = []
    found: dict[tuple, list[float]] = {}
    for part in parts:
        models = part.models
        d_model = np.asarray(models.shape.d_model)
        n_blocks = np.asarray(models.shape.n_blocks)
        for i in _fastest(part):
            row = int(part.row[i])
            sizes = (float(models.n_active[row]), float(d_model[row]), float(n_blocks[row]))
            if sizes not in shapes:
                shapes[sizes] = len(columns)
                columns.append([*sizes, float(models.n_total[row]), float(models.memory_bytes[row])])
            values = [part.seconds_per_token[i], part.least[i], part.most[i], part.chips[i], part.batch_tokens[i]]
            key = (shapes[sizes], *values)
            found[key] = [shapes[sizes], *(_rounded(value) for value in values)]
    order = np.argsort([column[0] for column in columns], kind="stable")
    place = np.argsort(order)
    n_active, widths, depths, n_total, memory_bytes = np.array(columns)[order].T
    candidates = sorted([int(place[int(index)]), *values] for index, *values in found.values())
    index, seconds, least, most, chips, batch_tokens = zip(*candidates, strict=True)
    return dict(
        n_experts=e,
        law_experts=parts[0].models.law_experts,
        n_active=n_active.tolist(),
        n_total=n_total.tolist(),
        d_model=widths.tolist(),
        n_blocks=depths.tolist(),
        memory_bytes=memory_bytes.tolist(),
        shape=list(index),
        seconds=list(seconds),
        least=list(least),
        most=[None if not np.isfinite(value) else value for value in most],
        chips=list(chips),
        batch_tokens=list(batch_tokens),
    )


def _fastest(part: Candidates) -> Array:
    """The candidates that no other one of their shape beats: that is as fast on all tokens on which they may be."""
    order = np.lexsort((part.seconds_per_token, part.row))
    kept: list[int] = []
    start = 0
    rows = part.row[order]
    while start < len(order):
        stop = int(np.searchsorted(rows, rows[start], side="right"))
        of_shape: list[int] = []
        for i in order[start:stop].tolist():
            is_beaten = any(part.least[j] <= part.least[i] and part.most[j] >= part.most[i] for j in of_shape)
            if not is_beaten:
                of_shape.append(i)
        kept += of_shape
        start = stop
    return np.array(kept, int)


def _rounded(value: float) -> float:
    """A number with few digits."""
    return float(f"{float(value):.{DIGITS}g}")
