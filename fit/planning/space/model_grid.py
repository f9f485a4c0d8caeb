"""The models that a plan chooses from: shapes of a grid with their counts, their recipe and the limits they exceed.

Axes: [n_shapes] models of one number of experts.
"""

import dataclasses
import functools
import math

import numpy as np

from fit.aliases import Array, ByName
from fit.model import hardware
from fit.model.architecture import Architecture, Model, Ramp
from fit.model.shape import ModelShape
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.recipe import which_recipe
from fit.planning.recipe.allowed_batches import BatchLaws, batch_laws_of
from fit.planning.space import shapes


@dataclasses.dataclass(frozen=True)
class ModelGrid:
    """The shapes with one number of experts and one recipe: arrays [n_shapes].

    Attributes:
      architecture: How they are built.
      style: How their shapes follow from their widths; None for whole blocks and heads of the architecture's own shape.
      shape: Fields of config.model, and their counts.
      uncounted: Parameters of embedding and head that the law does not count.
      sequence: Tokens of a row of the recipe.
      ramp: The batches of the law's runs; None by the recipe of published models, whose batches follow from size and
        tokens.
      law_experts: Experts as the law counts them.
      exact_parameters: Every weight, with norms and routers.
      memory_bytes: Bytes of weights and cache when the model is served.
      least_tokens, most_tokens: A run of the model has this recipe on more tokens than the first, up to the second.
      batch_laws: The batches that the recipe allows, by training tokens.
      limited_by: The limit that excludes the model, "memory" or "serving"; "" where none does.
    """

    architecture: Architecture
    style: hardware.Style | None
    shape: ModelShape
    uncounted: Array
    sequence: int
    ramp: Ramp | None
    law_experts: float
    exact_parameters: Array
    memory_bytes: Array
    least_tokens: Array
    most_tokens: Array
    batch_laws: BatchLaws
    limited_by: Array

    @property
    def as_published(self) -> bool:
        """Whether the recipe is that of published models, else of the law's runs."""
        return self.style is not None and self.style.as_published

    @functools.cached_property
    def n_active(self) -> Array:
        """Active parameters with embedding and head."""
        return np.asarray(self.shape.n_active)

    @functools.cached_property
    def n_total(self) -> Array:
        """All parameters with embedding and head."""
        return np.asarray(self.shape.n_total)

    def has_recipe(self, n_tokens: Array) -> Array:
        """Whether a run of each model on n_tokens has this recipe, [n_shapes]."""
        return (n_tokens > self.least_tokens) & (n_tokens <= self.most_tokens)

    def tokens_within_flops(self, constraints: Constraints) -> Array:
        """Whole training tokens that FLOPs leave to each model, [n_shapes]. constraints: with one budget for all."""
        return np.broadcast_to(np.floor(constraints.tokens_within_flops(self.n_active)), self.n_active.shape)

    def of(self, rows: Array) -> ModelShape:
        """The shapes of these rows."""
        return take(self.shape, rows)

    def model(self, row: int) -> Model:
        """One of the models, as the trainer's config has it."""
        width = int(np.asarray(self.shape.d_model)[row])
        n_blocks = int(np.asarray(self.shape.n_blocks)[row])
        if self.style is None:
            return Model(self.architecture, n_blocks, int(self.law_experts), width)
        return hardware.built(self.architecture, self.style, width, n_blocks, int(np.asarray(self.shape.n_experts)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """One model of a grid, with what it is trained on.

    Attributes:
      models: The grid.
      row: Index of the model in it.
      n_tokens: Training tokens.
      loss: Nats per token.
    """

    models: ModelGrid
    row: int
    n_tokens: int
    loss: float

    @property
    def model(self) -> Model:
        """The model as the trainer's config has it."""
        return self.models.model(self.row)

    @property
    def shape(self) -> ModelShape:
        """Its shape."""
        return self.models.of(np.array(self.row))

    @property
    def n_active(self) -> float:
        """Parameters that a token uses, with embedding and head."""
        return float(self.models.n_active[self.row])

    @property
    def n_total(self) -> float:
        """All its parameters."""
        return float(self.models.n_total[self.row])

    @property
    def d_model(self) -> float:
        """Its width."""
        return float(np.asarray(self.models.shape.d_model)[self.row])

    @property
    def memory_bytes(self) -> float:
        """Bytes of weights and cache when the model is served."""
        return float(self.models.memory_bytes[self.row])


def take(shape: ModelShape, rows: Array) -> ModelShape:
    """Rows of a grid of shapes."""
    fields = {field.name: getattr(shape, field.name) for field in dataclasses.fields(shape)}
    return ModelShape(**{name: value[rows] if np.ndim(value) else value for name, value in fields.items()})


def loss_of_shapes(
    problem: Problem, models: ModelGrid, rows: Array | slice, n_tokens: Array, coefficients: ByName | None = None
) -> Array:
    """The law's loss of shapes on n_tokens, infinite on less than one.

    It applies to models that can be built: their own counts are read, less the parameters of embedding and head that
    the law does not count. For sizes without a shape see planned_models.loss_of_sizes.

    Args:
      problem: With the law.
      models: The shapes.
      rows: Which of them, [n].
      n_tokens: Training tokens of each, [..., n].
      coefficients: By name, in place of the law's; they broadcast with n_tokens.
    """
    law = problem.law
    tokens = np.maximum(n_tokens, 1.0)
    n_active = models.n_active[rows] - models.uncounted[rows]
    coefficients = coefficients or law.coefficients
    if law.reduces_to_chinchilla:
        loss = law.chinchilla_coefficients_at(models.law_experts, coefficients).loss(n_active, tokens)
    else:
        n_total = models.n_total[rows] - models.uncounted[rows]
        counts = dict(n_active=n_active, n_total=n_total, n_tokens=tokens)
        loss = law.loss(coefficients, problem.padded_architecture.structure(models.law_experts) | counts)
    return np.where(n_tokens >= 1, loss, np.inf)


def models_of(problem: Problem, n_experts: float) -> list[ModelGrid]:
    """The models with one number of experts as the law counts them, by recipe: that of the runs, then the published."""
    return _by_recipe(problem.shapes_key, float(n_experts))


@functools.lru_cache(maxsize=128)
def _by_recipe(problem: Problem, n_experts: float) -> list[ModelGrid]:
    """As models_of."""
    if not problem.architecture.has_enough_experts(n_experts):
        return []
    routed = nearest_experts(problem.architecture, n_experts)
    by_recipe = [_models(problem, routed, as_published) for as_published in (False, True)]
    return [models for models in by_recipe if len(models.exact_parameters)]


def nearest_experts(architecture: Architecture, n_experts: float) -> int:
    """The trainer's number of experts that the law counts most nearly as n_experts."""

    def distance(routed: int) -> float:
        """Distance, in ln, of the law's count of the routed experts from n_experts."""
        return abs(math.log(hardware.law_experts(architecture, routed) / n_experts))

    return min(hardware.whole_experts(architecture, n_experts), key=distance)


def _models(problem: Problem, routed: int, as_published: bool) -> ModelGrid:
    """The models of one recipe. `routed`: experts as the trainer counts them."""
    architecture = problem.padded_architecture
    request = problem.request
    style = hardware.style_of(architecture, as_published, request.fixed)
    shape = shapes.shapes(problem.grid, architecture, style, routed)
    base, _ = which_recipe.runs_config(problem.law, False)
    has_recipe, least, most = which_recipe.tokens_of_recipe(
        problem.law, architecture, shape, as_published, base, request.like_published
    )
    rows = np.flatnonzero(has_recipe)
    return _described(problem, architecture, style, take(shape, rows), least[rows], most[rows])


def whole_models(problem: Problem, n_experts: float, models: list[Model]) -> ModelGrid:
    """Models of whole blocks and heads of the architecture's own shape, with the recipe of the law's runs."""
    fields = {}
    for name in (*shapes.SHAPE_FIELDS, "n_blocks"):
        fields[name] = np.array([getattr(model.shape, name) for model in models], float)
    shape = dataclasses.replace(models[0].shape, **fields)
    no_tokens = np.zeros(len(models))
    described = _described(problem, problem.architecture, None, shape, no_tokens, no_tokens + np.inf)
    return dataclasses.replace(described, law_experts=n_experts)


def _described(  # noqa: PLR0913  what describes models
    problem: Problem,
    architecture: Architecture,
    style: hardware.Style | None,
    shape: ModelShape,
    least: Array,
    most: Array,
) -> ModelGrid:
    """The ModelGrid of these shapes. least, most: least_tokens and most_tokens of ModelGrid."""
    constraints = problem.constraints
    routed = int(np.asarray(shape.n_experts))
    as_published = style is not None and style.as_published
    final_norm = as_published or architecture.final_norm
    exact = np.asarray(shape.exact_parameters(as_published, final_norm))
    memory_bytes = constraints.bytes_per_parameter * exact + np.asarray(constraints.cache_bytes(shape))
    return ModelGrid(
        architecture=architecture,
        style=style,
        shape=shape,
        uncounted=problem.law.counting.uncounted_rows(architecture) * np.asarray(shape.d_model),
        sequence=which_recipe.sequence_of(problem.law, as_published),
        ramp=None if as_published else which_recipe.batches_of(problem.law),
        law_experts=hardware.law_experts(problem.architecture, routed),
        exact_parameters=exact,
        memory_bytes=memory_bytes,
        least_tokens=least,
        most_tokens=most,
        batch_laws=batch_laws_of(problem.law, shape),
        limited_by=_limited_by(constraints, shape, memory_bytes),
    )


def _limited_by(constraints: Constraints, shape: ModelShape, memory_bytes: Array) -> Array:
    """The limit on the served model that each shape exceeds; "" where it exceeds none."""
    limited_by = np.full(memory_bytes.shape, "", dtype=object)
    serving = constraints.serving
    if serving is not None:
        limited_by[serving.step_seconds(constraints.served(shape)) > serving.most_seconds] = "serving"
        limited_by[memory_bytes > serving.chips.memory] = "memory"
    if constraints.memory_bytes is not None:
        limited_by[memory_bytes > constraints.memory_bytes] = "memory"
    return limited_by
