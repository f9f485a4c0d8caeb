"""From a table of runs to maps: accuracy of each task as a bounded function of loss, pooled over sizes, with intervals;
and whether E shifts the maps.

Axes: r runs; k resamples; t tasks.
"""

import dataclasses

import numpy as np

from fit.aliases import Array
from fit.fitting import solvers
from fit.fitting.float64 import float64
from fit.table import runs as data_runs
from fit.table import table as data_table
from fit.task_maps import check, curve, text
from fit.task_maps.maps import NAMES, SIGNIFICANCE_LEVEL, Shift, TaskMap, TaskMaps, accuracy_at, interval_of
from fit.task_maps.options import TaskOptions
from fit.task_maps.table_tasks import FEWEST_RUNS, Task, read_tasks, usable

PERCENTILES = [10.0, 90.0]  # ends of all intervals


@dataclasses.dataclass(frozen=True)
class _Fitted:
    """Curves of a task.

    Attributes:
      curve: of the runs, [5].
      draws: of the resamples, [k, 5].
      errors: measured minus predicted accuracy, [r], NaN where a run has none.
      squares: sum of squared errors.
    """

    curve: Array
    draws: Array
    errors: Array
    squares: float


def fit_tasks(runs: object, options: TaskOptions) -> TaskMaps:
    """The maps of a table's tasks.

    The runs that are held out check maps of the others. As a form may err beyond its runs, intervals there are
    stretched by what that check asks for; those of the check itself by what a check among the other runs asks for.
    Below the lowest loss the stretch grows with the distance, as maps of the small runs ask that predict the others.

    Raises:
      UserError: There is no such task, too few runs, an accuracy that is no share, or no task above chance.
    """
    table = data_table.read(runs)
    columns = ["n_tokens"] if "n_tokens" in table else []
    read = data_runs.read_runs(table, columns, options.mix_corpora)
    trunks, _ = data_runs.trunks_of(table)
    labels = np.arange(len(read)) if trunks is None else trunks
    tasks, left_out = usable(read_tasks(table, options), table.path)
    with float64(), solvers.compilation_cache():
        maps = _fit_and_check(tasks, read, labels, options)
    return dataclasses.replace(maps, left_out=left_out)


def _fit_and_check(tasks: list[Task], read: data_runs.Runs, labels: Array, options: TaskOptions) -> TaskMaps:
    """The maps of all runs, checked by those that are held out.

    Args:
      tasks: the tasks, with accuracies of all runs.
      read: all runs.
      labels: of the runs' trunks, [r].
      options: of the fit.
    """
    all_runs = np.ones(len(read), bool)
    maps = _maps(tasks, read, labels, all_runs, options)
    holdout, held_out = check.runs_held_out(read, options)
    checked = [task for task in tasks if task.n_runs(~held_out) >= FEWEST_RUNS]
    if not held_out.any() or not checked:
        return maps
    of_others = _maps(checked, read, labels, ~held_out, options)
    stretch = check.stretch_of(of_others, checked, read, held_out)
    inner = check.largest(read, int(held_out.sum()), ~held_out)
    others = ~held_out & ~inner
    if all(task.n_runs(others) >= FEWEST_RUNS for task in checked):
        innermost = _maps(checked, read, labels, others, options)
        of_others = dataclasses.replace(of_others, stretch=check.stretch_of(innermost, checked, read, inner))
    of_others = dataclasses.replace(of_others, growth=_growth(tasks, read, labels, ~held_out, options))
    growth = _growth(tasks, read, labels, all_runs, options)
    maps = dataclasses.replace(maps, stretch=stretch, growth=growth, holdout=holdout)
    return check.checked(maps, of_others, checked, read, held_out)


def _growth(tasks: list[Task], read: data_runs.Runs, labels: Array, among: Array, options: TaskOptions) -> float:
    """The growth of intervals for each nat below the lowest loss of some runs; arguments as `_maps`."""
    small = check.small_runs(read, among)
    known = [task for task in tasks if task.n_runs(small) >= FEWEST_RUNS]
    if not small.any() or not known:
        return 0.0
    of_small = _maps(known, read, labels, small, options)
    return check.growth_of(of_small, known, read, among & ~small)


