"""The mixture of experts: sorts choices into fixed slots of their experts, runs the experts, moves the results back.

Axes (jmoe/model/__init__.py): C slots of an expert, D, E, F, G, I units of any kind, J choices of a group,
L = E C slots, N, S, X, Z blocks.

Groups are part of the config. An expert serves the choices of a group in the order of J, first choices before second
ones, and drops those beyond its capacity: a dropped choice adds nothing to its token, which the residual carries on
(Fedus et al. 2021).
"""

import functools
import math

import jax
import jax.numpy as jnp

from jmoe.model import routing, sharding

ROOM = 1.5  # times a device's mean load: the rows that _travelled sends to it at once


def swiglu(x_END, gate_EDF, up_EDF, down_EFD, scale_EN1=None):
    """SwiGLU of every expert on its own N rows, times their scales; without the axis E, of a dense layer."""
    hidden_ENF = jax.nn.silu(x_END @ gate_EDF) * (x_END @ up_EDF)
    if scale_EN1 is not None:
        hidden_ENF = scaled(hidden_ENF, scale_EN1)
    return hidden_ENF @ down_EFD


@jax.custom_vjp
def scaled(hidden_NF: jax.Array, scale_N1: jax.Array) -> jax.Array:
    """hidden_NF times the scale of each row; there may be more axes before N.

    JAX's own gradient of a scale, a sum over F, adds in the type of the hidden units. This one adds in float32.
    """
    return hidden_NF * scale_N1


def _scaled_fwd(hidden_NF, scale_N1):
    return hidden_NF * scale_N1, (hidden_NF, scale_N1)


def _scaled_bwd(residual, dy_NF):
    hidden_NF, scale_N1 = residual
    products_NF = dy_NF.astype(jnp.float32) * hidden_NF.astype(jnp.float32)
    dscale_N1 = jnp.sum(products_NF, axis=-1, keepdims=True).astype(scale_N1.dtype)
    return dy_NF * scale_N1, dscale_N1


scaled.defvjp(_scaled_fwd, _scaled_bwd)


def assign(expert_GJ, n_experts: int, capacity: int, start=0):
    """Assigns slots by a sort: each expert serves its choices in their order, from number `start` on, until it is full.

    Returns:
      choice_of_slot_GL: the choice in each slot, J where the slot is empty;
      slot_of_choice_GJ: the slot of each choice, L where the choice is dropped.
    """
    n_choices = expert_GJ.shape[1]
    order_GJ, place_GJ, count_GE, first_GE = routing.queues(expert_GJ, n_experts)
    place_GJ, count_GE, first_GE = place_GJ - start, count_GE - start, first_GE + start
    served_GJ = (place_GJ >= 0) & (place_GJ < capacity)
    slot_of_choice_GJ = jnp.where(served_GJ, expert_GJ * capacity + place_GJ, n_experts * capacity)

    place_C = jnp.arange(capacity)
    sorted_GEC = jnp.minimum(first_GE[:, :, None] + place_C, n_choices - 1)
    choice_GL = jnp.take_along_axis(order_GJ, sorted_GEC.reshape(len(expert_GJ), -1), axis=-1)
    full_GL = (place_C < count_GE[:, :, None]).reshape(choice_GL.shape)
    return jnp.where(full_GL, choice_GL, n_choices), slot_of_choice_GJ


