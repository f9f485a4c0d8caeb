"""The laws of a search, fitted to its runs, and their near-optimal bands.

At one budget, with x = M/N_a, y = N/N_a and the width d (Wan et al. 2026, Sec. 4):

  phase 1   L = a / (x - 6) + b x + a' / (y - 1) + b' / (y_max - y) + c
            x* = 6 + sqrt(a / b)     y* = (1 + r y_max) / (1 + r), r = sqrt(a' / b')
  phase 2   L = quadratic in d

The paper fits x and y apart; here one least-squares fit of the grid has both, so no choice of the other ratio enters.
y_max = (n_experts + n_shared) / (top_k + n_shared); we infer that its C1 and C2 are 1 and y_max. Across budgets: y*,
d*, the ends of the band of d and x* - 6 are a C^b.

Axes: n runs; everything else is a number for each budget.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Numbers
from fit.errors import UserError
from fit.fitting.isoflop import least_squares, power_law
from fit.results import Record
from fit.studies.architecture_search.search_runs import SearchRuns, budget_labels

BAND = 1e-3  # near-optimal: within this share of the least loss
PowerLaw = tuple[float, float]  # (a, b) of a C^b


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestRatio(Record):
    """The best M/N_a or N/N_a at one budget.

    Attributes:
      best: Where the loss is least.
      band: (low, high), the ends of the near-optimal band.
    """

    best: float
    band: tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatiosFit(Record):
    """Phase 1 at one budget.

    Attributes:
      coefficients: a, b, a', b' and c.
      rmse: Root mean square error, in nats per token.
      runs: Number of runs fitted.
      x, y: The best M/N_a and N/N_a; None where no minimum lies within the ratios run.
    """

    coefficients: tuple[float, float, float, float, float]
    rmse: float
    runs: int
    x: BestRatio | None
    y: BestRatio | None

    def loss(self, x: Numbers, y: Numbers, y_max: float) -> Numbers:
        """Loss in nats per token at M/N_a and N/N_a, which broadcast together."""
        a, b, a2, b2, c = self.coefficients
        return a / (x - 6) + b * x + a2 / (y - 1) + b2 / (y_max - y) + c


@dataclasses.dataclass(frozen=True, kw_only=True)
class WidthFit(Record):
    """Phase 2 at one budget.

    Attributes:
      coefficients: Of d^2, d and 1.
      rmse: Root mean square error, in nats per token.
      runs: Number of runs fitted.
      best: The best width. None where the quadratic opens downwards or its lowest point lies outside the widths run.
      band: (low, high), the ends of the near-optimal band, or None.
    """

    coefficients: tuple[float, float, float]
    rmse: float
    runs: int
    best: float | None
    band: tuple[float, float] | None

    def loss(self, d_model: Numbers) -> Numbers:
        """Loss in nats per token at a width."""
        return np.polyval(self.coefficients, d_model)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetFit(Record):
    """The fits at one budget.

    Attributes:
      flops: The budget.
      ratios: Phase 1; None without runs, or with too few of them.
      width: Phase 2; None likewise.
    """

    flops: float
    ratios: RatiosFit | None
    width: WidthFit | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandLaws(Record):
    """Power laws of a quantity over the budget; each is None where fewer than two budgets have it.

    Attributes:
      low, high: Of the ends of the near-optimal band.
      best: Of the optimum.
      growth: Of the band's width, (high - low) / best.
    """

    low: PowerLaw | None
    best: PowerLaw | None
    high: PowerLaw | None
    growth: PowerLaw | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchFit(Record):
    """The laws of a search.

    Attributes:
      budgets: The fits of each budget, ascending.
      laws: {m_over_active, total_over_active, d_model: laws}. Those of m_over_active are of M/N_a - 6.
    """

    budgets: list[BudgetFit]
    laws: dict[str, BandLaws]


def fit_ratios(runs: SearchRuns) -> RatiosFit | None:
    """Phase 1 at one budget. Dense models, which have no y above 1, are left out.

    Returns:
      The fit. None where the runs are too few: fewer than 6, or than 3 values of x or y.
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
    optimum_x = None
    optimum_y = None
    if best_x is not None:  # a / (x - 6) + b x = least_x + more at the ends of the band
        ends = np.roots([b, 6 * b - least_x - more, a]).real
        optimum_x = _best_ratio(best_x, 6 + ends)
    if best_y is not None:  # a2 / (y - 1) + b2 / (y_max - y) = most at the ends of the band
        most = least_y + more
        width = y_max - 1
        ends = np.roots([most, b2 - a2 - most * width, a2 * width]).real
        optimum_y = _best_ratio(best_y, 1 + ends)
    return RatiosFit(
        coefficients=(float(a), float(b), float(a2), float(b2), float(c)),
        rmse=rmse,
        runs=len(x),
        x=optimum_x,
        y=optimum_y,
    )


