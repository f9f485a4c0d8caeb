"""Moves rows between tokens and slots. Gradients are gathers too, never a scatter-add.

Axes (jmoe/model/__init__.py): D, G, I rows before and O after a move, J, L, S.
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def move(x_GID, source_GO, target_GJ, copies: int = 1):
    """x[g, source[g, o]], with a custom gradient; some row of x where the source is out of range.

    target: where each row of x went, for each of its `copies` in turn (J = copies I); out of range if nowhere. The
    gradient of x gathers rows at target and sums over the copies, without a scatter-add.
    """
    return _taken(x_GID, source_GO, mode="clip")  # to fill rows with zeros is one more pass over them


def _move_forward(x_GID, source_GO, target_GJ, copies):
    return move(x_GID, source_GO, target_GJ, copies), target_GJ


def _move_backward(copies, target_GJ, dy_GOD):
    return sum_of_rows(dy_GOD, target_GJ, copies), None, None


move.defvjp(_move_forward, _move_backward)


def _taken(x_GID, index_GO, **options):
    return jnp.take_along_axis(x_GID, index_GO[:, :, None], axis=1, **options)


def sum_of_rows(x_GID, index_GJ, top_k: int):
    """[G, S, D]: the sum over each token's choices of the rows at `index`, nothing where it is out of range.

    The rows of all choices, `top_k` times as many as tokens, never exist as one array.
    """
    taken = functools.partial(_taken, x_GID, mode="fill", fill_value=0)
    return functools.reduce(jnp.add, map(taken, jnp.split(index_GJ, top_k, axis=1)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def summed(x_GLD, slot_of_choice_GJ, token_of_slot_GL, top_k: int):
    """sum_of_rows(x, slot_of_choice, top_k), with a custom gradient: for a slot of no token, that of some token."""
    return sum_of_rows(x_GLD, slot_of_choice_GJ, top_k)


def _summed_forward(x_GLD, slot_of_choice_GJ, token_of_slot_GL, top_k):
    return sum_of_rows(x_GLD, slot_of_choice_GJ, top_k), token_of_slot_GL


def _summed_backward(top_k, token_of_slot_GL, dy_GSD):
    return _taken(dy_GSD, token_of_slot_GL, mode="clip"), None, None


summed.defvjp(_summed_forward, _summed_backward)
