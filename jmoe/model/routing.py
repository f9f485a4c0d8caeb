"""Routing: which experts a token chooses, with what gates, and what the choices cost the loss.

Axes (jmoe/model/__init__.py): A choices of a token, D, E, G, J choices of a group (first those of all its tokens, then
their second ones), N, S.
"""

import jax
import jax.numpy as jnp

# Of one layer: the two losses before their weights, share of choices dropped, entropy of the router in nats, choices of
# the busiest and the idlest expert of a group over the fair share.
METRICS = ("load_balance", "router_z", "drop_rate", "router_entropy", "max_load", "min_load")


def logits_of(x_D, router_DE):
    """Router logits [..., E], in true float32 whatever the backend's default for matrices is."""
    return jnp.matmul(x_D.astype(jnp.float32), router_DE, precision=jax.lax.Precision.HIGHEST)


def best(score_SE, top_k: int):
    """The `top_k` largest scores and their experts, [..., J] for scores [..., S, E]; the first of equal ones."""
    if top_k == 1:  # quicker than a sort
        return jnp.max(score_SE, axis=-1), jnp.argmax(score_SE, axis=-1)
    by_choice = lambda x_SA: jnp.moveaxis(x_SA, -1, -2).reshape(*x_SA.shape[:-2], -1)
    value_SA, expert_SA = jax.lax.top_k(score_SE, top_k)
    return by_choice(value_SA), by_choice(expert_SA)


def count(expert_J, n_experts: int):
    """How many of the choices [..., J] fell on each expert, int32 [..., E]."""
    return jnp.sum(jax.nn.one_hot(expert_J, n_experts, dtype=jnp.int32), axis=-2)


def route(logits_GSE, top_k: int = 1):
    """The choices of each group, in float32.

    Returns:
      expert_GJ: the chosen experts; gate_GJ: their softmax probabilities, not renormalised, so that the router learns
      from the language-model loss even if it chooses one; and METRICS but for the drop rate, of each group [G]:
      E sum_e mean_s(probability) (share of choices)_e, mean_s logsumexp^2, mean_s entropy, extreme loads.
    """
    n_experts = logits_GSE.shape[-1]
    _, expert_GJ = best(logits_GSE, top_k)
    # softmax, logsumexp and log_softmax by one exponential
    max_GS = jax.lax.stop_gradient(jnp.max(logits_GSE, axis=-1))
    shifted_GSE = logits_GSE - max_GS[:, :, None]
    exp_GSE = jnp.exp(shifted_GSE)
    norm_GS = jnp.sum(exp_GSE, axis=-1)
    prob_GSE = exp_GSE / norm_GS[:, :, None]
    gate_GJ, _ = best(prob_GSE, top_k)
    share_GE = count(expert_GJ, n_experts) / expert_GJ.shape[1]
    load_GE = n_experts * share_GE
    metrics = {
        "load_balance": n_experts * jnp.sum(jnp.mean(prob_GSE, axis=1) * share_GE, axis=-1),
        "router_z": jnp.mean((jnp.log(norm_GS) + max_GS) ** 2, axis=-1),
        "router_entropy": jnp.mean(jnp.log(norm_GS) - jnp.sum(prob_GSE * shifted_GSE, axis=-1), axis=-1),
        "max_load": jnp.max(load_GE, axis=-1),
        "min_load": jnp.min(load_GE, axis=-1),
    }
    return expert_GJ, gate_GJ, metrics
