"""Comparison of several forms of law, fitted to the same runs.

aic, bic   n ln(RSS / n) + 2 k or k ln n, of the n fitted runs' log losses; k counts the coefficients and the noise.
           Both assume independent errors, but runs of one trunk share a part of theirs.
left_out   errors on each budget of a fit to all other budgets
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Json
from fit.errors import UserError
from fit.fitting import fitting, isoflop, search
from fit.fitting.problem import Problem, Settings, prepare
from fit.form import Form
from fit.table.runs import Runs, errors, read_runs, rms, split, subset
from fit.table.table import Table

PARTS = 8  # equal parts of the runs by compute, where several runs share no budget


def compare(path: str | Table, forms: Sequence[Form], settings: Settings) -> Json:
    """How well each of several forms fits the runs of a table.

    Returns:
      {runs, budgets, budgets_by, forms, isoflop}, ready for JSON. forms: for each {form, coefficients, fitted,
      held_out, aic, bic, left_out}, with errors as runs.errors gives them; left_out is None where the other budgets do
      not determine the form. isoflop: parabolas as isoflop.profiles gives them, where runs of equal FLOPs allow any.

    Raises:
      UserError: where the table cannot be read or the runs cannot determine a form.
    """
    columns = tuple(dict.fromkeys(name for form in forms for name in form.columns))
    runs = read_runs(path, columns, settings.mix_corpora)
    train, validation = split(runs, settings.holdout, settings.weights, settings.bootstrap_by)
    budgets, by = budgets_of(train)
    rows = [_row(form, train, validation, budgets, settings) for form in forms]
    n_experts = train.table.numbers("n_experts")[train.index] if "n_experts" in train.table else None
    profiles = isoflop.profiles(train.n_active, train.flops, train.loss, n_experts, settings.percentiles, settings.seed)
    return dict(runs=len(train), budgets=int(budgets.max()) + 1, budgets_by=by, forms=rows, isoflop=profiles)


def _row(form: Form, train: Runs, validation: Runs, budgets: Array, settings: Settings) -> Json:
    """The comparison's row for one form."""
    fit, problem = fitting.fit_by_default(form, train, settings)
    fitted_errors = _errors(form, fit, train)
    n = len(train)
    k = len(form.names) + 1
    deviance = n * np.log(max(fitted_errors["rmse_log"], 1e-15) ** 2)
    return dict(
        form=form.name,
        coefficients=fit.coefficients,
        fitted=fitted_errors,
        aic=deviance + 2 * k,
        bic=float(deviance + k * np.log(n)),
        left_out=left_out(problem, fit, budgets),
        held_out=_errors(form, fit, validation) if len(validation) else None,
    )


def _errors(form: Form, fit: search.Fit, runs: Runs) -> Json:
    """The errors of a fit on runs."""
    return errors(form.log_loss(fit.params, runs.columns), runs).to_dict()


def budgets_of(runs: Runs) -> tuple[Array, str]:
    """Labels int [n_runs] of the budget of each run, and what a budget is, in words.

    It is n_tokens or else the training FLOPs to two digits, where most values have two runs or more; else equal parts
    of the runs by training FLOPs.
    """
    rounded = np.array([float(f"{flops:.1e}") for flops in runs.flops])
    for values, by in ((runs.n_tokens, "n_tokens"), (rounded, "training FLOPs")):
        distinct, labels = np.unique(values, return_inverse=True)
        if 1 < len(distinct) <= len(runs) / 2:
            return labels, by
    order = np.argsort(np.argsort(runs.flops, kind="stable"), kind="stable")
    return order * min(PARTS, len(runs)) // len(runs), "parts of the training FLOPs"


def left_out(problem: Problem, fit: search.Fit, budgets: Array) -> Json | None:
    """Errors over all runs, those of each budget predicted by a law fitted to all other budgets.

    Args:
      fit: whose best starts each of these fits begins at.
      budgets: labels int [n_runs].

    Returns:
      Errors as runs.errors gives them, and by_budget; None where the other budgets do not determine the form.
    """
    form = problem.form
    runs = problem.runs
    predicted = np.empty(len(runs))
    for budget in range(budgets.max() + 1):
        in_budget = budgets == budget
        without = prepare(form, dataclasses.replace(runs, weights=runs.weights * ~in_budget), problem.settings)
        try:
            search.check_enough(without)
        except UserError:
            return None
        params = search.again(without, fit).params
        predicted[in_budget] = form.log_loss(params, subset(runs, in_budget).columns)
    error = predicted - np.log(runs.loss)
    by_budget = [rms(error[budgets == budget]) for budget in range(budgets.max() + 1)]
    return errors(predicted, runs).to_dict() | dict(by_budget=by_budget)
