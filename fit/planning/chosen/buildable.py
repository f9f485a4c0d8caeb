"""The model that a plan builds."""

import dataclasses

from fit.fitted_law.extrapolation import Outside
from fit.model.shape import ModelShape
from fit.planning.chosen.cost import BuildableCost
from fit.planning.chosen.modelled_speed import Speed
from fit.planning.chosen.optimum import Optimum
from fit.planning.chosen.planned_layout import PlannedLayout
from fit.planning.recipe.recipe import RateLawRow, Recipe
from fit.results import NOT_IN_JSON, Record, optional


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buildable(Record):
    """The model to train: whole blocks, heads and experts, with its recipe and, on chips, its layout.

    The fields from n_experts to n_dense_blocks are those of the trainer's config.model. The optional ones are None for
    models of the paper's shape. Those from sequence to recipe_note are of the recipe. The trainer starts what is
    emitted of it.

    Attributes:
      law_experts: Its number of experts as the law counts them: perhaps no whole number, where experts are narrow.
      n_active: Parameters that a token uses, with embedding and head.
      n_total: All parameters, without norms and routers.
      exact_parameters: Every weight, with norms and routers.
      n_tokens: Training tokens.
      loss: Predicted loss.
      loss_of_building: By how much its loss is above that of the best optimum.
      memory_bytes: Of weights and cache when it is served.
      training_flops: 6 n_active n_tokens.
      batch_range: The lowest and the highest batch by the laws of the recipe.
      batch_allowed: The least batch that a plan by hours may choose at these tokens, and the recipe's.
      learning_rate_from, batch_from: Where rate and batch come from.
      rate_note: Why the rate jumps where plans leave the law's runs, in words; "" where it does not.
      layout: How the chips train it; None where no layout is chosen. In JSON the mesh stands in `cost`.
      extrapolation: Values outside what the law was fitted to.
      loss_interval: [low, high] of its loss, by the law's draws; None without draws.
      interval_of_a_run: Whether the interval holds the noise of a run.
      speed: How fast the chips train it; only where speeds are modelled.
      cost: What it costs; only where chips are given.
      shape: Its shape, with experts as the trainer counts them.
      chips: How many of the chips train it, where the others stand idle.
      recipe: How it is trained.
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
    top_k: int | None = optional()
    d_expert: int | None = optional()
    n_shared_experts: int | None = optional()
    n_dense_blocks: int | None = optional()
    law_experts: float
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
    recipe_laws: list[RateLawRow]
    recipe_note: str
    layout: PlannedLayout | None
    extrapolation: list[Outside]
    loss_interval: list[float] | None
    interval_of_a_run: bool
    speed: Speed | None = optional()
    cost: BuildableCost | None = optional()
    shape: ModelShape = dataclasses.field(metadata=NOT_IN_JSON)
    chips: int | None = dataclasses.field(metadata=NOT_IN_JSON)
    recipe: Recipe = dataclasses.field(metadata=NOT_IN_JSON)

    @property
    def width_of_expert(self) -> int:
        """d_ff of an expert."""
        return self.d_expert or self.d_ff

    def names(self) -> list[str]:
        """The fields that to_dict has. Of `layout` that is only the None of a model without one."""
        return [name for name in super().names() if name != "layout" or self.layout is None]


# A model that a plan has chosen. Both kinds have counts, loss, memory, shape, speed, chips and cost by the same names.
ChosenModel = Optimum | Buildable
