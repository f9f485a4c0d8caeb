"""How sure a law is: what a law.json says of its noise, intervals and draws, and of what the runs do not pin down; for
very many runs, by a sample of them.

Rolling hold-out by compute, within the fitted runs, says how far a law is off beyond what it was fitted to: for each of
FACTORS it is fitted again to the runs of at most 1 / factor of the largest compute, and predicts the others. With
e_i = ln(predicted / measured) of a predicted run, s_i the standard error that scatter and the fit's own uncertainty
give it, and x_i = ln(its FLOPs / the largest FLOPs fitted),

  mean_error  mean e                   scatter  root mean square of s: what rmse_log would be if the form were right
  reach       root mean square of x    holds    share with |e| <= z s, z of the 80% interval of a new run
  drift       sum e x / sum x^2        the form's own error for each factor of e in compute, ...
  wander      root of sum (e^2 - s^2) / sum x^2, at least |drift|: ... and its root mean square

beyond makes of wander what the form itself may be off beyond the fitted runs: nothing up to their largest compute, then
growing with the logarithm of compute, either way alike. On kept tables the size of a drift is informative and its sign
is a coin (benchmarks/README.md), so no drift is taken back.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import scipy.special

from fit.aliases import Array, Json
from fit.data.runs import ROLLING, Runs, errors, rms, subset
from fit.errors import UserError
from fit.fitted_law.law_check import LEVEL
from fit.fitted_law.summary import span
from fit.fitting import intervals, search
from fit.fitting.noise import Noise, growth, inflation, noise_of, prediction_errors, standard_errors
from fit.fitting.problem import Problem, prepare
from fit.form import Form
from fit.laws import FORMS

MORE_RUNS = 12  # in "what it would take"
# Lack of fit: runs within this factor of the largest, how many of them it takes, and standard errors of their mean:
# three quantities are looked at, so one law in 120 by chance.
TWO_DOUBLINGS, FEWEST_LAST, BEYOND_NOISE = 4.0, 3, 3.0
# Of rolling hold-outs:
FACTORS = (2, 3, 10)
RUNS_PER_COEFFICIENT = 3  # at least, of those fitted: with fewer, errors are those of the small fits, not of the form
FEWEST = 3  # runs predicted
STARTS = 32  # of each fit
# How much of the variance of wander counts where the draws are of both forms: most of what a form is off beyond the
# runs is in the draws already, as what the forms disagree about. Chosen by the coverage on kept tables
# (benchmarks/README.md).
SHARE_BESIDE_BOTH_FORMS = 0.1


def how_sure(problem: Problem, fit: search.Fit) -> Json:
    """{noise, profile, warnings} of the Fit; also warning, for use beyond the runs, if those of most compute do not fit
    the law; its bootstrap, if that is asked for; separate, the laws of each number of experts alone, if the law's page
    names such a law; and sample, the size of the sample behind all this, above search.SEARCH_RUNS runs."""
    sure: Json = {}
    of_all = fit
    if len(problem) > search.SEARCH_RUNS:
        problem = sampled(problem)
        fit = search.again(problem, fit)
        sure["sample"] = dict(runs=len(problem), of=problem.sample_of)
    if problem.form.separate:
        sure["separate"] = separate(problem)
    alone, trunks, by = noise_of(problem, fit.free, shared=False), problem.runs.trunks, problem.runs.shared_by
    noise = alone if trunks is None else noise_of(problem, fit.free)
    count = 0 if trunks is None else int(trunks.max()) + 1
    scatter: Json = dict(run=noise.run, trunk=noise.trunk, total=noise.total, trunks=count, by=by)
    scatter["degrees_of_freedom"] = list(noise.degrees_of_freedom)
    if grows := growth(problem, fit.free, noise):
        scatter["growth"] = grows
    sure["noise"] = scatter
    now, widened = standard_errors(problem, fit, noise), inflation(problem, fit, noise, alone)
    sure["profile"] = profiles = intervals.profile(problem, fit, now, widened)
    for name, p in profiles.items():  # around what all runs gave
        scale = of_all.coefficients[name] / p["value"]
        profiles[name] = {end: value if value is None else value * scale for end, value in p.items()}
    sure["warnings"] = warnings(problem, fit, profiles, noise)
    if lack := lack_of_fit(problem.form, fit.free, problem.runs, noise):
        sure["warning"] = lack
    if (settings := problem.settings).bootstrap:
        draws = intervals.bootstrap(problem, of_all, settings.bootstrap, settings.bootstrap_form, noise)
        drawn: Json = dict(form=settings.bootstrap_form, by=by, percentiles=list(settings.percentiles))
        between = intervals_of(problem.form, draws, settings.percentiles)
        sure["bootstrap"] = drawn | dict(draws=draws.tolist(), intervals=between)
    return sure


def intervals_of(form: Form, draws: Array, percentiles: tuple[float, float]) -> Json:
    """{coefficient: [low, high]}: percentiles of draws [n_draws, n]."""
    ends = np.percentile(draws, percentiles, axis=0, method="weibull")
    return dict(zip(form.names, ends.T.tolist(), strict=True))


def draws_of(problem: Problem, fit: search.Fit, count: int) -> Array:
    """Coefficients [count, n] of a bootstrap of the Fit, by a sample of very many runs as in how_sure."""
    sample = sampled(problem)
    if sample is not problem:
        fit_to_sample = search.again(sample, fit)
        noise = noise_of(sample, fit_to_sample.free)
    else:
        noise = noise_of(problem, fit.free)
    return intervals.bootstrap(sample, fit, count, problem.settings.bootstrap_form, noise)


def sampled(problem: Problem) -> Problem:
    """The problem of a random sample of at most search.SEARCH_RUNS of the runs, of complete trunks where they share
    them; the problem itself where it has no more."""
    if len(problem) <= search.SEARCH_RUNS:
        return problem
    rng, trunks = np.random.default_rng([problem.settings.seed, 4]), problem.runs.trunks
    if trunks is None:
        rows = np.sort(rng.choice(len(problem), search.SEARCH_RUNS, replace=False))
    else:
        order = rng.permutation(trunks.max() + 1)
        sizes = np.cumsum(np.bincount(trunks)[order])
        chosen = order[: max(1, int(np.searchsorted(sizes, search.SEARCH_RUNS, side="right")))]
        rows = np.flatnonzero(np.isin(trunks, chosen))[: search.SEARCH_RUNS]
    return prepare(problem.form, subset(problem.runs, rows), problem.settings, len(problem))


def lack_of_fit(form: Form, free: Array, runs: Runs, noise: Noise) -> str:
    """A sentence where the mean residual of the last two doublings of compute, tokens or size, of whichever it is most
    standard errors, is BEYOND_NOISE of them; else ""."""
    residual = np.log(runs.loss) - form.log_loss(free, runs.columns)
    trunks, worst = np.arange(len(runs)) if runs.trunks is None else runs.trunks, (BEYOND_NOISE, "")
    for name, values in (("compute", runs.flops), ("n_tokens", runs.n_tokens), ("n_active", runs.n_active)):
        last = values >= values.max() / TWO_DOUBLINGS
        if not FEWEST_LAST <= last.sum() <= len(runs) / 2:
            continue
        shares = np.bincount(trunks[last]) / last.sum()
        error = np.sqrt(noise.run**2 / last.sum() + noise.trunk**2 * np.sum(shares**2))
        mean = residual[last].mean()
        if abs(mean) >= worst[0] * error > 0:
            side = "below" if mean < 0 else "above"
            worst = (
                abs(mean) / error,
                f"the {last.sum()} runs of the last two doublings of {name} lie {abs(mean):.2%} {side} this law on "
                f"average, {abs(mean) / error:.1f} standard errors: the form does not hold there, and "
                "beyond them it may be further off than its intervals say, either way",
            )
    return worst[1]


def warnings(problem: Problem, fit: search.Fit, profiles: Mapping[str, Json], noise: Noise) -> list[str]:
    """Sentences that name what the data does not pin down, and what it would take."""
    form, now = problem.form, standard_errors(problem, fit, noise)
    out = []
    for name, p in profiles.items():
        if p["low"] is not None and p["high"] is not None and p["high"] <= 2 * p["low"]:
            continue
        more, what = more_runs(problem.runs, form.coefficients[name].pinned_by or {})
        then = standard_errors(problem, fit, noise, more)[name]
        if then > p["value"]:
            outlook = f"{MORE_RUNS} more runs with {what} would not be enough either"
        else:
            outlook = (
                f"{MORE_RUNS} more runs with {what} would bring its standard error from {now[name] / p['value']:.0%} "
                f"to {then / p['value']:.0%} of it"
            )
        out.append(f"the runs do not pin down {name}: {span(p)} ({LEVEL:.0%}), best {p['value']:.4g}; {outlook}")
    known = {*profiles, *problem.fixed, *form.positive}
    if loose := [name for name, c in fit.coefficients.items() if name not in known and now[name] > abs(c)]:
        out.append(
            f"the runs do not settle the sign of {', '.join(loose)} (standard error larger than the value); "
            "use the law for predictions near its runs, not its coefficients"
        )
    return out


def more_runs(runs: Runs, pinned_by: Mapping[str, float]) -> tuple[dict[str, Array], str]:
    """(MORE_RUNS runs spread over the compute of the existing ones, moved as pinned_by says; the same in words)."""
    order = np.argsort(runs.n_active * runs.n_tokens, kind="stable")
    rows = order[np.linspace(0, len(order) - 1, MORE_RUNS).astype(int)]
    columns = {name: runs.columns[name][rows].astype(float) for name in runs.columns}
    words = []
    for name, times in pinned_by.items():
        every = runs.columns[name]
        value = every.max() * times if times else every.min()
        columns[name] = np.full(MORE_RUNS, value)
        words.append(f"{name} = {value:.3g}")
    return columns, " and ".join(words)


def separate(problem: Problem) -> dict[str, Json]:
    """The laws fitted to the runs of each number of experts alone, the lower bound on the joint law's training error
    (Sec. 5.2): {n_experts: coefficients and how many runs}, where there are enough runs to fit one.

    They are laws of the problem's own form in which the number of experts changes nothing, so they share its compiled
    search.
    """
    form, runs = problem.form, problem.runs
    law, names = FORMS[form.separate["form"]], form.separate["names"]
    enough = []
    for e in np.unique(runs.n_experts):
        columns = np.stack([runs.columns[name][runs.n_experts == e] for name in law.columns])
        if np.unique(columns, axis=1).shape[1] > len(law.names) and all(len(np.unique(v)) > 1 for v in columns):
            enough.append(e)
    if not enough:
        return {}
    held = {name: value for name, value in problem.fixed.items() if name in form.separate["shared"]}
    held |= form.separate["held"]
    problem = problem.holding([held.get(name, np.nan) for name in form.names])
    drawn = law.scaled_starts(np.random.default_rng([problem.settings.seed, 3]), 8, runs)
    starts = np.zeros((len(drawn), len(form.names)))
    for theirs, (mine, sign) in names.items():
        starts[:, form.names.index(mine)] = sign * drawn[:, law.names.index(theirs)]
    starts = starts * problem.data["moving"]
    masks = problem.filled(np.stack([runs.n_experts == e for e in enough]).astype(float))
    free = search.best_of_each(problem, starts, root_weight=problem.data["root_weight"] * masks)
    alone = {}
    for e, row in zip(enough, form.to_coefficients(free).tolist(), strict=True):
        c = dict(zip(form.names, row, strict=True))
        coefficients = {theirs: sign * c[mine] for theirs, (mine, sign) in names.items()}
        alone[f"{e:g}"] = dict(coefficients=coefficients, runs=int(np.sum(runs.n_experts == e)))
    return alone


def separate_errors(form: Form, alone: Mapping[str, Json], runs: Runs) -> Json | None:
    """Errors of the laws that separate fitted, over the runs of the numbers of experts that have one; None if none
    has."""
    rows = np.array([f"{e:g}" in alone for e in runs.n_experts], bool)
    if not rows.any():
        return None
    law, runs = FORMS[form.separate["form"]], subset(runs, rows)
    free = np.stack([law.to_free(alone[f"{e:g}"]["coefficients"]) for e in runs.n_experts], axis=1)
    found = errors(law.log_loss(free, runs.columns), runs)
    return {name: found[name] for name in ("runs", "rmse_nats", "rmse_log")}


def rolling(problem: Problem, fewest: int = 0) -> list[dict]:
    """A dictionary for each factor for which at least `fewest` runs, and RUNS_PER_COEFFICIENT for each coefficient, are
    left to fit and FEWEST to predict: factor, fitted (how many runs), fitted_flops, training_flops (of those
    predicted), errors as runs.errors gives them, and what this module says. Factors that leave the same runs count
    once, as the largest. Raises UserError where no factor leaves enough."""
    runs, form = problem.runs, problem.form
    fewest = max(fewest, RUNS_PER_COEFFICIENT * (len(form.names) - len(problem.fixed)))
    steps = {}
    for factor in FACTORS:
        fitted = runs.flops <= runs.flops.max() / factor * (1 + 1e-9)
        if fitted.sum() < fewest or (~fitted).sum() < FEWEST:
            continue
        try:
            steps[int(fitted.sum())] = _roll(problem, fitted) | dict(factor=factor)
        except UserError:  # all of one size
            continue
    if not steps:
        raise UserError(
            f"--holdout={ROLLING}: found {len(runs)} runs to fit; at half of the largest compute the {form.name} law "
            f"needs at least {fewest}, of different sizes, and {FEWEST} above"
        )
    return list(steps.values())


def _roll(problem: Problem, fitted: np.ndarray) -> dict:
    runs, form = problem.runs, problem.form
    settings = dataclasses.replace(problem.settings, starts=min(problem.settings.starts or STARTS, STARTS))
    weights = runs.weights * fitted / runs.weights[fitted].mean()
    smaller = prepare(form, dataclasses.replace(runs, weights=weights), settings)
    fit = search.fit(smaller)
    noise, predicted, largest = noise_of(smaller, fit.free), subset(runs, ~fitted), runs.flops[fitted].max()
    spread = np.hypot(noise.total, prediction_errors(smaller, fit, noise))[~fitted]
    log_loss = form.log_loss(fit.free, predicted.columns)
    error = log_loss - np.log(predicted.loss)
    x = np.log(predicted.flops / largest)
    drift = np.sum(error * x) / np.sum(x**2)
    return dict(
        fitted=int(fitted.sum()),
        fitted_flops=float(largest),
        training_flops=[float(predicted.flops.min()), float(predicted.flops.max())],
        **errors(log_loss, predicted),
        mean_error=float(error.mean()),
        scatter=rms(spread),
        holds=float(np.mean(np.abs(error) <= scipy.special.ndtri((1 + LEVEL) / 2) * spread)),
        reach=rms(x),
        drift=float(drift),
        wander=float(np.sqrt(max(np.sum(error**2 - spread**2) / np.sum(x**2), drift**2))),
    )


def score(steps: list[dict]) -> float:
    """Geometric mean of the steps' root mean square errors of log loss."""
    return float(np.exp(np.mean([np.log(step["rmse_log"]) for step in steps])))


def beyond(steps: list[dict], largest_flops: float, draws: int, seed: int = 0, share: float = 1.0) -> dict:
    """The form's own error in each of a bootstrap's draws, for law.json: {training_flops, drift [draws]}: beyond these
    FLOPs the log loss of a draw changes by its drift for each factor of e in compute. Drifts are normal around zero
    with `share` of the steps' mean squared wander, in which all predicted runs count alike."""
    weight = np.array([step["runs"] * step["reach"] ** 2 for step in steps])
    wander = np.array([step["wander"] for step in steps])
    spread = np.sqrt(share * np.sum(weight * wander**2) / np.sum(weight))
    normal = scipy.special.ndtri((np.arange(draws) + 0.5) / draws)
    drift = spread * np.random.default_rng([seed, 5]).permutation(normal)
    return dict(training_flops=float(largest_flops), drift=drift.tolist())
