"""Moves rows between tokens and slots. Gradients are gathers too, never a scatter-add.

Axes (jmoe/model/__init__.py): D, G, I rows before and O after a move, J, L, S.
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def move(x_GID, source_GO, target_GJ, copies: int = 1):
    """taken(x, source), with a custom gradient.

    target: where each row of x went, for each of its `copies` in turn (J = copies I); out of range if nowhere. The
    gradient of x gathers rows at target and sums over the copies, without a scatter-add.
    """
    return taken(x_GID, source_GO)


def _move_forward(x_GID, source_GO, target_GJ, copies):
    return taken(x_GID, source_GO), target_GJ


def _move_backward(copies, target_GJ, dy_GOD):
    return sum_of_rows(dy_GOD, target_GJ, copies), None, None


move.defvjp(_move_forward, _move_backward)


def taken(x_GID, index_GO):
    """x[g, index[g, o]], zero where the index is out of range."""
    return jnp.take_along_axis(x_GID, index_GO[:, :, None], axis=1, mode="fill", fill_value=0)


def sum_of_rows(x_GID, index_GJ, top_k: int):
    """[G, S, D]: the sum over each token's choices of the rows at `index`.

    The rows of all choices, `top_k` times as many as tokens, never exist as one array.
    """
    return functools.reduce(jnp.add, (taken(x_GID, index_GS) for index_GS in jnp.split(index_GJ, top_k, axis=1)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def summed(x_GLD, slot_of_choice_GJ, token_of_slot_GL, top_k: int):
    """sum_of_rows(x, slot_of_choice, top_k), with a custom gradient."""
    return sum_of_rows(x_GLD, slot_of_choice_GJ, top_k)


def _summed_forward(x_GLD, slot_of_choice_GJ, token_of_slot_GL, top_k):
    return sum_of_rows(x_GLD, slot_of_choice_GJ, top_k), token_of_slot_GL


def _summed_backward(top_k, token_of_slot_GL, dy_GSD):
    return taken(dy_GSD, token_of_slot_GL), None, None


summed.defvjp(_summed_forward, _summed_backward)
