"""The architecture of a mixture for any budget, by the laws of Wan et al. (2026, arXiv 2603.21862).

A triad stands for an architecture: M, the FLOPs of one token (forward and backward), N_a, its active parameters, and N,
all of them; embedding, head, norms and routers left out. C = M D is the budget. Per layer (App. A): attention has
2 d head_dim (n_heads + n_kv_heads) weights, a dense block 3 d d_dense (d_dense = 3 d), an expert 3 d d_expert. With
n_dense dense blocks, n_moe blocks of n_experts routed experts of which a token uses top_k, and n_shared that all use:

  N_a = 2 d head_dim (n_heads + n_kv_heads) L + 3 d d_dense n_dense + 3 d d_expert (top_k + n_shared) n_moe
  N   = N_a + 3 d d_expert (n_experts - top_k) n_moe          L = n_dense + n_moe
  M   = 6 N_a + 6 seq_len n_heads head_dim L                  attention is causal: half of each row's scores

The paper prints Eq. 3 with one L too many after N_a; its App. Eq. 11-12 are as above. A counter that takes attention
over whole rows, like the trainer's, has 12 in place of the second 6 of M.

The search: 16 dimensions become (M, N_a, N, d) by this algebra. Phase 1 sets d to the median of its feasible range and
sweeps M/N_a and N/N_a at six budgets; phase 2 sweeps d at the six optima. holistic_runs.py fits the runs.

Axes: everything broadcasts together; `widths` has an axis of its own, first.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Json, Numbers, Opt
from fit.errors import UserError

BUDGETS = (1e18, 3e18, 1e19, 3e19, 1e20, 3e20)
M_OVER_ACTIVE, TOTAL_OVER_ACTIVE = (7, 8, 9, 11, 14, 17), (12, 16, 20, 22, 26, 30)  # phase 1's grid
# Table 2 and App. F.1, a column for each budget
HEAD_DIM, N_HEADS = (64, 64, 64, 128, 128, 128), (4, 8, 8, 8, 8, 16)
LEARNING_RATE = (1.20e-3, 1.00e-3, 8.28e-4, 6.95e-4, 5.74e-4, 4.82e-4)
BATCH_ROWS = (64, 80, 128, 160, 208, 288)
RATIO_USED = (19, 20, 21, 21, 22, 22)  # N/N_a
FLAT = (18, 25)  # N/N_a within which the loss is within 1% of the best, by the paper
TOKENS, FLOPS_PER_TOKEN = (22.8929, 0.4563), (0.04368, 0.5437)  # Eq. 2: D_opt and M_opt, a C^b
# M/N_a - 6 of the paper's tables of configurations, a C^b: 2% off at most. The paper shows this law only in a figure.
RECOVERED = (1479.0, -0.1394)
LARGEST = 1e27  # FLOPs: far beyond what the laws can know
OFF = 0.05  # how far M, N_a and N of a model may be from the triad asked for
median = statistics.median_low  # of feasible widths
Triad = tuple[Numbers, Numbers, Numbers]
ACTIVE_WIDTHS = 1, 8  # range of (top_k + n_shared) d_expert / d_model of a buildable model


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the search holds fixed: attention heads, experts and context, numbers or arrays; and for buildable models
    the numbers of which d_model and d_expert must be multiples, and the least d_expert. Defaults: the paper's."""

    n_heads: Numbers
    head_dim: Numbers
    n_kv_heads: Numbers
    n_experts: Numbers = 288
    top_k: Numbers = 8
    n_shared: Numbers = 1
    seq_len: Numbers = 8192
    width: int = 64
    expert_width: int = 16
    least_expert: int = 64

    def allows(self, d_expert: Numbers, d_model: Numbers) -> Array:
        """Whether experts of this width may be built."""
        d_expert = np.asarray(d_expert)
        share = (self.top_k + self.n_shared) * d_expert / d_model
        return (d_expert >= self.least_expert) & (share >= ACTIVE_WIDTHS[0]) & (share <= ACTIVE_WIDTHS[1])


@dataclasses.dataclass(frozen=True)
class Shape:
    """An architecture in a Setting; numbers or arrays, whole or not. d_dense None: 3 d_model, as the paper's."""

    d_model: Numbers
    n_dense: Numbers
    n_moe: Numbers
    d_expert: Numbers
    held: Setting
    d_dense: Opt = None

    def parts(self) -> Triad:
        """(attention, dense, experts): active parameters of each."""
        d, layers, held = self.d_model, self.n_dense + self.n_moe, self.held
        d_dense = 3 * d if self.d_dense is None else self.d_dense
        return (
            2 * d * held.head_dim * (held.n_heads + held.n_kv_heads) * layers,
            3 * d * d_dense * self.n_dense,
            3 * d * self.d_expert * (held.top_k + held.n_shared) * self.n_moe,
        )

    def triad(self) -> Triad:
        """(M, N_a, N)."""
        active, layers, held = sum(self.parts()), self.n_dense + self.n_moe, self.held
        idle = 3 * self.d_model * self.d_expert * (held.n_experts - held.top_k) * self.n_moe
        scores = 6 * held.seq_len * held.n_heads * held.head_dim * layers
        return 6 * active + scores, active, active + idle


