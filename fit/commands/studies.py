"""The commands of fit/studies: finished runs added, the next runs, speed-ups, surfaces at equal FLOPs, and a mixture's
whole architecture."""

import dataclasses

from fit import options
from fit.commands import flags
from fit.errors import UserError
from fit.fitted_law.law_files import load
from fit.render import figures
from fit.studies.added_runs.add import add
from fit.studies.architecture_search import search_runs
from fit.studies.architecture_search.holistic import HolisticOptions, holistic
from fit.studies.next_runs import next_sweep, suggest
from fit.studies.next_runs.options import NextOptions
from fit.studies.speedup.speedup_of_runs import SpeedupOptions, speedup_of_runs
from fit.studies.surfaces.fit_surfaces import SurfaceOptions, fit_surfaces
from fit.table.files import write_text


@dataclasses.dataclass(kw_only=True)
class AddCommand(flags.OfLaw, flags.Names, flags.JsonOutput):
    """Add a finished run to the table of runs, say whether it ended as the law predicted, and fit the law again.

    python -m fit add --law=law.json --run=runs/planned --runs=runs.csv
    python -m fit add --law=law.json --run=theirs.csv --runs=runs.csv --out=new_law.json

    Of a workdir every finished branch is added; one that the table has already stays as it is. The run of another
    trainer comes as a table: python -m fit import SOURCE --out=theirs.csv makes it. A published law is not fitted
    again, and starts a table where there is none. A sweep writes its own runs.csv anew: add to a copy of it.
    """

    run_: str = options.required(
        options.text("Workdir of jmoe.train, or a table of runs, such as fit import writes."),
        ": a workdir of jmoe.train, or a table of runs",
    )
    runs: str = options.required(
        options.text("The table to add to: .csv, .jsonl or .parquet."), ": the table to add to"
    )
    out: str | None = options.text("File to write the law of all runs to (JSON), with as many draws as --law has.")
    mix_corpora: bool = options.switch("Add the run of another text.")

    def run(self) -> None:
        law = load(self.law)
        self.show(add(law, self.run_, self.runs, self.out, self.mix_corpora, self.columns, self.units))


@dataclasses.dataclass(kw_only=True)
class NextCommand(NextOptions, flags.OfLaw, flags.Columns, flags.JsonOutput):
    """Which runs to train next, so that a law's answer becomes surer: the best set within a budget of training FLOPs.

    python -m fit next --law=law.json --runs=runs.csv --flops=1e13 --target_flops=1e15 \
--emit_sweep=configs/sweeps/next.py
    python -m fit next --law=law.json --runs=runs.csv --flops=1e13 --goal=coefficients --coefficients=E_max,c
    """

    runs: str = options.required(options.text("The table of runs that the law was fitted to."))
    emit_sweep: str | None = options.text("Write the runs as a sweep file (.py) for launch.sweep.")
    base_config: str | None = options.text("Config file that --emit_sweep starts from; default: the law's own.")

    def run(self) -> None:
        if self.base_config is not None and self.emit_sweep is None:
            raise UserError("--base_config is for --emit_sweep")
        law = load(self.law)
        next_runs = suggest.suggest(law, self.read(self.runs), self)
        if self.emit_sweep is not None:
            sweep = next_sweep.sweep_source(law, self.architecture(law), next_runs, self.base_config)
            write_text(self.emit_sweep, sweep)
        self.show(next_runs)


