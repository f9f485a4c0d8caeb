"""Routing: which experts a token chooses, with what gates, and what the choices cost the loss.

Axes (jmoe/model/__init__.py): A choices of a token, D, E, G, J choices of a group (first those of all its tokens, then
their second ones), N, S.
"""

import jax
import jax.numpy as jnp

# Of one layer: the two losses before their weights, share of choices dropped, entropy of the router in nats, choices of
# a group's busiest and idlest expert, each divided by the fair share.
METRICS = ("load_balance", "router_z", "drop_rate", "router_entropy", "max_load", "min_load")

FIELDS = {"top_k": "top_k", "normalize": "normalize_gates", "scores": "scores"}  # route's argument: config.model's name


def logits_of(x_D, router_DE):
    """Router logits [..., E], in true float32 whatever the backend's default for matrices is."""
    return jnp.matmul(x_D.astype(jnp.float32), router_DE, precision=jax.lax.Precision.HIGHEST)


def best(score_SE, top_k: int):
    """The experts of the `top_k` largest scores, [..., J] for scores [..., S, E]; of equal scores the first."""
    if top_k == 1:  # quicker than a sort
        return jnp.argmax(score_SE, axis=-1)
    return by_choice(jax.lax.top_k(score_SE, top_k)[1])


def by_choice(x_SA):
    """[..., J] of [..., S, A]: the first choices of all tokens, then their second ones."""
    return jnp.moveaxis(x_SA, -1, -2).reshape(*x_SA.shape[:-2], -1)


def count(expert_J, n_experts: int):
    """How many of the choices [..., J] fell on each expert, int32 [..., E]."""
    if n_experts > 32:  # masks of all experts would take longer
        one = lambda expert_J: jnp.zeros(n_experts, jnp.int32).at[expert_J].add(1)
        return jnp.vectorize(one, signature="(j)->(e)")(expert_J)
    return jnp.sum(jax.nn.one_hot(expert_J, n_experts, dtype=jnp.int32), axis=-2)


def queues(expert_GJ, n_experts: int):
    """Each expert's queue of choices, in the order of J.

    Returns:
      order_GJ: the choices of expert 0, then those of expert 1, ...; place_GJ: of each choice in its expert's queue;
      count_GE: the choices of each expert; first_GE: where its queue begins in order_GJ.
    """
    n_choices = expert_GJ.shape[1]
    # one integer for expert and choice (below 2^31) sorts faster than a stable sort of pairs
    order_GJ = jnp.sort(expert_GJ * n_choices + jnp.arange(n_choices), axis=-1, stable=False) % n_choices
    # the inverse of a permutation: a scatter is quicker than a second sort
    inverse = lambda order_J: jnp.zeros_like(order_J).at[order_J].set(jnp.arange(n_choices), unique_indices=True)
    rank_GJ = jnp.vectorize(inverse, signature="(j)->(j)")(order_GJ)
    count_GE = count(expert_GJ, n_experts)
    first_GE = jnp.cumsum(count_GE, axis=-1) - count_GE
    return order_GJ, rank_GJ - jnp.take_along_axis(first_GE, expert_GJ, axis=-1), count_GE, first_GE


def route(logits_GSE, bias_E=None, *, top_k: int = 1, normalize: bool = True, scores: str = "softmax"):
    """The choices of each group, in float32.

    Args:
      bias_E: added to the scores for the choice, not for the gates (Wang et al. 2024, DeepSeek-V3).
      normalize: gates of several choices are divided by their sum. A single choice keeps its score as its gate: with a
        gate of 1 the router would learn nothing from the language-model loss.
      scores: "softmax" or "sigmoid" of the logits.

    Returns:
      expert_GJ: the chosen experts; gate_GJ: their scores, or shares of their sum; and METRICS but drop_rate, of each
      group [G]: load_balance = E sum_e mean_s(share of the token's scores)_e (share of choices)_e, router_z = mean_s
      logsumexp^2, mean_s entropy, extreme loads. With a bias also `chosen`, int32 [G, E]: choices of each expert.
    """
    n_experts = logits_GSE.shape[-1]
    # softmax, logsumexp and log_softmax from one exponential
    max_GS = jax.lax.stop_gradient(jnp.max(logits_GSE, axis=-1))
    shifted_GSE = logits_GSE - max_GS[:, :, None]
    exp_GSE = jnp.exp(shifted_GSE)
    norm_GS = jnp.sum(exp_GSE, axis=-1)
    if scores == "softmax":
        score_GSE = prob_GSE = exp_GSE / norm_GS[:, :, None]
        entropy_GS = jnp.log(norm_GS) - jnp.sum(prob_GSE * shifted_GSE, axis=-1)
    else:
        score_GSE = jax.nn.sigmoid(logits_GSE)
        prob_GSE = score_GSE / (jnp.sum(score_GSE, axis=-1, keepdims=True) + 1e-20)
        entropy_GS = -jnp.sum(jax.scipy.special.xlogy(prob_GSE, prob_GSE), axis=-1)

    expert_GJ = best(logits_GSE if bias_E is None else score_GSE + bias_E, top_k)
    if top_k == 1 and bias_E is None:
        gate_GJ = jnp.max(score_GSE, axis=-1)
    else:
        expert_GSA = expert_GJ.reshape(len(expert_GJ), top_k, -1).swapaxes(1, 2)
        gate_GSA = jnp.take_along_axis(score_GSE, expert_GSA, axis=2)
        if normalize and top_k > 1:
            gate_GSA /= jnp.sum(gate_GSA, axis=2, keepdims=True) + 1e-20  # all sigmoids may be nearly 0
        gate_GJ = by_choice(gate_GSA)

    count_GE = count(expert_GJ, n_experts)
    share_GE = count_GE / expert_GJ.shape[1]
    load_GE = n_experts * share_GE
    metrics = {
        "load_balance": n_experts * jnp.sum(jnp.mean(prob_GSE, axis=1) * share_GE, axis=-1),
        "router_z": jnp.mean((jnp.log(norm_GS) + max_GS) ** 2, axis=-1),
        "router_entropy": jnp.mean(entropy_GS, axis=-1),
        "max_load": jnp.max(load_GE, axis=-1),
        "min_load": jnp.min(load_GE, axis=-1),
    }
    return expert_GJ, gate_GJ, metrics if bias_E is None else metrics | {"chosen": count_GE}


def moved_bias(bias_E, chosen_E, rate: float):
    """bias_E after a step in which each expert got chosen [..., E] choices: `rate` more for experts below the mean,
    `rate` less for those above it (Wang et al. 2024).

    The choices are whole numbers, so that the bias is the same on any mesh and with any number of microbatches.
    """
    mean = jnp.sum(chosen_E, axis=-1, keepdims=True) / chosen_E.shape[-1]
    return bias_E + rate * jnp.sign(mean - chosen_E)


def is_count(metric) -> bool:
    """Whether a metric is summed over groups, devices and microbatches; all others are averaged."""
    return jnp.issubdtype(metric.dtype, jnp.integer)
