"""The commands of laws: those that need no file, fitting and predicting; and the law of learning rates."""

import dataclasses
import json
from collections.abc import Iterable

from fit import options
from fit.commands import flags
from fit.errors import UserError
from fit.fitted_law.law_files import NAMES, check_law_file, load, save
from fit.fitting import fit_law, fit_rates, rates_answer
from fit.fitting.fit_rates import RateOptions
from fit.fitting.options import FitOptions
from fit.messages import lines
from fit.messages.finding import Finding
from fit.messages.lines import Line
from fit.planning.uncertainty import odds_of_law
from fit.prediction import forecast
from fit.prediction.options import PredictOptions
from fit.render import forms_answer, law_answer, law_details
from fit.table import selection
from fit.table.files import write_text
from fit.table.table import Table, read, write


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
            prediction = forecast.predict_model(law, self)
        else:
            prediction = forecast.predict_table(law, read(self.read(self.runs)))
            write(prediction.table, self.out)
        if prediction.lines:
            print(prediction)
        flags.print_findings(prediction.findings)

    def _check_all_can_act(self) -> None:
        """Raises UserError for an option of a single model beside a table, or of a table where there is none."""
        self.check_has_table(self.runs)
        if self.runs is not None:
            self.check_no_model()


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
