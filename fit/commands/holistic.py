"""The complete architecture of a mixture for a budget, by the holistic laws of Wan et al. 2026; or those laws fitted.

python -m fit holistic --flops=1e21
python -m fit holistic --runs=phase1/runs.csv --width_runs=phase2/runs.csv --flops=1e21
python -m fit holistic --rank=runs.csv
python -m fit holistic --refit=runs.csv

The first takes the published laws and says which coefficients are published, which were recovered from the paper's
tables and which are missing. The second fits them to runs of configs/sweeps/holistic_phase1.py and holistic_phase2.py.
The third tests whether architectures keep their rank when the width changes. The last fits Eq. 2, the best FLOPs per
token and tokens for each budget, once more: to runs of several sizes at each budget, built as the search found best.
"""

import json

from fit.architecture_search import holistic, holistic_plan
from fit.commands import flags
from fit.errors import UserError
from fit.words.units import amount

FLAGS = (
    ("float", "flops", None, "Training FLOPs, M D: FLOPs per token times tokens."),
    ("string", "runs", None, "Table of runs at several M/N_a and N/N_a, to fit their laws."),
    ("string", "width_runs", None, "Table of runs at several widths, to fit the law of d_model."),
    (
        "string",
        "rank",
        None,
        "Table of runs of several architectures, each at several widths, to compute their rank correlations.",
    ),
    ("string", "group", None, "With --rank: column that names an architecture. Default: the nearest on the grid."),
    ("list", "m_over_active", None, "With --rank: M/N_a of the grid. Default: phase 1's, 7,8,9,11,14,17."),
    ("list", "total_over_active", None, "With --rank: N/N_a of the grid. Default: phase 1's, 12,16,20,22,26,30."),
    ("string", "refit", None, "Table of runs of several sizes at each budget, to fit Eq. 2."),
    ("string", "out", None, "With --runs or --width_runs: picture to write, .png, .pdf or .svg."),
    ("bool", "json", False, "Print everything as JSON."),
)
ASKED = ("flops", "runs", "width_runs", "rank", "refit")


def define_flags(f):
    flags.define(f, FLAGS)
    flags.define_columns(f)


def run(f):
    if all(f[name].value is None for name in ASKED):
        raise UserError("nothing is asked: expected " + " or ".join(f"--{name}" for name in ASKED))
    of_rank = [(name, ("rank",)) for name in ("group", "m_over_active", "total_over_active")]
    for name, needs in (*of_rank, ("out", ("runs", "width_runs"))):
        if f[name].value is not None and all(f[other].value is None for other in needs):
            raise UserError(f"--{name} needs " + " or ".join(f"--{other}" for other in needs))
    ending, flops = f.out and flags.picture_ending(f.out), flags.positive(f, "flops")
    result, names = {}, flags.columns_of(f)
    searched = [f[name].value and _read(f[name].value, names) for name in ("runs", "width_runs")]
    if any(searched):
        from fit.architecture_search import holistic_runs

        result["fit"] = holistic_runs.fit(*searched)
        if searched[0]:
            result["control"] = holistic_runs.control(searched[0])
        if f.out:
            from fit.paper.figures import search

            search.save(search.architectures(result["fit"]["budgets"], *searched), f.out, ending)
    if f.rank:
        result["rank"] = _rank(f, names)
    if f.refit:
        result["refit"] = _refit(_read(f.refit, names))
    if flops is not None:
        result["architecture"] = holistic_plan.architecture(flops, result["fit"]["laws"] if "fit" in result else None)
    print(json.dumps(result, indent=1) if f.json else "\n\n".join("\n".join(part) for part in text(result)))


def _read(path, names):
    from fit.architecture_search import holistic_runs

    return holistic_runs.read(path, names)


def _rank(f, names):
    """How ranks agree in a table with d_model, loss and a column --group, or one that tells the runs' architectures."""
    import numpy as np

    from fit.architecture_search import holistic_runs
    from fit.data import table

    if f.group is None:
        runs = _read(f.rank, names)
        names = dict(m_over_active=holistic.M_OVER_ACTIVE, total_over_active=holistic.TOTAL_OVER_ACTIVE)
        grid = [own if f[name].value is None else flags.positive_list(f, name) for name, own in names.items()]
        if not all(grid):
            raise UserError("--m_over_active, --total_over_active: expected positive numbers separated by commas")
        cells = holistic_runs.cells_of(runs, grid)
        found = holistic_runs.rank(cells, runs.width, runs.loss, runs.path)
        return found | dict(budgets=holistic_runs.rank_at_budgets(runs, cells))
    runs = table.read(f.rank, names)
    cells = np.unique([str(v) for v in runs.column(f.group)], return_inverse=True)[1]
    return holistic_runs.rank(cells, runs.numbers("d_model", (1, 1e7)), runs.numbers("loss"), runs.path)


def _refit(runs):
    """Eq. 2 fitted to runs of several M at each budget: M_opt and D_opt = C / M_opt."""
    from fit.equal_flops import isoflop

    found = isoflop.profiles(runs.m, runs.flops, runs.loss)
    if not found:
        raise UserError(
            f"{runs.path}: at no budget does the loss have a lowest point within {isoflop.LEAST} or more values of M"
        )
    profile = found[0]
    if profile["power"]:
        a, b = profile["power"]
        profile["tokens_power"] = (1 / a, 1 - b)
    return profile


def text(result):
    """Parts of lines for people."""
    if "fit" in result:
        yield fit_lines(result["fit"])
    if result.get("control"):
        yield (
            f"{row['flops']:.3g} FLOPs, {row['runs']} models of one M: their losses spread by {row['spread']:.4f}, of "
            f"which M explains nothing, N_a and N {row['explained']:.0%} ({row['active']:+.4f} per ln N_a, "
            f"{row['total']:+.4f} per ln N)"
            for row in result["control"]
        )
    if "rank" in result:
        yield rank_lines(result["rank"])
    if "refit" in result:
        yield refit_lines(result["refit"])
    if "architecture" in result:
        yield architecture_lines(result["architecture"])


def rank_lines(found):
    """The ranks at each budget; over all of them only if no budget has enough, for budgets set losses apart."""
    for r in found.get("budgets") or [found]:
        at = f"{r['flops']:.3g} FLOPs: " if "flops" in r else ""
        yield (
            f"{at}rank of {r['cells']} architectures ({r['runs']} runs), loss at the median width against the best: "
            f"Pearson {r['pearson']:.4f}, Spearman {r['spearman']:.4f}, Kendall {r['kendall']:.4f}, R2 {r['r2']:.4f}"
        )


def fit_lines(fitted):
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


def refit_lines(profile):
    for row in profile["budgets"]:
        ends = row["interval"]
        span = f" [{ends[0]:.4g}, {ends[1]:.4g}]" if ends else ""
        tokens = amount(row["flops"] / row["best"])
        yield f"{row['flops']:.3g} FLOPs, {row['runs']} runs: M_opt {row['best']:.4g}{span}, D_opt {tokens}"
    if profile["power"]:
        (a, b), (k, p) = profile["power"], profile["tokens_power"]
        span = "" if not profile["exponent"] else " [{:.4f}, {:.4f}]".format(*profile["exponent"])
        yield f"Eq. 2: M_opt = {a:.4g} C^{b:.4f}{span}, D_opt = {k:.4g} C^{p:.4f}"


def architecture_lines(result):
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
