"""Text to sharded files of tokens, by several processes, resumable after a kill at any moment.

The processes tokenise units of work (sources.Text.units) in any order into files in FOLDER/units-DIGEST/. Then one
process goes through the units in order, drops repeated documents and holds out 1% (jmoe/text/holdout.py). It writes
FOLDER/SPLIT-00000.bin, ... and last of all FOLDER/manifest.json. The result depends neither on the number of processes
nor on how often they were killed.

Axis legend: N documents of a unit, or of all units; T tokens of a unit; V tokens of the vocabulary.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import threading
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped, UInt
from ml_collections import ConfigDict
from tqdm import tqdm

from jmoe.errors import UserError
from jmoe.storage import durable
from jmoe.storage.files import sealed, write_whole
from jmoe.text import holdout, sources
from jmoe.text import manifest as manifest_lib
from jmoe.text import tokenizer as tokenizer_lib
from jmoe.text.manifest import SPLITS
from jmoe.text.tokenizer import Tokenizer

SHARD_TOKENS = 2**28
_DOCUMENTS = np.dtype([("sha256", "S32"), ("tokens", "<i8"), ("bytes", "<i8")])
DocumentTable = Shaped[np.ndarray, " N"]  # of _DOCUMENTS

_worker: tuple[ConfigDict, Tokenizer]  # of a process of the pool: config.data and its tokenizer


@dataclasses.dataclass(frozen=True)
class Split:
    """A document to store as two: its hash, and about how many bytes the second has."""

    sha256: bytes
    tail: int


def rules(tokenizer: Tokenizer) -> str:
    """Everything that the tokens of a corpus depend on, apart from the documents."""
    return f"{tokenizer.rules}, dedup by sha256, 1% by hash, v1"


def digest(text: sources.Text, data: ConfigDict, tokenizer: Tokenizer) -> str:
    """Identifies the input of a preparation by names, sizes and times, without reading it: 16 hex digits."""
    # another way to hold out is another preparation
    lines = [rules(tokenizer), "hold-out v2", f"{data.on_bad_document} bad documents", *text.stamps()]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def prepare(
    text: sources.Text,
    data: ConfigDict,
    tokenizer: Tokenizer,
    folder: pathlib.Path,
    n_workers: int = 1,
    shard_tokens: int = SHARD_TOKENS,
) -> dict[str, Any]:
    """Tokenises `text` into `folder`. While it works it takes twice the tokens' space on disk.

    Args:
      text: The sources.
      data: config.data.
      tokenizer: The tokenizer that config.data names.
      folder: Where to write; what a killed preparation left there is used.
      n_workers: Processes that tokenise.
      shard_tokens: Tokens of a shard.

    Returns:
      The manifest.

    Raises:
      UserError: A source can't be read, a document is bad and config.data.on_bad_document is "fail", or there is too
        little text to hold any out.
      OSError: `folder` can't be written.
    """
    work = folder / f"units-{digest(text, data, tokenizer)}"
    durable.make_folder(work)
    units = text.units()
    paths = [work / f"{i:06}.npz" for i in range(len(units))]
    _tokenise(units, paths, data, tokenizer, n_workers)
    manifest = _write(units, paths, data, tokenizer, folder, shard_tokens)
    inputs = work.name.removeprefix("units-")
    manifest["source"] = {"train": data.path, "validation": data.validation_path, "inputs": inputs}
    write_whole(folder / "manifest.json", json.dumps(sealed(manifest), indent=1))
    clean(folder)
    return manifest


def clean(folder: pathlib.Path) -> None:
    """Removes the temporary files of a preparation, also those that one leaves if it is killed at its end."""
    for stale in folder.glob("units-*"):
        shutil.rmtree(stale)
    for stale in folder.glob("manifest.json.*"):
        stale.unlink()


def _n_bytes(unit: list[sources.Piece]) -> int:
    return sum(piece.size for piece in unit)


def _tokenise(
    units: list[tuple[str, list[sources.Piece]]],
    paths: list[pathlib.Path],
    data: ConfigDict,
    tokenizer: Tokenizer,
    n_workers: int,
) -> None:
    """Tokenises the units that are not done yet, with progress."""
    todo = [(unit, path) for (_, unit), path in zip(units, paths, strict=True) if not path.exists()]
    n_bytes = sum(_n_bytes(unit) for _, unit in units)
    n_bytes_done = n_bytes - sum(_n_bytes(unit) for unit, _ in todo)
    with tqdm(
        desc="tokenising", total=n_bytes, initial=n_bytes_done, unit="B", unit_scale=True, disable=None, leave=False
    ) as bar:
        if min(n_workers, len(todo)) <= 1:
            for unit, path in todo:
                _tokenise_unit(unit, path, data, tokenizer)
                bar.update(_n_bytes(unit))
        else:
            _tokenise_in_parallel(todo, data, min(n_workers, len(todo)), bar)


def _tokenise_in_parallel(
    todo: list[tuple[list[sources.Piece], pathlib.Path]], data: ConfigDict, n_workers: int, bar: tqdm
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
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(unit: list[sources.Piece], path: pathlib.Path) -> None:
    data, tokenizer = _worker
    _tokenise_unit(unit, path, data, tokenizer)


def _tokenise_unit(
    unit: list[sources.Piece],
    path: pathlib.Path,
    data: ConfigDict,
    tokenizer: Tokenizer,
    split: Split | None = None,
) -> None:
    """Writes `tokens` [T], `documents` [N] and `n_skipped` of one unit, leaving out repeated documents.

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
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with durable.named(temporary), open(temporary, "wb") as file:
        table = np.array(documents, _DOCUMENTS)
        np.savez(file, tokens=np.concatenate(tokens), documents=table, n_skipped=n_skipped)
        file.flush()
        os.fsync(file.fileno())
    durable.replace(temporary, path)


