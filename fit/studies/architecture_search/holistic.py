"""The architecture of a mixture for any budget, by the laws of Wan et al. (2026, arXiv 2603.21862).

A triad describes an architecture: M, the FLOPs of one token (forward and backward), N_a, its active parameters, and N,
all of them; embedding, head, norms and routers left out. C = M D is the budget. Per layer (App. A): attention has
2 d head_dim (n_heads + n_kv_heads) weights, a dense block 3 d d_dense (d_dense = 3 d), an expert 3 d d_expert. With
n_dense dense blocks, n_moe blocks of n_experts routed experts of which a token uses top_k, and n_shared that all use:

  N_a = 2 d head_dim (n_heads + n_kv_heads) L + 3 d d_dense n_dense + 3 d d_expert (top_k + n_shared) n_moe
  N   = N_a + 3 d d_expert (n_experts - top_k) n_moe          L = n_dense + n_moe
  M   = 6 N_a + 6 seq_len n_heads head_dim L                  attention is causal: half of each row's scores

ModelShape (fit/model/shape.py) counts the same, where vocab_size is 0. `invert` solves for the depths.
The paper prints Eq. 3 with one L too many after N_a; its App. Eq. 11-12 are as above. A counter that takes attention
over whole rows, like the trainer's, has 12 instead of the second 6 in M.

The search: 16 dimensions become (M, N_a, N, d) by this algebra. Phase 1 sets d to the median of its feasible range and
sweeps M/N_a and N/N_a at six budgets; phase 2 sweeps d at the six optima. holistic_runs.py fits the runs.

Axes: everything broadcasts together; `widths` has an axis of its own, first.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Json, Numbers
from fit.errors import UserError
from fit.model.shape import ModelShape

BUDGETS = (1e18, 3e18, 1e19, 3e19, 1e20, 3e20)
# phase 1's grid
M_OVER_ACTIVE = (7, 8, 9, 11, 14, 17)
TOTAL_OVER_ACTIVE = (12, 16, 20, 22, 26, 30)
# Table 2 and App. F.1, a column for each budget
HEAD_DIM = (64, 64, 64, 128, 128, 128)
N_HEADS = (4, 8, 8, 8, 8, 16)
LEARNING_RATE = (1.20e-3, 1.00e-3, 8.28e-4, 6.95e-4, 5.74e-4, 4.82e-4)
BATCH_ROWS = (64, 80, 128, 160, 208, 288)
RATIO_USED = (19, 20, 21, 21, 22, 22)  # N/N_a
FLAT = (18, 25)  # N/N_a within which the loss is within 1% of the best, by the paper
# Eq. 2: D_opt and M_opt, a C^b
TOKENS = (22.8929, 0.4563)
FLOPS_PER_TOKEN = (0.04368, 0.5437)
# M/N_a - 6 of the paper's tables of configurations, a C^b: 2% off at most. The paper shows this law only in a figure.
RECOVERED = (1479.0, -0.1394)
LARGEST = 1e27  # FLOPs: far beyond what the laws can know
OFF = 0.05  # how far M, N_a and N of a model may be from the triad asked for
median = statistics.median_low  # of feasible widths
Triad = tuple[Numbers, Numbers, Numbers]
Near = tuple[ModelShape, float]  # a model of whole numbers, and how far its triad is from the one asked for, as a share
MODEL_FIELDS = (
    "d_model",
    "n_blocks",
    "n_dense_blocks",
    "d_ff",
    "d_expert",
    "n_experts",
    "top_k",
    "n_shared_experts",
    "n_heads",
    "n_kv_heads",
    "head_dim",
)
ACTIVE_WIDTHS = (1, 8)  # range of (top_k + n_shared) d_expert / d_model of a buildable model


@dataclasses.dataclass(frozen=True)
class SearchGrid:
    """Which models of a search are built. The defaults are the paper's.

    Attributes:
      seq_len: tokens of context.
      width_multiple, expert_width_multiple: d_model and d_expert are multiples of these.
      least_expert: the least d_expert.
    """

    seq_len: int = 8192
    width_multiple: int = 64
    expert_width_multiple: int = 16
    least_expert: int = 64

    def allows(self, shape: ModelShape) -> Array:
        """Whether experts of this width may be built."""
        d_expert = np.asarray(shape.d_expert)
        active_width = (shape.top_k + shape.n_shared_experts) * d_expert / shape.d_model
        least, most = ACTIVE_WIDTHS
        return (d_expert >= self.least_expert) & (active_width >= least) & (active_width <= most)


PAPER_GRID = SearchGrid()


def family(
    n_heads: int, head_dim: int, n_kv_heads: int, n_experts: int = 288, top_k: int = 8, n_shared_experts: int = 1
) -> ModelShape:
    """The fixed sizes of a search: heads and experts. Its widths and depths are 0. The defaults are the paper's."""
    return ModelShape(
        d_model=0,
        n_blocks=0,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        d_ff=0,
        vocab_size=0,
        n_experts=n_experts,
        top_k=top_k,
        n_shared_experts=n_shared_experts,
    )


