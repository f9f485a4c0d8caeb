"""Text to ids: special tokens, broken and long text, wide vocabularies, files that are none, and which are the same."""

import hashlib
import json
import os
import pathlib

import numpy as np
import pytest
import tokenizers
from text_fixtures import SPECIAL, settings
from tokenizers import models, pre_tokenizers

from configs import joint_moe
from jmoe.errors import UserError
from jmoe.storage.files import cache_dir
from jmoe.text import corpus, tokenizer


def test_text_that_spells_a_special_token_stays_text(vocabularies, tmp_path):
    """Also where the file does not call its end-of-text special, and where another file in the folder would."""
    plain = json.loads(pathlib.Path(vocabularies["json"]).read_text())
    for token in plain["added_tokens"]:
        token["special"] = False
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    for path in (vocabularies["gpt2"], vocabularies["json"], tmp_path / "plain.json"):
        made = tokenizer.load(str(path))
        ids = made.encode(SPECIAL.encode())
        assert list(ids).count(made.end_of_text) == 1 and ids[-1] == made.end_of_text


def test_long_and_broken_text(vocabularies):
    """A million spaces overflow the stack of tiktoken's pattern when they come at once; bytes may be no UTF-8."""
    made = tokenizer.load(vocabularies["gpt2"])
    assert len(made.encode(b" " * 1_500_000 + b"x")) > 1000
    np.testing.assert_array_equal(made.encode(b"caf\xe9"), made.encode("caf\ufffd".encode()))
    np.testing.assert_array_equal(tokenizer.load("bytes").encode(b"caf\xe9"), [*b"caf\xe9", 256])


def test_wide_vocabularies_take_four_bytes(tmp_path, own_cache):
    words = {f"w{i}": i for i in range(70_000)} | {"</s>": 70_000, "?": 70_001}
    encoder = tokenizers.Tokenizer(models.WordLevel(words, unk_token="?"))
    encoder.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": f"w{69_000 + i} w1"}) + "\n" for i in range(300)))
    made = corpus.load(settings(tmp_path / "a.jsonl", tmp_path / "tokenizer.json", text_field="body"))
    assert made.train[:].dtype == np.uint32
    assert list(made.train[:3]) == [69_000, 1, 70_000]
    assert [tokenizer.token_dtype(n).itemsize for n in (257, 65_535, 65_536)] == [2, 2, 4]


def test_published_gpt2(tmp_path):
    """Needs the true vocab.bpe in tiktoken's cache; nothing is downloaded for a test."""
    name = hashlib.sha1(tokenizer.GPT2_URL.encode()).hexdigest()
    cached = pathlib.Path(os.environ.get("TIKTOKEN_CACHE_DIR", "/tmp/data-gym-cache")) / name
    if not cached.exists():
        pytest.skip(f"without GPT-2's vocabulary: it is not at {cached}, and only a smaller one is tested")
    (tmp_path / "vocab.bpe").write_bytes(cached.read_bytes())
    for made in tokenizer.load("gpt2"), tokenizer.load(str(tmp_path / "vocab.bpe")):
        assert (made.name, made.vocab_size, made.end_of_text) == ("gpt2", 50_257, 50_256)
        assert list(made.encode(b"Hello world")) == [15496, 995, 50256]
        assert made.vocab_size == joint_moe.get_config().model.vocab_size


