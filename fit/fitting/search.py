"""The best fit of a law to runs: one objective (fit/fitting/problem.py), searched from many starts at once.

Axes: n coefficients; r runs, padded; k starts; m problems.
"""

import concurrent.futures
import dataclasses

import jax
import numpy as np
import tqdm

from fit.aliases import Array
from fit.errors import UserError
from fit.fitting import solvers
from fit.fitting.problem import PER_START, Data, Problem, residual_function
from fit.form import Form
from fit.table.runs import Runs

BATCH = 8  # starts compiled together: so few that little waits for the slowest, and searches of thirty use all threads
FOLLOWED = 32  # the best starts, which are followed to their end
THREADS = 2  # batches at a time
LARGEST_JACOBIAN = 2_000_000  # runs times starts in a batch
# Of a search: rounds, and steps in each; the better half of the starts continues.
ROUNDS = 5
STEPS = 40
LBFGS_STEPS = 300  # in a single round
MOST_ROUNDS = 40  # of the best starts, to their end
ROUNDS_OF_EACH = 5  # where several problems are solved at once
GRID = 1000  # starts from which on they are a grid (solvers.py)
SEARCH_RUNS = 2048  # above this number of runs the search uses a sample; only its best starts use all runs


@dataclasses.dataclass
class Fit:
    """The best fit of a form to runs.

    Attributes:
      form: the law's form.
      params: the best parameters, [n].
      objective: its value there.
      start_params: where each start ended, [k, n].
      objectives: at these points, [k].
      gradient_norm: of the objective at the best parameters.
      tried: how many starts there were.
      ends: the objectives of the starts that were followed to their end.
    """

    form: Form
    params: np.ndarray
    objective: float
    start_params: np.ndarray
    objectives: np.ndarray
    gradient_norm: float
    tried: int
    ends: np.ndarray

    @property
    def coefficients(self) -> dict[str, float]:
        """{name: value} of the law's coefficients."""
        return dict(zip(self.form.names, self.form.to_coefficients(self.params).tolist(), strict=True))


