"""Fit a law to runs: one objective, searched from many starts at once, in float64.

  objective = reduce_i w_i Huber_delta(ln L_predicted,i - ln L_i) + weight_decay / 2 |free|^2

`free` are the law's parameters as the solver moves them (scales in logarithm), reduce is the sum, or the mean over the
runs. Written as half a sum of squares (the Huber loss by its square root) for Levenberg-Marquardt; L-BFGS minimises the
same number.
"""

import concurrent.futures
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from fit import UserError, solvers
from fit.laws import FORMS

BATCH = 32  # starts compiled together: their Jacobians of a few hundred runs stay in the cache
THREADS = 2  # batches at a time
LARGEST_JACOBIAN = 2_000_000  # runs times starts in a batch
PER_START = ("root_weight", "pin", "pin_at", "pin_weight")  # data that may differ from start to start: see prepare
ROUNDS, STEPS = 5, 40  # of the search: steps in a round, the better half goes on to the next
SEARCH_RUNS = 2000  # above so many runs the search uses a sample of them and only its best starts see all


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to fit. huber_delta in log loss; reduction sum or mean; starts: a number, or 0 for the law's whole grid."""

    huber_delta: float = 1e-2
    reduction: str = "sum"
    weight_decay: float = 0.0
    starts: int = 256
    solver: str = "lm"
    seed: int = 0


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


@functools.lru_cache(maxsize=None)
def residual_function(form):
    """residuals(x [n], data) -> [n_runs + n + 1]; x are the law's parameters for centred columns, data as prepare gives.

    The last one holds coefficient number data["pin"] at data["pin_at"], for profiles; its weight is 0 otherwise.
    """
    law = FORMS[form]

    def residuals(x, data):
        r = law.log_loss(x, data["ln_n"], data["ln_d"], data["n_experts"]) - data["log_loss"]
        size, delta = jnp.abs(r), data["delta"]
        beyond = size > delta
        tail = jnp.sqrt(jnp.where(beyond, 2 * delta * size - delta**2, 1.0))  # double where: no NaN in its gradient
        r = jnp.where(beyond, jnp.sign(r) * tail, r)
        free = law.recentre(x, -data["shift_n"], -data["shift_d"])
        pinned = jnp.log(jnp.abs(law.to_coefficients(free)[data["pin"]]) / data["pin_at"])
        return jnp.concatenate(
            [data["root_weight"] * r, jnp.sqrt(data["weight_decay"]) * free, data["pin_weight"] * pinned[None]]
        )

    return residuals


def prepare(runs, settings, weights=None):
    """The data that residual_function reads; weights [n_runs] multiply each run's loss."""
    weights = np.ones(len(runs)) if weights is None else np.asarray(weights, float)
    ln_n, ln_d = np.log(runs.n_active), np.log(runs.n_tokens)
    scale = 1.0 if settings.reduction == "sum" else 1.0 / len(runs)
    shift_n, shift_d = ln_n.mean(), ln_d.mean()
    return dict(
        ln_n=ln_n - shift_n,
        ln_d=ln_d - shift_d,
        n_experts=runs.n_experts,
        log_loss=np.log(runs.loss),
        root_weight=np.sqrt(weights * scale),
        delta=np.float64(settings.huber_delta),
        weight_decay=np.float64(settings.weight_decay),
        shift_n=shift_n,
        shift_d=shift_d,
        pin=0,
        pin_at=np.float64(1),
        pin_weight=np.float64(0),
    )


def objective(form, free, data):
    """The objective of the law's own parameters `free` [n] on prepared data."""
    x = FORMS[form].recentre(jnp.asarray(free), data["shift_n"], data["shift_d"])
    return float(0.5 * jnp.sum(residual_function(form)(x, data) ** 2))


def take(data, rows):
    """Prepared data of some runs only."""
    per_run = ("ln_n", "ln_d", "n_experts", "log_loss", "root_weight")
    return {k: v[rows] if k in per_run else v for k, v in data.items()}


