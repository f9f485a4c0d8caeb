"""Text to sharded files of tokens, by several processes, resumable after a kill at any moment.

Units of work (sources.Text.units) are tokenised in any order into FOLDER/units-DIGEST/, each there whole or not at all.
Then one process goes through them in order, drops documents that were seen before, holds out 1% by hash, and writes
FOLDER/SPLIT-00000.bin, ... and last of all FOLDER/manifest.json. What comes out depends neither on the number of
processes nor on how often they were killed.

Axis legend: n documents of a unit, or of all units; t tokens of a unit.
"""

import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import threading

import numpy as np
from tqdm import tqdm

from jmoe import sources
from jmoe import tokenizer as tokenizer_lib
from jmoe.cli import UserError
from jmoe.storage import write_whole

SHARD_TOKENS = 2**28
SPLITS = ("train", "validation")
_DOCUMENTS = np.dtype([("sha256", "S32"), ("tokens", "<i8"), ("bytes", "<i8")])


def rules(tokenizer) -> str:
    """Everything but the documents that the tokens of a corpus depend on."""
    return f"{tokenizer.rules}, dedup by sha256, 1% by hash, v1"


def digest(text: sources.Text, tokenizer) -> str:
    """Identifies the input of a preparation by names, sizes and times, without reading it."""
    lines = [rules(tokenizer), *text.stamps()]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def build(
    text: sources.Text,
    data,
    tokenizer,
    folder: pathlib.Path,
    n_workers: int = 1,
    shard_tokens: int = SHARD_TOKENS,
) -> dict:
    """Tokenises `text` into `folder`; returns the manifest. Needs twice the room of the tokens while it works.

    Raises:
      UserError: a source can't be read, or there are too few documents to hold any out.
      OSError: `folder` can't be written.
    """
    work = folder / f"units-{digest(text, tokenizer)}"
    work.mkdir(parents=True, exist_ok=True)
    units = text.units()
    paths = [work / f"{i:06}.npz" for i in range(len(units))]
    _tokenise(units, paths, data, tokenizer, n_workers)
    manifest = _write([split for split, _ in units], paths, bool(text.held_out), tokenizer, folder, shard_tokens)
    manifest["source"] = {"train": data.path, "validation": data.validation_path, "inputs": work.name[6:]}
    manifest["sha256"] = manifest_sha256(manifest)
    write_whole(folder / "manifest.json", json.dumps(manifest, indent=1))
    clean(folder)
    return manifest


def clean(folder: pathlib.Path) -> None:
    """Removes what a finished preparation, or a kill at its very end, leaves beside shards and manifest."""
    for stale in folder.glob("units-*"):
        shutil.rmtree(stale)
    for stale in folder.glob("manifest.json.*"):
        stale.unlink()


