"""The mixture of experts: choices sorted into fixed slots of their experts, the experts, and the way back.

Axes (jmoe/model/__init__.py): C slots of an expert, D, E, F, G, J choices of a group, L = E C slots, N, S, X.

Groups are part of the config. An expert serves the choices of a group in the order of J, first choices before second
ones, and drops those past its capacity: they add nothing to their token, which the residual carries on (Fedus et al.
2021).
"""

import functools

import jax
import jax.numpy as jnp

from jmoe.model import routing


def swiglu(x_END, gate_EDF, up_EDF, down_EFD):
    """SwiGLU of every expert on its own N rows; without the axis E, of a dense layer."""
    hidden_ENF = jax.nn.silu(x_END @ gate_EDF) * (x_END @ up_EDF)
    return hidden_ENF @ down_EFD


def assign(expert_GJ, n_experts: int, capacity: int):
    """Slots by a sort: each expert serves its choices in their order until it is full.

    Returns:
      choice_of_slot_GL: the choice in each slot, J where the slot is empty;
      slot_of_choice_GJ: the slot of each choice, L where the choice is dropped.
    """
    n_choices = expert_GJ.shape[1]
    # keys of expert and choice (their product stays below 2^31) sort quicker than stable pairs
    order_GJ = jnp.sort(expert_GJ * n_choices + jnp.arange(n_choices), axis=-1, stable=False) % n_choices
    rank_GJ = jnp.argsort(order_GJ, axis=-1)
    count_GE = routing.count(expert_GJ, n_experts)
    first_GE = jnp.cumsum(count_GE, axis=-1) - count_GE

    position_GJ = rank_GJ - jnp.take_along_axis(first_GE, expert_GJ, axis=-1)
    slot_of_choice_GJ = jnp.where(position_GJ < capacity, expert_GJ * capacity + position_GJ, n_experts * capacity)

    position_C = jnp.arange(capacity)
    sorted_GEC = jnp.minimum(first_GE[:, :, None] + position_C, n_choices - 1)
    choice_GL = jnp.take_along_axis(order_GJ, sorted_GEC.reshape(len(expert_GJ), -1), axis=-1)
    full_GL = (position_C < count_GE[:, :, None]).reshape(choice_GL.shape)
    return jnp.where(full_GL, choice_GL, n_choices), slot_of_choice_GJ


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def move(x_GID, source_GO, target_GP, copies: int = 1):
    """y[g, o] = x[g, source[g, o]], zero where the source is out of range.

    target: where each row of x went, for each of its `copies` in turn, out of range if nowhere: P = copies I. The
    gradient is a gather along it and the sum over the copies, never a scatter-add.
    """
    return _rows(x_GID, source_GO)


def _move_forward(x_GID, source_GO, target_GP, copies):
    return _rows(x_GID, source_GO), target_GP


def _move_backward(copies, target_GP, dy_GOD):
    return sum_choices(_rows(dy_GOD, target_GP), copies), None, None


move.defvjp(_move_forward, _move_backward)


def _rows(x_GID, index_GO):
    return jnp.take_along_axis(x_GID, index_GO[:, :, None], axis=1, mode="fill", fill_value=0)


