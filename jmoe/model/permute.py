"""Moves tokens into slots and back, and between devices. Both kinds of mixture share this.

Axes (jmoe/model/__init__.py): D, G, I units of any kind, J choices of a group, L slots, S tokens of a group,
X devices of the expert axis.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

# In place of the slot of a dropped choice, and of the choice in an empty slot. It is beyond the end of any array, so a
# gather with mode="fill" gives zeros there, and a scatter writes nothing. (JAX reads -1 as the last element.)
UNASSIGNED = np.iinfo(np.int32).max

# gate, up and down of this device's experts
ExpertWeights = tuple[Float[Array, "E D F"], Float[Array, "E D F"], Float[Array, "E F D"]]


@dataclasses.dataclass(frozen=True)
class Slots:
    """Which choice lies in which slot.

    Attributes:
      choice_of_slot_GL: the choice in each slot, UNASSIGNED where the slot is empty.
      slot_of_choice_GJ: the slot of each choice, UNASSIGNED where the choice is dropped.
      token_of_slot_GL: the token of that choice; of an empty slot, some token.
      top_k: choices of a token, J / S.
    """

    choice_of_slot_GL: Int[Array, "G L"]
    slot_of_choice_GJ: Int[Array, "G J"]
    token_of_slot_GL: Int[Array, "G L"]
    top_k: int


def make_slots(choice_of_slot_GL: Int[Array, "G L"], slot_of_choice_GJ: Int[Array, "G J"], n_tokens: int) -> Slots:
    """Slots of groups of `n_tokens` tokens."""
    top_k = slot_of_choice_GJ.shape[1] // n_tokens
    return Slots(choice_of_slot_GL, slot_of_choice_GJ, choice_of_slot_GL % n_tokens, top_k)


def dispatch(
    x_GSD: Float[Array, "G S D"], gate_GJ: Float[Array, "G J"], slots: Slots
) -> tuple[Float[Array, "G L D"], Float[Array, "G L 1"]]:
    """The row and the gate of each slot: rows_GLD and gate_GL1, in x's dtype.

    An empty slot holds the row of some token and a gate of zero. So it adds nothing to the result, nor to the
    gradients of weights.
    """
    rows_GLD = _permute(x_GSD, slots.token_of_slot_GL, slots.slot_of_choice_GJ, slots.top_k)
    gate_GL1 = _permute(gate_GJ[:, :, None], slots.choice_of_slot_GL, slots.slot_of_choice_GJ, 1).astype(x_GSD.dtype)
    is_empty_GL1 = slots.choice_of_slot_GL[:, :, None] == UNASSIGNED
    return rows_GLD, jnp.where(is_empty_GL1, 0, gate_GL1)


def combine(rows_GLD: Float[Array, "G L D"], slots: Slots) -> Float[Array, "G S D"]:
    """y_GSD: the sum over each token's choices of the rows in their slots."""
    return _unpermute(rows_GLD, slots.slot_of_choice_GJ, slots.token_of_slot_GL, slots.top_k)


def flatten_groups(a_GJ: Num[Array, "G J"], top_k: int) -> Num[Array, "1 J"]:
    """The choices of all groups as those of one: the first choices of all tokens, then their second ones."""
    return a_GJ.reshape(len(a_GJ), top_k, -1).swapaxes(0, 1).reshape(1, -1)


def exchange(a_GLI: Num[Array, "1 L ..."]) -> Num[Array, "1 L ..."]:
    """Sends rows of one group, which lie in equal parts for each device of the expert axis, to these devices.

    Part d of the result is what device d sent to this one. So a second exchange brings all rows back.
    """
    n_devices = jax.lax.axis_size("expert")
    if n_devices == 1:
        return a_GLI
    # parts along an axis of their own: libtpu copies rows around an exchange along L
    parts_XLI = a_GLI.reshape(n_devices, -1, *a_GLI.shape[2:])
    return jax.lax.all_to_all(parts_XLI, "expert", split_axis=0, concat_axis=0, tiled=True).reshape(a_GLI.shape)


