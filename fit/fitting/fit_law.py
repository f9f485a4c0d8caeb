"""A law fitted to a table of runs, and several forms compared on it: what `fit law` and `fit.law` do."""

import functools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitting.float64 import float64
from fit.fitting.options import FitOptions
from fit.form import Form
from fit.laws import FORMS
from fit.table import validate
from fit.table.histories import named_histories
from fit.table.mixed_columns import text_problems
from fit.table.problems import Problem
from fit.table.table import Table, plain

if TYPE_CHECKING:
    from fit.fitting.problem import Settings


def fit_law(runs: Table, options: FitOptions, quiet: bool = True) -> Law:
    """A law fitted to runs.

    Args:
      runs: A table with the columns that the law's form reads, and loss in nats per token.
      options: The form and how to fit it. Without a form, the one that predicts larger runs better from smaller ones.
      quiet: Whether to leave out the progress on stderr.

    Raises:
      UserError: A value in runs or options cannot be used.
    """
    _check(runs, options)
    if len(options.forms) > 1:
        raise UserError(f"--form={','.join(options.form or ())}: expected a single form")

    def settings(form: Form) -> "Settings":
        """The settings to fit a law of this form with."""
        return options.settings(form, quiet)

    with float64():
        from fit.fitting import fitting, fixed_values, forms, solvers

        with solvers.compilation_cache():
            if options.fix and not options.with_rate:
                form = options.forms[0] if options.forms else fixed_values.form_to_try(runs, options.fix)
                fixed_values.check_logarithms(runs, form, settings)
            if options.with_rate:
                record = _record_with_rates(runs, options, settings)
            elif options.forms:
                form = forms.with_prior(options.forms[0], options.prior)
                record = fitting.record_of(fitting.fit_table(runs, form, settings(form)))
            else:
                record = forms.fit_best(runs, settings, options.prior)
                record["warnings"] += fixed_values.meaning(record["form"], options.fix)
    record = json.loads(json.dumps(plain(record), allow_nan=False))  # as reading a law.json gives it
    chosen = FORMS[record["form"]]
    coefficients = {name: float(record["coefficients"][name]) for name in chosen.names}
    return Law("the fitted law", chosen, coefficients, record)


def _record_with_rates(runs: Table, options: FitOptions, settings: Callable[[Form], "Settings"]) -> Json:
    """The record of a law that is fitted together with the best rates and batches of its runs.

    Raises UserError as fit_law.
    """
    from fit.fitting import fitting, forms, rated, reweighted

    if options.forms:
        form = rated.rated_form(forms.with_prior(options.forms[0], options.prior), runs)
        record = fitting.record_of(fitting.fit_table(runs, form, settings(form.base)))
    else:
        record = forms.fit_best(runs, settings, options.prior, functools.partial(rated.rated_form, table=runs))
    return reweighted.split_record(record, runs)


def compare_forms(runs: Table, options: FitOptions, quiet: bool = True) -> Json:
    """How well each of several forms fits runs, as form_comparison.compare says it, with `warnings`.

    Raises UserError as fit_law.
    """
    _check(runs, options)
    with float64():
        from fit.fitting import fit_warnings, form_comparison, solvers

        with solvers.compilation_cache():
            errors = form_comparison.compare(runs, options.forms, options.settings(options.forms[0], quiet))
    doubts = [*validate.doubts(runs), *fit_warnings.mixed_runs(runs, is_rated=False)]
    return errors | dict(warnings=[f"{runs.path}: {doubt}" for doubt in doubts])


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
