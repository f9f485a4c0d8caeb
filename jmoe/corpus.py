"""Text to tokens, once: documents deduplicated by content, in a fixed order, bytes with an end-of-text after each.

1% of the documents, chosen by their hash, are held out for validation. The tokens lie in a cache directory under their
fingerprint, a hash of every document and of the rules here, so that two corpora can't be mistaken for one another.
"""

import dataclasses
import glob
import hashlib
import json
import os
import pathlib
import shutil
import sysconfig
import tempfile

import numpy as np
from tqdm import tqdm

from jmoe.cli import UserError
from jmoe.storage import write_whole

END_OF_TEXT = 256  # bytes are their own tokens
VOCAB_SIZE = 257
RULES = "bytes, end-of-text 256, dedup by sha256, 1% by hash, v1"
SUFFIXES = (".txt", ".jsonl", ".parquet")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokens as flat memory maps (uint16) and what identifies them."""

    fingerprint: str
    train: np.ndarray
    validation: np.ndarray
    manifest: dict


def cache_dir() -> pathlib.Path:
    """$JMOE_CACHE, else jmoe under $XDG_CACHE_HOME, else ~/.cache/jmoe."""
    if path := os.environ.get("JMOE_CACHE"):
        return pathlib.Path(path)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "jmoe"


def load(data) -> Corpus:
    """The corpus of `config.data`, from the cache or prepared now.

    Raises:
      UserError: no file matches, a file can't be read, nothing can be held out, the corpus is shorter than a row, or
        its fingerprint is not the one that `data.fingerprint` demands; or the cache can't be written.
    """
    try:
        return _load(data)
    except OSError as error:
        raise UserError(
            f"the cache of prepared text, {cache_dir()}, cannot be used: {error.strerror}; set JMOE_CACHE to "
            "another folder"
        ) from None


def _load(data) -> Corpus:
    wanted = data.fingerprint
    if wanted and (folder := _folder(wanted)).exists():
        return _open(folder)
    files = source_files(data.path)
    held_out = source_files(data.validation_path) if data.validation_path else []
    listing = _cache("listings") / _digest(
        [RULES]
        + [
            f"{kind} {path} {path.stat().st_size} {path.stat().st_mtime_ns}"
            for kind, paths in (("train", files), ("held out", held_out))
            for path in paths
        ]
    )
    if listing.exists() and (folder := _folder(listing.read_text())).exists():
        corpus = _open(folder)
    else:
        corpus = _open(_prepare(files, held_out))
        write_whole(listing, corpus.fingerprint)
    if wanted and corpus.fingerprint != wanted:
        raise UserError(
            f"config.data.fingerprint={wanted} but the files at hand make corpus {corpus.fingerprint}: "
            f"they changed since; use the cache that holds {wanted} or start afresh"
        )
    return corpus


def source_files(pattern: str) -> list[pathlib.Path]:
    """Files of a glob, sorted; the empty pattern means this Python's standard library and installed packages.

    Raises:
      UserError: nothing matches, or a file is of no known kind.
    """
    if not pattern:
        roots = dict.fromkeys(pathlib.Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
        found = {path for root in roots for path in root.rglob("*.py")}
        return sorted(path for path in found if path.is_file())
    paths = sorted(pathlib.Path(path) for path in glob.glob(os.path.expanduser(pattern), recursive=True))
    paths = [path for path in paths if path.is_file()]
    if not paths:
        raise UserError(f"config.data.path={pattern!r} matches no file")
    if wrong := [path for path in paths if path.suffix not in SUFFIXES]:
        raise UserError(
            f"config.data.path={pattern!r} matches {str(wrong[0])!r}, which is none of {', '.join(SUFFIXES)}"
        )
    return paths


def documents(path: pathlib.Path):
    """Yields the documents of one file as bytes: a whole .txt or .py, the `text` of each row of .jsonl or .parquet.

    Raises:
      UserError: naming file and row.
    """
    if path.suffix == ".jsonl":
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _text(line, path, number)
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(path) as table:
                if "text" not in table.schema_arrow.names:
                    raise UserError(f"{path}: no column 'text'; it has {', '.join(table.schema_arrow.names)}")
                for batch in table.iter_batches(columns=["text"]):
                    for text in batch.column(0).to_pylist():
                        if text is not None:
                            yield text.encode()
        except (pyarrow.ArrowException, AttributeError) as error:
            raise UserError(f"{path}: not a Parquet file with text: {error}") from None
    else:
        yield path.read_bytes()


def _text(line: bytes, path, number: int) -> bytes:
    try:
        text = json.loads(line)["text"]
        if not isinstance(text, str):
            raise TypeError
        return text.encode("utf-8", "surrogatepass")
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}, line {number}: not a JSON object with a string field 'text'") from None


def _prepare(files, held_out) -> pathlib.Path:
    """Tokenises everything into the cache; returns the folder. Complete or absent, never half."""
    seen, hashes = set(), hashlib.sha256(RULES.encode())
    counts = {"train": 0, "validation": 0}
    work = pathlib.Path(tempfile.mkdtemp(prefix="preparing-", dir=_cache()))
    try:
        smallest = None  # what to hold out where no hash falls below 1%
        todo = [("validation", path) for path in held_out] + [("train", path) for path in files]
        with open(work / "train.bin", "wb") as train, open(work / "validation.bin", "wb") as validation:
            spools = {"train": train, "validation": validation}
            for split, path in tqdm(todo, desc="reading text", unit=" files", disable=None, leave=False):
                try:
                    for document in documents(path):
                        key = hashlib.sha256(document).digest()
                        if not document or key in seen:
                            continue
                        seen.add(key)
                        hashes.update(split[0].encode() + key)
                        chosen = "validation" if not held_out and int.from_bytes(key[:8]) % 100 == 0 else split
                        if chosen == "train" and (smallest is None or key < smallest[0]):
                            smallest = (key, train.tell(), len(document))
                        counts[chosen] += 1
                        spools[chosen].write(_tokens(document).tobytes())
                except OSError as error:
                    if error.filename != str(path):  # ours, not the file's
                        raise
                    raise UserError(f"{path} cannot be read: {error.strerror}") from None
        if not counts["validation"] and counts["train"] > 1:
            _hold_out(work, *smallest[1:])
            counts = {"train": counts["train"] - 1, "validation": 1}
        if not counts["train"] or not counts["validation"]:
            raise UserError(
                f"config.data: {sum(counts.values())} different document(s) can't be split into training and "
                "validation; give more, or held-out files by config.data.validation_path"
            )
        manifest = {
            "rules": RULES,
            "files": len(files),
            "documents": counts,
            "vocab_size": VOCAB_SIZE,
            "tokens": {name: (work / f"{name}.bin").stat().st_size // 2 for name in counts},
        }
        write_whole(work / "manifest.json", json.dumps(manifest, indent=1))
        folder = _folder(hashes.hexdigest()[:16])
        try:
            work.rename(folder)
        except OSError:  # another process was first with the same tokens
            if not folder.exists():
                raise
        return folder
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _tokens(document: bytes) -> np.ndarray:
    return np.append(np.frombuffer(document, np.uint8).astype(np.uint16), np.uint16(END_OF_TEXT))


def _hold_out(work, start: int, length: int) -> None:
    """Moves one document from train.bin to validation.bin."""
    tokens = np.fromfile(work / "train.bin", np.uint16)
    first, last = start // 2, start // 2 + length + 1
    tokens[first:last].tofile(work / "validation.bin")
    np.delete(tokens, slice(first, last)).tofile(work / "train.bin")


def _open(folder: pathlib.Path) -> Corpus:
    try:
        train, validation = (np.memmap(folder / f"{name}.bin", np.uint16, "r") for name in ("train", "validation"))
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["tokens"] != {"train": len(train), "validation": len(validation)}:
            raise ValueError("token counts differ from its manifest")
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the prepared corpus {folder} is damaged ({error}); delete it to prepare it again") from None
    return Corpus(folder.name, train, validation, manifest)


def _folder(fingerprint: str) -> pathlib.Path:
    return _cache() / fingerprint


def _cache(*parts: str) -> pathlib.Path:
    path = cache_dir().joinpath("corpora", *parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _digest(lines) -> str:
    return hashlib.sha256("\n".join(map(str, lines)).encode("utf-8", "surrogateescape")).hexdigest()[:16]