def _maps(tasks: list[Task], read: data_runs.Runs, labels: Array, among: Array, options: TaskOptions) -> TaskMaps:
    """The maps of some of the runs, unchecked.

    Args:
      tasks: the tasks, with accuracies of all runs.
      read: all runs.
      labels: of the runs' trunks, [r].
      among: which runs are fitted, boolean [r].
      options: of the fit.
    """
    varies = len(np.unique(read.n_experts[among])) > 1
    no_experts = np.zeros(len(read))
    draws = _resamples(labels, options, among)
    maps: list[TaskMap] = []
    errors: list[Array] = []
    shift_draws: list[Array] = []
    for task in tasks:
        n_groups = len(np.unique(labels[among & np.isfinite(task.accuracy)]))
        chosen = _fit(task, read.loss, no_experts, draws, options.seed, among)
        p_flat = _p_flat(task, chosen, n_groups, among)
        shift = None
        if varies:
            with_experts = _fit(task, read.loss, np.log(read.n_experts), draws, options.seed, among)
            shift = _shift(
                task, chosen, with_experts, n_groups, SIGNIFICANCE_LEVEL / len(tasks)
            )  # Bonferroni correction over the tasks
            if p_flat < SIGNIFICANCE_LEVEL:
                shift_draws.append(np.vstack([with_experts.curve, with_experts.draws])[:, -1] * np.log(2))
            if shift.is_shifted:
                chosen = with_experts
        maps.append(_map_of(task, chosen, n_groups, among, p_flat, shift))
        errors.append(chosen.errors[among])
    n_moving = len(NAMES) - 1
    return TaskMaps(
        source=read.path,
        n_runs=int(among.sum()),
        loss=_ends(read.loss[among]),
        median_loss=float(np.median(read.loss[among])),
        n_experts=sorted({int(n) for n in read.n_experts[among]}),
        corpora=data_runs.corpora(read.table),
        percentiles=PERCENTILES,
        tasks=maps,
        left_out={},
        average_scatter=_scatter_of_mean(errors, len(np.unique(labels[among])) - n_moving),
        stretch=1.0,
        shift=_mean_shift(shift_draws, maps),
        holdout="",
        held_out=None,
        average_held_out=None,
        answer_of=text.verbose if options.verbose else text.answer,
    )


def _resamples(labels: Array, options: TaskOptions, among: Array) -> Array:
    """How often each run counts in each resample, [k, r]: runs of one trunk are drawn together.

    Args:
      labels: of the runs' trunks, [r].
      options: their number and seed.
      among: which runs may be drawn, boolean [r].
    """
    groups = np.unique(labels[among])
    generator = np.random.default_rng(options.seed)
    counts = np.zeros((options.bootstrap, labels.max() + 1))
    for count in counts:
        drawn = generator.choice(groups, len(groups))
        np.add.at(count, drawn, 1)
    return counts[:, labels] * among


def _fit(task: Task, loss: Array, log_experts: Array, draws: Array, seed: int, among: Array) -> _Fitted:
    """The curves of a task for the runs, and for each resample.

    Args:
      task: the task.
      loss: nats per token, [r].
      log_experts: ln E, or zeros for a map that does not read it, [r].
      draws: how often each run counts, [k, r].
      seed: of the prior's centres in the resamples.
      among: which runs are fitted, boolean [r].
    """
    has = np.isfinite(task.accuracy)
    fitted = has & among
    accuracy = np.where(has, task.accuracy, 0.0)
    points = curve.Points(loss, accuracy, log_experts, task.chance, task.chance_from == "given")
    once = fitted[None].astype(float)
    n_free = max(1, int(fitted.sum()) - _n_moving(task, bool(log_experts.any())))
    (first,) = curve.fit(points, once)
    errors = task.accuracy - accuracy_at(first, loss, np.exp(log_experts))
    scatter = float(np.sqrt(np.sum(errors[fitted] ** 2) / n_free))
    (best,) = curve.fit(points, once, scatter=scatter)
    of_draws = curve.fit(points, draws * fitted, best, scatter, seed)
    errors = task.accuracy - accuracy_at(best, loss, np.exp(log_experts))
    return _Fitted(best, of_draws, errors, float(np.sum(errors[fitted] ** 2)))


