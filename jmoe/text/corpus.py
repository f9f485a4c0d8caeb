"""The corpus of a run: a prepared folder opened and checked, or text prepared once into the cache.

A prepared folder holds `train-00000.bin`, ..., `validation-00000.bin`, ... (flat little-endian uint16, or uint32 from
65,536 tokens on: documents in a fixed order, an end-of-text after each) and `manifest.json`, all written by
jmoe/text/prepare.py. Its fingerprint is a hash of every document and of the rules that made the tokens.
"""

import bisect
import codecs
import dataclasses
import functools
import hashlib
import math
import os
import pathlib
import shutil
import sys
import tempfile

import numpy as np
from etils import epath
from tqdm import tqdm

from jmoe.config.schema_types import named_paths
from jmoe.errors import Unavailable, UserError
from jmoe.storage import durable, ownership
from jmoe.storage.files import cache_dir, is_remote, write_whole
from jmoe.text import manifest as manifest_lib
from jmoe.text import mixture, prepare, sources, tokenizer
from jmoe.text.manifest import SPLITS

CHEAP_BYTES = 2**26  # shards up to this size in all are hashed whenever they are opened; others with --verify
CHECKED_TOKENS = 2**22  # tokens whose text is checked at a time


class Tokens:
    """Shards as one flat array of tokens: len() and slices of step 1."""

    def __init__(self, shards: list[np.ndarray]):
        self._shards = shards
        self._ends = np.cumsum([len(shard) for shard in shards]).tolist()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(len(self))
        i, pieces = bisect.bisect_right(self._ends, start), []
        while start < stop:
            at = start - (self._ends[i] - len(self._shards[i]))
            pieces.append(self._shards[i][at : at + stop - start])
            start, i = start + len(pieces[-1]), i + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate([self._shards[0][:0], *pieces])


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokens, memory-mapped, and what identifies them."""

    fingerprint: str
    train: Tokens
    validation: Tokens
    manifest: dict

    @property
    def parts(self) -> tuple[mixture.Part, ...]:
        """What its rows come from: itself alone; mixture.Mixture has several."""
        return (mixture.Part("", mixture.PERIOD, self),)

    held_out = parts

    @functools.cached_property
    def token_bytes(self) -> np.ndarray:
        """UTF-8 bytes of held-out text that each token stands for, float64 [vocab_size]; 0 for an end of text."""
        return manifest_lib.token_bytes(self.manifest)


def load(data, vocab_size: int | None = None) -> Corpus | mixture.Mixture:
    """The corpus that `config.data` names: a prepared folder, or text, prepared into the cache unless it is there; or
    several of these, mixed.

    Raises UserError if the text, the tokenizer or the cache can't be used, the fingerprint is not `data.fingerprint`,
    or the tokenizer has more than `vocab_size` tokens (checked before any text is prepared); Unavailable if the store
    of a prepared folder gave no answer for minutes.
    """
    if weights := dict(data.get("mixture", ())):
        found = {path: _named(data, path, f"mixture, {path}", vocab_size) for path in weights}
        corpus, text = mixture.combine(weights, found, bool(data.validation_path)), "config.data.mixture"
    else:
        corpus, text = _single(data, vocab_size), data.path or "the standard library of this Python"
    if data.fingerprint and corpus.fingerprint != data.fingerprint:
        raise UserError(
            f"config.data.fingerprint={data.fingerprint}, but {text} makes corpus {corpus.fingerprint}: it changed "
            f"since, or is other text. Name the text of {data.fingerprint} by config.data.path, or the cache that "
            "holds it by JMOE_CACHE. A new run on the text at hand needs --config.data.fingerprint= (empty); its "
            "losses do not compare with those on the other"
        )
    return corpus


def opened(data) -> Corpus | mixture.Mixture | None:
    """The corpus that `config.data` names, where it is prepared already on this machine; None where `load` would have
    to prepare or to fetch it. Writes nothing. UserError as `load`."""
    paths = [path for path, _ in data.get("mixture", ())]
    alone = [of_path(data, path) for path in paths] if paths else [data]
    if not all(map(_is_at_hand, alone)):
        return None
    return load(data)


def _is_at_hand(data) -> bool:
    """Whether the text of `data`, which is no mixture, is prepared on this machine."""
    if is_remote(data.path):
        return False
    cache = cache_dir() / "tokens"
    if is_prepared(data.path) or (data.fingerprint and (cache / data.fingerprint).exists()):
        return True
    text, encoder = sources.find(data), tokenizer.load(data.tokenizer, data.end_of_text)
    listing = cache / "listings" / prepare.digest(text, data, encoder)
    return listing.exists() and (cache / listing.read_text()).exists()


def most_tokens(data) -> float:
    """A bound on the training tokens of the text that `config.data` names, which need not be prepared: no tokenizer
    makes more than a token of a byte, and one that ends each document. Infinite where files do not tell: compressed
    ones, TFDS, object storage. UserError where nothing matches."""
    if data.get("mixture", ()) or is_remote(data.path):
        return math.inf
    files = sources.find(data).train
    if not all(name.endswith((".txt", ".jsonl", ".py")) for name in files):
        return math.inf
    return sum(2 * os.path.getsize(name) + 1 for name in files)


def _single(data, vocab_size) -> Corpus:
    if is_prepared(data.path):
        corpus = _prepared(data)
    else:
        try:
            corpus = _cached(data, vocab_size)
        except OSError as error:
            unusable = f"the cache of prepared text, {cache_dir()}, cannot be used: {error.strerror}"
            raise UserError(f"{unusable}; set JMOE_CACHE to another folder") from None
    _check_vocabulary(vocab_size, corpus.manifest["tokenizer"])
    return corpus


def is_prepared(path: str) -> bool:
    """Whether `path` is a prepared folder; one on gs:// is taken for that unseen."""
    return is_remote(path) or bool(path) and os.path.exists(os.path.join(os.path.expanduser(path), "manifest.json"))


