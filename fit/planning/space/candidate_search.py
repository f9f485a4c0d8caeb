"""The search for the candidates of models of one number of experts that could be the best (branch and bound).

The bound of a shape is its loss on the tokens that it could have if only products and memory took time. Shapes come in
the order of their bounds, until no bound is below the best loss so far. Of a shape, layouts are skipped that cannot be
faster than one that trains it for all hours.

Axes: [n_shapes] models of one number of experts, [n] candidates.
"""

import functools
import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array, Numbers
from fit.model.architecture import Ramp
from fit.model.layout import Layout
from fit.model.step_cost import step_cost
from fit.model.step_counts import memory_by_tokens
from fit.planning.inputs import grid as grid_lib
from fit.planning.inputs import mesh
from fit.planning.inputs.problem import BAND, Problem
from fit.planning.space import ramps, rates, recipe
from fit.planning.space.candidates import Candidates, InLayouts, OnMeshes, joined, sequence_of
from fit.planning.space.model_grid import ModelGrid, loss_of_shapes, take

# Candidates that lose up to this share more than the best are evaluated, too: BAND, or for a law with draws, in one of
# which (odds.py) another may be the best, this much wider one.
BAND_OF_DRAWS = 0.1
CHUNK = 8  # shapes that are evaluated together at first
GROWTH = 4  # factor by which more are evaluated together later
STATE = 16  # bytes of a parameter on a device, at least: weight, two moments, gradient
IDEAL_BATCH = 2.0**40  # tokens of a step, so many that what a step does once takes no time of a token


def least_seconds(problem: Problem, models: ModelGrid) -> Array:
    """A lower bound of the seconds of a token on one chip, in any layout: those of products and memory alone."""
    chip = problem.chips.chip
    layout = Layout(
        batch_tokens=IDEAL_BATCH,
        sequence=sequence_of(problem.law, models.as_published),
        remat=np.array(problem.grid.remats)[:, None],
        flash=models.as_published,
    )
    seconds = np.asarray(step_cost(models.shape, layout, chip, problem.efficiencies).seconds)  # [n_remats, n_shapes]
    return seconds.min(axis=0) / IDEAL_BATCH / chip.devices * (1 - 1e-9)


def in_hours(problem: Problem, by_recipe: list[ModelGrid], hours: tuple[float, float]) -> list[Candidates]:
    """The candidates that could be the best between two numbers of hours, or lose little more.

    Args:
      problem: The problem; its `loss_cutoff` is reached otherwise in the least hours.
      by_recipe: The shapes.
      hours: The least and the most hours.

    Returns:
      The candidates of each recipe that has some, in the order of the recipes.
    """
    more = 1 + (BAND_OF_DRAWS if problem.law.draws else BAND)
    searches = [_Search(problem, models, hours) for models in by_recipe]
    loss_cutoff = problem.loss_cutoff
    found: dict[int, Candidates] = {}
    for i in sorted(range(len(searches)), key=lambda i: searches[i].least_loss):
        search = searches[i]
        search.loss_cutoff = loss_cutoff * more
        parts = []
        for part in search.in_order():
            parts.append(part)
            losses = loss_of_shapes(problem, search.models, part.row, part.tokens_within_hours(problem, hours[0]))
            loss_cutoff = min(loss_cutoff, float(losses.min()))
            search.loss_cutoff = loss_cutoff * more
        if parts:
            found[i] = joined(parts)
    return [found[i] for i in sorted(found)]


def least_loss(problem: Problem, models: ModelGrid, hours: float) -> float:
    """A lower bound of the losses of all shapes in so many hours; infinite where limits exclude them all."""
    return _Search(problem, models, (hours, hours)).least_loss


def on_tokens(problem: Problem, models: ModelGrid, rows: Array, n_tokens: Array) -> Candidates | None:
    """The candidates of shapes that may be trained on so many tokens.

    Args:
      problem: The problem.
      models: The shapes.
      rows: Which of them.
      n_tokens: Training tokens of each shape, [n_shapes].

    Returns:
      The candidates; None where there are none.
    """
    search = _Search(problem, models, n_tokens=n_tokens)
    parts = list(search.in_layouts(rows))
    return joined(parts) if parts else None


