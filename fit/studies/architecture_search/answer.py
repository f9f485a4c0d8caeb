"""The text that `fit holistic` prints: the architecture for a budget, and the analysis of a search's runs."""

from collections.abc import Iterator

from fit.aliases import Json
from fit.messages import lines
from fit.messages.lines import Line
from fit.messages.units import amount, say
from fit.studies.architecture_search import published
from fit.studies.architecture_search.architecture import BudgetArchitecture
from fit.studies.architecture_search.fitted import BestRatio, SearchFit, WidthFit
from fit.studies.architecture_search.ranks import Ranks, Spread
from fit.studies.architecture_search.result import Holistic

CONTROL = (
    "{flops:.3g} FLOPs, {runs} models of one M: their losses spread by {spread:.4f}, of which M explains nothing, N_a "
    "and N {explained:.0%} ({active:+.4f} per ln N_a, {total:+.4f} per ln N)"
)
RANK = (
    "{at}rank of {cells} architectures ({runs} runs), loss at the median width against the best: Pearson "
    "{pearson:.4f}, Spearman {spearman:.4f}, Kendall {kendall:.4f}, R2 {r2:.4f}"
)
MODEL = (
    "model: d_model {d_model}, {n_blocks} blocks of which the first {n_dense_blocks} are dense (d_ff {d_ff}), "
    "{n_experts} experts of width {d_expert}, of which a token uses {top_k} and {n_shared_experts} shared, {n_heads} "
    "heads of {head_dim}, {n_kv_heads} of keys"
)
COUNTS = (
    "{n_active:amount} active and {n_total:amount} parameters in total without the embedding, {flops_per_token:amount} "
    "FLOPs a token, {n_tokens:amount} tokens: M/N_a {m_over_active:.2f} and N/N_a {total_over_active:.2f}, within "
    "{off:.1%} of what the laws ask for"
)


def answer(result: Holistic) -> Iterator[Line]:
    """The lines of a result: a part for each question."""
    parts: list[list[str]] = []
    if result.fit:
        parts.append(list(_fit(result.fit)))
    if result.control:
        parts.append(_control(result.control))
    if result.rank:
        parts.append(_rank(result.rank))
    if result.refit:
        parts.append(list(_refit(result.refit)))
    if result.architecture:
        parts.append(list(_architecture(result.architecture)))
    return lines.joined([lines.rows(part)] for part in parts)


def _control(rows: list[Spread]) -> list[str]:
    """The lines on the spread that M alone does not explain."""
    return [say(CONTROL, **row) for row in rows]


def _rank(ranks: Ranks) -> list[str]:
    """The ranks at each budget; over all of them only if no budget has enough, for budgets set losses apart."""
    lines = []
    for row in ranks.budgets or [ranks]:
        budget = "" if row.flops is None else f"{row.flops:.3g} FLOPs: "
        lines.append(say(RANK, **row, at=budget))
    return lines


def _best(optimum: BestRatio | WidthFit | None, digits: int) -> str:
    """An optimum and its near-optimal band in brackets; "-" where there is none."""
    if optimum is None or optimum.best is None or optimum.band is None:
        return "-"
    low, high = optimum.band
    return f"{optimum.best:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _fit(fitted: SearchFit) -> Iterator[str]:
    """The optima of each budget, and the laws through them."""
    yield f"{'FLOPs':>8} {'M/N_a':>22} {'N/N_a':>22} {'d_model':>20} {'RMSE':>15}"
    for row in fitted.budgets:
        ratios = row.ratios
        width = row.width
        rmse = " ".join("-" if fit is None else f"{fit.rmse:.4f}" for fit in (ratios, width))
        x = _best(ratios.x, 2) if ratios else "-"
        y = _best(ratios.y, 2) if ratios else "-"
        yield f"{row.flops:8.3g} {x:>22} {y:>22} {_best(width, 0):>20} {rmse:>15}"
    yield "in brackets the near-optimal band: a loss within 0.1% of the least; - where none lies within what was run"
    for name, law in fitted.laws.items():
        less = " - 6" if name == "m_over_active" else ""
        ends = dict(low=law.low, best=law.best, high=law.high)
        laws = [f"{end} {power[0]:.4g} C^{power[1]:.4f}" for end, power in ends.items() if power]
        if laws:
            of_band = ""
            if law.growth:
                of_band = f"; the band's width over the best goes as C^{law.growth[1]:.3f}"
            yield f"{name}{less}: {', '.join(laws)}{of_band}"


def _refit(profile: Json) -> Iterator[str]:
    """The best M of each budget, and Eq. 2 through them."""
    for row in profile["budgets"]:
        ends = row["interval"]
        span = f" [{ends[0]:.4g}, {ends[1]:.4g}]" if ends else ""
        tokens = amount(row["flops"] / row["best"])
        yield f"{row['flops']:.3g} FLOPs, {row['runs']} runs: M_opt {row['best']:.4g}{span}, D_opt {tokens}"
    if profile["power"]:
        a, b = profile["power"]
        k, p = profile["tokens_power"]
        span = "" if not profile["exponent"] else " [{:.4f}, {:.4f}]".format(*profile["exponent"])
        yield f"Eq. 2: M_opt = {a:.4g} C^{b:.4f}{span}, D_opt = {k:.4g} C^{p:.4f}"


def _shown(value: float | None) -> str:
    """A value as the table of the architecture has it."""
    if value is None:
        return "-"
    return amount(value) if value >= 1e4 else f"{value:.4g}"


def _architecture(architecture: BudgetArchitecture) -> Iterator[str]:
    """The lines on the quantities that determine the architecture, and on the model."""
    yield f"{'':18} {'value':>10}  {'near-optimal':20} coefficients"
    for name, row in architecture.quantities.items():
        band = "" if row.low is None else f"{_shown(row.low)} to {_shown(row.high)}"
        yield f"{name:18} {_shown(row.value):>10}  {band:20} {row.origin}"
    yield "feasible widths: {} to {}".format(*architecture.widths)
    if architecture.quantities["d_model"].value is None:
        yield "d_model: the paper gives its law only in a figure; this is the median of feasible widths"
    if architecture.outside:
        low = published.BUDGETS[0]
        high = published.BUDGETS[-1]
        yield f"outside the paper's budgets, {low:g} to {high:g} FLOPs: extrapolated; heads stay those of the nearest"
    yield ""
    yield say(MODEL, **architecture.model)
    yield say(COUNTS, **architecture.model, off=architecture.off)