def manifest_sha256(manifest: dict) -> str:
    """Of everything in it but itself."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _tokenise(units, paths, data, tokenizer, n_workers: int) -> None:
    """Tokenises the units that are not done yet, with progress."""
    todo = [(unit, path) for (_, unit), path in zip(units, paths) if not path.exists()]
    size = lambda unit: sum(piece.size for piece in unit)
    total = sum(size(unit) for _, unit in units)
    bar = tqdm(
        desc="tokenising", total=total, initial=total - sum(size(unit) for unit, _ in todo),
        unit="B", unit_scale=True, disable=None, leave=False,
    )  # fmt: skip
    with bar:
        if min(n_workers, len(todo)) <= 1:
            for unit, path in todo:
                _tokenise_unit(unit, path, data.text_field, tokenizer)
                bar.update(size(unit))
            return
        pool = concurrent.futures.ProcessPoolExecutor(
            min(n_workers, len(todo)),
            multiprocessing.get_context("spawn"),
            _start_worker,
            (data.tokenizer, data.end_of_text, data.text_field),
        )
        try:
            # workers inherit the mask: a Ctrl-C while they start is heard by this process alone, and just after
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                running = {pool.submit(_work, unit, path): unit for unit, path in todo}
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            for done in concurrent.futures.as_completed(running):
                done.result()
                bar.update(size(running[done]))
        except concurrent.futures.process.BrokenProcessPool:
            raise UserError(
                "a process that tokenised was killed, perhaps for want of memory; the same command resumes, and "
                "--workers takes fewer"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _start_worker(name: str, end_of_text: str, field: str) -> None:
    global _worker
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()
    _worker = field, tokenizer_lib.load(name, end_of_text)


def _work(unit, path) -> None:
    _tokenise_unit(unit, path, *_worker)


def _tokenise_unit(unit, path: pathlib.Path, field: str, tokenizer) -> None:
    """Writes `tokens` [t] and `documents` [n] of one unit; a document that it holds twice is left out."""
    tokens, documents, seen = [np.empty(0, tokenizer.dtype)], [], set()
    for piece in unit:
        for document in sources.documents(piece, field):
            key = hashlib.sha256(document).digest()
            if document and key not in seen:
                seen.add(key)
                tokens.append(tokenizer.encode(document))
                documents.append((key, len(tokens[-1]), len(document)))
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        np.savez(file, tokens=np.concatenate(tokens), documents=np.array(documents, _DOCUMENTS))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _write(splits, paths, listed: bool, tokenizer, folder, shard_tokens) -> dict:
    """Writes the shards of both splits; returns the manifest. `listed`: the held-out documents were given."""
    tables = [_member(path, "documents") for path in paths]
    documents = np.concatenate([np.empty(0, _DOCUMENTS), *tables])
    given = np.repeat([split == "validation" for split in splits], [len(table) for table in tables]).astype(bool)
    kept, held_out, fingerprint = _choose(documents, given, listed, rules(tokenizer))
    counts = {"train": int(np.sum(kept & ~held_out)), "validation": int(np.sum(kept & held_out))}
    if not all(counts.values()):
        raise UserError(
            f"config.data: {sum(counts.values())} different document(s) can't be split into training and "
            "validation; give more, or held-out files by config.data.validation_path"
        )
    for stale in folder.glob("*.bin"):  # of a preparation that was killed
        stale.unlink()
    writers = {split: _Shards(folder, split, shard_tokens) for split in SPLITS}
    first = 0
    for path, table in zip(tqdm(paths, desc="writing shards", unit=" units", disable=None, leave=False), tables):
        tokens, part = _member(path, "tokens"), slice(first, first + len(table))
        for split, chosen in (("train", kept & ~held_out), ("validation", kept & held_out)):
            chosen = chosen[part]
            writers[split].append(tokens[np.repeat(chosen, table["tokens"])], np.cumsum(table["tokens"][chosen]))
        first += len(table)
    chosen = {"train": kept & ~held_out, "validation": kept & held_out}
    return {
        "fingerprint": fingerprint,
        "rules": rules(tokenizer),
        "tokenizer": tokenizer.describe(),
        "dtype": tokenizer.dtype.name,
        "documents": counts,
        "tokens": {split: int(documents["tokens"][chosen[split]].sum()) for split in SPLITS},
        "bytes": {split: int(documents["bytes"][chosen[split]].sum()) for split in SPLITS},
        "shards": {split: writers[split].close() for split in SPLITS},
    }


def _member(path, name: str) -> np.ndarray:
    with np.load(path) as unit:
        return unit[name]


def _choose(documents, given, listed: bool, rules: str):
    """(kept, held out, fingerprint) of documents [n]: the first of equal ones, and 1% by hash unless `listed`."""
    kept = np.zeros(len(documents), bool)
    hashes, order = np.unique(documents["sha256"], return_index=True)
    kept[order] = True
    digests = documents["sha256"].copy().view(np.uint8).reshape(-1, 32)
    held_out = given.copy()
    if not listed:
        held_out |= digests[:, :8].copy().view(">u8")[:, 0] % 100 == 0
        if not held_out.any() and len(order) > 1:
            held_out[order[0]] = True  # a handful of documents: the one of the smallest hash
    letters = np.where(given, ord("v"), ord("t")).astype(np.uint8)
    lines = np.concatenate([letters[:, None], digests], axis=1)[kept]
    return kept, held_out, hashlib.sha256(rules.encode() + lines.tobytes()).hexdigest()[:16]


class _Shards:
    """Writes the tokens of one split, `shard_tokens` to a file."""

    def __init__(self, folder: pathlib.Path, split: str, shard_tokens: int):
        self._folder, self._split, self._shard_tokens = folder, split, shard_tokens
        self._shards, self._file = [], None

    def append(self, tokens: np.ndarray, ends: np.ndarray) -> None:
        """Adds whole documents; `ends` says where in `tokens` each one ends."""
        while len(tokens):
            if self._file is None:
                name = f"{self._split}-{len(self._shards):05}.bin"
                self._file, self._sha256 = open(self._folder / name, "wb"), hashlib.sha256()
                self._shards.append({"file": name, "documents": 0, "tokens": 0})
            shard = self._shards[-1]
            part = tokens[: self._shard_tokens - shard["tokens"]]
            self._file.write(part.data)
            self._sha256.update(part.data)
            n_ended = int(np.searchsorted(ends, len(part), "right"))
            shard["tokens"] += len(part)
            shard["documents"] += n_ended
            tokens, ends = tokens[len(part) :], ends[n_ended:] - len(part)
            if shard["tokens"] == self._shard_tokens:
                self._finish()

    def close(self) -> list[dict]:
        """The shards with file, documents (that end in it), tokens, sha256."""
        if self._file:
            self._finish()
        return self._shards

    def _finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._shards[-1]["sha256"] = self._sha256.hexdigest()
        self._file = None