def mixture(x_ND, router_DE, weights, *, group_tokens=None, capacity_factor=None, block=None, **choice):
    """The sum of each token's chosen experts, weighted by their gates.

    Args:
      x_ND: whole groups of tokens.
      router_DE: float32, over all experts; the router works in float32, the experts in x's dtype.
      weights: gate_EDF, up_EDF, down_EFD of this device's E / X experts, with its share of F on the model axis.
      group_tokens: by default all tokens are one group.
      capacity_factor: C = int(J capacity_factor / E), S at most; None: nothing is dropped; groups affect only metrics.
      block: without a capacity, rows that are worked on at once; 0: all of them, sorted by expert. By default 0 on a
        TPU, whose compiler has a kernel for such products (jax.lax.ragged_dot). Others multiply each row by each
        expert: there rows lie in blocks of one expert, of 256 / top_k rows, and for top_k > 1 up to 512 as long as
        padding adds at most a sixteenth to J, since each block reads all of its expert's weights, however few its rows.
      choice: how routing.route chooses.

    Returns:
      y_ND, zero for tokens without an expert, to be summed over the model axis; routing.METRICS as float32 scalars,
      means over the local groups.
    """
    n_tokens, n_experts = len(x_ND), router_DE.shape[1]
    group_tokens = group_tokens or n_tokens
    logits_GSE = routing.logits_of(x_ND, router_DE).reshape(-1, group_tokens, n_experts)
    expert_GJ, gate_GJ, metrics = routing.route(logits_GSE, **choice)
    n_groups, top_k = len(expert_GJ), expert_GJ.size // n_tokens
    if capacity_factor is None:
        metrics["drop_rate"] = jnp.zeros(n_groups, jnp.float32)
        if block is None:
            many = min(512, n_tokens * top_k // (16 * n_experts)) if top_k > 1 else 0
            block = 0 if sharding.platform() == "tpu" else max(min(256, n_tokens) // top_k, min(8, n_tokens), many)
        by_expert = functools.partial(_in_blocks, block) if block else _sorted
        if len(weights[0]) < n_experts:
            by_expert = functools.partial(_travelled, by_expert)
        served = lambda x_GSD, gate_J: by_expert(x_GSD, _together(expert_GJ, top_k), gate_J, tuple(weights))
    else:
        capacity = min(group_tokens, int(expert_GJ.shape[1] * capacity_factor / n_experts))
        choice_GL, slot_GJ = assign(expert_GJ, n_experts, capacity)
        metrics["drop_rate"] = jnp.mean(slot_GJ == n_experts * capacity, axis=-1, dtype=jnp.float32)
        # from here on all tokens are one group, and an expert's slots of all groups lie together
        group_G1 = jnp.arange(n_groups)[:, None]
        turn_GL, token_GL = jnp.divmod(choice_GL, group_tokens)  # an empty slot's turn is top_k
        choice_GEC = (turn_GL * n_tokens + group_G1 * group_tokens + token_GL).reshape(n_groups, n_experts, capacity)
        owner_GJ, place_GJ = jnp.divmod(slot_GJ, capacity)  # a dropped choice's owner is expert E
        slot_J = _together((owner_GJ * n_groups + group_G1) * capacity + place_GJ, top_k)
        in_slots = functools.partial(_in_slots, weights)
        served = lambda x_GSD, gate_J: _gated(x_GSD, gate_J, choice_GEC.swapaxes(0, 1).reshape(1, -1), slot_J, in_slots)
    x_GSD, gate_J = (sharding.vary(a, "model") for a in (x_ND[None], _together(gate_GJ, top_k)))
    over_groups = lambda m: m.sum(axis=0) if routing.is_count(m) else jnp.mean(m)
    return served(x_GSD, gate_J)[0], {name: over_groups(m) for name, m in metrics.items()}


def _together(a_GJ, top_k: int):
    """The choices of all groups as those of one: the first choices of all tokens, then their second ones."""
    return a_GJ.reshape(len(a_GJ), top_k, -1).swapaxes(0, 1).reshape(1, -1)


def _in_slots(weights, rows_GLD, gate_GL1):
    """Passes every slot through its expert, which may be on another device of the expert axis."""
    n_local, n_devices = len(weights[0]), jax.lax.axis_size("expert")
    # [1, X E N, I] -> [E, X N, I]
    by_expert = lambda a_GLI: _exchanged(a_GLI).reshape(n_devices, n_local, -1, a_GLI.shape[2]).swapaxes(0, 1)
    of_expert = lambda a_EXNI: a_EXNI.reshape(n_local, -1, a_EXNI.shape[3])
    rows_EXND, gate_EXN1 = by_expert(rows_GLD), by_expert(gate_GL1)
    slots_END = swiglu(of_expert(rows_EXND), *weights, of_expert(gate_EXN1))
    return _exchanged(slots_END.reshape(rows_EXND.shape).swapaxes(0, 1).reshape(rows_GLD.shape))


def _exchanged(a_GLI):
    """Rows of one group that lie in equal parts for each device of the expert axis, to it; again, and they are back."""
    if (n_devices := jax.lax.axis_size("expert")) == 1:
        return a_GLI
    # parts along an axis of their own: libtpu copies rows around an exchange along L
    parts_XLI = a_GLI.reshape(n_devices, -1, *a_GLI.shape[2:])
    return jax.lax.all_to_all(parts_XLI, "expert", split_axis=0, concat_axis=0, tiled=True).reshape(a_GLI.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _travelled(served, x_GSD, expert_GJ, gate_GJ, weights):
    """y_GSD as `served` gives it for the experts of each device, to which rows go and from which they come back.

    In each trip a device sends up to ROOM times its mean load to each other one, so one trip takes them all unless the
    load is far from even. The backward pass makes the trips again.
    """
    one = lambda i, y_GSD: y_GSD + _trip(served, i, x_GSD, expert_GJ, gate_GJ, weights)
    return jax.lax.fori_loop(0, _n_trips(expert_GJ, weights), one, jnp.zeros_like(x_GSD))


def _room(n_choices: int) -> int:
    """Rows that a device sends to each other one in a trip."""
    return min(n_choices, math.ceil(ROOM * n_choices / jax.lax.axis_size("expert")))


def _n_trips(expert_GJ, weights):
    count_X = routing.count(expert_GJ[0] // len(weights[0]), jax.lax.axis_size("expert"))
    return -(-sharding.largest(jnp.max(count_X), sharding.ROWS) // _room(expert_GJ.size))


def _trip(served, i, x_GSD, expert_GJ, gate_GJ, weights):
    """What trip i adds to y_GSD. L slots: as many for each device."""
    n_devices, n_local, room = jax.lax.axis_size("expert"), len(weights[0]), _room(expert_GJ.size)
    choice_GL, slot_GJ = assign(expert_GJ // n_local, n_devices, room, i * room)
    expert_GL = jnp.take_along_axis(expert_GJ % n_local, choice_GL, axis=1, mode="fill", fill_value=n_local)

    def there(rows_GLD, gate_GL1):
        gate_GL = _exchanged(gate_GL1)[:, :, 0]
        return _exchanged(served(_exchanged(rows_GLD), _exchanged(expert_GL), gate_GL, weights))

    return _gated(x_GSD, gate_GJ, choice_GL, slot_GJ, there)


def _travelled_backward(served, residual, dy_GSD):
    x_GSD, expert_GJ, gate_GJ, weights = residual

    def one(i, total):
        _, backward = jax.vjp(lambda *args: _trip(served, i, args[0], expert_GJ, *args[1:]), x_GSD, gate_GJ, weights)
        return jax.tree.map(lambda sum_, gradient: sum_ + gradient.astype(sum_.dtype), total, backward(dy_GSD))

    # a token's row is in at most top_k trips, a weight in all of them
    float32_weights = jax.tree.map(lambda w: jnp.zeros_like(w, jnp.float32), weights)
    start = jnp.zeros_like(x_GSD), jnp.zeros_like(gate_GJ), float32_weights
    dx_GSD, dgate_GJ, sums = jax.lax.fori_loop(0, _n_trips(expert_GJ, weights), one, start)
    dweights = jax.tree.map(lambda sum_, w: sum_.astype(w.dtype), sums, weights)
    return dx_GSD, None, dgate_GJ, dweights


_travelled.defvjp(lambda served, *args: (_travelled(served, *args), args), _travelled_backward)


def _gated(x_GSD, gate_GJ, choice_of_slot_GL, slot_of_choice_GJ, served):
    """y_GSD: moves rows and gates into slots, where `served` makes a row of each, and sums over each token's choices.
    It scales hidden units by the gates, not its result, which then is not needed for a gradient. An empty slot holds
    the row of some token, with a gate of zero: so it adds nothing to the result nor to the gradients of weights."""
    n_tokens, n_choices = x_GSD.shape[1], gate_GJ.shape[1]
    token_GL, top_k = choice_of_slot_GL % n_tokens, n_choices // n_tokens
    rows_GLD = _moved(x_GSD, token_GL, slot_of_choice_GJ, top_k)
    gate_GL1 = _moved(gate_GJ[:, :, None], choice_of_slot_GL, slot_of_choice_GJ, 1).astype(x_GSD.dtype)
    gate_GL1 = jnp.where(choice_of_slot_GL[:, :, None] < n_choices, gate_GL1, 0)
    return _summed(served(rows_GLD, gate_GL1), slot_of_choice_GJ, token_GL, top_k)


def _taken(x_GSI, index_GL):
    """The rows of x at `index`; some row where it is out of range."""
    return jnp.take_along_axis(x_GSI, index_GL[:, :, None], axis=1, mode="clip")  # to fill with zeros is one more pass


def _sums(x_GLI, index_GJ, copies: int):
    """[G, S, I]: the sum over the `copies` of each row of those at `index`, nothing where it is out of range; added in
    float32. The rows of all choices, `copies` times as many as the sums, never exist as one array."""

    def rows_at(index_GS):
        rows_GSI = jnp.take_along_axis(x_GLI, index_GS[:, :, None], axis=1, mode="fill", fill_value=0)
        return rows_GSI.astype(jnp.float32)

    first_GS, *others = jnp.split(index_GJ, copies, axis=1)
    sum_GSI = rows_at(first_GS)
    for index_GS in others:
        sum_GSI += rows_at(index_GS)
    return sum_GSI.astype(x_GLI.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _moved(x_GSI, source_GL, target_GJ, copies: int):
    """_taken at `source`. target: where each row went, for each of its `copies` in turn (J = copies S), out of range if
    nowhere. The gradient is _sums of it: a gather too, never a scatter-add."""
    return _taken(x_GSI, source_GL)


_moved.defvjp(
    lambda x_GSI, source_GL, target_GJ, copies: (_moved(x_GSI, source_GL, target_GJ, copies), target_GJ),
    lambda copies, target_GJ, dy_GLI: (_sums(dy_GLI, target_GJ, copies), None, None),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _summed(x_GLD, slot_of_choice_GJ, token_of_slot_GL, top_k: int):
    """_sums at each token's slots; the gradient is _taken at each slot's token."""
    return _sums(x_GLD, slot_of_choice_GJ, top_k)


_summed.defvjp(
    lambda x_GLD, slot_GJ, token_GL, top_k: (_sums(x_GLD, slot_GJ, top_k), token_GL),
    lambda top_k, token_GL, dy_GSD: (_taken(dy_GSD, token_GL), None, None),
)


def _sorted(x_GSD, expert_GJ, gate_GJ, weights):
    """y_GSD: passes the rows of each expert, which lie side by side, through it; those of expert E, which is none, are
    not asked for."""
    gate_EDF, up_EDF, down_EFD = weights
    order_GJ, place_GJ, count_GE, first_GE = routing.queues(expert_GJ, len(gate_EDF) + 1)
    slot_GJ = jnp.take_along_axis(first_GE, expert_GJ, axis=-1) + place_GJ
    product = lambda rows_JI, weight_EIO: jax.lax.ragged_dot(rows_JI, weight_EIO, count_GE[0, :-1])

    def served(rows_GJD, gate_GJ1):
        hidden_JF = jax.nn.silu(product(rows_GJD[0], gate_EDF)) * product(rows_GJD[0], up_EDF)
        return product(scaled(hidden_JF, gate_GJ1[0]), down_EFD)[None]

    return _gated(x_GSD, gate_GJ, order_GJ, slot_GJ, served)


def _in_blocks(block: int, x_GSD, expert_GJ, gate_GJ, weights):
    """y_GSD as _sorted's: the last block of an expert is padded, so J choices cost at most J + E block rows."""
    n_experts, n_choices = len(weights[0]), expert_GJ.size
    n_blocks = n_choices // block + n_experts
    # each expert's queue begins a new block
    _, place_GJ, count_GE, _ = routing.queues(expert_GJ, n_experts + 1)
    blocks_E = -(-count_GE[0, :-1] // block)
    end_E = jnp.cumsum(blocks_E)
    expert_Z = jnp.minimum(jnp.searchsorted(end_E, jnp.arange(n_blocks), side="right"), n_experts - 1)
    first_E = jnp.append((end_E - blocks_E) * block, n_blocks * block)  # those without an expert go nowhere
    slot_of_choice_GJ = first_E[expert_GJ] + place_GJ
    choice_of_slot_L = jnp.full(n_blocks * block, n_choices).at[slot_of_choice_GJ[0]].set(jnp.arange(n_choices))

    def served(*of_slots):
        blocks = [a_GLI.reshape(n_blocks, block, -1) for a_GLI in of_slots]
        return _served_in_blocks(*blocks, expert_Z, weights).reshape(1, n_blocks * block, -1)

    return _gated(x_GSD, gate_GJ, choice_of_slot_L[None], slot_of_choice_GJ, served)


def _of_expert(weights, e):
    return [jax.lax.dynamic_index_in_dim(weight, e, keepdims=False) for weight in weights]


@jax.custom_vjp
def _served_in_blocks(slots_ZCD, gate_ZC1, expert_Z, weights):
    """Passes each block [C, D] through its expert, one block after another.

    The weights' gradient adds up in place, in float32: a lax.map would make one as large as all experts for each block.
    """
    one_block = lambda args: swiglu(args[0], *_of_expert(weights, args[2]), args[1])
    return jax.lax.map(one_block, (slots_ZCD, gate_ZC1, expert_Z))


def _served_in_blocks_backward(residual, dy_ZCD):
    slots_ZCD, gate_ZC1, expert_Z, weights = residual

    def one_block(total, args):
        rows_CD, gate_C1, e, dy_CD = args
        _, backward = jax.vjp(swiglu, rows_CD, *_of_expert(weights, e), gate_C1)
        drows_CD, *grads, dgate_C1 = backward(dy_CD)
        add = lambda t, g: jax.lax.dynamic_update_index_in_dim(t, _of_expert([t], e)[0] + g.astype(t.dtype), e, 0)
        return jax.tree.map(add, total, tuple(grads)), (drows_CD, dgate_C1)

    empty = jax.tree.map(lambda w: jnp.zeros_like(w, jnp.promote_types(w.dtype, jnp.float32)), weights)
    total, (dslots_ZCD, dgate_ZC1) = jax.lax.scan(one_block, empty, (slots_ZCD, gate_ZC1, expert_Z, dy_ZCD))
    return dslots_ZCD, dgate_ZC1, None, jax.tree.map(lambda t, w: t.astype(w.dtype), total, weights)


_served_in_blocks.defvjp(lambda *args: (_served_in_blocks(*args), args), _served_in_blocks_backward)
