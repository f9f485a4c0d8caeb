"""manifest.json of a prepared folder, and the checks that it must pass.

A prepared folder may come from anyone. So no file of it is opened or fetched before the manifest's names, types and
sizes are checked: no name in it can lead out of the folder.
"""

import base64
import hashlib
import json
import re
import zlib

import numpy as np

SPLITS = ("train", "validation")
SHARD_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}\.bin")
HEX = {"fingerprint": re.compile("[0-9a-f]{16}"), "sha256": re.compile("[0-9a-f]{64}")}


def sha256(manifest: dict) -> str:
    """The hash of everything in a manifest but its own hash."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def parse(text: str) -> dict:
    """The manifest in `text`; ValueError, naming the entry, its value and what it must be, where it is none."""
    try:
        manifest = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check(isinstance(manifest, dict), "it", manifest, "an object")
    for name, shape in HEX.items():
        _check_text(manifest, name, shape)
    if manifest["sha256"] != sha256(manifest):
        raise ValueError("its content differs from its own hash")
    described = _entry(manifest, "tokenizer", dict)
    for name in ("name", "sha256"):
        _entry(described, name, str, "tokenizer.")
    _check_count(described, "vocab_size", "tokenizer.", 1, 2**31)
    source = _entry(manifest, "source", dict)
    _entry(source, "inputs", str, "source.")
    counts = {what: _entry(manifest, what, dict) for what in ("documents", "tokens", "bytes")}
    shards = _entry(manifest, "shards", dict)
    names = set()
    for split in SPLITS:
        for what in counts:
            _check_count(counts[what], split, f"{what}.", 1)
        _check(bool(_entry(shards, split, list, "shards.")), f"shards.{split}", [], "a list of files")
        for i, shard in enumerate(shards[split]):
            where = f"shards.{split}[{i}]"
            _check(isinstance(shard, dict), where, shard, "an object")
            _check_text(shard, "file", SHARD_NAME, f"{where}.", "the bare name of a .bin file")
            _check(shard["file"] not in names, f"{where}.file", shard["file"], "named once")
            names.add(shard["file"])
            _check_text(shard, "sha256", HEX["sha256"], f"{where}.")
            _check_count(shard, "tokens", f"{where}.", 1)
        total = sum(shard["tokens"] for shard in shards[split])
        _check(counts["tokens"][split] == total, f"tokens.{split}", counts["tokens"][split], f"its shards' {total}")
    token_bytes(manifest)
    return manifest


def pack(n_bytes: np.ndarray) -> str:
    """Bytes of text that each token stands for, float32 [vocab_size], as a string for a manifest."""
    return base64.b64encode(zlib.compress(n_bytes.astype("<f4").tobytes(), 9)).decode()


def token_bytes(manifest: dict) -> np.ndarray:
    """Bytes of held-out text that each token stands for, float64 [vocab_size]; summed over the held-out tokens they are
    its bytes. An older manifest, which has none, gives each token the mean. ValueError where they are damaged."""
    vocab_size = manifest["tokenizer"]["vocab_size"]
    if "token_bytes" not in manifest:
        return np.full(vocab_size, manifest["bytes"]["validation"] / manifest["tokens"]["validation"])
    packed = _entry(manifest, "token_bytes", str)
    try:
        inflate = zlib.decompressobj()
        content = inflate.decompress(base64.b64decode(packed, validate=True), 4 * vocab_size + 1)
        lengths = np.frombuffer(content, "<f4").astype(np.float64)
    except (ValueError, zlib.error):
        lengths = np.empty(0)
    good = len(lengths) == vocab_size and np.isfinite(lengths).all() and (lengths >= 0).all()
    _check(bool(good), "token_bytes", packed[:20], f"a table of {vocab_size} packed numbers")
    return lengths


def _entry(holder: dict, name: str, kind: type, where: str = ""):
    _check(isinstance(holder.get(name), kind), where + name, holder.get(name), f"a {kind.__name__}")
    return holder[name]


def _check_text(holder: dict, name: str, shape: re.Pattern, where: str = "", what: str = "") -> None:
    value = holder.get(name)
    what = what or f"of the form {shape.pattern}"
    _check(isinstance(value, str) and bool(shape.fullmatch(value)), where + name, value, what)


def _check_count(holder: dict, name: str, where: str, least: int, most: int = 2**62) -> None:
    value = holder.get(name)
    _check(type(value) is int and least <= value <= most, where + name, value, f"a whole number from {least} on")


def _check(good: bool, name: str, value, what: str) -> None:
    if not good:
        raise ValueError(f"{name} is {repr(value)[:80]} and must be {what}")
