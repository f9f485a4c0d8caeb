"""Draw the paper's figures for a law, as PNG, PDF or SVG.

  python -m fit plot --law=joint-moe-2025 --figure=1a --out=figure_1a.pdf
  python -m fit plot --law=law.json --figure=2a --flops=1e20,1e21 --runs=runs.csv --out=isoflop.svg
  python -m fit plot --law=law.json --runs=runs.csv --out_dir=plots --format=png,pdf

The last form draws what a new fit needs: predicted against measured with its residuals, isoFLOP curves, and the best
number of experts against memory. Budgets, sizes and numbers of experts follow from the runs that the law was fitted to;
lines are dashed where no run reaches, and bands are percentiles of the bootstrap's fits (fit law --bootstrap=100).
"""

import os

from fit.commands import flags
from fit.data.table import replacing
from fit.errors import UserError
from fit.paper import figures

OF_A_FIT = {"5": "predicted_against_measured", "2a": "isoflop", "memory": "best_experts_against_memory"}


FLAGS = (
    ("enum", "figure", None, list(figures.FIGURES), "Figure of the paper, or memory for best E against memory."),
    ("string", "out", None, "With --figure: file to write; its ending sets the format, unless --format does."),
    ("string", "out_dir", None, "Without --figure: folder for the three pictures of a fit."),
    ("list", "format", [], "png, pdf, svg, or several of them; default: png."),
    ("string", "runs", None, "Table of runs, for figure 5 and for points on the curves of 2a."),
    (
        "list",
        "flops",
        [],
        "Training budgets: several for 2a, 2b and memory, one for 1a, 3 and 4. Default: the "
        "paper's for a published law, else from the range of the fitted runs.",
    ),
    ("list", "experts", None, "Numbers of experts to draw. Default: those fitted."),
)


def define_flags(f):
    flags.define(f, FLAGS)
    flags.define_law(f)
    flags.define_columns(f)
    flags.define_shape(f)


def run(f):
    if (f.figure is None) == (f.out_dir is None) or (f.figure is None) != (f.out is None):
        raise UserError("expected either --figure with --out, or --out_dir")
    todo = paths(f)
    law = flags.law_of(f)
    budgets = flags.positive_list(f, "flops")
    experts, architecture = flags.experts_of(f, law), flags.shape_of(f, law)
    if f.out_dir and f.runs is None:
        raise UserError("--out_dir needs --runs, for predicted against measured")
    runs, out = (None, None) if f.runs is None else figures.measured(law, f.runs, flags.columns_of(f))
    if f.out_dir:
        try:
            os.makedirs(f.out_dir, exist_ok=True)
        except OSError as e:
            raise UserError(f"--out_dir={f.out_dir}: cannot be made: {e.strerror}") from e
    for which, pictures in todo.items():
        if f.out_dir and which != "5" and "n_tokens" not in law.form.columns:
            continue  # a law without tokens has only one picture
        figure, _ = figures.draw(which, law, architecture, experts, budgets, runs, out)
        for kind, path in pictures.items():
            with replacing(path) as temporary:
                figures.save(figure, temporary, kind)
            print(path)


def paths(f):
    """{figure: {format: path}} that the flags ask for; UserError where --format or an ending is none of the formats."""
    first, second, last = figures.FORMATS
    for kind in f.format:
        if kind not in figures.FORMATS:
            raise UserError(f"--format={','.join(f.format)}: found {kind!r}, expected {first}, {second} or {last}")
    if f.out_dir is not None:
        kinds = f.format or ["png"]
        return {which: {k: os.path.join(f.out_dir, f"{name}.{k}") for k in kinds} for which, name in OF_A_FIT.items()}
    stem, ending = os.path.splitext(f.out)
    if ending[1:] not in (*figures.FORMATS, *([""] if f.format else [])):
        raise UserError(f"--out={f.out}: expected the ending .{first}, .{second} or .{last}, or --format")
    return {f.figure: {k: f.out if f".{k}" == ending else f"{stem}.{k}" for k in f.format or [ending[1:]]}}
