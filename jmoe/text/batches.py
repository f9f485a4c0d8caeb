"""Batches by index: row i of the shuffled corpus is always the same, so a run's position in it is its step.

Axis legend: B rows of the batch, T positions; a row holds T + 1 tokens, inputs and targets.
"""

import grain.python as grain
import jax
import numpy as np

from jmoe.model import sharding
from jmoe.text import supply


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
    orders = [grain.MapDataset.range(supply.n_rows(text, seq_len)).shuffle(config.seed).repeat() for text in texts]

    def place(row):
        i, k = supply.place(parts, row)
        return texts[i], orders[i][k]

    def read(step):
        n_rows = schedule.batch_at(step) // seq_len
        first = schedule.tokens_at(step) // seq_len
        lo, hi = _own_rows(mesh, n_rows, seq_len)
        return read_rows([place(row) for row in range(first + lo, first + hi)], seq_len), n_rows

    steps = grain.MapDataset.range(start, segment.stop).map(read)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    for local, n_rows in steps.to_iter_dataset(options):
        yield _spread(local, mesh, n_rows)


def validation_batches(corpus, config, mesh):
    """Yields (batch [B, T + 1], weight [B]) over about config.data.validation_tokens held-out tokens.

    The rows are spread evenly over each source's held-out text and are the same for every model. B is the smallest
    training batch; rows that fill up the last batch weigh zero.
    """
    seq_len = config.data.seq_len
    chosen = [(text.validation, row) for text, row in _validation_rows(corpus, config)]
    n_rows, size = len(chosen), config.batch_tokens[0][1] // seq_len
    lo, hi = _own_rows(mesh, size, seq_len)
    for start in range(0, n_rows, size):
        weight = (np.arange(start, start + size) < n_rows).astype(np.float32)
        places = [chosen[min(row, n_rows - 1)] for row in range(start + lo, start + hi)]
        local = read_rows(places, seq_len)
        yield _spread(local, mesh, size), _spread(weight[lo:hi], mesh, size)


def validation_bytes(corpus, config) -> float:
    """UTF-8 bytes of text that the evaluated tokens, the targets of validation_batches, stand for."""
    targets = lambda text, row: read_rows([(text.validation, row)], config.data.seq_len)[0, 1:]
    return float(sum(text.token_bytes[targets(text, row)].sum() for text, row in _validation_rows(corpus, config)))


def _validation_rows(corpus, config) -> list:
    """The rows of the held-out text that are evaluated, each with its corpus.Corpus."""
    seq_len, rows = config.data.seq_len, []
    chosen = supply.given(corpus.held_out, supply.n_validation_tokens(corpus, config) // seq_len)
    for part, n in zip(corpus.held_out, chosen):
        last = supply.n_rows(part.corpus.validation, seq_len) - 1
        rows += [(part.corpus, row) for row in np.linspace(0, last, n).astype(int)]
    return rows


def _own_rows(mesh, n_rows: int, seq_len: int) -> tuple[int, int]:
    """The range of rows that this process's devices hold; devices of a process lie side by side in the mesh."""
    layout = jax.sharding.NamedSharding(mesh, sharding.TOKENS)
    indices = layout.addressable_devices_indices_map((n_rows, seq_len + 1)).values()
    slices = [rows.indices(n_rows) for rows, _ in indices]
    return min(lo for lo, _, _ in slices), max(hi for _, hi, _ in slices)


def _spread(local: np.ndarray, mesh, n_rows: int):
    layout = jax.sharding.NamedSharding(mesh, sharding.TOKENS)
    return jax.make_array_from_process_local_data(layout, local, (n_rows,) + local.shape[1:])
