"""Fit a law to runs: one objective, searched from many starts at once, in float64.

  objective = reduce_i w_i Huber_delta(ln L_predicted,i - ln L_i) + weight_decay / 2 |free|^2

`free` are the law's parameters as the solver moves them (scales in logarithm), reduce is the sum, or the mean over the
runs. Written as half a sum of squares (the Huber loss by its square root) for Levenberg-Marquardt; L-BFGS minimises the
same number. Every search of a law over tables of about the same length is one compiled program: what differs from
start to start is data (PER_START), and tables are filled up with runs of no weight to one of a few lengths.
"""

import concurrent.futures
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from fit import UserError, solvers
from fit.arrays import array_module
from fit.laws import FORMS
from fit.prepare import PER_START, hold, hold_nothing, prepare, prepared, take  # noqa: F401, a fit's data
from fit.runs import subset

BATCH = 32  # starts compiled together: their Jacobians of a few hundred runs stay in the cache
THREADS = 2  # batches at a time
LARGEST_JACOBIAN = 2_000_000  # runs times starts in a batch
ROUNDS, STEPS = 5, 40  # of the search: steps in a round, the better half goes on to the next
SEARCH_RUNS = 2048  # above so many runs the search uses a sample of them and only its best starts see all


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to fit. huber_delta in log loss; reduction sum or mean; starts: a number of random ones in the measure of the
    runs, or 0 for the law's published grid; fix: ((coefficient, value), ...) that the fit holds."""

    huber_delta: float = 1e-2
    reduction: str = "sum"
    weight_decay: float = 0.0
    starts: int = 128
    solver: str = "lm"
    seed: int = 0
    fix: tuple = ()


@dataclasses.dataclass
class Fit:
    """free [n]: the best parameters; objective: its value; objectives [starts] and frees [starts, n]: of each start."""

    form: str
    free: np.ndarray
    objective: float
    frees: np.ndarray
    objectives: np.ndarray
    gradient_norm: float

    @property
    def coefficients(self):
        law = FORMS[self.form]
        return dict(zip(law.COEFFICIENTS, np.asarray(law.to_coefficients(self.free)).tolist()))


def place(form, x, data):
    """The law's own parameters [n, ...] of the solver's x [n, ...]: for columns as they are, with coefficients held as
    data["held"] [n, ...] says, within the law's BOUNDS. x is for centred columns, whose normal equations are well
    conditioned; entries that nothing moves are 0."""
    law = FORMS[form]
    low, high = (b.reshape(-1, *[1] * (x.ndim - 1)) for b in np.array(law.BOUNDS, float).T)
    held = data.get("held", np.full_like(low, np.nan))
    free = law.recentre(law.hold(x, held), -data["shift_n"], -data["shift_d"])  # exponents first: scales follow
    return array_module(x).clip(law.hold(free, held), low, high)


@functools.cache
def residual_function(form):
    """residuals(x [n], data) -> [n_runs + n]; x as place takes them, data as prepare gives."""
    law = FORMS[form]

    def residuals(x, data):
        free = place(form, x, data)
        ln_n, ln_d = data["ln_n"] + data["shift_n"], data["ln_d"] + data["shift_d"]
        r = law.log_loss(free, ln_n, ln_d, data["n_experts"]) - data["log_loss"]
        size, delta = jnp.abs(r), data["delta"]
        beyond = size > delta
        tail = jnp.sqrt(jnp.where(beyond, 2 * delta * size - delta**2, 1.0))  # double where: no NaN in its gradient
        r = jnp.where(beyond, jnp.sign(r) * tail, r)
        decay = jnp.where(data.get("moving", np.ones(len(x))) > 0, jnp.sqrt(data["weight_decay"]) * free, x)
        return jnp.concatenate([data["root_weight"] * r, decay])

    return residuals


def objective(form, free, data):
    """The objective of the law's own parameters `free` [n] on prepared data."""
    x = centre(form, np.asarray(free)[None], data)[0]
    return float(0.5 * np.sum(np.square(_residuals(form)(x, data))))


@functools.cache
def _residuals(form):
    return jax.jit(residual_function(form))


