"""What runs of a search over architectures say: the laws of holistic.py fitted, their near-optimal bands, whether
the width keeps the rank of architectures, and what M alone would have missed.

At one budget, with x = M/N_a, y = N/N_a and the width d (Wan et al. 2026, Sec. 4):

  phase 1   L = a / (x - 6) + b x + a' / (y - 1) + b' / (y_max - y) + c
            x* = 6 + sqrt(a / b)     y* = (1 + r y_max) / (1 + r), r = sqrt(a' / b')
  phase 2   L = quadratic in d

The paper fits x and y apart; here one least-squares fit of the grid has both, so no choice of the other ratio enters.
y_max = (n_experts + n_shared) / (top_k + n_shared); we infer that its C1 and C2 are 1 and y_max. Across budgets: y*,
d*, the ends of the band of d and x* - 6 are a C^b.

Axes: n runs; everything else is a number for each budget.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np

from fit.aliases import Array, Json
from fit.architecture_search import holistic
from fit.data import table as tables
from fit.equal_flops.isoflop import least_squares, power_law
from fit.errors import UserError
from fit.fitted_law import table_architecture

BAND = 1e-3  # near-optimal: within this share of the least loss
SAME = 0.15  # budgets within this share of each other are one


@dataclasses.dataclass
class Search:
    """Runs of a search, arrays [n]: budget, M, N_a, N, their ratios x and y, width, loss; y_max, a number."""

    path: str
    flops: np.ndarray
    m: np.ndarray
    active: np.ndarray
    total: np.ndarray
    width: np.ndarray
    loss: np.ndarray
    y_max: float

    def __post_init__(self) -> None:
        self.x = self.m / self.active
        self.y = self.total / self.active

    @property
    def budget(self) -> float:
        """FLOPs of runs of one budget."""
        return float(np.exp(np.mean(np.log(self.flops))))

    def part(self, rows: Array) -> Self:
        """The runs where rows says so."""
        arrays = (self.flops, self.m, self.active, self.total, self.width, self.loss)
        return type(self)(self.path, *(v[rows] for v in arrays), self.y_max)

    def by_budget(self) -> Iterator[tuple[Self, Array]]:
        """(the runs of a budget, bool [n]: which of these they are) of each budget, ascending."""
        labels = budgets(self.flops)
        for label in range(labels.max() + 1):
            yield self.part(labels == label), labels == label


def read(runs: object) -> Search:
    """The Search in a table of runs (what fit.read takes, or a Search) as launch.collect writes it: d_model, n_blocks,
    n_heads, n_experts, seq_len, n_tokens, loss; head_dim (d_model / n_heads), n_kv_heads (n_heads), top_k (1),
    n_shared_experts (0), d_ff (3 d_model), d_expert (d_ff), n_dense_blocks (0) where they differ from the value in
    brackets. Each is a column or stands in the column overrides. UserError on a bad value."""
    if isinstance(runs, Search):
        return runs
    runs = tables.read(runs)
    held, c = table_architecture.model_overrides(runs), dict(d_model=runs.numbers("d_model", (1, 1e7)))
    for name, default in (
        table_architecture.DEFAULTS | dict.fromkeys(("n_heads", "n_experts", "n_blocks", "seq_len"))
    ).items():
        low = 0 if name in ("n_dense_blocks", "n_shared_experts") else 1
        given = runs.column(name) if name in runs else [None] * len(runs)
        values = [held[i].get(name) if v in (None, "") else v for i, v in enumerate(given)]
        values = [None if low and str(v) == "0" else v for v in values]  # 0 stands for the default
        if default is None and None in values:
            row = runs.rows[values.index(None)]
            raise UserError(f"{runs.path}, row {row}: {name} stands neither in a column nor in overrides")
        usual = np.broadcast_to(default(c) if default else np.nan, len(runs)).tolist()
        filled = [usual[i] if v is None else v for i, v in enumerate(values)]
        c[name] = dataclasses.replace(runs, columns={name: filled}, names={}).numbers(name, (low, 1e9))
    n_dense = np.where(c["n_experts"] > 1, c["n_dense_blocks"], c["n_blocks"])
    experts = c["n_experts"], c["top_k"], c["n_shared_experts"]
    setting = holistic.Setting(c["n_heads"], c["head_dim"], c["n_kv_heads"], *experts, c["seq_len"])
    shape = holistic.Shape(c["d_model"], n_dense, c["n_blocks"] - n_dense, c["d_expert"], setting, c["d_ff"])
    m, active, total = (np.asarray(v) for v in shape.triad())
    y_max = float(np.max((setting.n_experts + setting.n_shared) / (setting.top_k + setting.n_shared)))
    return Search(runs.path, m * runs.numbers("n_tokens"), m, active, total, c["d_model"], runs.numbers("loss"), y_max)


def budgets(flops: Array) -> Array:
    """Labels int [n] of the runs of one budget: those whose neighbours in C lie within SAME."""
    order = np.argsort(flops)
    labels = np.empty(len(flops), int)
    labels[order] = np.cumsum(np.diff(np.log(flops[order]), prepend=np.log(flops.min())) > SAME)
    return labels


def fit_ratios(runs: Search) -> Json | None:
    """Phase 1 at one budget: {x, y: {best, band}, coefficients, rmse, runs}; x or y is None where no minimum lies
    within the ratios run; all is None where these are too few. Dense models, which have no y above 1, are left out."""
    runs = runs.part((runs.y > 1 + 1e-6) & (runs.y < runs.y_max - 1e-6))
    if len(runs.loss) < 6 or min(len(np.unique(np.round(v, 2))) for v in (runs.x, runs.y)) < 3:
        return None
    x, y, y_max = runs.x, runs.y, runs.y_max
    (a, b, a2, b2, c), rmse = least_squares((1 / (x - 6), x, 1 / (y - 1), 1 / (y_max - y), np.ones(len(x))), runs.loss)
    out: Json = dict(coefficients=[float(v) for v in (a, b, a2, b2, c)], rmse=rmse, runs=len(x), x=None, y=None)
    of_x = 6 + np.sqrt(a / b) if a > 0 and b > 0 else np.nan
    of_y = (1 + np.sqrt(a2 / b2) * y_max) / (1 + np.sqrt(a2 / b2)) if a2 > 0 and b2 > 0 else np.nan
    of_x, of_y = (best if v.min() <= best <= v.max() else None for v, best in ((x, of_x), (y, of_y)))
    x_at_least = x if of_x is None else of_x
    y_at_least = y if of_y is None else of_y
    least = [
        np.min(a / (x_at_least - 6) + b * x_at_least),
        np.min(a2 / (y_at_least - 1) + b2 / (y_max - y_at_least)),
    ]
    more = BAND * (sum(least) + c)
    wide = y_max - 1  # a / (x - 6) + b x, and a2 / (y - 1) + b2 / (y_max - y), reach `most` at the ends of the bands
    if of_x:
        out["x"] = dict(best=float(of_x), band=(6 + np.sort(np.roots([b, 6 * b - least[0] - more, a]).real)).tolist())
    if of_y:
        most = least[1] + more
        ends = np.roots([most, b2 - a2 - most * wide, a2 * wide]).real
        out["y"] = dict(best=float(of_y), band=(1 + np.sort(ends)).tolist())
    return out


def fit_width(runs: Search) -> Json | None:
    """Phase 2 at one budget: {best, band, coefficients, rmse, runs} of a quadratic in d; best and band are None where
    it opens downwards or its lowest point lies outside the widths run; None with fewer than 4 widths."""
    if len(np.unique(runs.width)) < 4:
        return None
    d = runs.width
    (p, q, c), rmse = least_squares((d**2, d, np.ones(len(d))), runs.loss)
    out = dict(coefficients=[float(v) for v in (p, q, c)], rmse=rmse, runs=len(d), best=None, band=None)
    best = -q / (2 * p)
    if p > 0 and d.min() <= best <= d.max():
        half = np.sqrt(BAND * (c - q * q / (4 * p)) / p)
        out |= dict(best=float(best), band=[float(max(best - half, d.min() / 2)), float(best + half)])
    return out


def fit(ratio_runs: Search | None = None, width_runs: Search | None = None) -> Json:
    """{budgets: [{flops, ratios, width}], laws} of the Searches of phase 1 and 2, of which one may be None. UserError
    where no budget has enough of either."""
    asked = (("ratios", ratio_runs, fit_ratios), ("width", width_runs, fit_width))
    asked = [(name, runs, how) for name, runs, how in asked if runs is not None]
    labels = budgets(np.concatenate([runs.flops for _, runs, _ in asked]))
    rows, count = [dict(flops=None, ratios=None, width=None) for _ in range(labels.max() + 1)], len(labels)
    for name, runs, how in asked:
        mine, labels = np.split(labels, [len(runs.loss)])
        for label in np.unique(mine):
            some = runs.part(mine == label)
            rows[label] |= {"flops": some.budget, name: how(some)}
    if not any(row["ratios"] or row["width"] for row in rows):
        raise UserError(
            f"{asked[0][1].path}: no budget has 3 values each of M/N_a and N/N_a, or 4 widths: {count} runs at "
            f"{len(rows)} budgets"
        )
    return dict(budgets=rows, laws=laws_of(rows))


def laws_of(rows: list[Json]) -> Json:
    """{m_over_active, total_over_active, d_model: {low, best, high, growth}} of the budgets' fits, each a power law (a,
    b) or None: of the optimum, of the ends of its band, and of the band's width (high - low) / best. Those of
    m_over_active are of M/N_a - 6."""
    of_x = [row["ratios"] and row["ratios"]["x"] for row in rows]
    of_y = [row["ratios"] and row["ratios"]["y"] for row in rows]
    widths = [row["width"] and row["width"]["best"] and row["width"] for row in rows]
    fits_of = dict(m_over_active=(of_x, 6), total_over_active=(of_y, 0), d_model=(widths, 0))
    laws = {}
    for name, (fits, less) in fits_of.items():
        known = [(row["flops"], f["band"][0], f["best"], f["band"][1]) for row, f in zip(rows, fits, strict=True) if f]
        flops, low, best, high = np.reshape(known, (-1, 4)).T
        values = dict(low=low - less, best=best - less, high=high - less, growth=(high - low) / best)
        laws[name] = {what: power_law(flops, value) for what, value in values.items()}
    return laws


def cells_of(
    runs: Search, grid: tuple[Sequence[float], Sequence[float]] = (holistic.M_OVER_ACTIVE, holistic.TOTAL_OVER_ACTIVE)
) -> Array:
    """Labels [n], equal for runs whose architectures differ in width alone: each stands for a run's budget and the
    nearest point (M/N_a, N/N_a) of the search's grid."""
    ratios = _nearest(runs.x, grid[0]), _nearest(runs.y, grid[1])
    return np.unique(np.stack([budgets(runs.flops), *ratios]), axis=1, return_inverse=True)[1].ravel()


