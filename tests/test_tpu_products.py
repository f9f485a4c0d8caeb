"""tokamax's grouped product for TPUs in Pallas's interpreter against float64, and the bytes that its tiles move."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import tpu_products
from benchmarks.tpu_products import Product
from jmoe.cost.topologies import kernels_for, topology_devices
from jmoe.model import gpu_kernels

COUNTS = ((200, 0, 112, 200), (100, 0, 130, 70))  # all of 512 rows, and some rows of no expert


@pytest.fixture(scope="module")
def tpu():
    """A context in which kernels are made for a TPU v5e: Pallas's pipelines ask for the chip, interpreted ones too."""
    pytest.importorskip("tokamax", reason="without tokamax: it needs Python 3.12 or later, and no product was compared")
    pytest.importorskip("libtpu", reason="without libtpu: it alone knows topologies (the [tpu] extra)")
    device = topology_devices("v5e:2x2")[0]
    mesh = jax.sharding.Mesh(np.array([device]), ("device",)).abstract_mesh
    with kernels_for(device), jax.sharding.use_abstract_mesh(mesh):
        yield


@pytest.mark.parametrize("counts", COUNTS, ids=["all rows", "some rows of no expert"])
def test_product_and_both_gradients_are_those_of_float64(counts, tpu):
    """Inputs are rounded to bfloat16 first; results are rounded once, by at most 0.4%."""
    rng = np.random.default_rng(0)
    rows, weights, dy = (
        jnp.array(rng.normal(size=shape), jnp.bfloat16) for shape in ((512, 256), (4, 256, 384), (512, 384))
    )
    count_E = jnp.array(counts, jnp.int32)
    products = {
        "y": (rows, weights, gpu_kernels.FORWARD),
        "rows": (dy, weights, gpu_kernels.TO_ROWS),
        "weights": (rows, dy, gpu_kernels.TO_WEIGHTS),
    }
    results = {}
    for name, (a, b, dimensions) in products.items():
        y = tpu_products.by_tokamax(a, b, count_E, dimensions, interpret=True)
        assert y.dtype == jnp.bfloat16
        results[name] = np.array(y, np.float64)
    rows, weights, dy = (np.array(a, np.float64) for a in (rows, weights, dy))
    end = np.cumsum(counts)
    for e, n in enumerate(counts):
        of_expert = slice(end[e] - n, end[e])
        expected = rows[of_expert].T @ dy[of_expert]
        np.testing.assert_allclose(results["weights"][e], expected, rtol=2**-8, atol=1e-3)
        np.testing.assert_allclose(results["y"][of_expert], rows[of_expert] @ weights[e], rtol=2**-8, atol=1e-3)
        np.testing.assert_allclose(results["rows"][of_expert], dy[of_expert] @ weights[e].T, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("over_rows", [False, True])
@pytest.mark.parametrize("tiles", [(128, 256, 128), (256, 128, 384), (128, 128, 128), (256, 256, 384)])
def test_bytes_of_tiles_are_those_of_a_walk_over_the_grid(tiles, over_rows):
    """512 rows of 3 experts, which end within tiles; the first tile of an expert is the last one of the previous."""
    product = Product(512, 256, 384, 3, over_rows)
    rows, k, n = tiles
    starts = [0, 130, 385, 512]
    visits = []
    for e in range(3):
        for row in range(starts[e] // rows, -(-starts[e + 1] // rows)):
            visits.append((e, row))
    parts_k, parts_n = range(256 // k), range(384 // n)
    if over_rows:
        steps = [(j, i, e, row) for j in parts_n for i in parts_k for e, row in visits]
    else:
        steps = [(j, i, e, row) for j in parts_n for e, row in visits for i in parts_k]
    total = 0
    for size, block in (
        (rows * k, [(row, i) for _, i, _, row in steps]),
        (rows * n if over_rows else k * n, [(row, j) if over_rows else (e, i, j) for j, i, e, row in steps]),
        (k * n if over_rows else rows * n, [(e, i, j) if over_rows else (row, j) for j, i, e, row in steps]),
    ):
        total += size * (1 + sum(one != other for one, other in itertools.pairwise(block)))
    # an expert that begins within a tile finds its rows there: at most a tile for each expert is counted too much
    at_most = 2 * (3 - 1) * rows * (256 * len(parts_n) + 384 * len(parts_k))
    assert 2 * total <= product.bytes_by_tiles(tiles) <= 2 * total + at_most


def test_the_best_tiles_fit_and_no_others_move_fewer_bytes():
    product = Product(32_768, 3_072, 1_024, 8, over_rows=False)
    best = product.best_tiles()
    assert product.bytes_on_chip(best) <= tpu_products.TILE_BYTES
    libtpus = (128, 3_072, 384)
    assert product.bytes_once() < product.bytes_by_tiles(best) < product.bytes_by_tiles(libtpus)
    assert Product(32_768, 3_000, 1_024, 8, over_rows=False).best_tiles() is None
    assert Product(1_000, 256, 256, 8, over_rows=True).best_tiles() is None