def run_batches(solve, x, data, progress=None):
    """solve from every row of x [k, n]; returns (x, objective [k], gradient norm [k]).

    Entries of data named in PER_START are shared, or have a leading axis of k. Batches have one compiled size and run
    THREADS at a time: XLA spreads such small operations over threads poorly.
    """
    k, batch = len(x), max(1, min(BATCH, LARGEST_JACOBIAN // len(data["ln_n"])))
    per_start = {name: np.asarray(data[name]) for name in PER_START}
    per_start = {
        name: np.broadcast_to(v, (k, *v.shape[-1:])) if name == "root_weight" else np.broadcast_to(v, (k,))
        for name, v in per_start.items()
    }

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


def centre(form, frees, data, back=False):
    """Parameters [starts, n] for centred columns (or, with back, for the law's own)."""
    sign = -1 if back else 1
    recentre = jax.jit(jax.vmap(FORMS[form].recentre, in_axes=(0, None, None)))
    return np.asarray(recentre(np.asarray(frees), sign * data["shift_n"], sign * data["shift_d"]))


def polish(form, x, data, rounds=40, each=False, label=None):
    """Levenberg-Marquardt from x [k, n] until the best objective stands still, or with `each` every one of them.

    Returns (x, objectives, gradient norms); an objective that is not finite becomes infinite. With a label a progress bar
    of it counts the starts of each round; most polishing ends before the last.
    """
    solve = solvers.least_squares(residual_function(form), PER_START, STEPS)
    before = np.full(len(x), np.inf)
    for i in range(rounds):
        with tqdm.tqdm(
            total=len(x),
            desc=f"{label}, round {i + 1} of at most {rounds}",
            unit="fit",
            disable=True if label is None else None,
            leave=False,
        ) as progress:
            x, values, gradients = run_batches(solve, x, data, progress)
        values = np.where(np.isfinite(values), values, np.inf)
        if np.all(values >= before * (1 - 1e-6)) if each else values.min() >= before.min() * (1 - 1e-10):
            break
        before = values
    return x, values, gradients


def search(form, starts, data, settings, quiet=False):
    """All starts [k, n] (for centred columns) in rounds; after each round the better half goes on. Returns (x, objectives)
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
            found, value, _ = run_batches(solve, x[going], data, progress)
            x[going], values[going] = found, np.where(np.isfinite(value), value, np.inf)
            progress.set_postfix_str(f"best objective {values.min():.6g}")
            if len(going) <= BATCH:
                break
            going = going[np.argsort(values[going], kind="stable")[: max(BATCH, len(going) // 2)]]
    return x, values


def fit(form, runs, settings=Settings(), weights=None, quiet=False):
    """The best fit of a law to runs. Raises UserError when the runs cannot determine the law at all."""
    law = FORMS[form]
    check_enough(form, runs)
    data = prepare(runs, settings, weights)
    rng = np.random.default_rng(settings.seed)
    starts = law.starts()
    if 0 < settings.starts < len(starts):
        starts = starts[np.sort(rng.choice(len(starts), settings.starts, replace=False))]
    starts = centre(form, starts, data)
    sample = take(data, np.sort(rng.choice(len(runs), SEARCH_RUNS, replace=False))) if len(runs) > SEARCH_RUNS else data
    x, values = search(form, starts, sample, settings, quiet)
    order = np.argsort(values, kind="stable")[: BATCH if sample is data else 1]
    best, best_values, gradients = polish(
        form, x[order], data, rounds=40 if sample is data else 1, label=None if quiet else "best starts"
    )
    if not np.isfinite(best_values).any():
        raise UserError(f"{runs.path}: no start of the {form} law led to a finite objective")
    if sample is data:
        x[order], values[order] = best, best_values
    else:  # the others never saw all runs: nothing to compare
        x, values = best, best_values
    winner = int(np.argmin(best_values))
    free = centre(form, best[winner : winner + 1], data, back=True)[0]
    return Fit(
        form, free, float(best_values[winner]), centre(form, x, data, back=True), values, float(gradients[winner])
    )


def check_enough(form, runs):
    """UserError when there are fewer distinct runs than coefficients, or a column of the law that never changes."""
    law = FORMS[form]
    columns = np.stack([getattr(runs, name) for name in law.COLUMNS])
    distinct = len(np.unique(columns, axis=1).T)
    if distinct < len(law.FREE):
        raise UserError(
            f"{runs.path}: found {distinct} distinct run{'s' * (distinct != 1)} to fit; the {form} law has "
            f"{len(law.FREE)} coefficients and needs at least as many"
        )
    for name, column in zip(law.COLUMNS, columns):
        if len(np.unique(column)) < 2:
            raise UserError(
                f"{runs.path}, column {name}: found {column[0]:g} in every run to fit; the {form} law needs at "
                "least 2 different values"
            )
