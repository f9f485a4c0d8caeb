"""Documents that are no text: named by file and row, or skipped and counted; sources whose package is missing."""

import dataclasses
import json
import random
import subprocess
import sys

import helpers
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from text_fixtures import settings

from jmoe.errors import UserError
from jmoe.storage.files import cache_dir
from jmoe.text import corpus, sources, training_text

pytestmark = pytest.mark.usefixtures("own_cache")

GOOD = [f"a good document, number {i}, of a few words" for i in range(300)]


def write_jsonl(path, bad: dict[int, bytes]) -> None:
    """The good documents, with lines put in their places."""
    found = [json.dumps({"text": d}).encode() for d in GOOD]
    for i, line in bad.items():
        found[i] = line
    path.write_bytes(b"\n".join(found) + b"\n")


def write_parquet(path, bad: dict[int, bytes | None], kind=None) -> None:
    found = [d.encode() for d in GOOD]
    for i, document in bad.items():
        found[i] = document
    column = pa.array(found, pa.binary())
    if kind is None:  # bytes called a string without a look at them, as a damaged writer does
        column = pa.Array.from_buffers(pa.string(), len(column), column.buffers())
    pa.parquet.write_table(pa.table({"text": column}), path, row_group_size=100, store_schema=kind is None)


DEEP = b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
LINES = [
    DEEP,
    b"[1, 2]",
    b'"text"',
    b"not json",
    b'{"text": null}',
    b'{"text": 5}',
    b'{"text": ["a"]}',
    b'{"body": "x"}',
    b'{"text": "caf\xe9"}',
    b'{"text": "a\x00b"}',
    b'{"text": "half \\ud800 of a pair"}',
    b'{"text": "halves \xed\xa0\xbd\xed\xb8\x80 of a pair"}',
    b'{"text": ' + b"9" * 5000 + b"}",
]


# one of each kind; all are skipped and counted below
@pytest.mark.parametrize("line", [DEEP, b"not json", LINES[8], LINES[11]], ids=lambda line: line[:16].decode("latin-1"))
def test_a_bad_line_is_named(tmp_path, line, monkeypatch):
    monkeypatch.setattr("jmoe.text.sources.PIECE_BYTES", 3000)
    write_jsonl(tmp_path / "a.jsonl", {234: line})
    reason = "not UTF-8 at byte [57] of the text" if b"pair" in line else "not a JSON object .*'text'"
    with pytest.raises(UserError, match=f"a.jsonl, line 235: {reason}.*config.data.on_bad_document=skip"):
        corpus.load(settings(tmp_path / "a.jsonl"))
    assert not list(cache_dir().rglob("*.bin"))


def test_bad_lines_are_skipped_and_counted(tmp_path, capfd):
    write_jsonl(tmp_path / "a.jsonl", dict(enumerate(LINES, 200)))
    made = corpus.load(settings(tmp_path / "a.jsonl", on_bad_document="skip"))
    assert made.manifest["skipped"] == len(LINES)
    assert sum(made.manifest["documents"].values()) == len(GOOD) - len(LINES)
    assert f"{len(LINES)} bad document(s) skipped" in capfd.readouterr().err
    # what was skipped once is not taken for sound text later
    with pytest.raises(UserError, match="line 201"):
        corpus.load(settings(tmp_path / "a.jsonl"))
    write_jsonl(tmp_path / "b.jsonl", {i: b"" for i in range(200, 200 + len(LINES))})
    assert corpus.load(settings(tmp_path / "b.jsonl")).fingerprint == made.fingerprint


@pytest.mark.parametrize(
    "bad, words",
    [(b"caf\xe9 au lait", "not UTF-8 at byte 3"), (b"\xed\xa0\x80", "not UTF-8 at byte 0"), (None, "null")],
)
@pytest.mark.parametrize("kind", [None, "binary"])
def test_a_bad_row_of_parquet_is_named_or_skipped(tmp_path, bad, words, kind):
    write_parquet(tmp_path / "a.parquet", {234: bad}, kind)
    with pytest.raises(UserError, match=rf"a.parquet, row 235, column 'text': {words}.*on_bad_document=skip"):
        corpus.load(settings(tmp_path / "a.parquet"))
    made = corpus.load(settings(tmp_path / "a.parquet", on_bad_document="skip"))
    assert made.manifest["skipped"] == 1
    write_jsonl(tmp_path / "b.jsonl", {234: b""})
    assert corpus.load(settings(tmp_path / "b.jsonl")).fingerprint == made.fingerprint


