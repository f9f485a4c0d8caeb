"""What chips can train: models of a grid in layouts of a grid, with the seconds of a token of each, as arrays.

A candidate is a shape with its recipe, on a number of chips, a mesh, remat, a batch and tokens at once: all that the
emitted config says. It may be trained on `least` to `most` tokens. There its batch is one that the laws of batch allow,
and its recipe is the law's own or that of published models, whichever a run of such a size has. Its tokens follow from
its own seconds, so nothing is iterated, and more hours never take a candidate away.

Only candidates that could be the best in the hours asked about are evaluated: shapes come in the order of a bound of
their loss, with the tokens that they could have if nothing but products and memory took time, until no bound is below
the best loss found.

Axes: [n_shapes] models of one number of experts, [n] candidates.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array, ByName, Numbers
from fit.fitted_law import own_counts
from fit.fitted_law.law import ROUNDING, Law
from fit.model.efficiencies import Calibration
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from fit.model.step_cost import step_cost
from fit.model.step_counts import memory_of
from fit.planning import grid as grid_lib
from fit.planning import mesh, rates, recipe
from fit.planning.clock import SECONDS
from fit.planning.constraints import Chips, Constraints
from fit.planning.serving import Served
from fit.shape import hardware
from fit.shape.architecture import BATCH_RAMP, INFERENCE, TRAINING, Architecture, Model

BAND = 1e-3  # share of the best loss within which models are near the best
CHUNK = 32  # shapes that are evaluated at a time
IDEAL_BATCH = 2.0**40  # tokens of a step in which nothing counts that a step does once
STATE = 16  # bytes of a parameter that a device keeps at least: weight, two moments, gradient


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is asked: everything that an answer follows from, but the budget.

    Attributes:
      law: What tells losses.
      architecture: How models are built.
      limits: What models must respect. Of these, a budget is not read.
      chips: The chips to train on.
      request: What the user fixes of shape and mesh.
      calibration: What the chips reach.
      grid: What candidates are made of.
    """

    law: Law
    architecture: Architecture
    limits: Constraints
    chips: Chips
    request: grid_lib.ShapeRequest
    calibration: Calibration
    grid: grid_lib.Grid = grid_lib.Grid()

    @property
    def padded(self) -> Architecture:
        """The architecture with the vocabulary that is built."""
        vocab_size = hardware.padded(self.architecture.vocab_size)
        return dataclasses.replace(self.architecture, vocab_size=vocab_size)

    @property
    def cap(self) -> float:
        """The most tokens to train on; infinite without a limit."""
        return math.inf if self.limits.cap is None else float(np.asarray(self.limits.cap))

    def tokens(self, hours: Numbers, seconds_per_token: Numbers) -> Array:
        """Whole training tokens that hours leave beside inference tokens, each a third of one; perhaps negative."""
        served = INFERENCE / TRAINING * self.limits.inference_tokens
        return np.floor(np.minimum(SECONDS * np.asarray(hours) / seconds_per_token - served, self.cap))

    def hours(self, n_tokens: Numbers, seconds_per_token: Numbers) -> Array:
        """Hours of so many training tokens and of the inference tokens."""
        served = INFERENCE / TRAINING * self.limits.inference_tokens
        return (np.asarray(n_tokens) + served) * seconds_per_token / SECONDS


@dataclasses.dataclass(frozen=True)
class Models:
    """The shapes of one number of experts and of one recipe, arrays [n_shapes].

    Attributes:
      shape: Fields of config.model.
      n_active, n_total: Parameters with embedding and head.
      uncounted: Parameters of embedding and head that the law does not count.
      as_published: Whether recipe and style are those of published models, else of the law's runs.
      law_experts: Experts as the law counts them.
      exact_parameters: Every weight, with norms and routers.
      memory_bytes: Of weights and cache when it is served.
      least_tokens, most_tokens: Between these a run of the model has this recipe; above the first, up to the second.
      batch_laws: How the recipe's batch, and the least that is allowed, depend on the training tokens.
      limited_by: "" where the limits allow the model, else the limit that does not: "memory" or "serving".
    """

    shape: ModelShape
    n_active: Array
    n_total: Array
    uncounted: Array
    as_published: bool
    law_experts: float
    exact_parameters: Array
    memory_bytes: Array
    least_tokens: Array
    most_tokens: Array
    batch_laws: rates.BatchLaws
    limited_by: Array

    def of(self, rows: Array) -> ModelShape:
        """The shapes of these rows."""
        return take(self.shape, rows)


