"""Maps from loss to the accuracies of tasks: what they hold, their file, and what they predict.

Axes: k draws of the bootstrap; s samples, several of each draw.
"""

import dataclasses
import json
import math
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fit.aliases import Array, Json, Numbers
from fit.errors import UserError
from fit.messages.lines import Line
from fit.messages.printable import is_printable
from fit.results import NOT_IN_JSON, Record, Result
from fit.table.files import write_text
from fit.table.table import plain, shown

VERSION = 1  # of the file
NAMES = ("floor", "top", "middle", "width", "shift")  # of a curve's coefficients
PER_DRAW = 20  # samples of each draw, of loss and scatter
SIGNIFICANCE_LEVEL = 0.05  # of both F tests: flat in loss, shifted by E
AVERAGE = "average"  # name of the mean over all tasks


def accuracy_at(coefficients: Array, loss: Numbers, n_experts: Numbers = 1.0) -> Array:
    """Accuracy by the curve of curve.py; all arguments broadcast together.

    Args:
      coefficients: [..., 5] in the order of NAMES.
      loss: nats per token.
      n_experts: experts of a layer.
    """
    floor, top, middle, width, shift = np.moveaxis(np.asarray(coefficients, float), -1, 0)
    with np.errstate(over="ignore"):
        return floor + (top - floor) / (1 + np.exp((loss + shift * np.log(n_experts) - middle) / width))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shift(Record):
    """Whether the number of experts shifts a map.

    Attributes:
      nats: Increase in loss that would lower accuracy as much as doubling E does at equal loss; negative if more
        experts help.
      interval: [low, high] of it, over the bootstrap.
      p_value: Of the F test; None for the mean over tasks.
      is_shifted: Whether the test finds a shift. The map of the task then reads E.
    """

    nats: float
    interval: list[float]
    p_value: float | None
    is_shifted: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut(Record):
    """How maps of the other runs predict the accuracies of runs that were held out.

    Attributes:
      count: Accuracies.
      error: Mean absolute error.
      bias: Mean of predicted minus measured.
      inside: Share of them in their intervals.
    """

    count: int
    error: float
    bias: float
    inside: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskMap(Record):
    """Accuracy of a task as a function of loss.

    Attributes:
      task: The table's column.
      n_runs: Runs with an accuracy.
      measured: [lowest, highest] accuracy of them.
      chance: Accuracy of guessing; None where it is not known.
      chance_from: "given" (the floor is chance), "known" (chance counts as one run) or "fitted".
      coefficients: {name: value} of the curve.
      scatter: Standard deviation of a run's accuracy around the map.
      degrees: Degrees of freedom of the scatter.
      p_flat: p-value of the F test that accuracy does not depend on loss.
      shift: Whether E shifts the map; None where the runs do not tell.
      held_out: None where no run was held out.
      draws: Curves of the bootstrap, [k][5]; only the file has them.
    """

    task: str
    n_runs: int
    measured: list[float]
    chance: float | None
    chance_from: str
    coefficients: dict[str, float]
    scatter: float
    degrees: int
    p_flat: float
    shift: Shift | None = None
    held_out: HeldOut | None = None
    draws: list[list[float]] = dataclasses.field(repr=False, metadata=NOT_IN_JSON)

    def predict(self, loss: Numbers, n_experts: Numbers = 1.0) -> Array:
        """Accuracy at a loss in nats per token."""
        return accuracy_at(np.array([self.coefficients[name] for name in NAMES]), loss, n_experts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected(Record):
    """The accuracy that a model is expected to reach.

    Attributes:
      task: The table's column, or "average" for the mean over all tasks.
      accuracy: At the model's loss.
      interval: [low, high] of a run's accuracy: the loss's interval, the map's draws, and the scatter of runs.
    """

    task: str
    accuracy: float
    interval: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TaskMaps(Result):
    """Maps from loss to the accuracies of several tasks.

    Attributes:
      source: The table.
      n_runs: Its runs.
      loss: [lowest, highest] loss of them, in nats per token.
      median_loss: Median of them.
      n_experts: Their numbers of experts.
      corpora: Fingerprints of their text, where the table has them.
      percentiles: Ends of all intervals.
      tasks: A map for each task.
      left_out: {task: why it has no map}.
      average_scatter: Standard deviation of a run's mean over all tasks around its prediction.
      stretch: How many times wider intervals are at the lowest loss, as the held-out runs ask; 1 at the median loss and
        above.
      growth: The growth of that factor with each nat below the lowest loss, by hold-outs of compute.
      shift: Mean shift over the tasks that follow the loss; None where the runs do not tell.
      holdout: The rule by which runs were held out, in words; "" where none were.
      held_out: Of the accuracies of all tasks; None where no run was held out.
      average_held_out: Of the mean over all tasks.
    """

    source: str
    n_runs: int
    loss: list[float]
    median_loss: float
    n_experts: list[int]
    corpora: list[str]
    percentiles: list[float]
    tasks: list[TaskMap]
    left_out: dict[str, str]
    average_scatter: float
    stretch: float
    shift: Shift | None
    holdout: str
    held_out: HeldOut | None
    average_held_out: HeldOut | None
    growth: float = 0.0

    @property
    def title(self) -> str:
        """The result's title."""
        return "task maps"

    def rows(self) -> list[Json]:
        """One row for each task."""
        return [task.to_dict() for task in self.tasks]

    def save(self, path: str | os.PathLike) -> None:
        """Writes the maps with their draws as JSON. Raises UserError where the file cannot be written."""
        tasks = [task.to_dict() | dict(draws=task.draws) for task in self.tasks]
        values = self.to_dict() | dict(version=VERSION, tasks=tasks)
        write_text(str(path), json.dumps(plain(_rounded(values)), allow_nan=False) + "\n")

    def expect(
        self,
        loss: float,
        n_experts: float = 1.0,
        loss_interval: Sequence[float] | None = None,
        percentiles: Sequence[float] = (10.0, 90.0),
    ) -> list[Expected]:
        """The accuracies that a model is expected to reach; with several tasks their mean comes first.

        Args:
          loss: Predicted loss in nats per token.
          n_experts: Experts of a layer.
          loss_interval: [low, high] of the loss; None where it is known.
          percentiles: Ends of the loss's interval, in percent.
        """
        samples = sample(self.tasks, loss, n_experts, log_deviation(loss_interval, percentiles))
        expected = []
        for task, accuracies in zip(self.tasks, samples, strict=True):
            accuracy = float(task.predict(loss, n_experts))
            interval = self._interval(accuracy, loss, with_scatter(accuracies, task.scatter, task.degrees))
            expected.append(Expected(task=task.task, accuracy=accuracy, interval=interval))
        if len(expected) > 1:
            average = statistics.fmean(row.accuracy for row in expected)
            degrees = min(task.degrees for task in self.tasks)
            means = with_scatter(samples.mean(axis=0), self.average_scatter, degrees)
            interval = self._interval(average, loss, means)
            expected.insert(0, Expected(task=AVERAGE, accuracy=average, interval=interval))
        return expected

    def _interval(self, accuracy: float, loss: float, samples: Array) -> list[float]:
        """[low, high] of accuracies that are expected at a loss, around the predicted one."""
        lowest = self.loss[0]
        beyond = 1.0
        if self.median_loss > lowest:
            beyond = min(max((self.median_loss - loss) / (self.median_loss - lowest), 0.0), 1.0)
        factor = 1 + (self.stretch - 1) * beyond + self.growth * max(lowest - loss, 0.0)
        ends = interval_of(samples, self.percentiles)
        low, high = (accuracy + factor * (end - accuracy) for end in ends)
        return [min(max(low, 0.0), accuracy), max(min(high, 1.0), accuracy)]


def log_deviation(interval: Sequence[float] | None, percentiles: Sequence[float]) -> float:
    """Standard deviation of the log loss whose percentiles are an interval; 0 without one."""
    if interval is None:
        return 0.0
    low, high = interval
    first, last = (statistics.NormalDist().inv_cdf(percentile / 100) for percentile in percentiles)
    return math.log(high / low) / (last - first)


def sample(tasks: Sequence[TaskMap], loss: float, n_experts: float, deviation: float) -> Array:
    """Accuracies by the draws of the maps at losses around the predicted one, without the scatter of runs.

    A loss and a resample of the runs are the same for all tasks, so that their mean can be taken.

    Returns:
      [tasks, s].
    """
    n_draws = len(tasks[0].draws)
    normal = np.random.default_rng(0).standard_normal((n_draws, PER_DRAW))
    losses = loss * np.exp(deviation * normal)
    draws = np.array([task.draws for task in tasks])[:, :, None]
    return accuracy_at(draws, losses, n_experts).reshape(len(tasks), -1)


def with_scatter(accuracies: Array, scatter: float, degrees: int) -> Array:
    """Accuracies of new runs [s] whose maps say these [s]."""
    return accuracies + scatter * np.random.default_rng(1).standard_t(degrees, accuracies.shape)


def interval_of(samples: Array, percentiles: Sequence[float]) -> list[float]:
    """[low, high] of samples."""
    return [float(end) for end in np.percentile(samples, percentiles)]


def _rounded(value: Any) -> Any:
    """A value whose numbers have six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def load(maps: TaskMaps | str | os.PathLike) -> TaskMaps:
    """Maps from the file that `fit tasks --out` wrote, or as they are.

    Raises:
      UserError: There is no such file, or it holds no maps.
    """
    if isinstance(maps, TaskMaps):
        return maps
    if not isinstance(maps, (str, os.PathLike)):
        raise UserError(f"--task_map: found {shown(maps)}, expected the path of a file of fit tasks --out")
    try:
        values = json.loads(pathlib.Path(maps).read_text(encoding="utf-8"))
        if values.pop("version") != VERSION:
            raise ValueError("another version")
        values["tasks"] = [_task(task) for task in values["tasks"]]
        for name, kind in (("shift", Shift), ("held_out", HeldOut), ("average_held_out", HeldOut)):
            values[name] = _record(kind, values[name])
        loaded = TaskMaps(**values, answer_of=_title)
        if not all(is_printable(task.task) for task in loaded.tasks):
            raise ValueError("a name with a control character")
        loaded.expect(1.0)
    except OSError as error:
        raise UserError(f"--task_map={maps}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise UserError(f"--task_map={maps}: expected a file of fit tasks --out") from error
    return loaded


def _task(values: Json) -> TaskMap:
    """A task's map of a file."""
    parts = dict(shift=_record(Shift, values["shift"]), held_out=_record(HeldOut, values["held_out"]))
    return TaskMap(**(values | parts))


def _record(kind: type, values: Json | None) -> Any:
    """A record of a file, or None."""
    return None if values is None else kind(**values)


def _title(maps: TaskMaps) -> list[Line]:
    """The answer of maps that were read from a file."""
    return [Line("", f"maps of {len(maps.tasks)} tasks from {maps.n_runs} runs of {maps.source}")]
