"""The lines on modelled speeds, in plans, comparisons and reports."""

from collections.abc import Iterator

from fit.messages import sentences
from fit.messages.lines import Line
from fit.messages.units import say
from fit.planning.modelled_speed import Speed
from fit.planning.other_budget import ClockComparison
from fit.planning.solve import Optimum
from fit.planning.training_chips import MFU


def speeds(clock: ClockComparison, optima: list[Optimum]) -> Line:
    """The speed of each number of experts."""
    rows = []
    for row in optima:
        if row.speed:
            rows.append(say(sentences.CLOCK_ROW, **row, words=words(row.speed)))
        else:
            rows.append(say(sentences.CLOCK_ROW_ASSUMED, **row, mfu=MFU))
    return Line("", say(sentences.CLOCK_HEAD, **clock), tuple(rows))


def differing(clock: ClockComparison) -> Iterator[Line]:
    """The line on what FLOPs and hours choose, where they differ."""
    if clock.by_flops == clock.by_time:
        return
    if clock.largest is not None:
        yield Line("", say(sentences.CLOCK_DIFFERS_BY_SIZE, **clock))
        return
    low, middle, high = clock.ratio
    yield Line("", say(sentences.CLOCK_DIFFERS, **{**clock, "ratio": middle, "ends": [low, high]}))


def words(speed: Speed) -> str:
    """A speed in words, each number with its range."""
    values = {}
    for name, (low, middle, high) in speed.items():
        values[name] = middle
        values[f"{name}_ends"] = [low, high]
    return say(sentences.CLOCK_SPEED, **values)