def take(shape: ModelShape, rows: Array) -> ModelShape:
    """Rows of a grid of shapes."""
    fields = {field.name: getattr(shape, field.name) for field in dataclasses.fields(shape)}
    return ModelShape(**{name: value[rows] if np.ndim(value) else value for name, value in fields.items()})


def loss_of(
    problem: Problem, models: Models, rows: Array | slice, n_tokens: Array, coefficients: ByName | None = None
) -> Array:
    """The law's loss of shapes on so many tokens, infinite on less than one.

    Args:
      problem: With the law.
      models: The shapes.
      rows: Which of them, [n].
      n_tokens: Of each, [..., n].
      coefficients: By name, in place of the law's; they broadcast with n_tokens.
    """
    law = problem.law
    tokens = np.maximum(n_tokens, 1.0)
    n_active = models.n_active[rows] - models.uncounted[rows]
    coefficients = coefficients or law.coefficients
    if law.closed_form:
        loss = law.chinchilla_coefficients_at(models.law_experts, coefficients).loss(n_active, tokens)
    else:
        n_total = models.n_total[rows] - models.uncounted[rows]
        counts = dict(n_active=n_active, n_total=n_total, n_tokens=tokens)
        loss = law.loss(coefficients, problem.padded.structure(models.law_experts) | counts)
    return np.where(n_tokens >= 1, loss, np.inf)


def models_of(problem: Problem, n_experts: float) -> list[Models]:
    """The models with one number of experts as the law counts them: by the runs' recipe, and by the published one."""
    architecture = problem.architecture
    if not architecture.has_enough_experts(n_experts):
        return []
    routed = nearest_experts(architecture, n_experts)
    found = []
    for as_published in (False, True):
        models = _models(problem, routed, as_published)
        if len(models.exact_parameters):
            found.append(models)
    return found


def nearest_experts(architecture: Architecture, n_experts: float) -> int:
    """The number of experts that the trainer has where the law counts n_experts."""

    def distance(routed: int) -> float:
        """How far the law's count of so many experts is from n_experts."""
        return abs(math.log(hardware.law_experts(architecture, routed) / n_experts))

    return min(hardware.whole_experts(architecture, n_experts), key=distance)


def _models(problem: Problem, routed: int, as_published: bool) -> Models:
    """The models of one recipe. `routed`: experts as the trainer counts them."""
    law = problem.law
    architecture = problem.padded
    style = hardware.style_of(architecture, as_published, problem.request.fixed)
    shape = grid_lib.shapes(problem.grid, architecture, style, routed)
    base, _ = recipe.runs_config(law, False)
    # which recipe a run of each size has
    inside = np.asarray(shape.n_active - shape.embedding_and_head)
    is_large = inside >= rates.SMALLEST
    counts = dict(n_active=shape.n_active, n_total=shape.n_total)
    if not law.counts_embedding:
        counts["n_total"] = shape.n_total - shape.embedding_and_head
    is_beyond = np.full(inside.shape, problem.request.family or base is None)
    for name, values in counts.items():
        if name in law.form.columns and name in law.ranges:
            is_beyond |= values > law.ranges[name][1] * (1 + ROUNDING)
    most_of_runs = math.inf
    if "n_tokens" in law.ranges:
        most_of_runs = law.ranges["n_tokens"][1] * (1 + ROUNDING)
    if as_published:
        kept = is_large & (is_beyond | math.isfinite(most_of_runs))
        least = np.where(is_beyond, 0.0, most_of_runs)
        most = np.full(len(inside), np.inf)
    else:
        kept = ~is_large | ~is_beyond
        least = np.zeros(len(inside))
        most = np.where(is_large, most_of_runs, np.inf)
    rows = np.flatnonzero(kept)
    return _described(problem, take(shape, rows), as_published, least[rows], most[rows])


