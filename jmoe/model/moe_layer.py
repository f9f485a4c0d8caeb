"""The mixture of experts: a router chooses, and each token's experts add up, with a capacity or without one.

Axes (jmoe/model/__init__.py): D, E, F, G, J choices of a group, N, S, X.

The config sets the groups, so what is dropped does not depend on the mesh. Read jmoe/model/moe.py for the definition of
the layer, without anything that makes it fast. The fast versions are jmoe/model/moe_capacity.py and moe_dropless.py.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jmoe.model import grouped_product, kernels, permute, routing, sharding
from jmoe.model.moe_capacity import assign_slots_of_groups, moe_with_capacity
from jmoe.model.moe_dropless import moe_dropless
from jmoe.model.permute import ExpertWeights


def moe_layer(  # noqa: PLR0913  most are by name
    x_ND: Float[Array, "N D"],
    router_DE: Float[Array, "D E"],
    weights: ExpertWeights,
    *,
    top_k: int = 1,
    group_tokens: int | None = None,
    capacity_factor: float | None = None,
    kernel: str | None = None,
    **routing_options: Any,
) -> tuple[Float[Array, "N D"], dict[str, Array]]:
    """The sum of each token's chosen experts, weighted by their gates.

    Args:
      x_ND: whole groups of tokens.
      router_DE: float32, over all experts; the router works in float32, the experts in x's dtype.
      weights: gate_EDF, up_EDF, down_EFD of this device's E / X experts, with its share of F on the model axis.
      top_k: choices of a token.
      group_tokens: by default all tokens are one group.
      capacity_factor: C = int(S top_k capacity_factor / E), S at most; None: nothing is dropped; groups affect only
        metrics.
      kernel: without a capacity, one that grouped_product.kernel_of names; by default the platform's.
      routing_options: how routing.route chooses, besides top_k.

    Returns:
      y_ND, zero for tokens without an expert, to be summed over the model axis; routing.METRICS as float32 scalars,
      means over the local groups.

    Raises:
      UserError: on a GPU, where nothing is dropped and the package with the kernels is missing.
    """
    n_tokens = len(x_ND)
    n_experts = router_DE.shape[1]
    if group_tokens is None:
        group_tokens = n_tokens
    logits_GSE = routing.router_logits(x_ND, router_DE).reshape(-1, group_tokens, n_experts)
    capacity = None
    if capacity_factor is not None:
        capacity = min(group_tokens, int(group_tokens * top_k * capacity_factor / n_experts))
    expert_GJ, gate_GJ, metrics = routing.route(logits_GSE, top_k=top_k, **routing_options)

    n_choices = expert_GJ.size // n_tokens  # of a token
    x_GSD = sharding.vary(x_ND[None], ("model",))  # each device of the model axis works on its share of F
    gate_J = sharding.vary(permute.flatten_groups(gate_GJ, n_choices), ("model",))
    if capacity is None:
        drop_rate_G = jnp.zeros(len(expert_GJ), jnp.float32)
        if kernel is None:
            kernel = grouped_product.kernel_of(sharding.platform(), x_ND.dtype, weights[0].shape[1:])
        expert_J = permute.flatten_groups(expert_GJ, n_choices)
        y_GSD = moe_dropless(x_GSD, expert_J, gate_J, weights, n_experts, kernel)
    else:
        kernels.note("experts with a capacity", "XLA's batched product")
        slots, drop_rate_G = assign_slots_of_groups(expert_GJ, n_tokens, n_experts, capacity)
        y_GSD = moe_with_capacity(x_GSD, gate_J, slots, weights)
    metrics = {"drop_rate": drop_rate_G} | metrics  # a router that drops tokens itself reports its own drop_rate
    return y_GSD[0], {name: _over_groups(metric) for name, metric in metrics.items()}


def _over_groups(metric_G: Array) -> Array:
    """The sum over groups of what is counted, the mean of all else."""
    return metric_G.sum(axis=0) if routing.is_count(metric_G) else jnp.mean(metric_G)
