"""Runs kept out of the fit, weights of runs, and how far a law is from runs."""

import dataclasses
import re

import numpy as np

from fit.aliases import Array, Floats, Json
from fit.data.runs import Runs, subset, trunks_of
from fit.errors import UserError
from fit.form import Form

ROLLING = "compute:rolling"


def held_out(runs: Runs, rule: str) -> Array:
    """Boolean [n_runs]: the runs that `rule` keeps out of the fit. UserError if the rule makes no sense.

    none, lowest-loss:N, largest-compute:N (n_active times n_tokens), N a count or a percentage, or column:NAME.
    Ties are broken by the order of the file. compute:rolling keeps none out of the law that is written: see rolling.py.
    """
    out = np.zeros(len(runs), bool)
    if rule in ("none", ROLLING):
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
        except (ValueError, OverflowError):
            raise UserError(f"--holdout={rule}: found {amount!r}, expected a count or a percentage") from None
        key = runs.loss if kind == "lowest-loss" else -runs.n_active * runs.n_tokens
        if 0 < count < len(runs):
            out[np.argsort(key, kind="stable")[:count]] = True
    else:
        raise UserError(
            f"--holdout={rule}: expected none, lowest-loss:N, largest-compute:N, N or N%, column:NAME or {ROLLING}"
        )
    if not 0 < count < len(runs):
        raise UserError(f"--holdout={rule}: holds out {count} of {len(runs)} runs, expected at least 1 and not all")
    return out


def run_weights(runs: Runs, rule: str | None) -> Array:
    """float64 [n_runs], of mean 1: none (or None), inverse-loss (App. B: worse runs count less), compute^POWER (of the
    training FLOPs: small runs count less), or column:NAME."""
    if rule in ("none", None):
        return np.ones(len(runs))
    if rule == "inverse-loss":
        weights = 1 / runs.loss
    elif (power := re.fullmatch(r"compute\^(\d*\.?\d+)", rule)) and float(power[1]) <= 2:
        weights = (runs.flops / runs.flops.max()) ** float(power[1])
    elif rule.startswith("column:"):
        weights = runs.table.numbers(rule[len("column:") :], (0, 1e12))
        if not weights.any():
            raise UserError(f"{runs.path}, column {rule[len('column:') :]}: every weight is 0")
    else:
        raise UserError(
            f"--weights={rule}: expected none, inverse-loss, compute^POWER with a power up to 2, or column:NAME"
        )
    return weights / weights.mean()


def split(runs: Runs, rule: str, weights: str | None = None, by: str = "trunk") -> tuple[Runs, Runs]:
    """(runs to fit, those held out), with weights and trunks by these rules; UserError where one of them makes no
    sense."""
    trunks, shared_by = trunks_of(runs.table, by)
    out = held_out(runs, rule)
    runs = dataclasses.replace(runs, weights=run_weights(runs, weights), trunks=trunks, shared_by=shared_by)
    return subset(runs, ~out), subset(runs, out)


def errors(form: Form, free: Array, runs: Runs) -> Json:
    """How far a law is from runs, as errors_of says it."""
    return errors_of(form.log_loss(free, runs.columns), runs)


def errors_of(log_loss: Array, runs: Runs) -> Json:
    """How far these log losses are from those of runs: count, RMSE in nats and in log loss, mean and largest relative
    error, and the run that has it."""
    log_error = log_loss - np.log(runs.loss)
    relative = np.abs(np.expm1(log_error))
    worst = int(np.argmax(relative))
    found: Json = dict(runs=len(runs), rmse_nats=rms(np.exp(log_loss) - runs.loss), rmse_log=rms(log_error))
    found |= dict(mean_relative_error=float(relative.mean()), max_relative_error=float(relative[worst]))
    of_worst = dict(predicted=float(np.exp(log_loss[worst])), measured=float(runs.loss[worst]))
    return found | dict(worst=runs.name(worst) | of_worst)


def rms(x: Floats) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(x))))
