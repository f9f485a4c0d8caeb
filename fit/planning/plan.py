"""A plan: the best model of a law within limits, and all that is known of it.

Losses are in nats per token, memory is in bytes, money in dollars. Fields stand in the order of the JSON that
`fit plan --json` prints.
"""

import dataclasses

from fit.aliases import Json
from fit.fitted_law.extrapolation import Outside
from fit.model import serving
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.chips_used import ChipsUsed
from fit.planning.chosen.cost import Energy
from fit.planning.chosen.optimum import BestOfWidth, Infeasible, Optimum
from fit.planning.context.dense_models import DenseComparison, RuleOfThumb
from fit.planning.context.other_budget import OtherBudget
from fit.planning.context.repeats import Repeats
from fit.planning.inputs.problem import Problem
from fit.planning.search.target import Target
from fit.planning.several_laws.on_reference_model import ReferencePlans
from fit.planning.uncertainty.odds import Odds
from fit.results import NOT_IN_JSON, WithFindings, optional
from fit.task_maps.maps import Expected


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Plan(WithFindings):
    """The best model of a law within limits.

    Attributes:
      law: Name of the law.
      form: Form of the law.
      vocab_size, width_per_block, final_norm: Of the models.
      granularity, shared, n_dense, kv_share, active_width, attention, head_dim, ff, tied, counts_routed_experts: Of the
        models, as fit.model.architecture.Architecture has them; None for models of the paper's architecture.
      constraints: {name: value} of the limits.
      optima: The best model with each number of experts, an Optimum each.
      infeasible: Numbers of experts with which no model is feasible, and why.
      best: The one of the optima that is recommended: of the least expected loss or, with --target_loss, the cheapest.
      buildable: The model to train; None where no model of whole blocks is within the limits.
      odds: How sure the number of experts is.
      loss_of_token_cap: Nats per token that the cap on tokens costs; None without a cap or a budget.
      dense: The best dense model, to compare with.
      rule_of_thumb: The paper's rule of thumb, for 2 to 8 experts.
      base_config: The config file that the recipe starts from.
      overrides: {field of the config: value as Python source} on top of it.
      extrapolation: Values of the best outside what the law was fitted to.
      best_at_edge: Whether the best number of experts is the largest or the smallest compared.
      target: The least budget that reaches --target_loss.
      repeats: What it is worth to read the text several times.
      clock: What the other budget would choose, hours or FLOPs; only where speeds are modelled.
      chips: The chips to train on.
      architectures: The best of each architecture, where --shape has several values of used.
      like: The model to start from, and what laws say of it.
      emitted: Path of the config that was written.
      options: The options of `fit plan` that were given, from which --plan of fit report makes this plan again.
      energy: What the training takes from the grid; None without chips, or where their power is not published.
      tasks: Accuracies that the model to train is expected to reach; only with task_map.
      tasks_note: What to know of them; "" for nothing.
      problem: What it solves.
    """

    law: str
    form: str
    vocab_size: int
    width_per_block: int
    final_norm: bool
    granularity: float | None = optional()
    shared: int | None = optional()
    n_dense: int | None = optional()
    kv_share: float | None = optional()
    active_width: float | None = optional()
    attention: float | None = optional()
    head_dim: int | None = optional()
    ff: float | None = optional()
    tied: bool | None = optional()
    counts_routed_experts: bool | None = optional()
    constraints: Json
    optima: list[Optimum]
    infeasible: list[Infeasible]
    best: Optimum
    buildable: Buildable | None
    odds: Odds
    loss_of_token_cap: float | None = optional()
    dense: DenseComparison | None = optional()
    rule_of_thumb: list[RuleOfThumb] | None = optional()
    base_config: str | None
    overrides: dict[str, str]
    extrapolation: list[Outside]
    best_at_edge: bool
    target: Target | None = optional()
    repeats: Repeats | None = optional()
    clock: OtherBudget | None = optional()
    chips: ChipsUsed | None = optional()
    architectures: list[BestOfWidth] | None = optional()
    like: ReferencePlans | None = optional()
    emitted: str | None = optional()
    energy: Energy | None = optional()
    options: Json | None = optional()
    tasks: list[Expected] | None = optional()
    tasks_note: str | None = optional()
    problem: Problem | None = dataclasses.field(default=None, compare=False, metadata=NOT_IN_JSON)

    @property
    def title(self) -> str:
        """The result in a few words."""
        return f"plan by {self.law}"

    @property
    def speed_label(self) -> str:
        """Where the speeds of models are from, in words."""
        calibration = None if self.problem is None else self.problem.calibration
        return serving.LABEL if calibration is None else calibration.label

    @property
    def n_compared(self) -> int:
        """How many numbers of experts are compared."""
        return len(self.optima) + len(self.infeasible)

    def rows(self) -> list[Json]:
        """One row for each number of experts, with its costs as columns."""
        rows = []
        for optimum in self.optima:
            row = optimum.to_dict()
            row |= row.pop("cost", {})
            serving = row.pop("serving", None)
            if serving:
                for decoding in serving["decoding"]:
                    row[f"decode_tokens_per_second_batch_{decoding['batch']}"] = decoding["decode_tokens_per_second"]
                row["prefill_tokens_per_second"] = serving["prefill_tokens_per_second"]
            rows.append(row)
        return rows

    def names(self) -> list[str]:
        """The fields that to_dict has. `active_width` stands last where only the comparison of architectures has it."""
        names = super().names()
        if self.active_width is not None and self.granularity is None:
            names.remove("active_width")
            names.insert(names.index("architectures") + 1, "active_width")
        return names