def of_model(problem: Problem, model: Model, as_published: bool) -> Models:
    """One model of the grid, which may be trained on any tokens by a recipe."""
    fields = model.shape | dict(n_experts=model.n_experts)
    shape = ModelShape.of_config(fields)
    arrays = {name: np.array([getattr(shape, name)], float) for name in (*grid_lib.SHAPE_FIELDS, "n_blocks")}
    shape = dataclasses.replace(shape, **arrays)
    return _described(problem, shape, as_published, np.zeros(1), np.full(1, np.inf))


def _described(problem: Problem, shape: ModelShape, as_published: bool, least: Array, most: Array) -> Models:
    """The Models of shapes. least, most: training tokens between which a run of each has this recipe."""
    limits = problem.limits
    routed = int(np.asarray(shape.n_experts))
    exact = _exact_parameters(shape, problem.padded, as_published)
    cache_bytes = np.asarray(limits.bytes_per_kv_element * shape.kv_elements(limits.kv_tokens))
    memory_bytes = limits.bytes_per_parameter * exact + cache_bytes
    return Models(
        shape=shape,
        n_active=np.asarray(shape.n_active),
        n_total=np.asarray(shape.n_total),
        uncounted=own_counts.uncounted_rows(problem.law, problem.padded) * np.asarray(shape.d_model),
        as_published=as_published,
        law_experts=hardware.law_experts(problem.architecture, routed),
        exact_parameters=exact,
        memory_bytes=memory_bytes,
        least_tokens=least,
        most_tokens=most,
        batch_laws=recipe.batch_laws_of(problem.law, shape),
        limited_by=_limited_by(limits, shape, memory_bytes, cache_bytes),
    )


def _exact_parameters(shape: ModelShape, architecture: Architecture, as_published: bool) -> Array:
    """Every weight of models, with the norms of their recipe."""
    if as_published:  # RMSNorms without bias, also of each head's queries and keys and before the model's head
        norms = shape.n_blocks * 2 * (shape.d_model + shape.head_dim) + shape.d_model
    else:
        norms = (4 * shape.n_blocks + architecture.final_norm) * shape.d_model
    return np.asarray(shape.n_total + shape.routers + norms)


def _limited_by(limits: Constraints, shape: ModelShape, memory_bytes: Array, cache_bytes: Array) -> Array:
    """The limit on the served model that each shape does not respect; "" where it respects them all."""
    found = np.full(memory_bytes.shape, "", dtype=object)
    serving = limits.serving
    if serving is not None:
        served = Served(
            n_active=shape.n_active - shape.looked_up,
            n_unused=shape.n_total - shape.n_active,
            chosen_share=shape.chosen_share,
            bytes_per_parameter=limits.bytes_per_parameter,
            cache_bytes=cache_bytes,
        )
        found[serving.step_seconds(served) > serving.most_seconds] = "serving"
        found[memory_bytes > serving.chips.memory] = "memory"
    if limits.memory_bytes is not None:
        found[memory_bytes > limits.memory_bytes] = "memory"
    return found


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Models in layouts that devices hold, arrays [n].

    Attributes:
      models: The shapes.
      row: Of the shapes.
      chips: Number of chips.
      data, expert, model: The mesh.
      remat: Index in the grid's.
      unit: The fewest tokens that the mesh divides.
      group_tokens: As config.model.group_tokens.
      batch_tokens: Of the largest batch.
      microbatch_tokens: At once.
      seconds_per_token: Of a step of the largest batch, over its tokens.
      least, most: Between these its batch is allowed: from the first, up to the second.
    """

    models: Models
    row: Array
    chips: Array
    data: Array
    expert: Array
    model: Array
    remat: Array
    unit: Array
    group_tokens: Array
    batch_tokens: Array
    microbatch_tokens: Array
    seconds_per_token: Array
    least: Array
    most: Array

    def part(self, rows: Array) -> "Candidates":
        """These candidates."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "models"]
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in names})

    def tokens(self, problem: Problem, hours: Numbers) -> Array:
        """The whole tokens of each in so many hours [...]: [..., n]; 0 where it may not be trained on as few."""
        tokens = problem.tokens(np.asarray(hours)[..., None], self.seconds_per_token)
        tokens = np.minimum(tokens, self.most)
        return np.where((tokens >= self.least) & (tokens >= 1), tokens, 0.0)


