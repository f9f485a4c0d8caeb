"""Every source and every tokenizer, on real files; what cannot be used is named."""

import hashlib
import os

import numpy as np
import pytest
from text_fixtures import reference, settings

from jmoe.errors import UserError
from jmoe.text import corpus, sources


@pytest.mark.parametrize("source, kind", [("jsonl", "bytes"), ("parquet", "gpt2"), ("txt", "json"), ("tfds", "gpt2")])
def test_every_source_and_every_tokenizer(documents, places, vocabularies, source, kind, own_cache, monkeypatch):
    monkeypatch.setattr(sources, "PIECE_BYTES", 5000)  # many units, that documents cross
    encode = reference(kind, vocabularies[kind])
    if source == "tfds":
        import tensorflow_datasets as tfds

        records = tfds.data_source("paragraphs/plain", split="train")
        documents = [records[i]["text"].decode() for i in range(len(records))]
    once = [d for d in dict.fromkeys(documents) if d]
    is_held_out = [int.from_bytes(hashlib.sha256(d.encode()).digest()[:8]) % 100 == 0 for d in once]
    made = corpus.load(settings(places[source], vocabularies[kind]))
    for split, tokens, wanted in (("train", made.train, False), ("validation", made.validation, True)):
        chosen = [d for d, held_out in zip(once, is_held_out, strict=True) if held_out == wanted]
        assert chosen
        np.testing.assert_array_equal(tokens[:], np.concatenate([encode(d) for d in chosen]))
        assert made.manifest["documents"][split] == len(chosen)
        assert made.manifest["tokens"][split] == len(tokens)
        assert made.manifest["bytes"][split] == sum(len(d.encode()) for d in chosen)
    assert tokens[:].dtype == np.uint16
    for document in once:  # each token's bytes are known, so that any rows' are
        assert made.token_bytes[encode(document)].sum() == len(document.encode())
    assert made.manifest["tokenizer"]["vocab_size"] == {"bytes": 257, "gpt2": 601, "json": 700}[kind]


def test_the_default_text_is_the_standard_librarys_alone(monkeypatch, tmp_path):
    """Whatever is installed, also where packages lie within the standard library's folder."""
    found = sources.find(settings("")).train
    assert os.__file__ in found and np.__file__ not in found and not any("-packages/" in path for path in found)
    for path in ("os.py", "site-packages/new/a.py", "json/b.py", "dist-packages/new/c.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"text of {path}")
    monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(tmp_path))
    assert sources.find(settings("")).train == [str(tmp_path / "json/b.py"), str(tmp_path / "os.py")]


def test_held_out_by_another_split_of_tfds(documents, places, own_cache):
    made = corpus.load(settings(places["tfds"], validation_path="tfds:paragraphs/plain:1.0.0:test[:50%]"))
    assert 0 < made.manifest["documents"]["validation"] <= len(documents[::7]) // 2 + 1
    total = sum(made.manifest["documents"].values())
    assert total == len({d for d in documents if d})


@pytest.mark.parametrize(
    "fields, words",
    [
        (dict(tokenizer="gpt4"), ["config.data.tokenizer='gpt4'", "bytes, gpt2", "tokenizer.json"]),
        (dict(tokenizer="/nowhere/tokenizer.json"), ["'/nowhere/tokenizer.json'", "No such file"]),
        (dict(tokenizer="/nowhere/vocab.bpe"), ["'/nowhere/vocab.bpe'", "No such file"]),
        (dict(tokenizer="bytes", end_of_text="</s>"), ["config.data.end_of_text='</s>'", "'bytes'"]),
        (dict(path="tfds:paragraphs"), ["config.data.path", "tfds:NAME:SPLIT"]),
        (dict(path="tfds:no_such_set:train"), ["config.data.path", "no_such_set", "TFDS_DATA_DIR"]),
        (dict(path="tfds:paragraphs/plain:tset"), ["tset", "'train', 'test'"]),
        (dict(path="tfds:paragraphs/plain:train", text_field="body"), ["text_field='body'", "it has", "number"]),
        (dict(path="tfds:paragraphs/plain:train", text_field="number"), ["text_field='number'", "not text"]),
        (dict(path="tfds:mnist:train"), ["mnist", "not prepared", "tfds build mnist --file_format=array_record"]),
        (dict(path="{folder}"), ["is a folder without a manifest.json", "/*.txt"]),
        (dict(path="{prepared}", validation_path="x.txt"), ["config.data.validation_path='x.txt'", "its own"]),
        (dict(path="{prepared}", tokenizer="tokenizer.json", fingerprint="0123456789abcdef"), ["0123456789abcdef"]),
        (dict(path="{prepared}"), ["config.data.tokenizer='bytes'", "tokenizer.json of 700 tokens"]),
        (dict(path="{prepared}", tokenizer="{other}"), ["other.json", "tokenizer.json of 700 tokens"]),
    ],
)
def test_what_cannot_be_used_is_named(places, prepared, tmp_path, own_cache, fields, words):
    (tmp_path / "other.json").write_text("{}")
    fields = {"path": places["jsonl"]} | {
        name: value.format(folder=tmp_path, prepared=prepared, other=tmp_path / "other.json")
        for name, value in fields.items()
    }
    with pytest.raises(UserError) as error:
        corpus.load(settings(**fields))
    for word in words:
        assert word in str(error.value), str(error.value)
