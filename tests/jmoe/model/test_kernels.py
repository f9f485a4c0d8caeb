"""The kernels that a run's first lines name, and why another one stands in for the fastest. Nothing is computed."""

import functools
import sys

import jax
import jax.numpy as jnp
import pytest

from jmoe.errors import UserError
from jmoe.model import attention, gpu_kernels, grouped_product, kernels, sharding, tpu_flash


@pytest.fixture(autouse=True)
def nothing_noted():
    kernels.take()


def on(platform, monkeypatch):
    monkeypatch.setattr(sharding, "platform", lambda: platform)


def test_each_choice_is_noted_once_and_in_order():
    kernels.note("attention", "a")
    kernels.note("experts", "b", "c is missing")
    kernels.note("attention", "a")
    assert kernels.take() == ["attention by a", "experts by b, a fall-back: c is missing"]
    assert kernels.take() == []


def flash_of(t, k):
    q_BTHK = jax.ShapeDtypeStruct((1, t, 2, k), jnp.bfloat16)
    return jax.eval_shape(lambda *inputs: attention.flash(*inputs), q_BTHK, q_BTHK, q_BTHK)  # traced at each call


@pytest.mark.parametrize("t, k", [(200, 64), (256, 8), (2**17, 64)])
def test_shapes_that_the_tpu_kernel_refuses_are_named(t, k, monkeypatch):
    on("tpu", monkeypatch)
    assert not tpu_flash.fits(t, k)
    assert flash_of(t, k).shape == (1, t, 2, k)
    (line,) = kernels.take()
    assert "attention by XLA" in line and "a fall-back: tpu_flash takes" in line
    assert line.endswith(f"not T = {t}, heads of {k}")


def test_a_platform_without_a_flash_kernel_is_named(monkeypatch):
    flash_of(256, 64)
    assert kernels.take()[0].endswith("a fall-back: no flash kernel for cpu")
    on("tpu", monkeypatch)
    flash_of(256, 64)
    assert kernels.take() == ["attention by tpu_flash, Pallas, in bfloat16"]


def test_experts_that_xla_multiplies_by_every_row_are_named():
    assert grouped_product.kernel_of("gpu", jnp.float32, (64, 64)) == "xla"
    assert "a fall-back: tokamax's kernels take 16-bit numbers, not float32" in kernels.take()[0]
    assert grouped_product.kernel_of("gpu", jnp.bfloat16, (64, 20)) == "xla"
    assert "a fall-back: tokamax's kernels take rows of a multiple of 8, not of 20" in kernels.take()[0]
    assert grouped_product.kernel_of("tpu", jnp.float32, (64, 20)) == "xla"
    assert "fall-back" not in kernels.take()[0]


def refused(reason, *_):
    raise reason


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose Mosaic refuses every shape, and whose Triton gives the right shape."""
    pytest.importorskip("tokamax", reason="SKIPPED: tokamax needs Python 3.12 or later: no fall-back was traced")
    on("gpu", monkeypatch)
    monkeypatch.setattr(gpu_kernels, "has_triton", lambda: True)
    monkeypatch.setattr(gpu_kernels, "by_mosaic", functools.partial(refused, NotImplementedError("not for this chip")))
    monkeypatch.setattr(gpu_kernels, "by_triton", lambda a, b, count, dimensions: a)


@pytest.mark.parametrize("dimensions", [gpu_kernels.FORWARD, gpu_kernels.TO_ROWS])
def test_mosaic_that_refuses_is_named(dimensions, gpu):
    gpu_kernels.product(jnp.zeros((8, 8)), jnp.zeros((2, 8, 8)), jnp.zeros(2, jnp.int32), dimensions)
    (line,) = kernels.take()
    assert line.endswith("by tokamax, Triton, a fall-back: Mosaic: not for this chip")


def test_triton_is_no_fall_back_for_the_gradient_of_weights(gpu):
    gpu_kernels.product(jnp.zeros((8, 8)), jnp.zeros((8, 8)), jnp.zeros(2, jnp.int32), gpu_kernels.TO_WEIGHTS)
    assert kernels.take() == ["gradient of weights of experts that drop nothing by tokamax, Triton"]


def test_a_tokamax_that_does_not_fit_its_packages_is_a_sentence(monkeypatch, tmp_path):
    (tmp_path / "tokamax").mkdir()
    (tmp_path / "tokamax" / "__init__.py").write_text("raise ImportError('cannot import name f from jax')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tokamax", raising=False)
    with pytest.raises(UserError) as told:
        grouped_product.kernel_of("gpu", jnp.bfloat16, (64, 64))
    for words in ("grouped products", "cannot be imported: ImportError: cannot import name f from jax", "[cuda] extra"):
        assert words in str(told.value)