def sized(fixed: ModelShape, d_model: Numbers, n_dense: Numbers, n_moe: Numbers, d_expert: Numbers) -> ModelShape:
    """The shape of a family with these widths and depths, whole or not, and d_ff = 3 d_model."""
    return dataclasses.replace(
        fixed, d_model=d_model, d_ff=3 * d_model, n_blocks=n_dense + n_moe, n_dense_blocks=n_dense, d_expert=d_expert
    )


def triad_of_shape(shape: ModelShape, seq_len: Numbers) -> Triad:
    """(M, N_a, N) of a shape whose vocab_size is 0, so that embedding and head do not count."""
    return shape.flops_per_token(seq_len), shape.n_active, shape.n_total


def family_of(flops: float) -> ModelShape:
    """The heads and experts that the paper has at the nearest of its budgets."""
    i = nearest_budget(flops)
    return family(N_HEADS[i], HEAD_DIM[i], N_HEADS[i] // 2)


def nearest_budget(flops: float) -> int:
    """Index of the nearest of BUDGETS."""
    return int(np.argmin(np.abs(np.log(BUDGETS) - math.log(flops))))


def invert(
    triad: Triad, d_model: Numbers, fixed: ModelShape, seq_len: int
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Finds the architecture of a triad (the module's equations, solved for depths and expert width).

    Args:
      triad: (M, N_a, N).
      d_model: its width.
      fixed: the family that it is of.
      seq_len: tokens of context.

    Returns:
      (L, n_dense, n_moe, d_expert), real numbers.
    """
    m, n_active, n_total = triad
    block = sized(fixed, d_model, 1, 0, 0)
    n_blocks = (m - 6 * n_active) / (6 * seq_len * fixed.query_units)
    # d_expert n_moe
    all_expert_widths = (n_total - n_active) / (3 * d_model * (fixed.n_experts - fixed.top_k))
    active_experts = 3 * d_model * (fixed.top_k + fixed.n_shared_experts) * all_expert_widths
    n_dense = (n_active - block.attention_weights * n_blocks - active_experts) / block.layer_weights
    n_moe = n_blocks - n_dense
    return n_blocks, n_dense, n_moe, all_expert_widths / n_moe


def buildable(triad: Triad, fixed: ModelShape, grid: SearchGrid = PAPER_GRID) -> tuple[dict[int, Near], Near | None]:
    """Finds models of whole blocks near a triad.

    The paper prints no rule. Ours is: n_dense and n_moe >= 1, d_model a multiple of 64, d_expert a multiple of 16 and
    at least 64 (as the grid says), and (top_k + n_shared) d_expert / d_model within ACTIVE_WIDTHS. At each width it
    tries the two whole numbers below and above the depths of `invert`, and the two expert widths around the one that N
    leaves.

    Args:
      triad: (M, N_a, N).
      fixed: the family of the models.
      grid: which of them are built.

    Returns:
      ({d_model: the nearest model}, of each width that has one within OFF; the nearest of all, within OFF or not, or
      None).
    """
    _, n_active, n_total = triad
    n_used = fixed.top_k + fixed.n_shared_experts
    # d_model d_expert n_moe; with n_moe >= 1 and d_expert >= d_model / n_used it bounds the width
    expert_area = (n_total - n_active) / (3 * (fixed.n_experts - fixed.top_k))
    largest = 1.5 * math.sqrt(n_used * expert_area / ACTIVE_WIDTHS[0])
    multiple = grid.width_multiple
    # axes: [widths, n_dense, n_blocks, d_expert]
    widths = np.arange(multiple, largest + multiple, multiple).reshape(-1, 1, 1, 1)
    near = np.arange(-1, 3)
    n_blocks, n_dense, _, _ = invert(triad, widths, fixed, grid.seq_len)
    n_dense = np.maximum(1, np.floor(n_dense) + near.reshape(-1, 1, 1))
    n_moe = np.floor(n_blocks) + near.reshape(-1, 1) - n_dense
    has_mixture = n_moe >= 1
    n_moe = np.where(has_mixture, n_moe, 1)
    expert_multiple = grid.expert_width_multiple
    d_expert = expert_multiple * (np.floor(expert_area / widths / n_moe / expert_multiple) + np.arange(2))
    shapes = sized(fixed, widths, n_dense, n_moe, d_expert)
    off = _off(triad_of_shape(shapes, grid.seq_len), triad)
    off = np.where(has_mixture & grid.allows(shapes), off, np.inf)
    candidates = np.stack(np.broadcast_arrays(widths, n_dense, n_moe, d_expert, off)).reshape(5, len(widths), -1)
    nearest = np.argmin(candidates[4], axis=1)[None, :, None]
    best = np.take_along_axis(candidates, nearest, axis=2)[:, :, 0].T
    models = [(sized(fixed, *map(int, sizes)), float(off)) for *sizes, off in best if np.isfinite(off)]
    within = {int(shape.d_model): (shape, off) for shape, off in models if off <= OFF}
    return within, min(models, key=lambda model: model[1], default=None)


def _off(triad: Triad, wanted: Triad) -> Array:
    """How far a triad is from the wanted one: the largest share of the three."""
    shares = (np.abs(a / b - 1) for a, b in zip(triad, wanted, strict=True))
    return np.max(np.broadcast_arrays(*shares), axis=0)


def why_none(triad: Triad, fixed: ModelShape, nearest: Near | None, grid: SearchGrid = PAPER_GRID) -> str:
    """Says why no buildable model is within OFF of a triad, in one sentence.

    Args:
      triad, fixed, grid: as for `buildable`.
      nearest: its second result.
    """
    widths = np.arange(8.0, 20_000, 8)
    _, n_dense, n_moe, d_expert = invert(triad, widths, fixed, grid.seq_len)
    is_allowed = grid.allows(sized(fixed, widths, n_dense, n_moe, d_expert))
    most = np.max(n_dense, where=is_allowed, initial=-math.inf)
    if not math.isfinite(most):
        reason = "no width has experts of a width allowed"
    elif most < 1:
        reason = f"at every width whose experts are allowed there is room for {max(most, 0):.2f} dense blocks at most"
    else:
        reason = "whole numbers of blocks miss it"
    if nearest is None:
        return reason
    shape, off = nearest
    blocks = f"{shape.n_dense_blocks} + {shape.n_mixtures} blocks"
    return (
        f"{reason}; the nearest model (d_model {shape.d_model}, {blocks}, d_expert {shape.d_expert}) is {off:.1%} off"
    )


def power(law: Sequence[float], flops: float) -> float:
    """a C^b of (a, b)."""
    return law[0] * flops ** law[1]


def triad_of(flops: float, m_over_active: float, total_over_active: float) -> Triad:
    """(M, N_a, N) at a budget by Eq. 2 and the two ratios."""
    m = power(FLOPS_PER_TOKEN, flops)
    return m, m / m_over_active, m / m_over_active * total_over_active


def model_of(shape: ModelShape, flops: float, seq_len: int) -> Json:
    """A shape of whole numbers as the trainer's fields, its counts, and the tokens of the budget."""
    m, n_active, n_total = map(float, triad_of_shape(shape, seq_len))
    fields = {name: getattr(shape, name) for name in MODEL_FIELDS}
    return fields | dict(
        flops_per_token=m,
        n_active=n_active,
        n_total=n_total,
        m_over_active=m / n_active,
        total_over_active=n_total / n_active,
        n_tokens=round(flops / m),
    )


def published(flops: float) -> dict[str, Json]:
    """The quantities that determine the architecture for a budget, as the paper publishes them.

    Between the six budgets, values of their table are interpolated in ln C. Beyond them they keep the value at the end.
    Only the learning rate and the batch continue from there along the power laws through the table.

    Returns:
      {name: {value, origin, low, high}}. origin: "published", "recovered" from tables of configurations, or "missing"
      (a value of None). low, high: the ends of the near-optimal band, None where not known.
    """
    log_flops = math.log(flops)
    grid = np.log(BUDGETS)
    fixed = family_of(flops)

    def of_table(values: Sequence[float] | Array) -> float:
        """The table's value at the budget, that at the nearer end beyond it."""
        return float(np.interp(log_flops, grid, values))

    def extended(values: Sequence[float]) -> float:
        """The table's value, continued beyond it by the power law through the table."""
        slope = np.polyfit(grid, np.log(values), 1)[0]
        beyond = log_flops - np.clip(log_flops, grid[0], grid[-1])
        return math.exp(of_table(np.log(values)) + slope * beyond)

    values: Json = dict(
        n_tokens=power(TOKENS, flops),
        flops_per_token=power(FLOPS_PER_TOKEN, flops),
        m_over_active=6 + power(RECOVERED, flops),
        total_over_active=of_table(RATIO_USED),
        d_model=None,
        n_heads=fixed.n_heads,
        n_kv_heads=fixed.n_kv_heads,
        head_dim=fixed.head_dim,
        n_experts=fixed.n_experts,
        top_k=fixed.top_k,
        n_shared=fixed.n_shared_experts,
        learning_rate=extended(LEARNING_RATE),
        batch_rows=round(extended(BATCH_ROWS)),
    )
    rows = {name: dict(value=value, origin="published", low=None, high=None) for name, value in values.items()}
    rows["m_over_active"] |= dict(origin="recovered")
    rows["total_over_active"] |= dict(low=FLAT[0], high=FLAT[1])
    rows["d_model"] |= dict(origin="missing")
    return rows


def architecture(flops: float, laws: Json | None = None) -> Json:
    """The complete architecture for a budget.

    Args:
      flops: the budget, M D.
      laws: of holistic_runs.fit, which take the place of the published ones.

    Returns:
      {flops, values, model, off, widths, outside}. values: those of published(), or of origin "fitted" where `laws`
      has a power law for them. model: the nearest buildable one, its fields as the trainer names them. off: how far its
      triad is from the one asked for. widths: the feasible ones. Where no law gives the width, it is the middle one of
      these, as in phase 1. outside: whether the budget is outside the paper's.

    Raises:
      UserError: where no model can be built.
    """
    if flops > LARGEST:
        raise UserError(f"--flops={flops:g}: expected at most {LARGEST:g}: the laws are of 1e18 to 3e20")
    values = published(flops)
    for name, law in (laws or {}).items():
        if law["best"]:
            values[name] = _fitted(name, law, flops)
    m = values["flops_per_token"]["value"]
    n_active = m / values["m_over_active"]["value"]
    triad = (m, n_active, n_active * values["total_over_active"]["value"])
    fixed = family_of(flops)
    models, nearest = buildable(triad, fixed)
    if not models:
        raise UserError(f"--flops={flops:g}: no model can be built: {why_none(triad, fixed, nearest)}")
    wanted = values["d_model"]["value"]
    width = median(models) if wanted is None else min(models, key=lambda d: abs(math.log(d / wanted)))
    shape, off = models[width]
    return dict(
        flops=flops,
        values=values,
        model=model_of(shape, flops, PAPER_GRID.seq_len),
        off=off,
        widths=[min(models), max(models)],
        outside=not BUDGETS[0] <= flops <= BUDGETS[-1],
    )


def _fitted(name: str, law: Json, flops: float) -> Json:
    """The entry of `values` of a fitted law: {best, low, high}, each a power law or None."""
    above = 6 if name == "m_over_active" else 0

    def value_of(end: str) -> float | None:
        """The value of one of the three power laws; None where there is none."""
        return above + power(law[end], flops) if law[end] else None

    return dict(value=value_of("best"), origin="fitted", low=value_of("low"), high=value_of("high"))
