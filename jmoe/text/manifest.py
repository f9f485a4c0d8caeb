"""manifest.json of a prepared folder, and the checks that it must pass.

A prepared folder may come from anyone. So no file of it is opened or fetched before the manifest's names, types and
sizes are checked: no name in it can lead out of the folder.
"""

import base64
import json
import re
import zlib

import numpy as np

from jmoe.config.field import TEXT, integer
from jmoe.storage.files import sealed

SPLITS = ("train", "validation")


def _text(pattern: str, words: str = ""):
    return words or f"of the form {pattern}", lambda x: isinstance(x, str) and bool(re.fullmatch(pattern, x))


# What an entry may be: words for people, and a test of its value.
OBJECT = "an object", lambda x: isinstance(x, dict)
FILES = "a list of files", lambda x: isinstance(x, list) and bool(x)
COUNT = integer(1, 2**62)
SHA256 = _text("[0-9a-f]{64}")
SHARD_NAME = _text(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}\.bin", "the bare name of a .bin file")
ENTRIES = {
    "fingerprint": _text("[0-9a-f]{16}"),
    "tokenizer.name": TEXT,
    "tokenizer.sha256": TEXT,
    "tokenizer.vocab_size": integer(1, 2**31),
    "source.inputs": TEXT,
    **{f"{what}.{split}": COUNT for what in ("documents", "tokens", "bytes") for split in SPLITS},
    **{f"shards.{split}": FILES for split in SPLITS},
}


def parse(text: str) -> dict:
    """Parses and checks a manifest; ValueError, naming the entry, its value and what it must be, if it is not valid;
    RecursionError if it is nested too deeply."""
    manifest = json.loads(text)
    _check("it", manifest, OBJECT)
    if manifest != sealed(manifest):
        raise ValueError("its content differs from its own hash")
    for name, kind in ENTRIES.items():
        holder, _, entry = name.rpartition(".")
        inside = manifest.get(holder) if holder else manifest
        _check(holder, inside, OBJECT)
        _check(name, inside.get(entry), kind)
    names = set()
    for split in SPLITS:
        for i, shard in enumerate(manifest["shards"][split]):
            where = f"shards.{split}[{i}]"
            _check(where, shard, OBJECT)
            for entry, kind in (("file", SHARD_NAME), ("sha256", SHA256), ("tokens", COUNT)):
                _check(f"{where}.{entry}", shard.get(entry), kind)
            _check(f"{where}.file", shard["file"], ("named once", lambda x: x not in names))
            names.add(shard["file"])
        total = sum(shard["tokens"] for shard in manifest["shards"][split])
        _check(f"tokens.{split}", manifest["tokens"][split], (f"its shards' {total}", lambda x: x == total))
    token_bytes(manifest)
    return manifest


def shards(manifest: dict) -> list[tuple[str, dict]]:
    """(split, shard) of each shard."""
    return [(split, shard) for split in SPLITS for shard in manifest["shards"][split]]


def pack(n_bytes: np.ndarray) -> str:
    """Bytes of text that each token stands for, float32 [vocab_size], as a string for a manifest."""
    return base64.b64encode(zlib.compress(n_bytes.astype("<f4").tobytes(), 9)).decode()


def token_bytes(manifest: dict) -> np.ndarray:
    """Bytes of held-out text that each token stands for, float64 [vocab_size]; summed over the held-out tokens they
    are that text's size. An older manifest lacks them: each token gets the mean. ValueError if they are damaged."""
    vocab_size = manifest["tokenizer"]["vocab_size"]
    if "token_bytes" not in manifest:
        return np.full(vocab_size, manifest["bytes"]["validation"] / manifest["tokens"]["validation"])
    packed = manifest["token_bytes"]
    _check("token_bytes", packed, TEXT)
    try:
        inflate = zlib.decompressobj()
        content = inflate.decompress(base64.b64decode(packed, validate=True), 4 * vocab_size + 1)
        lengths = np.frombuffer(content, "<f4").astype(np.float64)
    except (ValueError, zlib.error):
        lengths = np.empty(0)
    good = len(lengths) == vocab_size and np.isfinite(lengths).all() and (lengths >= 0).all()
    _check("token_bytes", packed[:20], (f"a table of {vocab_size} packed numbers", lambda _: good))
    return lengths


def _check(name: str, value, kind) -> None:
    words, holds = kind
    if not holds(value):
        raise ValueError(f"{name} is {repr(value)[:80]} and must be {words}")
