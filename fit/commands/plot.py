"""Draw the paper's figures for a law, as PNG, PDF or SVG.

  python -m fit plot --law=joint-moe-2025 --figure=1a --out=figure_1a.pdf
  python -m fit plot --law=law.json --figure=2a --flops=1e20,1e21 --runs=runs.csv --out=isoflop.svg
  python -m fit plot --law=law.json --runs=runs.csv --out_dir=plots --format=png,pdf

The last form draws what a new fit needs: predicted against measured with its residuals, isoFLOP curves, and the best
number of experts against memory. Budgets, sizes and numbers of experts follow from the runs that the law was fitted to;
lines are dashed where no run reaches, and bands are percentiles of the bootstrap's fits (fit law --bootstrap=100).
"""

import dataclasses
import os

from fit.asked import fields, plans
from fit.commands import flags
from fit.data.files import replacing
from fit.errors import UserError
from fit.paper import figures

OF_A_FIT = {"5": "predicted_against_measured", "2a": "isoflop", "memory": "best_experts_against_memory"}


@dataclasses.dataclass(kw_only=True)
class Flags(plans.Shape, flags.Law, flags.Columns):
    figure: str | None = fields.choice(
        "Figure of the paper, or memory for best E against memory.", None, figures.FIGURES
    )
    out: str | None = fields.text("With --figure: file to write; its ending sets the format, unless --format does.")
    out_dir: str | None = fields.text("Without --figure: folder for the three pictures of a fit.")
    format: tuple[str, ...] = fields.several("png, pdf, svg, or several of them; default: png.")
    runs: str | None = fields.text("Table of runs, for figure 5 and for points on the curves of 2a.")
    flops: tuple[float, ...] = fields.numbers(
        "Training budgets: several for 2a, 2b and memory, one for 1a, 3 and 4. Default: the "
        "paper's for a published law, else from the range of the fitted runs.",
        (),
    )
    experts: tuple[int, ...] | None = fields.experts("Numbers of experts to draw. Default: those fitted.")


def run(asked: Flags) -> None:
    if (asked.figure is None) == (asked.out_dir is None) or (asked.figure is None) != (asked.out is None):
        raise UserError("expected either --figure with --out, or --out_dir")
    todo = paths(asked)
    law = asked.loaded()
    experts, architecture = plans.experts_of(law, asked.experts), asked.architecture(law)
    if asked.out_dir and asked.runs is None:
        raise UserError("--out_dir needs --runs, for predicted against measured")
    runs, out = (None, None) if asked.runs is None else figures.measured(law, asked.runs, asked.columns)
    if asked.out_dir:
        try:
            os.makedirs(asked.out_dir, exist_ok=True)
        except OSError as e:
            raise UserError(f"--out_dir={asked.out_dir}: cannot be made: {e.strerror}") from e
    for which, pictures in todo.items():
        if asked.out_dir and which != "5" and "n_tokens" not in law.form.columns:
            continue  # a law without tokens has only one picture
        figure, _ = figures.draw(which, law, architecture, experts, asked.flops, runs, out)
        for kind, path in pictures.items():
            with replacing(path) as temporary:
                figures.save(figure, temporary, kind)
            print(path)


def paths(asked: Flags) -> dict[str, dict[str, str]]:
    """{figure: {format: path}} that the flags ask for; UserError where --format or an ending is none of the formats."""
    first, second, last = figures.FORMATS
    for kind in asked.format:
        if kind not in figures.FORMATS:
            raise UserError(f"--format={','.join(asked.format)}: found {kind!r}, expected {first}, {second} or {last}")
    if asked.figure is None or asked.out is None:
        kinds, folder = asked.format or ["png"], asked.out_dir or "."
        return {which: {k: os.path.join(folder, f"{name}.{k}") for k in kinds} for which, name in OF_A_FIT.items()}
    stem, ending = os.path.splitext(asked.out)
    if ending[1:] not in (*figures.FORMATS, *([""] if asked.format else [])):
        raise UserError(f"--out={asked.out}: expected the ending .{first}, .{second} or .{last}, or --format")
    return {asked.figure: {k: asked.out if f".{k}" == ending else f"{stem}.{k}" for k in asked.format or [ending[1:]]}}
