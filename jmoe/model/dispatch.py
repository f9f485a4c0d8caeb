"""The mixture of experts: the router chooses, and each token's experts add up, with a capacity or without one.

Axes (jmoe/model/__init__.py): D, E, F, J choices of a group, N, S, X.

Groups are part of the config. How the layer is defined, without any of what makes it fast: jmoe/model/moe.py. The fast
ones: jmoe/model/moe_capacity.py and moe_dropless.py.
"""

import jax.numpy as jnp

from jmoe.model import grouped_product, permute, routing, sharding
from jmoe.model.experts import swiglu as swiglu
from jmoe.model.moe_capacity import assign_slots_of_groups, moe_with_capacity
from jmoe.model.moe_dropless import moe_dropless, rows_of_a_block


def mixture(x_ND, router_DE, weights, *, group_tokens=None, capacity_factor=None, block=None, kernel=None, **choice):
    """The sum of each token's chosen experts, weighted by their gates.

    Args:
      x_ND: whole groups of tokens.
      router_DE: float32, over all experts; the router works in float32, the experts in x's dtype.
      weights: gate_EDF, up_EDF, down_EFD of this device's E / X experts, with its share of F on the model axis.
      group_tokens: by default all tokens are one group.
      capacity_factor: C = int(J capacity_factor / E), S at most; None: nothing is dropped; groups affect only metrics.
      block: without a capacity, rows that are worked on at once; 0: all of them, sorted by expert. By default 0 on TPUs
        and GPUs, which have a kernel for such products; on CPUs what moe_dropless.rows_of_a_block says.
      kernel: of sorted rows, "xla" or "tokamax"; by default what grouped_product.kernel_of names for the platform.
      choice: how routing.route chooses.

    Returns:
      y_ND, zero for tokens without an expert, to be summed over the model axis; routing.METRICS as float32 scalars,
      means over the local groups.

    Raises:
      UserError: on a GPU, where nothing is dropped and the package with the kernels is missing.
    """
    n_tokens, n_experts = len(x_ND), router_DE.shape[1]
    group_tokens = group_tokens or n_tokens
    logits_GSE = routing.logits_of(x_ND, router_DE).reshape(-1, group_tokens, n_experts)
    expert_GJ, gate_GJ, metrics = routing.route(logits_GSE, **choice)
    n_groups, top_k = len(expert_GJ), expert_GJ.size // n_tokens

    weights = tuple(weights)
    if capacity_factor is None:
        metrics["drop_rate"] = jnp.zeros(n_groups, jnp.float32)
        if block is None:
            block = rows_of_a_block(n_tokens, top_k, n_experts) if sharding.platform() == "cpu" else 0
        if block == 0 and kernel is None:
            kernel = grouped_product.kernel_of(sharding.platform(), x_ND.dtype, weights[0].shape[1:])
        x_GSD, gate_J = _on_each_device(x_ND, gate_GJ, top_k)
        expert_J = permute.flatten_groups(expert_GJ, top_k)
        y_GSD = moe_dropless(x_GSD, expert_J, gate_J, weights, n_experts, block, kernel)
    else:
        capacity = min(group_tokens, int(expert_GJ.shape[1] * capacity_factor / n_experts))
        choice_GEC, slot_J, metrics["drop_rate"] = assign_slots_of_groups(expert_GJ, n_tokens, n_experts, capacity)
        x_GSD, gate_J = _on_each_device(x_ND, gate_GJ, top_k)
        y_GSD = moe_with_capacity(x_GSD, gate_J, choice_GEC, slot_J, weights)
    return y_GSD[0], {name: _over_groups(metric) for name, metric in metrics.items()}


def _on_each_device(x_ND, gate_GJ, top_k: int):
    """x_GSD and gate_GJ with all tokens as one group, as each device of the model axis has them for its share of F."""
    x_GSD = sharding.vary(x_ND[None], "model")
    return x_GSD, sharding.vary(permute.flatten_groups(gate_GJ, top_k), "model")


def _over_groups(metric_G):
    """The sum over groups of what is counted, the mean of all else."""
    return metric_G.sum(axis=0) if routing.is_count(metric_G) else jnp.mean(metric_G)
