"""The lines on modelled speeds, in plans, comparisons and reports."""

from collections.abc import Iterator

from fit.messages.lines import Line
from fit.messages.units import amount, say
from fit.planning.chosen.modelled_speed import Speed
from fit.planning.chosen.optimum import Optimum
from fit.planning.context.other_budget import OtherBudget
from fit.planning.inputs.training_chips import MFU


def speeds(other: OtherBudget, optima: list[Optimum]) -> Line:
    """The speed of each number of experts."""
    rows = []
    for row in optima:
        end = f": not modelled, as no mesh of these chips trains it; at MFU {MFU:g}, assumed"
        if row.speed:
            end = f", {amount(row.n_active)} active: {words(row.speed)}"
        rows.append(f"  E = {row.n_experts}{end}")
    head = f"speed on these chips ({other.label}; in brackets 80% ranges), for each number of experts:"
    return Line("", head, tuple(rows))


def differing(other: OtherBudget) -> Iterator[Line]:
    """The line on what FLOPs and hours choose, where they differ."""
    if other.by_flops == other.by_time:
        return
    head = "By FLOPs {by_flops} experts are best, by wall-clock time {by_time}: "
    if other.largest is not None:
        limits = "these chips and limits allow at most {largest:amount} active parameters with {by_flops}"
        yield Line.of("", head + limits, **other)
        return
    low, middle, high = other.ratio
    speeds_differ = (
        "at {n_active:amount} active parameters {by_flops} train at {ratio:.2f} ({ends:.2f}) times the speed of "
        "{by_time} on these chips ({label})"
    )
    yield Line.of("", head + speeds_differ, **{**other, "ratio": middle, "ends": [low, high]})


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