def of_path(data, path: str, **changes):
    """`data` (config.data) with the text at `path` in place of its own."""
    one = data.copy_and_resolve_references()
    with one.unlocked():
        one.update(path=path, mixture=(), fingerprint="", **changes)
    return one


def _named(data, path: str, called: str, vocab_size, **changes) -> Corpus:
    """The corpus of_path(data, path), of the field and entry that `called` names in errors."""
    try:
        return _single(of_path(data, path, **changes), vocab_size)
    except UserError as error:
        raise UserError(f"config.data.{called}: {error}") from None


def validation_sets(data, vocab_size: int, trained: Corpus | mixture.Mixture) -> dict[str, Corpus]:
    """The sets of config.data.validation_sets by name; `validation` of each is what is evaluated.

    That is the held-out part of a set that is the text of the run, `trained`, or one of its sources; and all text of
    any other set, but the 1% held out of it. UserError as `load`, with the set's name; and where it is trained on.
    """
    sets = {}
    for name, path in named_paths(data.get("validation_sets", "")).items():
        called = f"validation_sets, {name}"
        loaded = _named(data, path, called, vocab_size, validation_path="")
        source = _trained_on(data, path, loaded, trained, called)
        if source is None:
            sets[name] = dataclasses.replace(loaded, validation=loaded.train)
        elif data.validation_path:
            raise UserError(
                f"config.data.{called}: {path!r} is text that the run trains on, and none of it is held out, as "
                f"config.data.validation_path={data.validation_path!r} is what is held out: leave that empty, or name "
                "text that is not trained on"
            )
        else:
            sets[name] = source.corpus
        if name in (part.name for part in trained.parts) and (source is None or source.name != name):
            raise UserError(
                f"config.data.{called}: {name!r} is a source of config.data.mixture, whose held-out loss has this name "
                "already: choose another name for the set"
            )
    return sets


def _trained_on(data, path: str, loaded: Corpus, trained: Corpus | mixture.Mixture, called: str) -> mixture.Part | None:
    """The source of `trained` that is the text at `path`, `loaded`; None where it has none of it. UserError where only
    some of the files at `path` are trained on."""
    files = _files(data, path)
    for part in trained.parts:
        of_part = part.name or data.path
        of_source = _files(data, of_part)
        if path == of_part or loaded.fingerprint == part.corpus.fingerprint or files and files == of_source:
            return part
        if common := sorted(files & of_source):
            raise UserError(
                f"config.data.{called}: {path!r} has {len(common)} of the files that the run trains on as "
                f"{of_part!r}, first {common[0]}: name text that is not trained on, or all of {of_part!r}, whose "
                "held-out part is evaluated then"
            )
    return None


def _files(data, path: str) -> set[str]:
    """The files of text at `path`; none of a prepared folder, or of what is not on this machine."""
    if is_prepared(path):
        return set()
    try:
        return {os.path.realpath(file) for file in sources.find(of_path(data, path, validation_path="")).train}
    except UserError:
        return set()