def _best_ratio(best: float, ends: Array) -> BestRatio:
    """The best ratio and its band, whose ends [2] come in any order."""
    low, high = np.sort(ends).tolist()
    return BestRatio(best=float(best), band=(low, high))


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


def fit_width(runs: SearchRuns) -> WidthFit | None:
    """Phase 2 at one budget: a quadratic in d. None with fewer than 4 widths."""
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
        band = (float(max(best - half, d.min() / 2)), float(best + half))
    return WidthFit(coefficients=(float(p), float(q), float(c)), rmse=rmse, runs=len(d), best=lowest, band=band)


def fit(ratio_runs: SearchRuns | None = None, width_runs: SearchRuns | None = None) -> SearchFit:
    """Fits the laws of a search.

    Args:
      ratio_runs: of phase 1, or None.
      width_runs: of phase 2, or None.

    Raises:
      UserError: where no budget has enough of either.
    """
    phases = [runs for runs in (ratio_runs, width_runs) if runs is not None]
    labels = budget_labels(np.concatenate([runs.flops for runs in phases]))
    n_ratio_runs = 0 if ratio_runs is None else len(ratio_runs.loss)
    ratio_labels, width_labels = np.split(labels, [n_ratio_runs])
    fits: dict[int, BudgetFit] = {}
    if ratio_runs is not None:
        for label, of_budget in ratio_runs.by_label(ratio_labels):
            fits[label] = BudgetFit(flops=of_budget.budget, ratios=fit_ratios(of_budget), width=None)
    if width_runs is not None:
        for label, of_budget in width_runs.by_label(width_labels):
            ratios = fits[label].ratios if label in fits else None
            fits[label] = BudgetFit(flops=of_budget.budget, ratios=ratios, width=fit_width(of_budget))
    budgets = [fits[label] for label in sorted(fits)]
    if not any(budget.ratios or budget.width for budget in budgets):
        raise UserError(
            f"{phases[0].path}: no budget has 3 values each of M/N_a and N/N_a, or 4 widths: {len(labels)} runs at "
            f"{len(budgets)} budgets"
        )
    return SearchFit(budgets=budgets, laws=laws_of(budgets))


def laws_of(budgets: Sequence[BudgetFit]) -> dict[str, BandLaws]:
    """The laws of SearchFit through the fits of the budgets."""
    best_x = []
    best_y = []
    best_width = []
    for budget in budgets:
        if budget.ratios and budget.ratios.x:
            best_x.append((budget.flops, budget.ratios.x.best, budget.ratios.x.band))
        if budget.ratios and budget.ratios.y:
            best_y.append((budget.flops, budget.ratios.y.best, budget.ratios.y.band))
        if budget.width and budget.width.best is not None and budget.width.band:
            best_width.append((budget.flops, budget.width.best, budget.width.band))
    return dict(
        m_over_active=_band_laws(best_x, less=6),
        total_over_active=_band_laws(best_y),
        d_model=_band_laws(best_width),
    )


def _band_laws(known: Sequence[tuple[float, float, tuple[float, float]]], less: float = 0) -> BandLaws:
    """The laws of one quantity, from (FLOPs, best, band) of each budget that has it; `less` is subtracted from each."""
    flops, best, low, high = np.reshape([(c, best, *band) for c, best, band in known], (-1, 4)).T
    return BandLaws(
        low=power_law(flops, low - less),
        best=power_law(flops, best - less),
        high=power_law(flops, high - less),
        growth=power_law(flops, (high - low) / best),
    )