def trained_on(problem: Problem, models: ModelGrid, rows: Array, n_tokens: Array) -> Array:
    """Those of the rows that have candidates. The arguments are those of `on_tokens`."""
    search = _Search(problem, models, n_tokens=n_tokens)
    fitting = search.fitting(rows, search.counts)
    return np.empty(0, int) if fitting is None else np.unique(fitting.row)


class _Search:
    """A search for the candidates of some models that could be the best."""

    def __init__(
        self,
        problem: Problem,
        models: ModelGrid,
        hours: tuple[float, float] = (math.inf, math.inf),
        n_tokens: Array | None = None,
    ) -> None:
        """Prepare the search.

        Args:
          problem: The problem.
          models: The shapes.
          hours: The least and the largest budget.
          n_tokens: Training tokens of each shape, in place of those that the hours allow.
        """
        self.problem = problem
        self.models = models
        self.hours = hours
        self.n_tokens = n_tokens
        self.loss_cutoff = math.inf  # candidates whose bound of the loss is larger are skipped
        self.fastest = np.full(models.exact_parameters.shape, np.inf)  # seconds of a token; slower layouts are skipped
        chips = problem.chips
        self.counts = np.array(problem.grid.counts_of(chips.chip, chips.count))

    @functools.cached_property
    def ramp(self) -> Ramp | None:
        """The batches by the recipe of the law's runs; None by that of published models."""
        return None if self.models.as_published else recipe.batches_of(self.problem.law)

    @functools.cached_property
    def floor(self) -> Array:
        """A lower bound of the seconds of a token of each shape on one chip."""
        return least_seconds(self.problem, self.models)

    @functools.cached_property
    def holds_weights(self) -> Array:
        """Whether all chips together hold the weights of each shape."""
        shape = self.models.shape
        stored = shape.routed_weights + shape.dense_weights + shape.embedding_and_head
        chips = self.problem.chips
        return np.asarray(STATE * stored <= chips.memory_share * self.counts[-1] * chips.chip.memory)

    @functools.cached_property
    def by_bound(self) -> tuple[Array, Array]:
        """(indices of the shapes that limits allow, lower bounds of their losses), ascending."""
        allowed = np.flatnonzero(self.models.limited_by == "")
        bound = self.bound(allowed, self.counts[-1])
        order = np.argsort(bound, kind="stable")
        return allowed[order], bound[order]

    @property
    def least_loss(self) -> float:
        """A lower bound of the losses of all shapes; infinite where limits exclude them all."""
        _, bound = self.by_bound
        return float(bound[0]) if len(bound) else math.inf

    def most_tokens(self, rows: Array, chips: Numbers) -> Array:
        """An upper bound of the tokens that so many chips train shapes on."""
        if self.n_tokens is not None:
            return np.broadcast_arrays(self.n_tokens[rows], chips)[0]
        tokens = self.problem.tokens_within_hours(self.hours[1], self.floor[rows] / chips)
        return np.minimum(tokens, self.models.most_tokens[rows])

    def bound(self, rows: Array, chips: Numbers) -> Array:
        """A lower bound of the loss of shapes on so many chips."""
        return loss_of_shapes(self.problem, self.models, rows, self.most_tokens(rows, chips))

    def in_order(self) -> Iterator[Candidates]:
        """The candidates whose bound is at most the cutoff, from the least bound on.

        Shapes come in parts, which grow once some are found: the losses of the first ones exclude many others.
        """
        order, bound = self.by_bound
        start = 0
        size = CHUNK
        while start < len(order) and bound[start] <= self.loss_cutoff and math.isfinite(bound[start]):
            rows = order[start : start + size]
            found = False
            for part in self.in_layouts(rows[bound[start : start + size] <= self.loss_cutoff]):
                found = True
                yield part
            start += size
            if found:
                size *= GROWTH

    def in_layouts(self, rows: Array) -> Iterator[Candidates]:
        """The candidates of these shapes whose bound is at most the cutoff: on all chips, then on fewer."""
        for counts in (self.counts[-1:], self.counts[:-1]):
            part = self.fitting(rows, counts)
            if part is not None:
                seconds_per_token = np.asarray(part.step(self.problem).seconds) / part.batch_tokens
                candidates = Candidates(**vars(part), seconds_per_token=seconds_per_token)
                self._keep_fastest(candidates)
                yield candidates

    def _keep_fastest(self, part: Candidates) -> None:
        """Note the fastest layouts of those that may be trained for all of the hours."""
        seconds = part.seconds_per_token
        if self.n_tokens is None:
            least_tokens, most_tokens = (self.problem.tokens_within_hours(hours, seconds) for hours in self.hours)
            is_limited = (least_tokens < part.least) | (most_tokens > part.most) | (most_tokens >= self.problem.cap)
            seconds = np.where(is_limited, np.inf, seconds)
        np.minimum.at(self.fastest, part.row, seconds)

    def fitting(self, rows: Array, counts: Array) -> InLayouts | None:
        """The layouts of these shapes on so many chips that the devices hold."""
        rows = rows[self.holds_weights[rows]]
        if not len(rows):
            return None
        pairs = self._pairs(rows, counts)
        pair, batch, least, most = self._batches(pairs)
        if not len(pair):
            return None
        fixed = self.problem.request.fixed_mesh.remat
        remats = np.array([i for i, remat in enumerate(self.problem.grid.remats) if fixed in (None, remat)])
        names = np.array(self.problem.grid.remats)[remats]
        most_whole, most_of_part = self._most_at_once(pairs, names[:, None])
        at_once = self._tokens_at_once(batch, pairs.unit[pair], most_whole[:, pair], most_of_part[:, pair])
        i, j = np.nonzero(at_once)
        if not len(j):
            return None
        return InLayouts(
            **vars(pairs.part(pair[j])),
            batch_tokens=batch[j],
            microbatch_tokens=at_once[i, j],
            remat=remats[i],
            least=least[j],
            most=most[j],
        )

    def _pairs(self, rows: Array, counts: Array) -> OnMeshes:
        """The shapes on all meshes that divide them and hold their weights."""
        problem = self.problem
        chips = problem.chips
        request = problem.request.fixed_mesh
        sizes = [
            (count, *sizes)
            for count in counts.tolist()
            for sizes in grid_lib.meshes(count * chips.chip.devices, problem.grid.models, request.expert, request.model)
        ]
        count, data, expert, model = np.array(sizes, int).reshape(-1, 4).T
        shape = take(self.models.shape, rows[:, None])
        sequence = sequence_of(problem.law, self.models.as_published)
        has_narrow_experts = problem.architecture.granularity != 1
        fits = mesh.divides(shape, sequence, has_narrow_experts, data, expert, model)
        if np.all(np.equal(shape.n_experts, 1)):
            fits = _shortest_expert_axes(fits, count, model)
        # devices hold at least the weights, each a part of those of its model axis
        stored = (shape.routed_weights + shape.dense_weights) / model + shape.embedding_and_head
        fits &= STATE * stored / (data * expert) <= chips.memory_share * chips.device_memory
        could_be_best = np.full((len(rows), len(counts)), True)
        if np.isfinite(self.fastest[rows]).any():
            could_be_best &= self.floor[rows, None] / counts <= self.fastest[rows, None]
        if self.n_tokens is None:
            could_be_best &= self.bound(rows[:, None], counts) <= self.loss_cutoff
        fits &= could_be_best[:, np.searchsorted(counts, count)]
        i, j = np.nonzero(fits)
        group = self._groups(data[j] * expert[j])
        return OnMeshes(self.models, rows[i], count[j], data[j], expert[j], model[j], group)

    def _groups(self, n_rows: Array) -> Array:
        """Tokens of a group on meshes whose n_rows devices share the tokens: a power of two of whole rows."""
        sequence = sequence_of(self.problem.law, self.models.as_published)
        if self.ramp is None:
            return np.full(n_rows.shape, sequence)
        tokens_of_a_device = self.ramp[0][1] // n_rows
        rows = np.maximum(np.minimum(mesh.GROUP_TOKENS, tokens_of_a_device) // sequence, 1)
        return sequence * 2 ** np.floor(np.log2(rows)).astype(int)

    def _batches(self, pairs: OnMeshes) -> tuple[Array, Array, Array, Array]:
        """The batches that are allowed on tokens on which the pairs could be the best.

        Returns:
          (index of the pair, batch, least, most training tokens), [n] each.
        """
        models = self.models
        if self.ramp is None:
            batch, least, most = self._published_batches(pairs)
        else:
            batch, least, most = _batches_of_ramp(pairs, self.ramp)
        least = np.maximum(least, np.floor(models.least_tokens[pairs.row, None]) + 1)
        most = np.floor(np.minimum(most, models.most_tokens[pairs.row, None]))
        tokens = self.most_tokens(pairs.row, pairs.n_chips)[:, None]
        is_allowed = (batch > 0) & (least <= np.minimum(tokens, most))
        if self.n_tokens is not None:
            is_allowed &= tokens <= most
        else:
            is_allowed &= most >= self.problem.tokens_within_hours(self.hours[0], self.fastest[pairs.row, None])
        i, j = np.nonzero(is_allowed)
        if self.n_tokens is None:
            bound = loss_of_shapes(self.problem, models, pairs.row[i], np.minimum(tokens, most)[i, j])
            i, j = i[bound <= self.loss_cutoff], j[bound <= self.loss_cutoff]
        return i, batch[i, j], least[i, j], most[i, j]

    def _published_batches(self, pairs: OnMeshes) -> tuple[Array, Array, Array]:
        """(batch, least, most training tokens) by the recipe of published models, [n, n_batches]."""
        batch = pairs.unit[:, None] * np.array(self.problem.grid.batches, float)
        least, most = rates.tokens_of_batches(self.models.batch_laws, pairs.row, np.log(batch))
        return batch, np.ceil(least), most

    def _most_at_once(self, pairs: OnMeshes, remats: Array) -> tuple[Array, Array]:
        """The most tokens at once that all devices of meshes hold: of (a whole batch, a part of a batch).

        remats: [n_remats, 1]. The results are [n_remats, n].
        """
        layout = Layout(
            batch_tokens=pairs.unit,
            sequence=sequence_of(self.problem.law, self.models.as_published),
            data=pairs.data,
            expert=pairs.expert,
            model=pairs.model,
            remat=remats,
            flash=self.models.as_published,
        )
        memory = memory_by_tokens(self.models.of(pairs.row), layout)
        limit = self.problem.chips.memory_share * self.problem.chips.device_memory
        devices = pairs.data * pairs.expert
        return devices * memory.most_tokens(limit, False), devices * memory.most_tokens(limit, True)

    def _tokens_at_once(self, whole: Array, unit: Array, most_whole: Array, most_of_part: Array) -> Array:
        """The most tokens at once that devices hold: the whole batch, else a part of the first batch; 0 for none.

        A part is the first batch, or half of it, a quarter, ..., of whole units; where that is none, one unit.

        Args:
          whole: Tokens of the batch, [n].
          unit: Of its mesh, [n].
          most_whole, most_of_part: As _most_at_once has them, for each batch.
        """
        first = ramps.first_batch(whole, unit, self.ramp)
        largest = np.where(first < whole, first, whole / 2)
        least_halvings = np.log2(largest / np.maximum(most_of_part, 1.0))
        part = largest / 2 ** np.maximum(np.ceil(least_halvings), 0.0)
        is_whole_units = (part >= unit) & (part % unit == 0)
        one_unit = np.where(unit <= np.minimum(most_of_part, largest), unit, 0.0)
        part = np.where(is_whole_units & (most_of_part >= 1), part, one_unit)
        return np.where(whole <= most_whole, whole, part)


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


def _batches_of_ramp(pairs: OnMeshes, ramp: Ramp) -> tuple[Array, Array, Array]:
    """(largest batch, 0 where the mesh divides none; least, most training tokens) by the recipe of the law's runs."""
    batch = ramps.on_mesh(ramp, pairs.unit).astype(float)
    starts = np.array([start for start, _ in ramp], float)
    least = np.broadcast_to(starts + 1, batch.shape)
    most = np.broadcast_to([*starts[1:], np.inf], batch.shape)
    return batch, least, most
