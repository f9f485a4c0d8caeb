"""Text to rows: real files of every kind, deduplicated, held out by hash, the same on every start."""

import hashlib
import json
import pathlib

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from configs import quickstart
from jmoe import corpus, data, sharding, sources
from jmoe.cli import UserError
from jmoe.schedule import Schedule

DOCUMENTS = [f"document {i}: " + "äöü and plain text " * (i % 7 + 1) for i in range(400)]


def settings(path, **more):
    data = quickstart.get_config().data
    data.update(path=str(path), **more)
    return data


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JMOE_CACHE", str(tmp_path / "cache"))


def decode(tokens):
    """The documents in tokens that are bytes."""
    tokens = tokens[:]
    ends = np.flatnonzero(tokens == 256)
    return [bytes(part[part < 256].astype(np.uint8)).decode() for part in np.split(tokens, ends + 1)[:-1]]


def test_jsonl_and_parquet_and_txt_hold_the_same_documents(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": d, "id": i}) + "\n" for i, d in enumerate(DOCUMENTS)))
    pa.parquet.write_table(pa.table({"id": range(400), "text": DOCUMENTS}), tmp_path / "a.parquet")
    (tmp_path / "txt").mkdir()
    for i, document in enumerate(DOCUMENTS):
        (tmp_path / "txt" / f"{i:03}.txt").write_text(document)
    made = [corpus.load(settings(tmp_path / glob)) for glob in ("a.jsonl", "a.parquet", "txt/*.txt")]
    expected = {d for d in DOCUMENTS if int.from_bytes(hashlib.sha256(d.encode()).digest()[:8]) % 100 == 0}
    for one in made:
        assert one.fingerprint == made[0].fingerprint
        held_out, trained = decode(one.validation), decode(one.train)
        assert set(held_out) == expected and len(expected) > 0
        assert trained == [d for d in DOCUMENTS if d not in expected]  # in the order of the files


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
    made = {p: p.stat().st_mtime_ns for p in corpus.cache_dir().rglob("*.bin")}
    assert corpus.load(settings(path)).fingerprint == first.fingerprint
    assert {p: p.stat().st_mtime_ns for p in corpus.cache_dir().rglob("*.bin")} == made
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


def test_a_handful_of_files_still_holds_one_out(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(f"file {i} " * 50)
    made = corpus.load(settings(tmp_path / "*.txt"))
    assert len(decode(made.validation)) == 1 and len(decode(made.train)) == 2
    assert not set(decode(made.validation)) & set(decode(made.train))


def test_the_default_corpus_is_this_machines_python(tmp_path):
    found = sources.find(settings("")).train
    files = [pathlib.Path(path) for path in found]
    names = {path.name for path in files}
    assert {"argparse.py", "dataclasses.py"} <= names
    assert any("flax" in path.parts for path in files)
    assert files == sorted(files) and all(path.suffix == ".py" for path in files)


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.jsonl", b'{"text": "x"}\n{"body": "y"}\n', ["a.jsonl", "line 2", "'text'"]),
        ("a.jsonl", b'{"text": 5}\n', ["a.jsonl", "line 1"]),
        ("a.jsonl", b"not json\n", ["a.jsonl", "line 1"]),
        ("a.parquet", b"not parquet", ["a.parquet"]),
        ("a.csv", b"text\nx\n", ["a.csv", ".txt, .jsonl, .parquet"]),
        ("a.txt", b"only one document", ["validation_path"]),
        ("a.txt", b"", ["validation_path"]),
    ],
)
def test_unusable_files_are_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        corpus.load(settings(tmp_path / name))
    for word in words:
        assert word in str(error.value)
    assert not list(corpus.cache_dir().rglob("*.bin"))


def test_an_empty_glob(tmp_path):
    with pytest.raises(UserError, match="matches no file"):
        corpus.load(settings(tmp_path / "*.txt"))


def test_a_parquet_without_text(tmp_path):
    pa.parquet.write_table(pa.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="no column 'text'; it has body"):
        corpus.load(settings(tmp_path / "a.parquet"))


def test_a_damaged_cache_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS))
    corpus.load(settings(tmp_path / "a.jsonl"))
    path = next(corpus.cache_dir().rglob("train-00000.bin"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="damaged.*train-00000.bin has .* bytes instead of"):
        corpus.load(settings(tmp_path / "a.jsonl"))


def test_an_unusable_cache_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setenv("JMOE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="JMOE_CACHE"):
        corpus.load(settings(tmp_path / "a.txt"))


def test_batches_follow_from_the_step_alone():
    """Entered anywhere, the data goes on as if it had run from the start; an epoch sees every row once, the next in another order."""
    config = quickstart.get_config()
    config.data.seq_len, config.n_tokens, config.batch_tokens = 16, (4096,), ((0, 128), (1024, 256))
    config.optimizer.warmup_tokens = 128
    config.model.d_model = 16
    tokens = np.arange(16 * 80 + 1, dtype=np.uint16)  # 80 rows: the run is a little over three epochs
    text = corpus.Corpus("", tokens, tokens, {})
    plan = Schedule(config)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    trunk, branch = plan.segments
    whole = [np.asarray(b) for b in data.training_batches(text, config, plan, mesh, trunk, 0)]
    assert [len(b) for b in whole[:9]] == [8] * 8 + [16]
    for start in (0, 3, 8, 11):
        again = [np.asarray(b) for b in data.training_batches(text, config, plan, mesh, trunk, start)]
        assert len(again) == len(whole) - start
        for one, other in zip(whole[start:], again):
            np.testing.assert_array_equal(one, other)
    rows = np.concatenate(whole)[:, 0] // 16
    first, second = rows[:80], rows[80:160]
    assert sorted(first) == sorted(second) == list(range(80))
    assert list(first) != list(second) and list(first) != list(range(80))
    np.testing.assert_array_equal(np.concatenate(whole)[:, 1:], np.concatenate(whole)[:, :-1] + 1)


def test_rows_cover_the_tokens_and_share_one_at_the_seam():
    rows = data.Rows(np.arange(100, dtype=np.uint16), 10)
    assert len(rows) == 9
    np.testing.assert_array_equal(rows.read([0, 8]), [np.arange(11), np.arange(80, 91)])
