"""config.data.document_mask: a token sees only its own document, in every kind of attention and in the whole model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jmoe.model import attention, documents, loss, parameters, sharding, transformer
from jmoe.run import step
from jmoe.text import corpus
from tests.jmoe.model.test_flash import differences, kernels_as_on_a_tpu, normal, value_and_gradients
from tests.jmoe.model.test_model import tiny

END = 256


def test_documents_are_found_by_the_ends_of_text():
    tokens = np.random.default_rng(0).integers(0, 4, (3, 50))
    tokens[2] = 1  # a row without an end of text
    numbers, positions = jax.jit(functools.partial(documents.find_documents, end_of_text=3))(tokens)
    for row, number_T, position_T in zip(tokens, numbers, positions, strict=True):
        number = position = 0
        for token, found_number, found_position in zip(row, number_T, position_T, strict=True):
            assert (found_number, found_position) == (number, position)
            position += 1
            if token == 3:
                number += 1
                position = 0


def test_the_end_of_text_is_the_one_that_the_text_was_prepared_with(text_glob):
    config = tiny()
    config.data.path = text_glob
    text = corpus.load(config.data)
    assert corpus.mask_token(config.data, text) is None
    config.data.document_mask = True
    token = corpus.mask_token(config.data, text)
    assert token == END and np.sum(text.train[: len(text.train)] == token) > 10


def documents_of(b, t):
    """[B, T] numbers of documents: some of a token or two, and one in which whole blocks of queries lie."""
    ends = np.random.default_rng(1).random((b, t)) < 4 / t
    ends[:, [0, 1, t - 2]] = True
    return np.cumsum(ends, axis=1).astype(np.int32)


def all_at_once(q, k, v, document_BT):
    return attention.exact(q, k, v, 0, document_BT, document_BT)


@pytest.mark.parametrize(
    "function, shape",
    [
        pytest.param(all_at_once, (2, 96, 6, 16, 2), id="all positions at once"),
        pytest.param(attention.blocks, (2, 1_024, 4, 16, 2), id="blocks"),
        pytest.param(kernels_as_on_a_tpu, (2, 384, 4, 16, 2), id="grouped, kernels as on a TPU"),
    ],
)
def test_attention_stays_within_a_document(function, shape):
    inputs = normal(*shape)
    document_BT = documents_of(*shape[:2])
    got = value_and_gradients(function, *inputs, document_BT)
    assert max(differences(got, inputs, document_BT)) < 5e-6


def rows_of_two_documents(config, n_rows):
    """[B, T + 1] rows, each with an end of text somewhere, and where the second document begins."""
    random = np.random.default_rng(0)
    rows = random.integers(0, END, (n_rows, config.data.seq_len + 1)).astype(np.int32)
    begins = random.integers(2, config.data.seq_len - 2, n_rows)
    rows[np.arange(n_rows), begins - 1] = END
    return rows, begins


@pytest.mark.parametrize("kind", ["float32", "flash"])
def test_gradients_are_the_sum_of_those_of_each_document(kind):
    """Documents as rows of their own, from position 0 on, against rows of two; on one device and on eight."""
    config = tiny(n_experts=4, capacity_factor=None, group_tokens=32, attention=kind)
    config.loss.load_balance = config.loss.router_z = 0.0  # which see all tokens of a batch
    config.batch_tokens = ((0, 256),)
    rows, begins = rows_of_two_documents(config, 8)
    params = jax.device_get(parameters.init_params(config))
    tokens_BT = np.zeros((16, config.data.seq_len), np.int32)  # what follows a document does not change it
    target_BT = tokens_BT.copy()
    counts_BT = np.zeros(tokens_BT.shape, np.float32)
    for i, (row, begin) in enumerate(zip(rows, begins, strict=True)):
        for j, (first, last) in enumerate(((0, begin), (begin, config.data.seq_len))):
            tokens_BT[2 * i + j, : last - first] = row[first:last]
            target_BT[2 * i + j, : last - first] = row[first + 1 : last + 1]
            counts_BT[2 * i + j, : last - first] = 1 / rows[:, 1:].size

    def nats(params):
        x_BTD, head_DV, _ = transformer.apply(params, tokens_BT, config, True)
        nats_N = loss.cross_entropy(x_BTD.reshape(-1, x_BTD.shape[-1]), head_DV, target_BT.reshape(-1))
        return jnp.sum(nats_N * counts_BT.reshape(-1))

    one = sharding.make_mesh(config, jax.devices()[:1])
    specs = parameters.parameter_specs(config.model, one.shape)
    with jax.set_mesh(one):
        local = sharding.per_device(jax.value_and_grad(nats), one, (specs,), (sharding.REPLICATED, specs))
        want_loss, want = jax.device_get(jax.jit(local)(params))
    for n_devices, config.mesh.expert in ((1, 1), (8, 4)):
        mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
        with jax.set_mesh(mesh):
            placed = jax.device_put(params, parameters.parameter_shardings(mesh, config.model))
            batch = jax.device_put(rows, jax.NamedSharding(mesh, sharding.TOKENS))
            compute = jax.jit(functools.partial(step.gradient, config=config, mesh=mesh, end_of_text=END))
            (got_loss, _), got = jax.device_get(compute(placed, batch))
        tolerance = 1e-5 if kind == "float32" else 2e-3
        assert got_loss == pytest.approx(want_loss, rel=tolerance)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert np.linalg.norm(a - b) <= 5 * tolerance * np.linalg.norm(b) + 1e-9
