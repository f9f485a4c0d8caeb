"""Moves tokens into slots and back, and between devices: what both kinds of mixture share.

Axes (jmoe/model/__init__.py): D, G, I units of any kind, J choices of a group, L slots, S tokens of a group,
X devices of the expert axis.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Slots:
    """Which choice lies in which slot.

    Attributes:
      choice_of_slot_GL: the choice in each slot; J or more where the slot is empty.
      slot_of_choice_GJ: the slot of each choice; L or more where the choice is dropped.
      token_of_slot_GL: the token of that choice; of an empty slot, some token.
      top_k: choices of a token, J / S.
    """

    choice_of_slot_GL: jax.Array
    slot_of_choice_GJ: jax.Array
    token_of_slot_GL: jax.Array
    top_k: int


def make_slots(choice_of_slot_GL: jax.Array, slot_of_choice_GJ: jax.Array, n_tokens: int) -> Slots:
    """Slots of groups of `n_tokens` tokens."""
    top_k = slot_of_choice_GJ.shape[1] // n_tokens
    return Slots(choice_of_slot_GL, slot_of_choice_GJ, choice_of_slot_GL % n_tokens, top_k)


def dispatch(x_GSD: jax.Array, gate_GJ: jax.Array, slots: Slots) -> tuple[jax.Array, jax.Array]:
    """The row and the gate of each slot: rows_GLD and gate_GL1, in x's dtype.

    An empty slot holds the row of some token and a gate of zero. So it adds nothing to the result, nor to the
    gradients of weights.
    """
    n_choices = gate_GJ.shape[1]
    rows_GLD = _permute(x_GSD, slots.token_of_slot_GL, slots.slot_of_choice_GJ, slots.top_k)
    gate_GL1 = _permute(gate_GJ[:, :, None], slots.choice_of_slot_GL, slots.slot_of_choice_GJ, 1).astype(x_GSD.dtype)
    gate_GL1 = jnp.where(slots.choice_of_slot_GL[:, :, None] < n_choices, gate_GL1, 0)
    return rows_GLD, gate_GL1


def combine(rows_GLD: jax.Array, slots: Slots) -> jax.Array:
    """y_GSD: the sum over each token's choices of the rows in their slots."""
    return _unpermute(rows_GLD, slots.slot_of_choice_GJ, slots.token_of_slot_GL, slots.top_k)


def flatten_groups(a_GJ: jax.Array, top_k: int) -> jax.Array:
    """The choices of all groups as those of one: the first choices of all tokens, then their second ones."""
    return a_GJ.reshape(len(a_GJ), top_k, -1).swapaxes(0, 1).reshape(1, -1)


def exchange(a_GLI: jax.Array) -> jax.Array:
    """Rows of one group that lie in equal parts for each device of the expert axis, to it; again, and they are back."""
    n_devices = jax.lax.axis_size("expert")
    if n_devices == 1:
        return a_GLI
    # parts along an axis of their own: libtpu copies rows around an exchange along L
    parts_XLI = a_GLI.reshape(n_devices, -1, *a_GLI.shape[2:])
    return jax.lax.all_to_all(parts_XLI, "expert", split_axis=0, concat_axis=0, tiled=True).reshape(a_GLI.shape)


def _gather(x_GSI, index_GL):
    """The rows of x at `index`; some row where it is out of range."""
    return jnp.take_along_axis(x_GSI, index_GL[:, :, None], axis=1, mode="clip")  # to fill with zeros is one more pass


def _gather_sums(x_GLI, index_GJ, n_copies: int):
    """[G, S, I]: the sum over the copies of each row of those at `index`, nothing where it is out of range.

    Sums are float32. The rows of all choices, `n_copies` times as many as the sums, never exist as one array.
    """

    def rows_at(index_GS):
        rows_GSI = jnp.take_along_axis(x_GLI, index_GS[:, :, None], axis=1, mode="fill", fill_value=0)
        return rows_GSI.astype(jnp.float32)

    first_GS, *others = jnp.split(index_GJ, n_copies, axis=1)
    sum_GSI = rows_at(first_GS)
    for index_GS in others:
        sum_GSI += rows_at(index_GS)
    return sum_GSI.astype(x_GLI.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _permute(x_GSI: jax.Array, source_GL: jax.Array, target_GJ: jax.Array, n_copies: int) -> jax.Array:
    """The rows of x at `source`.

    target: where each row went, for each of its `n_copies` in turn (J = n_copies S), out of range if nowhere.

    JAX's own gradient is a scatter-add, which devices run one row after another. This one gathers.
    """
    return _gather(x_GSI, source_GL)


def _permute_fwd(x_GSI, source_GL, target_GJ, n_copies):
    return _gather(x_GSI, source_GL), target_GJ


def _permute_bwd(n_copies, target_GJ, dy_GLI):
    return _gather_sums(dy_GLI, target_GJ, n_copies), None, None


_permute.defvjp(_permute_fwd, _permute_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _unpermute(rows_GLD: jax.Array, slot_of_choice_GJ: jax.Array, token_of_slot_GL: jax.Array, top_k: int) -> jax.Array:
    """The sum of the rows in each token's slots.

    JAX's own gradient is a scatter-add, as of _permute. This one gathers each slot's token.
    """
    return _gather_sums(rows_GLD, slot_of_choice_GJ, top_k)


def _unpermute_fwd(rows_GLD, slot_of_choice_GJ, token_of_slot_GL, top_k):
    return _gather_sums(rows_GLD, slot_of_choice_GJ, top_k), token_of_slot_GL


def _unpermute_bwd(top_k, token_of_slot_GL, dy_GSD):
    return _gather(dy_GSD, token_of_slot_GL), None, None


_unpermute.defvjp(_unpermute_fwd, _unpermute_bwd)
