"""The uncertainty of a law: its noise, intervals and draws, and the coefficients that the runs do not identify.

Above search.SEARCH_RUNS runs it is estimated from a random sample of them.

Axes: n coefficients; n_runs runs; draws of a bootstrap.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from fit.aliases import Array
from fit.fitted_law.law import Law
from fit.fitted_law.parts import (
    LEVEL,
    Bootstrap,
    ProfileInterval,
    Scatter,
    SeparateErrors,
    SeparateLaw,
)
from fit.fitting import intervals, search
from fit.fitting.noise import Noise, growth, inflation, noise_of, standard_errors
from fit.fitting.problem import Problem, near_part, prepare
from fit.form import Form
from fit.laws import FORMS
from fit.messages.finding import Finding, finding
from fit.table.runs import Runs, errors, subset

MORE_RUNS = 12  # imagined by a warning, to say what it would take to identify a coefficient
SEPARATE_STARTS = 8  # of the law of each number of experts
HARDLY_LESS = 0.95  # of a standard error: from here on further runs promise nothing
# Lack of fit: runs within this factor of the largest, how many of them it takes, and standard errors of their mean.
# Three quantities are looked at, so one law in 120 lacks fit by chance.
TWO_DOUBLINGS = 4.0
FEWEST_LAST = 3
BEYOND_NOISE = 3.0


def with_uncertainty(law: Law, problem: Problem, fit: search.Fit) -> Law:
    """The Law of a Fit with its noise, profiles, draws and findings, and with the laws of each number of experts alone.

    `beyond_runs` is where the runs of most compute do not fit the law.
    """
    sample = None
    fit_to_all = fit
    if problem.runs.near is not None:
        problem = near_part(problem)
        fit = search.again(problem, fit)
    if len(problem) > search.SEARCH_RUNS:
        problem = sampled(problem)
        fit = search.again(problem, fit)
        sample = len(problem)
    independent = noise_of(problem, fit.params, shared=False)
    noise = independent if problem.runs.trunks is None else noise_of(problem, fit.params)
    errors_now = standard_errors(problem, fit, noise)
    profiles = intervals.profile(problem, fit, errors_now, inflation(problem, fit, noise, independent))
    for name, interval in profiles.items():  # centred on the fit to all runs, not on that to the sample
        scale = fit_to_all.coefficients[name] / interval.value
        low = None if interval.low is None else interval.low * scale
        high = None if interval.high is None else interval.high * scale
        profiles[name] = ProfileInterval(value=interval.value * scale, low=low, high=high)
    return dataclasses.replace(
        law,
        separate=separate(problem) if problem.form.separate else {},
        sample=sample,
        noise=_scatter(problem, fit, noise),
        profile=profiles,
        bootstrap=_bootstrap(problem, fit_to_all, noise) if problem.settings.bootstrap else None,
        findings=(*law.findings, *not_identified(problem, fit, profiles, noise)),
        beyond_runs=lack_of_fit(problem.form, fit.params, problem.runs, noise),
    )


def _scatter(problem: Problem, fit: search.Fit, noise: Noise) -> Scatter:
    """How the runs scatter around the law."""
    trunks = problem.runs.trunks
    of_run, of_trunk = noise.degrees_of_freedom
    return Scatter(
        run=noise.run,
        trunk=noise.trunk,
        total=noise.total,
        trunks=0 if trunks is None else int(trunks.max()) + 1,
        by=problem.runs.shared_by,
        degrees_of_freedom=(float(of_run), float(of_trunk)),
        growth=growth(problem, fit.params, noise),
    )


def _bootstrap(problem: Problem, fit: search.Fit, noise: Noise) -> Bootstrap:
    """The bootstrap of a fit."""
    settings = problem.settings
    draws = intervals.bootstrap(problem, fit, settings.bootstrap, settings.bootstrap_form, noise)
    return bootstrap_of(problem, problem.form, draws)


def bootstrap_of(problem: Problem, form: Form, draws: Array) -> Bootstrap:
    """The bootstrap of these draws [draws, n], coefficients of a form."""
    settings = problem.settings
    ends = np.percentile(draws, settings.percentiles, axis=0, method="weibull")
    return Bootstrap(
        form=settings.bootstrap_form,
        by=problem.runs.shared_by,
        percentiles=settings.percentiles,
        draws=tuple(map(tuple, draws.tolist())),
        intervals=dict(zip(form.names, map(tuple, ends.T.tolist()), strict=True)),
    )


def draws_of(problem: Problem, fit: search.Fit, count: int) -> Array:
    """Coefficients [count, n] of a bootstrap of the Fit, by a sample of very many runs as in `with_uncertainty`."""
    problem = near_part(problem)
    sample = sampled(problem)
    fit_to_sample = fit if sample is problem else search.again(sample, fit)
    noise = noise_of(sample, fit_to_sample.params)
    return intervals.bootstrap(sample, fit, count, problem.settings.bootstrap_form, noise)


def sampled(problem: Problem) -> Problem:
    """The problem of a random sample of at most search.SEARCH_RUNS of the runs; of fewer runs, the problem itself.

    Of runs at several rates only those near the best ones count (with_rate.py).

    Where runs share trunks, the sample is of whole trunks.
    """
    problem = near_part(problem)
    if len(problem) <= search.SEARCH_RUNS:
        return problem
    rng = np.random.default_rng([problem.settings.seed, 4])
    trunks = problem.runs.trunks
    if trunks is None:
        rows = np.sort(rng.choice(len(problem), search.SEARCH_RUNS, replace=False))
    else:
        order = rng.permutation(trunks.max() + 1)
        sizes = np.cumsum(np.bincount(trunks)[order])
        chosen = order[: max(1, int(np.searchsorted(sizes, search.SEARCH_RUNS, side="right")))]
        rows = np.flatnonzero(np.isin(trunks, chosen))[: search.SEARCH_RUNS]
    return prepare(problem.form, subset(problem.runs, rows), problem.settings, len(problem))


def lack_of_fit(form: Form, params: Array, runs: Runs, noise: Noise) -> Finding | None:
    """A finding where the runs of the last two doublings lie off the law by BEYOND_NOISE standard errors; else None.

    Looks at compute, tokens and size, and reports the one whose mean residual is the most standard errors from zero.
    """
    residual = np.log(runs.loss) - form.log_loss(params, runs.columns)
    trunks = np.arange(len(runs)) if runs.trunks is None else runs.trunks
    largest_ratio = BEYOND_NOISE
    found = None
    for name, values in (("compute", runs.flops), ("n_tokens", runs.n_tokens), ("n_active", runs.n_active)):
        last = values >= values.max() / TWO_DOUBLINGS
        if not FEWEST_LAST <= last.sum() <= len(runs) / 2:
            continue
        shares = np.bincount(trunks[last]) / last.sum()
        error = np.sqrt(noise.run**2 / last.sum() + noise.trunk**2 * np.sum(shares**2))
        mean = residual[last].mean()
        if abs(mean) >= largest_ratio * error > 0:
            largest_ratio = abs(mean) / error
            side = "below" if mean < 0 else "above"
            off = dict(off=float(abs(mean)), side=side, errors=float(largest_ratio))
            found = finding("lack_of_fit", count=int(last.sum()), column=name, **off)
    return found


def not_identified(
    problem: Problem, fit: search.Fit, profiles: Mapping[str, ProfileInterval], noise: Noise
) -> list[Finding]:
    """Findings that name what the data does not identify, and what it would take."""
    form = problem.form
    now = standard_errors(problem, fit, noise)
    findings = []
    for name, interval in profiles.items():
        if interval.low is not None and interval.high is not None and interval.high <= 2 * interval.low:
            continue
        more, what = more_runs(problem.runs, form.coefficients[name].identified_by or {})
        then = standard_errors(problem, fit, noise, more)[name]
        errors_now_and_then = dict(now=float(now[name] / interval.value), then=float(then / interval.value))
        findings.append(
            finding(
                outlook_of(**errors_now_and_then),
                name=name,
                low=interval.low,
                high=interval.high,
                level=LEVEL,
                best=interval.value,
                more=MORE_RUNS,
                what=what,
                **errors_now_and_then,
            )
        )
    known = {*profiles, *problem.fixed, *form.positive}
    loose = [name for name, value in fit.coefficients.items() if name not in known and now[name] > abs(value)]
    if loose:
        findings.append(finding("signs_open", names=", ".join(loose)))
    return findings


def outlook_of(now: float, then: float) -> str:
    """The code of the finding on a coefficient that the runs do not identify, by what MORE_RUNS runs would change.

    If the fit hardly depends on a coefficient, its linearised error may be far too small. Then nothing is promised.

    Args:
      now: its standard error over its value.
      then: the same with these runs added.
    """
    if then > 1:
        return "not_identified"
    if then > HARDLY_LESS * now:
        return "not_identified_open"
    return "not_identified_yet"


def more_runs(runs: Runs, identified_by: Mapping[str, float]) -> tuple[dict[str, Array], str]:
    """Runs that would help to identify a coefficient.

    Args:
      identified_by: of the Coefficient.

    Returns:
      {column: [MORE_RUNS]} of runs spread over the compute of the existing ones, moved as identified_by says; and how
      they are moved, in words.
    """
    order = np.argsort(runs.n_active * runs.n_tokens, kind="stable")
    rows = order[np.linspace(0, len(order) - 1, MORE_RUNS).astype(int)]
    columns = {name: runs.columns[name][rows].astype(float) for name in runs.columns}
    words = []
    for name, times in identified_by.items():
        values = runs.columns[name]
        value = values.max() * times if times else values.min()
        columns[name] = np.full(MORE_RUNS, value)
        words.append(f"{name} = {value:.3g}")
    return columns, " and ".join(words)


def separate(problem: Problem) -> dict[str, SeparateLaw]:
    """The laws fitted to the runs of each number of experts alone, the lower bound on the joint law's training error
    (Sec. 5.2).

    They are laws of the problem's own form in which the number of experts changes nothing, so they share its compiled
    search.

    Returns:
      {n_experts: law}, where there are enough runs to fit one.
    """
    form = problem.form
    runs = problem.runs
    law = FORMS[form.separate["form"]]
    enough = [e for e in np.unique(runs.n_experts) if _is_enough(law, subset(runs, runs.n_experts == e))]
    if not enough:
        return {}
    fixed = {name: value for name, value in problem.fixed.items() if name in form.separate["shared"]}
    fixed |= form.separate["held"]
    problem = problem.with_fixed([fixed.get(name, np.nan) for name in form.names])
    starts = _separate_starts(problem, law)
    masks = problem.padded(np.stack([runs.n_experts == e for e in enough]).astype(float))
    params = search.best_of_each(problem, starts, root_weight=problem.data["root_weight"] * masks)
    by_experts = {}
    for e, row in zip(enough, form.to_coefficients(params).tolist(), strict=True):
        values = dict(zip(form.names, row, strict=True))
        names = form.separate["names"]
        coefficients = {theirs: sign * values[ours] for theirs, (ours, sign) in names.items()}
        by_experts[f"{e:g}"] = SeparateLaw(coefficients=coefficients, runs=int(np.sum(runs.n_experts == e)))
    return by_experts


def _is_enough(law: Form, runs: Runs) -> bool:
    """Whether runs can determine a law, each of whose columns must change."""
    columns = np.stack([runs.columns[name] for name in law.columns])
    return np.unique(columns, axis=1).shape[1] > len(law.names) and all(len(np.unique(v)) > 1 for v in columns)


def _separate_starts(problem: Problem, law: Form) -> Array:
    """Starts x [SEPARATE_STARTS, n] of the problem's form that are random starts of the law which it contains."""
    form = problem.form
    rng = np.random.default_rng([problem.settings.seed, 3])
    drawn = law.scaled_starts(rng, SEPARATE_STARTS, problem.runs)
    starts = np.zeros((len(drawn), len(form.names)))
    for theirs, (ours, sign) in form.separate["names"].items():
        starts[:, form.names.index(ours)] = sign * drawn[:, law.names.index(theirs)]
    return starts * problem.data["moving"]


def separate_errors(form: Form, by_experts: Mapping[str, SeparateLaw], runs: Runs) -> SeparateErrors | None:
    """Errors of the laws of `separate` over the runs of the numbers of experts that have one; None if none has."""
    rows = np.array([f"{e:g}" in by_experts for e in runs.n_experts], bool)
    if not rows.any():
        return None
    law = FORMS[form.separate["form"]]
    runs = subset(runs, rows)
    params = np.stack([law.to_params(by_experts[f"{e:g}"].coefficients) for e in runs.n_experts], axis=1)
    all_errors = errors(law.log_loss(params, runs.columns), runs)
    return SeparateErrors(runs=all_errors.runs, rmse_nats=all_errors.rmse_nats, rmse_log=all_errors.rmse_log)
