"""The corpus of a run: a prepared folder opened and checked, or text prepared once into the cache.

A prepared folder holds `train-00000.bin`, ..., `validation-00000.bin`, ... (flat little-endian uint16, or uint32 from
65,536 tokens on: documents in a fixed order, an end-of-text after each) and `manifest.json`, all written by
jmoe/text/prepare.py. Its fingerprint is a hash of every document and of the rules that made the tokens.

Axis legend: N tokens of a shard.
"""

import codecs
import dataclasses
import hashlib
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import UInt
from ml_collections import ConfigDict
from tqdm import tqdm

from jmoe.config.schema_types import named_paths
from jmoe.errors import Unavailable, UserError, first_few
from jmoe.storage import durable, ownership
from jmoe.storage.files import cache_dir, is_remote, write_whole
from jmoe.text import manifest as manifest_lib
from jmoe.text import mixture, prepare, sources, tokenizer
from jmoe.text.manifest import SPLITS
from jmoe.text.training_text import Corpus, Part, Tokens, TrainingText

CHEAP_BYTES = 2**26  # shards up to this size in all are hashed whenever they are opened; others with --verify
CHECKED_TOKENS = 2**22  # tokens whose text is checked at a time
STANDARD_LIBRARY = "the standard library of this Python"


def load(data: ConfigDict, vocab_size: int | None = None) -> TrainingText:
    """Loads the corpus that `config.data` names: a prepared folder, text, or several of these, mixed.

    Text is prepared into the cache, unless it is there.

    Args:
      data: config.data.
      vocab_size: The tokens that the model has; checked before any text is prepared.

    Raises:
      UserError: The text, the tokenizer or the cache can't be used, the fingerprint is not `data.fingerprint`, or the
        tokenizer has more than `vocab_size` tokens.
      Unavailable: The store of a prepared folder gave no answer for minutes.
    """
    weights = dict(data.mixture)
    if weights:
        loaded = {path: _load_path(data, path, f"mixture, {path}", vocab_size) for path in weights}
        corpus = mixture.combine(weights, loaded, bool(data.validation_path))
        text = "config.data.mixture"
    else:
        corpus = _load_single(data, vocab_size)
        text = data.path or STANDARD_LIBRARY
    if data.fingerprint and corpus.fingerprint != data.fingerprint:
        raise UserError(
            f"config.data.fingerprint={data.fingerprint}, but {text} makes corpus {corpus.fingerprint}: it changed "
            f"since, or is other text. Name the text of {data.fingerprint} by config.data.path, or the cache that "
            "holds it by JMOE_CACHE. A new run on the text at hand needs --config.data.fingerprint= (empty); its "
            "losses do not compare with those on the other"
        )
    return corpus


def mask_token(data: ConfigDict, corpus: TrainingText) -> int | None:
    """The token that ends a document of `corpus`, where config.data.document_mask keeps documents apart; else None.

    All sources of a mixture have the same tokenizer.
    """
    if not data.document_mask:
        return None
    return corpus.parts[0].corpus.manifest["tokenizer"]["end_of_text"]


def opened(data: ConfigDict) -> TrainingText | None:
    """The corpus that `config.data` names, if it is prepared on this machine; None if `load` would prepare or fetch it.

    Writes nothing.

    Raises:
      UserError: As `load`.
    """
    paths = [path for path, _ in data.mixture]
    single_texts = [of_path(data, path) for path in paths] if paths else [data]
    if not all(map(_is_at_hand, single_texts)):
        return None
    return load(data)


def _is_at_hand(data: ConfigDict) -> bool:
    """Whether the text of `data`, which is no mixture, is prepared on this machine."""
    if is_remote(data.path):
        return False
    cache = cache_dir() / "tokens"
    if is_prepared(data.path):
        return True
    if data.fingerprint and (cache / data.fingerprint).exists():
        return True
    text = sources.find(data)
    encoder = tokenizer.load(data.tokenizer, data.end_of_text)
    return _listed(cache, prepare.digest(text, data, encoder)) is not None


def _listed(cache: pathlib.Path, digest: str) -> pathlib.Path | None:
    """The folder of `cache` that has the text of a prepare.digest; None if none has, or its listing is damaged."""
    listing = cache / "listings" / digest
    if not listing.exists():
        return None
    fingerprint = listing.read_bytes().decode("ascii", "replace")
    if re.fullmatch("[0-9a-f]{16}", fingerprint) is None or not (cache / fingerprint).exists():
        return None
    return cache / fingerprint


