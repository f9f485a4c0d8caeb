"""What a model costs on chips: hours and dollars of training, its memory, and how fast the model answers."""

import dataclasses

from fit.results import Record, optional


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
    """How fast chips decode with a model (fit/model/serving.py).

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
      training_hours: On the chips that are used.
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
class Energy(Record):
    """The energy that training takes from the grid, at the full power of the chips, without hosts, network and cooling.

    Attributes:
      kwh: Kilowatt-hours.
      watts: Power of one chip.
    """

    kwh: float
    watts: float
