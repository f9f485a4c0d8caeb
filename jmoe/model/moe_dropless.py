"""The mixture without a capacity: nothing is dropped.

On TPUs and GPUs rows are sorted by expert, and a kernel multiplies each run of rows by its expert's matrix
(jmoe/model/grouped_product.py). On a CPU, where XLA would multiply each row by every expert, rows lie in blocks of one
expert, which are worked on one after another.

Where experts are spread over devices, rows travel to them and back.

Axes (jmoe/model/__init__.py): C rows of a block, D, E experts of this device, F, G = 1, I units of any kind, J choices,
L slots, S tokens, X, Z blocks.
"""

import functools
import math

import jax
import jax.numpy as jnp

from jmoe.model import permute, routing, sharding
from jmoe.model.experts import scaled, swiglu
from jmoe.model.grouped_product import grouped_product
from jmoe.model.moe_capacity import assign

BUFFER_FACTOR = 1.5  # times a device's mean load: the rows that are sent to it at once


def moe_dropless(x_GSD, expert_GJ, gate_GJ, weights, n_experts: int, block: int, kernel: str) -> jax.Array:
    """y_GSD: the sum of each token's chosen experts, weighted by their gates.

    Args:
      x_GSD: all tokens of this device, as one group.
      expert_GJ, gate_GJ: of each choice; experts are numbered over all devices.
      weights: gate_EDF, up_EDF, down_EFD of this device's experts.
      n_experts: on all devices.
      block: rows of a block, 0 for rows sorted by expert.
      kernel: of sorted rows, as grouped_product takes it.
    """
    if block:
        local_experts = functools.partial(_in_blocks, block)
    else:
        # rows that travel are fewer than their buffer has room for
        some_without_expert = len(weights[0]) < n_experts
        local_experts = functools.partial(_sorted, kernel, some_without_expert)
    if len(weights[0]) == n_experts:
        return local_experts(x_GSD, expert_GJ, gate_GJ, weights)
    return _expert_parallel(local_experts, x_GSD, expert_GJ, gate_GJ, weights)


