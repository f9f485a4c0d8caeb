"""From a file of runs to a law.json record: held-out runs, weights, the fit, its errors and what stands beside them."""

import dataclasses
import importlib.metadata
import json
import platform

import numpy as np

from fit import UserError, bootstrap, holdout, lawfile, models, profile, regress, trunks, uncertainty
from fit import noise as noise_lib
from fit import runs as runs_lib
from fit.holdout import errors, held_out, run_weights  # noqa: F401, for those who compare a law with runs
from fit.laws import FORMS
from fit.runs import subset
from fit.summary import summary  # noqa: F401

FEW_RUNS, SMALL_DECAY = 60, 1e-6  # up to so many runs the weight decay is this unless told otherwise


@dataclasses.dataclass(frozen=True)
class Options:
    """What to do beside the fit itself. holdout, weights: rules of holdout.held_out and run_weights; select: objective or
    rmse; bootstrap: how many draws, in bootstrap_form, by trunks as trunks.trunks_of takes it; columns: {ours: theirs}."""

    holdout: str = "none"
    weights: str = "none"
    select: str = "objective"
    mix_corpora: bool = False
    bootstrap: int = 0
    bootstrap_form: str = "errors"
    bootstrap_by: str = "trunk"
    percentiles: tuple = (10.0, 90.0)
    columns: dict = dataclasses.field(default_factory=dict)


def fit_file(path, form, settings, quiet=False, **options):
    """Fits the law `form` to the runs in `path`; returns the record that law.json holds. Raises UserError.

    A settings.weight_decay of None is 0, or SMALL_DECAY up to FEW_RUNS runs. options: fields of Options.
    """
    options = Options(**options)
    law = FORMS[form]
    runs = runs_lib.read_runs(path, law.COLUMNS, options.mix_corpora, options.columns)
    labels, by = trunks.trunks_of(runs.table, options.bootstrap_by)
    out = held_out(runs, options.holdout)
    weight = run_weights(runs, options.weights)[~out]
    if options.select == "rmse" and not out.any():
        raise UserError("--select=rmse needs held-out runs: give --holdout")
    train, validation = subset(runs, ~out), subset(runs, out)
    decay_default = settings.weight_decay is None and len(train) <= FEW_RUNS
    if settings.weight_decay is None:
        settings = dataclasses.replace(settings, weight_decay=SMALL_DECAY if decay_default else 0.0)
    found = regress.fit(form, train, settings, weight, quiet=quiet)
    if options.select == "rmse":
        found = selected(found, law, train, validation)
    record = dict(
        form=form,
        coefficients=found.coefficients,
        objective=found.objective,
        settings=dataclasses.asdict(settings)
        | dict(fix=dict(settings.fix), weight_decay_default=decay_default)
        | {name: getattr(options, name) for name in ("holdout", "weights", "select", "columns")},
        runs=described(runs, train, law),
        models=models.from_table(runs.table, ~out),
        fitted=errors(law, found.free, train),
        held_out=errors(law, found.free, validation) if out.any() else None,
        starts=dict(
            tried=len(found.objectives),
            within_1_percent=int(np.sum(found.objectives <= 1.01 * found.objective)),
            gradient_norm=found.gradient_norm,
        ),
        versions={name: importlib.metadata.version(name) for name in ("jax", "jaxopt", "numpy")}
        | {"python": platform.python_version()},
    )
    if options.holdout == holdout.ROLLING:
        record["rolling"] = holdout.rolling(form, train, settings, weight, quiet)
    labels = labels if labels is None else np.unique(labels[~out], return_inverse=True)[1]
    sure = how_sure(form, train, settings, weight, found, labels, by, options, quiet)
    if form == "joint":
        alone = sure["separate"]
        for name, part in (("separate_fitted", train), ("separate_held_out", validation)):
            record[name] = separate_errors(alone, part)
    sure["warnings"] = [*table_warnings(form, runs), *plan_warnings(found, runs), *sure["warnings"]]
    return record | sure


def selected(found, law, train, validation):
    """The start of lowest RMSE on fitted plus held-out runs, as in the paper."""
    near = np.flatnonzero(found.objectives < np.inf)
    scores = [sum(errors(law, found.frees[i], part)["rmse_nats"] for part in (train, validation)) for i in near]
    best = near[int(np.argmin(scores))]
    return dataclasses.replace(found, free=found.frees[best], objective=float(found.objectives[best]))


def described(runs, train, law):
    """What the record says of the runs: file, fingerprint, corpora, ranges of those fitted."""
    ranges = {name: [float(v.min()), float(v.max())] for name in (*law.COLUMNS, "loss") if (v := getattr(train, name)).any()}
    flops = 6 * train.n_active * train.n_tokens
    return dict(
        file=runs.path,
        fingerprint=runs.fingerprint(),
        corpora=sorted({str(v) for v in runs.table.column("corpus_fingerprint")})
        if "corpus_fingerprint" in runs.table
        else [],
        ranges=ranges | {"training_flops": [float(flops.min()), float(flops.max())]},
    )


