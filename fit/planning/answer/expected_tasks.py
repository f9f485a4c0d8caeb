"""The accuracies that the model of a plan is expected to reach, by maps of `fit tasks`."""

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages.lines import Line
from fit.planning.plan import Plan
from fit.task_maps.maps import SIGNIFICANCE_LEVEL, Expected, TaskMaps

SHOWN = 3  # tasks of the answer; --verbose shows all


def of_plan(plan: Plan, law: Law, maps: TaskMaps) -> Json:
    """{tasks: the accuracies that the model of a plan is expected to reach, tasks_note}: fields of Plan.

    Raises:
      UserError: The losses of the maps are of another text than those of the law.
    """
    corpus = law.models.corpus
    if corpus and maps.corpora and corpus not in maps.corpora:
        raise UserError(
            f"--task_map: its losses are on the text {maps.corpora[0]}, those of --law={law.name} on {corpus}; they do "
            "not compare"
        )
    built = plan.buildable
    loss = built.loss if built else plan.best.loss
    interval = built.loss_interval if built else None
    n_experts = built.experts_of_trainer if built else plan.best.n_experts
    expected = maps.expect(loss, n_experts, interval, law.percentiles or maps.percentiles)
    flat = [task.task for task in maps.tasks if task.p_flat >= SIGNIFICANCE_LEVEL]
    expected.sort(key=lambda row: row.task in flat)
    return dict(tasks=expected, tasks_note=_note(maps, loss, n_experts, interval is None))


def _note(maps: TaskMaps, loss: float, n_experts: int, loss_is_exact: bool) -> str:
    """The caveat on expected accuracies; "" for nothing."""
    notes = []
    low, high = maps.loss
    if loss < low:
        notes.append(f"the loss is {low - loss:.2f} nats below all of the map's runs")
    if loss > high:
        notes.append(f"the loss is {loss - high:.2f} nats above all of the map's runs")
    if n_experts > max(maps.n_experts):
        notes.append(f"the map's runs have at most {max(maps.n_experts)} experts")
    if loss_is_exact:
        notes.append("at this loss, as the law has no interval")
    return "; ".join(notes)


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
