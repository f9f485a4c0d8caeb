"""Fits to runs drawn anew, for intervals of a law's coefficients, predictions and plans.

Runs that share a trunk share its error, so trunks are drawn whole: with 12 trunks of three budgets each there are 12
independent errors, not 36. Drawing the *runs* of a small sweep anew leaves sizes out and extrapolates wildly. By
default the runs stay as they are and their *errors* are drawn anew.
"""

import numpy as np

from fit import regress
from fit.laws import FORMS

FORMS_OF_DRAWING = ("errors", "replacement", "paper")


def distinct_optima(found, most=3):
    """Up to `most` rows of found.frees within 10% of the best objective that differ in objective; the best one
    first."""
    order = np.argsort(found.objectives, kind="stable")[: regress.BATCH]  # the others were not followed to their end
    rows = [found.free]
    last = found.objective
    for i in order:
        if len(rows) == most or found.objectives[i] > 1.1 * found.objective:
            break
        if found.objectives[i] > last * 1.002:
            rows.append(found.frees[i])
            last = found.objectives[i]
    return np.stack(rows)


def bootstrap(
    form, runs, settings, weights, found, draws, how="errors", noise=None, trunks=None, count=None, quiet=True
):
    """Coefficients [draws, n] of fits to runs drawn anew, each from the best optima of the whole fit.

    how: "errors" draws the law's own losses with new errors of the sizes in `noise` (noise.Noise), one that each trunk
    shares and one of each run; "replacement" draws trunks (labels [n_runs], or None for each run by itself) with
    replacement, "paper" 80% of them without (App. F). Of single runs "replacement" takes fewer by one for each
    coefficient, for the scatter around a fit is that much too small. count: of how many runs `runs` are a sample; the
    draws spread as fits to so many would.
    """
    law, data = FORMS[form], regress.prepared(form, runs, settings, weights)
    rng, n = np.random.default_rng([settings.seed, 1]), len(runs)
    labels = np.arange(n) if trunks is None else trunks
    shrink = np.sqrt(n / (count or n))
    starts = regress.centre(form, distinct_optima(found), data)
    k = len(starts)
    if how == "errors":
        fitted = law.log_loss(found.free, np.log(runs.n_active), np.log(runs.n_tokens), np.asarray(runs.n_experts))
        drawn = fitted + shrink * noise.draw(rng, draws, labels)
        trial = data | {"log_loss": np.repeat(_padded(drawn, data), k, axis=0)}
    else:
        counts = _counts(rng, labels, draws, how, len(law.FREE))
        weight = data["root_weight"] * np.sqrt(_padded(counts, data))
        trial = data | {"root_weight": np.repeat(weight, k, axis=0)}
    label = None if quiet else f"bootstrap of {draws}"
    x, values, _ = regress.polish(form, np.tile(starts, (draws, 1)), trial, rounds=5, each=True, label=label)
    best = np.argmin(values.reshape(draws, k), axis=1)
    free = regress.own(form, x.reshape(draws, k, -1)[np.arange(draws), best], data)
    if how != "errors" and shrink < 1:
        free = found.free + shrink * (free - found.free)
    return np.asarray(law.to_coefficients(free))


def _counts(rng, labels, draws, how, coefficients):
    """float64 [draws, n_runs]: how often each run is drawn."""
    units = labels.max() + 1
    counts = np.zeros((draws, units))
    if how == "paper":
        for row in counts:
            row[rng.choice(units, round(0.8 * units), replace=False)] = 1
    else:
        drawn = units if units < len(labels) else max(units - coefficients, units // 2)
        counts = rng.multinomial(drawn, np.full(units, 1 / units), size=draws).astype(float)
    return counts[:, labels]


def _padded(rows, data):
    """[draws, n_runs] with a 0 for each run that prepare added."""
    return np.pad(rows, ((0, 0), (0, len(data["ln_n"]) - rows.shape[1])))
