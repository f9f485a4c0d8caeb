"""From a file of runs to a law.json record: held-out runs, weights, the fit, its errors and what stands beside them."""

import dataclasses
import importlib.metadata
import json
import platform

import numpy as np

from fit import UserError, models, regress, uncertainty
from fit import runs as runs_lib
from fit.laws import FORMS


def subset(runs, rows):
    """The runs where `rows` (boolean [n_runs]) is true."""
    values = {name: getattr(runs, name)[rows] for name in ("n_active", "n_tokens", "n_experts", "loss")}
    return runs_lib.Runs(runs.path, table=runs.table, **values)


def held_out(runs, rule):
    """Boolean [n_runs]: the runs that `rule` keeps out of the fit. UserError if the rule makes no sense.

    none, lowest-loss:N, largest-compute:N (n_active times n_tokens), N a count or a percentage, or column:NAME.
    Ties are broken by the order of the file.
    """
    out = np.zeros(len(runs), bool)
    if rule == "none":
        return out
    kind, _, amount = rule.partition(":")
    if kind == "column" and amount:
        for i, value in enumerate(runs.table.column(amount)):
            text = str(value).strip().lower()
            if text in ("validation", "valid", "val", "test", "holdout", "held-out", "true", "1", "1.0"):
                out[i] = True
            elif text not in ("train", "fit", "false", "0", "0.0", ""):
                raise UserError(
                    f"{runs.path}, row {runs.table.rows[i]}, column {amount}: found {value!r}, expected validation "
                    "or train, true or false, 1 or 0"
                )
        count = int(out.sum())
    elif kind in ("lowest-loss", "largest-compute"):
        try:
            count = int(round(float(amount[:-1]) / 100 * len(runs))) if amount.endswith("%") else int(amount)
        except ValueError:
            raise UserError(f"--holdout={rule}: found {amount!r}, expected a count or a percentage") from None
        key = runs.loss if kind == "lowest-loss" else -runs.n_active * runs.n_tokens
        if 0 < count < len(runs):
            out[np.argsort(key, kind="stable")[:count]] = True
    else:
        raise UserError(
            f"--holdout={rule}: expected none, lowest-loss:N, largest-compute:N, the same with N%, or column:NAME"
        )
    if not 0 < count < len(runs):
        raise UserError(f"--holdout={rule}: holds out {count} of {len(runs)} runs, expected at least 1 and not all")
    return out


def run_weights(runs, rule):
    """float64 [n_runs], of mean 1: none, inverse-loss (App. B: worse runs count less), or column:NAME."""
    if rule == "none":
        return np.ones(len(runs))
    if rule == "inverse-loss":
        weights = 1 / runs.loss
    elif rule.startswith("column:"):
        weights = runs.table.numbers(rule[len("column:") :], (0, 1e12))
        if not weights.any():
            raise UserError(f"{runs.path}, column {rule[len('column:') :]}: every weight is 0")
    else:
        raise UserError(f"--weights={rule}: expected none, inverse-loss or column:NAME")
    return weights / weights.mean()


def errors(law, free, runs):
    """How far a law is from runs: count, RMSE in nats and in log loss, mean and largest relative error."""
    predicted = np.asarray(law.log_loss(free, np.log(runs.n_active), np.log(runs.n_tokens), runs.n_experts))
    log_error = predicted - np.log(runs.loss)
    relative = np.abs(np.expm1(log_error))
    return dict(
        runs=len(runs),
        rmse_nats=_rms(np.exp(predicted) - runs.loss),
        rmse_log=_rms(log_error),
        mean_relative_error=float(relative.mean()),
        max_relative_error=float(relative.max()),
    )


def _rms(x):
    return float(np.sqrt(np.mean(x**2)))


