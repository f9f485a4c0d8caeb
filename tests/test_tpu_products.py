"""tokamax's grouped product for TPUs in Pallas's interpreter against float64, and the bytes that its tiles move."""

import itertools

import pytest

from benchmarks import tpu_products
from benchmarks.tpu_products import Product


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
