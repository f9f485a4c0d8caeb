"""From a table of runs to maps: accuracy of each task as a bounded function of loss, pooled over sizes, with intervals;
whether E shifts the maps; how maps of the other runs predict the runs of the largest compute.

Axes: r runs; k resamples; t tasks.
"""

import dataclasses
import fnmatch
import statistics

import numpy as np

from fit.aliases import Array
from fit.data import runs as data_runs
from fit.data import table as data_table
from fit.data.table import Table
from fit.errors import UserError
from fit.fitting import solvers
from fit.fitting.float64 import float64
from fit.task_maps import chance, curve, text
from fit.task_maps.maps import (
    AVERAGE,
    LEVEL,
    NAMES,
    Expected,
    HeldOut,
    Shift,
    TaskMap,
    TaskMaps,
    accuracy_at,
    interval_of,
)
from fit.task_maps.options import TaskOptions

FEWEST_RUNS = 6  # one more than a curve with E has coefficients
PERCENTILES = [10.0, 90.0]  # ends of all intervals
N_AS_EXPECTED = 10  # accuracies that lie as intervals say, beside those of the runs that are held out
MOST_STRETCH = 5.0  # of intervals
LEAST_ROOM = 1e-6  # between an accuracy and the end of its interval
BLANK = (None, "")  # accuracies that are missing


@dataclasses.dataclass(frozen=True)
class _Task:
    """A task of the table.

    Attributes:
      name: its column.
      accuracy: shares, [r], NaN where a run has none.
      chance: accuracy of guessing; None where it is not known.
      chance_from: as TaskMap.chance_from.
    """

    name: str
    accuracy: Array
    chance: float | None
    chance_from: str


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


@dataclasses.dataclass(frozen=True)
class _Row:
    """An accuracy that was predicted and measured."""

    expected: Expected
    measured: float

    @property
    def distance(self) -> float:
        """How far the measured one lies from the predicted one, in distances of the interval's end on its side."""
        low, high = self.expected.interval
        error = self.measured - self.expected.accuracy
        room = high - self.expected.accuracy if error > 0 else self.expected.accuracy - low
        return abs(error) / max(room, LEAST_ROOM)


def fit_tasks(runs: object, options: TaskOptions) -> TaskMaps:
    """The maps of a table's tasks.

    The runs that are held out check maps of the others. As a form may err beyond its runs, intervals there are
    stretched by what that check asks for; those of the check itself by what a check among the other runs asks for.

    Raises:
      UserError: There is no such task, too few runs, an accuracy that is no share, or no task above chance.
    """
    table = data_table.read(runs)
    columns = ["n_tokens"] if "n_tokens" in table else []
    read = data_runs.read_runs(table, columns, options.mix_corpora)
    trunks, _ = data_runs.trunks_of(table)
    labels = np.arange(len(read)) if trunks is None else trunks
    tasks, left_out = _usable(_read_tasks(table, options), table.path)
    with float64(), solvers.compilation_cache():
        maps = _fit_and_check(tasks, read, labels, options)
    return dataclasses.replace(maps, left_out=left_out)


def _fit_and_check(tasks: list[_Task], read: data_runs.Runs, labels: Array, options: TaskOptions) -> TaskMaps:
    """The maps of all runs, checked by those that are held out.

    Args:
      tasks: the tasks, with accuracies of all runs.
      read: all runs.
      labels: of the runs' trunks, [r].
      options: of the fit.
    """
    all_runs = np.ones(len(read), bool)
    maps = _maps(tasks, read, labels, all_runs, options)
    holdout, held_out = _holdout(read, options)
    if not held_out.any():
        return maps
    of_others = _maps(tasks, read, labels, ~held_out, options)
    stretch = _stretch(of_others, tasks, read, held_out)
    inner = _largest(read, int(held_out.sum()), ~held_out)
    if (~held_out & ~inner).sum() >= FEWEST_RUNS:
        innermost = _maps(tasks, read, labels, ~held_out & ~inner, options)
        of_others = dataclasses.replace(of_others, stretch=_stretch(innermost, tasks, read, inner))
    return _checked(dataclasses.replace(maps, stretch=stretch, holdout=holdout), of_others, tasks, read, held_out)


