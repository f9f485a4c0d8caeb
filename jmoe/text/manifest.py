"""manifest.json of a prepared folder, and the checks that it must pass.

A prepared folder may come from anyone. So no file of it is opened or fetched before the manifest's names, types and
sizes are checked: no name in it can lead out of the folder.

Axis legend: V tokens of the vocabulary.
"""

import base64
import json
import re
import zlib
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64

from jmoe.config.schema_types import TEXT, Constraint, integer
from jmoe.storage.files import sealed

SPLITS = ("train", "validation")


def _matching(pattern: str, description: str = "") -> Constraint:
    """Text that matches a regular expression as a whole."""
    return Constraint(
        description or f"of the form {pattern}",
        lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None,
    )


OBJECT = Constraint("an object", lambda value: isinstance(value, dict))
FILES = Constraint("a list of files", lambda value: isinstance(value, list) and len(value) > 0)
COUNT = integer(1, 2**62)
SHA256 = _matching("[0-9a-f]{64}")
SHARD_NAME = _matching(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}\.bin", "the bare name of a .bin file")
# constraint by dotted name of an entry
ENTRIES = {
    "fingerprint": _matching("[0-9a-f]{16}"),
    "tokenizer.name": TEXT,
    "tokenizer.sha256": TEXT,
    "tokenizer.vocab_size": integer(1, 2**31),
    "source.inputs": TEXT,
    **{f"{count}.{split}": COUNT for count in ("documents", "tokens", "bytes") for split in SPLITS},
    **{f"shards.{split}": FILES for split in SPLITS},
}


def parse(text: str) -> dict[str, Any]:
    """Parses and checks a manifest.

    Raises:
      ValueError: The manifest is not valid; the error names the entry, its value and what it must be.
      RecursionError: The JSON is nested too deeply.
    """
    manifest = json.loads(text)
    _check("it", manifest, OBJECT)
    if manifest != sealed(manifest):
        raise ValueError("its content differs from its own hash")
    for name, constraint in ENTRIES.items():
        parent_name, _, entry = name.rpartition(".")
        parent = manifest.get(parent_name) if parent_name else manifest
        _check(parent_name, parent, OBJECT)
        _check(name, parent.get(entry), constraint)
    file_names: set[str] = set()
    for split in SPLITS:
        _check_shards(manifest, split, file_names)
    token_bytes(manifest)
    return manifest


def _check_shards(manifest: dict[str, Any], split: str, file_names: set[str]) -> None:
    """Checks the shards of a split, and adds their files to `file_names`. Each file may occur once."""
    for i, shard in enumerate(manifest["shards"][split]):
        shard_name = f"shards.{split}[{i}]"
        _check(shard_name, shard, OBJECT)
        for entry, constraint in (("file", SHARD_NAME), ("sha256", SHA256), ("tokens", COUNT)):
            _check(f"{shard_name}.{entry}", shard.get(entry), constraint)
        _check(f"{shard_name}.file", shard["file"], Constraint("named once", lambda name: name not in file_names))
        file_names.add(shard["file"])
    n_tokens = sum(shard["tokens"] for shard in manifest["shards"][split])
    is_sum = Constraint(f"its shards' {n_tokens}", lambda value: value == n_tokens)
    _check(f"tokens.{split}", manifest["tokens"][split], is_sum)


def shards(manifest: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(split, shard) of each shard."""
    return [(split, shard) for split in SPLITS for shard in manifest["shards"][split]]


def pack(n_bytes: Float[np.ndarray, " V"]) -> str:
    """Packs the bytes of text of each token, as float32, into a string for a manifest."""
    little_endian: Float32[np.ndarray, " V"] = n_bytes.astype("<f4")
    return base64.b64encode(zlib.compress(little_endian.tobytes(), 9)).decode()


def token_bytes(manifest: dict[str, Any]) -> Float64[np.ndarray, " V"]:
    """Bytes of held-out text that each token encodes.

    Their sum over the held-out tokens is the size of that text. An older manifest lacks them, and each token gets the
    mean.

    Raises:
      ValueError: The packed numbers are damaged.
    """
    vocab_size = manifest["tokenizer"]["vocab_size"]
    if "token_bytes" not in manifest:
        return np.full(vocab_size, manifest["bytes"]["validation"] / manifest["tokens"]["validation"])
    packed = manifest["token_bytes"]
    _check("token_bytes", packed, TEXT)
    try:
        decompressor = zlib.decompressobj()
        content = decompressor.decompress(base64.b64decode(packed, validate=True), 4 * vocab_size + 1)
        n_bytes = np.frombuffer(content, "<f4").astype(np.float64)
    except (ValueError, zlib.error):
        n_bytes = np.empty(0)
    valid = len(n_bytes) == vocab_size and np.isfinite(n_bytes).all() and (n_bytes >= 0).all()
    _check("token_bytes", packed[:20], Constraint(f"a table of {vocab_size} packed numbers", lambda _: bool(valid)))
    return n_bytes


def _check(name: str, value: Any, constraint: Constraint) -> None:
    if not constraint.accepts(value):
        raise ValueError(f"{name} is {repr(value)[:80]} and must be {constraint.description}")
