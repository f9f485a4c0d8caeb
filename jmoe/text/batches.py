"""Batches by index: row i of the shuffled corpus is always the same, so a run's position in it is its step.

Axis legend: B rows of the batch, L of them on this process's devices, D on one device, R rows, T positions; a row holds
T + 1 tokens, inputs and targets.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import grain.python as grain
import jax
import numpy as np
from jaxtyping import Float, Int, Int32, Shaped
from ml_collections import ConfigDict

from jmoe.model import sharding
from jmoe.run.schedule import Schedule, Segment
from jmoe.text import mixture
from jmoe.text.training_text import Part, Tokens, TrainingText

TrainingBatch = Int32[jax.Array, "B T+1"]
ValidationBatch = tuple[Int32[jax.Array, "B T+1"], Float[jax.Array, " B"]]  # tokens, and the weight of each row


def read_rows(places: Sequence[tuple[Tokens | Int[np.ndarray, " N"], int]], seq_len: int) -> Int32[np.ndarray, "R T+1"]:
    """Reads rows of tokens.

    Args:
      places: (flat array of tokens, i) of each row, which has its tokens from i T to i T + T.
      seq_len: T.
    """
    rows = np.empty((len(places), seq_len + 1), np.int32)
    for row, (tokens, index) in zip(rows, places, strict=True):
        start = int(index) * seq_len
        row[:] = tokens[start : start + seq_len + 1]
    return rows


def training_batches(
    corpus: TrainingText,
    config: ConfigDict,
    schedule: Schedule,
    mesh: jax.sharding.Mesh,
    segment: Segment,
    start: int,
) -> Iterator[TrainingBatch]:
    """Yields the batch of each step in [start, segment.stop), spread over the mesh.

    Each source's rows are reshuffled in each of its epochs from config.seed. Each process reads only the rows of its
    own devices, a few steps ahead in threads.
    """
    seq_len = config.data.seq_len
    row_of_text = _shuffled_rows(corpus, config)

    def place_of(row: int) -> tuple[Tokens, int]:
        part, row_in_text = row_of_text(row)
        return part.corpus.train, row_in_text

    def read(step: int) -> tuple[Int32[np.ndarray, "L T+1"], Int[np.ndarray, " L"], int]:
        n_rows = schedule.batch_at(step) // seq_len
        first = schedule.tokens_at(step) // seq_len
        local_rows = _local_rows(mesh, n_rows)
        return read_rows([place_of(first + row) for row in local_rows.tolist()], seq_len), local_rows, n_rows

    steps = grain.MapDataset.range(start, segment.stop).map(read)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    for local, local_rows, n_rows in steps.to_iter_dataset(options):
        yield _spread(local, local_rows, mesh, n_rows)


def _shuffled_rows(corpus: TrainingText, config: ConfigDict) -> Callable[[int], tuple[Part, int]]:
    """A function from the number of a row of the run to its source, and the number of the row in the source's text."""
    seq_len = config.data.seq_len
    # grain only shuffles row numbers, and we read each batch's rows at once: reading by grain takes three times as long
    parts = corpus.parts
    counts = [mixture.n_rows(part.corpus.train, seq_len) for part in parts]
    orders = [grain.MapDataset.range(count).shuffle(config.seed).repeat() for count in counts]

    def row_of_text(row: int) -> tuple[Part, int]:
        i, k = mixture.locate_row(parts, row)
        shuffled_row = orders[i][k]
        assert shuffled_row is not None  # grain has None for what a filter drops, and there is no filter
        return parts[i], shuffled_row

    return row_of_text