def sum_choices(x_JD, top_k: int):
    """The sum over the choices of each token: [..., S, D] of rows [..., J, D]."""
    if top_k == 1:
        return x_JD
    *lead, n_choices, d_model = x_JD.shape
    return jnp.sum(x_JD.reshape(*lead, top_k, n_choices // top_k, d_model), axis=-3)


def mixture(x_ND, router_DE, weights, *, group_tokens: int, capacity_factor: float, top_k: int = 1):
    """The sum of each token's chosen experts, weighted by their gates.

    Args:
      x_ND: whole groups of tokens.
      router_DE: float32, over all experts; the router works in float32, the experts in x's dtype.
      weights: gate_EDF, up_EDF, down_EFD of this device's E / X experts, and of F its share on the model axis.
      capacity_factor: C = int(J capacity_factor / E), S at most.

    Returns:
      y_ND, zero for tokens without an expert, to be summed over the model axis; routing.METRICS as float32 scalars,
      means over the local groups.
    """
    n_experts, d_model = router_DE.shape[1], x_ND.shape[1]
    capacity = min(group_tokens, int(group_tokens * top_k * capacity_factor / n_experts))
    x_GSD = x_ND.reshape(-1, group_tokens, d_model)
    expert_GJ, gate_GJ, metrics = routing.route(routing.logits_of(x_GSD, router_DE), top_k)
    choice_of_slot_GL, slot_of_choice_GJ = assign(expert_GJ, n_experts, capacity)
    token_of_slot_GL = choice_of_slot_GL
    if top_k > 1:
        empty_GL = choice_of_slot_GL == expert_GJ.shape[1]
        token_of_slot_GL = jnp.where(empty_GL, group_tokens, choice_of_slot_GL % group_tokens)

    slots_GLD = move(x_GSD, token_of_slot_GL, slot_of_choice_GJ, top_k)
    slots_GLD = _served(slots_GLD.reshape(-1, n_experts, capacity, d_model), weights).reshape(slots_GLD.shape)
    y_GJD = move(slots_GLD, slot_of_choice_GJ, choice_of_slot_GL)
    # an einsum, so that the gate's gradient is one too: XLA's CPU backend is slow at sums of products in one group
    y_GJD = jnp.einsum("gjd,gj->gjd", y_GJD, gate_GJ.astype(y_GJD.dtype))

    metrics["drop_rate"] = jnp.mean(slot_of_choice_GJ == n_experts * capacity, axis=-1, dtype=jnp.float32)
    return sum_choices(y_GJD, top_k).reshape(x_ND.shape), jax.tree.map(jnp.mean, metrics)


def _served(slots_GECD, weights):
    """Every slot after its expert, which may be on another device of the expert axis."""
    spread, (_, _, capacity, d_model) = jax.lax.axis_size("expert") > 1, slots_GECD.shape
    if spread:  # every expert's slots to its device: [G, E, C, D] -> [G X, E / X, C, D]
        slots_GECD = jax.lax.all_to_all(slots_GECD, "expert", split_axis=1, concat_axis=0, tiled=True)
    n_groups, n_local = slots_GECD.shape[:2]
    slots_END = slots_GECD.swapaxes(0, 1).reshape(n_local, n_groups * capacity, d_model)
    slots_END = swiglu(slots_END, *weights)
    slots_GECD = slots_END.reshape(n_local, n_groups, capacity, d_model).swapaxes(0, 1)
    if spread:
        slots_GECD = jax.lax.all_to_all(slots_GECD, "expert", split_axis=0, concat_axis=1, tiled=True)
    return slots_GECD


def dropless(x_ND, router_DE, weights, *, top_k: int = 1, block: int = 256):
    """The same layer with nothing dropped, for evaluation; `weights` are those of all experts.

    One expert serves a block of rows at a time, and its choices fill up blocks: J choices of this device's tokens cost
    at most J + E `block` rows.

    Returns:
      y_ND, to be summed over the model axis.
    """
    n_tokens, n_experts = len(x_ND), router_DE.shape[1]
    block = min(block, n_tokens)
    gate_J, expert_J = routing.best(jax.nn.softmax(routing.logits_of(x_ND, router_DE)), top_k)
    n_choices, count_E = len(expert_J), routing.count(expert_J, n_experts)
    end_E = jnp.cumsum(-(-count_E // block))  # in blocks
    n_blocks = n_choices // block + n_experts
    expert_of_block = jnp.minimum(jnp.searchsorted(end_E, jnp.arange(n_blocks), side="right"), n_experts - 1)

    order_J = jnp.argsort(expert_J, stable=True)
    first_E = jnp.cumsum(count_E) - count_E
    rank_J = jnp.argsort(order_J) - first_E[expert_J]  # a choice's place in the queue of its expert
    slot_J = (end_E - -(-count_E // block))[expert_J] * block + rank_J
    token_L = jnp.full(n_blocks * block, n_tokens).at[slot_J].set(jnp.arange(n_choices) % n_tokens)
    slots = jnp.take(x_ND, token_L, axis=0, mode="fill", fill_value=0).reshape(n_blocks, block, -1)

    def one_block(args):
        rows, e = args
        return swiglu(rows, *(weight[e] for weight in weights))

    y_LD = jax.lax.map(one_block, (slots, expert_of_block)).reshape(n_blocks * block, -1)
    return sum_choices(y_LD[slot_J] * gate_J[:, None].astype(y_LD.dtype), top_k)
