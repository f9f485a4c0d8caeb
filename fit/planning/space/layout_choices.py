"""The layouts in which chips hold models of one number of experts: meshes, batches, remat, tokens at once.

Two searches choose among them: on_tokens.py, with given training tokens, and within_hours.py. Each says what it need
not look at.

Axes: [n_shapes] models of one number of experts, [n] of them on meshes, [n, n_batches] with each batch of the recipe.
"""

import dataclasses
import functools

import numpy as np

from fit.aliases import Array
from fit.model.architecture import Ramp
from fit.model.layout import Layout
from fit.model.step_cost import step_cost
from fit.model.step_counts import memory_by_tokens
from fit.planning.inputs.problem import Problem
from fit.planning.recipe import allowed_batches, ramps
from fit.planning.space import meshes
from fit.planning.space.candidates import Candidates, InLayouts, OnMeshes
from fit.planning.space.model_grid import ModelGrid, take

STATE_BYTES = 16  # of a parameter on a device, at least: weight, two moments, gradient
IDEAL_BATCH = 2.0**40  # tokens of a step: what a step does once takes no time of a token


@dataclasses.dataclass(frozen=True)
class Batches:
    """The batches that models on meshes may have: arrays [n, n_batches].

    Attributes:
      tokens: Tokens of the largest batch; 0 where the mesh divides none.
      least, most: Training tokens from which, and up to which, the model may be trained with it.
    """

    tokens: Array
    least: Array
    most: Array


