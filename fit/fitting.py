"""From a file of runs to a law.json record: held-out runs, weights, the fit, its errors and what stands beside them."""

import dataclasses
import importlib.metadata
import json
import platform

import numpy as np

from fit import UserError, holdout, lawfile, models, regress, trunks
from fit import noise as noise_lib
from fit import runs as runs_lib
from fit.files import plain
from fit.holdout import errors, held_out, run_weights  # noqa: F401, for those who compare a law with runs
from fit.laws import FORMS
from fit.runs import subset
from fit.summary import summary  # noqa: F401
from fit.sure import how_sure

# Up to so many runs the weight decay is this share of their variance unless told otherwise: as if every parameter, a
# logarithm or an exponent, were known to lie within some 10 of zero. Of 1% of noise that makes 1e-6.
FEW_RUNS, DECAY_PER_VARIANCE, LARGEST_DECAY = 60, 0.01, 1e-5


@dataclasses.dataclass(frozen=True)
class Options:
    """What to do beside the fit itself. holdout, weights: rules of holdout.held_out and run_weights; select:
    objective or rmse; bootstrap: how many draws, in bootstrap_form (bootstrap.FORMS_OF_DRAWING), by trunks as
    trunks.trunks_of takes bootstrap_by; columns: {ours: theirs}."""

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

    For a settings.weight_decay of None see fit_by_default. options: fields of Options.
    """
    options = Options(**options)
    law = FORMS[form]
    runs = runs_lib.read_runs(path, law.COLUMNS, options.mix_corpora, options.columns)
    labels, by = trunks.trunks_of(runs.table, options.bootstrap_by)
    said = table_warnings(form, runs)
    out = held_out(runs, options.holdout)
    weight = run_weights(runs, options.weights)[~out]
    if options.select == "rmse" and not out.any():
        raise UserError("--select=rmse needs held-out runs: give --holdout")
    train, validation = subset(runs, ~out), subset(runs, out)
    decay_default = settings.weight_decay is None and len(train) <= FEW_RUNS
    found, settings = fit_by_default(form, train, settings, weight, quiet)
    if options.select == "rmse":
        found = selected(found, law, train, validation)
    record = dict(
        form=form,
        coefficients=found.coefficients,
        objective=found.objective,
        settings=dataclasses.asdict(settings)
        | dict(fix=dict(settings.fix), weight_decay_default=decay_default)
        | {name: getattr(options, name) for name in ("holdout", "weights", "select", "columns", "bootstrap_by")},
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
            record[name] = holdout.separate_errors(alone, part)
    sure["warnings"] = [*said, *plan_warnings(found, runs), *sure["warnings"]]
    return record | sure


def fit_by_default(form, runs, settings, weights, quiet=False):
    """(Fit, settings): a settings.weight_decay of None is 0 or, up to FEW_RUNS runs, DECAY_PER_VARIANCE of the
    variance of the runs around the law, which a first fit tells. UserError as regress.fit."""
    if settings.weight_decay is not None:
        return regress.fit(form, runs, settings, weights, quiet), settings
    if len(runs) > FEW_RUNS:
        settings = dataclasses.replace(settings, weight_decay=0.0)
        return regress.fit(form, runs, settings, weights, quiet), settings
    settings = dataclasses.replace(settings, weight_decay=1e-6)
    found = regress.fit(form, runs, settings, weights, quiet)
    for _ in range(3):  # the first may have bent the law by more than the noise
        noise = noise_lib.noise(form, found.free, regress.prepared(form, runs, settings, weights), len(runs))
        decay = float(np.clip(DECAY_PER_VARIANCE * noise.run**2, 1e-14, LARGEST_DECAY))
        settings = dataclasses.replace(settings, weight_decay=decay)
        found = regress.again(form, runs, settings, weights, found)
    return found, settings


def selected(found, law, train, validation):
    """The start of lowest RMSE on fitted plus held-out runs, as in the paper."""
    near = np.flatnonzero(found.objectives < np.inf)
    scores = [sum(errors(law, found.frees[i], part)["rmse_nats"] for part in (train, validation)) for i in near]
    best = near[int(np.argmin(scores))]
    return dataclasses.replace(found, free=found.frees[best], objective=float(found.objectives[best]))


def described(runs, train, law):
    """What the record says of the runs: file, fingerprint, corpora, ranges of those fitted."""
    columns = {name: getattr(train, name) for name in (*law.COLUMNS, "loss")}
    columns["training_flops"] = 6 * train.n_active * train.n_tokens
    return dict(
        file=runs.path,
        fingerprint=runs.fingerprint(),
        corpora=sorted({str(v) for v in runs.table.column("corpus_fingerprint")})
        if "corpus_fingerprint" in runs.table
        else [],
        ranges={name: [float(v.min()), float(v.max())] for name, v in columns.items()},
    )


def table_warnings(form, runs):
    """Sentences about runs that the law does not mean."""
    out, table = [], runs.table
    if "n_experts" not in FORMS[form].COLUMNS and "n_experts" in table:
        experts = table.numbers("n_experts")
        if found := [f"{e:g}" for e in np.unique(experts)]:
            if len(found) > 1:
                out.append(
                    f"{int(np.sum(experts > 1))} of the {len(runs)} runs are mixtures (n_experts {', '.join(found)}): "
                    f"the {form} law knows no experts and fits one loss to all of them; use --form=joint, or the runs "
                    "of one n_experts"
                )
            elif found != ["1"]:
                out.append(f"every run has n_experts = {found[0]}: the {form} law holds for such mixtures alone")
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
                f"this law's loss does not fall with {name} at n_experts = {at} (exponent up to "
                f"{exponent.max():.3g}): fit plan will refuse it there; give more runs, or hold coefficients by --fix"
            )
    return out


def save(record, path):
    """Writes the record as JSON, whole or not at all, the same bytes each time; a number that is not finite is null."""
    runs_lib.write_text(path, json.dumps(plain(record), indent=1, allow_nan=False) + "\n")
