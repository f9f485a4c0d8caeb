"""Maps of tasks in words: the answer in ten lines at most, or with a table of all tasks."""

import textwrap
from collections.abc import Iterator

from fit.messages import lines
from fit.messages.lines import Line
from fit.messages.units import counted
from fit.task_maps.maps import NAMES, SIGNIFICANCE_LEVEL, Expected, Shift, TaskMap, TaskMaps

SHOWN = 3  # tasks of the answer; --verbose shows all


def answer(maps: TaskMaps) -> Iterator[Line]:
    """The answer in ten lines or so."""
    head, *others = _answer(maps)
    more = "; --verbose prints all tasks" if len(maps.tasks) > SHOWN else ""
    yield Line("", head.value + more)
    yield from others


def verbose(maps: TaskMaps) -> Iterator[Line]:
    """The answer, and a table of all tasks."""
    return lines.with_details(_answer(maps), [lines.rows(_table(maps))])


def _answer(maps: TaskMaps) -> Iterator[Line]:
    """The lines of the answer."""
    low, high = maps.loss
    tasks = counted(len(maps.tasks), "task")
    runs = counted(maps.n_runs, "run")
    head = f"{tasks} on {runs} of {_short(maps.source)}, of losses from {high:.4g} to {low:.4g}"
    if any(task.shift is not None and task.shift.is_shifted for task in maps.tasks):
        head += "; accuracies at E = 1"
    yield Line("", head)
    flat = [task.task for task in maps.tasks if task.p_flat >= SIGNIFICANCE_LEVEL]
    losses = (high, (low + high) / 2, low)
    columns = [maps.expect(loss) for loss in losses]
    rows = sorted(zip(*columns, strict=True), key=lambda row: row[0].task in flat)
    for row in rows[:SHOWN]:
        yield _clipped(row[0].task, _along(row, losses))
    if flat:
        yield _clipped(f"{len(flat)} of {tasks} do not follow the loss in these runs (F test)", ", ".join(flat))
    if maps.left_out:
        yield _clipped("left out", "; ".join(f"{name}: {why}" for name, why in maps.left_out.items()))
    yield _chance(maps)
    yield _check(maps)
    yield _experts(maps)


def _along(row: tuple[Expected, ...], losses: tuple[float, ...]) -> str:
    """Accuracies of one task from the highest loss to the lowest, with the interval of the last."""
    words = [f"{at.accuracy:.3f} at loss {loss:.4g}" for at, loss in zip(row, losses, strict=True)]
    low, high = row[-1].interval
    return f"{', '.join(words)} (80% of runs there: {low:.3f} to {high:.3f})"


def _chance(maps: TaskMaps) -> Line:
    """Where the chance levels come from."""
    sources = [task.chance_from for task in maps.tasks]
    words = dict(
        given="{} given by --chance",
        known="{} known, counted as one run",
        fitted="{} not known, so the floor of the map is fitted",
    )
    parts = [words[name].format(sources.count(name)) for name in words if name in sources]
    return Line("chance levels", "; ".join(parts))


def _check(maps: TaskMaps) -> Line:
    """How maps of the other runs predict those that were held out."""
    if maps.held_out is None:
        return Line("held out", "none, so nothing says how maps predict other runs")
    error = (
        f"mean absolute error {maps.held_out.error:.3f}, {maps.held_out.inside:.0%} of "
        f"{maps.held_out.count} in their 80% intervals"
    )
    average = maps.average_held_out
    if average is not None:
        error += f"; of the average {average.error:.3f}, {average.inside:.0%}"
    return Line(f"held out ({maps.holdout})", error)


def _experts(maps: TaskMaps) -> Line:
    """Whether E shifts the maps."""
    if len(maps.n_experts) == 1:
        why = f"all runs have {maps.n_experts[0]}, so whether E shifts the map stays open"
        return Line("number of experts", why)
    if maps.shift is None:
        return Line("number of experts", "no task follows the loss, so whether E shifts the map stays open")
    return Line("", _shift_in_words(maps, maps.shift))


def _shift_in_words(maps: TaskMaps, mean_shift: Shift) -> str:
    """Whether E shifts the maps, in a sentence."""
    shifts = {task.task: task.shift for task in maps.tasks if task.shift is not None}
    shifted = {name: shift for name, shift in shifts.items() if shift.is_shifted}
    low, high = mean_shift.interval
    mean = f"{mean_shift.nats:+.4f} nats of loss (80%: {low:+.4f} to {high:+.4f})"
    if not shifted:
        return f"E does not shift the map, by an F test: at equal loss, a doubling of E is as {mean}"
    if len(maps.tasks) == 1:
        return f"E shifts the map, by an F test: at equal loss, a doubling of E is as {mean}; positive is worse"
    least = min(shifted, key=lambda name: shifted[name].nats)
    most = max(shifted, key=lambda name: shifted[name].nats)
    ends = f"{shifted[least].nats:+.4f} nats of loss ({least})"
    if len(shifted) > 1:
        ends = f"{shifted[least].nats:+.4f} ({least}) to {shifted[most].nats:+.4f} nats of loss ({most})"
    return (
        f"E shifts {len(shifted)} of {len(maps.tasks)} maps, by F tests: at equal loss, a doubling of E is as {ends}; "
        "positive is worse"
    )


def _table(maps: TaskMaps) -> list[str]:
    """A line for each task, under heads."""
    heads = ["task", "runs", "lowest", "highest", *NAMES[:4], "scatter", "chance", "follows loss", "held out"]
    if len(maps.n_experts) > 1:
        heads.append("nats that a doubling of E is worth")
    rows = [heads, *map(_row, maps.tasks)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(task: TaskMap) -> list[str]:
    """The cells of a task's line."""
    coefficients = [f"{task.coefficients[name]:.3f}" for name in NAMES[:4]]
    cells = [
        task.task,
        str(task.n_runs),
        *(f"{end:.3f}" for end in task.measured),
        *coefficients,
        f"{task.scatter:.3f}",
    ]
    cells.append("fitted" if task.chance is None else f"{task.chance:.3g} {task.chance_from}")
    cells.append(f"no, p {task.p_flat:.1g}" if task.p_flat >= SIGNIFICANCE_LEVEL else "yes")
    cells.append("-" if task.held_out is None else f"{task.held_out.error:.3f}")
    if task.shift is not None:
        low, high = task.shift.interval
        verdict = "shifted" if task.shift.is_shifted else "no shift"
        cells.append(f"{task.shift.nats:+.4f} ({low:+.4f} to {high:+.4f}), p {task.shift.p_value:.1g}: {verdict}")
    return cells


def _short(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def _clipped(label: str, value: str) -> Line:
    """A line of at most WIDTH characters."""
    room = lines.WIDTH - len(f"{label}: ")
    return Line(label, textwrap.shorten(value, room, placeholder=" ...") if len(value) > room else value)
