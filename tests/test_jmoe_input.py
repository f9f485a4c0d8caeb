"""Every source with every tokenizer, on real files made here; preparation killed, damaged, asked for the impossible."""

import base64
import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import helpers
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from configs import joint_moe, quickstart
from jmoe import corpus, sources, tokenizer
from jmoe.cli import UserError

SPECIAL = "an <|endoftext|> inside, and </s> too"


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """A few hundred paragraphs of the standard library's source, and what is hard about text."""
    folder = pathlib.Path(os.__file__).parent
    modules = [(folder / f"{name}.py").read_text() for name in ("argparse", "json/decoder", "inspect")]
    found = [part for module in modules for part in module.split("\n\n") if part.strip()]
    hard = [SPECIAL, "äöü → 漢字 🙂 e\u0301", "\x00\x1f\u2028", " " * 1000 + "x", "a" * 3000, "'s 're\r\n\t", ""]
    return found + hard + found[:20]


@pytest.fixture(scope="module")
def places(documents, tmp_path_factory):
    """config.data.path of the same documents in each kind of source, and the folder of TFDS."""
    folder = tmp_path_factory.mktemp("sources")
    lines = [json.dumps({"text": d, "number": i}, ensure_ascii=i % 2 == 0) for i, d in enumerate(documents)]
    (folder / "a.jsonl").write_text("\n".join(lines))  # no newline at the end
    pa.parquet.write_table(
        pa.table({"number": range(len(documents)), "text": documents}), folder / "a.parquet", row_group_size=100
    )
    (folder / "txt").mkdir()
    for i, document in enumerate(documents):
        (folder / f"txt/{i:04}.txt").write_bytes(document.encode())

    import tensorflow_datasets as tfds

    os.environ["TFDS_DATA_DIR"] = str(folder / "tfds")  # for processes; this one has read it already
    tfds.core.add_data_dir(folder / "tfds")

    class Paragraphs(tfds.core.GeneratorBasedBuilder):
        """A real small dataset."""

        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="plain")]

        def _info(self):
            features = {"text": tfds.features.Text(), "number": tfds.features.Scalar(np.int32)}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, _):
            return {"train": self._generate_examples(documents), "test": self._generate_examples(documents[::7])}

        def _generate_examples(self, chosen):
            for i, document in enumerate(chosen):
                yield i, {"text": document, "number": i}

    Paragraphs(data_dir=folder / "tfds", config="plain", file_format="array_record").download_and_prepare()
    return {
        "jsonl": str(folder / "a.jsonl"),
        "parquet": str(folder / "a.parquet"),
        "txt": f"{folder}/txt/*.txt",
        "tfds": "tfds:paragraphs/plain:train",
    }


@pytest.fixture(scope="module")
def vocabularies(documents, tmp_path_factory):
    """config.data.tokenizer of each kind: bytes, a small vocabulary in GPT-2's format, a small tokenizer.json."""
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {"bytes": "bytes", "gpt2": str(folder / "vocab.bpe"), "json": str(folder / "tokenizer.json")}
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    for kind, vocab_size, special in (("gpt2", 600, []), ("json", 700, ["<|endoftext|>", "<pad>"])):
        encoder = tokenizers.Tokenizer(models.BPE())
        encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        encoder.train_from_iterator(
            documents,
            trainers.BpeTrainer(
                vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
            ),
        )
        if kind == "json":
            encoder.enable_truncation(16)  # as many a published one: it must not cut our documents
            encoder.enable_padding(length=16)
            encoder.save(made[kind])
        else:
            merges = json.loads(encoder.to_str())["model"]["merges"]
            lines = ["#version: 0.2", *(" ".join(merge) for merge in merges), ""]
            (folder / "vocab.bpe").write_text("\n".join(lines), encoding="utf-8")
    return made


