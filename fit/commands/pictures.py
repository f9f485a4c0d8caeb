"""The paper's tables and figures for any law, and the pages: the report and the planner."""

import dataclasses
import itertools
import os

from fit import options
from fit.commands import flags
from fit.errors import UserError
from fit.fitted_law.law_files import load
from fit.messages import lines
from fit.planning.inputs.chip_flags import kind_and_count
from fit.planning.inputs.options import ShapeOptions, experts_to_compare
from fit.render import figures, report, tables
from fit.render.figures.draw import draw
from fit.render.planner import page
from fit.render.plot_options import FigureOptions
from fit.render.report_options import ReportOptions
from fit.results import JSON_VERSION
from fit.table.files import check_writable
from fit.table.table import read, write

DEFAULT_LAW = "joint-moe-2025"
OF_A_FIT = {"5": "predicted_against_measured", "2a": "isoflop", "memory": "best_experts_against_memory"}


@dataclasses.dataclass(kw_only=True)
class TableCommand(ShapeOptions, flags.OfLaw, flags.JsonOutput):
    """Make a table of the paper for a law: 1 (compute-optimal), 2 (best E under memory), 4 (law at each E), 5
    (bootstrap).

    python -m fit table --law=joint-moe-2025 --which=2
    python -m fit table --law=law.json --which=5 --out=table_5.csv
    """

    which: str = options.required(
        options.choice("Which table of the paper to print.", None, tables.TABLES), ": 1, 2, 4 or 5"
    )
    out: str | None = options.text("Also write the table to this file (.csv, .jsonl, .parquet).")
    flops: tuple[float, ...] = options.numbers(
        "Training budgets for tables 1, 2 and 5. Default: the paper's, or near the fitted range.", ()
    )
    memory_gb: tuple[float, ...] = options.numbers(
        "Memories for table 2. Default: 24, 80 and 640, or set by the best dense model.", ()
    )
    kv_tokens: float | None = options.number(
        "Tokens in table 2's cache. Default: 16,384; 0 if a dense model sets the memories.", least=0
    )
    experts: tuple[int, ...] | None = options.experts("Numbers of experts. Default: those fitted.")

    def run(self) -> None:
        self.check_readers("which", [self.which], tables.READERS)
        law = load(self.law)
        experts = () if self.experts is None else experts_to_compare(law, self.experts)
        architecture = self.architecture(law)
        rows = tables.rows_of(self.which, law, architecture, experts, self.flops, self.memory_gb, self.kv_tokens)
        if self.json:
            flags.print_json(dict(version=JSON_VERSION, rows=rows))
        else:
            note = tables.note(self.which, law, rows)
            print("\n".join(text for text in (tables.text(rows), note) if text))
        if self.out is not None:
            write(read(rows), self.out)


