"""manifest.json of a prepared folder, and the checks that it must pass.

A prepared folder may come from anyone. So no file of it is opened or fetched before the manifest's names, types and
sizes are checked: no name in it can lead out of the folder.
"""

import base64
import json
import re
import zlib

import numpy as np

from jmoe.storage.files import sealed

SPLITS = ("train", "validation")


def _count(most: int = 2**62):
    return lambda x: type(x) is int and 1 <= x <= most, "a whole number from 1 on"


def _text(pattern: str, words: str = ""):
    return lambda x: isinstance(x, str) and bool(re.fullmatch(pattern, x)), words or f"of the form {pattern}"


# What an entry may be: a test of its value, and words for people.
OBJECT = lambda x: isinstance(x, dict), "an object"
FILES = lambda x: isinstance(x, list) and bool(x), "a list of files"
STRING = lambda x: isinstance(x, str), "a string"
SHA256 = _text("[0-9a-f]{64}")
SHARD_NAME = _text(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}\.bin", "the bare name of a .bin file")
ENTRIES = {
    "fingerprint": _text("[0-9a-f]{16}"),
    "tokenizer.name": STRING,
    "tokenizer.sha256": STRING,
    "tokenizer.vocab_size": _count(2**31),
    "source.inputs": STRING,
    **{f"{what}.{split}": _count() for what in ("documents", "tokens", "bytes") for split in SPLITS},
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
            for entry, kind in (("file", SHARD_NAME), ("sha256", SHA256), ("tokens", _count())):
                _check(f"{where}.{entry}", shard.get(entry), kind)
            _check(f"{where}.file", shard["file"], (lambda x: x not in names, "named once"))
            names.add(shard["file"])
        total = sum(shard["tokens"] for shard in manifest["shards"][split])
        _check(f"tokens.{split}", manifest["tokens"][split], (lambda x: x == total, f"its shards' {total}"))
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
    _check("token_bytes", packed, STRING)
    try:
        inflate = zlib.decompressobj()
        content = inflate.decompress(base64.b64decode(packed, validate=True), 4 * vocab_size + 1)
        lengths = np.frombuffer(content, "<f4").astype(np.float64)
    except (ValueError, zlib.error):
        lengths = np.empty(0)
    good = len(lengths) == vocab_size and np.isfinite(lengths).all() and (lengths >= 0).all()
    _check("token_bytes", packed[:20], (lambda _: good, f"a table of {vocab_size} packed numbers"))
    return lengths


def _check(name: str, value, kind) -> None:
    holds, words = kind
    if not holds(value):
        raise ValueError(f"{name} is {repr(value)[:80]} and must be {words}")