def _write(
    units: list[tuple[str, list[sources.Piece]]],
    paths: list[pathlib.Path],
    data: ConfigDict,
    tokenizer: Tokenizer,
    folder: pathlib.Path,
    shard_tokens: int,
) -> dict[str, Any]:
    """Writes the shards of both splits; returns the manifest."""
    tables = [_member(path, "documents") for path in paths]
    documents = np.concatenate([np.empty(0, _DOCUMENTS), *tables])
    in_validation_path = [split == "validation" for split, _ in units]
    is_validation = np.repeat(in_validation_path, [len(table) for table in tables]).astype(bool)
    selection = holdout.choose(documents, is_validation, bool(data.validation_path), rules(tokenizer))
    chosen = {
        "train": selection.unique & ~selection.held_out,
        "validation": selection.unique & selection.held_out,
    }
    cut = selection.cut
    if cut:
        _cut_document(cut, units, paths, tables, data, tokenizer)
        documents = np.concatenate(tables)
        chosen = {split: np.insert(chosen[split], cut.index + 1, split == "validation") for split in SPLITS}
    n_documents = {split: int(np.sum(chosen[split])) for split in SPLITS}
    if not all(n_documents.values()):
        raise UserError(_too_little(n_documents, data))
    for stale in folder.glob("*.bin"):  # of a preparation that was killed
        stale.unlink()
    n_tokens = {split: documents["tokens"][chosen[split]] for split in SPLITS}
    n_bytes = {split: int(documents["bytes"][chosen[split]].sum()) for split in SPLITS}
    writers = {split: _ShardWriter(folder, split, n_tokens[split], shard_tokens) for split in SPLITS}
    token_counts = _write_tokens(paths, tables, chosen, writers, tokenizer.vocab_size)
    return {
        "fingerprint": selection.fingerprint,
        "rules": rules(tokenizer),
        "tokenizer": tokenizer.describe(),
        "dtype": tokenizer.dtype.name,
        "documents": n_documents,
        "tokens": {split: int(n_tokens[split].sum()) for split in SPLITS},
        "bytes": n_bytes,
        "skipped": sum(int(_member(path, "n_skipped")) for path in paths),
        "token_bytes": manifest_lib.pack(_token_bytes(token_counts, tokenizer, n_bytes["validation"])),
        "shards": {split: writers[split].written() for split in SPLITS},
    }


def _write_tokens(
    paths: list[pathlib.Path],
    tables: list[DocumentTable],
    chosen: dict[str, Bool[np.ndarray, " N"]],
    writers: dict[str, "_ShardWriter"],
    vocab_size: int,
) -> Int[np.ndarray, " V"]:
    """Writes the tokens of the chosen documents of each split; returns how often each token is held out."""
    first = 0
    token_counts = np.zeros(vocab_size, np.int64)
    bar = tqdm(tables, desc="writing shards", unit=" units", disable=None, leave=False)
    for path, table in zip(paths, bar, strict=True):
        tokens = _member(path, "tokens")
        for split in SPLITS:
            is_chosen = chosen[split][first : first + len(table)]
            tokens_of_split = tokens[np.repeat(is_chosen, table["tokens"])]
            writers[split].append(tokens_of_split)
            if split == "validation":
                token_counts += np.bincount(tokens_of_split, minlength=len(token_counts))
        first += len(table)
    return token_counts