@dataclasses.dataclass(kw_only=True)
class PlotCommand(FigureOptions, flags.OfLaw, flags.Columns):
    """Draw the paper's figures for a law, as PNG, PDF or SVG.

      python -m fit plot --law=joint-moe-2025 --figure=1a --out=figure_1a.pdf
      python -m fit plot --law=law.json --figure=2a --flops=1e20,1e21 --runs=runs.csv --out=isoflop.svg
      python -m fit plot --law=joint-moe-2025 --figure=hours --chips=H100:64 --out=hours.png
      python -m fit plot --law=law.json --runs=runs.csv --out_dir=plots --format=png,pdf

    The figure hours has the least loss against hours on --chips, each model at its own modelled speed. The last form
    draws what a new fit needs: predicted against measured with its residuals, isoFLOP curves, and the best number of
    experts against memory. Budgets, sizes and numbers of experts follow from the runs that the law was fitted to; lines
    are dashed where no run reaches, and bands are percentiles of the bootstrap's fits (fit law --bootstrap=100).
    """

    figure: str | None = options.choice(
        "Figure of the paper; memory, the best E against memory; compute, the loss against compute; or hours, the loss "
        "against hours on --chips.",
        None,
        (*figures.FIGURES, figures.COMPUTE, *figures.ON_CHIPS),
    )
    out: str | None = options.text("With --figure: file to write; its ending sets the format, unless --format does.")
    out_dir: str | None = options.text("Without --figure: folder for the three pictures of a fit.")
    format: tuple[str, ...] = options.words("png, pdf, svg, or several of them; default: png.")
    runs: str | None = options.text("Table of runs, for figure 5 and for points on the curves of 2a and compute.")

    def run(self) -> None:
        if (self.figure is None) == (self.out_dir is None) or (self.figure is None) != (self.out is None):
            raise UserError("expected either --figure with --out, or --out_dir")
        if self.out_dir and self.runs is None:
            raise UserError("--out_dir needs --runs, for predicted against measured")
        paths_of_figures = self.paths()
        self.check_figures(paths_of_figures, has_runs=self.runs is not None)
        self.check_has_table(self.runs)
        law = load(self.law)
        experts = experts_to_compare(law, self.experts)
        architecture = self.architecture(law)
        measured = figures.measured(law, self.read(self.runs))
        self._make_folder()
        for path in itertools.chain(*paths_of_figures.values()):
            check_writable(path)
        for which, paths in paths_of_figures.items():
            if self.out_dir and which != "5" and "n_tokens" not in law.form.columns:
                continue  # a law without tokens has only one picture
            figure, _ = draw(
                which, law, architecture, experts, self.budgets, measured, chips=self.chips, speeds=self.speeds
            )
            for path in paths:
                figures.save(figure, path)
                print(path)

    def _make_folder(self) -> None:
        """Makes the folder of --out_dir where there is none. Raises UserError where it cannot be made."""
        if self.out_dir is None:
            return
        try:
            os.makedirs(self.out_dir, exist_ok=True)
        except OSError as e:
            raise UserError(f"--out_dir={self.out_dir}: cannot be made: {e.strerror}") from e

    def paths(self) -> dict[str, list[str]]:
        """{figure: paths} to write. Raises UserError where --format or an ending is none of the formats."""
        for kind in self.format:
            if kind not in figures.FORMATS:
                raise UserError(f"--format={','.join(self.format)}: found {kind!r}, expected pdf, png or svg")
        stem, ending = os.path.splitext(self.out or "")
        is_told_by_format = bool(self.format) and not ending
        if self.out and not is_told_by_format:
            figures.check_ending(self.out, ", or --format")
        if self.figure:
            stems = {self.figure: stem}
        else:
            stems = {which: os.path.join(self.out_dir or "", name) for which, name in OF_A_FIT.items()}
        kinds = self.format
        if not kinds:
            kinds = (ending.removeprefix("."),) if self.out else ("png",)
        return {which: [f"{stem}.{kind}" for kind in kinds] for which, stem in stems.items()}


@dataclasses.dataclass(kw_only=True)
class ReportCommand(ReportOptions, flags.OfLaw, flags.Columns):
    """Say what runs and their law found, in short, and write one HTML page with all of it: the decision and its picture
    first, then every table and figure of the paper for this law, and the numbers behind them.

    python -m fit report --law=law.json --runs=runs.csv --out=report.html
    python -m fit report --law=joint-moe-2025 --plan='--flops=1e22 --memory_gb=80' --out=budget.html
    python -m fit report --law=joint-moe-2025 --plan=plan.json        # by fit plan --json

    With --plan the page opens with the plan, its place on the compute frontier, best by hours beside best by FLOPs on
    the plan's chips, what the laws disagree about, and numbers to check.
    """

    runs: str | None = options.text("Table of runs, for predicted against measured and for points on the curves.")
    out: str = options.text("File to write the page to.", "report.html")

    def run(self) -> None:
        self.check_has_table(self.runs)
        written = report.write_report(load(self.law), self.read(self.runs), self.out, self)
        if written.plan:
            print(written.plan)
        if written.summary:
            print(lines.text(written.summary))
        print(f"written to {self.out}")


@dataclasses.dataclass(kw_only=True)
class PageCommand(flags.Columns):
    """Write one self-contained HTML page that plans with a law in the browser: limits to slide, answers and pictures.

    python -m fit page --law=law.json --runs=runs.csv --out=planner.html
    python -m fit page --law=law.json --chips=H100:512 --out=planner.html
    """

    law: tuple[str, ...] = options.words(
        "A law.json, or the name of a published law. The page always includes all published laws.", repeated=True
    )
    runs: str | None = options.text("Table of runs of the first law, drawn over its curves.")
    chips: str | None = options.text(
        "The chips, such as H100:512, on which the page plans by hours at modelled speeds with the first law; and on "
        f"fewer, of which it has the powers of two. Default: {page.CHIP}:{page.MOST_CHIPS} for a published law, else "
        "one."
    )
    out: str = options.text("File to write the page to.", "planner.html")

    def run(self) -> None:
        self.check_has_table(self.runs)
        laws = [load(law) for law in self.law or (DEFAULT_LAW,)]
        measured = figures.measured(laws[0], self.read(self.runs))
        chips = None if self.chips is None else kind_and_count(self.chips)
        print(f"written to {page.write(laws, measured, self.out, chips)}")
