"""The parts of a plan: rows and others as frozen dataclasses.

Losses are in nats per token, memory is in bytes, money in dollars. Fields stand in the order of the JSON that
`fit plan --json` prints.
"""

import dataclasses
from typing import Any

from fit.aliases import Json
from fit.planning import mesh
from fit.planning.problem import Problem
from fit.results import NOT_IN_JSON, Record, WithFindings, optional
from fit.task_maps.maps import Expected

OF_ARCHITECTURES = ("n_experts", "n_active", "n_total", "n_tokens", "loss")  # columns of Plan.architectures


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed(Record):
    """How fast the chips train a model. Each field is [10th percentile, median, 90th percentile].

    Attributes:
      tokens_per_second: Of all chips.
      mfu: Model FLOPs utilisation, with 6 FLOPs for each active parameter and token.
      hours: Of the whole training.
    """

    tokens_per_second: list[float]
    mfu: list[float]
    hours: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshCost(Record):
    """How the chips share a step of the training.

    Attributes:
      data: Size of the data axis.
      expert: Size of the expert axis.
      model: Size of the model axis.
      remat: What the backward pass computes again, as config.remat.
      group_tokens: Tokens that share the experts' capacity.
      sent_bytes: What a device sends in a step of the largest batch.
      sending_share: How long that takes at the peak of the chips' links, over how long the step computes.
      least_bytes: Memory of a device in the smallest step.
      step_bytes: Memory of a device in a step of the largest batch; None where the batch is not known.
      chips: The chips used or, with --shape=paper, the fewest that hold the smallest step; None where no number does.
      tokens_at_once: Tokens of a step that the chips hold at once.
      device_memory: Memory of a device.
    """

    data: int
    expert: int
    model: int
    remat: str
    group_tokens: int | None = optional()
    sent_bytes: float | None = optional()
    sending_share: float | None = optional()
    least_bytes: float | None
    step_bytes: float | None
    chips: int | None
    tokens_at_once: int | None = optional()
    device_memory: float | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding(Record):
    """How fast chips decode with a model (fit/planning/serving.py).

    Attributes:
      batch: Sequences decoded at once, which share the cache.
      experts_touched: Routed experts of a mixture that a token of the batch chooses, on average; 1 for a dense model.
      read_bytes: Bytes of weights and cache that a step reads.
      decode_tokens_per_second: Of all sequences together.
      limited_by: "bandwidth" of memory, or "flops".
    """

    batch: int
    experts_touched: float
    read_bytes: float
    decode_tokens_per_second: float
    limited_by: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serving(Record):
    """How fast chips serve a model.

    Attributes:
      label: How the figures are known: "modelled".
      chips: Chips that serve: the fewest, and at least --devices, that hold weights and cache.
      routed_experts: Experts of a mixture that tokens choose from; 1 for a dense model.
      decoding: A row for each batch.
      prefill_tokens_per_second: Tokens of prompts that the chips read.
    """

    label: str
    chips: int
    routed_experts: float
    decoding: list[Decoding]
    prefill_tokens_per_second: float

    def at(self, batch: int) -> Decoding:
        """The row of a batch.

        Raises:
          KeyError: There is no such row.
        """
        for row in self.decoding:
            if row.batch == batch:
                return row
        raise KeyError(batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost(Record):
    """The cost of training and of serving a model.

    Attributes:
      training_hours: On all chips.
      training_dollars: None where no price is given.
      training_bytes: Over the fewest chips that hold the smallest step.
      training_chips: These fewest chips; None where no number holds it.
      serving_chips: The fewest chips, and at least --devices, that hold weights and cache.
      serving: How fast these chips decode and read prompts.
    """

    training_hours: float
    training_dollars: float | None
    training_bytes: float | None
    training_chips: int | None
    serving_chips: int
    serving: Serving


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildableCost(Cost):
    """As Cost, for a model that can be built.

    Attributes:
      step_tokens: Tokens of the largest batch; None where it is not known.
      step_bytes: What a compiled step of that batch takes.
      microbatch_tokens: Tokens that the chips hold at once; None where they hold the whole batch.
      mesh: How the chips share the step; None where no mesh is chosen.
    """

    step_tokens: int | None
    step_bytes: float | None
    microbatch_tokens: int | None
    mesh: MeshCost | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimum(Record):
    """The best model with one number of experts. n_active and d_model are real numbers, not rounded to a model.

    Attributes:
      n_experts: Experts in each layer, as the law counts them; 1 is a dense model.
      n_active: Parameters that a token uses, with embedding and head.
      n_total: All parameters.
      n_tokens: Training tokens.
      loss: Predicted loss.
      d_model: Width.
      size_bound: What fixes the size: "" (nothing), "memory", "chips", "serving", "tokens", "plateau" or "smallest".
      memory_bytes: Of weights and cache when the model is served.
      training_flops: 6 n_active n_tokens.
      inference_flops_per_token: 2 n_active.
      near_optimal_n_active: [least, most] n_active whose loss is within 0.1% of the best plan's; None if none is.
      extrapolation: Values outside what the law was fitted to.
      speed: Its speed; only where speeds are modelled.
      chips: The chips that train it, where some of those given stand idle.
      cost: What it costs; only where chips are given.
    """

    n_experts: int
    n_active: float
    n_total: float
    n_tokens: float
    loss: float
    d_model: float
    size_bound: str
    memory_bytes: float
    training_flops: float
    inference_flops_per_token: float
    near_optimal_n_active: list[float] | None
    extrapolation: list[Json]
    speed: Speed | None = optional()
    chips: int | None = optional()
    cost: Cost | None = optional()

    @property
    def experts_of_law(self) -> Any:
        """The number of experts as the law counts them."""
        return self.n_experts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Infeasible(Record):
    """A number of experts with which no model is feasible, and why."""

    n_experts: int
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buildable(Record):
    """The model to train: whole blocks, heads and experts, with its recipe.

    The fields from d_model to n_dense_blocks are those of the trainer's config.model. The optional ones are None for
    models of the paper's shape.

    Attributes:
      n_experts: As the trainer counts them; with --shape=paper as the law does.
      law_experts: As the law counts them; None with --shape=paper.
      exact_parameters: Every weight, with norms and routers.
      loss_of_building: By how much its loss is above that of the best optimum.
      batch_range: The lowest and the highest batch by the laws of the recipe.
      batch_allowed: The least batch that a plan by hours may choose at these tokens, and the recipe's.
      learning_rate_from, batch_from: Where rate and batch come from.
      rate_note: Why the rate jumps where plans leave the law's runs, in words; "" where it does not.
      layout: How the chips train it; None without chips. In JSON the mesh stands in `cost`.
      loss_interval: [low, high] of its loss, by the law's draws; None without draws.
      interval_of_a_run: Whether the interval holds the noise of a run.
      modelled_speed: Tokens per second in its layout; only where speeds are modelled.
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
    layout: mesh.PlannedLayout | None = optional()
    extrapolation: list[Json]
    loss_interval: list[float] | None = None
    interval_of_a_run: bool = False
    speed: Speed | None = optional()
    cost: BuildableCost | None = optional()
    modelled_speed: float | None = dataclasses.field(default=None, metadata=NOT_IN_JSON)

    @property
    def experts_of_law(self) -> Any:
        """The number of experts as the law counts them."""
        return self.n_experts if self.law_experts is None else self.law_experts

    @property
    def experts_of_trainer(self) -> int:
        """The number of experts as the trainer counts them."""
        return self.n_experts if self.routed_experts is None else self.routed_experts

    @property
    def width_of_expert(self) -> int:
        """d_ff of an expert."""
        return self.d_expert or self.d_ff

    def names(self) -> list[str]:
        """The fields that to_dict has. Of `layout` that is only the None of a model without chips."""
        return [name for name in super().names() if name != "layout" or self.layout is None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertOdds(Record):
    """How one number of experts fares in the draws, each of them with the best model that it allows.

    Attributes:
      n_experts: As the law counts them.
      best_in_draws: In how many draws it is the best.
      expected_loss: Mean over the draws, in nats per token.
      regret: [mean, 90th percentile] of how far it lies above the best of a draw, in nats per token.
      regret_share: The same as a share of the budget: how much more of it reaches such a difference, to first order, by
        how the loss of the recommended number falls with tokens in the mean of the draws.
      regret_hours: The same in hours; None where the hours of the plan are not known.
      behind: [low, high] of how far it lies above the recommended number in the same draw, in nats per token.
      n_active, n_tokens, loss: [low, high] each.
      forms: {additive, coupled: {draws, and the median of each column}} where the draws are of both forms.
    """

    n_experts: int
    best_in_draws: int
    expected_loss: float
    regret: list[float]
    regret_share: list[float]
    regret_hours: list[float] | None = optional()
    behind: list[float]
    n_active: list[float]
    n_tokens: list[float]
    loss: list[float]
    forms: Json | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement(Record):
    """The measurement that would tell the best number of experts better.

    Attributes:
      of: "speeds", of the first two numbers of experts on these chips, or "runs", more of them for the law.
      sure: Share of the draws in which the better of the two would then be chosen.
      settles: Whether that is at least measurement.SURE.
      hours, dollars: What the speeds cost; dollars are None where no price is given.
      runs: How many runs, of the sizes that the law was fitted to.
    """

    of: str
    sure: float
    settles: bool
    hours: float | None = optional()
    dollars: float | None = optional()
    runs: int | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Odds(Record):
    """How sure a plan is, by one set of joint draws of what it does not know. Fields on draws are None without them.

    Attributes:
      drawn: What is drawn: "law", "speed" or both; empty where the plan follows medians alone.
      draws: How many draws.
      draws_without_optimum: Draws of the law that have no optimum, and are left out.
      form, by: How the law's draws were made, and which runs were drawn together.
      source: Where draws of a published law are from, in words; None for those of a fit.
      no_draws: Why a published law has no draws, in words.
      percentiles: Ends of all intervals.
      experts: One row for each number of experts.
      recommended: The number of experts of the least expected loss.
      by_median: The best one by the medians of law and speeds.
      kind: "dense", "mixture" or "undecided"; None where one number of experts is compared.
      mixture_in_draws: In how many draws a mixture is the best.
      settled: Whether the recommended is the best in at least odds.DECIDED of the draws, and no close call.
      second: The number of experts that is recommended next.
      close_call: The first two, where it hardly matters which is chosen: within odds.CLOSE of the loss or CLOSE_BUDGET
        of the budget; else empty.
      differ: {column: [least, most]} of what sets these two apart.
      speed_share: Share of the variance of the difference between the first two that is due to speeds; the rest is
        due to the law.
      bound: What limits the size of one of the first two: "memory", "chips" or "serving"; "" for nothing.
      loss: [low, high] of the loss of the model to build.
      budget_hours: Hours of the budget; None where they are not known.
      hours, dollars: [low, high] of what its training takes at the planned tokens.
      measurement: What to measure; None where nothing is open.
    """

    drawn: list[str]
    draws: int
    draws_without_optimum: int
    form: str | None = optional()
    by: str | None = optional()
    source: str | None = optional()
    no_draws: str | None = optional()
    percentiles: list[float] | None = optional()
    experts: list[ExpertOdds]
    recommended: int
    by_median: int
    kind: str | None
    mixture_in_draws: int | None = optional()
    settled: bool | None
    second: int | None
    close_call: list[int]
    differ: dict[str, list[float]]
    speed_share: float | None = optional()
    bound: str
    loss: list[float] | None = optional()
    budget_hours: float | None = optional()
    hours: list[float] | None = optional()
    dollars: list[float] | None = optional()
    measurement: Measurement | None = optional()

    def row(self, n_experts: float) -> ExpertOdds | None:
        """The row of a number of experts; None where there is none."""
        for row in self.experts:
            if row.n_experts == n_experts:
                return row
        return None

    def most_often_best(self) -> list[ExpertOdds]:
        """The rows that are the best in some draw, those first that are it in most."""
        winners = [row for row in self.experts if row.best_in_draws]
        return sorted(winners, key=lambda row: -row.best_in_draws)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseComparison(Record):
    """The best dense model under the same limits, and what the plan's best saves against it.

    Attributes:
      loss_saved: Nats per token.
      flops_for_the_same_loss: FLOPs with which dense models reach the best's loss; None where no budget is enough.
      flops_saved: Share of these FLOPs that the best saves.
      hours_for_the_same_loss, hours_saved: The same where hours are the budget.
      inference_flops_ratio: FLOPs per served token of the best, over those of the dense model.
    """

    n_experts: int
    n_active: float
    n_tokens: float
    loss: float
    extrapolation: list[Json]
    loss_saved: float
    flops_for_the_same_loss: float | None = optional()
    flops_saved: float | None = optional()
    hours_for_the_same_loss: float | None = optional()
    hours_saved: float | None = optional()
    inference_flops_ratio: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleOfThumb(Record):
    """The paper's rule of thumb (Sec. 4.5) for one number of experts.

    Attributes:
      dense_loss: Loss of the compute-optimal dense model.
      holds: Whether a mixture with its total parameters, on n_experts times its tokens, is better.
      flops_ratio: FLOPs of the mixture over those of the dense model.
    """

    n_experts: int
    n_active: float
    n_tokens: float
    loss: float
    dense_loss: float
    holds: bool
    flops_ratio: float
    extrapolation: list[Json]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetRow(Record):
    """The cheapest model with one number of experts that reaches a loss, or the best model under a budget.

    Attributes:
      flops: Of training and inference together; None where no budget reaches the loss. Other fields are None then.
      hours, dollars: Only where chips are given.
    """

    n_experts: int
    n_active: float | None = optional()
    n_tokens: float | None = optional()
    loss: float | None = optional()
    flops: float | None
    training_flops: float | None = optional()
    inference_flops: float | None = optional()
    hours: float | None = optional()
    dollars: float | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target(Record):
    """The least budget that reaches a loss.

    Attributes:
      loss: The loss to reach.
      optima: The cheapest model with each number of experts.
      best: The cheapest of them.
      front: The best models under budgets from 0.1 to 10 times that of the best.
    """

    loss: float
    optima: list[TargetRow]
    best: TargetRow
    front: list[TargetRow]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepeatedRow(Record):
    """The worth of repeated text to the best model with one number of experts."""

    n_experts: int
    epochs: float
    effective_n_active: float
    effective_tokens: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repeats(Record):
    """The worth of reading the text several times.

    Attributes:
      source: Where the law of repeated text comes from.
      r_d, r_n: Its constants.
      unique_tokens: Tokens of the text.
      optima: One row for each number of experts.
      best: The row of the plan's best.
      loss_saved: Nats per token by which the best is better than the best on a single epoch.
    """

    source: str
    r_d: float
    r_n: float
    unique_tokens: float
    optima: list[RepeatedRow]
    best: RepeatedRow
    loss_saved: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockComparison(Record):
    """The choice of FLOPs in place of hours or, where FLOPs are the budget, hours in place of FLOPs.

    Attributes:
      hours: The budget; where that is FLOPs, what the best model takes.
      label: How the speeds are known.
      by_flops: The best number of experts by FLOPs, as many as the best model in these hours takes.
      by_time: The best number of experts in these hours.
      n_active: Size at which the two numbers of experts are compared: of the best model in these hours or, if that is
        less, of the largest one that the chips train with `by_flops` experts.
      largest: That size, where it is less.
      ratio: How fast that model trains over the best one: [10th percentile, median, 90th percentile].
    """

    hours: float
    label: str
    by_flops: int
    by_time: int
    n_active: float
    largest: float | None = optional()
    ratio: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingChips(Record):
    """The chips to train on.

    Attributes:
      count: How many there are.
      used: How many train the model to build, where the others stand idle.
      mfu: Model FLOPs utilisation, or {n_experts: utilisation}.
      mfu_is_assumed: True where a price is by an MFU that nobody gave.
      dollars_per_hour: Price of one chip.
      devices: Chips that serve the trained model together.
    """

    kind: str
    count: int
    used: int | None = optional()
    mfu: float | dict[int, float]
    mfu_is_assumed: bool | None = optional()
    dollars_per_hour: float | None
    devices: int

    @property
    def in_use(self) -> int:
        """How many train the model to build."""
        return self.count if self.used is None else self.used


@dataclasses.dataclass(frozen=True, kw_only=True)
class Energy(Record):
    """The energy that training takes from the grid, at the full power of the chips, without hosts, network and cooling.

    Attributes:
      kwh: Kilowatt-hours.
      watts: Power of one chip.
    """

    kwh: float
    watts: float


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
      best: The one of the optima that is recommended: that of the least expected loss.
      buildable: The model to train; None where no model of whole blocks is within the limits.
      odds: How sure the number of experts is.
      loss_of_token_cap: Nats per token that the cap on tokens costs; None without a cap.
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
    extrapolation: list[Json]
    best_at_edge: bool
    target: Target | None = optional()
    repeats: Repeats | None = optional()
    clock: ClockComparison | None = optional()
    chips: TrainingChips | None = optional()
    architectures: list[Json] | None = optional()
    like: Json | None = optional()
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
