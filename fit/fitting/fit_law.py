"""A law fitted to a table of runs, and several forms compared on it: what `fit law` and `fit.law` do."""

import dataclasses
import functools
from collections.abc import Iterator

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.settings import Settings
from fit.fitting.float64 import float64
from fit.fitting.options import FitOptions
from fit.form import Form
from fit.laws import FORMS
from fit.table import validate
from fit.table.histories import named_histories
from fit.table.mixed_columns import text_problems
from fit.table.problems import Problem
from fit.table.runs import read_runs
from fit.table.table import Table


def fit_law(table: Table, options: FitOptions, quiet: bool = True) -> Law:
    """A law fitted to the runs of a table, which is read once.

    Args:
      table: Runs with the columns that the law's form reads, and loss in nats per token.
      options: The form and how to fit it. Without a form, the one that predicts larger runs better from smaller ones.
      quiet: Whether to leave out the progress on stderr.

    Raises:
      UserError: A value in the table or in options cannot be used.
    """
    _check(table, options)
    if len(options.forms) > 1:
        raise UserError(f"--form={','.join(options.form or ())}: expected a single form")

    def settings(form: Form) -> Settings:
        """The settings to fit a law of this form with."""
        return options.settings(form, quiet)

    with float64():
        from fit.fitting import fitting, fixed_values, forms, solvers, with_rate

        complete = functools.partial(with_rate.rated_form, table=table) if options.with_rate else forms.as_it_is
        base = options.forms[0] if options.forms else forms.additive_form(table)
        runs = read_runs(table, complete(base).columns, options.mix_corpora)
        with solvers.compilation_cache():
            if options.fix and not options.with_rate:
                form = base if options.forms else fixed_values.form_to_try(base, options.fix)
                fixed_values.check_logarithms(runs, form, settings)
            if options.forms:
                form = complete(forms.with_prior(base, options.prior))
                law = fitting.law_of(fitting.fit(runs, form, settings(base)))
            else:
                law = forms.fit_best(runs, settings, options.prior, complete)
        if options.with_rate:
            law = with_rate.with_base_form(law, runs)
        elif not options.forms:
            meaning = fixed_values.meaning(law.form.name, options.fix)
            law = dataclasses.replace(law, findings=(*law.findings, *meaning))
    return dataclasses.replace(law, form=FORMS[law.form.name])  # without its prior


def compare_forms(runs: Table, options: FitOptions, quiet: bool = True) -> Json:
    """How well each of several forms fits runs, as form_comparison.compare says it, with `findings` on the runs.

    Raises UserError as fit_law.
    """
    _check(runs, options)
    with float64():
        from fit.fitting import fit_warnings, form_comparison, solvers

        with solvers.compilation_cache():
            errors = form_comparison.compare(runs, options.forms, options.settings(options.forms[0], quiet))
    return errors | dict(findings=fit_warnings.doubts_of(runs, is_rated=False))


def _check(runs: Table, options: FitOptions) -> None:
    """Raises TableError where no law should be fitted to the rows of a table as they are."""

    def histories(table: Table) -> Iterator[Problem]:
        """Rows that are checkpoints of one run."""
        return named_histories(table, options.bootstrap_by)

    further_checks: list[validate.Check] = [histories]
    if not options.mix_corpora:
        further_checks.append(text_problems)
    needed = _needed(options)
    if "n_experts" in runs and "n_experts" not in needed:  # read by every form where a table has it
        needed.append("n_experts")
    validate.check(runs, needed, further_checks)


def _needed(options: FitOptions) -> list[str]:
    """The columns that a table must have for a fit with these options."""
    columns = [name for form in options.forms for name in form.columns]
    return list(dict.fromkeys([*(columns or ("n_active", "n_tokens")), "loss"]))