def reference(kind: str, path: str):
    """Documents to ids by other means than ours: the tokenizers library alone, special tokens taken out of its file."""
    if kind == "bytes":
        return lambda text: [*text.encode(), 256]
    if kind == "gpt2":
        # GPT-2's own order of the 256 bytes: '!' to '~', then Latin-1 without its blanks, then the rest
        first = [*range(33, 127), *range(161, 173), *range(174, 256)]
        order = first + [b for b in range(256) if b not in first]
        letters = [chr(b) if b in first else chr(256 + order.index(b) - len(first)) for b in order]
        merges = [tuple(line.split(" ")) for line in pathlib.Path(path).read_text().split("\n")[1:-1]]
        tokens = letters + [a + b for a, b in merges]
        encoder = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
        end = len(tokens)
    else:
        settings = json.loads(pathlib.Path(path).read_text())
        end = settings["model"]["vocab"]["<|endoftext|>"]
        encoder = tokenizers.Tokenizer.from_str(
            json.dumps(settings | {"added_tokens": [], "truncation": None, "padding": None})
        )
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return lambda text: [*encoder.encode(text).ids, end]


def settings(path="", tokenizer="bytes", **more):
    data = quickstart.get_config().data
    data.update(path=str(path), tokenizer=str(tokenizer), **more)
    return data


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JMOE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("source", ["jsonl", "parquet", "txt", "tfds"])
@pytest.mark.parametrize("kind", ["bytes", "gpt2", "json"])
def test_every_source_with_every_tokenizer(documents, places, vocabularies, source, kind, own_cache, monkeypatch):
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
        chosen = [d for d, held_out in zip(once, is_held_out) if held_out == wanted]
        assert chosen
        np.testing.assert_array_equal(tokens[:], np.concatenate([encode(d) for d in chosen]))
        assert made.manifest["documents"][split] == len(chosen)
        assert made.manifest["tokens"][split] == len(tokens)
        assert made.manifest["bytes"][split] == sum(len(d.encode()) for d in chosen)
    assert tokens[:].dtype == np.uint16
    held_out = [d for d, out in zip(once, is_held_out) if out]
    assert made.validation_bytes_per_token == len("".join(held_out).encode()) / sum(len(encode(d)) for d in held_out)
    assert made.vocab_size == {"bytes": 257, "gpt2": 601, "json": 700}[kind]


def test_held_out_by_another_split_of_tfds(documents, places, own_cache):
    made = corpus.load(settings(places["tfds"], validation_path="tfds:paragraphs/plain:1.0.0:test[:50%]"))
    assert 0 < made.manifest["documents"]["validation"] <= len(documents[::7]) // 2 + 1
    total = sum(made.manifest["documents"].values())
    assert total == len({d for d in documents if d})


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
        pytest.skip(f"GPT-2's vocabulary is not at {cached}: its 50,257 tokens are not tested, only a smaller one")
    (tmp_path / "vocab.bpe").write_bytes(cached.read_bytes())
    for made in tokenizer.load("gpt2"), tokenizer.load(str(tmp_path / "vocab.bpe")):
        assert (made.name, made.vocab_size, made.end_of_text) == ("gpt2", 50_257, 50_256)
        assert list(made.encode(b"Hello world")) == [15496, 995, 50256]
        assert made.vocab_size == joint_moe.get_config().model.vocab_size


