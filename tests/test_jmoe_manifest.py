"""Prepared folders opened, here and from object storage: damage is named, and nothing leads out of the folder."""

import subprocess
import sys

import helpers
import pytest
from text_fixtures import settings

from jmoe import corpus
from jmoe.cli import UserError


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
        ("manifest.json", lambda b: b"[]", "manifest.json"),
        ("manifest.json", lambda b: b"{}", "manifest.json"),
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


REMOTE = """
import os, pathlib, sys
from etils import epath
from configs import quickstart
from jmoe import cli, corpus
local, remote = pathlib.Path(sys.argv[1]), epath.Path(sys.argv[2])
data = quickstart.get_config().data
data.update(path=str(remote), tokenizer="tokenizer.json")
def load():
    try:
        made = corpus.load(data)
        print(made.fingerprint, int(made.train[:].sum()), int(made.validation[:].sum()))
    except cli.UserError as error:
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
