"""How fast chips serve a model: tokens per second of decoding, and of reading prompts (prefill). All of it is modelled.

A step of decoding adds one token to each sequence of a batch. It reads the weights that any of these tokens uses, and
the cache of all sequences:

  seconds = max(bytes read / bandwidth, 2 x batch x active weights / achieved matmul FLOP/s)

A token chooses k of n experts. If tokens choose evenly and independently, a batch touches n (1 - (1 - k / n)^batch) of
them. The weights of all that it touches are then

  n_active + (n_total - n_active) (1 - (1 - k / n)^(batch - 1))

Prefill processes many tokens at once, so it is compute-bound. The embedding is a lookup and has no FLOPs. Ignored are
communication between chips, attention over the prompt, and idle time. serving.js computes the same for the planner
page.
"""

import dataclasses
from typing import Any

import numpy as np

from fit.aliases import Numbers
from fit.model.architecture import INFERENCE
from fit.model.chips import CHIPS
from fit.model.efficiencies import calibrated
from fit.model.shape import ModelShape

BATCHES = (1, 64)  # sequences decoded at once, for which every plan on chips shows the speed
LABEL = "modelled"
# Share of the chips' memory bandwidth that decoding reaches. It is the median (0.27 to 0.72) of ten speeds that
# gpt-fast published: Llama-2-7B, Llama-2-70B and Mixtral-8x7B in bfloat16 at batch 1 on 1 to 8 A100
# (github.com/pytorch-labs/gpt-fast, README.md and mixtral-moe/README.md; tests/data/decoding_speeds.csv).
BANDWIDTH_SHARE = 0.5


def products_share(kind: str) -> float:
    """Share of a chip's peak that its large products reach, by the calibration of training."""
    return calibrated().products_of(kind)


@dataclasses.dataclass(frozen=True)
class ServingChips:
    """Chips that serve a model together.

    Attributes:
      kind: A key of CHIPS.
      count: How many there are.
    """

    kind: str
    count: int

    @property
    def memory(self) -> float:
        """Bytes of all chips."""
        return self.count * CHIPS[self.kind].memory

    @property
    def bandwidth(self) -> float:
        """Bytes/s that decoding reads from the memories of all chips."""
        return self.count * CHIPS[self.kind].bandwidth * BANDWIDTH_SHARE

    @property
    def flops(self) -> float:
        """FLOP/s that products reach on all chips."""
        return self.count * CHIPS[self.kind].flops * products_share(self.kind)


@dataclasses.dataclass(frozen=True)
class Served:
    """A model as serving reads it. Numbers may be arrays, which broadcast together.

    Attributes:
      n_active: Parameters that a token uses, without an embedding that is only looked up.
      n_unused: Parameters that a token does not use, which are those of the experts that it does not choose.
      chosen_share: Routed experts that a token chooses, over all of them; 1 for a dense model.
      bytes_per_parameter: Bytes of a weight.
      cache_bytes: Bytes of the cache of all sequences.
    """

    n_active: Numbers
    n_unused: Numbers
    chosen_share: Numbers
    bytes_per_parameter: float
    cache_bytes: Numbers

    @classmethod
    def of(cls, shape: ModelShape, bytes_per_parameter: float, cache_bytes: Numbers) -> "Served":
        """Models of these shapes as serving reads them."""
        return cls(
            n_active=shape.n_active - shape.looked_up,
            n_unused=shape.n_total - shape.n_active,
            chosen_share=shape.chosen_share,
            bytes_per_parameter=bytes_per_parameter,
            cache_bytes=cache_bytes,
        )

    def step_bytes(self, batch: float) -> Numbers:
        """Bytes that a step of decoding reads: the weights that a batch touches, and the cache."""
        also_touched = 1 - (1 - self.chosen_share) ** (batch - 1)
        weights = self.n_active + self.n_unused * also_touched
        return self.bytes_per_parameter * weights + self.cache_bytes

    def token_flops(self) -> Numbers:
        """FLOPs of a token."""
        return INFERENCE * self.n_active

    def step_seconds(self, batch: float, chips: ServingChips) -> Any:
        """Seconds of a step of decoding, which makes `batch` tokens."""
        reading = self.step_bytes(batch) / chips.bandwidth
        computing = batch * self.token_flops() / chips.flops
        return np.maximum(reading, computing)


def experts_touched(n_experts: Numbers, chosen_share: Numbers, batch: float) -> Numbers:
    """Of n_experts, those that the tokens of a batch choose, on average."""
    return n_experts * (1 - (1 - chosen_share) ** batch)


@dataclasses.dataclass(frozen=True)
class Requirement:
    """How fast a model must decode.

    Attributes:
      tokens_per_second: Of all sequences of a batch together, at least.
      batch: Sequences decoded at once.
      chips: Those that serve.
    """

    tokens_per_second: float
    batch: int
    chips: ServingChips

    @property
    def most_seconds(self) -> float:
        """The longest that a step may take."""
        return self.batch / self.tokens_per_second

    def step_seconds(self, served: Served) -> Any:
        """Seconds of a step of a model."""
        return served.step_seconds(self.batch, self.chips)
