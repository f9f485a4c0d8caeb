"""The Switch layer: top-1 routing under a capacity, sort-based dispatch into fixed buffers, combine by gather.

Axis legend: G groups, S tokens of a group, E experts, C capacity (slots of an expert in a group), K = E C slots,
D d_model, F d_ff, X devices on the expert axis.

Groups are part of the config. A group's tokens are served in their order; those past an expert's capacity are dropped:
the layer adds nothing to them and the residual carries them on (Fedus et al. 2021).
"""

import jax
import jax.numpy as jnp

# Of one layer: the two losses before their weights, share of tokens dropped, entropy of the router in nats, tokens of
# the busiest and the idlest expert of a group over the fair share.
METRICS = ("load_balance", "router_z", "drop_rate", "router_entropy", "max_load", "min_load")


def logits_of(x_D, router_DE):
    """Router logits [..., E], in true float32 whatever the backend's default for matrices is."""
    return jnp.matmul(x_D.astype(jnp.float32), router_DE, precision=jax.lax.Precision.HIGHEST)


def count(expert_GS, n_experts: int):
    """How many of a group's tokens chose each expert, int32 [G, E]."""
    return jnp.sum(jax.nn.one_hot(expert_GS, n_experts, dtype=jnp.int32), axis=1)


def route(logits_GSE):
    """Top-1 routing in float32.

    Returns:
      expert_GS: the chosen expert; gate_GS: its softmax probability, not renormalised, so that the router learns from
      the language-model loss; and per group, before anything is dropped, balance_G = E sum_e mean_s(prob) fraction_e,
      z_G = mean_s logsumexp^2, entropy_G = mean_s entropy of the router (nats), load_GE = fraction of tokens.
    """
    n_experts = logits_GSE.shape[-1]
    expert_GS = jnp.argmax(logits_GSE, axis=-1)
    # softmax, logsumexp and log_softmax by one exponential
    max_GS = jax.lax.stop_gradient(jnp.max(logits_GSE, axis=-1))
    shifted_GSE = logits_GSE - max_GS[:, :, None]
    exp_GSE = jnp.exp(shifted_GSE)
    norm_GS = jnp.sum(exp_GSE, axis=-1)
    prob_GSE = exp_GSE / norm_GS[:, :, None]
    gate_GS = jnp.max(prob_GSE, axis=-1)
    load_GE = count(expert_GS, n_experts) / expert_GS.shape[1]
    balance_G = n_experts * jnp.sum(jnp.mean(prob_GSE, axis=1) * load_GE, axis=-1)
    z_G = jnp.mean((jnp.log(norm_GS) + max_GS) ** 2, axis=-1)
    entropy_G = jnp.mean(jnp.log(norm_GS) - jnp.sum(prob_GSE * shifted_GSE, axis=-1), axis=-1)
    return expert_GS, gate_GS, balance_G, z_G, entropy_G, load_GE


def assign(expert_GS, n_experts: int, capacity: int):
    """Slots by a sort: each expert serves its tokens in their order until it is full.

    Returns:
      token_of_slot_GK: the token in each slot, S where the slot is empty;
      slot_of_token_GS: the slot of each token, K where the token is dropped.
    """
    n_tokens = expert_GS.shape[1]
    # keys of expert and token (their product stays below 2^31) sort quicker than stable pairs
    order_GS = jnp.sort(expert_GS * n_tokens + jnp.arange(n_tokens), axis=-1, stable=False) % n_tokens
    rank_GS = jnp.argsort(order_GS, axis=-1)
    count_GE = count(expert_GS, n_experts)
    first_GE = jnp.cumsum(count_GE, axis=-1) - count_GE

    position_GS = rank_GS - jnp.take_along_axis(first_GE, expert_GS, axis=-1)
    slot_of_token_GS = jnp.where(position_GS < capacity, expert_GS * capacity + position_GS, n_experts * capacity)

    position_C = jnp.arange(capacity)
    sorted_GEC = jnp.minimum(first_GE[:, :, None] + position_C, n_tokens - 1)
    token_GK = jnp.take_along_axis(order_GS, sorted_GEC.reshape(len(expert_GS), -1), axis=-1)
    full_GK = (position_C < count_GE[:, :, None]).reshape(token_GK.shape)
    return jnp.where(full_GK, token_GK, n_tokens), slot_of_token_GS


@jax.custom_vjp
def move(x_GID, source_GO, inverse_GI):
    """y[g, o] = x[g, source[g, o]], zero where source is out of range; `inverse` is the way back.

    The gradient is the same gather along `inverse`, never a scatter-add.
    """
    return jnp.take_along_axis(x_GID, source_GO[:, :, None], axis=1, mode="fill", fill_value=0)


def _move_forward(x_GID, source_GO, inverse_GI):
    return move(x_GID, source_GO, inverse_GI), (source_GO, inverse_GI)


def _move_backward(residual, dy_GOD):
    source_GO, inverse_GI = residual
    return move(dy_GOD, inverse_GI, source_GO), None, None


move.defvjp(_move_forward, _move_backward)


