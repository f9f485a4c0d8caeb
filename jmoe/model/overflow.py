"""The choices beyond an expert's even share, in blocks: a part of the mixture that drops nothing, on CPUs.

XLA multiplies the even shares of all experts in one batched product (moe_dropless.py). How many choices are left is
known only when the step runs. A loop passes them through their experts, a block of one expert's rows at a time. The
last block of an expert has rows with a gate of zero.

Axes: C rows of a block, D, E, F, J choices, S tokens.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jmoe.model import sharding
from jmoe.model.experts import swiglu
from jmoe.model.permute import ExpertWeights


class Block(NamedTuple):
    """Choices of one expert.

    Attributes:
      expert: the expert.
      x_CD: the tokens' rows.
      gate_C1: the choices' gates; zero in rows without a choice.
      token_C: the tokens.
      choice_C: the choices; in rows without one, J, which is beyond the end of all arrays of choices.
    """

    expert: Int[Array, ""]
    x_CD: Float[Array, "C D"]
    gate_C1: Float[Array, "C 1"]
    token_C: Int[Array, " C"]
    choice_C: Int[Array, " C"]


Inputs = tuple[Float[Array, "S D"], Float[Array, " J"], ExpertWeights, Int[Array, " J"], Int[Array, " E"]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def overflow(
    share: int,
    x_SD: Float[Array, "S D"],
    gate_J: Float[Array, " J"],
    weights: ExpertWeights,
    order_J: Int[Array, " J"],
    count_E: Int[Array, " E"],
) -> Float[Array, "S D"]:
    """The sum of each token's choices beyond the first `share` ones of their experts, weighted by their gates.

    JAX cannot differentiate loops whose number of steps is known only when they run. The backward pass makes the hidden
    units of each block again. Sums are float32.

    Args:
      share: choices of each expert to pass over.
      x_SD: all tokens.
      gate_J: of each choice.
      weights: of the experts.
      order_J: the choices, sorted by expert (routing.SortedChoices).
      count_E: choices of each expert.
    """

    def add_block(block: Block, sum_SD: Float[Array, "S D"]) -> Float[Array, "S D"]:
        y_CD = swiglu(block.x_CD, *_of_expert(weights, block.expert), block.gate_C1)
        return sum_SD.at[block.token_C].add(y_CD.astype(jnp.float32))

    return _over_blocks(add_block, _zeros(x_SD), (x_SD, gate_J, weights, order_J, count_E), share).astype(x_SD.dtype)


def _overflow_fwd(share: int, *inputs: PyTree[Array]) -> tuple[Float[Array, "S D"], Inputs]:
    return overflow(share, *inputs), inputs


def _overflow_bwd(
    share: int, inputs: Inputs, dy_SD: Float[Array, "S D"]
) -> tuple[Float[Array, "S D"], Float[Array, " J"], ExpertWeights, None, None]:
    x_SD, gate_J, weights, _, _ = inputs

    def add_gradients(block: Block, sums: tuple) -> tuple:
        dx_SD, dgate_J, dweights = sums
        e = block.expert

        def of_block(
            x_CD: Float[Array, "C D"], gate_C1: Float[Array, "C 1"], weights: ExpertWeights
        ) -> Float[Array, "C D"]:
            return swiglu(x_CD, *weights, gate_C1)

        _, backward = jax.vjp(of_block, block.x_CD, block.gate_C1, _of_expert(weights, e))
        dx_CD, dgate_C1, dweights_of_e = backward(dy_SD[block.token_C])
        # a row without a choice has some token, and adds zeros to its gradient
        dx_SD = dx_SD.at[block.token_C].add(dx_CD.astype(jnp.float32))
        dgate_J = dgate_J.at[block.choice_C].add(dgate_C1[:, 0].astype(jnp.float32), mode="drop")
        dweights = jax.tree.map(lambda sum_, dw: sum_.at[e].add(dw.astype(jnp.float32)), dweights, dweights_of_e)
        return dx_SD, dgate_J, dweights

    zeros = jax.tree.map(_zeros, (x_SD, gate_J, weights))
    sums = _over_blocks(add_gradients, zeros, inputs, share)
    dx_SD, dgate_J, dweights = jax.tree.map(lambda sum_, a: sum_.astype(a.dtype), sums, (x_SD, gate_J, weights))
    return dx_SD, dgate_J, dweights, None, None


overflow.defvjp(_overflow_fwd, _overflow_bwd)


def _over_blocks(add_block: Callable[[Block, PyTree], PyTree], sums: PyTree, inputs: Inputs, share: int) -> PyTree:
    """Calls `add_block` for each block in turn, with what the previous call returned; returns what the last did."""
    x_SD, gate_J, weights, order_J, count_E = inputs
    n_rows = min(max(share // 16, 8), 64, len(gate_J))  # C: of larger blocks more rows are empty
    end_E = jnp.cumsum(count_E)

    def of_expert(e: Int[Array, ""], sums: PyTree) -> PyTree:
        first = end_E[e] - count_E[e] + share

        def step(i: Int[Array, ""], sums: PyTree) -> PyTree:
            place_C = first + i * n_rows + jnp.arange(n_rows)
            has_choice_C = place_C < end_E[e]
            choice_C = jnp.take(order_J, place_C, mode="clip")
            gate_C = jnp.where(has_choice_C, gate_J[choice_C], 0).astype(x_SD.dtype)
            token_C = choice_C % len(x_SD)
            choice_C = jnp.where(has_choice_C, choice_C, len(gate_J))
            return add_block(Block(e, x_SD[token_C], gate_C[:, None], token_C, choice_C), sums)

        n_blocks = jnp.maximum(-(-(count_E[e] - share) // n_rows), 0)  # rounded up
        return jax.lax.fori_loop(0, n_blocks, step, sums)

    return jax.lax.fori_loop(0, len(count_E), of_expert, sums)


def _of_expert(weights: ExpertWeights, e: Int[Array, ""]) -> ExpertWeights:
    gate_DF, up_DF, down_FD = (jax.lax.dynamic_index_in_dim(w, e, keepdims=False) for w in weights)
    return gate_DF, up_DF, down_FD


def _zeros(a: Float[Array, "..."]) -> Float[Array, "..."]:
    """Float32 zeros like `a`, for the same devices."""
    return sharding.vary(jnp.zeros(a.shape, jnp.float32), sharding.varying_axes(a))
