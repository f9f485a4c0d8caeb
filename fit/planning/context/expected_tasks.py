"""The accuracies that the model of a plan is expected to reach, by maps of `fit tasks`."""

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.planning.chosen.buildable import Buildable, ChosenModel
from fit.task_maps.maps import SIGNIFICANCE_LEVEL, TaskMaps


def of_model(model: ChosenModel, law: Law, maps: TaskMaps) -> Json:
    """{tasks: the accuracies that a model is expected to reach, tasks_note}: fields of Plan.

    Raises:
      UserError: The losses of the maps are of another text than those of the law.
    """
    corpus = law.models.corpus
    if corpus and maps.corpora and corpus not in maps.corpora:
        raise UserError(
            f"--task_map: its losses are on the text {maps.corpora[0]}, those of --law={law.name} on {corpus}; they do "
            "not compare"
        )
    interval = None
    if isinstance(model, Buildable):
        interval = model.loss_interval
    n_experts = int(model.shape.n_experts)  # maps are of tables of runs, which count experts as the trainer does
    expected = maps.expect(model.loss, n_experts, interval, law.percentiles or maps.percentiles)
    flat = [task.task for task in maps.tasks if task.p_flat >= SIGNIFICANCE_LEVEL]
    expected.sort(key=lambda row: row.task in flat)
    return dict(tasks=expected, tasks_note=_note(maps, model.loss, n_experts, interval is None))


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
