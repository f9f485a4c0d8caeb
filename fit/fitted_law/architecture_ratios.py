"""The architecture of a law's runs as law.json has it: the entry models.architecture."""

import dataclasses
from typing import Annotated

from fit.fitted_law.bounds import Rule, between
from fit.model.architecture import Architecture
from fit.results import Record

# how each follows from the trainer's fields
BY_FIELDS = dict(
    kv_share="n_kv_heads / n_heads",
    attention="n_heads head_dim / d_model",
    ff="d_ff / d_model",
    tied="tied_embeddings",
    granularity="d_ff / d_expert",
    shared="n_shared_experts",
    n_dense="n_dense_blocks",
)


def _up_to(low: float, high: float) -> Rule:
    """The rule of ratios and counts from low to high."""
    return between(low, high, f"a number from {low:g} to {high:g}")


Size = Annotated[float, _up_to(1e-3, 1e3)]  # over d_model
WholeNumber = Annotated[int, _up_to(0, 1e6)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchitectureRatios(Record):
    """The fields of an Architecture that models of all vocabularies and depths share; the defaults are the paper's.

    Attributes:
      kv_share: n_kv_heads / n_heads.
      attention: n_heads head_dim / d_model.
      ff: d_ff / d_model.
      tied: Whether embedding and head are one matrix.
      granularity: d_ff / d_expert.
      top_k: Experts that a token chooses.
      shared: Experts that every token uses.
      n_dense: Blocks without a mixture.
      head_dim: Width of a head; 0 for the width per block.
    """

    kv_share: Annotated[float, _up_to(1e-3, 1)] = 1.0
    attention: Size = 1.0
    ff: Size = 3.0
    tied: bool = False
    granularity: Annotated[float, _up_to(1e-3, 1e6)] = 1.0
    top_k: Annotated[int, _up_to(1, 1e6)] = 1
    shared: WholeNumber = 0
    n_dense: WholeNumber = 0
    head_dim: WholeNumber = 0

    def architecture(self, vocab_size: int, width_per_block: int, final_norm: bool = False) -> Architecture:
        """The Architecture of these ratios."""
        fields = {name: value for name, value in self.items() if name != "top_k"}
        return Architecture(
            vocab_size,
            width_per_block,
            final_norm,
            active_width=(self.top_k + self.shared) / self.granularity,
            counts_routed_experts=True,
            **fields,
        )

    def in_words(self) -> str:
        """The ratios that are not the paper's: "n_kv_heads / n_heads 0.5, top_k 2"."""
        other = [f"{BY_FIELDS.get(name, name)} {self[name]:.4g}" for name in self if self[name] != PAPERS_RATIOS[name]]
        return ", ".join(other) or "in part"


PAPERS_RATIOS = ArchitectureRatios()
