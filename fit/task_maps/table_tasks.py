"""The tasks of a table of runs: their accuracies, read strictly, and their chance levels.

Axes: r runs.
"""

import dataclasses
import fnmatch

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.table import table as data_table
from fit.table.table import Table
from fit.task_maps import chance
from fit.task_maps.options import TaskOptions

FEWEST_RUNS = 6  # one more than a curve with E has coefficients
BLANK = (None, "")  # accuracies that are missing


@dataclasses.dataclass(frozen=True)
class Task:
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

    def n_runs(self, among: Array) -> int:
        """How many of some runs, boolean [r], have an accuracy."""
        return int(np.isfinite(self.accuracy[among]).sum())


def read_tasks(table: Table, options: TaskOptions) -> list[Task]:
    """The tasks of the table that the options name."""
    levels = {name: _chance_level(name, value) for name, value in options.chance.items()}
    names = []
    for pattern in options.tasks:
        matching = fnmatch.filter(table.columns, pattern)
        if not matching:
            raise UserError(
                f"--tasks={pattern}: {table.path} has no such column; columns found: {', '.join(table.columns)}"
            )
        names += [name for name in matching if name not in names]
    unknown = [name for name in levels if name not in names]
    if unknown:
        raise UserError(f"--chance={unknown[0]}: expected one of the tasks: {', '.join(names)}")
    tasks = []
    for name in names:
        accuracy = _accuracies(table, name)
        if name in levels:
            tasks.append(Task(name, accuracy, levels[name], "given"))
            continue
        known = chance.known(name)
        tasks.append(Task(name, accuracy, known, "fitted" if known is None else "known"))
    return tasks


def _chance_level(name: str, value: str) -> float:
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


def usable(tasks: list[Task], path: str) -> tuple[list[Task], dict[str, str]]:
    """The tasks that have a map, and why the others have none.

    Raises:
      UserError: No task has one.
    """
    with_map = []
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
            with_map.append(task)
    if not with_map:
        name, why = next(iter(left_out.items()))
        more = f"; so it is with all {len(left_out)} tasks" if len(left_out) > 1 else ""
        raise UserError(f"{path}, column {name}: {why}{more}")
    return with_map, left_out
