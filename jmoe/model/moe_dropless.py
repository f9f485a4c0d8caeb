"""The mixture without a capacity: nothing is dropped.

Rows are sorted by expert, and each run of rows is multiplied by its expert's matrix (jmoe/model/grouped_product.py).
On CPUs, which have no kernel for that, each expert's even share of the rows passes through it as with a capacity, and
the rest in blocks (overflow.py).

Where experts are spread over devices, rows are sent to the devices of their experts and back.

Axes (jmoe/model/__init__.py): C rows of an even share, D, E experts of this device, F, G = 1, I units of any kind,
J choices, L slots, O = 2 F units of gate and up, S tokens, X.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jmoe.model import permute, routing, sharding
from jmoe.model.experts import scale_rows, swiglu
from jmoe.model.grouped_product import EVEN_SHARES, TOKAMAX, grouped_product
from jmoe.model.moe_capacity import assign_slots, slots_of_sorted
from jmoe.model.overflow import overflow
from jmoe.model.permute import ExpertWeights

BUFFER_FACTOR = 1.5  # times a device's mean load: the rows that are sent to it at once

# (x_GSD, expert_GJ, gate_GJ, weights) -> y_GSD; expert E is none
LocalExperts = Callable[
    [Float[Array, "1 S D"], Int[Array, "1 J"], Float[Array, "1 J"], ExpertWeights], Float[Array, "1 S D"]
]
Inputs = tuple[Float[Array, "1 S D"], Int[Array, "1 J"], Float[Array, "1 J"], ExpertWeights]


def moe_dropless(
    x_GSD: Float[Array, "1 S D"],
    expert_GJ: Int[Array, "1 J"],
    gate_GJ: Float[Array, "1 J"],
    weights: ExpertWeights,
    n_experts: int,
    kernel: str,
) -> Float[Array, "1 S D"]:
    """The sum of each token's chosen experts, weighted by their gates.

    Args:
      x_GSD: all tokens of this device, as one group.
      expert_GJ, gate_GJ: of each choice; experts are numbered over all devices.
      weights: of this device's experts.
      n_experts: on all devices.
      kernel: as grouped_product.kernel_of names it.
    """
    n_local_experts = len(weights[0])
    # rows that are sent are fewer than their buffer has slots
    has_empty_slots = n_local_experts < n_experts
    if kernel == EVEN_SHARES:
        local_experts = _experts_on_even_shares
    else:
        local_experts = functools.partial(_experts_on_sorted_rows, kernel, has_empty_slots)
    if n_local_experts == n_experts:
        return local_experts(x_GSD, expert_GJ, gate_GJ, weights)
    return _expert_parallel(local_experts, x_GSD, expert_GJ, gate_GJ, weights)


# Experts on other devices.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _expert_parallel(
    local_experts: LocalExperts,
    x_GSD: Float[Array, "1 S D"],
    expert_GJ: Int[Array, "1 J"],
    gate_GJ: Float[Array, "1 J"],
    weights: ExpertWeights,
) -> Float[Array, "1 S D"]:
    """Sends rows to the devices of their experts, a chunk at a time, and adds up what comes back.

    In each chunk a device sends up to BUFFER_FACTOR times its mean load to each other one. So one chunk takes all rows
    unless the load is far from even.

    JAX cannot differentiate a loop whose number of steps is known only when it runs. So the backward pass here runs the
    chunks again.
    """

    def add_chunk(i: Int[Array, ""], y_GSD: Float[Array, "1 S D"]) -> Float[Array, "1 S D"]:
        return y_GSD + _chunk(local_experts, i, x_GSD, expert_GJ, gate_GJ, weights)

    return jax.lax.fori_loop(0, _n_chunks(expert_GJ, weights), add_chunk, jnp.zeros_like(x_GSD))


def _expert_parallel_fwd(
    local_experts: LocalExperts,
    x_GSD: Float[Array, "1 S D"],
    expert_GJ: Int[Array, "1 J"],
    gate_GJ: Float[Array, "1 J"],
    weights: ExpertWeights,
) -> tuple[Float[Array, "1 S D"], Inputs]:
    y_GSD = _expert_parallel(local_experts, x_GSD, expert_GJ, gate_GJ, weights)
    return y_GSD, (x_GSD, expert_GJ, gate_GJ, weights)


def _expert_parallel_bwd(
    local_experts: LocalExperts, inputs: Inputs, dy_GSD: Float[Array, "1 S D"]
) -> tuple[Float[Array, "1 S D"], None, Float[Array, "1 J"], ExpertWeights]:
    x_GSD, expert_GJ, gate_GJ, weights = inputs

    def add_gradients_of_chunk(i: Int[Array, ""], total: tuple) -> tuple:
        def chunk(
            x_GSD: Float[Array, "1 S D"], gate_GJ: Float[Array, "1 J"], weights: ExpertWeights
        ) -> Float[Array, "1 S D"]:
            return _chunk(local_experts, i, x_GSD, expert_GJ, gate_GJ, weights)

        _, backward = jax.vjp(chunk, x_GSD, gate_GJ, weights)
        return jax.tree.map(lambda sum_, gradient: sum_ + gradient.astype(sum_.dtype), total, backward(dy_GSD))

    # a token's row is in at most top_k chunks, a weight in all of them
    zero_weights = jax.tree.map(lambda w: jnp.zeros_like(w, jnp.float32), weights)
    zeros = (jnp.zeros_like(x_GSD), jnp.zeros_like(gate_GJ), zero_weights)
    n_chunks = _n_chunks(expert_GJ, weights)
    dx_GSD, dgate_GJ, sums = jax.lax.fori_loop(0, n_chunks, add_gradients_of_chunk, zeros)
    dweights = jax.tree.map(lambda sum_, w: sum_.astype(w.dtype), sums, weights)
    return dx_GSD, None, dgate_GJ, dweights


_expert_parallel.defvjp(_expert_parallel_fwd, _expert_parallel_bwd)


def _rows_for_each_device(n_choices: int) -> int:
    """Rows that a device sends to each other one in a chunk."""
    return min(n_choices, math.ceil(BUFFER_FACTOR * n_choices / jax.lax.axis_size("expert")))


def _n_chunks(expert_GJ: Int[Array, "1 J"], weights: ExpertWeights) -> Int[Array, ""]:
    """Chunks until all rows of all devices are sent."""
    count_X = routing.count_choices(expert_GJ[0] // len(weights[0]), jax.lax.axis_size("expert"))
    most_rows = sharding.largest(jnp.max(count_X), sharding.ALL_ROWS)
    return -(-most_rows // _rows_for_each_device(expert_GJ.size))


def _chunk(
    local_experts: LocalExperts,
    i: Int[Array, ""],
    x_GSD: Float[Array, "1 S D"],
    expert_GJ: Int[Array, "1 J"],
    gate_GJ: Float[Array, "1 J"],
    weights: ExpertWeights,
) -> Float[Array, "1 S D"]:
    """The sum that chunk i adds to y_GSD. Each device gets an equal share of the L slots."""
    n_devices = jax.lax.axis_size("expert")
    n_local_experts = len(weights[0])
    n_rows = _rows_for_each_device(expert_GJ.size)
    choice_GL, slot_GJ = assign_slots(expert_GJ // n_local_experts, n_devices, n_rows, i * n_rows)
    of_device_GJ = expert_GJ % n_local_experts
    none = n_local_experts  # the expert of an empty slot
    expert_GL = jnp.take_along_axis(of_device_GJ, choice_GL, axis=1, mode="fill", fill_value=none)
    slots = permute.make_slots(choice_GL, slot_GJ, x_GSD.shape[1])
    rows_GLD, row_gates_GL1 = permute.dispatch(x_GSD, gate_GJ, slots)
    # on the other device every row is a token with one choice
    sent_gates_GL = permute.exchange(row_gates_GL1)[:, :, 0]
    sent_rows_GLD = permute.exchange(rows_GLD)
    outputs_GLD = local_experts(sent_rows_GLD, permute.exchange(expert_GL), sent_gates_GL, weights)
    return permute.combine(permute.exchange(outputs_GLD), slots)


# Rows sorted by expert.


def _experts_on_sorted_rows(
    kernel: str,
    has_empty_slots: bool,
    x_GSD: Float[Array, "1 S D"],
    expert_GJ: Int[Array, "1 J"],
    gate_GJ: Float[Array, "1 J"],
    weights: ExpertWeights,
) -> Float[Array, "1 S D"]:
    """Passes the rows of each expert, which lie side by side, through it.

    Rows of expert E, which is none, come last. Their results are never read.
    """
    gate_EDF, up_EDF, down_EFD = weights
    choices = routing.sort_by_expert(expert_GJ, len(gate_EDF) + 1)
    slot_GJ = jnp.take_along_axis(choices.first_GE, expert_GJ, axis=-1) + choices.place_GJ
    slots = permute.make_slots(choices.order_GJ, slot_GJ, x_GSD.shape[1])

    def product(rows_JI: Float[Array, "J I"], weight_EIO: Float[Array, "E I O"]) -> Float[Array, "J O"]:
        return grouped_product(rows_JI, weight_EIO, choices.count_GE[0, :-1], kernel, has_empty_slots)

    rows_GJD, row_gates_GJ1 = permute.dispatch(x_GSD, gate_GJ, slots)
    rows_JD = rows_GJD[0]
    if kernel == TOKAMAX:
        # one product reads the rows once, and its gradient needs no sum of two arrays of rows
        gate_and_up_JO = product(rows_JD, jnp.concatenate([gate_EDF, up_EDF], axis=-1))
        gate_JF, up_JF = jnp.split(gate_and_up_JO, 2, axis=-1)
    else:
        gate_JF = product(rows_JD, gate_EDF)
        up_JF = product(rows_JD, up_EDF)
    hidden_JF = jax.nn.silu(gate_JF) * up_JF
    outputs_JD = product(scale_rows(hidden_JF, row_gates_GJ1[0]), down_EFD)
    return permute.combine(outputs_JD[None], slots)


# Even shares of the rows, and blocks of what overflows.


def _experts_on_even_shares(
    x_GSD: Float[Array, "1 S D"],
    expert_GJ: Int[Array, "1 J"],
    gate_GJ: Float[Array, "1 J"],
    weights: ExpertWeights,
) -> Float[Array, "1 S D"]:
    """Passes each expert's even share of the rows through it in one batched product, and adds what overflows.

    Rows of expert E, which is none, are left out.
    """
    axes = sharding.varying_axes(x_GSD, expert_GJ, gate_GJ, *weights)
    x_GSD, expert_GJ, gate_GJ = (sharding.vary(a, axes) for a in (x_GSD, expert_GJ, gate_GJ))
    gate_EDF, up_EDF, down_EFD = (sharding.vary(a, axes) for a in weights)
    n_experts = len(gate_EDF)
    share = -(-expert_GJ.size // n_experts)  # rounded up
    choices = routing.sort_by_expert(expert_GJ, n_experts)
    choice_GL, slot_GJ = slots_of_sorted(choices, expert_GJ, share)
    slots = permute.make_slots(choice_GL, slot_GJ, x_GSD.shape[1])
    rows_GLD, row_gates_GL1 = permute.dispatch(x_GSD, gate_GJ, slots)
    rows_ECD = rows_GLD.reshape(n_experts, share, -1)
    gates_EC1 = row_gates_GL1.reshape(n_experts, share, 1)
    outputs_ECD = swiglu(rows_ECD, gate_EDF, up_EDF, down_EFD, gates_EC1)
    y_GSD = permute.combine(outputs_ECD.reshape(rows_GLD.shape), slots)
    overflow_SD = overflow(
        share, x_GSD[0], gate_GJ[0], (gate_EDF, up_EDF, down_EFD), choices.order_GJ[0], choices.count_GE[0]
    )
    return y_GSD + overflow_SD
