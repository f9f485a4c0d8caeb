"""Units of text, tokenised by several processes, each unit into a .npz file.

A unit (sources.Text.units) is a few megabytes of documents. A document that repeats another one of its unit is left
out. A file (jmoe/text/unit_format.py) that a kill or a disk damaged is made again from the text.

Axis legend: T tokens of a unit.
"""

import concurrent.futures
import dataclasses
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import UInt
from ml_collections import ConfigDict
from tqdm import tqdm

from jmoe.errors import Damaged, UserError
from jmoe.storage.files import names_below
from jmoe.text import holdout, sources
from jmoe.text import tokenizer as tokenizer_lib
from jmoe.text.tokenizer import Tokenizer
from jmoe.text.unit_format import DOCUMENTS, AnyPath, Documents, read_tokens, read_unit_documents, write_unit

_T = TypeVar("_T")
Unit = tuple[str, list[sources.Piece]]  # the split that its sources belong to, and what it reads

_worker: tuple[ConfigDict, Tokenizer]  # of a process of the pool: config.data and its tokenizer


@dataclasses.dataclass(frozen=True)
class Split:
    """A document to store as two: its hash, and about how many bytes the second has."""

    sha256: bytes
    tail: int


@dataclasses.dataclass(frozen=True)
class UnitFiles:
    """The units of a text, and the file of each.

    Attributes:
      units: All units.
      folder: Where the files are.
      data: config.data.
      tokenizer: The tokenizer that config.data names.
    """

    units: list[Unit]
    folder: AnyPath
    data: ConfigDict
    tokenizer: Tokenizer

    def path(self, number: int) -> AnyPath:
        """The file of a unit, whose `number` counts from 0."""
        return self.folder / f"{number:06}.npz"

    def tokenise(self, numbers: Sequence[int], n_workers: int) -> None:
        """Tokenises these units, except those that have a file, and shows progress."""
        names = set(names_below(self.folder, 1))
        todo = [number for number in numbers if self.path(number).name not in names]
        n_bytes = sum(self._n_bytes(number) for number in numbers)
        n_bytes_done = n_bytes - sum(self._n_bytes(number) for number in todo)
        with tqdm(
            desc="tokenising", total=n_bytes, initial=n_bytes_done, unit="B", unit_scale=True, disable=None, leave=False
        ) as bar:
            if min(n_workers, len(todo)) <= 1:
                for number in todo:
                    self._tokenise_unit(number)
                    bar.update(self._n_bytes(number))
            else:
                pieces = [(self.units[number][1], self.path(number)) for number in todo]
                _tokenise_in_parallel(pieces, self.data, min(n_workers, len(todo)), bar)

    def tokens(self, number: int) -> UInt[np.ndarray, " T"]:
        """The tokens of a unit, whose file is made again where it is damaged or missing."""
        return self._read(number, read_tokens)

    def documents(self, number: int) -> Documents:
        """The documents of a unit, whose file is made again where it is damaged or missing."""
        return self._read(number, read_unit_documents)

    def _read(self, number: int, read: Callable[[AnyPath], _T]) -> _T:
        path = self.path(number)
        try:
            return read(path)
        except Damaged as error:
            fault = str(error)
        except FileNotFoundError:
            if not self.folder.exists():  # another machine has ended the preparation
                raise
            fault = f"{path} is missing"
        tqdm.write(f"WARNING: {fault}; it is tokenised again", file=sys.stderr)
        self._tokenise_unit(number)
        return read(path)

    def _tokenise_unit(self, number: int) -> None:
        _, unit = self.units[number]
        tokenise_unit(unit, self.path(number), self.data, self.tokenizer)

    def _n_bytes(self, number: int) -> int:
        _, unit = self.units[number]
        return _n_bytes(unit)


def _n_bytes(unit: list[sources.Piece]) -> int:
    return sum(piece.size for piece in unit)


def _tokenise_in_parallel(
    todo: list[tuple[list[sources.Piece], AnyPath]], data: ConfigDict, n_workers: int, bar: tqdm
) -> None:
    """Tokenises units in a pool of processes; UserError where one of these is killed."""
    spawn = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(n_workers, spawn, _start_worker, (data,))
    try:
        # workers inherit this mask, so a Ctrl-C interrupts only this process, once they have started
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            unit_by_future = {pool.submit(_work, unit, path): unit for unit, path in todo}
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for future in concurrent.futures.as_completed(unit_by_future):
            future.result()
            bar.update(_n_bytes(unit_by_future[future]))
    except concurrent.futures.process.BrokenProcessPool:
        raise UserError(
            "a process that tokenised was killed, perhaps for want of memory; the same command resumes, and "
            "--workers takes fewer"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker(data: ConfigDict) -> None:
    """Loads the tokenizer in a process of the pool, and has it end with its parent."""
    global _worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = data, tokenizer_lib.load(data.tokenizer, data.end_of_text)


def _end_with_parent() -> None:
    """Waits in a thread for the parent's end, and then ends this process, which may be in the middle of a unit.

    Only the main thread could raise an exception that ends it, and it is busy. Half a unit leaves a temporary file.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(unit: list[sources.Piece], path: AnyPath) -> None:
    data, tokenizer = _worker
    tokenise_unit(unit, path, data, tokenizer)


def tokenise_unit(
    unit: list[sources.Piece],
    path: AnyPath,
    data: ConfigDict,
    tokenizer: Tokenizer,
    split: Split | None = None,
) -> None:
    """Writes the file of one unit, leaving out repeated documents.

    The document that `split` names, if any, counts as two.
    """
    tokens = [np.empty(0, tokenizer.dtype)]
    documents = []
    seen = set()
    n_skipped = 0
    skip = data.on_bad_document == "skip"
    for document in (document for piece in unit for document in sources.documents(piece, data.text_field, skip)):
        if document is None:
            n_skipped += 1
            continue
        key = hashlib.sha256(document).digest()
        if not document or key in seen:
            continue
        seen.add(key)
        parts = [document]
        if split and key.rstrip(b"\0") == split.sha256:  # numpy drops trailing zeros
            start = holdout.cut_at(document, split.tail)
            if start:
                parts = [document[:start], document[start:]]
        for part in parts:
            tokens.append(tokenizer.encode(part))
            documents.append((hashlib.sha256(part).digest(), len(tokens[-1]), len(part)))
    table = np.array(documents, DOCUMENTS)
    write_unit(path, np.concatenate(tokens), table, n_skipped)
