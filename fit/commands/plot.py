"""Draw the paper's figures for a law (.png or .svg by the ending of --out).

  python -m fit plot --law=joint-moe-2025 --figure=1a --out=figure_1a.svg
  python -m fit plot --law=law.json --runs=runs.csv --out_dir=plots

The second form draws what a new fit needs: predicted against measured, isoFLOP curves, best E against memory.
"""

import os

from absl import flags

from fit import UserError, lawfile, planning
from fit import architecture as architecture_lib
from fit import runs as runs_lib

FIGURES = ("1a", "2a", "2b", "3", "4", "5", "memory")


def define_flags(f):
    flags.DEFINE_string("law", None, "A law.json, or the name of a published law.", flag_values=f)
    flags.DEFINE_enum(
        "figure", None, list(FIGURES), "Figure of the paper, or memory for best E against memory.", flag_values=f
    )
    flags.DEFINE_string("out", None, "With --figure: the picture, .png or .svg.", flag_values=f)
    flags.DEFINE_string("out_dir", None, "Without --figure: the folder for the three pictures of a fit.", flag_values=f)
    flags.DEFINE_string("runs", None, "The runs, for figure 5.", flag_values=f)
    flags.DEFINE_list(
        "flops",
        [],
        "Training budgets: several for 2a, 2b and memory, one for 1a, 3 and 4. Default: the "
        "paper's for a published law, else three over the range of the fitted runs.",
        flag_values=f,
    )
    flags.DEFINE_list("experts", None, "Numbers of experts to draw. Default: those fitted.", flag_values=f)
    architecture_lib.define_flags(f)


def run(f):
    if f.law is None:
        raise UserError("--law is missing: a law.json, or one of " + ", ".join(lawfile.PRESETS))
    if (f.figure is None) == (f.out_dir is None) or (f.figure is None) != (f.out is None):
        raise UserError("expected either --figure with --out, or --out_dir")
    fitted = lawfile.load(f.law)
    budgets = planning.positive_list(f, "flops")
    experts, architecture = planning.experts_of(f, fitted), architecture_lib.from_flags(f, fitted)
    if f.figure:
        todo = {f.figure: f.out}
    else:
        if f.runs is None:
            raise UserError("--out_dir needs --runs, for predicted against measured")
        try:
            os.makedirs(f.out_dir, exist_ok=True)
        except OSError as e:
            raise UserError(f"--out_dir={f.out_dir}: cannot be made: {e.strerror}") from e
        todo = {"5": os.path.join(f.out_dir, "predicted_against_measured.png")}
        if hasattr(fitted.law, "at_experts"):
            todo |= {
                "2a": os.path.join(f.out_dir, "isoflop.png"),
                "memory": os.path.join(f.out_dir, "best_experts_against_memory.png"),
            }
    for which, path in todo.items():
        if os.path.splitext(path)[1] not in (".png", ".svg"):
            raise UserError(f"--out={path}: expected the ending .png or .svg")
        figure, _ = draw(which, fitted, architecture, experts, budgets, f.runs)
        with runs_lib.replacing(path) as temporary:
            figure.savefig(temporary, dpi=150)
        print(path)


def draw(which, fitted, architecture, experts, budgets, runs_path):
    """(matplotlib figure, its numbers) of one of FIGURES; UserError where the law or the runs cannot give it."""
    from fit import figures, fitting

    if which == "5":
        if runs_path is None:
            raise UserError("--figure=5 needs --runs")
        runs = runs_lib.read_runs(runs_path, fitted.law.COLUMNS, mix_corpora=True)
        rule = fitted.record.get("settings", {}).get("holdout", "none")
        return figures.fit_quality(fitted, runs, fitting.held_out(runs, rule))
    low, high = figures.compute_range(fitted)
    published = "settings" not in fitted.record
    several = budgets or [planning.rounded(v) for v in (low, (low * high) ** 0.5, high)]
    one = budgets[0] if budgets else {"1a": 1e22}.get(which, 5e22) if published else planning.rounded(high)
    if which == "1a":
        return figures.memory_curves(fitted, architecture, experts, one)
    if which == "2a":
        return figures.isoflop(fitted, architecture, experts, several)
    if which == "2b":
        return figures.savings(fitted, architecture, experts, several)
    if which == "memory":
        return figures.experts_against_memory(fitted, architecture, experts, several)
    if which == "3":
        served = {} if published else dict(inference_tokens=figures.dense_optimum(fitted, architecture, one)[1])
        return figures.matched_memory(fitted, architecture, experts, one, **served)
    served, sizes = {}, [2e9, 5e9, 10e9]
    if not published:
        size, tokens = figures.dense_optimum(fitted, architecture, one)
        served, sizes = dict(inference_tokens=tokens), [0.3 * size, 0.7 * size, 1.4 * size]
    return figures.best_experts(fitted, architecture, experts, one, sizes, **served)