def fit_file(
    path,
    form,
    settings,
    holdout="none",
    weights="none",
    select="objective",
    mix_corpora=False,
    quiet=False,
    bootstrap=0,
    bootstrap_form="replacement",
    percentiles=(10.0, 90.0),
):
    """Fits the law `form` to the runs in `path`; returns the record that law.json holds. Raises UserError.

    holdout, weights: rules as held_out and run_weights take them; select: objective or rmse; bootstrap: how many draws, in
    bootstrap_form replacement or paper.
    """
    law = FORMS[form]
    runs = runs_lib.read_runs(path, law.COLUMNS, mix_corpora)
    out = held_out(runs, holdout)
    weight = run_weights(runs, weights)[~out]
    if select == "rmse" and not out.any():
        raise UserError("--select=rmse needs held-out runs: give --holdout")
    train, validation = subset(runs, ~out), subset(runs, out)
    found = regress.fit(form, train, settings, weight, quiet=quiet)
    free, value = found.free, found.objective
    if select == "rmse":
        near = np.flatnonzero(found.objectives < np.inf)
        scores = [
            errors(law, found.frees[i], train)["rmse_nats"] + errors(law, found.frees[i], validation)["rmse_nats"]
            for i in near
        ]
        best = near[int(np.argmin(scores))]
        free, value = found.frees[best], float(found.objectives[best])
        found = dataclasses.replace(found, free=free, objective=value)
    coefficients = found.coefficients
    if not all(np.isfinite(v) for v in coefficients.values()):
        raise UserError(
            f"{path}: the {form} law's best fit runs off to infinity ({coefficients}); give more runs, or a small "
            "--weight_decay such as 1e-7"
        )
    record = dict(
        form=form,
        coefficients=coefficients,
        objective=value,
        settings=dict(dataclasses.asdict(settings), holdout=holdout, weights=weights, select=select),
        runs=dict(
            file=path,
            fingerprint=runs.fingerprint(),
            corpora=sorted({str(v) for v in runs.table.columns.get("corpus_fingerprint", [])}),
            ranges={
                name: [float(getattr(train, name).min()), float(getattr(train, name).max())]
                for name in (*law.COLUMNS, "loss")
            }
            | {"training_flops": [float(v) for v in np.quantile(6 * train.n_active * train.n_tokens, [0, 1])]},
        ),
        models=models.from_table(runs.table, ~out),
        fitted=errors(law, free, train),
        held_out=errors(law, free, validation) if out.any() else None,
        starts=dict(
            tried=len(found.objectives),
            within_1_percent=int(np.sum(found.objectives <= 1.01 * found.objective)),
            gradient_norm=found.gradient_norm,
        ),
        versions={name: importlib.metadata.version(name) for name in ("jax", "jaxopt", "numpy")}
        | {"python": platform.python_version()},
    )
    if len(train) > regress.SEARCH_RUNS:
        return record  # with so many runs nothing is left open, and each of the following would take hours
    if form == "joint":
        record["separate"] = alone = uncertainty.separate(train, settings, weight)
        for name, part in (("separate_fitted", train), ("separate_held_out", validation)):
            record[name] = separate_errors(alone, part)
    record["profile"] = uncertainty.profile(form, train, settings, weight, found, quiet)
    record["warnings"] = uncertainty.warnings(form, train, found, record["profile"])
    if bootstrap:
        draws = uncertainty.bootstrap(form, train, settings, weight, found, bootstrap, bootstrap_form, quiet)
        record["bootstrap"] = dict(
            form=bootstrap_form,
            percentiles=list(percentiles),
            draws=draws.tolist(),
            intervals={
                name: np.percentile(draws[:, i], percentiles).tolist() for i, name in enumerate(law.COEFFICIENTS)
            },
        )
    return record


def separate_errors(alone, runs):
    """Errors of the laws fitted to each number of experts alone, over the runs that have one; None if none has."""
    rows = np.array([f"{e:g}" in alone for e in runs.n_experts], bool)
    if not rows.any():
        return None
    law, runs = FORMS["chinchilla"], subset(runs, rows)
    log_loss = np.concatenate(
        [
            np.asarray(law.log_loss(law.to_free(alone[f"{e:g}"]["coefficients"]), np.log(n), np.log(d), e))
            for n, d, e in zip(runs.n_active[:, None], runs.n_tokens[:, None], runs.n_experts)
        ]
    )
    return dict(
        runs=len(runs), rmse_nats=_rms(np.exp(log_loss) - runs.loss), rmse_log=_rms(log_loss - np.log(runs.loss))
    )


def summary(record):
    """Lines that tell a person how the fit went."""
    yield f"{record['form']} law: " + ", ".join(f"{k} {v:.6g}" for k, v in record["coefficients"].items())
    yield (
        f"objective {record['objective']:.6e}; {record['starts']['within_1_percent']} of {record['starts']['tried']} "
        "starts within 1% of it"
    )
    fitted, out = record["fitted"], record["held_out"]
    yield (
        f"mean relative error on {fitted['runs']} fitted runs: {fitted['mean_relative_error']:.2%} "
        f"(largest {fitted['max_relative_error']:.2%}, RMSE {fitted['rmse_nats']:.4f} nats)"
    )
    if out:
        yield (
            f"mean relative error on {out['runs']} held-out runs: {out['mean_relative_error']:.2%} "
            f"(largest {out['max_relative_error']:.2%}, RMSE {out['rmse_nats']:.4f} nats)"
        )
    for name, words in (("separate_fitted", "fitted"), ("separate_held_out", "held-out")):
        if record.get(name):
            yield (
                f"a separate Chinchilla law for each number of experts: RMSE {record[name]['rmse_nats']:.4f} nats on "
                f"{record[name]['runs']} {words} runs"
            )
    if "bootstrap" in record:
        low, high = record["bootstrap"]["percentiles"]
        yield f"{low:g}th to {high:g}th percentile of {len(record['bootstrap']['draws'])} bootstrap fits: " + ", ".join(
            f"{name} {a:.4g} to {b:.4g}" for name, (a, b) in record["bootstrap"]["intervals"].items()
        )
        if record["bootstrap"]["form"] == "paper":
            yield "  (80% of the runs without replacement, the paper's form: about half too narrow by construction)"
    for warning in (*models.notes(record.get("models", {})), *record.get("warnings", [])):
        yield f"warning: {warning}"


def save(record, path):
    """Writes the record as JSON, whole or not at all; the same record gives the same bytes."""
    runs_lib.write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
