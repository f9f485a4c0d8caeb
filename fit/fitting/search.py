"""The best fit of a law to runs: one objective (fit/fitting/problem.py), searched from many starts at once."""

import concurrent.futures
import dataclasses

import jax
import numpy as np
import tqdm

from fit.aliases import Array
from fit.data.runs import Runs
from fit.errors import UserError
from fit.fitting import solvers
from fit.fitting.problem import PER_START, Data, Problem, residual_function
from fit.form import Form

BATCH = 8  # starts compiled together: so few that little waits for the slowest, and searches of thirty use all threads
FOLLOWED = 32  # the best starts, which are followed to their end
THREADS = 2  # batches at a time
LARGEST_JACOBIAN = 2_000_000  # runs times starts in a batch
ROUNDS, STEPS = 5, 40  # of the search: rounds, steps in each; the better half goes on to the next
GRID = 1000  # starts from which on they are a grid (solvers.py)
SEARCH_RUNS = 2048  # above so many runs the search uses a sample of them and only its best starts see all


@dataclasses.dataclass
class Fit:
    """free [n]: the best parameters; objective: its value; objectives [k] and frees [k, n]: of each start; tried: how
    many starts there were; ends: the objectives of those that were followed to their end."""

    form: Form
    free: np.ndarray
    objective: float
    frees: np.ndarray
    objectives: np.ndarray
    gradient_norm: float
    tried: int
    ends: np.ndarray

    @property
    def coefficients(self) -> dict[str, float]:
        return dict(zip(self.form.names, self.form.to_coefficients(self.free).tolist(), strict=True))