def setting(flops: float) -> Setting:
    """The Setting that the paper has at the nearest of its budgets."""
    i = nearest_budget(flops)
    return Setting(N_HEADS[i], HEAD_DIM[i], N_HEADS[i] // 2)


def nearest_budget(flops: float) -> int:
    """Index of the nearest of BUDGETS."""
    return int(np.argmin(np.abs(np.log(BUDGETS) - math.log(flops))))


def invert(triad: Triad, d_model: Numbers, held: Setting) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """(L, n_dense, n_moe, d_expert), real numbers, of the architecture of this triad (M, N_a, N), width and Setting."""
    m, active, total = triad
    attention, dense, _ = Shape(d_model, 1, 0, 0, held).parts()  # of one block
    layers = (m - 6 * active) / (6 * held.seq_len * held.n_heads * held.head_dim)
    widths = (total - active) / (3 * d_model * (held.n_experts - held.top_k))  # d_expert n_moe
    used = 3 * d_model * (held.top_k + held.n_shared) * widths
    n_dense = (active - attention * layers - used) / dense
    n_moe = layers - n_dense
    return layers, n_dense, n_moe, widths / n_moe


def buildable(triad: Triad, held: Setting) -> tuple[dict[int, tuple[Shape, float]], tuple[Shape, float] | None]:
    """{d_model: (Shape, how far its triad is from the one asked for)} of the nearest model of whole blocks at each
    width that has one within OFF; and the nearest of all, within OFF or not: (Shape, how far), or None.

    The paper prints no rule; ours is: n_dense and n_moe >= 1, d_model a multiple of 64, d_expert of 16 and at least 64
    (as `held` says), and (top_k + n_shared) d_expert / d_model within ACTIVE_WIDTHS. It tries the two whole numbers
    below and above the depths of `invert`, and the two expert widths around the one that N leaves.
    """
    _, active, total = triad
    used, experts = held.top_k + held.n_shared, (total - active) / (3 * (held.n_experts - held.top_k))
    largest = 1.5 * math.sqrt(used * experts / ACTIVE_WIDTHS[0])  # n_moe >= 1 and d_expert >= d_model / used
    widths = np.arange(held.width, largest + held.width, held.width).reshape(-1, 1, 1, 1)
    near = np.arange(-1, 3)
    layers, n_dense, _, _ = invert(triad, widths, held)
    n_dense = np.maximum(1, np.floor(n_dense) + near.reshape(-1, 1, 1))
    n_moe = np.floor(layers) + near.reshape(-1, 1) - n_dense
    fits = n_moe >= 1
    n_moe = np.where(fits, n_moe, 1)
    d_expert = held.expert_width * (np.floor(experts / widths / n_moe / held.expert_width) + np.arange(2))
    made = Shape(widths, n_dense, n_moe, d_expert, held).triad()
    off = np.max(np.broadcast_arrays(*(np.abs(a / b - 1) for a, b in zip(made, triad, strict=True))), axis=0)
    off = np.where(fits & held.allows(d_expert, widths), off, np.inf)
    tried = np.stack(np.broadcast_arrays(widths, n_dense, n_moe, d_expert, off)).reshape(5, len(widths), -1)
    best = np.take_along_axis(tried, np.argmin(tried[4], axis=1)[None, :, None], axis=2)[:, :, 0].T
    built = [(Shape(*map(int, numbers), held=held), float(off)) for *numbers, off in best if np.isfinite(off)]
    found = {int(shape.d_model): (shape, off) for shape, off in built if off <= OFF}
    return found, min(built, key=lambda model: model[1], default=None)


def why_none(triad: Triad, held: Setting, nearest: tuple[Shape, float] | None) -> str:
    """One sentence: why no buildable model is within OFF of the triad."""
    widths = np.arange(8.0, 20_000, 8)
    _, n_dense, _, d_expert = invert(triad, widths, held)
    most = np.max(n_dense, where=held.allows(d_expert, widths), initial=-math.inf)
    if not math.isfinite(most):
        reason = "no width has experts of a width allowed"
    elif most < 1:
        reason = f"at every width whose experts are allowed there is room for {max(most, 0):.2f} dense blocks at most"
    else:
        reason = "whole numbers of blocks miss it"
    if nearest is None:
        return reason
    shape, off = nearest
    return (
        f"{reason}; the nearest model (d_model {shape.d_model}, {shape.n_dense} + {shape.n_moe} blocks, d_expert "
        f"{shape.d_expert}) is {off:.1%} off"
    )


def power(law: Sequence[float], flops: float) -> float:
    """a C^b of (a, b)."""
    return law[0] * flops ** law[1]


def triad_of(flops: float, m_over_active: float, total_over_active: float) -> Triad:
    """(M, N_a, N) at a budget by Eq. 2 and the two ratios."""
    m = power(FLOPS_PER_TOKEN, flops)
    return m, m / m_over_active, m / m_over_active * total_over_active


def model_of(shape: Shape, flops: float) -> Json:
    """A whole Shape as the trainer's fields, its counts, and the tokens of the budget."""
    m, active, total = map(float, shape.triad())
    held = shape.held
    blocks = dict(d_model=shape.d_model, n_blocks=shape.n_dense + shape.n_moe, n_dense_blocks=shape.n_dense)
    widths = dict(d_ff=3 * shape.d_model, d_expert=shape.d_expert)
    experts = dict(n_experts=held.n_experts, top_k=held.top_k, n_shared_experts=held.n_shared)
    heads = dict(n_heads=held.n_heads, n_kv_heads=held.n_kv_heads, head_dim=held.head_dim)
    counts = dict(flops_per_token=m, n_active=active, n_total=total)
    counts |= dict(m_over_active=m / active, total_over_active=total / active, n_tokens=round(flops / m))
    return blocks | widths | experts | heads | counts


def published(flops: float) -> dict[str, Json]:
    """{name: {value, origin, low, high}} of what determines a budget's architecture. origin: "published", "recovered"
    from tables of configurations, or "missing" (a value of None). low, high: the ends of the near-optimal band, None
    where not known.

    Between the six budgets, values of their table are interpolated in ln C; beyond them they keep the value at the end,
    except for the learning rate and the batch, which continue from there along the power laws through the table.
    """
    log_c, grid, held = math.log(flops), np.log(BUDGETS), setting(flops)

    def of_table(values: Sequence[float] | Array) -> float:
        """The table's value at the budget, that at the nearer end beyond it."""
        return float(np.interp(log_c, grid, values))

    def line(values: Sequence[float]) -> float:
        slope = np.polyfit(grid, np.log(values), 1)[0]
        return math.exp(of_table(np.log(values)) + slope * (log_c - np.clip(log_c, grid[0], grid[-1])))

    names = ("n_heads", "n_kv_heads", "head_dim", "n_experts", "top_k", "n_shared")
    values: Json = dict(n_tokens=power(TOKENS, flops), flops_per_token=power(FLOPS_PER_TOKEN, flops))
    values |= dict(m_over_active=6 + power(RECOVERED, flops), total_over_active=of_table(RATIO_USED), d_model=None)
    values |= {name: getattr(held, name) for name in names}
    values |= dict(learning_rate=line(LEARNING_RATE), batch_rows=round(line(BATCH_ROWS)))
    rows = {name: dict(value=value, origin="published", low=None, high=None) for name, value in values.items()}
    rows["m_over_active"] |= dict(origin="recovered")
    rows["total_over_active"] |= dict(low=FLAT[0], high=FLAT[1])
    rows["d_model"] |= dict(origin="missing")
    return rows


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
            above = 6 if name == "m_over_active" else 0
            ends = {end: above + power(law[end], flops) if law[end] else None for end in ("best", "low", "high")}
            values[name] = dict(value=ends["best"], origin="fitted", low=ends["low"], high=ends["high"])
    m, m_over_active, total_over_active, wanted = (
        values[n]["value"] for n in ("flops_per_token", "m_over_active", "total_over_active", "d_model")
    )
    triad = (m, m / m_over_active, m / m_over_active * total_over_active)
    held = setting(flops)
    models, nearest = buildable(triad, held)
    if not models:
        raise UserError(f"--flops={flops:g}: no model can be built: {why_none(triad, held, nearest)}")
    width = median(models) if wanted is None else min(models, key=lambda d: abs(math.log(d / wanted)))
    shape, off = models[width]
    return dict(
        flops=flops,
        values=values,
        model=model_of(shape, flops),
        off=off,
        widths=[min(models), max(models)],
        outside=not BUDGETS[0] <= flops <= BUDGETS[-1],
    )
