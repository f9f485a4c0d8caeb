"""The lines on modelled speeds, in plans, comparisons and reports."""

from collections.abc import Iterator

from fit.messages.lines import Line
from fit.messages.units import amount, say
from fit.planning.chosen.modelled_speed import Speed
from fit.planning.chosen.optimum import Optimum
from fit.planning.context.other_budget import OtherBudget
from fit.planning.inputs.training_chips import MFU


def speeds(by_hours: OtherBudget, optima: list[Optimum]) -> Line:
    """The speed of each number of experts."""
    rows = []
    for row in optima:
        end = f": not modelled, as no mesh of these chips trains it; at MFU {MFU:g}, assumed"
        if row.speed:
            end = f", {amount(row.n_active)} active: {words(row.speed)}"
        rows.append(f"  E = {row.n_experts}{end}")
    head = f"speed on these chips ({by_hours.label}; in brackets 80% ranges), for each number of experts:"
    return Line("", head, tuple(rows))


def differing(by_hours: OtherBudget) -> Iterator[Line]:
    """The line on what FLOPs and hours choose, where they differ."""
    if by_hours.by_flops == by_hours.by_time:
        return
    head = "By FLOPs {by_flops} experts are best, by wall-clock time {by_time}: "
    if by_hours.largest is not None:
        limits = "these chips and limits allow at most {largest:amount} active parameters with {by_flops}"
        yield Line.of("", head + limits, **by_hours)
        return
    low, middle, high = by_hours.ratio
    speeds_differ = (
        "at {n_active:amount} active parameters {by_flops} train at {ratio:.2f} ({ends:.2f}) times the speed of "
        "{by_time} on these chips ({label})"
    )
    yield Line.of("", head + speeds_differ, **{**by_hours, "ratio": middle, "ends": [low, high]})


def words(speed: Speed) -> str:
    """A speed in words, each number with its range."""
    values = {}
    for name, (low, middle, high) in speed.items():
        values[name] = middle
        values[f"{name}_ends"] = [low, high]
    return say(
        "{tokens_per_second:amount} tokens/s ({tokens_per_second_ends:amount}), MFU {mfu:.0%} ({mfu_ends:.0%}), "
        "{hours:duration} ({hours_ends:duration})",
        **values,
    )
