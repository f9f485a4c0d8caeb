"""Batches by index: row i of the shuffled corpus is always the same, so a run's position in it is its step.

Axis legend: B rows of the batch, T positions; a row holds T + 1 tokens, inputs and targets.
"""

import itertools
from collections.abc import Iterator

import grain.python as grain
import jax
import numpy as np

from jmoe.model import sharding
from jmoe.text import mixture


def read_rows(places, seq_len: int) -> np.ndarray:
    """Rows [len(places), T + 1] as int32; a place is (a flat token array, i): the row of its tokens i T to i T + T."""
    rows = np.empty((len(places), seq_len + 1), np.int32)
    for row, (tokens, index) in zip(rows, places):
        start = int(index) * seq_len
        row[:] = tokens[start : start + seq_len + 1]
    return rows


def training_batches(corpus, config, schedule, mesh, segment, start: int):
    """Yields the batch [B, T + 1] of each step in [start, segment.stop) as arrays spread over the mesh.

    Each source's rows are shuffled anew in each of its epochs from config.seed. Each process reads only the rows of its
    own devices, a few steps ahead in threads.
    """
    seq_len = config.data.seq_len
    # grain only shuffles row numbers, and we read each batch's rows at once: reading by grain takes three times as long
    parts, texts = corpus.parts, [part.corpus.train for part in corpus.parts]
    orders = [grain.MapDataset.range(mixture.n_rows(text, seq_len)).shuffle(config.seed).repeat() for text in texts]

    def place(row):
        i, k = mixture.place(parts, row)
        return texts[i], orders[i][k]

    def read(step):
        n_rows = schedule.batch_at(step) // seq_len
        first = schedule.tokens_at(step) // seq_len
        own = _own_rows(mesh, n_rows)
        return read_rows([place(first + row) for row in own.tolist()], seq_len), own, n_rows

    steps = grain.MapDataset.range(start, segment.stop).map(read)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    for local, own, n_rows in steps.to_iter_dataset(options):
        yield _spread(local, own, mesh, n_rows)


def validation_batches(corpus, config, mesh):
    """Yields (batch [B, T + 1], weight [B]) over about config.data.validation_tokens held-out tokens.

    The rows are spread evenly over each source's held-out text and are the same for every model. B is the smallest
    training batch, and a batch is of one source; rows that fill up a source's last batch weigh zero.
    """
    return itertools.chain.from_iterable(validation_sources(corpus, config, mesh).values())


def validation_sources(corpus, config, mesh) -> dict[str, Iterator]:
    """The validation_batches of each source of a mixture by its path, or of a single text by "". A source is left out
    whose share of the evaluated rows is less than one."""
    rows_of_sources = _validation_rows(corpus, config)
    return {part.name: _validation_batches(part, rows, config, mesh) for part, rows in rows_of_sources if len(rows)}


def _validation_batches(part: mixture.Part, rows: np.ndarray, config, mesh):
    """Yields (batch [B, T + 1], weight [B]) of these rows of one source's held-out text."""
    size = config.batch_tokens[0][1] // config.data.seq_len
    own = _own_rows(mesh, size)
    for start in range(0, len(rows), size):
        weight = (np.arange(start, start + size) < len(rows)).astype(np.float32)
        chosen = rows[np.minimum(start + own, len(rows) - 1)]
        local = read_rows([(part.corpus.validation, row) for row in chosen], config.data.seq_len)
        yield _spread(local, own, mesh, size), _spread(weight[own], own, mesh, size)


def validation_bytes(corpus, config) -> float:
    """UTF-8 bytes of text that the evaluated tokens, the targets of validation_batches, stand for."""
    n_bytes = 0.0
    for part, rows in _validation_rows(corpus, config):
        for row in rows:
            targets = read_rows([(part.corpus.validation, row)], config.data.seq_len)[0, 1:]
            n_bytes += part.corpus.token_bytes[targets].sum()
    return float(n_bytes)


def _validation_rows(corpus, config) -> list[tuple[mixture.Part, np.ndarray]]:
    """Each source of the held-out text, with the numbers of its rows that are evaluated."""
    seq_len, rows = config.data.seq_len, []
    chosen = mixture.given(corpus.held_out, mixture.n_validation_tokens(corpus, config) // seq_len)
    for part, n in zip(corpus.held_out, chosen):
        last = mixture.n_rows(part.corpus.validation, seq_len) - 1
        rows.append((part, np.linspace(0, last, n).astype(int)))
    return rows


def _own_rows(mesh, n_rows: int) -> np.ndarray:
    """The numbers of the rows of a batch that this process's devices hold, ascending.

    They have gaps where a mesh follows the torus of a TPU: on v5e:4x4 a process has two devices of each of two rows of
    chips.
    """
    layout = jax.sharding.NamedSharding(mesh, sharding.TOKENS)
    slices = [index[0] for index in layout.addressable_devices_indices_map((n_rows,)).values()]
    return np.unique([np.arange(n_rows)[rows] for rows in slices])


def _spread(local: np.ndarray, own: np.ndarray, mesh, n_rows: int) -> jax.Array:
    """The array of `n_rows` rows over the mesh, of which this process has `local`, the rows numbered `own`."""

    def of_device(index: tuple[slice, ...]) -> np.ndarray:
        rows = np.arange(n_rows)[index[0]]
        return local[np.searchsorted(own, rows)]

    layout = jax.sharding.NamedSharding(mesh, sharding.TOKENS)
    return jax.make_array_from_callback((n_rows, *local.shape[1:]), layout, of_device)