def joined(parts: list[Candidates]) -> Candidates:
    """Candidates of the same models together."""
    names = [field.name for field in dataclasses.fields(Candidates) if field.name != "models"]
    return Candidates(parts[0].models, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def least_seconds(problem: Problem, models: Models) -> Array:
    """Seconds of a token on one chip that no layout is below: products and memory alone."""
    chip = problem.chips.chip
    reached = problem.calibration.efficiencies(problem.chips.kind)
    least = np.full(models.exact_parameters.shape, np.inf)
    for remat in problem.grid.remats:
        layout = Layout(
            batch_tokens=IDEAL_BATCH,
            sequence=sequence_of(problem.law, models.as_published),
            remat=remat,
            flash=models.as_published,
        )
        least = np.minimum(least, step_cost(models.shape, layout, chip, reached).seconds)
    return least / IDEAL_BATCH / chip.devices * (1 - 1e-9)


def sequence_of(law: Law, as_published: bool) -> int:
    """Tokens in a row of a recipe."""
    if as_published:
        return recipe.PRETRAIN_SEQUENCE
    return law.models["seq_len"] or recipe.SEQUENCE


def in_hours(
    problem: Problem, models: Models, hours: tuple[float, float], at_most: float = math.inf
) -> Candidates | None:
    """The candidates that could be the best between two numbers of hours, or lose at most BAND more.

    Args:
      problem: What is asked.
      models: The shapes.
      hours: The least and the most.
      at_most: A loss that is reached otherwise in the least hours.

    Returns:
      The candidates; None where there are none.
    """
    search = _Search(problem, models, hours=hours[1], at_most=at_most * (1 + BAND))
    allowed = np.flatnonzero(models.limited_by == "")
    bound = search.bound(allowed, search.counts[-1])
    order = allowed[np.argsort(bound, kind="stable")]
    bound = np.sort(bound, kind="stable")
    found = []
    for start in range(0, len(order), CHUNK):
        if not (bound[start] <= search.at_most and math.isfinite(bound[start])):
            break
        rows = order[start : start + CHUNK]
        for part in search.in_layouts(rows):
            found.append(part)
            losses = loss_of(problem, models, part.row, part.tokens(problem, hours[0]))
            search.at_most = min(search.at_most, float(losses.min()) * (1 + BAND))
    return joined(found) if found else None


def least_losses(problem: Problem, models: Models, rows: Array, hours: float) -> Array:
    """Bounds of the losses of shapes in so many hours."""
    search = _Search(problem, models, hours=hours)
    return search.bound(rows, search.counts[-1])


def on_tokens(problem: Problem, models: Models, rows: Array, n_tokens: Array) -> Candidates | None:
    """The candidates of shapes that may be trained on so many tokens.

    Args:
      problem: What is asked.
      models: The shapes.
      rows: Which of them.
      n_tokens: Of each shape, [n_shapes].

    Returns:
      The candidates; None where there are none.
    """
    search = _Search(problem, models, n_tokens=n_tokens)
    found = list(search.in_layouts(rows))
    return joined(found) if found else None


class _Search:
    """The candidates of one number of experts that could be the best."""

    def __init__(
        self,
        problem: Problem,
        models: Models,
        hours: float = math.inf,
        at_most: float = math.inf,
        n_tokens: Array | None = None,
    ) -> None:
        """Search for candidates.

        Args:
          problem, models: What is asked, and the shapes.
          hours: The most that there are.
          at_most: Candidates that must lose more are left out.
          n_tokens: The tokens of each shape, where they are given.
        """
        self.problem = problem
        self.models = models
        self.hours = hours
        self.at_most = at_most
        self.n_tokens = n_tokens
        chips = problem.chips
        self.counts = np.array(problem.grid.counts_of(chips.chip, chips.count))
        self.floor = least_seconds(problem, models)

    def tokens(self, rows: Array, chips: Numbers) -> Array:
        """The most tokens that shapes could be trained on by so many chips."""
        if self.n_tokens is not None:
            return np.broadcast_arrays(self.n_tokens[rows], chips)[0]
        tokens = self.problem.tokens(self.hours, self.floor[rows] / chips)
        return np.minimum(tokens, self.models.most_tokens[rows])

    def bound(self, rows: Array, chips: Numbers) -> Array:
        """A bound of the loss of shapes on so many chips."""
        return loss_of(self.problem, self.models, rows, self.tokens(rows, chips))

    def in_layouts(self, rows: Array) -> Iterator[Candidates]:
        """The candidates of these shapes whose loss could be at most at_most, by remat."""
        batches = self._with_batches(self._pairs(rows))
        reached = self.problem.calibration.efficiencies(self.problem.chips.kind)
        remats = self.problem.grid.remats
        for i, remat in enumerate(remats):
            if self.problem.request.fixed_mesh.remat not in (None, remat):
                continue
            at_once = self._tokens_at_once(batches, remat)
            held = np.flatnonzero(at_once)
            if not len(held):
                continue
            part = dataclasses.replace(batches.part(held), microbatch_tokens=at_once[held])
            layout = layout_of(self.problem, part, remat)
            seconds = step_cost(self.models.of(part.row), layout, self.problem.chips.chip, reached).seconds
            yield dataclasses.replace(
                part, remat=np.full(len(held), i), seconds_per_token=np.asarray(seconds) / part.batch_tokens
            )

    def _pairs(self, rows: Array) -> Candidates:
        """The shapes on all meshes that divide them and keep their weights."""
        problem = self.problem
        chips = problem.chips
        request = problem.request.fixed_mesh
        sizes = [
            (count, *sizes)
            for count in self.counts.tolist()
            for sizes in grid_lib.meshes(count * chips.chip.devices, problem.grid.models, request.expert, request.model)
        ]
        if not sizes:
            none = np.empty(0, int)
            return _without_batch(self.models, none, np.empty((4, 0), int), none)
        meshes = np.array(sizes).T
        count, data, expert, model = meshes
        shape = take(self.models.shape, rows[:, None])
        fits = self._divides(shape, data, expert, model)
        # weights alone
        stored = shape.routed_weights / (expert * model) + shape.dense_weights / model + shape.embedding_and_head
        fits &= STATE * stored / data <= chips.room * chips.device_memory
        if self.n_tokens is None:
            pairs = [self.bound(rows, n_chips) <= self.at_most for n_chips in self.counts]
            fits &= np.stack(pairs, axis=1)[:, np.searchsorted(self.counts, count)]
        i, j = np.nonzero(fits)
        group = self._groups(data[j] * expert[j])
        return _without_batch(self.models, rows[i], meshes[:, j], group)

    def _divides(self, shape: ModelShape, data: Array, expert: Array, model: Array) -> Array:
        """Whether meshes divide shapes: [n_shapes, n_meshes]."""
        architecture = self.problem.architecture
        is_mixture = bool(np.all(np.greater(shape.n_experts, 1)))
        kinds = mesh.kinds(is_mixture, is_mixture and architecture.granularity != 1, architecture.n_dense > 0)
        values = {
            "model.n_experts": shape.n_experts,
            "model.d_model": shape.d_model,
            "model.n_heads": shape.n_heads,
            "model.n_kv_heads": shape.n_kv_heads,
            "model.d_ff": shape.d_ff,
            "model.d_expert": shape.d_expert,
            "data.seq_len": sequence_of(self.problem.law, self.models.as_published),
        }
        axes = dict(data=data, expert=expert, model=model)
        fits = np.ones(np.broadcast(shape.d_model, data).shape, bool)
        for rule in mesh.DIVISIBILITY["fields"]:
            (axis,) = rule["axes"]
            if rule["of"] in kinds:
                fits &= values[rule["field"]] % axes[axis] == 0
        return fits

    def _groups(self, n_rows: Array) -> Array:
        """Tokens of a group on meshes of which n_rows devices share the tokens: whole rows, a power of two of them."""
        sequence = sequence_of(self.problem.law, self.models.as_published)
        if self.models.as_published:
            return np.full(n_rows.shape, sequence)
        tokens_of_a_device = BATCH_RAMP[0][1] // n_rows
        rows = np.maximum(np.minimum(mesh.GROUP_TOKENS, tokens_of_a_device) // sequence, 1)
        return sequence * 2 ** np.floor(np.log2(rows)).astype(int)

    def _with_batches(self, pairs: Candidates) -> Candidates:
        """The pairs with each batch that is allowed on some tokens which they could have, and could be the best on."""
        models = self.models
        batch, least, most = self._published_batches(pairs) if models.as_published else _batches_of_runs(pairs)
        least = np.maximum(least, np.floor(models.least_tokens[pairs.row, None]) + 1)
        most = np.floor(np.minimum(most, models.most_tokens[pairs.row, None]))
        tokens = self.tokens(pairs.row, pairs.chips)[:, None]
        kept = (batch > 0) & (least <= np.minimum(tokens, most))
        if self.n_tokens is not None:
            kept &= tokens <= most
        i, j = np.nonzero(kept)
        if self.n_tokens is None:
            bound = loss_of(self.problem, models, pairs.row[i], np.minimum(tokens, most)[i, j])
            i, j = i[bound <= self.at_most], j[bound <= self.at_most]
        return dataclasses.replace(pairs.part(i), batch_tokens=batch[i, j], least=least[i, j], most=most[i, j])

    def _published_batches(self, pairs: Candidates) -> tuple[Array, Array, Array]:
        """(batch, least, most tokens of the training) of the recipe of published models, [n, n_batches]."""
        batch = pairs.unit[:, None] * np.array(self.problem.grid.batches, float)
        least, most = rates.tokens_of_batches(self.models.batch_laws, pairs.row, np.log(batch))
        return batch, np.ceil(least), most

    def _tokens_at_once(self, batches: Candidates, remat: str) -> Array:
        """The most tokens at once that devices hold: the whole batch, else a part of its first one; 0 for none."""
        limit = self.problem.chips.room * self.problem.chips.device_memory
        at_once = np.zeros(len(batches.row))
        first = recipe.first_batch(batches.batch_tokens, batches.unit, self.models.as_published)
        trial = batches.batch_tokens
        left = np.arange(len(batches.row))
        while len(left):
            part = dataclasses.replace(batches.part(left), microbatch_tokens=trial)
            needed = memory_of(self.models.of(part.row), layout_of(self.problem, part, remat))
            held = np.asarray(needed) <= limit
            at_once[left[held]] = trial[held]
            is_whole_batch = (trial == part.batch_tokens) & (first[left] < trial)
            trial = np.where(is_whole_batch, first[left], trial / 2)
            more = ~held & (trial % part.unit == 0) & (trial >= part.unit)
            left = left[more]
            trial = trial[more]
        return at_once


def layout_of(problem: Problem, candidates: Candidates, remat: str) -> Layout:
    """The layouts of candidates of one remat."""
    return Layout(
        batch_tokens=candidates.batch_tokens,
        sequence=sequence_of(problem.law, candidates.models.as_published),
        data=candidates.data,
        expert=candidates.expert,
        model=candidates.model,
        microbatch_tokens=candidates.microbatch_tokens,
        remat=remat,
        flash=candidates.models.as_published,
    )


def _without_batch(models: Models, row: Array, meshes: Array, group: Array) -> Candidates:
    """Shapes on meshes, which have no batch yet. meshes: chips, data, expert and model of each, [4, n]."""
    none = np.zeros(len(row))
    chips, data, expert, model = meshes
    return Candidates(
        models=models,
        row=row,
        chips=chips,
        data=data,
        expert=expert,
        model=model,
        remat=none,
        unit=data * expert * group,
        group_tokens=group,
        batch_tokens=none,
        microbatch_tokens=none,
        seconds_per_token=none,
        least=none,
        most=none,
    )


def _batches_of_runs(pairs: Candidates) -> tuple[Array, Array, Array]:
    """(largest batch, 0 where the mesh does not divide one; least, most tokens of the training) of the law's runs."""
    batch = recipe.batches_of_runs(pairs.unit).astype(float)
    starts = np.array([start for start, _ in BATCH_RAMP], float)
    least = np.broadcast_to(starts + 1, batch.shape)
    most = np.broadcast_to([*starts[1:], np.inf], batch.shape)
    return batch, least, most
