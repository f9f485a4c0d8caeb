"""Text in every kind of source, tokenizers of every kind, a prepared folder: made once for the tests that read them."""

import base64
import json
import os
import pathlib
import random

import helpers
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from configs import quickstart

SMALL_PIECES = "from jmoe.text import sources\n\nsources.PIECE_BYTES = 2**20\n"  # in front of a config file
EXPORTABLE = "--config.model.n_experts=8", "--config.model.norm=rms", "--config.model.final_norm=True"
SPECIAL = "an <|endoftext|> inside, and </s> too"


def write_much_text(folder: pathlib.Path, n_documents: int) -> str:
    """Writes two files of so many documents of 10 kB, some of them twice; returns a pattern of their paths."""
    chance = random.Random(0)
    for name in ("a", "b"):
        with open(folder / f"{name}.jsonl", "w") as file:
            for i in range(n_documents):
                noise = base64.b64encode(chance.randbytes(chance.randrange(15_000))).decode()
                file.write(json.dumps({"text": f"{i if i % 10 == 0 else (name, i)} {noise if i % 10 else ''}"}) + "\n")
    return f"{folder}/*.jsonl"


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """A few hundred paragraphs of the standard library's source, and what is hard about text."""
    folder = pathlib.Path(os.__file__).parent
    modules = [(folder / f"{name}.py").read_text() for name in ("argparse", "json/decoder", "inspect")]
    result = [part for module in modules for part in module.split("\n\n") if part.strip()]
    hard = [SPECIAL, "äöü → 漢字 🙂 e\u0301", "\x00\x1f\u2028", " " * 1000 + "x", "a" * 3000, "'s 're\r\n\t", ""]
    return result + hard + result[:20]


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def prepared(places, vocabularies, tmp_path_factory):
    """A prepared folder of many small shards."""
    folder = tmp_path_factory.mktemp("prepared") / "tokens"
    done = helpers.succeeds(*prepare_command(places, vocabularies, folder, "--shard_tokens=4000"))
    assert "train: " in done.stdout and "tokenizer.json" in done.stdout
    return folder


@pytest.fixture(scope="session")
def exportable(tmp_path_factory, text_glob):
    """The workdir of a finished run of eight experts and two budgets, which transformers has a class for."""
    folder = tmp_path_factory.mktemp("exportable")
    config = helpers.write_config(folder, text_glob)
    helpers.succeeds("jmoe.train", f"--config={config}", f"--workdir={folder / 'run'}", *EXPORTABLE)
    return folder / "run"


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JMOE_CACHE", str(tmp_path / "cache"))


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


def decode(tokens) -> list[str]:
    """The documents in tokens that are bytes."""
    parts = np.split(tokens[:], np.flatnonzero(tokens[:] == 256) + 1)[:-1]
    return [bytes(part[:-1].astype(np.uint8)).decode() for part in parts]


def settings(path="", tokenizer="bytes", **more):
    data = quickstart.get_config().data
    data.update(path=str(path), tokenizer=str(tokenizer), **more)
    return data


def tiny(**fields):
    """A config of rows of 16 tokens whose run is 4,096 tokens long."""
    config = quickstart.get_config()
    config.data.seq_len = 16
    config.n_tokens = (4096,)
    config.batch_tokens = ((0, 128), (1024, 256))
    config.optimizer.warmup_tokens = 128
    config.model.d_model = 16
    config.update_from_flattened_dict(fields)
    return config


def small_run(path, **fields):
    """A config whose run on the text at `path` takes a second or two in this process."""
    config = quickstart.get_config()
    config.data.update(seq_len=32, path=path, validation_tokens=256)
    config.batch_tokens = ((0, 256),)
    config.optimizer.warmup_tokens = 1_024
    config.update_from_flattened_dict(fields)
    return config


def prepare_command(places, vocabularies, out_dir, *flags, source="parquet", kind="json"):
    return (
        "jmoe.prepare",
        "--config=configs/quickstart.py",
        f"--config.data.path={places[source]}",
        f"--config.data.tokenizer={vocabularies[kind]}",
        f"--out_dir={out_dir}",
        *flags,
    )