def _maps(tasks: list[_Task], read: data_runs.Runs, labels: Array, among: Array, options: TaskOptions) -> TaskMaps:
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
            shift = _shift(task, chosen, with_experts, n_groups, LEVEL / len(tasks))  # over all tasks together
            if p_flat < LEVEL:
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
        text_of=text.verbose if options.verbose else text.text,
    )


def _read_tasks(table: Table, options: TaskOptions) -> list[_Task]:
    """The tasks of the table that the options name."""
    given = {name: _given_chance(name, value) for name, value in options.chance.items()}
    names = []
    for pattern in options.tasks:
        matching = fnmatch.filter(table.columns, pattern)
        if not matching:
            raise UserError(
                f"--tasks={pattern}: {table.path} has no such column; columns found: {', '.join(table.columns)}"
            )
        names += [name for name in matching if name not in names]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise UserError(f"--chance={unknown[0]}: expected one of the tasks: {', '.join(names)}")
    tasks = []
    for name in names:
        accuracy = _accuracies(table, name)
        if name in given:
            tasks.append(_Task(name, accuracy, given[name], "given"))
            continue
        known = chance.known(name)
        tasks.append(_Task(name, accuracy, known, "fitted" if known is None else "known"))
    return tasks


def _given_chance(name: str, value: str) -> float:
    """A chance level of --chance."""
    (number,) = data_table.to_numbers([value])
    if not 0 <= number < 1:
        raise UserError(f"--chance={name}:{value}: expected an accuracy from 0 to below 1, such as {name}:0.25")
    return float(number)


def _accuracies(table: Table, name: str) -> Array:
    """A column of accuracies, [r], NaN where a run has none."""
    values = table.column(name)
    numbers = data_table.to_numbers(values)
    for row, value, number in zip(table.rows, values, numbers, strict=True):
        is_missing = value in BLANK or (isinstance(value, float) and np.isnan(value))
        if is_missing or 0 <= number <= 1:
            continue
        hint = "; an accuracy in percent is to be divided by 100" if 1 < number <= 100 else ""
        raise UserError(
            f"{table.path}, row {row}, column {name}: found {data_table.shown(value)}, expected a share from 0 to 1"
            f"{hint}"
        )
    return numbers


def _usable(tasks: list[_Task], path: str) -> tuple[list[_Task], dict[str, str]]:
    """The tasks that have a map, and why the others have none.

    Raises:
      UserError: No task has one.
    """
    usable = []
    left_out = {}
    for task in tasks:
        count = int(np.isfinite(task.accuracy).sum())
        if count < FEWEST_RUNS:
            runs = "1 run has" if count == 1 else f"{count} runs have"
            left_out[task.name] = f"{runs} an accuracy, expected at least {FEWEST_RUNS}"
        elif task.chance is not None and np.nanmax(task.accuracy) <= task.chance:
            best = np.nanmax(task.accuracy)
            left_out[task.name] = f"no run is above chance: the best has {best:.3g}, chance is {task.chance:.3g}"
        else:
            usable.append(task)
    if not usable:
        name, why = next(iter(left_out.items()))
        more = f"; so it is with all {len(left_out)} tasks" if len(left_out) > 1 else ""
        raise UserError(f"{path}, column {name}: {why}{more}")
    return usable, left_out


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


def _fit(task: _Task, loss: Array, log_experts: Array, draws: Array, seed: int, among: Array) -> _Fitted:
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


def _n_moving(task: _Task, reads_experts: bool) -> int:
    """Coefficients that the fit of a task moves."""
    return len(NAMES) - 1 + reads_experts - (task.chance_from == "given")


def _p_of_f(squares_without: float, squares_with: float, n_more: int, degrees: int) -> float:
    """p-value of the F test of `n_more` further coefficients."""
    from scipy import stats

    if degrees < 1 or squares_with <= 0:
        return 1.0
    ratio = max(0.0, squares_without - squares_with) / squares_with * degrees / n_more
    return float(stats.f.sf(ratio, n_more, degrees))


def _p_flat(task: _Task, fitted: _Fitted, n_groups: int, among: Array) -> float:
    """p-value of the test that accuracy does not depend on loss."""
    accuracy = task.accuracy[among & np.isfinite(task.accuracy)]
    squares = float(np.sum((accuracy - accuracy.mean()) ** 2))
    n_moving = _n_moving(task, False)
    return _p_of_f(squares, fitted.squares, n_moving - 1, n_groups - n_moving)