def _too_little(n_documents: dict[str, int], data: ConfigDict) -> str:
    """The error for text that leaves a split without documents."""
    if not data.validation_path:
        return (
            f"config.data.path={data.path!r}: {sum(n_documents.values())} different document(s) can't be split into "
            "training and validation; give more text, or held-out files by config.data.validation_path"
        )
    if not n_documents["validation"]:
        return f"config.data.validation_path={data.validation_path!r} holds no text"
    return f"config.data.path={data.path!r} holds no text that config.data.validation_path does not hold out"


def _cut_document(
    cut: holdout.Cut,
    units: list[tuple[str, list[sources.Piece]]],
    paths: list[pathlib.Path],
    tables: list[DocumentTable],
    data: ConfigDict,
    tokenizer: Tokenizer,
) -> None:
    """Tokenises the unit of a document again, now with that document as two, of which the second is held out.

    Replaces the unit's file and table in `paths` and `tables`.
    """
    ends = np.cumsum([len(table) for table in tables])
    i = int(np.searchsorted(ends, cut.index, "right"))
    _, unit = units[i]
    before = tables[i]
    row = cut.index - int(ends[i] - len(before))
    paths[i] = paths[i].with_name("cut.npz")
    _tokenise_unit(unit, paths[i], data, tokenizer, Split(before["sha256"][row], cut.tail))
    tables[i] = _member(paths[i], "documents")
    if len(tables[i]) != len(before) + 1 or np.any(np.delete(tables[i], [row, row + 1]) != np.delete(before, row)):
        raise UserError(f"{unit[0].path} changed while it was prepared; the same command starts it again")


def _token_bytes(token_counts: Int[np.ndarray, " V"], tokenizer: Tokenizer, n_bytes: int) -> Float[np.ndarray, " V"]:
    """UTF-8 bytes that each token stands for, scaled so that the held-out tokens sum to the held-out text's bytes.

    The scale is 1 except for tokenizers that change or drop characters.

    Args:
      token_counts: How often each token occurs in the held-out text.
      tokenizer: The tokenizer.
      n_bytes: Size of the held-out text.
    """
    lengths = tokenizer.byte_lengths()
    total = int(token_counts @ lengths)
    if total:
        return lengths * (n_bytes / total)
    return np.full(len(token_counts), n_bytes / max(1, token_counts.sum()))


def _member(path: pathlib.Path, name: str) -> Shaped[np.ndarray, "..."]:
    """An array of a unit's file."""
    with durable.named(path), np.load(path) as unit:
        return unit[name]


class _ShardWriter:
    """Writes the tokens of one split, `shard_tokens` to a file."""

    def __init__(
        self, folder: pathlib.Path, split: str, document_tokens: Int[np.ndarray, " N"], shard_tokens: int
    ) -> None:
        """`document_tokens`: the tokens of each document of the split."""
        n_documents = np.bincount((np.cumsum(document_tokens) - 1) // shard_tokens).tolist()  # that end in each shard
        self._shards: list[dict[str, Any]] = [
            {"file": f"{split}-{i:05}.bin", "documents": n, "tokens": 0} for i, n in enumerate(n_documents)
        ]
        self._hashes = [hashlib.sha256() for _ in n_documents]
        self._folder = folder
        self._shard_tokens = shard_tokens
        self._n_tokens = 0

    def append(self, tokens: UInt[np.ndarray, " T"]) -> None:
        """Writes tokens behind those that are written."""
        while len(tokens):
            i, n_in_shard = divmod(self._n_tokens, self._shard_tokens)
            part, tokens = np.split(tokens, [self._shard_tokens - n_in_shard])
            path = self._folder / self._shards[i]["file"]
            with durable.named(path), open(path, "ab") as file:
                file.write(part.data)
            self._hashes[i].update(part.data)
            self._shards[i]["tokens"] += len(part)
            self._n_tokens += len(part)

    def written(self) -> list[dict[str, Any]]:
        """The file, documents, tokens and sha256 of each shard, once all are on the disk."""
        for shard, hash_of_shard in zip(self._shards, self._hashes, strict=True):
            durable.sync_file(self._folder / shard["file"])
            shard["sha256"] = hash_of_shard.hexdigest()
        durable.sync_folder(self._folder)
        return self._shards
