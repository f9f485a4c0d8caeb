"""Prepared folders opened, here and from object storage: damage is named, and nothing leads out of the folder."""

import hashlib
import json
import subprocess
import sys

import helpers
import numpy as np
import pytest
from text_fixtures import settings

from jmoe.errors import UserError
from jmoe.storage.files import sealed
from jmoe.text import corpus, manifest


@pytest.fixture
def copy(prepared, tmp_path):
    """A copy of the prepared folder to damage."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in prepared.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize(
    "name, damage, words",
    [
        ("train-00002.bin", lambda b: b[:-1], "has 7999 bytes instead of 8000"),
        ("train-00002.bin", lambda b: b + b"\0\0", "has 8002 bytes instead of 8000"),
        ("train-00002.bin", lambda b: b[:5000] + bytes([b[5000] ^ 4]) + b[5001:], "differs from its hash"),
        ("validation-00000.bin", lambda b: None, "is missing"),
        ("manifest.json", lambda b: b[:-20], "manifest.json"),
        ("manifest.json", lambda b: b.replace(b'"vocab_size": 700', b'"vocab_size": 300'), "its own hash"),
    ],
)
def test_damage_is_named(copy, name, damage, words):
    content = damage((copy / name).read_bytes())
    (copy / name).unlink()
    if content is not None:
        (copy / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        corpus.load(settings(copy))
    assert name in str(error.value) and words in str(error.value) and str(copy) in str(error.value)


def test_verify_reads_every_byte_of_a_large_corpus(copy, monkeypatch):
    monkeypatch.setattr(corpus, "CHEAP_BYTES", 0)  # as if it were large
    content = bytearray((copy / "train-00003.bin").read_bytes())
    content[77] ^= 1
    (copy / "train-00003.bin").write_bytes(content)
    corpus.load(settings(copy, "tokenizer.json"))  # its file need not be at hand
    with pytest.raises(UserError, match="train-00003.bin differs"):
        corpus.open_folder(copy, verify=True)
    assert "train-00003.bin differs" in helpers.fails("jmoe.prepare", f"--out_dir={copy}", "--verify")


def rewrite(folder, change) -> None:
    """A manifest that someone made on purpose: its own hash is right."""
    made = json.loads((folder / "manifest.json").read_text())
    change(made)
    (folder / "manifest.json").write_text(json.dumps(sealed(made)))


def shard(**entries):
    return lambda made: made["shards"]["train"][1].update(entries)


OUTSIDE = ["../../x.bin", "/etc/x.bin", "a/b.bin", "..", ".bin", "x.py", "a" * 200 + ".bin"]
OUTSIDE += ["a\\b.bin", "a\n.bin", "a\0.bin", "é.bin", "a b.bin"]
HOSTILE = [(shard(file=name), "shards.train[1].file") for name in [*OUTSIDE, "train-00000.bin", None, 5, ["x.bin"]]] + [
    (shard(tokens=-4), "shards.train[1].tokens"),
    (shard(tokens=4000.0), "shards.train[1].tokens"),
    (shard(tokens=True), "shards.train[1].tokens"),
    (shard(tokens=3999), "tokens.train"),
    (shard(sha256="x"), "shards.train[1].sha256"),
    (lambda made: made.update(fingerprint="../../../home/x"), "fingerprint"),
    (lambda made: made.update(fingerprint=7), "fingerprint"),
    (lambda made: made["shards"].update(train=[]), "shards.train"),
    (lambda made: made["shards"].update(train={"file": "x.bin"}), "shards.train"),
    (lambda made: made["shards"].update(validation=["x.bin"]), "shards.validation[0]"),
    (lambda made: made.pop("shards"), "shards"),
    (lambda made: made["tokens"].update(validation="9"), "tokens.validation"),
    (lambda made: made["bytes"].update(validation=0), "bytes.validation"),
    (lambda made: made["tokenizer"].update(vocab_size=10**12), "tokenizer.vocab_size"),
    (lambda made: made["tokenizer"].update(name=None), "tokenizer.name"),
    (lambda made: made.update(tokenizer=[]), "tokenizer"),
    (lambda made: made.pop("source"), "source"),
    (lambda made: made.update(token_bytes="AAAA"), "token_bytes"),
    (lambda made: made.update(token_bytes=manifest.pack(np.zeros(701))), "token_bytes"),
    (lambda made: made.update(token_bytes=manifest.pack(np.full(700, np.nan))), "token_bytes"),
]


def test_a_manifest_made_on_purpose_leads_nowhere(prepared, copy, tmp_path, own_cache, monkeypatch):
    """Refused before a file is looked at, here and where it would be fetched from; nothing is left behind."""
    sound = (copy / "manifest.json").read_text()
    monkeypatch.setattr(corpus, "is_remote", lambda path: path.startswith(str(tmp_path / "remote")))
    (tmp_path / "remote").symlink_to(copy)
    (tmp_path / "x.bin").write_bytes(b"secret")
    for change, entry in HOSTILE:
        (copy / "manifest.json").write_text(sound)
        rewrite(copy, change)
        for folder in (copy, tmp_path / "remote"):
            before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
            with pytest.raises(UserError) as error:
                corpus.load(settings(folder, "tokenizer.json"))
            assert f"{entry} is " in str(error.value) and str(folder) in str(error.value), error.value
            assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (copy / "manifest.json").write_text(sound)
    for folder in (copy, tmp_path / "remote"):
        made = corpus.load(settings(folder, "tokenizer.json"))
    assert made.fingerprint == corpus.open_folder(prepared).fingerprint


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b"[]", b'{"sha256": NaN}', b""])
def test_what_is_no_manifest(copy, content):
    (copy / "manifest.json").write_bytes(content)
    with pytest.raises(UserError, match="is damaged: manifest.json"):
        corpus.load(settings(copy, "tokenizer.json"))


def test_a_token_beyond_the_vocabulary_is_named(copy):
    path = copy / "validation-00000.bin"
    tokens = np.fromfile(path, "<u2")
    tokens[5] = 700
    path.write_bytes(tokens.tobytes())
    digest = hashlib.sha256(tokens.tobytes()).hexdigest()
    rewrite(copy, lambda made: made["shards"]["validation"][0].update(sha256=digest))
    with pytest.raises(UserError, match="validation-00000.bin holds token 700, beyond the vocabulary"):
        corpus.load(settings(copy, "tokenizer.json"))


def test_folders_of_an_earlier_version_still_open(copy):
    """Without what came later; each token then stands for the mean of its bytes."""
    rewrite(copy, lambda made: [made.pop(name) for name in ("token_bytes", "skipped")])
    made = corpus.load(settings(copy, "tokenizer.json"))
    found = made.manifest
    mean = found["bytes"]["validation"] / found["tokens"]["validation"]
    assert len(made.token_bytes) == 700 and (made.token_bytes == mean).all()
    helpers.succeeds("jmoe.prepare", f"--out_dir={copy}", "--verify")


REMOTE = """
import os, pathlib, sys
from etils import epath
from configs import quickstart
from jmoe.errors import UserError
from jmoe.storage.files import sealed
from jmoe.text import corpus
local, remote = pathlib.Path(sys.argv[1]), epath.Path(sys.argv[2])
data = quickstart.get_config().data
data.update(path=str(remote), tokenizer="tokenizer.json")
def load():
    try:
        made = corpus.load(data)
        print(made.fingerprint, int(made.train[:].sum()), int(made.validation[:].sum()))
    except UserError as error:
        print(error)
load()
for path in local.iterdir():
    if path.name != "train-00001.bin":
        (remote / path.name).write_bytes(path.read_bytes())
load()
(remote / "train-00001.bin").write_bytes((local / "train-00001.bin").read_bytes())
load()
(remote / "train-00001.bin").unlink()
load()  # from the cache
"""


def test_a_prepared_folder_in_object_storage(prepared, vocabularies, tmp_path):
    """Fetched whole into the cache, or named as missing; a second load takes it from there."""
    with helpers.bucket() as bucket:
        done = subprocess.run(
            [sys.executable, "-c", REMOTE, str(prepared), f"{bucket}/tokens"],
            env=helpers.environment() | {"JMOE_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    nothing, half, whole, again = done.stdout.splitlines()
    made = corpus.load(settings(prepared, vocabularies["json"]))
    assert whole == again == f"{made.fingerprint} {made.train[:].sum()} {made.validation[:].sum()}"
    for said in nothing, half:
        assert said.startswith(f"config.data.path={bucket}/tokens: no prepared folder can be fetched from there")
    assert not list(tmp_path.rglob("fetching-*"))
