"""The data of a fit as the compiled search reads it: logarithms, weights, coefficients held; of one of a few
lengths."""

import numpy as np

from fit.laws import FORMS

PER_RUN = ("ln_n", "ln_d", "n_experts", "log_loss", "root_weight")
PER_START = ("log_loss", "root_weight", "held", "moving")  # what may differ from start to start


def padded_length(n):
    """To how many rows n runs are filled up: at most an eighth more (or to a multiple of 32), and none above 4,096."""
    step = max(32, 2 ** (int(n).bit_length() - 4))
    return n if n > 4096 else -(-n // step) * step


def prepare(runs, settings, weights=None):
    """The data that residual_function reads; weights [n_runs] multiply each run's loss.

    ln_n, ln_d (centred by shift_n, shift_d), n_experts, log_loss, root_weight: [padded_length(n_runs)], the last rows
    of no weight. `hold` adds held (the law's coefficients, NaN where free) and moving (1 where the search moves the
    entry of FREE).
    """
    weights = np.ones(len(runs)) if weights is None else np.asarray(weights, float)
    ln_n, ln_d = np.log(runs.n_active), np.log(runs.n_tokens)
    scale = 1.0 if settings.reduction == "sum" else 1.0 / len(runs)
    shift_n, shift_d = ln_n.mean(), ln_d.mean()
    data = dict(
        ln_n=ln_n - shift_n,
        ln_d=ln_d - shift_d,
        n_experts=np.asarray(runs.n_experts, float),
        log_loss=np.log(runs.loss),
        root_weight=np.sqrt(weights * scale),
        delta=np.float64(settings.huber_delta),
        weight_decay=np.float64(settings.weight_decay),
        shift_n=shift_n,
        shift_d=shift_d,
    )
    return take(data, np.arange(len(runs)))


def take(data, rows):
    """Prepared data of some runs only, filled up again."""
    more = padded_length(len(rows)) - len(rows)
    data = data | {k: np.concatenate([data[k][rows], np.repeat(data[k][rows[:1]], more)]) for k in PER_RUN}
    data["root_weight"][len(rows) :] = 0
    return data


def hold(form, data, held):
    """`data` with coefficients held: `held` [n] or [starts, n] in the order of COEFFICIENTS, NaN where free."""
    held = np.asarray(held, float)
    return data | dict(held=held, moving=FORMS[form].moving(held.T).T.astype(float))


def hold_nothing(data, n):
    """`data` with all n coefficients free."""
    return data | dict(held=np.full(n, np.nan), moving=np.ones(n))


def held_of(form, settings):
    """`held` [n], as hold takes it, of settings.fix."""
    fixed = dict(settings.fix)
    return np.array([fixed.get(name, np.nan) for name in FORMS[form].COEFFICIENTS], float)


def prepared(form, runs, settings, weights=None):
    """prepare, with the coefficients that the settings fix."""
    return hold(form, prepare(runs, settings, weights), held_of(form, settings))
