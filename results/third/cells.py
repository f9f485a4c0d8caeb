"""The runs of the third study, the most valuable first: models, numbers of bytes, configs.

Widths 144, 240, 336 and 480 (1.7M to 60M active parameters), blocks and heads of width 24, rows of 16 bytes, as in the
second study. E = 1, 4 and 16, and 64 at the first two widths, one expert a token, with a capacity. Widths 240 and 336
also have 8 of 64 experts of an eighth of the width. Each model is one trunk with branches at 8M, 24M and 80M bytes, of
8e13 to 3e16 FLOPs. Up to 8M bytes the batch is that of the second study.
"""

import dataclasses

from ml_collections import ConfigDict

from configs import bytes_2026_tuned
from jmoe.config import counts

MILLION = 2**20
TOKENS = (8 * MILLION, 24 * MILLION, 80 * MILLION)
WIDTHS = (144, 240, 336, 480)
EXPERTS = (1, 4, 16)
MANY = 64  # experts of the narrow models and of the fine-grained ones; a checkpoint of wider ones would take 32 GB
FINE = 8  # experts of a token in fine-grained models, each 1 / FINE as wide
# The second study's batch up to the tokens of its largest run; then batches that keep an accelerator busy.
BATCH_TOKENS = ((0, 4_096), (8 * MILLION, 16_384), (24 * MILLION, 32_768))


@dataclasses.dataclass(frozen=True)
class Trunk:
    """A model of the study.

    Attributes:
      d_model: its width.
      n_experts: of a mixture; 1 is dense.
      top_k: experts of a token, each 1 / top_k as wide as the dense layer.
    """

    d_model: int
    n_experts: int
    top_k: int = 1

    @property
    def name(self) -> str:
        """Its name in folders and tables."""
        fine = f"-k{self.top_k}" if self.top_k > 1 else ""
        return f"d{self.d_model}-e{self.n_experts}{fine}"

    def config(self, n_tokens: tuple[int, ...] = TOKENS) -> ConfigDict:
        """The config of the trunk, with a branch for each of n_tokens."""
        config = bytes_2026_tuned.get_config()
        config.data.seq_len = 16
        config.batch_tokens = BATCH_TOKENS
        config.n_tokens = n_tokens
        config.checkpoint_every = 100_000  # more than any segment has: only their ends are saved
        config.log_every = 100
        config.model.dtype = "bfloat16"
        config.model.d_model = self.d_model
        config.model.n_experts = self.n_experts
        if self.top_k > 1:
            config.model.top_k = self.top_k
            config.model.d_expert = 3 * self.d_model // self.top_k
        return config


@dataclasses.dataclass(frozen=True)
class Cell:
    """A branch of a trunk: one run of the study."""

    trunk: Trunk
    n_tokens: int

    @property
    def name(self) -> str:
        """The run's name in tables."""
        return f"{self.trunk.name}-{self.n_tokens}"

    def columns(self) -> dict[str, float]:
        """The columns that a law reads, and the FLOPs."""
        model = self.trunk.config().model
        n_active = counts.n_active(model)
        return dict(
            d_model=self.trunk.d_model,
            n_experts=self.trunk.n_experts,
            top_k=self.trunk.top_k,
            n_active=n_active,
            n_total=counts.n_total(model),
            n_tokens=self.n_tokens,
            flops=6 * n_active * self.n_tokens,
        )


def cells() -> list[Cell]:
    """All runs, in the order in which they are trained.

    After each step of the ladder, all numbers of experts have been trained. Eight minutes suffice for the first five
    steps at 5% of an H200's peak, and for all but the last two at 25%.
    """
    short, middle, long = TOKENS
    ladder = (
        (144, (short, middle)),
        (240, (short, middle)),
        (144, (long,)),
        (336, (short, middle)),
        (240, (long,)),
        (480, (short, middle)),
        (336, (long,)),
        (480, (long,)),
    )
    runs = []
    for d_model, n_tokens in ladder:
        trunks = [Trunk(d_model, n_experts) for n_experts in EXPERTS]
        if d_model in (144, 240):
            trunks.append(Trunk(d_model, MANY))
        if d_model in (240, 336):
            trunks.append(Trunk(d_model, MANY, FINE))
        runs += [Cell(trunk, n) for trunk in trunks for n in n_tokens]
    return runs
