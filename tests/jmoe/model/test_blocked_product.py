"""Products of rows sorted by expert, in blocks, against NumPy: one expert after another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jmoe.model.blocked_product import blocked_product, rows_of_a_block


def product_of_each_expert(rows, weights, counts):
    """Zeros in the rows of none."""
    y = np.zeros((len(rows), weights.shape[2]))
    start = 0
    for weight, n in zip(weights, counts, strict=True):
        y[start : start + n] = rows[start : start + n] @ weight
        start += n
    return y


@pytest.mark.parametrize(
    "n_rows, counts",
    [
        (128, (40, 0, 71, 17)),
        (128, (0, 0, 128, 0)),  # all blocks of one expert
        (128, (31, 33, 1, 0)),  # rows after those of the last expert
        (128, (0, 0, 0, 0)),
        (5, (2, 0, 0, 3)),  # fewer rows than the smallest block
        (1, (0, 1, 0, 0)),
    ],
)
def test_values_and_both_gradients_are_those_of_numpy(n_rows, counts):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n_rows, 6))
    weights = rng.normal(size=(4, 6, 10))
    dy = rng.normal(size=(n_rows, 10))

    def product(rows, weights):
        return blocked_product(rows, weights, jnp.array(counts, jnp.int32))

    with jax.enable_x64(True):
        y, backward = jax.vjp(product, jnp.array(rows), jnp.array(weights))
        drows, dweights = backward(jnp.array(dy))
    np.testing.assert_allclose(y, product_of_each_expert(rows, weights, counts), rtol=1e-12)
    np.testing.assert_allclose(drows, product_of_each_expert(dy, weights.swapaxes(1, 2), counts), rtol=1e-12)
    start = 0
    for dweight, n in zip(dweights, counts, strict=True):
        of_expert = slice(start, start + n)
        np.testing.assert_allclose(dweight, rows[of_expert].T @ dy[of_expert], rtol=1e-12, atol=1e-12)
        start += n


def test_the_gradient_of_bfloat16_weights_is_summed_in_float32():
    """Over blocks too: in bfloat16, a sum of ones stops at 256."""
    n_rows = 1024
    assert rows_of_a_block(n_rows, 1) < n_rows
    ones = jnp.ones((n_rows, 1), jnp.bfloat16)

    def total(weights):
        return jnp.sum(blocked_product(ones, weights, jnp.array([n_rows], jnp.int32)).astype(jnp.float32))

    gradient = jax.grad(total)(jnp.ones((1, 1, 1), jnp.bfloat16))
    np.testing.assert_array_equal(gradient, [[[n_rows]]])
