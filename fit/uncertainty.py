"""What the runs do not pin down, in plain words, and what it would take; the law of each number of experts alone."""

import numpy as np
import scipy.special

from fit import noise as noise_lib
from fit import regress
from fit.laws import FORMS
from fit.runs import Runs
from fit.summary import LEVEL, span

MORE_RUNS = 12  # in "what it would take"


def standard_errors(form, runs, settings, weights, found, noise, trunks=None, extra=None, count=None):
    """Linearised standard errors of the coefficients, {name: value}, 0 for those that are fixed.

    noise (noise.Noise) and trunks (labels [n_runs], None where none are shared) say how the runs err. extra: more runs
    (n_active, n_tokens, n_experts) [k] each that one might add, each on a trunk of its own. count: as in profile.
    """
    law, n = FORMS[form], len(runs)
    weights = np.ones(n) if weights is None else weights
    if extra is not None:
        columns = [np.concatenate([v, e]) for v, e in zip((runs.n_active, runs.n_tokens, runs.n_experts), extra)]
        runs = Runs(runs.path, *columns, loss=np.append(runs.loss, np.ones(len(extra[0]))), table=None)
        weights = np.append(weights, np.ones(len(extra[0])))
    data = regress.prepared(form, runs, settings, weights)
    _, jacobian = noise_lib.sensitivity(form, found.free, data, len(runs))
    weight = data["root_weight"][: len(runs)] ** 2
    gram = (jacobian.T * weight) @ jacobian + settings.weight_decay * np.eye(jacobian.shape[1])
    to_free = np.linalg.pinv(gram, rcond=1e-14, hermitian=True) @ (jacobian.T * weight)
    variance = noise.run**2 * to_free @ to_free.T
    if trunks is not None:
        labels = np.append(trunks, trunks.max() + 1 + np.arange(len(runs) - n))
        shared = to_free @ np.eye(labels.max() + 1)[labels]
        variance += noise.trunk**2 * shared @ shared.T
    variance *= n / (count or n)
    to = _derivative(
        lambda x: law.to_coefficients(regress.own(form, x, data)), regress.centre(form, found.free[None], data)
    )
    return dict(zip(law.COEFFICIENTS, np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", to, variance, to), 0)).tolist()))


def inflation(form, runs, settings, weights, found, noise, alone, trunks, count=None):
    """{coefficient: by how much the errors that runs share widen what a profile must allow}, 1 where none are shared.

    The ratio of its variance with `noise` to that with `alone` (each run for itself), at least the median of all
    coefficients' (linearised, it says too little of one that the runs hardly pin down), times Student's t over
    normal, squared, for trunks are few.
    """
    if trunks is None:
        return dict.fromkeys(found.coefficients, 1.0)
    context = form, runs, settings, weights, found
    with_trunks = standard_errors(*context, noise, trunks, count=count)
    naive = standard_errors(*context, alone, count=count)
    ratio = {name: (with_trunks[name] / naive[name]) ** 2 for name in naive if naive[name] > 0}
    usual = np.median(list(ratio.values())) if ratio else 1.0
    tails = (scipy.special.stdtrit(noise.freedom, (1 + LEVEL) / 2) / scipy.special.ndtri((1 + LEVEL) / 2)) ** 2
    return {name: float(tails * max(ratio.get(name, usual), usual)) for name in naive}


def _derivative(function, x, step=1e-6):
    """[n_out, n] of a function of rows [k, n] -> [k, n_out] at x [1, n], by central differences."""
    steps = step * np.eye(x.shape[1])
    return ((function(x + steps) - function(x - steps)) / (2 * step)).T


def warnings(form, runs, settings, weights, found, profiles, noise, trunks=None, count=None):
    """Sentences that name what the data does not pin down, and what it would take."""
    law, coefficients = FORMS[form], found.coefficients
    now = standard_errors(form, runs, settings, weights, found, noise, trunks, count=count)
    out = []
    for name, p in profiles.items():
        if p["low"] is not None and p["high"] is not None and p["high"] <= 2 * p["low"]:
            continue
        extra, what = more_runs(runs, law.PINNED_BY[name])
        then = standard_errors(form, runs, settings, weights, found, noise, trunks, extra, count)[name]
        if then > p["value"]:
            outlook = f"{MORE_RUNS} more runs with {what} would not be enough either"
        else:
            outlook = (
                f"{MORE_RUNS} more runs with {what} would bring its standard error from {now[name] / p['value']:.0%} "
                f"to {then / p['value']:.0%} of it"
            )
        out.append(f"the runs do not pin down {name}: {span(p)} ({LEVEL:.0%}), best {p['value']:.4g}; {outlook}")
    scales = {name.removeprefix("ln ") for name in law.FREE}  # positive by construction
    loose = [
        name
        for name in law.COEFFICIENTS
        if name not in profiles
        and name not in dict(settings.fix)
        and (name not in scales or name in law.FREE)
        and now[name] > abs(coefficients[name])
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
    error (Sec. 5.2): {n_experts: coefficients and how many runs}, where there are enough runs to fit one.

    They are joint laws in which the number of experts changes nothing, so that the joint law's compiled search serves.
    """
    law, joint = FORMS["chinchilla"], FORMS["joint"]
    enough = []
    for e in np.unique(runs.n_experts):
        rows = runs.n_experts == e
        distinct = np.unique(np.stack([runs.n_active, runs.n_tokens])[:, rows], axis=1).shape[1]
        if distinct > len(law.FREE) and all(len(np.unique(v[rows])) > 1 for v in (runs.n_active, runs.n_tokens)):
            enough.append(e)
    if not enough:
        return {}
    nothing = dict(delta=0.0, gamma=0.0, omega=0.0, zeta=0.0, E_start=1.0, E_max=2.0)
    held = [
        nothing.get(name, dict(settings.fix).get("c", np.nan) if name == "c" else np.nan) for name in joint.COEFFICIENTS
    ]
    data = regress.hold("joint", regress.prepare(runs, settings, weights), held)
    a, b, c, alpha, beta = law.scaled_starts(np.random.default_rng([settings.seed, 3]), 8, runs).T
    zero = np.zeros(len(a))
    starts = np.stack([a, -alpha, zero, zero, b, -beta, zero, zero, zero, zero, c], axis=1) * data["moving"]
    k, masks = len(starts), np.stack([runs.n_experts == e for e in enough]).astype(float)
    masks = np.pad(masks, ((0, 0), (0, len(data["ln_n"]) - len(runs))))
    weight = data["root_weight"] * np.repeat(masks, k, axis=0)
    trial = data | {"root_weight": weight}
    x, values, _ = regress.polish("joint", np.tile(starts, (len(enough), 1)), trial, rounds=5, each=True)
    best = np.argmin(values.reshape(-1, k), axis=1)
    x = x.reshape(len(enough), k, -1)[np.arange(len(enough)), best]
    found = {}
    for e, row in zip(enough, joint.to_coefficients(regress.own("joint", x, data)).tolist()):
        j = dict(zip(joint.COEFFICIENTS, row))
        coefficients = dict(A=j["a"], B=j["b"], E=j["c"], alpha=-j["alpha"], beta=-j["beta"])
        found[f"{e:g}"] = dict(coefficients=coefficients, runs=int(np.sum(runs.n_experts == e)))
    return found