@dataclasses.dataclass(frozen=True)
class LayoutChoices:
    """The layouts of a problem's grid for the shapes of one recipe.

    Attributes:
      problem: The problem.
      models: The shapes.
    """

    problem: Problem
    models: ModelGrid

    @functools.cached_property
    def counts(self) -> Array:
        """The numbers of chips, ascending."""
        chips = self.problem.chips
        return np.array(self.problem.grid.counts_of(chips.chip, chips.count))

    @functools.cached_property
    def least_seconds(self) -> Array:
        """As least_seconds of all shapes."""
        return least_seconds(self.problem, self.models)

    @functools.cached_property
    def holds_weights(self) -> Array:
        """Whether all chips together hold the weights of each shape."""
        shape = self.models.shape
        stored = shape.routed_weights + shape.dense_weights + shape.embedding_and_head
        chips = self.problem.chips
        return np.asarray(STATE_BYTES * stored <= chips.memory_share * self.counts[-1] * chips.chip.memory)

    def on_meshes(self, rows: Array, counts: Array, could_be_best: Array) -> OnMeshes:
        """Shapes on all meshes that divide them and hold their weights.

        Args:
          rows: The shapes, [n_rows].
          counts: Numbers of chips, ascending.
          could_be_best: Which shapes to look at on how many chips, [n_rows, n_counts].
        """
        problem = self.problem
        chips = problem.chips
        request = problem.request.fixed_mesh
        sizes = [
            (count, *sizes)
            for count in counts.tolist()
            for sizes in meshes.all_meshes(
                count * chips.chip.devices, problem.grid.models, request.expert, request.model
            )
        ]
        count, data, expert, model = np.array(sizes, int).reshape(-1, 4).T
        shape = take(self.models.shape, rows[:, None])
        has_narrow_experts = problem.architecture.granularity != 1
        fits = meshes.divides(shape, self.models.sequence, has_narrow_experts, data, expert, model)
        if np.all(np.equal(shape.n_experts, 1)):
            fits = _shortest_expert_axes(fits, count, model)
        # devices hold at least the weights, each a part of those of its model axis
        stored = (shape.routed_weights + shape.dense_weights) / model + shape.embedding_and_head
        fits &= STATE_BYTES * stored / (data * expert) <= chips.memory_share * chips.device_memory
        fits &= could_be_best[:, np.searchsorted(counts, count)]
        i, j = np.nonzero(fits)
        group = self._group_tokens(data[j] * expert[j])
        return OnMeshes(self.models, rows[i], count[j], data[j], expert[j], model[j], group)

    def batches(self, on_meshes: OnMeshes) -> Batches:
        """The batches of models on meshes, with the training tokens on which their recipe allows these."""
        if self.models.ramp is None:
            tokens, least, most = self._published_batches(on_meshes)
        else:
            tokens, least, most = _batches_of_ramp(on_meshes, self.models.ramp)
        models = self.models
        least = np.maximum(least, np.floor(models.least_tokens[on_meshes.row, None]) + 1)
        most = np.floor(np.minimum(most, models.most_tokens[on_meshes.row, None]))
        return Batches(tokens, least, most)

    def in_layouts(self, on_meshes: OnMeshes, batches: Batches, is_allowed: Array) -> InLayouts | None:
        """Models on meshes with the allowed batches, in each remat, as far as the devices hold them; None for none.

        is_allowed: [n, n_batches].
        """
        i, j = np.nonzero(is_allowed)
        if not len(i):
            return None
        batch = batches.tokens[i, j]
        fixed = self.problem.request.fixed_mesh.remat
        remats = np.array([k for k, remat in enumerate(self.problem.grid.remats) if fixed in (None, remat)])
        names = np.array(self.problem.grid.remats)[remats]
        most_whole, most_of_part = self._most_at_once(on_meshes, names[:, None])
        at_once = self._tokens_at_once(batch, on_meshes.unit[i], most_whole[:, i], most_of_part[:, i])
        of_remat, of_batch = np.nonzero(at_once)
        if not len(of_batch):
            return None
        return InLayouts(
            **vars(on_meshes.part(i[of_batch])),
            batch_tokens=batch[of_batch],
            microbatch_tokens=at_once[of_remat, of_batch],
            remat=remats[of_remat],
            least=batches.least[i, j][of_batch],
            most=batches.most[i, j][of_batch],
        )

    def timed(self, in_layouts: InLayouts) -> Candidates:
        """Models in layouts, with their speed."""
        seconds_per_token = np.asarray(in_layouts.step(self.problem).seconds) / in_layouts.batch_tokens
        return Candidates(**vars(in_layouts), seconds_per_token=seconds_per_token)

    def _group_tokens(self, n_rows: Array) -> Array:
        """Tokens of a group on meshes whose n_rows devices share the tokens: a power of two of whole rows."""
        sequence = self.models.sequence
        if self.models.ramp is None:
            return np.full(n_rows.shape, sequence)
        tokens_of_a_device = self.models.ramp[0][1] // n_rows
        rows = np.maximum(np.minimum(meshes.GROUP_TOKENS, tokens_of_a_device) // sequence, 1)
        return sequence * 2 ** np.floor(np.log2(rows)).astype(int)

    def _published_batches(self, on_meshes: OnMeshes) -> tuple[Array, Array, Array]:
        """(batch, least, most training tokens) by the recipe of published models, [n, n_batches]."""
        batch = on_meshes.unit[:, None] * np.array(self.problem.grid.batches, float)
        least, most = allowed_batches.tokens_of_batches(self.models.batch_laws, on_meshes.row, np.log(batch))
        return batch, np.ceil(least), most

    def _most_at_once(self, on_meshes: OnMeshes, remats: Array) -> tuple[Array, Array]:
        """The most tokens at once that all devices of meshes hold: of (a whole batch, a part of a batch).

        remats: [n_remats, 1]. The results are [n_remats, n].
        """
        layout = Layout(
            batch_tokens=on_meshes.unit,
            sequence=self.models.sequence,
            data=on_meshes.data,
            expert=on_meshes.expert,
            model=on_meshes.model,
            remat=remats,
            flash=self.models.as_published,
        )
        memory = memory_by_tokens(self.models.of(on_meshes.row), layout)
        limit = self.problem.chips.memory_share * self.problem.chips.device_memory
        devices = on_meshes.data * on_meshes.expert
        return devices * memory.most_tokens(limit, False), devices * memory.most_tokens(limit, True)

    def _tokens_at_once(self, whole: Array, unit: Array, most_whole: Array, most_of_part: Array) -> Array:
        """The most tokens at once that devices hold: the whole batch, else a part of the first batch; 0 for none.

        A part is the first batch, or half of it, a quarter, ..., of whole units; where that is none, one unit.

        Args:
          whole: Tokens of the batch, [n].
          unit: Of its mesh, [n].
          most_whole, most_of_part: As _most_at_once has them, for each batch.
        """
        first = ramps.first_batch(whole, unit, self.models.ramp)
        largest = np.where(first < whole, first, whole / 2)
        least_halvings = np.log2(largest / np.maximum(most_of_part, 1.0))
        part = largest / 2 ** np.maximum(np.ceil(least_halvings), 0.0)
        is_whole_units = (part >= unit) & (part % unit == 0)
        one_unit = np.where(unit <= np.minimum(most_of_part, largest), unit, 0.0)
        part = np.where(is_whole_units & (most_of_part >= 1), part, one_unit)
        return np.where(whole <= most_whole, whole, part)


def least_seconds(problem: Problem, models: ModelGrid) -> Array:
    """A lower bound of the seconds of a token on one chip, in any layout: those of products and memory alone."""
    chip = problem.chips.chip
    layout = Layout(
        batch_tokens=IDEAL_BATCH,
        sequence=models.sequence,
        remat=np.array(problem.grid.remats)[:, None],
        flash=models.as_published,
    )
    seconds = np.asarray(step_cost(models.shape, layout, chip, problem.efficiencies).seconds)  # [n_remats, n_shapes]
    return seconds.min(axis=0) / IDEAL_BATCH / chip.devices * (1 - 1e-9)


def _shortest_expert_axes(fits: Array, count: Array, model: Array) -> Array:
    """Of the meshes that fit dense models [n_shapes, n_meshes], those of the shortest expert axis.

    A longer one divides the same tokens over as many devices, and at most stores the weights in more copies.

    Args:
      fits: whether a mesh fits a model.
      count, model: number of chips and model axis of each mesh; those alike in both stand together, by expert axis.
    """
    is_first = np.diff(count, prepend=-1).astype(bool) | np.diff(model, prepend=-1).astype(bool)
    start = np.maximum.accumulate(np.where(is_first, np.arange(len(count)), 0))
    n_up_to = np.cumsum(fits, axis=1)
    n_before = (n_up_to - fits)[:, start]
    return fits & (n_up_to - n_before == 1)


def _batches_of_ramp(on_meshes: OnMeshes, ramp: Ramp) -> tuple[Array, Array, Array]:
    """(largest batch, 0 where the mesh divides none; least, most training tokens) by the recipe of the law's runs."""
    batch = ramps.on_mesh(ramp, on_meshes.unit).astype(float)
    starts = np.array([start for start, _ in ramp], float)
    least = np.broadcast_to(starts + 1, batch.shape)
    most = np.broadcast_to([*starts[1:], np.inf], batch.shape)
    return batch, least, most