def run_batches(solve, x, data, progress=None):
    """solve from every row of x [k, n]; returns (x, objective [k], gradient norm [k]).

    Entries of data named in PER_START are shared, or have a leading axis of k. Batches have one compiled size and run
    THREADS at a time: XLA spreads such small operations over threads poorly.
    """
    k, batch = len(x), max(1, min(BATCH, LARGEST_JACOBIAN // len(data["ln_n"])))
    if len(data["ln_n"]) > SEARCH_RUNS:
        batch = min(batch, k)  # here a start costs more than compiling
    data = data if "held" in data else hold_nothing(data, x.shape[1])
    per_start = {name: np.asarray(data[name]) for name in PER_START}
    per_start = {name: np.broadcast_to(v, (k, v.shape[-1])) for name, v in per_start.items()}

    def work(start):
        rows = np.minimum(np.arange(start, start + batch), k - 1)  # the last batch repeats its last row
        with jax.enable_x64(True):  # each thread has its own setting
            out = solve(x[rows], data | {name: v[rows] for name, v in per_start.items()})
            return [np.asarray(o) for o in out]

    outs = []
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        for out in threads.map(work, range(0, k, batch)):
            outs.append(out)
            if progress is not None:
                progress.update(min(batch, k - len(outs) * batch + batch))
    return [np.concatenate(o)[:k] for o in zip(*outs)]


def centre(form, frees, data):
    """The solver's x [starts, n] from which it begins at the law's own parameters `frees` [starts, n]."""
    law, frees = FORMS[form], np.asarray(frees, float)
    held = np.broadcast_to(data.get("held", np.nan), frees.shape).T
    x = law.recentre(law.start(frees.T, held), data["shift_n"], data["shift_d"]).T
    return np.where(np.asarray(data.get("moving", 1)) > 0, x, 0.0)


def own(form, x, data):
    """The law's own parameters [starts, n] of the solver's x [starts, n]."""
    held = np.broadcast_to(data.get("held", np.nan), np.shape(x)).T
    return place(form, np.asarray(x).T, data | {"held": held}).T


def _step(solve, x, values, data, progress=None):
    """One round: where a start ends in something that is not finite it stays where it was. Returns (x, values,
    gradients)."""
    found, value, gradient = run_batches(solve, x, data, progress)
    lost = ~(np.isfinite(value) & np.isfinite(found).all(axis=1))
    return np.where(lost[:, None], x, found), np.where(lost, values, value), np.where(lost, np.inf, gradient)


def polish(form, x, data, rounds=40, each=False, label=None):
    """Levenberg-Marquardt from x [k, n] until the best objective stands still, or with `each` every one of them.

    Returns (x, objectives, gradient norms); an objective that was never finite is infinite. With a label a progress bar
    of it counts the starts of each round; most polishing ends before the last.
    """
    solve = solvers.least_squares(residual_function(form), PER_START, STEPS)
    x, values, gradients, going = np.array(x), np.full(len(x), np.inf), np.full(len(x), np.inf), np.arange(len(x))
    for i in range(rounds):
        before = values.copy()
        with tqdm.tqdm(
            total=len(going),
            desc=f"{label}, round {i + 1} of at most {rounds}",
            unit="fit",
            disable=True if label is None else None,
            leave=False,
        ) as progress:
            x[going], values[going], gradients[going] = _step(
                solve, x[going], values[going], _some(data, going), progress
            )
        if each:
            going = going[values[going] < before[going] * (1 - 1e-6)]
        if not len(going) or (not each and values.min() >= before.min() * (1 - 1e-10)):
            break
    return x, values, gradients


def _some(data, starts):
    """Data of some starts, where it differs from start to start."""
    return data | {k: data[k][starts] for k in PER_START if np.ndim(data.get(k)) > 1}


def search(form, starts, data, settings, quiet=False):
    """All starts [k, n] (the solver's) in rounds; after each round the better half goes on. Returns (x, objectives)
    of every start where it stopped."""
    rounds, steps = (ROUNDS, STEPS) if settings.solver == "lm" else (1, 300)
    solve = solvers.SOLVERS[settings.solver](residual_function(form), PER_START, steps)
    x, values = np.array(starts), np.full(len(starts), np.inf)
    going = np.arange(len(starts))
    with tqdm.tqdm(
        total=len(starts), desc=f"fit {form}", unit="start", disable=True if quiet else None, leave=False
    ) as progress:
        for i in range(rounds):
            progress.reset(len(going))
            progress.set_description(f"fit {form}, round {i + 1} of {rounds}")
            x[going], values[going], _ = _step(solve, x[going], values[going], _some(data, going), progress)
            progress.set_postfix_str(f"best objective {values.min():.6g}")
            if len(going) <= BATCH:
                break
            going = going[np.argsort(values[going], kind="stable")[: max(BATCH, len(going) // 2)]]
    return x, values


def starts_of(form, runs, data, settings):
    """The solver's starts [k, n] that the settings ask for."""
    law = FORMS[form]
    if settings.starts == 0:
        return centre(form, law.starts(), data)
    starts = law.scaled_starts(np.random.default_rng(settings.seed), settings.starts, runs)
    return np.where(data["moving"] > 0, law.start(starts.T, np.broadcast_to(data["held"], starts.shape).T).T, 0.0)


def fit(form, runs, settings=Settings(), weights=None, quiet=False):
    """The best fit of a law to runs. Raises UserError when the runs cannot determine the law at all."""
    used = np.ones(len(runs), bool) if weights is None else np.asarray(weights) > 0
    check_enough(form, runs, settings, used)
    data = prepared(form, runs, settings, weights)
    sample, some, label = data, runs, None if quiet else "best starts"
    if len(runs) > SEARCH_RUNS:
        rows = np.sort(np.random.default_rng([settings.seed, 2]).choice(len(runs), SEARCH_RUNS, replace=False))
        sample, some = take(data, rows), subset(runs, rows)
    x, values = search(form, starts_of(form, some, data, settings), sample, settings, quiet)
    order = np.argsort(values, kind="stable")[: BATCH if sample is data else 1]
    rounds = 40 if sample is data else 1  # from the sample's optimum one is enough
    best, best_values, gradients = polish(form, x[order], data, rounds, label=label)
    if not np.isfinite(best_values).any():
        raise UserError(f"{runs.path}: no start of the {form} law led to a finite objective")
    if sample is data:
        x[order], values[order] = best, best_values
    else:  # the others never saw all runs: nothing to compare
        x, values = best, best_values
    winner = int(np.argmin(best_values))
    free = own(form, best[winner : winner + 1], data)[0]
    return Fit(form, free, float(best_values[winner]), own(form, x, data), values, float(gradients[winner]))


def again(form, runs, settings, weights, found):
    """The Fit to these runs and settings begun where `found`, of others, ended: its best and its best starts."""
    data = prepared(form, runs, settings, weights)
    order = np.argsort(found.objectives, kind="stable")[: BATCH - 1]  # with the best they fill a batch
    x, values, gradients = polish(form, centre(form, np.stack([found.free, *found.frees[order]]), data), data)
    ends, best = own(form, x, data), int(np.argmin(values))
    frees, objectives = found.frees.copy(), found.objectives.copy()
    frees[order], objectives[order] = ends[1:], values[1:]
    return Fit(form, ends[best], float(values[best]), frees, objectives, float(gradients[best]))


def check_enough(form, runs, settings=Settings(), used=slice(None)):
    """UserError when there are fewer distinct runs than coefficients to fit, or a column of the law that never
    changes."""
    law, to_fit = FORMS[form], len(FORMS[form].FREE) - len(settings.fix)
    columns = np.stack([getattr(runs, name)[used] for name in law.COLUMNS])
    distinct = len(np.unique(columns, axis=1).T)
    if distinct < to_fit:
        raise UserError(
            f"{runs.path}: found {distinct} distinct run{'s' * (distinct != 1)} to fit; the {form} law has "
            f"{to_fit} coefficients{' to fit' if settings.fix else ''} and needs at least as many"
        )
    for name, column in zip(law.COLUMNS, columns):
        if len(np.unique(column)) < 2:
            raise UserError(
                f"{runs.path}, column {name}: found {column[0]:g} in every run to fit; the {form} law needs at "
                "least 2 different values"
            )
