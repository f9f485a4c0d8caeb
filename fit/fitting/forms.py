"""Which form is fitted: the one taken unless it is said (fit_best), several set side by side (compare), one whose
exponents are drawn to another law's (drawn_to).

Unless told one, `fit law` takes the coupled law, or the additive one where that predicts the fitted runs of more
compute from those of less much better. The coupled law is fitted with the weights DEFAULT_WEIGHTS, so that it is best
where it will be asked, at the runs of most compute and beyond, and with the population's prior (population.py); the
additive one, as it is published, to all runs alike and without a prior.

Which form is right is itself uncertain, and the forms part beyond the runs. So the bootstrap's draws are of both: each
form has a share in inverse proportion to its error on the runs of more compute, or half where the runs are too few to
tell. Squared errors, by which Bates and Granger (1969) combine forecasts, would leave so few draws to one form that
what the forms disagree about is outside an 80% interval. benchmarks/README.md says what all this is worth.

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
from fit.fitted_law.law import Law
from fit.fitting import fitting, population, search, uncertainty
from fit.fitting.problem import Problem, Settings, prepare
from fit.form import Form, Prior
from fit.laws import FORMS
from fit.laws._coupled import SUFFIX

DEFAULT_WEIGHTS = "compute^0.6"
# Below this share of the coupled law's error the additive law's must be, to be taken: the coupled law has it in it, as
# k = 1, and over few runs the smaller of two such errors is often so by chance (benchmarks/README.md).
BETTER = 0.7
NO_PRIOR = "none"  # of --prior
PARTS = 8  # equal parts of the runs by compute, where several runs share no budget
# Standard deviations of an exponent, as a share of it, and of ln(1/k - 1): how two sweeps of the benchmark's tables
# differ (docs/guides/fit-your-runs.md, "What another law knows").
SPREAD, SPREAD_OF_SHARE = 1 / 3, 0.7
LARGEST_SHARE = 0.95  # so that a law with k = 1 has a mean to draw to


def fit_best(table: Table, settings_of: Callable[[Form], Settings], prior: Law | str | None = None) -> Json:
    """Fits both forms to the runs of a table; returns the record that law.json holds.

    The law is the coupled one, or the additive one written as the coupled one with k = 1. The bootstrap's draws are of
    both (both_forms). `choice` says which forms were tried, {form, rmse_log, rolling}, and why this one was taken.

    settings_of: of an additive Form, the Settings. prior: as with_prior takes it, None for the population. A law to
    which exponents are drawn makes the choice by its k, or lack of one; so does a k that is held. Raises UserError."""
    mixed = "n_experts" in table and len(np.unique(table.numbers("n_experts"))) > 1
    additive = FORMS["joint" if mixed else "chinchilla"]
    coupled = FORMS[additive.name + SUFFIX]
    prior = prior or population.NAME
    if isinstance(prior, Law):
        form = drawn_to(coupled if prior.form.shares else additive, prior)
        why = f"the law {prior.name}, to which its exponents are drawn, has {'a' if form.shares else 'no'} k"
        return _single(fitting.fitted(table, form, _weighted(settings_of(form))), why)
    settings = settings_of(coupled)
    coupled = with_prior(coupled, prior)
    if "k" in dict(settings.fix):
        return _single(fitting.fitted(table, coupled, _weighted(settings)), "k is held at a value")
    # the additive law as it is published: no prior and all runs alike, unless other weights are asked for
    of_additive = fitting.fitted(table, additive, settings)
    try:
        of_coupled = fitting.fitted(table, coupled, _weighted(settings))
    except UserError:  # too few distinct runs
        return _single(of_additive, f"the runs are too few for the coefficients of {coupled.name}")
    return _record_of_both(of_additive, of_coupled)


def _weighted(settings: Settings) -> Settings:
    """The settings with the default weights, unless others are asked for."""
    return dataclasses.replace(settings, weights=settings.weights or DEFAULT_WEIGHTS)


def _single(law: fitting.Fitted, why: str) -> Json:
    """The record of a law that is not compared with another form."""
    return fitting.record_of(law) | dict(choice=dict(tried=[], why=why))


def _record_of_both(additive: fitting.Fitted, coupled: fitting.Fitted) -> Json:
    """The record of the better of two laws of the same runs, with draws of both."""
    names = [law.fit.form.name for law in (additive, coupled)]
    fewest = uncertainty.RUNS_PER_COEFFICIENT * len(coupled.fit.form.names)
    try:
        of_coupled = uncertainty.rolling(uncertainty.sampled(coupled.problem), fewest)
        of_additive = uncertainty.rolling(uncertainty.sampled(additive.problem), fewest)
    except UserError:  # too few runs of little compute
        why = (
            f"{names[1]}, for the runs are too few to say whether {names[0]} or {names[1]} predicts larger ones "
            f"better: at half of the largest compute that takes {fewest} runs, and {uncertainty.FEWEST} above"
        )
        record = fitting.record_of(_drawing(coupled, additive_share=0.5, is_coupled=True))
        record["choice"] = dict(tried=[], why=why)
        return _with_both(record, additive, coupled, 0.5, None, None)
    errors_of = [uncertainty.score(of_additive), uncertainty.score(of_coupled)]
    additive_share = errors_of[1] / (errors_of[0] + errors_of[1])
    take_additive = errors_of[0] < BETTER * errors_of[1]
    best, other = (0, 1) if take_additive else (1, 0)
    why = (
        f"{names[best]} predicts the fitted runs of more compute from those of less with an error of "
        f"{errors_of[best]:.2%}, {names[other]} with {errors_of[other]:.2%}"
    )
    if errors_of[best] > errors_of[other]:
        why += f"; {names[0]} is taken only below {BETTER:.0%} of the other's"
    law, steps = ((additive, of_additive), (coupled, of_coupled))[best]
    record = fitting.record_of(_drawing(law, additive_share, not take_additive), steps)
    tried = [
        dict(form=name, rmse_log=error, rolling=rolled)
        for name, error, rolled in zip(names, errors_of, (of_additive, of_coupled), strict=True)
    ]
    record["choice"] = dict(tried=tried, why=why)
    return _with_both(record, additive, coupled, additive_share, of_additive, of_coupled)


def _draws_of_each(draws: int, additive_share: float) -> tuple[int, int]:
    """(of the additive form, of the coupled form): how many of so many draws; one of each at least, of two or more."""
    of_additive = round(additive_share * draws)
    if draws >= 2:
        of_additive = min(max(of_additive, 1), draws - 1)
    return of_additive, draws - of_additive


def _drawing(law: fitting.Fitted, additive_share: float, is_coupled: bool) -> fitting.Fitted:
    """The law, which draws its own part only of the bootstrap."""
    counts = _draws_of_each(law.problem.settings.bootstrap, additive_share)
    settings = dataclasses.replace(law.problem.settings, bootstrap=counts[is_coupled])
    return dataclasses.replace(law, problem=dataclasses.replace(law.problem, settings=settings))


def _with_both(
    record: Json,
    additive: fitting.Fitted,
    coupled: fitting.Fitted,
    additive_share: float,
    of_additive: list[dict] | None,
    of_coupled: list[dict] | None,
) -> Json:
    """The record of one of both laws, as a coupled law with draws of both forms.

    An additive law, or draw, has k = 1. Each form's part of the draws has its own error beyond the runs, from its own
    rolling hold-outs. additive_share: of the draws; of_additive, of_coupled: the rolling hold-outs."""
    form, settings = coupled.fit.form, coupled.problem.settings
    was_additive = record["form"] != form.name
    if was_additive:
        record["form"] = form.name
        record["coefficients"] = record["coefficients"] | dict(k=1.0)
    count = settings.bootstrap
    if not count:
        return record
    counts = _draws_of_each(count, additive_share)
    drawn: Json = record.get("bootstrap") or dict(
        form=settings.bootstrap_form, by=coupled.problem.runs.shared_by, percentiles=list(settings.percentiles)
    )
    rows, drifts = [], []
    largest = float(coupled.problem.runs.flops.max())
    for law, part, steps in zip((additive, coupled), counts, (of_additive, of_coupled), strict=True):
        if not part:
            continue
        is_written = (law is additive) == was_additive
        draws = np.array(drawn["draws"]) if is_written else uncertainty.draws_of(law.problem, law.fit, part)
        if law is additive:
            draws = np.column_stack([draws, np.ones(part)])
        rows.append(draws)
        if steps:
            beyond = uncertainty.beyond(steps, largest, part, settings.seed, uncertainty.SHARE_BESIDE_BOTH_FORMS)
            drifts += beyond["drift"]
    order = np.random.default_rng([settings.seed, 6]).permutation(count)
    mixed = np.concatenate(rows)[order]
    drawn["draws"] = mixed.tolist()
    drawn["intervals"] = uncertainty.intervals_of(form, mixed, settings.percentiles)
    drawn["forms"] = {additive.fit.form.name: counts[0], form.name: counts[1]}
    if drifts:
        drawn["beyond"] = dict(training_flops=largest, drift=np.array(drifts)[order].tolist())
    record["bootstrap"] = drawn
    return record


def with_prior(form: Form, prior: Law | str | None) -> Form:
    """The form with the prior that --prior asks for: of the population, of a law, or (none, or nothing) as it is.
    Raises UserError where the prior says nothing of the form's exponents."""
    if isinstance(prior, Law):
        return drawn_to(form, prior)
    if prior is None or prior == NO_PRIOR:
        return form
    return population.with_population(form, population.left_out_of(prior))


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