def rows_of_step(corpus: TrainingText, config: ConfigDict, schedule: Schedule, step: int) -> dict[str, list[int]]:
    """The rows of a step's batch, in its order, by source ("" for a text of one source).

    Row i of a source has the training tokens i seq_len to (i + 1) seq_len of its text.
    """
    seq_len = config.data.seq_len
    row_of_text = _shuffled_rows(corpus, config)
    rows: dict[str, list[int]] = {}
    for row in range(schedule.tokens_at(step) // seq_len, schedule.tokens_at(step + 1) // seq_len):
        part, row_in_text = row_of_text(row)
        rows.setdefault(part.name, []).append(row_in_text)
    return rows


def validation_batches(corpus: TrainingText, config: ConfigDict, mesh: jax.sharding.Mesh) -> Iterator[ValidationBatch]:
    """Yields tokens and weights of about config.data.validation_tokens held-out tokens.

    The rows are spread evenly over each source's held-out text and are the same for every model. B is the smallest
    training batch, and a batch is of one source. Rows that fill up a source's last batch weigh zero.
    """
    return itertools.chain.from_iterable(validation_sources(corpus, config, mesh).values())


def validation_sources(
    corpus: TrainingText, config: ConfigDict, mesh: jax.sharding.Mesh
) -> dict[str, Iterator[ValidationBatch]]:
    """The validation_batches of each source of a mixture by its name, or of a single text by "".

    A source is left out if its share of the evaluated rows is less than one row.
    """
    return {
        part.name: _validation_batches(part, rows, config, mesh)
        for part, rows in _validation_rows(corpus, config)
        if len(rows)
    }


def _validation_batches(
    part: Part, rows: Int[np.ndarray, " R"], config: ConfigDict, mesh: jax.sharding.Mesh
) -> Iterator[ValidationBatch]:
    """Yields tokens and weights of these rows of one source's held-out text."""
    batch_rows = config.batch_tokens[0][1] // config.data.seq_len
    local_rows = _local_rows(mesh, batch_rows)
    for start in range(0, len(rows), batch_rows):
        weight = (np.arange(start, start + batch_rows) < len(rows)).astype(np.float32)
        chosen = rows[np.minimum(start + local_rows, len(rows) - 1)]
        local = read_rows([(part.corpus.validation, row) for row in chosen], config.data.seq_len)
        batch = _spread(local, local_rows, mesh, batch_rows)
        yield batch, _spread(weight[local_rows], local_rows, mesh, batch_rows)


def validation_bytes(corpus: TrainingText, config: ConfigDict) -> float:
    """UTF-8 bytes of text that the evaluated tokens, the targets of validation_batches, encode."""
    n_bytes = 0.0
    for part, rows in _validation_rows(corpus, config):
        for row in rows:
            targets = read_rows([(part.corpus.validation, row)], config.data.seq_len)[0, 1:]
            n_bytes += part.corpus.token_bytes[targets].sum()
    return float(n_bytes)


def _validation_rows(corpus: TrainingText, config: ConfigDict) -> list[tuple[Part, Int[np.ndarray, " R"]]]:
    """Each source of the held-out text, with the numbers of its rows that are evaluated."""
    seq_len = config.data.seq_len
    n_rows = mixture.n_validation_tokens(corpus, config) // seq_len
    rows = []
    for part, n in zip(corpus.held_out, mixture.rows_by_part(corpus.held_out, n_rows), strict=True):
        last = mixture.n_rows(part.corpus.validation, seq_len) - 1
        rows.append((part, np.linspace(0, last, n).astype(int)))
    return rows


def _local_rows(mesh: jax.sharding.Mesh, n_rows: int) -> Int[np.ndarray, " L"]:
    """The numbers of the rows of a batch that this process's devices hold, ascending.

    They have gaps where a mesh follows the torus of a TPU: on v5e:4x4 a process has two devices of each of two rows of
    chips.
    """
    layout = jax.sharding.NamedSharding(mesh, sharding.tokens(mesh))
    indices = layout.addressable_devices_indices_map((n_rows,)).values()
    slices = [index[0] for index in indices if index is not None]
    return np.unique([np.arange(n_rows)[rows] for rows in slices])


def _spread(
    local: Shaped[np.ndarray, "L ..."], local_rows: Int[np.ndarray, " L"], mesh: jax.sharding.Mesh, n_rows: int
) -> Shaped[jax.Array, "B ..."]:
    """The array of `n_rows` rows over the mesh, of which this process has `local`, the rows numbered `local_rows`."""

    def rows_of_device(index: tuple[slice, ...] | None) -> Shaped[np.ndarray, "D ..."]:
        assert index is not None
        rows = np.arange(n_rows)[index[0]]
        return local[np.searchsorted(local_rows, rows)]

    layout = jax.sharding.NamedSharding(mesh, sharding.tokens(mesh))
    return jax.make_array_from_callback((n_rows, *local.shape[1:]), layout, rows_of_device)
