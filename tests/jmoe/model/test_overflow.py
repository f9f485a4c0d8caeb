"""What overflows an expert's even share, against one choice after another and JAX's own gradient of that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jmoe.model import routing
from jmoe.model.overflow import overflow

N_TOKENS = 40
N_EXPERTS = 4


def made(share, expert_J, x_SD, gate_J, weights):
    choices = routing.sort_by_expert(jnp.array(expert_J, jnp.int32)[None], N_EXPERTS)
    return overflow(share, x_SD, gate_J, weights, choices.order_GJ[0], choices.count_GE[0])


def one_after_another(share, expert_J, x_SD, gate_J, weights):
    """Each choice that comes after `share` others of its expert, through that expert."""
    n_before = [0] * N_EXPERTS
    y_SD = jnp.zeros_like(x_SD)
    for choice, e in enumerate(expert_J):
        if e == N_EXPERTS:  # none
            continue
        if n_before[e] >= share:
            gate_DF, up_DF, down_FD = (weight[e] for weight in weights)
            x_D = x_SD[choice % N_TOKENS]
            a_F = x_D @ gate_DF
            y_D = (a_F / (1 + jnp.exp(-a_F)) * (x_D @ up_DF)) @ down_FD
            y_SD = y_SD.at[choice % N_TOKENS].add(gate_J[choice] * y_D)
        n_before[e] += 1
    return y_SD


@pytest.mark.parametrize(
    "counts",
    [
        (20, 20, 20, 20),  # nothing overflows
        (33, 1, 26, 20),
        (0, 40, 0, 40),
        (31, 23, 0, 21),  # and choices of no expert
    ],
)
def test_values_and_gradients_are_those_of_one_choice_after_another(counts):
    rng = np.random.default_rng(0)
    n_choices = 2 * N_TOKENS
    experts = np.repeat(np.arange(N_EXPERTS + 1), (*counts, n_choices - sum(counts)))
    expert_J = rng.permutation(experts).tolist()
    shapes = ((N_EXPERTS, 6, 5), (N_EXPERTS, 6, 5), (N_EXPERTS, 5, 6))
    dy_SD = rng.normal(size=(N_TOKENS, 6))

    def gradients(function, x_SD, gate_J, weights):
        def total(*arrays):
            return jnp.sum(function(20, expert_J, *arrays) * dy_SD)

        return function(20, expert_J, x_SD, gate_J, weights), jax.grad(total, argnums=(0, 1, 2))(x_SD, gate_J, weights)

    inputs = (
        jnp.array(rng.normal(size=(N_TOKENS, 6)), jnp.float32),
        jnp.array(rng.uniform(size=n_choices), jnp.float32),
        tuple(jnp.array(rng.normal(size=shape), jnp.float32) for shape in shapes),
    )
    found = gradients(made, *inputs)
    with jax.enable_x64(True):
        expected = gradients(one_after_another, *jax.tree.map(lambda a: jnp.array(a, jnp.float64), inputs))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, np.abs(b).max()))


def test_the_gradient_of_bfloat16_weights_is_summed_in_float32():
    """Over blocks too: in bfloat16, a sum of ones stops at 256."""
    n_rows = 1024
    ones = jnp.ones((1, 1, 1), jnp.bfloat16)
    x_SD = jnp.ones((n_rows, 1), jnp.bfloat16)
    gate_J = jnp.full(n_rows, 1 / 64)  # of hidden units of 64: silu(64) is 64
    order_J = jnp.arange(n_rows)
    count_E = jnp.array([n_rows], jnp.int32)

    def total(down_EFD):
        y_SD = overflow(0, x_SD, gate_J, (64 * ones, ones, down_EFD), order_J, count_E)
        return jnp.sum(y_SD.astype(jnp.float32))

    np.testing.assert_array_equal(jax.grad(total)(ones), [[[n_rows]]])
