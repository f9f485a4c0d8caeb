"""The model to build, with its recipe and, on chips, its mesh. The trainer starts it as it is emitted."""

import dataclasses

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import extrapolation
from fit.fitted_law.extrapolation import Outside
from fit.fitted_law.law import Law
from fit.fitted_law.repeated import Repeated
from fit.model import hardware
from fit.model.architecture import Architecture, Model, training_flops
from fit.model.shape import ModelShape
from fit.planning.chosen import cost, modelled_speed, shape_choice
from fit.planning.chosen.cost import BuildableCost, CostedModel
from fit.planning.chosen.modelled_speed import Speed
from fit.planning.chosen.optimum import Optimum
from fit.planning.chosen.planned_layout import PlannedLayout
from fit.planning.chosen.shape_choice import ChosenModel
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import MFU, Chips
from fit.planning.recipe import recipe
from fit.planning.recipe.recipe import Recipe
from fit.results import NOT_IN_JSON, Record, optional


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buildable(Record):
    """The model to train: whole blocks, heads and experts, with its recipe.

    The fields from d_model to n_dense_blocks are those of the trainer's config.model. The optional ones are None for
    models of the paper's shape.

    Attributes:
      n_experts: The number of `experts_of_trainer`; in the paper's shape that of `experts_of_law`. Read those two.
      routed_experts: As the trainer counts them, only in the paper's shape where the law counts them otherwise.
      law_experts: As the law counts them; None in the paper's shape, whose n_experts it is.
      exact_parameters: Every weight, with norms and routers.
      loss_of_building: By how much its loss is above that of the best optimum.
      batch_range: The lowest and the highest batch by the laws of the recipe.
      batch_allowed: The least batch that a plan by hours may choose at these tokens, and the recipe's.
      learning_rate_from, batch_from: Where rate and batch come from.
      rate_note: Why the rate jumps where plans leave the law's runs, in words; "" where it does not.
      layout: How the chips train it; None without chips. In JSON the mesh stands in `cost`.
      loss_interval: [low, high] of its loss, by the law's draws; None without draws.
      interval_of_a_run: Whether the interval holds the noise of a run.
      shape: Its shape, with experts as the trainer counts them.
      n_chips: How many chips train it; None without chips.
      as_published: Whether its recipe is that of published models.
    """

    n_experts: int
    d_model: int
    n_blocks: int
    n_heads: int
    d_ff: int
    vocab_size: int
    n_kv_heads: int | None = optional()
    head_dim: int | None = optional()
    tied_embeddings: bool | None = optional()
    routed_experts: int | None = optional()
    top_k: int | None = optional()
    d_expert: int | None = optional()
    n_shared_experts: int | None = optional()
    n_dense_blocks: int | None = optional()
    law_experts: float | None = optional()
    n_active: int
    n_total: int
    exact_parameters: int
    n_tokens: int
    loss: float
    loss_of_building: float
    memory_bytes: float
    training_flops: float
    exact_forward_flops_per_token: int
    exact_training_flops: float
    sequence: int
    learning_rate: float | None
    learning_rate_range: list[float] | None
    learning_rate_from: str
    rate_note: str
    batch_tokens: list[list[int]] | None
    batch_range: list[float] | None
    batch_allowed: list[float] | None = optional()
    batch_from: str
    warmup_tokens: int | None
    recipe_extrapolation: float
    recipe_laws: list[Json]
    recipe_note: str
    layout: PlannedLayout | None = optional()
    extrapolation: list[Outside]
    loss_interval: list[float] | None = None
    interval_of_a_run: bool = False
    speed: Speed | None = optional()
    cost: BuildableCost | None = optional()
    shape: ModelShape = dataclasses.field(metadata=NOT_IN_JSON)
    n_chips: int | None = dataclasses.field(default=None, metadata=NOT_IN_JSON)
    as_published: bool = dataclasses.field(default=False, metadata=NOT_IN_JSON)

    @property
    def experts_of_law(self) -> float:
        """The number of experts as the law counts them: perhaps no whole number, where experts are narrow."""
        return self.n_experts if self.law_experts is None else self.law_experts

    @property
    def experts_of_trainer(self) -> int:
        """The number of experts as the trainer counts them: config.model.n_experts."""
        return self.n_experts if self.routed_experts is None else self.routed_experts

    @property
    def width_of_expert(self) -> int:
        """d_ff of an expert."""
        return self.d_expert or self.d_ff

    def names(self) -> list[str]:
        """The fields that to_dict has. Of `layout` that is only the None of a model without chips."""
        return [name for name in super().names() if name != "layout" or self.layout is None]


def build(problem: Problem, optima: list[Optimum], best: Optimum) -> tuple[Buildable | None, Recipe | None]:
    """The model of whole blocks and heads to build, with exact counts, speed and cost, and the recipe to train it by.

    Both are None where no model fits.

    Args:
      problem: The problem.
      optima: The best model with each number of experts, in real numbers.
      best: The one of them to build.
    """
    chosen = _chosen(problem, optima, best)
    if chosen is None:
        return None, None
    batches = chosen.layout.ramp if chosen.layout else None
    family = problem.request.family
    as_published = chosen.as_published
    run_recipe = recipe.recipe_of(problem.law, chosen.model, chosen.n_tokens, family, batches, as_published)
    return _built(problem, best, chosen, run_recipe), run_recipe


def _chosen(problem: Problem, optima: list[Optimum], best: Optimum) -> ChosenModel | None:
    """The model to build: by hours the best candidate itself; None where none fits."""
    if best.candidate is not None:
        return shape_choice.of_candidate(best.candidate)
    if problem.has_paper_shape or best.d_model < hardware.NARROW:
        return shape_choice.of_whole_blocks(problem, optima, best)
    return shape_choice.on_grid(problem, optima, best)