def run_batches(solve: solvers.Solve, x: Array, data: Data, progress: tqdm.tqdm | None = None) -> list[Array]:
    """solve from every row of x [k, n]; returns (x, objective [k], gradient norm [k]).

    Entries of data named in PER_START are shared by the starts, or have a leading axis of k. Batches have one compiled
    size and run THREADS at a time: XLA spreads such small operations over threads poorly.
    """
    k, rows = len(x), data["log_loss"].shape[-1]
    batch = max(1, min(BATCH, LARGEST_JACOBIAN // rows))
    if rows > SEARCH_RUNS:
        batch = min(batch, k)  # a start of so many runs costs more than compiling
    per_start = {name: np.broadcast_to(data[name], (k, np.shape(data[name])[-1])) for name in PER_START}

    def work(start: int) -> list[Array]:
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
    return [np.concatenate(o)[:k] for o in zip(*outs, strict=True)]


def polish(
    problem: Problem, x: Array, rounds: int = 40, keep: str = "all", label: str = "", solve: solvers.Solve | None = None
) -> tuple[Array, Array, Array]:
    """(x, objectives, gradient norms) of Levenberg-Marquardt, or of solve, from x [k, n] in rounds. Which go on to the
    next, keep says: "all" as long as the best one gets better; "each" that did; the better "half", but no fewer than
    FOLLOWED. A start that ends in something that is not finite stays where it was; an objective that was never finite
    is infinite. A progress bar named `label`, if given and the settings are not quiet, counts each round's starts."""
    solve = solve or solvers.least_squares(residual_function(problem.form), STEPS, False)
    k, disabled = len(x), True if problem.settings.quiet or not label else None
    x, values, gradients, going = np.array(x), np.full(k, np.inf), np.full(k, np.inf), np.arange(k)
    with tqdm.tqdm(total=k, desc=label, unit="start", disable=disabled, leave=False) as progress:
        for i in range(rounds):
            progress.reset(len(going))
            progress.set_description(f"{label}, round {i + 1} of at most {rounds}")
            own = {name: problem.data[name][going] for name in PER_START if np.ndim(problem.data[name]) > 1}
            after, value, gradient = run_batches(solve, x[going], problem.data | own, progress)
            before, fine = values.copy(), np.isfinite(value) & np.isfinite(after).all(axis=1)
            x[going[fine]], values[going[fine]] = after[fine], value[fine]
            gradients[going] = np.where(fine, gradient, np.inf)
            if keep != "each":  # those may be of several problems
                progress.set_postfix_str(f"best objective {values.min():.6g}")
            if keep == "each":
                going = going[values[going] < before[going] * (1 - 1e-6)]
            elif keep == "half" and len(going) > FOLLOWED:
                going = going[np.argsort(values[going], kind="stable")[: max(FOLLOWED, len(going) // 2)]]
            elif keep == "half" or values.min() >= before.min() * (1 - 1e-10):
                going = going[:0]
            if not len(going):
                break
    return x, values, gradients


def best_of_each(problem: Problem, starts: Array, label: str = "", **data: Array) -> Array:
    """The law's own `free` [m, n] of m problems that differ in these data, each [m, ...]: the best that polishing from
    all starts [k, n] finds."""
    k, m = len(starts), len(next(iter(data.values())))
    trial = problem.changed(**{name: np.repeat(values, k, axis=0) for name, values in data.items()})
    x, values, _ = polish(trial, np.tile(starts, (m, 1)), 5, "each", label)
    return problem.own(x.reshape(m, k, -1)[np.arange(m), np.argmin(values.reshape(m, k), axis=1)])


def search(problem: Problem, starts: Array) -> tuple[Array, Array]:
    """Runs all starts [k, n] (the solver's x) in rounds; after each round the better half goes on. Returns (x,
    objectives), for every start at the point where it stopped."""
    rounds, steps = (ROUNDS, STEPS) if problem.settings.solver == "lm" else (1, 300)
    solver, grid = solvers.SOLVERS[problem.settings.solver], len(starts) >= GRID
    solve = solver(residual_function(problem.form), steps, grid)
    return polish(problem, starts, rounds, "half", f"fit {problem.form.name}", solve)[:2]


def starts_of(problem: Problem, runs: Runs) -> Array:
    """The solver's starts [k, n] that the settings ask for, in the measure of `runs`."""
    form, settings, data = problem.form, problem.settings, problem.data
    if settings.starts == 0:
        return problem.centre(form.starts())
    starts = form.scaled_starts(np.random.default_rng(settings.seed), settings.starts, runs)
    held = np.broadcast_to(data["held"], starts.shape).T
    return np.where(data["moving"] > 0, form.begin(starts.T, held).T, 0.0)


def fit(problem: Problem) -> Fit:
    """The best Fit of a law to runs. Raises UserError when the runs cannot determine the law at all."""
    check_enough(problem)
    sample, path = problem, problem.runs.path
    if len(problem) > SEARCH_RUNS:
        rng = np.random.default_rng([problem.settings.seed, 2])
        sample = problem.part(np.sort(rng.choice(len(problem), SEARCH_RUNS, replace=False)))
    starts = starts_of(problem, sample.runs)
    x, values = search(sample, starts)
    order = np.argsort(values, kind="stable")[: FOLLOWED if sample is problem else 1]
    rounds = 40 if sample is problem else 1  # from the sample's optimum one is enough
    best, best_values, gradients = polish(problem, x[order], rounds, label="best starts")
    if not np.isfinite(best_values).any():
        raise UserError(f"{path}: no start of the {problem.form.name} law led to a finite objective")
    if sample is problem:
        x[order], values[order] = best, best_values
    else:  # the others never saw all runs: nothing to compare
        x, values = best, best_values
    winner = int(np.argmin(best_values))
    free = problem.own(best[winner : winner + 1])[0]
    least, gradient = float(best_values[winner]), float(gradients[winner])
    return Fit(problem.form, free, least, problem.own(x), values, gradient, len(starts), best_values)


def again(problem: Problem, before: Fit) -> Fit:
    """The Fit of a search that begins at the best point and starts of `before`, a Fit to other runs or settings."""
    order = np.argsort(before.objectives, kind="stable")[: FOLLOWED - 1]
    x, values, gradients = polish(problem, problem.centre(np.stack([before.free, *before.frees[order]])))
    ends, best = problem.own(x), int(np.argmin(values))
    frees, objectives = before.frees.copy(), before.objectives.copy()
    frees[order], objectives[order] = ends[1:], values[1:]
    least, gradient = float(values[best]), float(gradients[best])
    return Fit(problem.form, ends[best], least, frees, objectives, gradient, before.tried, values[1:])


def check_enough(problem: Problem) -> None:
    """UserError when there are fewer distinct runs (of those with a weight) than coefficients to fit, or a column of
    the law that never changes."""
    form, fixed, path = problem.form, problem.fixed, problem.runs.path
    to_fit = len(form.names) - len(fixed)
    columns = np.stack([problem.runs.columns[name][problem.runs.weights > 0] for name in form.columns])
    distinct = len(np.unique(columns, axis=1).T)
    if distinct < to_fit:
        runs = "run" if distinct == 1 else "runs"
        raise UserError(
            f"{path}: found {distinct} distinct {runs} to fit; the {form.name} law has "
            f"{to_fit} coefficients{' to fit' if fixed else ''} and needs at least as many"
        )
    for name, column in zip(form.columns, columns, strict=True):
        if len(np.unique(column)) < 2 and not _term_is_fixed(problem, name):
            raise UserError(
                f"{path}, column {name}: found {column[0]:g} in every run to fit; the {form.name} law needs at "
                "least 2 different values"
            )


def _term_is_fixed(problem: Problem, column: str) -> bool:
    """Whether the fit holds every coefficient of the terms that read a column, so that the column need not vary."""
    coefficients = problem.form.coefficients
    terms = {name for name, coefficient in coefficients.items() if column in coefficient.slopes}
    exponents = {coefficients[name].slopes[column][0] for name in terms}
    return bool(terms) and terms | exponents <= {*problem.fixed}