def test_gpt2_without_net_or_file_says_what_to_do(tmp_path, text_glob, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nothing listens there
    said = helpers.fails(
        "jmoe.train",
        "--config=configs/joint_moe.py",
        f"--workdir={tmp_path / 'run'}",
        f"--config.data.path={text_glob}",
    )
    for word in ("config.data.tokenizer=gpt2", "--config.data.tokenizer=/PATH/vocab.bpe", "merges.txt", "bytes"):
        assert word in said


def prepare(places, vocabularies, out_dir, *flags, source="parquet", kind="json"):
    return (
        "jmoe.prepare",
        "--config=configs/quickstart.py",
        f"--config.data.path={places[source]}",
        f"--config.data.tokenizer={vocabularies[kind]}",
        f"--out_dir={out_dir}",
        *flags,
    )


@pytest.fixture(scope="module")
def prepared(places, vocabularies, tmp_path_factory):
    """A prepared folder of many small shards."""
    folder = tmp_path_factory.mktemp("prepared") / "tokens"
    done = helpers.run(*prepare(places, vocabularies, folder, "--shard_tokens=4000"))
    assert done.returncode == 0, done.stderr
    assert "train: " in done.stdout and "tokenizer.json" in done.stdout
    return folder


def test_a_prepared_folder_is_the_text_it_was_made_of(prepared, places, vocabularies, own_cache):
    one, other = (
        corpus.load(settings(places["parquet"], vocabularies["json"])),
        corpus.load(settings(prepared, vocabularies["json"])),
    )
    assert one.fingerprint == other.fingerprint
    for split in ("train", "validation"):
        np.testing.assert_array_equal(getattr(one, split)[:], getattr(other, split)[:])
    assert len(other.manifest["shards"]["train"]) > 5
    for split, shards in other.manifest["shards"].items():
        for shard in shards:
            content = (prepared / shard["file"]).read_bytes()
            assert hashlib.sha256(content).hexdigest() == shard["sha256"]
            tokens = np.frombuffer(content, np.uint16)
            assert len(tokens) == shard["tokens"] and np.sum(tokens == 0) == shard["documents"]  # 0 ends a document
        for what in ("tokens", "documents"):
            assert sum(shard[what] for shard in shards) == other.manifest[what][split]
    described = other.manifest["tokenizer"]
    assert described["sha256"] == hashlib.sha256(pathlib.Path(vocabularies["json"]).read_bytes()).hexdigest()
    assert (described["vocab_size"], described["end_of_text"]) == (700, 0)
    tokens, whole = other.train, one.train[:]
    chance = np.random.default_rng(0)
    for start, stop in chance.integers(0, len(whole), (300, 2)):  # across the seams of shards
        np.testing.assert_array_equal(tokens[start:stop], whole[start:stop])


def test_a_second_start_prepares_nothing_and_other_text_is_refused(prepared, places, vocabularies):
    before = {path: path.stat().st_mtime_ns for path in prepared.glob("*.*n")}
    (prepared / "units-0123").mkdir()  # as a kill in the last moment leaves them
    (prepared / "units-0123" / "000000.npz").write_bytes(b"")
    (prepared / "manifest.json.123.tmp").write_text("{")
    done = helpers.run(*prepare(places, vocabularies, prepared))
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in prepared.glob("*.*n")} == before
    assert {path.name for path in prepared.iterdir()} == {path.name for path in before} | {".lock"}
    said = helpers.fails(*prepare(places, vocabularies, prepared, source="jsonl"))
    assert f"--out_dir={prepared}" in said and "other text" in said


def result(workdir):
    (path,) = workdir.glob("branch-*/result.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", ["prepared", "tfds"])
def test_training_on_it(kind, prepared, places, vocabularies, text_glob, tmp_path):
    config = helpers.write_config(tmp_path, text_glob)
    path = str(prepared) if kind == "prepared" else places["tfds"]
    done = helpers.run(
        "jmoe.train",
        f"--config={config}",
        f"--workdir={tmp_path / 'run'}",
        "--config.model.vocab_size=700",
        f"--config.data.path={path}",
        f"--config.data.tokenizer={vocabularies['json']}",
        "--config.n_tokens=(4096,)",
        "--config.data.validation_tokens=256",
    )
    assert done.returncode == 0, done.stderr
    said = result(tmp_path / "run")
    made = corpus.load(settings(path, vocabularies["json"]))
    assert said["corpus_fingerprint"] == made.fingerprint
    assert 0 < said["loss"] < np.log(700)


