"""How maps predict runs that they have not seen, and how much wider their intervals should be for that.

Axes: r runs.
"""

import dataclasses
import statistics

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.table import runs as data_runs
from fit.task_maps.maps import AVERAGE, Expected, HeldOut, TaskMaps
from fit.task_maps.options import TaskOptions
from fit.task_maps.table_tasks import FEWEST_RUNS, Task

N_AS_EXPECTED = 10  # accuracies that lie as intervals say, beside those of the runs that are held out
MOST_STRETCH = 5.0  # of intervals
SMALL = 0.1  # of the largest compute: maps of runs up to it predict the others
FEWEST_SMALL = 2 * FEWEST_RUNS
MOST_GROWTH = 10.0  # for each nat
LEAST_ROOM = 1e-6  # between an accuracy and the end of its interval


@dataclasses.dataclass(frozen=True)
class Row:
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


def runs_held_out(read: data_runs.Runs, options: TaskOptions) -> tuple[str, Array]:
    """The rule that holds runs out, and which they are, boolean [r]; "" and none where there are too few runs.

    Raises:
      UserError: The rule is none, or leaves too few runs.
    """
    rule = options.holdout
    if rule is None:
        count = max(1, round(len(read) / 10))
        if len(read) - count < FEWEST_RUNS:
            return "", np.zeros(len(read), bool)
        rule = f"largest-compute:{count}" if _has_compute(read) else f"lowest-loss:{count}"
    if rule.startswith("largest-compute") and not _has_compute(read):
        raise UserError(f"--holdout={rule}: needs the columns n_active and n_tokens; lowest-loss:N needs neither")
    held_out = data_runs.held_out(read, rule)
    if held_out.any() and len(read) - held_out.sum() < FEWEST_RUNS:
        raise UserError(f"--holdout={rule}: leaves {len(read) - held_out.sum()} runs, expected at least {FEWEST_RUNS}")
    return (rule if held_out.any() else ""), held_out


def _has_compute(read: data_runs.Runs) -> bool:
    """Whether the table has sizes and tokens."""
    return "n_active" in read.table and "n_tokens" in read.table


def largest(read: data_runs.Runs, count: int, among: Array) -> Array:
    """Which runs have the largest compute of some or, without sizes and tokens, the lowest loss; boolean [r]."""
    key = -read.flops if _has_compute(read) else read.loss
    order = np.argsort(np.where(among, key, np.inf), kind="stable")
    is_largest = np.zeros(len(read), bool)
    is_largest[order[:count]] = True
    return is_largest & among


def _rows(maps: TaskMaps, tasks: list[Task], read: data_runs.Runs, which: Array) -> dict[str, list[Row]]:
    """How maps predict some of the runs: {task, or AVERAGE: a row for each run that has it}."""
    rows: dict[str, list[Row]] = {task.name: [] for task in tasks}
    rows[AVERAGE] = []
    for run in np.flatnonzero(which):
        measured = {task.name: float(task.accuracy[run]) for task in tasks}
        measured[AVERAGE] = float(np.mean([*measured.values()]))
        for expected in maps.expect(float(read.loss[run]), float(read.n_experts[run])):
            if np.isfinite(measured[expected.task]):
                rows[expected.task].append(Row(expected, measured[expected.task]))
    return rows


def stretch_of(maps: TaskMaps, tasks: list[Task], read: data_runs.Runs, which: Array) -> float:
    """How many times wider intervals should be to hold as many of these runs' accuracies as they say, at least 1.

    A few accuracies that lie as the intervals say count as well, so that a single run decides little.
    """
    rows = _rows(maps, tasks, read, which)
    first, last = maps.percentiles
    share = (last - first) / 100
    normal = statistics.NormalDist()
    end = normal.inv_cdf((1 + share) / 2)
    as_expected = [abs(normal.inv_cdf((i + 0.5) / N_AS_EXPECTED)) / end for i in range(N_AS_EXPECTED)]
    distances = [row.distance for name, of_task in rows.items() if name != AVERAGE for row in of_task]
    return float(np.clip(np.quantile(distances + as_expected, share), 1, MOST_STRETCH))


def small_runs(read: data_runs.Runs, among: Array) -> Array:
    """Which of some runs, boolean [r], have at most SMALL of their largest compute; none where they are too few."""
    none = np.zeros(len(read), bool)
    if not _has_compute(read) or not among.any():
        return none
    small = among & (read.flops <= SMALL * read.flops[among].max())
    return small if small.sum() >= FEWEST_SMALL else none


def growth_of(of_small: TaskMaps, tasks: list[Task], read: data_runs.Runs, which: Array) -> float:
    """The growth of intervals for each nat below the lowest fitted loss, at least 0.

    An accuracy at x nats below it, whose distance is d, asks for (d - 1) / x. The answer holds as many accuracies as
    the intervals say.

    Args:
      of_small: maps of the small runs, with no stretch.
      tasks: their tasks.
      read: all runs.
      which: larger runs that are predicted, boolean [r].
    """
    lowest = of_small.loss[0]
    below = which & (read.loss < lowest)
    growths = []
    for run in np.flatnonzero(below):
        rows = _rows(of_small, tasks, read, np.arange(len(read)) == run)
        nats = lowest - float(read.loss[run])
        growths += [(row.distance - 1) / nats for name, of_task in rows.items() if name != AVERAGE for row in of_task]
    if not growths:
        return 0.0
    first, last = of_small.percentiles
    return float(np.clip(np.quantile(growths, (last - first) / 100), 0, MOST_GROWTH))


def checked(maps: TaskMaps, of_others: TaskMaps, tasks: list[Task], read: data_runs.Runs, held_out: Array) -> TaskMaps:
    """The maps, with how those of the other runs predict the runs that are held out."""
    rows = _rows(of_others, tasks, read, held_out)
    with_check = [dataclasses.replace(task, held_out=_held_out(rows.get(task.task, []))) for task in maps.tasks]
    average = rows.pop(AVERAGE)
    all_rows = [row for of_task in rows.values() for row in of_task]
    return dataclasses.replace(
        maps, tasks=with_check, held_out=_held_out(all_rows), average_held_out=_held_out(average)
    )


def _held_out(rows: list[Row]) -> HeldOut | None:
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