def how_sure(form, runs, settings, weights, found, labels, by, options, quiet=False):
    """The entries of the record that say how sure the fit is: noise, profile, warnings, bootstrap, for the joint law the
    laws of each number of experts alone, and, above regress.SEARCH_RUNS runs, of which sample of them."""
    law, sure, count, all_found = FORMS[form], {}, len(runs), found
    if len(runs) > regress.SEARCH_RUNS:
        rows = sample_of(len(runs), labels, settings.seed)
        runs, weights = subset(runs, rows), weights[rows]
        labels = None if labels is None else np.unique(labels[rows], return_inverse=True)[1]
        data = regress.prepared(form, runs, settings, weights)
        x, values, gradients = regress.polish(form, regress.centre(form, found.free[None], data), data)
        free = regress.own(form, x, data)
        found = regress.Fit(form, free[0], float(values[0]), free, values, float(gradients[0]))
        sure["sample"] = dict(runs=len(runs), of=count)
    if form == "joint":
        sure["separate"] = uncertainty.separate(runs, settings, weights)
    data = regress.prepared(form, runs, settings, weights)
    alone = noise_lib.noise(form, found.free, data, len(runs))
    noise = alone if labels is None else noise_lib.noise(form, found.free, data, len(runs), labels)
    sure["noise"] = dict(
        run=noise.run,
        trunk=noise.trunk,
        total=noise.total,
        trunks=0 if labels is None else int(labels.max()) + 1,
        by=by,
        degrees_of_freedom=list(noise.degrees_of_freedom),
    )
    context = (form, runs, settings, weights, found)
    standard = uncertainty.standard_errors(*context, noise, labels, count=count)
    inflation = uncertainty.inflation(*context, noise, alone, labels, count)
    sure["profile"] = profile.profile(*context, standard, inflation, count, quiet)
    sure["warnings"] = uncertainty.warnings(*context, sure["profile"], noise, labels, count)
    if found is not all_found:  # around the coefficients that all runs gave
        for name, p in sure["profile"].items():
            scale = all_found.coefficients[name] / p["value"]
            sure["profile"][name] = {key: value if value is None else value * scale for key, value in p.items()}
    if options.bootstrap:
        how, percentiles = options.bootstrap_form, options.percentiles
        draws = bootstrap.bootstrap(
            form, runs, settings, weights, all_found, options.bootstrap, how, noise, labels, count, quiet
        )
        sure["bootstrap"] = dict(
            form=how,
            by=by,
            percentiles=list(percentiles),
            draws=draws.tolist(),
            intervals={
                name: np.percentile(draws[:, i], percentiles, method="weibull").tolist() for i, name in enumerate(law.COEFFICIENTS)
            },
        )
    return sure


def sample_of(n, labels, seed):
    """Indices of a random sample of at most regress.SEARCH_RUNS of n runs, of whole trunks where they have labels."""
    rng = np.random.default_rng([seed, 4])
    if labels is None:
        return np.sort(rng.choice(n, regress.SEARCH_RUNS, replace=False))
    order = rng.permutation(labels.max() + 1)
    sizes = np.cumsum(np.bincount(labels)[order])
    chosen = order[: max(1, int(np.searchsorted(sizes, regress.SEARCH_RUNS, side="right")))]
    return np.flatnonzero(np.isin(labels, chosen))[: regress.SEARCH_RUNS]


def table_warnings(form, runs):
    """Sentences about runs that the law does not mean."""
    out, table = [], runs.table
    if "n_experts" not in FORMS[form].COLUMNS and "n_experts" in table:
        experts = table.numbers("n_experts")
        if found := [f"{e:g}" for e in np.unique(experts)]:
            if len(found) > 1:
                out.append(
                    f"{int(np.sum(experts > 1))} of the {len(runs)} runs are mixtures (n_experts {', '.join(found)}): the "
                    f"{form} law knows no experts and fits one loss to all of them; use --form=joint, or the runs of one "
                    "n_experts"
                )
            elif found != ["1"]:
                out.append(f"every run has n_experts = {found[0]}: the {form} law holds for such mixtures alone")
    if "epochs" in table:
        epochs = table.numbers("epochs")
        if len(repeated := np.flatnonzero(epochs > 1 + 1e-6)):
            first = repeated[0]
            out.append(
                f"{len(repeated)} of the {len(runs)} runs saw tokens more than once (column epochs, up to "
                f"{epochs.max():.3g}, first in row {table.rows[first]}): a law's n_tokens are fresh tokens, and it will "
                "promise less of new ones than they give"
            )
    return out


def plan_warnings(found, runs):
    """Sentences about what fit plan would refuse of this law."""
    law = FORMS[found.form]
    if not hasattr(law, "at_experts"):
        return []
    experts = np.unique([*runs.n_experts, *lawfile.EXPERTS]) if "n_experts" in law.COLUMNS else np.ones(1)
    _, mu, _, nu, _ = law.at_experts(found.coefficients, experts)
    out = []
    for name, exponent in (("n_active", mu), ("n_tokens", nu)):
        if np.any(rising := exponent >= 0):
            at = ", ".join(f"{e:g}" for e in experts[rising])
            out.append(
                f"this law's loss does not fall with {name} at n_experts = {at} (exponent up to {exponent.max():.3g}): fit plan "
                "will refuse it there; give more runs, or hold coefficients by --fix"
            )
    return out


def separate_errors(alone, runs):
    """Errors of the laws fitted to each number of experts alone, over the runs that have one; None if none has."""
    rows = np.array([f"{e:g}" in alone for e in runs.n_experts], bool)
    if not rows.any():
        return None
    law, runs = FORMS["chinchilla"], subset(runs, rows)
    log_loss = np.empty(len(runs))
    for e in np.unique(runs.n_experts):
        rows, free = runs.n_experts == e, law.to_free(alone[f"{e:g}"]["coefficients"])
        log_loss[rows] = law.log_loss(free, np.log(runs.n_active[rows]), np.log(runs.n_tokens[rows]), e)
    return dict(
        runs=len(runs),
        rmse_nats=holdout.rms(np.exp(log_loss) - runs.loss),
        rmse_log=holdout.rms(log_loss - np.log(runs.loss)),
    )


def save(record, path):
    """Writes the record as JSON, whole or not at all; the same record gives the same bytes."""
    runs_lib.write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