def test_a_bad_row_far_into_a_row_group_has_its_own_number(tmp_path):
    """pyarrow hands over 65,536 rows at a time."""
    texts = [None if i == 150_000 else "a" for i in range(150_001)]
    pa.parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="a.parquet, row 150001, column 'text': null"):
        list(sources.documents(sources.Piece(str(tmp_path / "a.parquet"), 1, 0, 1), "text"))


@pytest.mark.parametrize("damage", ["cut", "pages", "empty", "text"])
def test_a_damaged_parquet_is_named_and_never_skipped(tmp_path, damage):
    path = tmp_path / "a.parquet"
    write_parquet(path, {})
    content = path.read_bytes()
    spoiled = {"cut": content[:-100], "pages": content[:4] + b"\xff" * 400 + content[404:], "empty": b"", "text": b"x"}
    path.write_bytes(spoiled[damage])
    with pytest.raises(UserError, match="a.parquet: not a Parquet file, or damaged"):
        corpus.load(settings(path, on_bad_document="skip"))


def test_a_txt_that_is_no_utf8_is_named_or_skipped(tmp_path):
    for i, document in enumerate(GOOD):
        (tmp_path / f"{i:03}.txt").write_text(document)
    (tmp_path / "100.txt").write_bytes("ein schönes Buch".encode("latin-1"))
    (tmp_path / "101.txt").write_bytes("in UTF-16".encode("utf-16"))
    (tmp_path / "102.txt").write_bytes(b"")  # no text: nothing to lose, nothing to count
    with pytest.raises(UserError, match="100.txt: not UTF-8 at byte 7 .*on_bad_document=skip"):
        corpus.load(settings(tmp_path / "*.txt"))
    made = corpus.load(settings(tmp_path / "*.txt", on_bad_document="skip"))
    assert made.manifest["skipped"] == 2 and sum(made.manifest["documents"].values()) == 297


def test_pairs_spelt_by_json_are_text(tmp_path):
    """Two escapes of one character are that character, as in any other file."""
    write_jsonl(tmp_path / "a.jsonl", {234: b'{"text": "\\ud83d\\ude00 \\ufffd"}'})
    write_jsonl(tmp_path / "b.jsonl", {234: json.dumps({"text": "😀 \ufffd"}, ensure_ascii=False).encode()})
    one, other = (corpus.load(settings(tmp_path / f"{name}.jsonl")) for name in "ab")
    assert one.fingerprint == other.fingerprint


def test_verify_finds_every_document_that_is_no_utf8(tmp_path, monkeypatch):
    """Over any borders of shards and of what is checked at a time, against Python's decoder a document at a time."""
    chance, folder = random.Random(0), tmp_path / "out"
    pieces = [piece.encode() for piece in ("a", "é", "漢", "😀", "\n")] + [b"\xff", b"\xed\xa0\x80", "😀".encode()[:2]]
    said = set()
    for _ in range(200):
        documents = [
            b"".join(chance.choices(pieces, [9] * 5 + [chance.choice([0, 0.2])] * 3, k=chance.randrange(1, 30)))
            for _ in range(chance.randrange(1, 8))
        ]
        tokens = np.concatenate([[*document, 256] for document in documents]).astype(np.uint16)
        cuts = sorted(chance.choices(range(1, len(tokens)), k=3))
        shards = training_text.Tokens([shard for shard in np.split(tokens, cuts) if len(shard)])
        good = training_text.Tokens([np.array([97, 256], np.uint16)])
        manifest = {"tokenizer": {"name": "bytes"}, "source": {"train": "a.jsonl"}}
        monkeypatch.setattr(corpus, "CHECKED_TOKENS", chance.randrange(1, 20))
        bad = [i for i, document in enumerate(documents, 1) if not is_utf8(document)]
        for made in (
            training_text.Corpus("", shards, good, manifest),
            training_text.Corpus("", good, shards, manifest),
        ):
            words = None
            try:
                corpus.check_utf8(made, folder)
            except UserError as error:
                words = str(error)
            split = "train" if made.train is shards else "validation"
            start = f"the prepared corpus {folder}: document {bad[0]} of split {split} is not UTF-8" if bad else "None"
            assert str(words).startswith(start), (documents, words)
            said.add(bool(bad))
    assert said == {True, False}