def _shift(task: _Task, pooled: _Fitted, with_experts: _Fitted, n_groups: int, level: float) -> Shift:
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


def _map_of(task: _Task, fitted: _Fitted, n_groups: int, among: Array, p_flat: float, shift: Shift | None) -> TaskMap:
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


def _holdout(read: data_runs.Runs, options: TaskOptions) -> tuple[str, Array]:
    """The rule that holds runs out, in words, and which they are, boolean [r]."""
    rule = options.holdout
    if rule is None:
        count = max(1, round(len(read) / 10))
        if len(read) - count < FEWEST_RUNS:
            return "", np.zeros(len(read), bool)
        rule = f"largest-compute:{count}" if _has_compute(read) else f"lowest-loss:{count}"
    held_out = data_runs.held_out(read, rule)
    if held_out.any() and len(read) - held_out.sum() < FEWEST_RUNS:
        raise UserError(f"--holdout={rule}: leaves {len(read) - held_out.sum()} runs, expected at least {FEWEST_RUNS}")
    return (rule if held_out.any() else ""), held_out


def _largest(read: data_runs.Runs, count: int, among: Array) -> Array:
    """Which runs have the largest compute of some or, without sizes and tokens, the lowest loss; boolean [r]."""
    key = -read.flops if _has_compute(read) else read.loss
    order = np.argsort(np.where(among, key, np.inf), kind="stable")
    largest = np.zeros(len(read), bool)
    largest[order[:count]] = True
    return largest & among


def _has_compute(read: data_runs.Runs) -> bool:
    """Whether the table has sizes and tokens."""
    return "n_active" in read.table and "n_tokens" in read.table


def _rows(maps: TaskMaps, tasks: list[_Task], read: data_runs.Runs, which: Array) -> dict[str, list[_Row]]:
    """How maps predict some of the runs: {task, or AVERAGE: a row for each run that has it}."""
    rows: dict[str, list[_Row]] = {task.name: [] for task in tasks}
    rows[AVERAGE] = []
    for run in np.flatnonzero(which):
        measured = {task.name: float(task.accuracy[run]) for task in tasks}
        measured[AVERAGE] = float(np.mean([*measured.values()]))
        for expected in maps.expect(float(read.loss[run]), float(read.n_experts[run])):
            if np.isfinite(measured[expected.task]):
                rows[expected.task].append(_Row(expected, measured[expected.task]))
    return rows


def _stretch(maps: TaskMaps, tasks: list[_Task], read: data_runs.Runs, which: Array) -> float:
    """How many times wider intervals should be to hold as many of these runs' accuracies as they say, at least 1.

    A few accuracies that lie as the intervals say count as well, so that a single run decides little.
    """
    rows = _rows(maps, tasks, read, which)
    share = (PERCENTILES[1] - PERCENTILES[0]) / 100
    normal = statistics.NormalDist()
    end = normal.inv_cdf((1 + share) / 2)
    as_expected = [abs(normal.inv_cdf((i + 0.5) / N_AS_EXPECTED)) / end for i in range(N_AS_EXPECTED)]
    distances = [row.distance for name, of_task in rows.items() if name != AVERAGE for row in of_task]
    return float(np.clip(np.quantile(distances + as_expected, share), 1, MOST_STRETCH))


def _checked(
    maps: TaskMaps, of_others: TaskMaps, tasks: list[_Task], read: data_runs.Runs, held_out: Array
) -> TaskMaps:
    """The maps, with how those of the other runs predict the runs that are held out."""
    rows = _rows(of_others, tasks, read, held_out)
    with_check = [dataclasses.replace(task, held_out=_held_out(rows[task.task])) for task in maps.tasks]
    average = rows.pop(AVERAGE)
    all_rows = [row for of_task in rows.values() for row in of_task]
    return dataclasses.replace(
        maps, tasks=with_check, held_out=_held_out(all_rows), average_held_out=_held_out(average)
    )


def _held_out(rows: list[_Row]) -> HeldOut | None:
    """How accuracies were predicted; None for none."""
    if not rows:
        return None
    errors = [row.expected.accuracy - row.measured for row in rows]
    return HeldOut(
        count=len(rows),
        error=float(np.mean(np.abs(errors))),
        bias=float(np.mean(errors)),
        inside=float(np.mean([row.distance <= 1 for row in rows])),
    )
