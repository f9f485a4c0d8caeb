"""Text to sharded files of tokens, by several processes, resumable after a kill at any moment.

The processes tokenise units of work (sources.Text.units) in any order into files in FOLDER/units-DIGEST/. Then one
process goes through the units in order, drops repeated documents, holds out 1% (jmoe/text/holdout.py), and writes
FOLDER/SPLIT-00000.bin, ... and last of all FOLDER/manifest.json. The result depends neither on the number of processes
nor on how often they were killed.

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

from jmoe.errors import UserError
from jmoe.storage import durable
from jmoe.storage.files import sealed, write_whole
from jmoe.text import holdout, sources
from jmoe.text import manifest as manifest_lib
from jmoe.text import tokenizer as tokenizer_lib
from jmoe.text.manifest import SPLITS

SHARD_TOKENS = 2**28
_DOCUMENTS = np.dtype([("sha256", "S32"), ("tokens", "<i8"), ("bytes", "<i8")])


def rules(tokenizer) -> str:
    """Everything that the tokens of a corpus depend on, apart from the documents."""
    return f"{tokenizer.rules}, dedup by sha256, 1% by hash, v1"


def digest(text: sources.Text, data, tokenizer) -> str:
    """Identifies the input of a preparation by names, sizes and times, without reading it."""
    # another way to hold out is another preparation
    lines = [rules(tokenizer), "hold-out v2", f"{data.on_bad_document} bad documents", *text.stamps()]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def prepare(text: sources.Text, data, tokenizer, folder: pathlib.Path, n_workers=1, shard_tokens=SHARD_TOKENS) -> dict:
    """Tokenises `text` into `folder`; returns the manifest. While it works it takes twice the tokens' space on disk.

    Raises UserError where a source can't be read, a document is bad and config.data.on_bad_document is "fail", or there
    is too little text to hold any out, and OSError where `folder` can't be written.
    """
    work = folder / f"units-{digest(text, data, tokenizer)}"
    durable.make_folder(work)
    units = text.units()
    paths = [work / f"{i:06}.npz" for i in range(len(units))]
    _tokenise(units, paths, data, tokenizer, n_workers)
    manifest = _write(units, paths, data, tokenizer, folder, shard_tokens)
    manifest["source"] = {"train": data.path, "validation": data.validation_path, "inputs": work.name[6:]}
    write_whole(folder / "manifest.json", json.dumps(sealed(manifest), indent=1))
    clean(folder)
    return manifest


def clean(folder: pathlib.Path) -> None:
    """Removes the temporary files of a preparation, also those that one leaves if it is killed at its end."""
    for stale in folder.glob("units-*"):
        shutil.rmtree(stale)
    for stale in folder.glob("manifest.json.*"):
        stale.unlink()


def _tokenise(units, paths, data, tokenizer, n_workers: int) -> None:
    """Tokenises the units that are not done yet, with progress."""
    todo = [(unit, path) for (_, unit), path in zip(units, paths) if not path.exists()]
    size = lambda unit: sum(piece.size for piece in unit)
    total, n_workers = sum(size(unit) for _, unit in units), min(n_workers, len(todo))
    done = total - sum(size(unit) for unit, _ in todo)
    with tqdm(
        desc="tokenising", total=total, initial=done, unit="B", unit_scale=True, disable=None, leave=False
    ) as bar:
        if n_workers <= 1:
            for unit, path in todo:
                _tokenise_unit(unit, path, data, tokenizer)
                bar.update(size(unit))
            return
        spawn = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(n_workers, spawn, _start_worker, (data,))
        try:
            # workers inherit this mask, so a Ctrl-C interrupts only this process, once they have started
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


def _start_worker(data) -> None:
    global _worker
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()
    _worker = data, tokenizer_lib.load(data.tokenizer, data.end_of_text)


def _work(unit, path) -> None:
    _tokenise_unit(unit, path, *_worker)


def _tokenise_unit(unit, path: pathlib.Path, data, tokenizer, cut=(None, 0)) -> None:
    """Writes `tokens` [t], `documents` [n] and `n_skipped` of one unit, leaving out repeated documents. `cut`: the
    sha256 of a document that counts as two, and about how many bytes the second has."""
    tokens, documents, seen, n_skipped = [np.empty(0, tokenizer.dtype)], [], set(), 0
    skip = data.on_bad_document == "skip"
    for document in (document for piece in unit for document in sources.documents(piece, data.text_field, skip)):
        if document is None:
            n_skipped += 1
            continue
        key = hashlib.sha256(document).digest()
        if document and key not in seen:
            seen.add(key)
            at = holdout.cut_at(document, cut[1]) if key.rstrip(b"\0") == cut[0] else 0  # numpy drops trailing zeros
            for part in (document[:at], document[at:]) if at else (document,):
                tokens.append(tokenizer.encode(part))
                documents.append((hashlib.sha256(part).digest(), len(tokens[-1]), len(part)))
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with durable.named(temporary), open(temporary, "wb") as file:
        documents = np.array(documents, _DOCUMENTS)
        np.savez(file, tokens=np.concatenate(tokens), documents=documents, n_skipped=n_skipped)
        file.flush()
        os.fsync(file.fileno())
    durable.replace(temporary, path)


def _write(units, paths, data, tokenizer, folder, shard_tokens) -> dict:
    """Writes the shards of both splits; returns the manifest."""
    tables = [_member(path, "documents") for path in paths]
    documents = np.concatenate([np.empty(0, _DOCUMENTS), *tables])
    given = np.repeat([split == "validation" for split, _ in units], [len(table) for table in tables]).astype(bool)
    kept, held_out, cut, fingerprint = holdout.choose(documents, given, bool(data.validation_path), rules(tokenizer))
    chosen = {"train": kept & ~held_out, "validation": kept & held_out}
    if cut:
        _cut(*cut, units, paths, tables, data, tokenizer)
        documents = np.concatenate(tables)
        chosen = {split: np.insert(chosen[split], cut[0] + 1, split == "validation") for split in SPLITS}
    counts = {split: int(np.sum(chosen[split])) for split in SPLITS}
    if not all(counts.values()):
        raise UserError(_too_little(counts, data))
    for stale in folder.glob("*.bin"):  # of a preparation that was killed
        stale.unlink()
    sizes = {split: documents["tokens"][chosen[split]] for split in SPLITS}
    writers = {split: _Shards(folder, split, sizes[split], shard_tokens) for split in SPLITS}
    first, of_token = 0, np.zeros(tokenizer.vocab_size, np.int64)
    bar = tqdm(tables, desc="writing shards", unit=" units", disable=None, leave=False)
    for path, table in zip(paths, bar):
        tokens = _member(path, "tokens")
        for split in SPLITS:
            some = chosen[split][first : first + len(table)]
            part = tokens[np.repeat(some, table["tokens"])]
            writers[split].append(part)
            if split == "validation":
                of_token += np.bincount(part, minlength=len(of_token))
        first += len(table)
    n_bytes = {split: int(documents["bytes"][chosen[split]].sum()) for split in SPLITS}
    return {
        "fingerprint": fingerprint,
        "rules": rules(tokenizer),
        "tokenizer": tokenizer.describe(),
        "dtype": tokenizer.dtype.name,
        "documents": counts,
        "tokens": {split: int(sizes[split].sum()) for split in SPLITS},
        "bytes": n_bytes,
        "skipped": sum(int(_member(path, "n_skipped")) for path in paths),
        "token_bytes": manifest_lib.pack(_token_bytes(of_token, tokenizer, n_bytes["validation"])),
        "shards": {split: writers[split].written() for split in SPLITS},
    }


def _too_little(counts: dict[str, int], data) -> str:
    if not data.validation_path:
        return (
            f"config.data.path={data.path!r}: {sum(counts.values())} different document(s) can't be split into "
            "training and validation; give more text, or held-out files by config.data.validation_path"
        )
    if not counts["validation"]:
        return f"config.data.validation_path={data.validation_path!r} holds no text"
    return f"config.data.path={data.path!r} holds no text that config.data.validation_path does not hold out"


def _cut(index: int, tail: int, units, paths, tables, data, tokenizer) -> None:
    """Tokenises the unit of document `index` again, now with that document as two, of which the second, its last `tail`
    bytes or so, is held out. Puts the unit's new file and table in the place of those in `paths` and `tables`."""
    ends = np.cumsum([len(table) for table in tables])
    i = int(np.searchsorted(ends, index, "right"))
    (_, unit), before, row = units[i], tables[i], index - int(ends[i] - len(tables[i]))
    paths[i] = paths[i].with_name("cut.npz")
    _tokenise_unit(unit, paths[i], data, tokenizer, (before["sha256"][row], tail))
    tables[i] = _member(paths[i], "documents")
    if len(tables[i]) != len(before) + 1 or np.any(np.delete(tables[i], [row, row + 1]) != np.delete(before, row)):
        raise UserError(f"{unit[0].path} changed while it was prepared; the same command starts it again")


