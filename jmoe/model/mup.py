"""Width transfer (muP): factors on initial values and learning rates that make a narrow model's best rate a wide one's.

The parametrization of Tensor Programs V (Yang et al. 2022, arXiv 2203.03466, Table 3), without multipliers: the scales
of logits, attention and residual branches are in the weights. So export, evaluation and generation need no code for it.
Depth is CompleteP's (Dey et al. 2025, arXiv 2505.01618, alpha = 1). All factors are 1 in the model of
config.mup_base, whose other widths (d_ff, d_expert, heads times head_dim) grow with d_model. The numbers of experts and
of choices have no factor.
"""

import dataclasses

import jax
import numpy as np
from ml_collections import ConfigDict

from jmoe.config import counts
from jmoe.model.param import Description
from jmoe.model.transformer import describe


@dataclasses.dataclass(frozen=True)
class Rule:
    """Powers of d_model / config.mup_base.d_model that multiply initial values and rates.

    Attributes:
      initial: of initial values, beside 1 / sqrt(fan_in).
      adamw: of AdamW's rate.
      muon: of Muon's rate; None: Muon leaves the weight to AdamW.
    """

    initial: float
    adamw: float
    muon: float | None = None

    def rate(self, by_muon: bool) -> float:
        """The power of the rate that the weight has."""
        return self.adamw if self.muon is None or not by_muon else self.muon


INPUT = Rule(0, 0)  # Table 3: input weights and biases
OUTPUT = Rule(-1 / 2, -1)  # Table 3: output weights; a router, too, has the same number of outputs at any width
# Table 3: hidden weights. Muon's update of RMS 0.2 has the spectral norm 0.2 sqrt(max(rows, columns)), and that norm is
# to stay as it is while both grow (Yang, Simon & Bernstein 2023, arXiv 2310.17813, Condition 1)
HIDDEN = Rule(0, -1, -1 / 2)
RULES = {"embedding": INPUT, "norm": INPUT, "bias": INPUT, "router": OUTPUT, "head": OUTPUT}  # by role; else HIDDEN


@dataclasses.dataclass(frozen=True)
class Factors:
    """Trees like transformer.describe of what multiplies the initial values and the rate of each parameter."""

    initial: dict
    rate: dict


def factors(config: ConfigDict) -> Factors | None:
    """The factors of a config; None for config.parametrization = "standard"."""
    model = config.model
    base = config.mup_base
    if config.parametrization == "standard":
        return None
    width = model.d_model / base.d_model
    depth = model.n_blocks / base.n_blocks
    _, _, head_dim = counts.heads(model)
    # attention scores are divided by the head size, not its root (Definition 4.1): the factor is on the weights of
    # queries, or on the scale of their norm
    queries = (base.head_dim / head_dim) ** 0.5
    by_muon = config.optimizer.name == "muon"

    def of_depth_and_queries(description: Description) -> float | np.ndarray:
        kind = description.kind
        if kind.adds_to_residual:
            return 1 / depth
        if kind.n_query_parts == 0:
            return 1.0
        if kind.role == "norm":
            return queries
        n_parts = description.shape[-3]  # of [layers, D, parts, heads, K]
        if kind.n_query_parts == n_parts:
            return queries
        of_parts = [queries] * kind.n_query_parts + [1.0] * (n_parts - kind.n_query_parts)
        return np.reshape(of_parts, (n_parts, 1, 1)).astype(np.float32)

    def initial(description: Description) -> float | np.ndarray:
        rule = RULES.get(description.kind.role, HIDDEN)
        return of_depth_and_queries(description) * width**rule.initial

    def rate(description: Description) -> float | np.ndarray:
        rule = RULES.get(description.kind.role, HIDDEN)
        return of_depth_and_queries(description) * width ** rule.rate(by_muon)

    tree = describe(model)
    return Factors(jax.tree.map(initial, tree), jax.tree.map(rate, tree))
