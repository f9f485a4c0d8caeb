"""Runs of other tools; laws: fitting them, predicting with them, comparing other runs with them; and the law of
learning rates."""

import dataclasses
import json
from collections.abc import Iterable
from typing import ClassVar

from fit import options
from fit.commands import flags
from fit.errors import UserError
from fit.fitted_law.law import NAMES, check_law_file, load, save
from fit.fitting import fit_law, fit_rates, rates_answer
from fit.fitting.fit_rates import RateOptions
from fit.fitting.options import FitOptions
from fit.messages import lines
from fit.messages.finding import Finding
from fit.messages.lines import Line
from fit.planning.uncertainty import odds_of_law
from fit.prediction import forecast
from fit.prediction.forecast import PredictOptions
from fit.render import forms_answer, law_answer, law_details
from fit.studies.speedup.of_runs import SpeedupOptions, of_runs
from fit.table import selection
from fit.table.files import write_text
from fit.table.importers import import_answer, tools
from fit.table.reading import with_set
from fit.table.table import Table, checked_units, read, write


@dataclasses.dataclass(kw_only=True)
class ImportCommand(flags.Columns):
    """Make a table of runs of what another tool wrote: Weights & Biases, trackio, nanochat, TensorBoard, MaxText,
    levanter, Hugging Face.

    python -m fit import export.csv --out=runs.csv --where=state=finished --columns=loss:eval/loss,n_tokens:tokens
    python -m fit import logs --out=runs.csv --columns=loss:eval/loss --tokens_per_step=524288 --sizes=models.csv
    python -m fit import wandb:entity/project --out=runs.csv --where=state=finished
    python -m fit import checkpoints --out=runs.csv

    SOURCE is a file or a folder: a table of runs or a chart exported by Weights & Biases (.csv, .parquet), a project of
    trackio (.db, .parquet), nanochat's results.csv, a folder of TensorBoard event files, a metrics file of MaxText,
    levanter's tracker_metrics.jsonl, checkpoints with a trainer_state.json. Or it is a project on the server of Weights
    & Biases, wandb:ENTITY/PROJECT, read with the key WANDB_API_KEY.
    All that it does not say is asked for at once, with the command that would work. Only finished runs belong into a
    law: give --where=state=finished.
    """

    SOURCE: ClassVar[str] = "SOURCE"  # what the command line wants beside flags
    out: str = options.required(options.text("Table to write: .csv, .jsonl or .parquet."), ": the table to write")
    tool: str | None = options.choice("Whose files these are; by default their names say it.", None, tools.TOOLS)
    sizes: str | None = options.text("Table with the column run and others for it: n_active, n_experts, ...")
    tokens_per_step: float | None = options.number("Tokens of a batch, where the source counts steps only.", least=1)

    def run(self, source: str) -> None:
        tool, rows = tools.runs(source, self.tool)
        runs = selection.select(tools.as_table(source, rows, self.columns, tool), selection.parse(self.where))
        joined = tools.with_sizes(runs, self.sizes)
        if self.tokens_per_step is not None:
            joined = tools.with_tokens(joined, self.tokens_per_step)
        joined = with_set(joined, self.set, checked_units(self.units))
        table = tools.table(joined, self.set, self.sizes)
        write(table, self.out)
        for line in import_answer.answer(source, tool, len(rows), runs, self.units):
            print(line)
        flags.print_findings(import_answer.warnings(joined))
        print(f"columns: {', '.join(table.columns)}\nwritten to {self.out}")


@dataclasses.dataclass(kw_only=True)
class LawsCommand(options.Options):
    """List the laws that need no file, published ones and our own: the columns that each reads, the runs it was fitted
    to, and its source. --law takes their names.

    python -m fit laws
    """

    def run(self) -> None:
        print(lines.text(map(_built_in, NAMES)))


def _built_in(name: str) -> Line:
    """A law that needs no file: the columns it reads, the runs it was fitted to, and its source."""
    law = load(name)
    rows = [
        f"reads {', '.join(law.form.columns)}",
        f"fitted to {law.ranges_in_words or 'runs whose range is not known'}",
        law.source or "our own runs, on bytes of source code (results/)",
    ]
    return Line(name, detail=tuple(f"    {row}" for row in rows))