@pytest.mark.parametrize(
    "change, fields, words",
    [
        (lambda s: "{", {}, ["is no tokenizer.json"]),
        (lambda s: '{"version": "1.0"}', {}, ["is no tokenizer.json"]),
        (lambda s: s.replace("<|endoftext|>", "<|stop|>"), {}, ["0 of the tokens", "config.data.end_of_text"]),
        (lambda s: s.replace("<pad>", "</s>"), {}, ["2 of the tokens", "config.data.end_of_text"]),
        (lambda s: s, dict(end_of_text="<stop>"), ["no token '<stop>'", "config.data.end_of_text"]),
    ],
)
def test_unusable_tokenizer_files(vocabularies, tmp_path, change, fields, words):
    path = tmp_path / "tokenizer.json"
    path.write_text(change(pathlib.Path(vocabularies["json"]).read_text()))
    with pytest.raises(UserError) as error:
        tokenizer.load(str(path), **fields)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_an_unusable_gpt2_vocabulary(tmp_path):
    path = tmp_path / "vocab.bpe"
    path.write_text("#version: 0.2\na b\nc\n")
    with pytest.raises(UserError, match="vocab.bpe', line 3"):
        tokenizer.load(str(path))


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.removeprefix(b"#version: 0.2\n"),
        lambda b: b.replace(b"\n", b"\r\n"),
        lambda b: b.rstrip(b"\n"),
        lambda b: b"\xef\xbb\xbf" + b,
    ],
    ids=["no header", "CRLF", "no last line end", "byte order mark"],
)
def test_equal_vocabularies_are_the_same_tokenizer(vocabularies, tmp_path, change):
    """However the file is written and wherever it lies: the same rules, so the same corpora."""
    other = tmp_path / "merges.txt"
    other.write_bytes(change(pathlib.Path(vocabularies["gpt2"]).read_bytes()))
    one, two = tokenizer.load(vocabularies["gpt2"]), tokenizer.load(str(other))
    assert (one.rules, one.sha256, one.vocab_size) == (two.rules, two.sha256, two.vocab_size)
    assert tokenizer.is_of(str(other), one.describe()) and tokenizer.is_of(vocabularies["gpt2"], two.describe())
    assert list(one.encode(b"def f(self):")) == list(two.encode(b"def f(self):"))


def test_text_prepared_by_a_copy_of_gpt2s_file_is_gpt2s(vocabularies, tmp_path, own_cache, monkeypatch):
    """By name or by any path, at hand or not; without the net and without the file. A small vocabulary plays GPT-2."""
    published = tokenizer.load(vocabularies["gpt2"])
    monkeypatch.setattr(tokenizer, "GPT2_SHA256", published.sha256)
    monkeypatch.setattr(tokenizer, "GPT2_SIZE", published.vocab_size)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "nothing"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nothing listens there
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(300)))
    made = corpus.load(settings(tmp_path / "a.jsonl", vocabularies["gpt2"]))
    assert made.manifest["tokenizer"]["name"] == "gpt2"
    folder = cache_dir() / "tokens" / made.fingerprint
    for name in ("gpt2", vocabularies["gpt2"], "/elsewhere/vocab.bpe", "/elsewhere/merges.txt"):
        assert corpus.load(settings(folder, name)).fingerprint == made.fingerprint
    assert corpus.load(settings(tmp_path / "a.jsonl", "gpt2")).fingerprint == made.fingerprint
    with pytest.raises(UserError, match="config.data.tokenizer='bytes'"):
        corpus.load(settings(folder, "bytes"))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": f"other {i}"}) + "\n" for i in range(300)))
    with pytest.raises(UserError, match="config.data.tokenizer=gpt2.*--config.data.tokenizer=/PATH/vocab.bpe.*bytes"):
        corpus.load(settings(tmp_path / "b.jsonl", "gpt2"))


def test_the_bytes_of_tokens_that_are_no_bytes(tmp_path, own_cache):
    """Words with marks of their own, blanks dropped: over all that is held out they make its bytes."""
    words = {"[UNK]": 0, "</s>": 1, "\u2581haus": 2, "##ung": 3, "<0x0A>": 4, "ä": 5, "w1": 6}
    encoder = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    encoder.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder.save(str(tmp_path / "tokenizer.json"))
    made = tokenizer.load(str(tmp_path / "tokenizer.json"))
    assert list(made.byte_lengths()) == [5, 0, 5, 3, 1, 2, 2]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"w1  ä {i} w1"}) + "\n" for i in range(300)))
    text = corpus.load(settings(tmp_path / "a.jsonl", tmp_path / "tokenizer.json"))
    total = text.token_bytes[text.validation[:]].sum()
    assert total == pytest.approx(text.manifest["bytes"]["validation"], rel=1e-6)
    assert text.token_bytes[5] == pytest.approx(text.token_bytes[6]) and text.token_bytes[1] == 0