def _gather(x_GSI: Num[Array, "G S I"], index_GL: Int[Array, "G L"]) -> Num[Array, "G L I"]:
    """The rows of x at `index`; some row where it is UNASSIGNED."""
    # mode="fill" would write zeros there, by one more pass over the result
    return jnp.take_along_axis(x_GSI, index_GL[:, :, None], axis=1, mode="clip")


def _gather_sums(x_GLI: Float[Array, "G L I"], index_GJ: Int[Array, "G J"], n_copies: int) -> Float[Array, "G S I"]:
    """Each row of the result is the sum of the `n_copies` rows of x at its indices, of which UNASSIGNED adds nothing.

    Row s has the indices s, S + s, 2 S + s, ... of `index` (J = n_copies S).

    Sums are float32. The rows of all choices, `n_copies` times as many as the result has, never exist as one array.
    """

    def rows_at(index_GS: Int[Array, "G S"]) -> Float[Array, "G S I"]:
        rows_GSI = jnp.take_along_axis(x_GLI, index_GS[:, :, None], axis=1, mode="fill", fill_value=0)
        return rows_GSI.astype(jnp.float32)

    first_GS, *others = jnp.split(index_GJ, n_copies, axis=1)
    sum_GSI = rows_at(first_GS)
    for index_GS in others:
        sum_GSI += rows_at(index_GS)
    return sum_GSI.astype(x_GLI.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _permute(
    x_GSI: Float[Array, "G S I"], source_GL: Int[Array, "G L"], target_GJ: Int[Array, "G J"], n_copies: int
) -> Float[Array, "G L I"]:
    """The rows of x at `source`.

    target: where each row went, for each of its `n_copies` in turn (J = n_copies S), UNASSIGNED if nowhere.

    JAX's own gradient is a scatter-add, which devices run one row after another. This one gathers the rows of each
    token's copies, and sums them in float32.
    """
    return _gather(x_GSI, source_GL)


def _permute_fwd(
    x_GSI: Float[Array, "G S I"], source_GL: Int[Array, "G L"], target_GJ: Int[Array, "G J"], n_copies: int
) -> tuple[Float[Array, "G L I"], Int[Array, "G J"]]:
    return _gather(x_GSI, source_GL), target_GJ


def _permute_bwd(
    n_copies: int, target_GJ: Int[Array, "G J"], dy_GLI: Float[Array, "G L I"]
) -> tuple[Float[Array, "G S I"], None, None]:
    return _gather_sums(dy_GLI, target_GJ, n_copies), None, None


_permute.defvjp(_permute_fwd, _permute_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _unpermute(
    rows_GLD: Float[Array, "G L D"],
    slot_of_choice_GJ: Int[Array, "G J"],
    token_of_slot_GL: Int[Array, "G L"],
    top_k: int,
) -> Float[Array, "G S D"]:
    """The sum of the rows in each token's slots.

    JAX's own gradient is a scatter-add, as of _permute. This one gathers the gradient of each slot's token, and leaves
    empty slots what some token has: their gates are zero.
    """
    return _gather_sums(rows_GLD, slot_of_choice_GJ, top_k)


def _unpermute_fwd(
    rows_GLD: Float[Array, "G L D"],
    slot_of_choice_GJ: Int[Array, "G J"],
    token_of_slot_GL: Int[Array, "G L"],
    top_k: int,
) -> tuple[Float[Array, "G S D"], Int[Array, "G L"]]:
    return _gather_sums(rows_GLD, slot_of_choice_GJ, top_k), token_of_slot_GL


def _unpermute_bwd(
    top_k: int, token_of_slot_GL: Int[Array, "G L"], dy_GSD: Float[Array, "G S D"]
) -> tuple[Float[Array, "G L D"], None, None]:
    return _gather(dy_GSD, token_of_slot_GL), None, None


_unpermute.defvjp(_unpermute_fwd, _unpermute_bwd)