def rows_of_a_block(n_tokens: int, top_k: int, n_experts: int) -> int:
    """Rows of a block on a CPU: 256 / top_k, and for top_k > 1 up to 512 as long as padding adds at most a sixteenth.

    Each block reads all of its expert's weights, however few its rows.
    """
    if top_k == 1:
        return max(min(256, n_tokens), min(8, n_tokens))
    many = min(512, n_tokens * top_k // (16 * n_experts))
    return max(min(256, n_tokens) // top_k, min(8, n_tokens), many)


# Rows that travel to the devices of their experts.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _expert_parallel(local_experts, x_GSD, expert_GJ, gate_GJ, weights):
    """y_GSD as `local_experts` gives it for the experts of each device, to which rows go and from which they come back.

    In each trip a device sends up to BUFFER_FACTOR times its mean load to each other one. So one trip takes all rows
    unless the load is far from even.

    JAX cannot derive a loop whose number of trips is known only when it runs. The backward pass makes the trips again.
    """

    def add_trip(i, y_GSD):
        return y_GSD + _trip(local_experts, i, x_GSD, expert_GJ, gate_GJ, weights)

    return jax.lax.fori_loop(0, _n_trips(expert_GJ, weights), add_trip, jnp.zeros_like(x_GSD))


def _expert_parallel_fwd(local_experts, *args):
    return _expert_parallel(local_experts, *args), args


def _expert_parallel_bwd(local_experts, residual, dy_GSD):
    x_GSD, expert_GJ, gate_GJ, weights = residual

    def add_gradients_of_trip(i, total):
        def trip(x_GSD, gate_GJ, weights):
            return _trip(local_experts, i, x_GSD, expert_GJ, gate_GJ, weights)

        _, backward = jax.vjp(trip, x_GSD, gate_GJ, weights)
        return jax.tree.map(lambda sum_, gradient: sum_ + gradient.astype(sum_.dtype), total, backward(dy_GSD))

    # a token's row is in at most top_k trips, a weight in all of them
    float32_weights = jax.tree.map(lambda w: jnp.zeros_like(w, jnp.float32), weights)
    start = jnp.zeros_like(x_GSD), jnp.zeros_like(gate_GJ), float32_weights
    n_trips = _n_trips(expert_GJ, weights)
    dx_GSD, dgate_GJ, sums = jax.lax.fori_loop(0, n_trips, add_gradients_of_trip, start)
    dweights = jax.tree.map(lambda sum_, w: sum_.astype(w.dtype), sums, weights)
    return dx_GSD, None, dgate_GJ, dweights


_expert_parallel.defvjp(_expert_parallel_fwd, _expert_parallel_bwd)


def _rows_for_each_device(n_choices: int) -> int:
    """Rows that a device sends to each other one in a trip."""
    return min(n_choices, math.ceil(BUFFER_FACTOR * n_choices / jax.lax.axis_size("expert")))


def _n_trips(expert_GJ, weights):
    """Trips until all rows of all devices were taken."""
    count_X = routing.count(expert_GJ[0] // len(weights[0]), jax.lax.axis_size("expert"))
    return -(-sharding.largest(jnp.max(count_X), sharding.ROWS) // _rows_for_each_device(expert_GJ.size))


def _trip(local_experts, i, x_GSD, expert_GJ, gate_GJ, weights):
    """What trip i adds to y_GSD. L slots: as many for each device."""
    n_devices, n_local_experts = jax.lax.axis_size("expert"), len(weights[0])
    n_rows = _rows_for_each_device(expert_GJ.size)
    choice_GL, slot_GJ = assign(expert_GJ // n_local_experts, n_devices, n_rows, i * n_rows)
    expert_GL = jnp.take_along_axis(
        expert_GJ % n_local_experts, choice_GL, axis=1, mode="fill", fill_value=n_local_experts
    )
    slots = permute.make_slots(choice_GL, slot_GJ, x_GSD.shape[1])
    rows_GLD, row_gates_GL1 = permute.dispatch(x_GSD, gate_GJ, slots)
    # there every row is a token with one choice
    gates_there_GL = permute.exchange(row_gates_GL1)[:, :, 0]
    rows_there_GLD = permute.exchange(rows_GLD)
    outputs_GLD = local_experts(rows_there_GLD, permute.exchange(expert_GL), gates_there_GL, weights)
    return permute.combine(permute.exchange(outputs_GLD), slots)


# Rows sorted by expert.


def _sorted(kernel: str, some_without_expert: bool, x_GSD, expert_GJ, gate_GJ, weights):
    """y_GSD: passes the rows of each expert, which lie side by side, through it; rows of expert E, which is none, come
    last, and what becomes of them is not asked for."""
    gate_EDF, up_EDF, down_EFD = weights
    order_GJ, place_GJ, count_GE, first_GE = routing.queues(expert_GJ, len(gate_EDF) + 1)
    slot_GJ = jnp.take_along_axis(first_GE, expert_GJ, axis=-1) + place_GJ
    slots = permute.make_slots(order_GJ, slot_GJ, x_GSD.shape[1])

    def product(rows_JI, weight_EIO):
        return grouped_product(rows_JI, weight_EIO, count_GE[0, :-1], kernel, some_without_expert)

    rows_GJD, row_gates_GJ1 = permute.dispatch(x_GSD, gate_GJ, slots)
    hidden_JF = jax.nn.silu(product(rows_GJD[0], gate_EDF)) * product(rows_GJD[0], up_EDF)
    outputs_JD = product(scaled(hidden_JF, row_gates_GJ1[0]), down_EFD)
    return permute.combine(outputs_JD[None], slots)


# Blocks of rows of one expert, one after another.


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
    slots = permute.make_slots(choice_of_slot_L[None], slot_of_choice_GJ, x_GSD.shape[1])

    rows_GLD, row_gates_GL1 = permute.dispatch(x_GSD, gate_GJ, slots)
    rows_ZCD = rows_GLD.reshape(n_blocks, block, -1)
    gates_ZC1 = row_gates_GL1.reshape(n_blocks, block, -1)
    outputs_ZCD = _experts_of_blocks(rows_ZCD, gates_ZC1, expert_Z, weights)
    return permute.combine(outputs_ZCD.reshape(1, n_blocks * block, -1), slots)


def _of_expert(weights, e):
    return [jax.lax.dynamic_index_in_dim(weight, e, keepdims=False) for weight in weights]


@jax.custom_vjp
def _experts_of_blocks(rows_ZCD, gates_ZC1, expert_Z, weights):
    """Passes each block [C, D] through its expert, one block after another.

    JAX's own gradient of a lax.map makes one array as large as all experts for each block. This one adds up the
    weights' gradient in place, in float32.
    """

    def one_block(args):
        rows_CD, gates_C1, e = args
        return swiglu(rows_CD, *_of_expert(weights, e), gates_C1)

    return jax.lax.map(one_block, (rows_ZCD, gates_ZC1, expert_Z))


def _experts_of_blocks_fwd(*args):
    return _experts_of_blocks(*args), args


def _experts_of_blocks_bwd(residual, dy_ZCD):
    rows_ZCD, gates_ZC1, expert_Z, weights = residual

    def one_block(total, args):
        rows_CD, gates_C1, e, dy_CD = args
        _, backward = jax.vjp(swiglu, rows_CD, *_of_expert(weights, e), gates_C1)
        drows_CD, *gradients, dgates_C1 = backward(dy_CD)

        def add(sum_EIO, gradient_IO):
            (sum_IO,) = _of_expert([sum_EIO], e)
            return jax.lax.dynamic_update_index_in_dim(sum_EIO, sum_IO + gradient_IO.astype(sum_IO.dtype), e, 0)

        return jax.tree.map(add, total, tuple(gradients)), (drows_CD, dgates_C1)

    empty = jax.tree.map(lambda w: jnp.zeros_like(w, jnp.promote_types(w.dtype, jnp.float32)), weights)
    total, (drows_ZCD, dgates_ZC1) = jax.lax.scan(one_block, empty, (rows_ZCD, gates_ZC1, expert_Z, dy_ZCD))
    return drows_ZCD, dgates_ZC1, None, jax.tree.map(lambda t, w: t.astype(w.dtype), total, weights)


_experts_of_blocks.defvjp(_experts_of_blocks_fwd, _experts_of_blocks_bwd)