def open_folder(folder: pathlib.Path, verify: bool = False) -> Corpus:
    """Opens a prepared folder and checks the sizes of its shards, and their hashes if that is cheap or `verify` is set.
    A UserError names a shard or manifest that is missing or damaged."""
    damaged = lambda what: UserError(f"the prepared corpus {folder} is damaged: {what}; delete it and prepare it again")
    try:
        manifest = manifest_lib.parse((folder / "manifest.json").read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(f"manifest.json ({error})") from None
    dtype = tokenizer.token_dtype(manifest["tokenizer"]["vocab_size"])
    verify = verify or sum(manifest["tokens"].values()) * dtype.itemsize <= CHEAP_BYTES
    splits = {split: [] for split in SPLITS}
    for split, shard in manifest_lib.shards(manifest):
        path, size = folder / shard["file"], shard["tokens"] * dtype.itemsize
        if not path.exists():
            raise damaged(f"{shard['file']} is missing")
        if (on_disk := path.stat().st_size) != size:
            raise damaged(f"{shard['file']} has {on_disk} bytes instead of {size}")
        tokens = np.memmap(path, dtype, "r").view(np.ndarray)  # slices of a memmap are slow
        if verify and hashlib.sha256(tokens).hexdigest() != shard["sha256"]:
            raise damaged(f"{shard['file']} differs from its hash in manifest.json")
        if verify and (largest := int(tokens.max())) >= manifest["tokenizer"]["vocab_size"]:
            raise damaged(f"{shard['file']} holds token {largest}, beyond the vocabulary")
        splits[split].append(tokens)
    return Corpus(manifest["fingerprint"], *(Tokens(splits[split]) for split in SPLITS), manifest)


def check_utf8(corpus: Corpus, folder: pathlib.Path) -> None:
    """UserError where a document of byte-level shards is not UTF-8. Python's sources, the default text, are taken as
    they are, and not looked at here."""
    if corpus.manifest["tokenizer"]["name"] != "bytes" or not corpus.manifest["source"].get("train"):
        return
    for split, tokens in (("train", corpus.train), ("validation", corpus.validation)):
        decoder, n_documents = codecs.getincrementaldecoder("utf-8")(), 0
        for start in range(0, len(tokens), CHECKED_TOKENS):
            part = tokens[start : start + CHECKED_TOKENS]
            ends, n_held = part > 255, len(decoder.getstate()[0])
            try:
                decoder.decode(np.where(ends, ord("\n"), part).astype(np.uint8).tobytes())
            except UnicodeDecodeError as error:
                n_documents += int(ends[: max(error.start - n_held, 0)].sum())
                raise UserError(
                    f"the prepared corpus {folder}: document {n_documents + 1} of split {split} is not UTF-8, which is "
                    "now refused when text is prepared; prepare it again in another folder"
                ) from None
            n_documents += int(ends.sum())


def skipped_warning(n: int) -> str:
    """The sentence about `n` documents that are not text."""
    return f"WARNING: {n} bad document(s) skipped; --config.data.on_bad_document=fail names the first"


def _prepared(data) -> Corpus:
    if data.validation_path:
        raise UserError(
            f"config.data.validation_path={data.validation_path!r}: the prepared folder {data.path} brings its own "
            "held-out text; leave the field empty"
        )
    corpus = open_folder(_fetched(data.path) if is_remote(data.path) else pathlib.Path(data.path).expanduser())
    made_by = corpus.manifest["tokenizer"]
    if not tokenizer.is_of(data.tokenizer, made_by):
        raise UserError(
            f"config.data.tokenizer={data.tokenizer!r} is not the tokenizer that {data.path} was prepared by: "
            f"{made_by['name']} of {made_by['vocab_size']} tokens"
        )
    return corpus


def _fetched(path: str) -> pathlib.Path:
    """A prepared folder in object storage, copied into the cache once."""
    remote = epath.Path(path)
    try:
        text = (remote / "manifest.json").read_text()
        manifest = manifest_lib.parse(text)
        cache = cache_dir() / "tokens"
        folder = cache / f"{manifest['fingerprint']}-{manifest['sha256'][:16]}"
        if folder.exists():
            return folder
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache, ignore_cleanup_errors=True) as work:
            work = pathlib.Path(work)
            shards = manifest_lib.shards(manifest)
            for _, shard in tqdm(shards, desc=f"fetching {path}", unit=" shards", disable=None, leave=False):
                (remote / shard["file"]).copy(work / shard["file"])
            (work / "manifest.json").write_text(text)
            open_folder(work, verify=True)
            durable.sync_tree(work)
            _move(work, folder)
        return folder
    except (UserError, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001  object stores raise their clients' own errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"config.data.path={path}: no prepared folder can be fetched from there: {reason}") from None


def _cached(data, vocab_size) -> Corpus:
    """The text of `data`, prepared in the cache unless it is already there."""
    cache = cache_dir() / "tokens"
    if data.fingerprint and (folder := cache / data.fingerprint).exists():
        return open_folder(folder)
    text, encoder = sources.find(data), tokenizer.load(data.tokenizer, data.end_of_text)
    _check_vocabulary(vocab_size, encoder.describe())
    digest = prepare.digest(text, data, encoder)
    listing = cache / "listings" / digest
    with ownership.hold(cache / "locks" / digest, "preparing this text", math.inf):
        if listing.exists() and (folder := cache / listing.read_text()).exists():
            return open_folder(folder)
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


def _check_vocabulary(vocab_size: int | None, described: dict) -> None:
    if vocab_size is not None and vocab_size < described["vocab_size"]:
        needed = f"the {described['vocab_size']} tokens of the tokenizer {described['name']!r}"
        raise UserError(f"config.model.vocab_size={vocab_size} is below {needed}")


def _move(work: pathlib.Path, folder: pathlib.Path) -> None:
    try:
        work.rename(folder)
    except OSError:  # the same tokens are there already
        if not folder.exists():
            raise
    durable.sync_folder(folder.parent)