def most_tokens(data: ConfigDict) -> float:
    """An upper bound on the training tokens of the text that `config.data` names, which need not be prepared.

    A tokenizer makes at most one token of a byte, and an end-of-text of each document, which has at least a byte. The
    bound is infinite where the sizes of files do not tell: compressed ones, TFDS, object storage.

    Raises:
      UserError: Nothing matches.
    """
    if data.mixture or is_remote(data.path):
        return math.inf
    files = sources.find(data).train
    if not all(name.endswith((".txt", ".jsonl", ".py")) for name in files):
        return math.inf
    return sum(2 * os.path.getsize(name) + 1 for name in files)


def _load_single(data: ConfigDict, vocab_size: int | None) -> Corpus:
    """The corpus of `data`, which is no mixture."""
    if is_prepared(data.path):
        corpus = _prepared(data)
    else:
        try:
            corpus = _cached(data, vocab_size)
        except OSError as error:
            raise UserError(
                f"the cache of prepared text, {cache_dir()}, cannot be used: {error.strerror}; set JMOE_CACHE to "
                "another folder"
            ) from None
    _check_vocabulary(vocab_size, corpus.manifest["tokenizer"])
    return corpus


def is_prepared(path: str) -> bool:
    """Whether `path` is a prepared folder; a path on gs:// counts as one unchecked."""
    if is_remote(path):
        return True
    return bool(path) and os.path.exists(os.path.join(os.path.expanduser(path), "manifest.json"))


def of_path(data: ConfigDict, path: str, **changes: Any) -> ConfigDict:
    """A copy of `data` (config.data) with the text at `path` instead of its own, and other `changes` to its fields."""
    copy = data.copy_and_resolve_references()
    with copy.unlocked():
        copy.update(path=path, mixture=(), fingerprint="", **changes)
    return copy


def _load_path(data: ConfigDict, path: str, field: str, vocab_size: int | None, **changes: Any) -> Corpus:
    """The corpus of_path(data, path); errors name the `field` of config.data that it comes from."""
    try:
        return _load_single(of_path(data, path, **changes), vocab_size)
    except UserError as error:
        raise UserError(f"config.data.{field}: {error}") from None


def validation_sets(data: ConfigDict, vocab_size: int, trained: TrainingText) -> dict[str, TrainingText]:
    """Loads the sets of config.data.validation_sets; the held-out text of each is what is evaluated.

    A set may be the text of the run or one of its sources: then its held-out part is evaluated. Of any other set all
    text is evaluated, except the 1% that preparing holds out.

    Args:
      data: config.data.
      vocab_size: The tokens that the model has.
      trained: The text of the run.

    Returns:
      Set by name.

    Raises:
      UserError: As `load`, with the set's name; or the run trains on a part of the set.
    """
    sets: dict[str, TrainingText] = {}
    for name, path in (named_paths(data.validation_sets) or {}).items():
        field = f"validation_sets, {name}"
        loaded = _load_path(data, path, field, vocab_size, validation_path="")
        source = _trained_on(data, path, loaded, trained, field)
        if source is None:
            sets[name] = dataclasses.replace(loaded, validation=loaded.train)
        elif data.validation_path:
            raise UserError(
                f"config.data.{field}: {path!r} is text that the run trains on, and none of it is held out, as "
                f"config.data.validation_path={data.validation_path!r} is what is held out: leave that empty, or name "
                "text that is not trained on"
            )
        else:
            sets[name] = source.corpus
        if name in (part.name for part in trained.parts) and (source is None or source.name != name):
            raise UserError(
                f"config.data.{field}: {name!r} is a source of config.data.mixture, whose held-out loss has this name "
                "already: choose another name for the set"
            )
    return sets


def _trained_on(data: ConfigDict, path: str, loaded: Corpus, trained: TrainingText, field: str) -> Part | None:
    """The source of `trained` that is the text at `path`, `loaded`; None if the run trains on none of it.

    Raises:
      UserError: The run trains on some of the files at `path`.
    """
    files = _files(data, path)
    for part in trained.parts:
        source_path = part.path or data.path
        source_files = _files(data, source_path)
        same_text = loaded.fingerprint == part.corpus.fingerprint
        same_files = bool(files) and files == source_files
        if path == source_path or same_text or same_files:
            return part
        common = sorted(files & source_files)
        if common:
            raise UserError(
                f"config.data.{field}: {path!r} has {len(common)} of the files that the run trains on as "
                f"{source_path!r}, first {common[0]}: name text that is not trained on, or all of {source_path!r}, "
                "whose held-out part is evaluated then"
            )
    return None


