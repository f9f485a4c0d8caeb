"""Products of rows sorted by expert through tokamax: its XLA implementation stands for its kernels on a CPU."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jmoe.errors import UserError
from jmoe.model import grouped_product
from jmoe.model.moe import reference_moe
from tests.jmoe.model import test_moe


@pytest.fixture(autouse=True)
def needs_tokamax():
    """Imported here and not with the file, which every worker reads: it takes two seconds."""
    pytest.importorskip("tokamax", reason="without tokamax: needs Python 3.12, no product was compared")


def products(rows, weights, counts):
    """One expert after another, in NumPy; zeros in the rows of none."""
    y = np.zeros((len(rows), weights.shape[2]))
    end = np.cumsum(counts)
    for e, n in enumerate(counts):
        y[end[e] - n : end[e]] = rows[end[e] - n : end[e]] @ weights[e]
    return y


@pytest.mark.parametrize("counts", [(3, 0, 9, 4), (3, 0, 5, 1)], ids=["all rows", "some rows of no expert"])
def test_values_and_both_gradients_are_those_of_numpy(counts):
    rng, n = np.random.default_rng(0), 16 if sum(counts) == 16 else 12  # 12 rows are padded to 16
    rows, weights, dy = rng.normal(size=(n, 8)), rng.normal(size=(4, 8, 6)), rng.normal(size=(n, 6))
    has_rows_without_expert = sum(counts) < len(rows)

    def product(rows, weights):
        counted = jnp.array(counts, jnp.int32)
        return grouped_product.grouped_product(rows, weights, counted, "tokamax", has_rows_without_expert)

    with jax.enable_x64(True):
        y, backward = jax.vjp(product, jnp.array(rows), jnp.array(weights))
        drows, dweights = backward(jnp.array(dy))
    np.testing.assert_allclose(y, products(rows, weights, counts), rtol=1e-12)
    np.testing.assert_allclose(drows, products(dy, weights.swapaxes(1, 2), counts), rtol=1e-12)
    end = np.cumsum(counts)
    for e, n in enumerate(counts):
        of_expert = slice(end[e] - n, end[e])
        np.testing.assert_allclose(dweights[e], rows[of_expert].T @ dy[of_expert], rtol=1e-12, atol=1e-12)


def test_the_layer_by_tokamax_is_the_reference_in_value_and_gradient():
    """On eight devices, where rows are sent to the devices of their experts."""
    inputs, mesh = test_moe.make_inputs(256, 8, skew=0.5), test_moe.make_mesh(2, 2, 2)
    options = dict(group_tokens=64, capacity_factor=None, top_k=2, kernel="tokamax")

    def of_layer(*arrays):
        return jnp.sum(jnp.cos(test_moe.mixture(mesh, **options)(*arrays)[0]))

    def of_reference(x, *weights):
        return jnp.sum(jnp.cos(reference_moe(x.reshape(4, 64, -1), *weights, top_k=2, capacity=None)))

    with jax.set_mesh(mesh):
        arrays = test_moe.place(mesh, inputs)
        value, gradients = jax.jit(jax.value_and_grad(of_layer, argnums=range(5)))(*arrays)
    with jax.enable_x64(True):
        expected, references = jax.jit(jax.value_and_grad(of_reference, argnums=range(5)))(*map(jnp.array, inputs))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        np.testing.assert_allclose(gradient, reference, atol=2e-5 * np.abs(reference).max())


def test_aligned_bfloat16_rows_on_a_gpu_take_tokamax():
    """What else takes XLA: test_kernels.py."""
    assert grouped_product.kernel_of("gpu", jnp.bfloat16, (64, 24)) == "tokamax"
    assert grouped_product.kernel_of("cpu", jnp.bfloat16, (64, 24)) == "even_shares"


def test_a_gpu_without_tokamax_is_a_sentence_that_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package tokamax on a GPU: install the \[cuda\] extra"):
        grouped_product.kernel_of("gpu", jnp.bfloat16, (64, 24))