@dataclasses.dataclass(kw_only=True)
class LawCommand(FitOptions, flags.Columns):
    """Fit a law to a table of runs with the columns n_active, n_tokens, n_experts and loss (nats per token).

    python -m fit law --runs=runs.csv --out=law.json --holdout=largest-compute:3 --bootstrap=100
    python -m fit law --runs=runs.csv --form=joint,chinchilla,sparsity
    python -m fit law --runs=theirs.jsonl --columns=loss:val_loss,n_tokens:D --out=law.json --fix=E_max=290.4521,c=1.2
    """

    runs: str = options.required(options.text("Table of runs: .csv, .jsonl or .parquet."))
    out: str | None = options.text("File to write the law to (JSON).")
    verbose: bool = options.switch("Also print coefficients, errors on all runs, scatter, intervals and tables.")

    def run(self) -> None:
        if len(self.forms) > 1:
            self._compare_forms()
            return
        if self.out is None:
            raise UserError("--out is missing")
        check_law_file(self.out)
        law = fit_law.fit_law(self.table(), self, quiet=False)
        save(law, self.out)
        answer = law_answer.answer(law, odds_of_law.odds_at_most_compute(law))
        self._show(answer, law_details.details(law), law_details.findings(law))

    def table(self) -> Table:
        """The table of runs, after a line on what --where leaves out of it."""
        table = read(self.read(self.runs))
        if table.left_out:
            print(f"{self.runs}: {len(table)} runs; left out by --where: {selection.left_out_in_words(table.left_out)}")
        return table

    def _compare_forms(self) -> None:
        """Prints how well each form fits the runs."""
        if self.out is not None:
            raise UserError(f"--form={','.join(self.form or ())}: --out is for a single form")
        errors = fit_law.compare_forms(self.table(), self, quiet=False)
        self._show(forms_answer.answer(errors), forms_answer.details(errors), errors["findings"])

    def _show(self, answer: Iterable[Line], details: Iterable[Line], findings: Iterable[Finding]) -> None:
        """Prints the answer and, if asked for, the details and the warnings; else the warnings go to stderr."""
        written = [] if self.out is None else [law_answer.written(self.out, self.verbose)]
        if self.verbose:
            print(lines.text(lines.with_details(answer, [*details, *lines.warnings(findings), *written])))
            return
        print(lines.text([*answer, *written]))
        flags.print_findings(findings)


@dataclasses.dataclass(kw_only=True)
class PredictCommand(PredictOptions, flags.OfLaw, flags.Columns):
    """Predict the loss, in nats per token, of one model or of a table of models, and say how far measured losses are
    off.

    python -m fit predict --law=joint-moe-2025 --n_active=1e9 --n_tokens=2e10 --n_experts=8
    python -m fit predict --law=law.json --runs=models.csv --out=predicted.csv
    """

    runs: str | None = options.text("A table of models (.csv, .jsonl, .parquet) instead of a single one.")
    out: str | None = options.text(
        "With --runs: file for the table, with added columns predicted_loss, outside_fitted_range and, if the law "
        "holds bootstrap draws, predicted_loss_low and _high (of a new run) and law_loss_low and _high (of the law "
        "itself)."
    )

    def run(self) -> None:
        if (self.runs is None) != (self.out is None):
            raise UserError("--runs and --out go together")
        self._check_all_can_act()
        law = load(self.law)
        if self.runs is None or self.out is None:
            prediction = forecast.of_model(law, self)
        else:
            prediction = forecast.of_table(law, read(self.read(self.runs)))
            write(prediction.table, self.out)
        if prediction.lines:
            print(prediction)
        flags.print_findings(prediction.findings)

    def _check_all_can_act(self) -> None:
        """Raises UserError for an option of a single model beside a table, or of a table where there is none."""
        self.check_can_act(self.runs)
        if self.runs is not None:
            self.check_no_model()


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
        result = of_runs(law, self.read(self.runs), self)
        self.show(result)
        if not self.json:
            flags.print_findings(result.findings)


@dataclasses.dataclass(kw_only=True)
class LrCommand(RateOptions, flags.Columns):
    """Fit the law of peak learning rates, Eq. 10: ln LR = constant + n_active ln(n_active) + n_experts ln(n_experts).

    python -m fit lr --runs=runs.csv --experts=1,8
    python -m fit lr --runs=theirs.csv --columns=peak_learning_rate:lr,batch_tokens:batch --with_tokens --with_batch
    python -m fit lr --runs=runs.csv --n_active=1e9 --n_experts=8

    Takes the best learning rate of each model from runs that differ in peak_learning_rate alone, and fits by least
    squares; numbers of experts that --experts leaves out are predicted, as a check (the paper fits 1 and 8, checks 4
    and 32). Models tried at fewer than three rates, or best at the end of their grid, are not fitted. Prints what other
    rates than the best cost, and the coefficients as fields of a config.
    """

    runs: str = options.required(
        options.text(
            "Table of runs with n_active, n_experts, n_tokens, loss and peak_learning_rate (.csv, .jsonl, .parquet)."
        ),
        ": a table with the column peak_learning_rate, as launch.sweep writes it",
    )
    out: str | None = options.text("File to write the coefficients to (JSON).")

    def run(self) -> None:
        rates = fit_rates.fit_law(read(self.read(self.runs)), self)
        print(lines.text(rates_answer.of_fit(rates)))
        if self.out is not None:
            write_text(self.out, json.dumps(rates.to_dict(), indent=1, default=float))
