"""From a file of runs to the record of a law.json: held-out runs, weights, the fit, its errors, and how sure it is."""

import dataclasses
import importlib.metadata
import platform
import re

import numpy as np

from fit.aliases import Array, Json
from fit.data import sense
from fit.data.runs import ROLLING, Runs, corpora, errors, read_runs, split
from fit.data.table import Table
from fit.errors import UserError
from fit.fitted_law import law_check, models
from fit.fitting import search, solvers, uncertainty
from fit.fitting.noise import noise_of
from fit.fitting.problem import Problem, Settings, prepare
from fit.form import Form
from fit.shape.architecture import EXPERTS, OF_EXPERTS

# Up to FEW_RUNS runs, the default weight decay is this share of the runs' variance around the law: as if every
# parameter, a logarithm or an exponent, were known to lie within some 10 of zero. For noise of 1% it is 1e-6.
FEW_RUNS, DECAY_PER_VARIANCE, LARGEST_DECAY, SMALLEST_DECAY = 60, 0.01, 1e-5, 1e-14
COST = 1.01  # at most this times the root mean square of the residuals without decay; else ten times less is tried
NUMERICAL = ("huber_delta", "reduction", "weight_decay", "starts", "solver", "seed")  # settings of law.json
# Of gains from the text before: how far apart, in nats, two groups of runs are, and the share of the variance that
# being of one group or the other explains.
TRANSITION_NATS, GROUPED = 0.05, 0.85


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A law fitted to the runs of a table (problem.runs), and those kept out; decay_default: whether the weight decay
    is the default of few runs; warnings: about the table."""

    runs: Runs
    validation: Runs
    fit: search.Fit
    problem: Problem
    decay_default: bool
    warnings: list[str]


def fitted(path: str | Table, form: Form, settings: Settings) -> Fitted:
    """A law of this form fitted to the runs in `path`. For a settings.weight_decay of None see fit_by_default. Raises
    UserError."""
    runs = read_runs(path, form.columns, settings.mix_corpora)
    warnings = table_warnings(form, runs)
    train, validation = split(runs, settings.holdout, settings.weights, settings.bootstrap_by)
    decay_default = settings.weight_decay is None and len(train) <= FEW_RUNS
    fit, problem = fit_by_default(form, train, settings)
    if settings.select == "rmse":  # the start of lowest RMSE on fitted plus held-out runs, as in the paper
        near = np.flatnonzero(fit.objectives < np.inf)
        parts = (train, validation)
        rmses = [sum(_rmse_nats(form, fit.frees[i], part) for part in parts) for i in near]
        best = near[int(np.argmin(rmses))]
        fit = dataclasses.replace(fit, free=fit.frees[best], objective=float(fit.objectives[best]))
    return Fitted(runs, validation, fit, problem, decay_default, warnings)


def _rmse_nats(form: Form, free: Array, runs: Runs) -> float:
    """Root mean square error in nats of a law with these parameters `free` [n] on runs."""
    return errors(form.log_loss(free, runs.columns), runs)["rmse_nats"]


def record_of(law: Fitted, steps: list[Json] | None = None) -> Json:
    """What law.json holds of a fitted law, with its uncertainty.

    Args:
      steps: what uncertainty.rolling found, where it is known.

    Raises:
      UserError: where the law cannot be recorded.
    """
    runs = law.runs
    validation = law.validation
    fit = law.fit
    problem = law.problem
    settings = problem.settings
    form = fit.form
    train = problem.runs
    record = dict(
        version=law_check.VERSION,
        form=form.name,
        coefficients=fit.coefficients,
        objective=fit.objective,
        settings={name: getattr(settings, name) for name in NUMERICAL}
        | dict(fix=problem.fixed, weight_decay_default=law.decay_default)
        | dict(holdout=settings.holdout, select=settings.select, columns=runs.table.names)
        | (dict(units=runs.table.units) if runs.table.units else {})
        | dict(bootstrap_by=settings.bootstrap_by, weights=settings.weights or "none")
        | (dict(prior=form.prior.record) if form.prior and form.prior.record else {}),
        runs=described(runs, train, form),
        models=models.from_table(runs.table, train.index),
        fitted=errors(form.log_loss(fit.free, train.columns), train),
        held_out=errors(form.log_loss(fit.free, validation.columns), validation) if len(validation) else None,
        starts=dict(
            tried=fit.tried,
            followed=len(fit.ends),  # to their end: how the others would have ended is not known
            within_1_percent=int(np.sum(fit.ends <= 1.01 * fit.objective)),
            gradient_norm=fit.gradient_norm,
        ),
        versions={name: importlib.metadata.version(name) for name in solvers.PACKAGES}
        | {"python": platform.python_version()},
    )
    if steps is None and settings.holdout == ROLLING:
        steps = uncertainty.rolling(uncertainty.sampled(problem))
    certainty = uncertainty.how_sure(problem, fit)
    if steps:
        record["rolling"] = steps
    if steps and "bootstrap" in certainty and {"n_active", "n_tokens"} <= set(form.columns):  # so that compute is known
        draws = len(certainty["bootstrap"]["draws"])
        certainty["bootstrap"]["beyond"] = uncertainty.beyond(steps, train.flops.max(), draws, settings.seed)
    for name, part in (("separate_fitted", train), ("separate_held_out", validation)):
        if "separate" in certainty:
            record[name] = uncertainty.separate_errors(form, certainty["separate"], part)
    certainty["warnings"] = [*law.warnings, *plan_warnings(fit, runs), *certainty["warnings"]]
    return record | certainty


def fit_by_default(form: Form, runs: Runs, settings: Settings) -> tuple[search.Fit, Problem]:
    """(Fit, Problem): a settings.weight_decay of None is 0 or, up to FEW_RUNS runs, DECAY_PER_VARIANCE of the
    variance of the runs around the law, less where that costs more than COST. That variance, against which priors are
    weighed too, a first fit estimates. UserError as search.fit."""
    few = settings.weight_decay is None and len(runs) <= FEW_RUNS
    decay = (1e-6 if few else 0.0) if settings.weight_decay is None else settings.weight_decay
    settings = dataclasses.replace(settings, weight_decay=decay, variance=1e-4 if form.prior else 0.0)
    problem = prepare(form, runs, settings)
    fit = search.fit(problem)

    def again(**changes: float) -> tuple[search.Fit, Problem]:
        changed = prepare(form, runs, dataclasses.replace(problem.settings, **changes))
        return search.again(changed, fit), changed

    rounds = 3 if len(runs) <= search.SEARCH_RUNS else 1  # the first fits may have bent the law by more than the noise
    for _ in range(rounds if few or form.prior else 0):
        variance = float(noise_of(problem, fit.free, shared=False).run ** 2)
        decay = float(np.clip(DECAY_PER_VARIANCE * variance, SMALLEST_DECAY, LARGEST_DECAY)) if few else decay
        fit, problem = again(weight_decay=decay, variance=variance if form.prior else 0.0)
    if few:
        affordable = COST**2 * _mean_square(again(weight_decay=0.0)[0], runs)
        while _mean_square(fit, runs) > affordable and problem.settings.weight_decay > SMALLEST_DECAY:
            fit, problem = again(weight_decay=max(problem.settings.weight_decay / 10, SMALLEST_DECAY))
    return fit, problem


def _mean_square(fit: search.Fit, runs: Runs) -> float:
    """The weighted mean square of a fit's residuals of log loss."""
    residuals = fit.form.log_loss(fit.free, runs.columns) - np.log(runs.loss)
    return np.average(residuals**2, weights=runs.weights)


