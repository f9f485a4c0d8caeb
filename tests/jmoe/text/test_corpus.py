"""Text to rows: real files of every kind, deduplicated, held out by hash, the same on every start."""

import json
import shutil

import pytest
from text_fixtures import decode, settings

from jmoe.errors import UserError
from jmoe.storage.files import cache_dir, sealed
from jmoe.text import corpus

DOCUMENTS = [f"document {i}: " + "äöü and plain text " * (i % 7 + 1) for i in range(400)]

pytestmark = pytest.mark.usefixtures("own_cache")


def test_duplicates_count_once_and_content_makes_the_fingerprint(tmp_path):
    for name, documents in (("a", DOCUMENTS), ("b", DOCUMENTS + DOCUMENTS[:50]), ("c", DOCUMENTS[:-1])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    a, b, c = (corpus.load(settings(tmp_path / f"{name}.jsonl")) for name in "abc")
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert a.manifest["documents"]["train"] + a.manifest["documents"]["validation"] == 400


def test_the_second_load_reads_nothing_again_until_a_file_changes(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": d}) + "\n" for d in DOCUMENTS]
    path.write_text("".join(lines))
    first = corpus.load(settings(path))
    made = {p: p.stat().st_mtime_ns for p in cache_dir().rglob("*.bin")}
    assert corpus.load(settings(path)).fingerprint == first.fingerprint
    assert {p: p.stat().st_mtime_ns for p in cache_dir().rglob("*.bin")} == made
    path.write_text("".join(lines[:-1]))
    assert corpus.load(settings(path)).fingerprint != first.fingerprint
    # a run that began with the old text finds it by its fingerprint, though the file has changed
    assert corpus.load(settings(path, fingerprint=first.fingerprint)).manifest == first.manifest
    with pytest.raises(UserError, match="0123456789abcdef"):
        corpus.load(settings(path, fingerprint="0123456789abcdef"))


def test_a_validation_path_is_held_out_whole_and_never_trained_on(tmp_path):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS))
    (tmp_path / "held.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS[10:20]))
    made = corpus.load(settings(tmp_path / "train.jsonl", validation_path=str(tmp_path / "held.jsonl")))
    assert decode(made.validation) == DOCUMENTS[10:20]
    assert decode(made.train) == DOCUMENTS[:10] + DOCUMENTS[20:]


def test_a_cache_of_an_earlier_version_gets_what_came_later(tmp_path):
    """The same fingerprint, as the documents and the split are the same; now with the bytes of each token."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS))
    made = corpus.load(settings(tmp_path / "a.jsonl"))
    folder = cache_dir() / "tokens" / made.fingerprint
    old = {name: value for name, value in made.manifest.items() if name not in ("token_bytes", "sha256")}
    (folder / "manifest.json").write_text(json.dumps(sealed(old)))
    shutil.rmtree(cache_dir() / "tokens" / "listings")
    again = corpus.load(settings(tmp_path / "a.jsonl"))
    assert again.manifest == made.manifest and list(again.token_bytes) == [1] * 256 + [0]
    assert not list((cache_dir() / "tokens").glob("preparing-*"))


def test_an_unusable_cache_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setenv("JMOE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="JMOE_CACHE"):
        corpus.load(settings(tmp_path / "a.txt"))
