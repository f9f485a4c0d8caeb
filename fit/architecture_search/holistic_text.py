"""What was found of a budget's architecture, and of runs of such a search, in words."""

from collections.abc import Iterator

from fit.architecture_search import holistic
from fit.words.units import amount


def text(result: dict) -> str:
    """Of what api.holistic found: a part for each thing that was asked."""
    parts = dict(fit=_fit, control=_control, rank=_rank, refit=_refit, architecture=_architecture)
    return "\n\n".join("\n".join(lines(result[name])) for name, lines in parts.items() if result.get(name))


def _control(rows: list[dict]) -> Iterator[str]:
    for row in rows:
        yield (
            f"{row['flops']:.3g} FLOPs, {row['runs']} models of one M: their losses spread by {row['spread']:.4f}, of "
            f"which M explains nothing, N_a and N {row['explained']:.0%} ({row['active']:+.4f} per ln N_a, "
            f"{row['total']:+.4f} per ln N)"
        )


def _rank(found: dict) -> Iterator[str]:
    """The ranks at each budget; over all of them only if no budget has enough, for budgets set losses apart."""
    for r in found.get("budgets") or [found]:
        at = f"{r['flops']:.3g} FLOPs: " if "flops" in r else ""
        yield (
            f"{at}rank of {r['cells']} architectures ({r['runs']} runs), loss at the median width against the best: "
            f"Pearson {r['pearson']:.4f}, Spearman {r['spearman']:.4f}, Kendall {r['kendall']:.4f}, R2 {r['r2']:.4f}"
        )


def _fit(fitted: dict) -> Iterator[str]:
    best = lambda found, digits: (
        "-"
        if not found or found["best"] is None
        else f"{found['best']:.{digits}f} [{found['band'][0]:.{digits}f}, {found['band'][1]:.{digits}f}]"
    )
    yield f"{'FLOPs':>8} {'M/N_a':>22} {'N/N_a':>22} {'d_model':>20} {'RMSE':>15}"
    for row in fitted["budgets"]:
        ratios, width = row["ratios"], row["width"]
        rmse = " ".join(f"{found['rmse']:.4f}" if found else "-" for found in (ratios, width))
        x, y = (best(ratios and ratios[which], 2) for which in ("x", "y"))
        yield f"{row['flops']:8.3g} {x:>22} {y:>22} {best(width, 0):>20} {rmse:>15}"
    yield "in brackets the near-optimal band: a loss within 0.1% of the least; - where none lies within what was run"
    for name, law in fitted["laws"].items():
        less = " - 6" * (name == "m_over_active")
        words = [f"{end} {law[end][0]:.4g} C^{law[end][1]:.4f}" for end in ("low", "best", "high") if law[end]]
        if words:
            growth = law["growth"]
            grows = "" if not growth else f"; the band's width over the best goes as C^{growth[1]:.3f}"
            yield f"{name}{less}: {', '.join(words)}{grows}"


def _refit(profile: dict) -> Iterator[str]:
    for row in profile["budgets"]:
        ends = row["interval"]
        span = f" [{ends[0]:.4g}, {ends[1]:.4g}]" if ends else ""
        tokens = amount(row["flops"] / row["best"])
        yield f"{row['flops']:.3g} FLOPs, {row['runs']} runs: M_opt {row['best']:.4g}{span}, D_opt {tokens}"
    if profile["power"]:
        (a, b), (k, p) = profile["power"], profile["tokens_power"]
        span = "" if not profile["exponent"] else " [{:.4f}, {:.4f}]".format(*profile["exponent"])
        yield f"Eq. 2: M_opt = {a:.4g} C^{b:.4f}{span}, D_opt = {k:.4g} C^{p:.4f}"


def _architecture(result: dict) -> Iterator[str]:
    shown = lambda v: "-" if v is None else amount(v) if v >= 1e4 else f"{v:.4g}"
    yield f"{'':18} {'value':>10}  {'near-optimal':20} coefficients"
    for name, row in result["values"].items():
        band = "" if row["low"] is None else f"{shown(row['low'])} to {shown(row['high'])}"
        yield f"{name:18} {shown(row['value']):>10}  {band:20} {row['origin']}"
    yield "feasible widths: {} to {}".format(*result["widths"])
    if result["values"]["d_model"]["value"] is None:
        yield "d_model: the paper has the law of the width in a figure alone; taken is the median of feasible widths"
    if result["outside"]:
        low, high = holistic.BUDGETS[0], holistic.BUDGETS[-1]
        yield f"outside the paper's budgets, {low:g} to {high:g} FLOPs: extrapolated; heads stay those of the nearest"
    yield ""
    m = result["model"]
    yield (
        f"model: d_model {m['d_model']}, {m['n_blocks']} blocks of which the first {m['n_dense_blocks']} are dense "
        f"(d_ff {m['d_ff']}), {m['n_experts']} experts of width {m['d_expert']}, of which a token uses {m['top_k']} "
        f"and {m['n_shared_experts']} shared, {m['n_heads']} heads of {m['head_dim']}, {m['n_kv_heads']} of keys"
    )
    yield (
        f"{amount(m['n_active'])} active and {amount(m['n_total'])} parameters in total without the embedding, "
        f"{amount(m['flops_per_token'])} FLOPs a token, {amount(m['n_tokens'])} tokens: M/N_a "
        f"{m['m_over_active']:.2f} and N/N_a {m['total_over_active']:.2f}, within {result['off']:.1%} of "
        "what the laws ask for"
    )
