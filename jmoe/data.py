"""Batches by index: row i of the shuffled corpus is always the same row, so the position is the step alone.

Axis legend: B rows of the batch, T positions; a row holds T + 1 tokens, inputs and targets.
"""

import math

import grain.python as grain
import jax
import numpy as np

from jmoe import sharding
from jmoe.cli import UserError


class Rows:
    """Fixed-length rows of a flat token array: row i is tokens [i T, i T + T], the last one being a target only."""

    def __init__(self, tokens, seq_len: int):
        self._tokens, self._seq_len = tokens, seq_len

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._seq_len

    def read(self, indices) -> np.ndarray:
        """Rows [len(indices), T + 1] as int32."""
        rows = np.empty((len(indices), self._seq_len + 1), np.int32)
        for row, index in zip(rows, indices):
            start = int(index) * self._seq_len
            row[:] = self._tokens[start : start + self._seq_len + 1]
        return rows


def check_text(corpus, config, schedule, segment) -> str:
    """That the corpus suffices for all training up to the end of `segment`, before any is done.

    A law's tokens are fresh ones: repeats are an error unless config.data.max_epochs permits them.

    Returns:
      a warning, or nothing: there are fewer held-out tokens than config.data.validation_tokens.

    Raises:
      UserError: naming the tokens that are asked and those that there are.
    """
    data, found, n_tokens = config.data, n_training_tokens(corpus, config), schedule.tokens_at(segment.stop)
    _rows(corpus.train, data.seq_len, "training")
    batch = schedule.batch_at(segment.stop - 1)
    if batch > found:
        raise UserError(
            f"the training text has {found:,} tokens in whole rows, less than one batch of {batch:,} in "
            "config.batch_tokens: give more text or smaller batches"
        )
    if n_tokens > data.max_epochs * found:
        raise UserError(
            f"the run asks for {n_tokens:,} training tokens and corpus {corpus.fingerprint} has {found:,}, seen "
            f"{n_tokens / found:.3g} times, where config.data.max_epochs={data.max_epochs:g} permits "
            f"{data.max_epochs * found:,.0f}: give more text, a smaller budget in config.n_tokens, or permit repeats by "
            f"--config.data.max_epochs={math.ceil(n_tokens / found)}"
        )
    return check_held_out(corpus, config)


def check_held_out(corpus, config) -> str:
    """As check_text, of the held-out text alone."""
    asked, seq_len = config.data.validation_tokens, config.data.seq_len
    found = len(_rows(corpus.validation, seq_len, "held-out")) * seq_len
    if found >= asked // seq_len * seq_len:
        return ""
    return (
        f"WARNING: the held-out text has {found:,} tokens in whole rows, fewer than "
        f"config.data.validation_tokens={asked:,}: the loss is measured on those"
    )


def n_training_tokens(corpus, config) -> int:
    """Distinct training tokens: those in whole rows."""
    seq_len = config.data.seq_len
    return len(Rows(corpus.train, seq_len)) * seq_len


def training_batches(corpus, config, schedule, mesh, segment, start: int):
    """Yields the batch [B, T + 1] of each step in [start, segment.stop) as arrays spread over the mesh.

    Rows are shuffled anew in each epoch from config.seed. Each process reads only the rows of its own devices, a few
    steps ahead in threads.
    """
    seq_len = config.data.seq_len
    rows = _rows(corpus.train, seq_len, "training")
    # row numbers go through grain, not rows, which would take three times as long
    order = grain.MapDataset.range(len(rows)).shuffle(config.seed).repeat()

    def read(step):
        n_rows = schedule.batch_at(step) // seq_len
        first = schedule.tokens_at(step) // seq_len
        lo, hi = _own_rows(mesh, n_rows, seq_len)
        return rows.read([order[i] for i in range(first + lo, first + hi)]), n_rows

    steps = grain.MapDataset.range(start, segment.stop).map(read)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    for local, n_rows in steps.to_iter_dataset(options):
        yield _spread(local, mesh, n_rows, seq_len)


def validation_batches(corpus, config, mesh):
    """Yields (batch [B, T + 1], weight [B]) over about config.data.validation_tokens held-out tokens.

    The rows are spread evenly over the held-out documents and are the same for every model; B is the smallest training
    batch, and rows that only fill up the last batch weigh zero.
    """
    seq_len = config.data.seq_len
    rows, chosen = _rows(corpus.validation, seq_len, "held-out"), _validation_rows(corpus, config)
    n_rows = len(chosen)
    size = config.batch_tokens[0][1] // seq_len
    lo, hi = _own_rows(mesh, size, seq_len)
    for start in range(0, n_rows, size):
        weight = (np.arange(start, start + size) < n_rows).astype(np.float32)
        index = chosen[np.minimum(np.arange(start, start + size), n_rows - 1)]
        local = rows.read(index[lo:hi])
        yield _spread(local, mesh, size, seq_len), _spread(weight[lo:hi], mesh, size)


def validation_size(corpus, config) -> tuple[int, float]:
    """(tokens, UTF-8 bytes that they stand for) of the held-out text that is evaluated: the targets of its rows."""
    rows = Rows(corpus.validation, config.data.seq_len)
    counts = np.zeros(corpus.vocab_size, np.int64)
    for row in _validation_rows(corpus, config):
        counts += np.bincount(rows.read([row])[0, 1:], minlength=len(counts))
    return int(counts.sum()), float(counts @ corpus.token_bytes)


def n_validation_tokens(corpus, config) -> int:
    """Held-out tokens that are evaluated."""
    return len(_validation_rows(corpus, config)) * config.data.seq_len


def _validation_rows(corpus, config) -> np.ndarray:
    """The rows of the held-out text that are evaluated."""
    data, n_rows = config.data, len(Rows(corpus.validation, config.data.seq_len))
    return np.linspace(0, n_rows - 1, min(n_rows, max(1, data.validation_tokens // data.seq_len))).astype(int)


def _rows(tokens, seq_len: int, name: str) -> Rows:
    rows = Rows(tokens, seq_len)
    if not len(rows):
        raise UserError(
            f"the {name} text has {len(tokens)} tokens, less than one row of config.data.seq_len={seq_len}: give more "
            "text"
            + (", its own by config.data.validation_path," if name == "held-out" else "")
            + " or a shorter config.data.seq_len"
        )
    return rows


def _sharding(mesh):
    return jax.sharding.NamedSharding(mesh, sharding.TOKENS)


def _own_rows(mesh, n_rows: int, seq_len: int) -> tuple[int, int]:
    """The range of rows that this process's devices hold; devices of a process lie side by side in the mesh."""
    slices = [
        index[0].indices(n_rows)[:2]
        for index in _sharding(mesh).addressable_devices_indices_map((n_rows, seq_len + 1)).values()
    ]
    return min(lo for lo, _ in slices), max(hi for _, hi in slices)


def _spread(local: np.ndarray, mesh, n_rows: int, *_):
    return jax.make_array_from_process_local_data(_sharding(mesh), local, (n_rows,) + local.shape[1:])