def _built(problem: Problem, best: Optimum, chosen: ChosenModel, run_recipe: Recipe) -> Buildable:
    """The model that a plan builds."""
    law = problem.law
    model = chosen.model
    n_active = int(model.shape.n_active)
    n_total = int(model.shape.n_total)
    experts_of_law = model.n_experts if chosen.law_experts is None else chosen.law_experts
    exact_parameters = run_recipe.exact_parameters(model)
    constraints = problem.constraints
    cache_bytes = constraints.bytes_per_kv_element * float(model.shape.kv_elements(constraints.kv_tokens))
    memory_bytes = constraints.bytes_per_parameter * exact_parameters + cache_bytes
    flops = training_flops(n_active, chosen.n_tokens)
    fields: Json = dict(model.fields)
    forward = int(model.shape.forward_flops(run_recipe.sequence))
    shape = _shape(problem, model)
    chips = None
    speed = None
    of_model = None
    if constraints.chips is not None:
        chips, speed = _trained_on(problem, chosen, experts_of_law)
        if speed is None:  # an MFU is that of all chips: also where some stand idle
            price = cost.price_of(problem.chips, flops, experts_of_law)
        else:
            price = cost.price_of_speed(chips, speed)
        costed = CostedModel(
            shape=shape,
            n_active=n_active,
            n_total=n_total,
            n_parameters=exact_parameters,
            memory_bytes=memory_bytes,
            price=price,
        )
        of_model = cost.cost_of_buildable(costed, constraints, chips, chosen.layout, run_recipe)
    as_built = dataclasses.replace(problem.architecture, vocab_size=fields["vocab_size"])
    interval = _interval(law, as_built, chosen, experts_of_law)
    return Buildable(
        n_experts=model.n_experts,
        **fields,
        law_experts=chosen.law_experts,
        n_active=n_active,
        n_total=n_total,
        exact_parameters=exact_parameters,
        n_tokens=chosen.n_tokens,
        loss=chosen.loss,
        loss_of_building=chosen.loss - best.loss,
        memory_bytes=memory_bytes,
        training_flops=flops,
        exact_forward_flops_per_token=forward,
        exact_training_flops=3 * forward * chosen.n_tokens,
        **run_recipe.row(),
        rate_note=recipe.rate_note(law, model, chosen.n_tokens, run_recipe),
        layout=chosen.layout,
        extrapolation=extrapolation.of_model(
            law,
            as_built,
            n_experts=experts_of_law,
            n_active=n_active,
            n_tokens=chosen.n_tokens,
            n_total=n_total,
            shape=(fields["d_model"], fields["n_blocks"]),
        ),
        loss_interval=interval,
        interval_of_a_run=interval is not None and law.noise is not None,
        speed=speed,
        cost=of_model,
        shape=shape,
        n_chips=None if chips is None else chips.count,
        as_published=run_recipe.as_published,
        explicit=() if chosen.law_experts is None else ("layout",),
    )


def _shape(problem: Problem, model: Model) -> ModelShape:
    """The shape of a model as the trainer's config has it."""
    fields: Json = {name: value for name, value in model.fields.items() if value is not None}
    n_experts = fields.get("routed_experts", model.n_experts)
    tied = fields.get("tied_embeddings", problem.architecture.tied)
    return ModelShape.of_config(fields | dict(n_experts=n_experts, tied_embeddings=tied))


def _trained_on(problem: Problem, chosen: ChosenModel, experts_of_law: float) -> tuple[Chips, Speed | None]:
    """The chips that train the model to build, and its speed: in its own layout, else of models of its size.

    The speed is None where none is modelled, or the chips train no such model.
    """
    chips = problem.chips
    if chosen.layout is not None:
        chips = chips.of_layout(chosen.layout)
    if not problem.has_modelled_speeds:
        return chips, None
    n_active = int(chosen.model.shape.n_active)
    if chosen.tokens_per_second is None or chosen.layout is None:
        speed, n_chips = modelled_speed.speed_of_size(problem, experts_of_law, n_active, chosen.n_tokens)
        return problem.chips.with_count(n_chips), speed
    return chips, modelled_speed.speed_of(problem, chips, chosen.tokens_per_second, n_active, chosen.n_tokens)


def modelled_mfu(optima: list[Optimum]) -> dict[int, float]:
    """{n_experts: MFU} of the optima: that of its speed, or the assumed one for an optimum without a speed."""
    return {row.n_experts: row.speed.mfu[1] if row.speed else MFU for row in optima}


def _interval(law: Law, architecture: Architecture, chosen: ChosenModel, experts_of_law: float) -> list[float] | None:
    """The interval of the loss of the model to build, by the law's draws. architecture: with the built vocabulary.

    It is the interval of a new run's loss where the law knows the noise of runs, else of the law's own value. A law
    without draws, or of repeated text, gives none.
    """
    if not law.draws or isinstance(law, Repeated):
        return None
    shape = chosen.model.shape
    uncounted = law.counting.uncounted_rows(architecture) * chosen.model.fields["d_model"]
    columns = architecture.structure(experts_of_law) | dict(
        n_active=int(shape.n_active) - uncounted, n_total=int(shape.n_total) - uncounted, n_tokens=chosen.n_tokens
    )
    columns = {name: columns[name] for name in dict.fromkeys((*law.form.columns, "n_active", "n_tokens"))}
    try:
        low, high = law.predict_interval(**columns, new_run=law.noise is not None)
    except UserError:  # a size beyond any that a table may have, such as that of 20 training tokens
        return None
    return [float(low), float(high)]