def test_a_vocabulary_too_small_for_the_tokenizer(prepared, vocabularies, text_glob, own_cache):
    for data in (settings(prepared, vocabularies["json"]), settings(text_glob, vocabularies["json"])):
        with pytest.raises(UserError, match=r"config.model.vocab_size=699 is below the 700 tokens.*tokenizer.json"):
            corpus.load(data, vocab_size=699)
    assert not list(corpus.cache_dir().rglob("*.bin"))  # said before any text was read
    assert corpus.load(settings(prepared, vocabularies["json"]), vocab_size=700).vocab_size == 700


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


@pytest.fixture(scope="module")
def much_text(tmp_path_factory):
    """40 MB in two files, some of it twice: ten units of work."""
    folder = tmp_path_factory.mktemp("much")
    chance = random.Random(0)
    for name in ("a", "b"):
        with open(folder / f"{name}.jsonl", "w") as file:
            for i in range(2000):
                noise = base64.b64encode(chance.randbytes(chance.randrange(15_000))).decode()
                file.write(json.dumps({"text": f"{i if i % 10 == 0 else (name, i)} {noise if i % 10 else ''}"}) + "\n")
    return f"{folder}/*.jsonl"


def content(folder) -> dict:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_killed_at_random_moments_it_ends_byte_identical(much_text, tmp_path):
    """SIGKILL and Ctrl-C while two processes tokenise and while shards are written, against one process left alone."""
    flags = ["--config=configs/quickstart.py", f"--config.data.path={much_text}", "--shard_tokens=3000000"]
    done = helpers.run("jmoe.prepare", *flags, "--workers=1", f"--out_dir={tmp_path / 'whole'}")
    assert done.returncode == 0, done.stderr
    whole = content(tmp_path / "whole")
    assert sum(name.endswith(".bin") for name in whole) > 4 and not any("units" in name for name in whole)

    folder, chance = tmp_path / "killed", random.Random(1)
    command = helpers.command("jmoe.prepare", *flags, "--workers=2", f"--out_dir={folder}")
    progress = lambda: len(list(folder.glob("units-*/*.npz"))) + len(list(folder.glob("*.bin")))
    kills = 0
    for kill in range(7):
        process = subprocess.Popen(
            command, env=helpers.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        before = set(folder.glob("units-*/*.npz"))
        target = 3 * kill if kill < 4 else 9 + kill  # the last ones while shards are written
        while process.poll() is None and progress() < target:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.03)
        workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        if kill == 2:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.kill()
        said = process.communicate()[1].decode()
        if kill == 2 and process.returncode != 0:
            assert process.returncode == 130 and "resumes" in said and "Traceback" not in said, said
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert not alive  # a worker does not outlive the process that it works for
        if process.returncode == 0:
            break
        kills += 1
        if not (folder / "manifest.json").exists():
            assert before <= set(folder.glob("units-*/*.npz"))  # what was done is kept
    assert kills >= 1  # how many there are, and what each finds done, is the machine's affair
    done = subprocess.run(command, env=helpers.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert content(folder) == whole


def test_two_at_once_do_not_write_over_each_other(places, vocabularies, prepared, tmp_path):
    with corpus.locked(tmp_path / ".lock"):
        said = helpers.fails(*prepare(places, vocabularies, tmp_path))
    assert f"--out_dir={tmp_path}" in said and "another process" in said


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


def test_the_end_of_text_can_be_named(vocabularies, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(pathlib.Path(vocabularies["json"]).read_text().replace("<pad>", "<|stop|>"))
    assert tokenizer.load(str(path), "<|stop|>").end_of_text == 1


def test_an_unusable_gpt2_vocabulary(tmp_path):
    path = tmp_path / "vocab.bpe"
    path.write_text("#version: 0.2\na b\nc\n")
    with pytest.raises(UserError, match="vocab.bpe', line 3"):
        tokenizer.load(str(path))


def test_prepare_needs_a_config(tmp_path):
    assert "--config" in helpers.fails("jmoe.prepare", f"--out_dir={tmp_path}")