def described(runs: Runs, train: Runs, form: Form) -> Json:
    """What the record says of the runs: file, fingerprint, corpora, ranges of those fitted."""
    columns = {name: train.columns[name] for name in form.columns} | dict(loss=train.loss)
    columns |= dict(training_flops=train.flops) if "n_active" in runs.table else {}
    ranges = {name: [float(v.min()), float(v.max())] for name, v in columns.items()}
    return dict(file=runs.path, fingerprint=runs.fingerprint(), corpora=corpora(runs.table), ranges=ranges)


def table_warnings(form: Form, runs: Runs) -> list[str]:
    """Sentences about runs of odd sizes, and about mixtures among those of a law that does not read the number of
    experts."""
    table = runs.table
    out = [f"{runs.path}: {doubt}" for doubt in sense.doubts(table)]
    out += transition(runs)
    if not set(OF_EXPERTS) & set(form.columns) and "n_experts" in table:
        experts = table.numbers("n_experts")
        values = [f"{e:g}" for e in np.unique(experts)]
        if len(values) > 1:
            out.append(
                f"{int(np.sum(experts > 1))} of the {len(runs)} runs are mixtures (n_experts {', '.join(values)}): "
                f"the {form.name} law knows no experts and fits one loss to all of them; use --form=joint, or the "
                "runs of one n_experts"
            )
        elif values != ["1"]:
            out.append(f"every run has n_experts = {values[0]}: the {form.name} law holds for such mixtures alone")
    return out


