"""Several forms fitted to the same runs and set side by side: which of them the data call for.

aic, bic   n ln(RSS / n) + 2 k or k ln n, of the n fitted runs' log losses; k counts the coefficients and the noise.
           Both assume independent errors, but runs of one trunk share a part of theirs.
left_out   errors on each budget of a fit to all other budgets
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Json
from fit.data.runs import Runs, read_runs, subset
from fit.data.table import Table
from fit.equal_flops import isoflop
from fit.errors import UserError
from fit.fitting import fitting, holdout, search
from fit.fitting.problem import Problem, Settings, prepare
from fit.form import Form

PARTS = 8  # equal parts of the runs by compute, where several runs share no budget


def compare(
    path: str | Table, forms: Sequence[Form], settings: Settings, options: fitting.Options, quiet: bool = False
) -> Json:
    """How well each of the Forms fits the runs in `path`: {runs, budgets, budgets_by, forms: [{form, coefficients,
    fitted, held_out, aic, bic, left_out}], isoflop}, ready for JSON. All are fitted to the same runs. Raises UserError.

    left_out: errors as holdout.errors gives; None where the other budgets do not determine the form. isoflop: parabolas
    as isoflop.profiles gives them, where runs of equal FLOPs allow any.
    """
    columns = tuple(dict.fromkeys(name for form in forms for name in form.columns))
    runs = read_runs(path, columns, options.mix_corpora)
    train, validation = holdout.split(runs, options.holdout, options.weights, options.bootstrap_by)
    budgets, by = budgets_of(train)
    rows = []
    for form in forms:
        fit, problem = fitting.fit_by_default(form, train, settings, quiet)
        errors = holdout.errors(form, fit.free, train)
        n, k = len(train), len(form.names) + 1
        spread = n * np.log(max(errors["rmse_log"], 1e-15) ** 2)
        row = dict(form=form.name, coefficients=fit.coefficients, fitted=errors, aic=spread + 2 * k)
        row |= dict(bic=float(spread + k * np.log(n)), left_out=left_out(problem, fit, budgets))
        rows.append(row | dict(held_out=holdout.errors(form, fit.free, validation) if len(validation) else None))
    n_experts = train.table.numbers("n_experts")[train.index] if "n_experts" in train.table else None
    profiles = isoflop.profiles(train.n_active, train.flops, train.loss, n_experts, options.percentiles, settings.seed)
    return dict(runs=len(train), budgets=int(budgets.max()) + 1, budgets_by=by, forms=rows, isoflop=profiles)


def budgets_of(runs: Runs) -> tuple[Array, str]:
    """(int [n_runs], a label for each run's budget; what a budget is, in words): n_tokens or else the training FLOPs to
    two digits, where most values have two runs or more; else equal parts of the runs by training FLOPs."""
    rounded = np.array([float(f"{flops:.1e}") for flops in runs.flops])
    for values, by in ((runs.n_tokens, "n_tokens"), (rounded, "training FLOPs")):
        distinct, labels = np.unique(values, return_inverse=True)
        if 1 < len(distinct) <= len(runs) / 2:
            return labels, by
    order = np.argsort(np.argsort(runs.flops, kind="stable"), kind="stable")
    return order * min(PARTS, len(runs)) // len(runs), "parts of the training FLOPs"


def left_out(problem: Problem, fit: search.Fit, budgets: Array) -> Json | None:
    """Errors over all runs, those of each budget predicted by a law fitted to all other budgets, begun at the best
    starts of `fit`; None where the others do not determine the form."""
    form, runs = problem.form, problem.runs
    predicted = np.empty(len(runs))
    for budget in range(budgets.max() + 1):
        mine = budgets == budget
        without = prepare(form, dataclasses.replace(runs, weights=runs.weights * ~mine), problem.settings)
        try:
            search.check_enough(without)
        except UserError:
            return None
        predicted[mine] = form.log_loss(search.again(without, fit).free, subset(runs, mine).columns)
    error = predicted - np.log(runs.loss)
    worst = np.abs(np.expm1(error))
    return dict(
        rmse_nats=holdout.rms(np.exp(predicted) - runs.loss),
        rmse_log=holdout.rms(error),
        mean_relative_error=float(worst.mean()),
        by_budget=[holdout.rms(error[budgets == budget]) for budget in range(budgets.max() + 1)],
    )
