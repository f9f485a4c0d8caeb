"""Width transfer: factors of initial values and of rates, with which a narrow model's best rate is also a wide one's.

The parametrization of Tensor Programs V (Yang et al. 2022, arXiv 2203.03466, Table 3), without multipliers: the scales
of logits, attention and residual branches are in the weights, so that whatever reads a model computes it as any other.
Depth is CompleteP's (Dey et al. 2025, arXiv 2505.01618, alpha = 1). All factors are 1 in the model of
config.mup_base, whose other widths (d_ff, d_expert, heads times head_dim) grow with d_model. The numbers of experts and
of choices have no factor.
"""

from typing import NamedTuple

import jax
import numpy as np

from jmoe.config import weights
from jmoe.config.schema import NEUTRAL, flat, setting


class Rule(NamedTuple):
    """Powers of d_model / config.mup_base.d_model."""

    initial: float  # beside 1 / sqrt(fan_in) of weights.Weight
    adamw: float  # of the rate
    muon: float | None = None  # of the rate; None: Muon leaves the weight to AdamW


INPUT = Rule(0, 0)  # Table 3: input weights and biases
OUTPUT = Rule(-1 / 2, -1)  # Table 3: output weights; a router's outputs, too, are as many at any width
# Table 3: hidden weights. Muon's update of RMS 0.2 has the spectral norm 0.2 sqrt(max(rows, columns)), and that norm is
# to stay as it is while both grow (Yang, Simon & Bernstein 2023, arXiv 2310.17813, Condition 1)
HIDDEN = Rule(0, -1, -1 / 2)
RULES = {"embedding": INPUT, "norm": INPUT, "bias": INPUT, "router": OUTPUT, "head": OUTPUT}  # by role; else HIDDEN
ENDS = "out", "down", "shared_down"  # of residual branches, which are divided by n_blocks / mup_base.n_blocks


def factors(config) -> tuple[dict, dict] | None:
    """(of initial values, of rates), each a tree like weights.table of what multiplies that weight; None for
    config.parametrization = "standard"."""
    values, model = NEUTRAL | flat(config), config.model
    if values["parametrization"] == "standard":
        return None
    width, depth = (model[name] / values[f"mup_base.{name}"] for name in ("d_model", "n_blocks"))
    # scores are divided by the head size instead of its root (Definition 4.1), by smaller queries or their norm's scale
    queries = (values["mup_base.head_dim"] / weights.heads(model)[2]) ** 0.5
    both = dict.fromkeys(ENDS, 1 / depth)
    if setting(model, "qk_norm") != "none":
        both["q_norm"] = queries
    else:
        both |= {"q": queries, "qkv": np.reshape([queries, 1, 1], (3, 1, 1)).astype(np.float32)}

    def tree(power):
        of = lambda path, weight: both.get(path[-1].key, 1.0) * width ** power(RULES.get(weight.role, HIDDEN))
        return jax.tree_util.tree_map_with_path(of, weights.table(model))

    by_muon = values["optimizer.name"] == "muon"
    rate = lambda rule: rule.muon if by_muon and rule.muon is not None else rule.adamw
    return tree(lambda rule: rule.initial), tree(rate)
