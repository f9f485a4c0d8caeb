"""Embeddings by exchange of rows: as by a table on one device, in value and gradient, and what crosses the network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jmoe.cost.program import Program
from jmoe.model.embedding_exchange import exchanged_lookup, rows_send_less

VOCAB = 96
D_MODEL = 32
N_ROWS = 8
N_POSITIONS = 64


def example(dtype, n_common: int = 0):
    """A table, tokens of which the first `n_common` are token 0, and the gradient of what they give."""
    rng = np.random.default_rng(0)
    embed_VD = jnp.asarray(rng.normal(size=(VOCAB, D_MODEL)), dtype)
    tokens_BT = rng.integers(VOCAB, size=(N_ROWS, N_POSITIONS))
    tokens_BT.reshape(-1)[:n_common] = 0
    dx_BTD = jnp.asarray(rng.normal(size=(N_ROWS, N_POSITIONS, D_MODEL)), dtype)
    return embed_VD, jnp.asarray(tokens_BT, jnp.int32), dx_BTD


def spread(n_data: int, n_expert: int):
    """A jitted function from a table, tokens and dx_BTD to x_BTD and the table's gradient on such a mesh."""
    axes = (AxisType.Auto,) * 2
    devices = jax.devices()[: n_data * n_expert]
    mesh = jax.make_mesh((n_data, n_expert), ("data", "expert"), axes, devices=devices)
    shared_by = ("expert",) if n_expert > 1 else ()

    def look_up(embed_VY, tokens_BT, dx_BTD):
        x_BTD, backward = jax.vjp(lambda embed_VY: exchanged_lookup(embed_VY, tokens_BT, VOCAB, shared_by), embed_VY)
        return x_BTD, *backward(dx_BTD)

    tokens = P(("data", *shared_by))
    table = P(None, "data")
    run = jax.shard_map(look_up, mesh=mesh, in_specs=(table, tokens, tokens), out_specs=(tokens, table))
    return jax.jit(run, in_shardings=[jax.NamedSharding(mesh, spec) for spec in (table, tokens, tokens)])


@pytest.mark.parametrize("n_data, n_expert", [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2)])
def test_rows_and_gradient_are_those_of_one_device(n_data, n_expert):
    embed_VD, tokens_BT, dx_BTD = example(jnp.float32)
    x_BTD, dembed_VD = spread(n_data, n_expert)(embed_VD, tokens_BT, dx_BTD)
    want_VD = np.zeros((VOCAB, D_MODEL))
    np.add.at(want_VD, np.asarray(tokens_BT), np.asarray(dx_BTD, np.float64))
    np.testing.assert_array_equal(x_BTD, np.asarray(embed_VD)[np.asarray(tokens_BT)])
    np.testing.assert_allclose(dembed_VD, want_VD, rtol=0, atol=1e-6)
    assert np.linalg.norm(dembed_VD - want_VD) < 1e-7 * np.linalg.norm(want_VD)


def test_gradients_of_a_common_token_are_summed_in_float32():
    """In bfloat16 a sum of 400 ones stops at 256."""
    embed_VD, tokens_BT, dx_BTD = example(jnp.bfloat16, n_common=400)
    _, dembed_VD = spread(4, 1)(embed_VD, tokens_BT, jnp.ones_like(dx_BTD))
    count = int(np.sum(np.asarray(tokens_BT) == 0))
    np.testing.assert_allclose(np.asarray(dembed_VD[0], np.float32), count, rtol=2**-8)


def test_rows_cross_the_network_and_the_table_does_not():
    embed_VD, tokens_BT, dx_BTD = example(jnp.float32)
    program = Program(spread(4, 1).lower(embed_VD, tokens_BT, dx_BTD).compile().as_text())
    sent = {}
    for collective in program.collectives():
        sent[collective.kind] = sent.get(collective.kind, 0) + collective.times * collective.bytes
    n_tokens = N_ROWS * N_POSITIONS // 4
    assert sent["all-to-all"] == 2 * 4 * n_tokens * D_MODEL * 3 // 4  # there and back
    assert sum(sent.values()) - sent["all-to-all"] <= 2 * 4 * n_tokens * 3  # the numbers of the tokens


@pytest.mark.parametrize(
    "sizes, less",
    [
        ((8, 16_384, 2_048, 50_304), True),
        ((8, 65_536, 2_048, 50_304), False),  # more tokens than rows of the table
        ((64, 16_384, 2_048, 50_304), False),  # slices of 32 numbers
        ((1, 16_384, 2_048, 50_304), False),
    ],
)
def test_rows_are_exchanged_where_they_are_fewer_than_the_table_and_wide(sizes, less):
    assert rows_send_less(*sizes) == less