def _files(data: ConfigDict, path: str) -> set[str]:
    """The files of text at `path`; none of a prepared folder, or of what is not on this machine."""
    if is_prepared(path):
        return set()
    try:
        return {os.path.realpath(file) for file in sources.find(of_path(data, path, validation_path="")).train}
    except UserError:
        return set()


def open_folder(folder: pathlib.Path, verify: bool = False) -> Corpus:
    """Opens a prepared folder and checks the sizes of its shards.

    Args:
      folder: The folder.
      verify: Check the hashes of shards as well, even if that takes long.

    Raises:
      UserError: A shard or the manifest is missing or damaged.
    """
    try:
        manifest = manifest_lib.parse((folder / "manifest.json").read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(folder, f"manifest.json ({error})") from None
    vocab_size = manifest["tokenizer"]["vocab_size"]
    n_bytes = sum(manifest["tokens"].values()) * tokenizer.token_dtype(vocab_size).itemsize
    verify = verify or n_bytes <= CHEAP_BYTES
    splits: dict[str, list[UInt[np.ndarray, " N"]]] = {split: [] for split in SPLITS}
    shards = manifest_lib.shards(manifest)
    missing = [shard["file"] for _, shard in shards if not (folder / shard["file"]).exists()]
    if missing:
        which = first_few(missing, 3)
        if len(missing) == 1:
            raise _damaged(folder, f"{which} is missing")
        raise _damaged(folder, f"{len(missing)} of {len(shards)} shards are missing: {which}")
    for split, shard in shards:
        splits[split].append(_open_shard(folder, shard, vocab_size, verify))
    train, validation = (Tokens(splits[split]) for split in SPLITS)
    return Corpus(manifest["fingerprint"], train, validation, manifest)


def _open_shard(folder: pathlib.Path, shard: dict[str, Any], vocab_size: int, verify: bool) -> UInt[np.ndarray, " N"]:
    """The memory-mapped tokens of a shard; UserError where it is missing or damaged."""
    name = shard["file"]
    path = folder / name
    dtype = tokenizer.token_dtype(vocab_size)
    n_bytes = shard["tokens"] * dtype.itemsize
    n_bytes_on_disk = path.stat().st_size
    if n_bytes_on_disk != n_bytes:
        raise _damaged(folder, f"{name} has {n_bytes_on_disk} bytes instead of {n_bytes}")
    tokens = np.memmap(path, dtype, "r").view(np.ndarray)  # slices of a memmap are slow
    if verify:
        if hashlib.sha256(tokens).hexdigest() != shard["sha256"]:
            raise _damaged(folder, f"{name} differs from its hash in manifest.json")
        largest = int(tokens.max())
        if largest >= vocab_size:
            raise _damaged(folder, f"{name} holds token {largest}, beyond the vocabulary")
    return tokens


def _damaged(folder: pathlib.Path, fault: str) -> UserError:
    return UserError(f"the prepared corpus {folder} is damaged: {fault}; delete it and prepare it again")


def check_utf8(corpus: Corpus, folder: pathlib.Path) -> None:
    """Checks that the documents of byte-level shards are UTF-8.

    Python's sources, the default text, are used as they are and not checked.

    Raises:
      UserError: A document is not UTF-8; the error gives its number and split.
    """
    if corpus.manifest["tokenizer"]["name"] != "bytes" or not corpus.manifest["source"].get("train"):
        return
    for split, tokens in (("train", corpus.train), ("validation", corpus.validation)):
        number = _first_bad_document(tokens)
        if number is not None:
            raise UserError(
                f"the prepared corpus {folder}: document {number} of split {split} is not UTF-8, which is "
                "now refused when text is prepared; prepare it again in another folder"
            )


def _first_bad_document(tokens: Tokens) -> int | None:
    """The number, from 1 on, of the first document that is not UTF-8 in byte-level tokens."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    n_documents = 0
    for start in range(0, len(tokens), CHECKED_TOKENS):
        part = tokens[start : start + CHECKED_TOKENS]
        is_end = part > 255
        pending, _ = decoder.getstate()  # bytes of a character that began in the part before
        try:
            decoder.decode(np.where(is_end, ord("\n"), part).astype(np.uint8).tobytes())
        except UnicodeDecodeError as error:
            return n_documents + int(is_end[: max(error.start - len(pending), 0)].sum()) + 1
        n_documents += int(is_end.sum())
    return None


def skipped_warning(n_documents: int) -> str:
    """The warning about documents that are not text."""
    return f"WARNING: {n_documents} bad document(s) skipped; --config.data.on_bad_document=fail names the first"


def _prepared(data: ConfigDict) -> Corpus:
    """The corpus of the prepared folder that `data` names."""
    if data.validation_path:
        raise UserError(
            f"config.data.validation_path={data.validation_path!r}: the prepared folder {data.path} brings its own "
            "held-out text; leave the field empty"
        )
    corpus = open_folder(_fetched(data.path) if is_remote(data.path) else pathlib.Path(data.path).expanduser())
    description = corpus.manifest["tokenizer"]
    if not tokenizer.is_of(data.tokenizer, description):
        raise UserError(
            f"config.data.tokenizer={data.tokenizer!r} is not the tokenizer that {data.path} was prepared by: "
            f"{description['name']} of {description['vocab_size']} tokens"
        )
    return corpus


def _fetched(path: str) -> pathlib.Path:
    """A prepared folder in object storage, copied into the cache once."""
    try:
        return _fetch(epath.Path(path))
    except (UserError, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001  object stores raise their clients' own errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"config.data.path={path}: no prepared folder can be fetched from there: {reason}") from None


def _fetch(remote: epath.Path) -> pathlib.Path:
    text = (remote / "manifest.json").read_text()
    manifest = manifest_lib.parse(text)
    cache = cache_dir() / "tokens"
    folder = cache / f"{manifest['fingerprint']}-{manifest['sha256'][:16]}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache, ignore_cleanup_errors=True) as name:
        work = pathlib.Path(name)
        shards = manifest_lib.shards(manifest)
        for _, shard in tqdm(shards, desc=f"fetching {remote}", unit=" shards", disable=None, leave=False):
            (remote / shard["file"]).copy(work / shard["file"])
        (work / "manifest.json").write_text(text)
        open_folder(work, verify=True)
        durable.sync_tree(work)
        _move(work, folder)
    return folder


def _cached(data: ConfigDict, vocab_size: int | None) -> Corpus:
    """The text of `data`, prepared in the cache unless it is already there."""
    cache = cache_dir() / "tokens"
    if data.fingerprint and (cache / data.fingerprint).exists():
        return open_folder(cache / data.fingerprint)
    text = sources.find(data)
    encoder = tokenizer.load(data.tokenizer, data.end_of_text)
    _check_vocabulary(vocab_size, encoder.describe())
    digest = prepare.digest(text, data, encoder)
    listing = cache / "listings" / digest
    with ownership.hold(cache / "locks" / digest, "preparing this text", math.inf):
        listed = _listed(cache, digest)
        if listed is not None:
            return open_folder(listed)
        work = cache / f"preparing-{digest}"
        manifest = prepare.prepare(text, data, encoder, work)
        folder = cache / manifest["fingerprint"]
        _move(work, folder)
        if work.exists():  # `folder` exists: other files, or an earlier version, gave the same documents
            if "token_bytes" not in open_folder(folder).manifest:
                shutil.copytree(work, folder, dirs_exist_ok=True, copy_function=os.replace)
            shutil.rmtree(work, ignore_errors=True)
        listing.parent.mkdir(exist_ok=True)
        write_whole(listing, manifest["fingerprint"])
        if manifest["skipped"]:
            tqdm.write(skipped_warning(manifest["skipped"]), file=sys.stderr)
        return open_folder(folder)


def _check_vocabulary(vocab_size: int | None, description: dict[str, Any]) -> None:
    """UserError where the model has fewer tokens than the tokenizer that `description` describes."""
    if vocab_size is not None and vocab_size < description["vocab_size"]:
        needed = f"the {description['vocab_size']} tokens of the tokenizer {description['name']!r}"
        raise UserError(f"config.model.vocab_size={vocab_size} is below {needed}")


def _move(work: pathlib.Path, folder: pathlib.Path) -> None:
    """Renames `work` to `folder`, unless that is there already."""
    try:
        work.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    durable.sync_folder(folder.parent)