def is_utf8(document: bytes) -> bool:
    try:
        return bool(document.decode()) or True
    except UnicodeDecodeError:
        return False


def test_a_bad_record_of_tfds_is_named(monkeypatch):
    class Source:
        def __getitems__(self, indices):
            return [{"text": {7: b"caf\xe9", 8: "half \ud800"}.get(i, b"good" if i % 2 else "good")} for i in indices]

    monkeypatch.setattr(sources, "tfds", lambda path: (Source(), None, None))  # TFDS itself writes no such record
    piece = sources.Piece("tfds:books:train", 1, 5, 10)
    with pytest.raises(UserError, match="tfds:books:train, record 7: not UTF-8"):
        list(sources.documents(piece, "text"))
    assert list(sources.documents(piece, "text", skip=True)) == [b"good", b"good", None, None, b"good"]
    with pytest.raises(UserError, match="record 8: not UTF-8 at byte 5"):
        list(sources.documents(dataclasses.replace(piece, start=8), "text"))


def test_prepare_counts_over_its_processes(tmp_path):
    """Several files, several processes, a kind of damage in each; the count is printed and in the manifest."""
    write_jsonl(tmp_path / "a.jsonl", {5: DEEP, 6: b"[]"})
    write_parquet(tmp_path / "b.parquet", {7: b"\xff"})
    flags = "--config=configs/quickstart.py", f"--config.data.path={tmp_path}/*.[jp]*", "--workers=2"
    said = helpers.fails("jmoe.prepare", *flags, f"--out_dir={tmp_path}/out")
    assert "a.jsonl, line 6" in said or "b.parquet, row 8" in said
    done = helpers.succeeds("jmoe.prepare", *flags, f"--out_dir={tmp_path}/out", "--config.data.on_bad_document=skip")
    assert "3 bad document(s) skipped" in done.stdout and "held-out text has 130 tokens" in done.stdout
    assert corpus.open_folder(tmp_path / "out").manifest["skipped"] == 3


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.csv", b"text\nx\n", ["a.csv", ".txt, .jsonl, .parquet"]),
        ("a.txt", b"", ["validation_path"]),
        ("a.txt", b"x", ["1 different document", "config.data.validation_path"]),
        ("a.jsonl", b"\n\n", ["validation_path"]),
        ("a.jsonl", b'{"text": ""}\n', ["validation_path"]),
    ],
)
def test_unusable_files_are_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        corpus.load(settings(tmp_path / name))
    for word in words:
        assert word in str(error.value)
    assert not list(cache_dir().rglob("*.bin"))


def test_a_parquet_without_text(tmp_path):
    pa.parquet.write_table(pa.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="no column 'text'; it has body"):
        corpus.load(settings(tmp_path / "a.parquet"))


WITHOUT = """
import sys
from configs import quickstart
from jmoe.errors import UserError
from jmoe.text import corpus
for module, path, tokenizer in {cases!r}:
    sys.modules[module] = None  # as if it were not installed
    data = quickstart.get_config().data
    data.update(path=path, tokenizer=tokenizer)
    try:
        corpus.load(data)
    except UserError as error:
        print(error)
    del sys.modules[module]
"""


def test_a_missing_package_is_one_sentence(tmp_path, places, vocabularies):
    cases = [
        ("pyarrow", places["parquet"], "bytes", places["parquet"], "pyarrow"),
        ("tokenizers", places["jsonl"], vocabularies["json"], vocabularies["json"], "tokenizers"),
        ("tiktoken", places["jsonl"], vocabularies["gpt2"], vocabularies["gpt2"], "tiktoken"),
        ("tiktoken", places["jsonl"], "gpt2", "config.data.tokenizer=gpt2", "tiktoken"),
        ("tensorflow_datasets", "tfds:a:train", "bytes", "tfds:a:train", "tensorflow-datasets"),
        ("array_record", places["tfds"], "bytes", places["tfds"], "array_record"),
    ]
    program = WITHOUT.format(cases=[case[:3] for case in cases])
    done = subprocess.run([sys.executable, "-c", program], env=helpers.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sentences = done.stdout.splitlines()
    assert len(sentences) == len(cases), done.stdout
    for said, (*_, reader, package) in zip(sentences, cases, strict=True):
        assert reader in said and "cannot be read: the Python package " in said and f"`pip install {package}`" in said