def experts(x_END, gate_EDF, up_EDF, down_EFD):
    """SwiGLU of every expert on its own N rows."""
    hidden_ENF = jax.nn.silu(x_END @ gate_EDF) * (x_END @ up_EDF)
    return hidden_ENF @ down_EFD


def switch(x_ND, router_DE, gate_EDF, up_EDF, down_EFD, *, group_tokens: int, capacity_factor: float):
    """Switch layer on one device's tokens and its share of the experts; runs inside sharding.per_device.

    Args:
      x_ND: whole groups of tokens.
      router_DE: float32, over all experts; the router works in float32, the experts in x's dtype.
      gate_EDF, up_EDF, down_EFD: this device's E / X experts, and of F its share on the model axis.
      capacity_factor: C = int(S capacity_factor / E), S at most.

    Returns:
      y_ND, zero for dropped tokens, to be summed over the model axis; METRICS as float32 scalars, means over the local
      groups.
    """
    n_experts, d_model = router_DE.shape[1], x_ND.shape[1]
    capacity = min(group_tokens, int(group_tokens * capacity_factor / n_experts))
    x_GSD = x_ND.reshape(-1, group_tokens, d_model)
    expert_GS, gate_GS, balance_G, z_G, entropy_G, load_GE = route(logits_of(x_GSD, router_DE))
    token_of_slot_GK, slot_of_token_GS = assign(expert_GS, n_experts, capacity)

    slots_GKD = move(x_GSD, token_of_slot_GK, slot_of_token_GS)
    slots_GECD = slots_GKD.reshape(-1, n_experts, capacity, d_model)
    spread = jax.lax.axis_size("expert") > 1
    if spread:  # every expert's slots to its device: [G, E, C, D] -> [G X, E / X, C, D]
        slots_GECD = jax.lax.all_to_all(slots_GECD, "expert", split_axis=1, concat_axis=0, tiled=True)
    n_groups, n_local = slots_GECD.shape[:2]
    slots_END = slots_GECD.swapaxes(0, 1).reshape(n_local, n_groups * capacity, d_model)
    slots_END = experts(slots_END, gate_EDF, up_EDF, down_EFD)
    slots_GECD = slots_END.reshape(n_local, n_groups, capacity, d_model).swapaxes(0, 1)
    if spread:
        slots_GECD = jax.lax.all_to_all(slots_GECD, "expert", split_axis=0, concat_axis=1, tiled=True)
    y_GSD = move(slots_GECD.reshape(slots_GKD.shape), slot_of_token_GS, token_of_slot_GK)
    # an einsum, so that the gate's gradient is one too: XLA's CPU backend is slow at sums of products in one group
    y_GSD = jnp.einsum("gsd,gs->gsd", y_GSD, gate_GS.astype(y_GSD.dtype))

    drop_G = jnp.mean(slot_of_token_GS == n_experts * capacity, axis=-1, dtype=jnp.float32)
    load_GE *= n_experts
    metrics = (balance_G, z_G, drop_G, entropy_G, jnp.max(load_GE, axis=-1), jnp.min(load_GE, axis=-1))
    return y_GSD.reshape(x_ND.shape), dict(zip(METRICS, map(jnp.mean, metrics)))


def dropless(x_ND, router_DE, gate_EDF, up_EDF, down_EFD, *, block: int = 256):
    """The same layer with nothing dropped, for evaluation: all E experts here, a block of an expert's tokens at a time.

    Each expert's tokens fill up whole blocks, so N tokens cost at most N + E `block` rows of one expert.

    Returns:
      y_ND, to be summed over the model axis.
    """
    n_tokens, n_experts = len(x_ND), router_DE.shape[1]
    block = min(block, n_tokens)
    prob_NE = jax.nn.softmax(logits_of(x_ND, router_DE))
    expert_N, gate_N = jnp.argmax(prob_NE, axis=-1), jnp.max(prob_NE, axis=-1)
    count_E = jnp.sum(jax.nn.one_hot(expert_N, n_experts, dtype=jnp.int32), axis=0)
    end_E = jnp.cumsum(-(-count_E // block))  # in blocks
    n_blocks = n_tokens // block + n_experts
    expert_of_block = jnp.minimum(jnp.searchsorted(end_E, jnp.arange(n_blocks), side="right"), n_experts - 1)

    order_N = jnp.argsort(expert_N, stable=True)
    first_E = jnp.cumsum(count_E) - count_E
    rank_N = jnp.argsort(order_N) - first_E[expert_N]  # a token's place in the queue of its expert
    slot_N = (end_E - -(-count_E // block))[expert_N] * block + rank_N
    token_K = jnp.full(n_blocks * block, n_tokens).at[slot_N].set(jnp.arange(n_tokens))
    slots = jnp.take(x_ND, token_K, axis=0, mode="fill", fill_value=0).reshape(n_blocks, block, -1)

    def one_block(args):
        rows, e = args
        return experts(rows, gate_EDF[e], up_EDF[e], down_EFD[e])

    y = jax.lax.map(one_block, (slots, expert_of_block)).reshape(n_blocks * block, -1)
    return y[slot_N] * gate_N[:, None].astype(y.dtype)