def run_batches(solve: solvers.Solve, x: Array, data: Data, progress: tqdm.tqdm | None = None) -> list[Array]:
    """Solves from every row of x [k, n].

    Batches have one compiled size and run THREADS at a time: XLA spreads such small operations over threads poorly.

    Args:
      data: entries named in PER_START are shared by the starts, or have a leading axis of k.
      progress: a bar that counts the starts.

    Returns:
      x [k, n], objectives [k] and gradient norms [k].
    """
    k = len(x)
    n_runs = data["log_loss"].shape[-1]
    batch = max(1, min(BATCH, LARGEST_JACOBIAN // n_runs))
    if n_runs > SEARCH_RUNS:
        batch = min(batch, k)  # with this many runs a start costs more than compiling
    per_start = {name: np.broadcast_to(data[name], (k, np.shape(data[name])[-1])) for name in PER_START}

    def solve_batch(first: int) -> list[Array]:
        rows = np.minimum(np.arange(first, first + batch), k - 1)  # the last batch repeats its last row
        with jax.enable_x64(True):  # each thread has its own setting
            results = solve(x[rows], data | {name: values[rows] for name, values in per_start.items()})
            return [np.asarray(result) for result in results]

    batches = []
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        for results in threads.map(solve_batch, range(0, k, batch)):
            batches.append(results)
            if progress is not None:
                progress.update(min(batch, k - len(batches) * batch + batch))
    return [np.concatenate(parts)[:k] for parts in zip(*batches, strict=True)]


def polish(
    problem: Problem, x: Array, rounds: int = 40, keep: str = "all", label: str = "", solve: solvers.Solve | None = None
) -> tuple[Array, Array, Array]:
    """Solves from x [k, n] in rounds.

    A start that ends in something that is not finite stays where it was.

    Args:
      rounds: the most of them.
      keep: which starts continue in the next round: "all" as long as the best one improves; "each" that improved; the
        better "half", but no fewer than FOLLOWED.
      label: of a progress bar, which counts the starts of each round; none is shown without a label.
      solve: the solver of a round; by default STEPS steps of Levenberg-Marquardt.

    Returns:
      x [k, n], objectives [k], infinite where one was never finite, and gradient norms [k].
    """
    solve = solve or solvers.least_squares(residual_function(problem.form), STEPS, False)
    k = len(x)
    x = np.array(x)
    values = np.full(k, np.inf)
    gradients = np.full(k, np.inf)
    going = np.arange(k)
    disabled = True if problem.settings.quiet or not label else None
    with tqdm.tqdm(total=k, desc=label, unit="start", disable=disabled, leave=False) as progress:
        for i in range(rounds):
            progress.reset(len(going))
            progress.set_description(f"{label}, round {i + 1} of at most {rounds}")
            data_of_going = {name: problem.data[name][going] for name in PER_START if np.ndim(problem.data[name]) > 1}
            after, value, gradient = run_batches(solve, x[going], problem.data | data_of_going, progress)
            before = values.copy()
            finite = np.isfinite(value) & np.isfinite(after).all(axis=1)
            x[going[finite]] = after[finite]
            values[going[finite]] = value[finite]
            gradients[going] = np.where(finite, gradient, np.inf)
            if keep != "each":  # those may be of several problems
                progress.set_postfix_str(f"best objective {values.min():.6g}")
            going = _going_on(going, before, values, keep)
            if not len(going):
                break
    return x, values, gradients


def _going_on(going: Array, before: Array, values: Array, keep: str) -> Array:
    """Indices of the starts that continue in the next round of `polish`.

    Args:
      going: indices of those of this round.
      before: the objectives [k] before this round.
      values: those after it.
      keep: as `polish` takes it.
    """
    if keep == "each":
        return going[values[going] < before[going] * (1 - 1e-6)]
    if keep == "half":
        if len(going) <= FOLLOWED:
            return going[:0]
        return going[np.argsort(values[going], kind="stable")[: max(FOLLOWED, len(going) // 2)]]
    improved = values.min() < before.min() * (1 - 1e-10)
    return going if improved else going[:0]


def best_of_each(problem: Problem, starts: Array, label: str = "", **data: Array) -> Array:
    """The best `params` [m, n] of m problems that differ in these data, each [m, ...].

    Every problem is solved from all the starts x [k, n].
    """
    k = len(starts)
    m = len(next(iter(data.values())))
    trial = problem.with_data(**{name: np.repeat(values, k, axis=0) for name, values in data.items()})
    x, values, _ = polish(trial, np.tile(starts, (m, 1)), ROUNDS_OF_EACH, "each", label)
    best = np.argmin(values.reshape(m, k), axis=1)
    return problem.params_of(x.reshape(m, k, -1)[np.arange(m), best])


def search(problem: Problem, starts: Array) -> tuple[Array, Array]:
    """Solves from all the starts x [k, n] in rounds; after each round the better half continues.

    Returns:
      x [k, n] and objectives [k], for every start at the point where it stopped.
    """
    rounds = ROUNDS
    steps = STEPS
    if problem.settings.solver == "lbfgs":
        rounds = 1
        steps = LBFGS_STEPS
    solver = solvers.SOLVERS[problem.settings.solver]
    solve = solver(residual_function(problem.form), steps, len(starts) >= GRID)
    x, values, _ = polish(problem, starts, rounds, "half", f"fit {problem.form.name}", solve)
    return x, values


def starts_of(problem: Problem, runs: Runs) -> Array:
    """The starts x [k, n] that the settings ask for, in the measure of `runs`."""
    form = problem.form
    settings = problem.settings
    data = problem.data
    if settings.starts == 0:
        return problem.centre(form.starts())
    starts = form.scaled_starts(np.random.default_rng(settings.seed), settings.starts, runs)
    fixed_values = np.broadcast_to(data["fixed_values"], starts.shape).T
    return np.where(data["moving"] > 0, form.begin(starts.T, fixed_values).T, 0.0)


def fit(problem: Problem) -> Fit:
    """The best fit of a law to runs.

    Raises:
      UserError: where the runs cannot determine the law.
    """
    check_enough(problem)
    if len(problem) > SEARCH_RUNS:
        return _fit_by_sample(problem)
    starts = starts_of(problem, problem.runs)
    x, values = search(problem, starts)
    order = np.argsort(values, kind="stable")[:FOLLOWED]
    best, best_values, gradients = polish(problem, x[order], MOST_ROUNDS, label="best starts")
    _check_finite(problem, best_values)
    x[order] = best
    values[order] = best_values
    winner = int(np.argmin(best_values))
    return Fit(
        form=problem.form,
        params=problem.params_of(best[winner : winner + 1])[0],
        objective=float(best_values[winner]),
        start_params=problem.params_of(x),
        objectives=values,
        gradient_norm=float(gradients[winner]),
        tried=len(starts),
        ends=best_values,
    )


def _fit_by_sample(problem: Problem) -> Fit:
    """The best fit to very many runs: search with a sample of them, then refine the best start on all runs."""
    rng = np.random.default_rng([problem.settings.seed, 2])
    sample = problem.part(np.sort(rng.choice(len(problem), SEARCH_RUNS, replace=False)))
    starts = starts_of(problem, sample.runs)
    x, values = search(sample, starts)
    order = np.argsort(values, kind="stable")[:1]
    best, best_values, gradients = polish(problem, x[order], 1, label="best starts")
    _check_finite(problem, best_values)
    # the other starts never saw all runs, so nothing is known of them
    start_params = problem.params_of(best)
    return Fit(
        form=problem.form,
        params=start_params[0],
        objective=float(best_values[0]),
        start_params=start_params,
        objectives=best_values,
        gradient_norm=float(gradients[0]),
        tried=len(starts),
        ends=best_values,
    )


def _check_finite(problem: Problem, values: Array) -> None:
    if not np.isfinite(values).any():
        raise UserError(f"{problem.runs.path}: no start of the {problem.form.name} law led to a finite objective")


def again(problem: Problem, before: Fit) -> Fit:
    """Fits again, from the best point and starts of `before`, a Fit to other runs or with other settings."""
    order = np.argsort(before.objectives, kind="stable")[: FOLLOWED - 1]
    starts = np.stack([before.params, *before.start_params[order]])
    x, values, gradients = polish(problem, problem.centre(starts))
    ends = problem.params_of(x)
    best = int(np.argmin(values))
    start_params = before.start_params.copy()
    start_params[order] = ends[1:]
    objectives = before.objectives.copy()
    objectives[order] = values[1:]
    return Fit(
        form=problem.form,
        params=ends[best],
        objective=float(values[best]),
        start_params=start_params,
        objectives=objectives,
        gradient_norm=float(gradients[best]),
        tried=before.tried,
        ends=values[1:],
    )


def check_enough(problem: Problem) -> None:
    """Checks that the runs with a weight can determine a law.

    Raises:
      UserError: where there are fewer distinct runs than coefficients to fit, or a column of the law never changes.
    """
    form = problem.form
    path = problem.runs.path
    to_fit = len(form.names) - len(problem.fixed)
    columns = np.stack([problem.runs.columns[name][problem.runs.weights > 0] for name in form.columns])
    distinct = len(np.unique(columns, axis=1).T)
    from_prior = len(form.prior.mean) if form.prior and form.prior.scatter else 0
    if distinct + from_prior < to_fit:
        runs = "run" if distinct == 1 else "runs"
        raise UserError(
            f"{path}: found {distinct} distinct {runs} to fit; the {form.name} law has "
            f"{to_fit} coefficients{' to fit' if problem.fixed else ''} and needs at least as many"
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