def _nearest(values: Array, grid: Sequence[float]) -> Array:
    """int [n]: the index of the point of the grid that is nearest to each value, by their ratio."""
    return np.argmin(np.abs(np.log(values[:, None] / np.array(grid, float))), axis=1)


def rank(cells: Array, width: Array, loss: Array, path: str = "runs") -> Json:
    """Whether the median width keeps the rank of architectures: {cells, runs, pearson, spearman, kendall, r2} of each
    cell's loss at the middle one of its widths against its best loss; cells (labels), width and loss [n]. r2 is of the
    regression of one on the other. UserError with fewer than 3 cells of several widths."""
    from scipy import stats

    middle, best, used = [], [], 0
    for cell in np.unique(cells):
        mine = np.flatnonzero(cells == cell)
        order = mine[np.argsort(width[mine], kind="stable")]
        if len(np.unique(width[mine])) > 1:
            middle.append(loss[order[(len(order) - 1) // 2]])
            best.append(loss[mine].min())
            used += len(mine)
    if len(best) < 3:
        raise UserError(f"{path}: {len(best)} architectures have runs at several widths; ranks need at least 3")
    measures = dict(pearson=stats.pearsonr, spearman=stats.spearmanr, kendall=stats.kendalltau)
    found = {name: float(measure(middle, best).statistic) for name, measure in measures.items()}
    return dict(cells=len(best), runs=used) | found | dict(r2=found["pearson"] ** 2)


def rank_at_budgets(runs: Search, cells: Array) -> list[Json]:
    """[rank() and flops] of each budget by itself, so that differences between budgets cannot make the ranks agree;
    budgets with too few architectures are left out."""
    rows = []
    for some, mine in runs.by_budget():
        with contextlib.suppress(UserError):
            rows.append(dict(flops=some.budget) | rank(cells[mine], some.width, some.loss))
    return rows


def control(runs: Search) -> list[Json]:
    """What M alone, as the measure of a model, would miss: [{flops, runs, spread, explained, active, total}] for each
    budget's models that share one M but differ in N_a and N: the spread of the losses (standard deviation), the share
    of their variance that ln N_a and ln N explain, and the slopes of the loss in both; M explains none of it."""
    rows = []
    for some, _ in runs.by_budget():
        some = some.part(np.abs(np.log(some.m / np.median(some.m))) < SAME)
        if len(some.loss) < 5 or min(np.ptp(np.log(v)) for v in (some.active, some.total)) == 0:
            continue
        (active, total, _), rmse = least_squares((np.log(some.active), np.log(some.total), np.ones(1)), some.loss)
        spread = float(some.loss.std())
        explained = 1 - (rmse / spread) ** 2 if spread else 0.0
        found = dict(explained=explained, active=float(active), total=float(total))
        rows.append(dict(flops=some.budget, runs=len(some.loss), spread=spread) | found)
    return rows