def transition(runs: Runs) -> list[str]:
    """A sentence where the runs fall into two groups by how much they gain from the text before them in a row.

    The columns loss_FIRST_LAST hold a run's losses at positions of a row; its gain is that from the part that ends at a
    quarter of the row to the last part. Gains that grow smoothly with compute fill the range between the groups; after
    a transition, such as that to induction heads, they do not."""
    parts = {int(m[2]): m[0] for name in runs.table.columns if (m := re.fullmatch(r"loss_(\d+)_(\d+)", name))}
    if len(parts) < 3:
        return []
    *_, early, _, late = (parts[end] for end in sorted(parts))
    try:
        gain = (runs.table.numbers(early) - runs.table.numbers(late))[runs.index]
    except UserError:  # rows of several lengths, or runs from before these columns: nothing to compare
        return []
    split = two_groups(gain)
    if split is None:
        return []
    across = np.flatnonzero(gain > split)
    named = runs.table.column("run") if "run" in runs.table else [f"row {i + 1}" for i in range(len(runs.table))]
    largest = across[np.argsort(-gain[across])][:3]
    listed = ", ".join(f"{named[runs.index[i]]} ({gain[i]:.3f})" for i in largest)
    return [
        f"{len(across)} of {len(runs)} runs gain far more than the others from the text before: {listed} nats from "
        f"{early} to {late}, where the median of the others gains {np.median(gain[gain <= split]):.3f}. If that is a "
        "transition, no smooth law holds on both sides of it: fit the runs of one side"
    ]


def two_groups(values: Array) -> float | None:
    """The largest value of the lower one of two groups, at the split that leaves the least variance within them (Otsu
    1979); None where the split explains less than GROUPED of the variance (evenly spread values have 0.75) or the
    groups' means are less than TRANSITION_NATS apart."""
    ordered = np.sort(values)
    total = np.var(ordered)
    best = 0.0
    split = None
    for count in range(1, len(ordered)):
        low = ordered[:count]
        high = ordered[count:]
        share = count * (len(ordered) - count) / len(ordered) ** 2
        apart = high.mean() - low.mean()
        explained = share * apart**2 / total if total > 0 else 0.0
        if explained > best:
            best = explained
            split = float(low[-1]) if apart >= TRANSITION_NATS and explained >= GROUPED else None
    return split


def plan_warnings(fit: search.Fit, runs: Runs) -> list[str]:
    """Sentences that say where fit plan would refuse this law."""
    form = fit.form
    if not form.at_experts:
        return []
    experts = np.unique([*runs.n_experts, *EXPERTS]) if "n_experts" in form.columns else np.ones(1)
    reduced = form.at_experts(fit.coefficients, experts)
    out = []
    for name, exponent in (("n_active", reduced.mu), ("n_tokens", reduced.nu)):
        rising = exponent >= 0
        if np.any(rising):
            at = ", ".join(f"{e:g}" for e in experts[rising])
            out.append(
                f"this law's loss does not fall with {name} at n_experts = {at} (exponent up to "
                f"{exponent.max():.3g}): fit plan will refuse it there; give more runs, or hold coefficients by --fix"
            )
    return out
