"""Analyse the runs of a search over architectures.

The module fits the laws of holistic.py and their near-optimal bands. It tests whether the width keeps the rank of
architectures. It also measures the spread of losses that M alone does not explain.

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
from fit.errors import UserError
from fit.fitted_law import table_architecture
from fit.fitting.isoflop import least_squares, power_law
from fit.model.shape import ModelShape
from fit.studies.architecture_search import holistic
from fit.table import table as tables
from fit.table import validate

BAND = 1e-3  # near-optimal: within this share of the least loss
REQUIRED = ("n_heads", "n_experts", "n_blocks", "seq_len")  # fields of the shape that have no default here
SAME = 0.15  # budgets within this share of each other are one; so are values of M


@dataclasses.dataclass(frozen=True)
class Search:
    """Runs of a search.

    Attributes:
      path: the table's name in errors.
      flops: [n], budgets M D.
      m: [n], FLOPs per token.
      active, total: [n], N_a and N.
      width: [n], d_model.
      loss: [n], nats per token.
      y_max: the largest N/N_a that experts can make up.
    """

    path: str
    flops: np.ndarray
    m: np.ndarray
    active: np.ndarray
    total: np.ndarray
    width: np.ndarray
    loss: np.ndarray
    y_max: float

    @property
    def x(self) -> Array:
        """[n]: M/N_a."""
        return self.m / self.active

    @property
    def y(self) -> Array:
        """[n]: N/N_a."""
        return self.total / self.active

    @property
    def budget(self) -> float:
        """FLOPs of runs of one budget."""
        return float(np.exp(np.mean(np.log(self.flops))))

    def part(self, rows: Array) -> Self:
        """The runs that bool [n] selects."""
        arrays = (self.flops, self.m, self.active, self.total, self.width, self.loss)
        return type(self)(self.path, *(array[rows] for array in arrays), self.y_max)

    def by_budget(self) -> Iterator[tuple[Self, Array]]:
        """(the runs of a budget, bool [n]: which of these they are) of each budget, ascending."""
        labels = budgets(self.flops)
        for label in range(labels.max() + 1):
            yield self.part(labels == label), labels == label


def read(runs: object) -> Search:
    """Reads the runs of a search.

    Args:
      runs: a table as launch.collect writes it, what fit.read takes for one, or a Search. It needs d_model, n_blocks,
        n_heads, n_experts, seq_len, n_tokens and loss. Where they differ from the value in brackets it also needs
        head_dim (d_model / n_heads), n_kv_heads (n_heads), top_k (1), n_shared_experts (0), d_ff (3 d_model), d_expert
        (d_ff) and n_dense_blocks (0). Each is a column or a field of the column overrides.

    Raises:
      UserError: where a value is missing or bad.
    """
    if isinstance(runs, Search):
        return runs
    table = tables.read(runs)
    c = _shape_columns(table)
    shape = ModelShape(
        d_model=c["d_model"],
        n_blocks=c["n_blocks"],
        n_heads=c["n_heads"],
        n_kv_heads=c["n_kv_heads"],
        head_dim=c["head_dim"],
        d_ff=c["d_ff"],
        vocab_size=0,
        n_experts=c["n_experts"],
        d_expert=c["d_expert"],
        top_k=c["top_k"],
        n_shared_experts=c["n_shared_experts"],
        n_dense_blocks=c["n_dense_blocks"],
    )
    m, n_active, n_total = (np.asarray(count) for count in holistic.triad_of_shape(shape, c["seq_len"]))
    y_max = np.max((shape.n_experts + shape.n_shared_experts) / (shape.top_k + shape.n_shared_experts))
    return Search(
        path=table.path,
        flops=m * table.numbers("n_tokens"),
        m=m,
        active=n_active,
        total=n_total,
        width=c["d_model"],
        loss=table.numbers("loss"),
        y_max=float(y_max),
    )


def _shape_columns(table: tables.Table) -> dict[str, Array]:
    """d_model and the fields of FIELDS of each run [n], by name.

    A value comes from a column, else from the overrides, else from the field's default. Raises UserError if there is
    none.
    """
    validate.require(table, ("d_model", "n_tokens", "loss"))
    overrides = table_architecture.model_overrides(table)
    columns = dict(d_model=table.numbers("d_model", (1, 1e7)))
    for name in dict.fromkeys((*table_architecture.WITH_DEFAULT, *REQUIRED)):
        least = 0 if name in ("n_dense_blocks", "n_shared_experts") else 1
        cells = table.column(name) if name in table else [None] * len(table)
        values = [overrides[i].get(name) if cell in (None, "") else cell for i, cell in enumerate(cells)]
        values = [None if least and str(value) == "0" else value for value in values]  # 0 means the default
        default = None if name in REQUIRED else table_architecture.default_of(name, columns)
        if default is None and None in values:
            row = table.rows[values.index(None)]
            raise UserError(f"{table.path}, row {row}: {name} is neither a column nor in overrides")
        defaults = np.broadcast_to(np.nan if default is None else default, len(table)).tolist()
        filled = [defaults[i] if value is None else value for i, value in enumerate(values)]
        column = dataclasses.replace(table, columns={name: filled}, names={})
        columns[name] = column.numbers(name, (least, 1e9))
    return columns


def budgets(flops: Array) -> Array:
    """Labels int [n] of the runs of one budget: those whose neighbours in C lie within SAME."""
    order = np.argsort(flops)
    labels = np.empty(len(flops), int)
    labels[order] = np.cumsum(np.diff(np.log(flops[order]), prepend=np.log(flops.min())) > SAME)
    return labels


def fit_ratios(runs: Search) -> Json | None:
    """Phase 1 at one budget. Dense models, which have no y above 1, are left out.

    Returns:
      {x, y: {best, band}, coefficients, rmse, runs}. x or y is None where no minimum lies within the ratios run. None
      where the runs are too few: fewer than 6, or than 3 values of x or y.
    """
    runs = runs.part((runs.y > 1 + 1e-6) & (runs.y < runs.y_max - 1e-6))
    x = runs.x
    y = runs.y
    y_max = runs.y_max
    if len(x) < 6 or min(len(np.unique(np.round(ratio, 2))) for ratio in (x, y)) < 3:
        return None
    columns = (1 / (x - 6), x, 1 / (y - 1), 1 / (y_max - y), np.ones(len(x)))
    (a, b, a2, b2, c), rmse = least_squares(columns, runs.loss)
    best_x = _best_x(a, b, x)
    best_y = _best_y(a2, b2, y, y_max)
    # the least parts of the loss in x and in y
    x_at_least = x if best_x is None else best_x
    y_at_least = y if best_y is None else best_y
    least_x = np.min(a / (x_at_least - 6) + b * x_at_least)
    least_y = np.min(a2 / (y_at_least - 1) + b2 / (y_max - y_at_least))
    more = BAND * (least_x + least_y + c)  # by which the loss may be above the least
    result: Json = dict(coefficients=[float(v) for v in (a, b, a2, b2, c)], rmse=rmse, runs=len(x), x=None, y=None)
    if best_x:  # a / (x - 6) + b x = least_x + more at the ends of the band
        ends = np.roots([b, 6 * b - least_x - more, a]).real
        result["x"] = dict(best=float(best_x), band=(6 + np.sort(ends)).tolist())
    if best_y:  # a2 / (y - 1) + b2 / (y_max - y) = most at the ends of the band
        most = least_y + more
        width = y_max - 1
        ends = np.roots([most, b2 - a2 - most * width, a2 * width]).real
        result["y"] = dict(best=float(best_y), band=(1 + np.sort(ends)).tolist())
    return result


def _best_x(a: float, b: float, x: Array) -> float | None:
    """x* of phase 1; None where there is none within the ratios x [n] that were run."""
    if a <= 0 or b <= 0:
        return None
    best = 6 + np.sqrt(a / b)
    return best if x.min() <= best <= x.max() else None


def _best_y(a: float, b: float, y: Array, y_max: float) -> float | None:
    """y* of phase 1, of a' and b'; None where there is none within the ratios y [n] that were run."""
    if a <= 0 or b <= 0:
        return None
    root = np.sqrt(a / b)
    best = (1 + root * y_max) / (1 + root)
    return best if y.min() <= best <= y.max() else None


def fit_width(runs: Search) -> Json | None:
    """Phase 2 at one budget: a quadratic in d.

    Returns:
      {best, band, coefficients, rmse, runs}. best and band are None where the quadratic opens downwards or its lowest
      point lies outside the widths run. None with fewer than 4 widths.
    """
    d = runs.width
    if len(np.unique(d)) < 4:
        return None
    (p, q, c), rmse = least_squares((d**2, d, np.ones(len(d))), runs.loss)
    best = -q / (2 * p)
    lowest = None
    band = None
    if p > 0 and d.min() <= best <= d.max():
        half = np.sqrt(BAND * (c - q * q / (4 * p)) / p)
        lowest = float(best)
        band = [float(max(best - half, d.min() / 2)), float(best + half)]
    return dict(coefficients=[float(v) for v in (p, q, c)], rmse=rmse, runs=len(d), best=lowest, band=band)


def fit(ratio_runs: Search | None = None, width_runs: Search | None = None) -> Json:
    """Fits the laws of a search.

    Args:
      ratio_runs: of phase 1, or None.
      width_runs: of phase 2, or None.

    Returns:
      {budgets: [{flops, ratios, width}], laws}.

    Raises:
      UserError: where no budget has enough of either.
    """
    phases = [("ratios", ratio_runs, fit_ratios), ("width", width_runs, fit_width)]
    phases = [(name, runs, fit_phase) for name, runs, fit_phase in phases if runs is not None]
    labels = budgets(np.concatenate([runs.flops for _, runs, _ in phases]))
    n_runs = len(labels)
    rows: list[Json] = [dict(flops=None, ratios=None, width=None) for _ in range(labels.max() + 1)]
    for name, runs, fit_phase in phases:
        labels_of_phase, labels = np.split(labels, [len(runs.loss)])
        for label in np.unique(labels_of_phase):
            of_budget = runs.part(labels_of_phase == label)
            rows[label] |= {"flops": of_budget.budget, name: fit_phase(of_budget)}
    if not any(row["ratios"] or row["width"] for row in rows):
        raise UserError(
            f"{phases[0][1].path}: no budget has 3 values each of M/N_a and N/N_a, or 4 widths: {n_runs} runs at "
            f"{len(rows)} budgets"
        )
    return dict(budgets=rows, laws=laws_of(rows))


def laws_of(rows: list[Json]) -> Json:
    """Power laws through the budgets' fits.

    Args:
      rows: [{flops, ratios, width}].

    Returns:
      {m_over_active, total_over_active, d_model: {low, best, high, growth}}, each a power law (a, b) or None: of the
      optimum, of the ends of its band, and of the band's width (high - low) / best. Those of m_over_active are of
      M/N_a - 6.
    """
    optima_x = [row["ratios"] and row["ratios"]["x"] for row in rows]
    optima_y = [row["ratios"] and row["ratios"]["y"] for row in rows]
    widths = [row["width"] if row["width"] and row["width"]["best"] else None for row in rows]
    laws = {}
    for name, optima, less in (
        ("m_over_active", optima_x, 6),
        ("total_over_active", optima_y, 0),
        ("d_model", widths, 0),
    ):
        known = [
            (row["flops"], optimum["band"][0], optimum["best"], optimum["band"][1])
            for row, optimum in zip(rows, optima, strict=True)
            if optimum
        ]
        flops, low, best, high = np.reshape(known, (-1, 4)).T
        values = dict(low=low - less, best=best - less, high=high - less, growth=(high - low) / best)
        laws[name] = {end: power_law(flops, value) for end, value in values.items()}
    return laws


def cells_of(
    runs: Search, grid: tuple[Sequence[float], Sequence[float]] = (holistic.M_OVER_ACTIVE, holistic.TOTAL_OVER_ACTIVE)
) -> Array:
    """Labels [n], equal for runs whose architectures differ in width alone.

    Each label identifies a run's budget and the nearest point of the search's grid.

    Args:
      runs: of a search.
      grid: its values of (M/N_a, N/N_a).
    """
    of_x, of_y = grid
    cells = np.stack([budgets(runs.flops), _nearest(runs.x, of_x), _nearest(runs.y, of_y)])
    return np.unique(cells, axis=1, return_inverse=True)[1].ravel()


def _nearest(values: Array, grid: Sequence[float]) -> Array:
    """int [n]: the index of the point of the grid that is nearest to each value, by their ratio."""
    return np.argmin(np.abs(np.log(values[:, None] / np.array(grid, float))), axis=1)


def rank(cells: Array, width: Array, loss: Array, path: str = "runs") -> Json:
    """The correlation of architectures' losses at the median width with their best losses.

    Each cell of several widths has one loss at the middle width and one best loss.

    Args:
      cells: [n], labels of cells_of.
      width, loss: [n], of the runs.
      path: the table's name in errors.

    Returns:
      {cells, runs, pearson, spearman, kendall, r2}. r2 is of the regression of one on the other.

    Raises:
      UserError: where fewer than 3 cells have several widths.
    """
    from scipy import stats

    losses_at_middle = []
    best_losses = []
    n_runs = 0
    for cell in np.unique(cells):
        rows = np.flatnonzero(cells == cell)
        if len(np.unique(width[rows])) > 1:
            by_width = rows[np.argsort(width[rows], kind="stable")]
            losses_at_middle.append(loss[by_width[(len(by_width) - 1) // 2]])
            best_losses.append(loss[rows].min())
            n_runs += len(rows)
    if len(best_losses) < 3:
        raise UserError(f"{path}: {len(best_losses)} architectures have runs at several widths; ranks need at least 3")
    pearson = float(stats.pearsonr(losses_at_middle, best_losses).statistic)
    return dict(
        cells=len(best_losses),
        runs=n_runs,
        pearson=pearson,
        spearman=float(stats.spearmanr(losses_at_middle, best_losses).statistic),
        kendall=float(stats.kendalltau(losses_at_middle, best_losses).statistic),
        r2=pearson**2,
    )


def rank_at_budgets(runs: Search, cells: Array) -> list[Json]:
    """The ranks within each budget, so that differences between budgets cannot make them agree.

    Args:
      runs: of a search.
      cells: [n], labels of cells_of.

    Returns:
      [rank() and flops]; budgets with too few architectures are left out.
    """
    rows = []
    for of_budget, selected in runs.by_budget():
        with contextlib.suppress(UserError):
            ranks = rank(cells[selected], of_budget.width, of_budget.loss)
            rows.append(dict(flops=of_budget.budget) | ranks)
    return rows


def control(runs: Search) -> list[Json]:
    """The spread of losses that M alone does not explain, among models of one M.

    Returns:
      [{flops, runs, spread, explained, active, total}] for each budget's models that share one M but differ in N_a and
      N: the standard deviation of the losses, the share of their variance that ln N_a and ln N explain, and the slopes
      of the loss in both.
    """
    rows = []
    for of_budget, _ in runs.by_budget():
        of_one_m = of_budget.part(np.abs(np.log(of_budget.m / np.median(of_budget.m))) < SAME)
        log_active = np.log(of_one_m.active)
        log_total = np.log(of_one_m.total)
        if len(of_one_m.loss) < 5 or np.ptp(log_active) == 0 or np.ptp(log_total) == 0:
            continue
        (active, total, _), rmse = least_squares((log_active, log_total, np.ones(1)), of_one_m.loss)
        spread = float(of_one_m.loss.std())
        rows.append(
            dict(
                flops=of_one_m.budget,
                runs=len(of_one_m.loss),
                spread=spread,
                explained=1 - (rmse / spread) ** 2 if spread else 0.0,
                active=float(active),
                total=float(total),
            )
        )
    return rows