@dataclasses.dataclass(kw_only=True)
class SpeedupCommand(SpeedupOptions, flags.Columns, flags.JsonOutput):
    """How many times the compute a law's recipe needs for the losses of other runs, and whether that grows with
    compute.

    python -m fit speedup --law=law.json --runs=variant.csv
    python -m fit speedup --law=law.json --runs=variant.csv --by=time
    python -m fit speedup --runs=both.csv --baseline=n_experts=64 --by=time

    Without a law, --baseline names runs of the same table, at several budgets, that the others are compared with.
    """

    law: str | None = options.text("A law.json, or the name of a published law.")
    runs: str = options.required(
        options.text("Table of the runs: n_active, n_tokens, n_experts, loss (.csv, .jsonl, .parquet)."),
        ": a table with n_active, n_tokens, n_experts and loss",
    )

    def run(self) -> None:
        law = None if self.law is None else load(self.law)
        result = speedup_of_runs(law, self.read(self.runs), self)
        self.show(result)
        if not self.json:
            flags.print_findings(result.findings)


@dataclasses.dataclass(kw_only=True)
class SurfaceCommand(SurfaceOptions, flags.Columns, flags.JsonOutput):
    """Fit the isoFLOP surface of each budget: the loss over total parameters and sparsity, and the best of both.

    python -m fit surface --runs=runs.csv
    python -m fit surface --runs=runs.csv --out=surface.svg

    The table has n_active, n_total, n_tokens, loss, and sparsity or n_experts with top_k. Intervals come from 100
    refits to 80% of the runs each; every refit also predicts the rest.
    """

    runs: str = options.required(
        options.text("Table of runs at several sizes and sparsities of equal FLOPs: .csv, .jsonl or .parquet."),
        ": a table of runs at several sizes and sparsities",
    )
    out: str | None = options.text("Picture of the surfaces to write: .png, .pdf or .svg.")

    def run(self) -> None:
        if self.out:
            figures.check_ending(self.out)
        surfaces = fit_surfaces(self.read(self.runs), self)
        if self.out:
            from fit.render.figures import searches  # not at the head: matplotlib takes long to import

            figures.save(searches.surfaces(surfaces.budgets), self.out)
        self.show(surfaces)


@dataclasses.dataclass(kw_only=True)
class HolisticCommand(HolisticOptions, flags.Columns, flags.JsonOutput):
    """The complete architecture of a mixture for a budget, by the holistic laws of Wan et al. 2026; or those laws
    fitted.

    python -m fit holistic --flops=1e21
    python -m fit holistic --runs=phase1/runs.csv --width_runs=phase2/runs.csv --flops=1e21
    python -m fit holistic --rank=runs.csv
    python -m fit holistic --refit=runs.csv

    The first takes the published laws and says which coefficients are published, which were recovered from the paper's
    tables and which are missing. The second fits them to runs of configs/sweeps/holistic_phase1.py and
    holistic_phase2.py. The third tests whether architectures keep their rank when the width changes. The last fits
    Eq. 2, the best FLOPs per token and tokens for each budget, once more: to runs of several sizes at each budget,
    built as the search found best.
    """

    runs: str | None = options.text("Table of runs at several M/N_a and N/N_a, to fit their laws.")
    width_runs: str | None = options.text("Table of runs at several widths, to fit the law of d_model.")
    rank: str | None = options.text(
        "Table of runs of several architectures, each at several widths, to compute their rank correlations."
    )
    refit: str | None = options.text("Table of runs of several sizes at each budget, to fit Eq. 2.")
    out: str | None = options.text("With --runs or --width_runs: picture to write, .png, .pdf or .svg.")

    def run(self) -> None:
        if self.out is not None and self.runs is None and self.width_runs is None:
            raise UserError("--out needs --runs or --width_runs")
        if self.out:
            figures.check_ending(self.out)
        self.check_has_table(self.runs, self.width_runs, self.rank, self.refit)
        ratio_runs = search_runs.read(self.read(self.runs)) if self.runs else None
        width_runs = search_runs.read(self.read(self.width_runs)) if self.width_runs else None
        result = holistic(ratio_runs, width_runs, self.read(self.rank), self.read(self.refit), self)
        if self.out and result.fit:
            from fit.render.figures import searches  # not at the head: matplotlib takes long to import

            figures.save(searches.architectures(result.fit.budgets, ratio_runs, width_runs), self.out)
        self.show(result)