def _token_bytes(counts: np.ndarray, tokenizer, n_bytes: int) -> np.ndarray:
    """UTF-8 bytes that each token stands for [vocab_size], scaled so that the held-out tokens, `counts` of each, sum to
    the held-out text's `n_bytes`: the scale is 1 but for tokenizers that change or drop characters."""
    lengths = tokenizer.byte_lengths()
    total = int(counts @ lengths)
    return lengths * (n_bytes / total) if total else np.full(len(counts), n_bytes / max(1, counts.sum()))


def _member(path, name: str) -> np.ndarray:
    with durable.named(path), np.load(path) as unit:
        return unit[name]


class _Shards:
    """Writes the tokens of one split, whose documents have `sizes`, `shard_tokens` to a file."""

    def __init__(self, folder: pathlib.Path, split: str, sizes: np.ndarray, shard_tokens: int):
        n_documents = np.bincount((np.cumsum(sizes) - 1) // shard_tokens).tolist()  # that end in each shard
        names = [f"{split}-{i:05}.bin" for i in range(len(n_documents))]
        self._shards = [{"file": name, "documents": n, "tokens": 0} for name, n in zip(names, n_documents)]
        self._hashes = [hashlib.sha256() for _ in names]
        self._folder, self._shard_tokens, self._n_tokens = folder, shard_tokens, 0

    def append(self, tokens: np.ndarray) -> None:
        while len(tokens):
            i, n_held = divmod(self._n_tokens, self._shard_tokens)
            part, tokens = np.split(tokens, [self._shard_tokens - n_held])
            path = self._folder / self._shards[i]["file"]
            with durable.named(path), open(path, "ab") as file:
                file.write(part.data)
            self._hashes[i].update(part.data)
            self._shards[i]["tokens"] += len(part)
            self._n_tokens += len(part)

    def written(self) -> list[dict]:
        """The file, documents, tokens and sha256 of each shard, once all are on the disk."""
        for shard, digest in zip(self._shards, self._hashes):
            durable.sync_file(self._folder / shard["file"])
            shard["sha256"] = digest.hexdigest()
        durable.sync_folder(self._folder)
        return self._shards