def _n_moving(task: Task, reads_experts: bool) -> int:
    """Coefficients that the fit of a task moves."""
    return len(NAMES) - 1 + reads_experts - (task.chance_from == "given")


def _p_of_f(squares_without: float, squares_with: float, n_more: int, degrees: int) -> float:
    """p-value of the F test of `n_more` further coefficients."""
    from scipy import stats

    if degrees < 1 or squares_with <= 0:
        return 1.0
    ratio = max(0.0, squares_without - squares_with) / squares_with * degrees / n_more
    return float(stats.f.sf(ratio, n_more, degrees))


def _p_flat(task: Task, fitted: _Fitted, n_groups: int, among: Array) -> float:
    """p-value of the test that accuracy does not depend on loss."""
    accuracy = task.accuracy[among & np.isfinite(task.accuracy)]
    squares = float(np.sum((accuracy - accuracy.mean()) ** 2))
    n_moving = _n_moving(task, False)
    return _p_of_f(squares, fitted.squares, n_moving - 1, n_groups - n_moving)


def _shift(task: Task, pooled: _Fitted, with_experts: _Fitted, n_groups: int, level: float) -> Shift:
    """Whether E shifts a task's map. Runs that share a trunk count as one in the test's degrees of freedom."""
    p_value = _p_of_f(pooled.squares, with_experts.squares, 1, n_groups - _n_moving(task, True))
    return Shift(
        nats=float(with_experts.curve[-1] * np.log(2)),
        interval=interval_of(with_experts.draws[:, -1] * np.log(2), PERCENTILES),
        p_value=p_value,
        is_shifted=p_value < level,
    )


def _mean_shift(shift_draws: list[Array], maps: list[TaskMap]) -> Shift | None:
    """The mean shift over tasks, from each one's [1 + k]: the runs' first, then those of the resamples."""
    if not shift_draws:
        return None
    means = np.mean(shift_draws, axis=0)
    return Shift(
        nats=float(means[0]),
        interval=interval_of(means[1:], PERCENTILES),
        p_value=None,
        is_shifted=any(task.shift is not None and task.shift.is_shifted for task in maps),
    )


def _map_of(task: Task, fitted: _Fitted, n_groups: int, among: Array, p_flat: float, shift: Shift | None) -> TaskMap:
    """The map of a task."""
    accuracy = task.accuracy[among & np.isfinite(task.accuracy)]
    n_moving = _n_moving(task, shift is not None and shift.is_shifted)
    return TaskMap(
        task=task.name,
        n_runs=len(accuracy),
        measured=_ends(accuracy),
        chance=task.chance,
        chance_from=task.chance_from,
        coefficients={name: float(value) for name, value in zip(NAMES, fitted.curve, strict=True)},
        scatter=float(np.sqrt(fitted.squares / max(1, len(accuracy) - n_moving))),
        degrees=max(1, n_groups - n_moving),
        p_flat=p_flat,
        shift=shift,
        draws=fitted.draws.tolist(),
    )


def _ends(values: Array) -> list[float]:
    """[lowest, highest]."""
    return [float(values.min()), float(values.max())]


def _scatter_of_mean(errors: list[Array], degrees: int) -> float:
    """Standard deviation of a run's mean over tasks around its prediction, from errors [t][r].

    Args:
      errors: of each task.
      degrees: degrees of freedom, where all runs have all tasks.
    """
    means = np.mean(errors, axis=0)
    means = means[np.isfinite(means)]  # of the runs that have all tasks
    if not len(means):
        return 0.0
    return float(np.sqrt(np.sum(means**2) / max(1, min(degrees, len(means)))))
