"""Which form is fitted: the one taken unless it is said (fit_best), several set side by side (compare), one whose
exponents are drawn to another law's (drawn_to).

Unless told one, `fit law` takes the additive law or the coupled one, by how well they predict the fitted runs of more
compute from those of less; where the runs are too few to say, the coupled one. They are fitted with the weights
DEFAULT_WEIGHTS, so that a law is best where it will be asked: at the runs of most compute and beyond
(benchmarks/README.md says what they are worth, and what the coupled form is for few runs).

Of several forms, this says which of them the data call for:

aic, bic   n ln(RSS / n) + 2 k or k ln n, of the n fitted runs' log losses; k counts the coefficients and the noise.
           Both assume independent errors, but runs of one trunk share a part of theirs.
left_out   errors on each budget of a fit to all other budgets
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from fit.aliases import Array, Json
from fit.data.runs import Runs, errors, read_runs, rms, split, subset
from fit.data.table import Table
from fit.equal_flops import isoflop
from fit.errors import UserError
from fit.fitting import fitting, search, sure
from fit.fitting.problem import Problem, Settings, prepare
from fit.form import Form, Prior
from fit.lawbook.lawfile import Law
from fit.laws import FORMS
from fit.laws._coupled import SUFFIX

DEFAULT_WEIGHTS = "compute^0.6"
# Below this share of the coupled law's error the additive law's must be, to be taken: the coupled law has it in it, as
# k = 1, and over few runs the smaller of two such errors is often so by chance (benchmarks/README.md).
BETTER = 0.7
PARTS = 8  # equal parts of the runs by compute, where several runs share no budget
# Standard deviations of an exponent, as a share of it, and of ln(1/k - 1): how two sweeps of the benchmark's tables
# differ (docs/laws.md, "What another law knows").
SPREAD, SPREAD_OF_SHARE = 1 / 3, 0.7
LARGEST_SHARE = 0.95  # so that a law with k = 1 has a mean to draw to


def fit_best(table: Table, settings_of: Callable[[Form], Settings], prior: Law | None = None) -> dict:
    """Fits the better of both forms to the runs of a table; returns the record that law.json holds, in which `choice`
    says which were tried, {form, rmse_log, rolling}, and why this one was taken.

    settings_of: of an additive Form, the Settings. prior: a law to which exponents are drawn, and whose k, or lack of
    one, then makes the choice. Raises UserError."""
    mixed = "n_experts" in table and len(np.unique(table.numbers("n_experts"))) > 1
    additive = FORMS["joint" if mixed else "chinchilla"]
    coupled, settings = FORMS[additive.name + SUFFIX], settings_of(additive)
    settings = dataclasses.replace(settings, weights=settings.weights or DEFAULT_WEIGHTS)
    fitted = lambda form: fitting.fitted(table, form, settings)
    record = lambda law, why, tried=(), steps=None: (
        fitting.record_of(law, steps) | dict(choice=dict(tried=list(tried), why=why))
    )
    if prior:
        form = drawn_to(coupled if prior.form.shares else additive, prior)
        why = f"the law {prior.name}, to which its exponents are drawn, has {'a' if form.shares else 'no'} k"
        return record(fitted(form), why)
    fewest, laws, steps = sure.RUNS_PER_COEFFICIENT * len(coupled.names), {}, {}
    try:
        for form in (coupled, additive):
            laws[form] = fitted(form)
            steps[form] = sure.rolling(sure.sampled(laws[form].problem), fewest)
    except UserError:  # too few runs, or something that the fit will name
        law = laws.get(coupled) or fitted(additive)
        why = (
            f"{law.fit.form.name}, for the runs are too few to say whether {additive.name} or {coupled.name} predicts "
            f"larger ones better: at half of the largest compute that takes {fewest} runs, and {sure.FEWEST} above"
        )
        return record(law, why)
    scores = {form: sure.score(found) for form, found in steps.items()}
    best, other = (additive, coupled) if scores[additive] < BETTER * scores[coupled] else (coupled, additive)
    tried = [dict(form=form.name, rmse_log=scores[form], rolling=steps[form]) for form in (additive, coupled)]
    why = (
        f"{best.name} predicts the fitted runs of more compute from those of less with an error of {scores[best]:.2%}, "
        f"{other.name} with {scores[other]:.2%}"
    )
    if scores[best] > scores[other]:
        why += f"; {additive.name} is taken only below {BETTER:.0%} of the other's"
    return record(laws[best], why, tried, steps[best])


def compare(path: str | Table, forms: Sequence[Form], settings: Settings) -> Json:
    """How well each of the Forms fits the runs in `path`: {runs, budgets, budgets_by, forms: [{form, coefficients,
    fitted, held_out, aic, bic, left_out}], isoflop}, ready for JSON. All are fitted to the same runs. Raises UserError.

    left_out: errors as runs.errors gives; None where the other budgets do not determine the form. isoflop: parabolas
    as isoflop.profiles gives them, where runs of equal FLOPs allow any.
    """
    columns = tuple(dict.fromkeys(name for form in forms for name in form.columns))
    runs = read_runs(path, columns, settings.mix_corpora)
    train, validation = split(runs, settings.holdout, settings.weights, settings.bootstrap_by)
    budgets, by = budgets_of(train)
    rows = []
    for form in forms:
        fit, problem = fitting.fit_by_default(form, train, settings)
        of_fitted = errors(form.log_loss(fit.free, train.columns), train)
        n, k = len(train), len(form.names) + 1
        spread = n * np.log(max(of_fitted["rmse_log"], 1e-15) ** 2)
        row = dict(form=form.name, coefficients=fit.coefficients, fitted=of_fitted, aic=spread + 2 * k)
        row |= dict(bic=float(spread + k * np.log(n)), left_out=left_out(problem, fit, budgets))
        kept_out = errors(form.log_loss(fit.free, validation.columns), validation) if len(validation) else None
        rows.append(row | dict(held_out=kept_out))
    n_experts = train.table.numbers("n_experts")[train.index] if "n_experts" in train.table else None
    profiles = isoflop.profiles(train.n_active, train.flops, train.loss, n_experts, settings.percentiles, settings.seed)
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
    by_budget = [rms(error[budgets == budget]) for budget in range(budgets.max() + 1)]
    return errors(predicted, runs) | dict(by_budget=by_budget)


def drawn_to(form: Form, law: Law) -> Form:
    """The Form with normal priors on its exponents of size and data, and on k where it has one, around the law's;
    form.prior says of it what law.json holds: law, spreads {coefficient: [mean, standard deviation]}, and not_taken,
    which of its exponents the law has no value for. Raises UserError where the law has none of them, or only one of
    both has a k: its exponents are then those of something else."""
    flag = f"--prior={law.name}"
    ours, theirs = form.exponents, law.form.exponents
    shared = [column for column in ours if column in theirs]
    if not shared:
        raise UserError(
            f"{flag}: the {law.form.name} law has no exponent of {' or '.join(ours) or 'size or data'} to which those "
            f"of the {form.name} law could be drawn"
        )
    if form.shares != law.form.shares:
        has, lacks = (form, law.form) if form.shares else (law.form, form)
        raise UserError(
            f"{flag}: the {has.name} law has the coefficient {has.shares[0]} and the {lacks.name} law has none, so "
            f"their exponents do not mean the same; expected a law with{'' if form.shares else 'out'} {has.shares[0]}"
        )
    means = {}
    for column in shared:
        (name, divisor), (other, by) = ours[column], theirs[column]
        means[name] = law.coefficients[other] / by * divisor
    means |= {name: law.coefficients[name] for name in form.shares}
    return _drawn(form, law.name, tuple(means.items()), tuple(ours[c][0] for c in ours if c not in theirs))


@functools.cache  # so that fits of one form to several tables share its compiled search
def _drawn(form: Form, law: str, means: tuple[tuple[str, float], ...], not_taken: tuple[str, ...]) -> Form:
    entries, deviations, spreads = [], [], {}
    for name, mean in means:
        entry, spread = mean, SPREAD * abs(mean)
        if name in form.shares:
            entry, spread = float(np.log(1 / min(mean, LARGEST_SHARE) - 1)), SPREAD_OF_SHARE
        entries.append(entry)
        deviations.append(spread)
        spreads[name] = [mean, spread]
    indices = tuple(form.names.index(name) for name, _ in means)
    record = dict(law=law, spreads=spreads, not_taken=list(not_taken))
    signs = (0,) * len(indices)
    return form.with_prior(Prior(indices, signs, np.array(entries), np.diag(np.square(deviations)), record))
