"""How sure a fit is: bootstrap, profile likelihood, and a plain word on what the data does not pin down."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from fit import regress
from fit.laws import FORMS

LEVEL = 0.8  # of profile intervals, like the 10th to 90th percentile of the bootstrap
RATIOS = {"scale": np.geomspace(1 / 32, 32, 41), "loss": np.geomspace(1 / 2, 2, 41)}  # profiled values over the best
MORE_RUNS = 12  # in "what it would take"


def distinct_optima(found, most=3):
    """Up to `most` rows of found.frees within 10% of the best objective that differ in objective; the best one first."""
    order = np.argsort(found.objectives, kind="stable")
    rows = [found.free]
    last = found.objective
    for i in order:
        if len(rows) == most or found.objectives[i] > 1.1 * found.objective:
            break
        if found.objectives[i] > last * 1.002:
            rows.append(found.frees[i])
            last = found.objectives[i]
    return np.stack(rows)


def bootstrap(form, runs, settings, weights, found, draws, how, quiet=True):
    """Coefficients [draws, n] of fits to resampled runs, each from the best optima of the whole fit.

    how: "replacement" draws with replacement as many runs as there are less one for each coefficient, for the scatter around
    a fit is that much too small; "paper" takes 80% of the runs without replacement (App. F).
    """
    law, data = FORMS[form], regress.prepare(runs, settings, weights)
    rng, n = np.random.default_rng([settings.seed, 1]), len(runs)
    if how == "paper":
        kept = round(0.8 * n)
        counts = np.zeros((draws, n))
        for row in counts:
            row[rng.choice(n, kept, replace=False)] = 1
    else:
        counts = rng.multinomial(max(n - len(law.FREE), n // 2), np.full(n, 1 / n), size=draws).astype(float)
    starts = regress.centre(form, distinct_optima(found), data)
    k = len(starts)
    weight = data["root_weight"] * np.sqrt(np.repeat(counts, k, axis=0))
    x, values, _ = regress.polish(
        form,
        np.tile(starts, (draws, 1)),
        data | {"root_weight": weight},
        rounds=5,
        each=True,
        label=None if quiet else f"bootstrap of {draws}",
    )
    best = np.argmin(values.reshape(draws, k), axis=1)
    x = x.reshape(draws, k, -1)[np.arange(draws), best]
    return np.asarray(law.to_coefficients(regress.centre(form, x, data, back=True)))


def profile(form, runs, settings, weights, found, quiet=True):
    """For each of the law's PROFILED coefficients: its LEVEL interval by likelihood ratio, None where an end is open.

    The coefficient is held at values around its best one and all others are fitted again. With noise of unknown size the
    ratio is n ln(objective / best objective), to be compared with chi-squared of one degree of freedom.
    """
    law, data = FORMS[form], regress.prepare(runs, settings, weights)
    coefficients = found.coefficients
    result = {}
    values, pins, ats = [], [], []
    for name in law.PROFILED:
        ratios = RATIOS["scale" if name.startswith("E_") else "loss"]
        values.append(coefficients[name] * ratios)
        pins.append(np.full(len(ratios), law.COEFFICIENTS.index(name)))
        ats.append(values[-1])
    start = regress.centre(form, found.free[None], data)
    pins, ats = np.concatenate(pins), np.concatenate(ats)
    held = data | dict(pin=pins, pin_at=ats, pin_weight=np.full(len(pins), 1e2 * np.sqrt(found.objective + 1e-30)))
    _, objectives, _ = regress.polish(
        form, np.repeat(start, len(pins), axis=0), held, rounds=8, each=True, label=None if quiet else "profiles"
    )
    threshold = scipy.stats.chi2.ppf(LEVEL, 1)
    size = max(found.objective, 1e-18 * len(runs))  # noise-free losses: nothing below rounding
    for i, name in enumerate(law.PROFILED):
        at, value = values[i], objectives[pins == law.COEFFICIENTS.index(name)]
        ratio = len(runs) * np.log(np.maximum(value, size) / size)
        best = int(np.argmin(np.abs(np.log(at / coefficients[name]))))
        result[name] = dict(
            value=coefficients[name],
            low=_crossing(at[best::-1], ratio[best::-1], threshold),
            high=_crossing(at[best:], ratio[best:], threshold),
        )
    return result


def _crossing(at, ratio, threshold):
    """The value, going out from the best one, where the ratio first passes the threshold; None if it does not."""
    beyond = np.flatnonzero(ratio > threshold)
    if not len(beyond):
        return None
    i = beyond[0]
    if i == 0:
        return float(at[0])
    share = (threshold - ratio[i - 1]) / (ratio[i] - ratio[i - 1])
    return float(np.exp(np.log(at[i - 1]) + share * np.log(at[i] / at[i - 1])))


def standard_errors(form, runs, free, extra=None):
    """Linearised standard errors [n_coefficients] of the coefficients, given the scatter of the runs; of their logarithms
    for positive scales. extra: more runs (n_active, n_tokens, n_experts) [k] each that one might add."""
    law = FORMS[form]
    columns = [np.log(runs.n_active), np.log(runs.n_tokens), runs.n_experts]
    scatter = np.asarray(law.log_loss(free, *columns)) - np.log(runs.loss)
    variance = np.sum(scatter**2) / max(len(runs) - len(free), 1)
    if extra is not None:
        columns = [np.concatenate([c, e]) for c, e in zip(columns, [np.log(extra[0]), np.log(extra[1]), extra[2]])]
    # centred columns, so that the normal equations can be inverted
    shift_n, shift_d = columns[0].mean(), columns[1].mean()
    x = law.recentre(jnp.asarray(free), shift_n, shift_d)
    jacobian = np.asarray(jax.jacfwd(law.log_loss)(x, columns[0] - shift_n, columns[1] - shift_d, columns[2]))
    covariance = variance * np.linalg.pinv(jacobian.T @ jacobian, rcond=1e-14, hermitian=True)
    to = np.asarray(jax.jacfwd(lambda x: law.to_coefficients(law.recentre(x, -shift_n, -shift_d)))(x))
    return np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", to, covariance, to), 0))


def warnings(form, runs, found, profiles):
    """Sentences that name what the data does not pin down, and what it would take."""
    law, coefficients = FORMS[form], found.coefficients
    now = dict(zip(law.COEFFICIENTS, standard_errors(form, runs, found.free)))
    out = []
    for name, p in profiles.items():
        wide = p["low"] is None or p["high"] is None or p["high"] > 2 * p["low"]
        if not wide:
            continue
        span = (
            f"anything from {p['low']:.4g} up"
            if p["high"] is None and p["low"] is not None
            else f"anything up to {p['high']:.4g}"
            if p["low"] is None and p["high"] is not None
            else "any value tried"
            if p["low"] is None
            else f"anything from {p['low']:.4g} to {p['high']:.4g}"
        )
        extra, what = more_runs(runs, law.PINNED_BY[name])
        then = dict(zip(law.COEFFICIENTS, standard_errors(form, runs, found.free, extra)))[name]
        if then > p["value"]:
            outlook = f"{MORE_RUNS} more runs with {what} would not be enough either"
        else:
            outlook = (
                f"{MORE_RUNS} more runs with {what} would bring its standard error from {now[name] / p['value']:.0%} to "
                f"{then / p['value']:.0%} of it"
            )
        out.append(
            f"the runs do not pin down {name}: {span} fits as well ({LEVEL:.0%}), best {p['value']:.4g}; {outlook}"
        )
    scales = {name.removeprefix("ln ") for name in law.FREE}  # positive by construction
    loose = [
        name
        for name in law.COEFFICIENTS
        if name not in profiles and (name not in scales or name in law.FREE) and now[name] > abs(coefficients[name])
    ]
    if loose:
        out.append(
            f"the runs do not settle the sign of {', '.join(loose)} (standard error larger than the value); "
            "use the law for predictions near its runs, not its coefficients"
        )
    return out


def more_runs(runs, pinned_by):
    """MORE_RUNS runs spread over the compute of those there are, moved as PINNED_BY says; and that in words."""
    order = np.argsort(runs.n_active * runs.n_tokens, kind="stable")
    rows = order[np.linspace(0, len(order) - 1, MORE_RUNS).astype(int)]
    columns = {name: getattr(runs, name)[rows].astype(float) for name in ("n_active", "n_tokens", "n_experts")}
    words = []
    for name, times in pinned_by.items():
        every = getattr(runs, name)
        value = every.max() * times if times else every.min()
        columns[name] = np.full(MORE_RUNS, value)
        words.append(f"{name} = {value:.3g}")
    return tuple(columns.values()), " and ".join(words)


def separate(runs, settings, weights):
    """Chinchilla laws fitted to the runs of each number of experts alone, the lower bound on the joint law's training
    error (Sec. 5.2): {n_experts: coefficients and how many runs}, where there are enough runs to fit one."""
    law = FORMS["chinchilla"]
    data = regress.prepare(runs, settings, weights)
    enough = []
    for e in np.unique(runs.n_experts):
        rows = runs.n_experts == e
        distinct = np.unique(np.stack([runs.n_active, runs.n_tokens])[:, rows], axis=1).shape[1]
        if distinct > len(law.FREE) and all(len(np.unique(v[rows])) > 1 for v in (runs.n_active, runs.n_tokens)):
            enough.append(e)
    if not enough:
        return {}
    starts = regress.centre("chinchilla", law.starts()[:: len(law.starts()) // 24], data)
    k = len(starts)
    masks = np.stack([runs.n_experts == e for e in enough]).astype(float)
    x, values, _ = regress.polish(
        "chinchilla",
        np.tile(starts, (len(enough), 1)),
        data | {"root_weight": data["root_weight"] * np.repeat(masks, k, axis=0)},
        rounds=5,
        each=True,
    )
    best = np.argmin(values.reshape(-1, k), axis=1)
    x = regress.centre("chinchilla", x.reshape(len(enough), k, -1)[np.arange(len(enough)), best], data, back=True)
    return {
        f"{e:g}": dict(
            coefficients=dict(zip(law.COEFFICIENTS, np.asarray(law.to_coefficients(row)).tolist())),
            runs=int(np.sum(runs.n_experts == e)),
        )
        for e, row in zip(enough, x)
    }
