"""The lines on the accuracies that the model of a plan is expected to reach."""

from fit.messages.lines import Line
from fit.planning.plan import Plan
from fit.task_maps.maps import Expected

SHOWN = 3  # tasks of the answer; --verbose shows all


def answer(plan: Plan) -> Line:
    """The plan's line."""
    tasks = plan.tasks or []
    more = f", {len(tasks) - SHOWN} more by --verbose" if len(tasks) > SHOWN else ""
    note = f"; {plan.tasks_note}" if plan.tasks_note else ""
    return Line("Tasks (80% of runs)", f"{', '.join(map(_in_words, tasks[:SHOWN]))}{more}{note}")


def _in_words(row: Expected) -> str:
    """A task with its accuracy and interval."""
    low, high = row.interval
    return f"{row.task} {row.accuracy:.3f} ({low:.3f} to {high:.3f})"


def all_tasks(plan: Plan) -> Line:
    """A row for each task."""
    return Line("", "expected accuracies:", tuple(f"  {_in_words(row)}" for row in plan.tasks or []))
