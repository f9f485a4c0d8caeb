"""How fast is the input? python -m benchmarks.input [--json=PATH]

Reading: batches of 128 rows of 512 tokens in shuffled order out of prepared tokens, as a training step reads them.
Preparing: text of this Python's standard library through one process, for each kind of file and tokenizer. The arms
run in turn, each after a warm-up; a figure is the median over the repetitions: tokens per second = tokens of inputs
(targets not counted twice) / seconds, MB/s = 1e6 bytes of text / seconds. About a minute on one core.
"""

import json
import os
import pathlib
import statistics
import tempfile
import time

import grain.python as grain
import jax
import pyarrow as pa
import pyarrow.parquet
import tokenizers
from absl import app, flags
from tokenizers import models, pre_tokenizers, trainers

from configs import joint_moe
from jmoe.model import sharding
from jmoe.run.schedule import Schedule
from jmoe.text import corpus, sources, supply, tokenizer
from jmoe.text import prepare as prepare_lib
from jmoe.text.batches import read_rows, training_batches

JSON = flags.DEFINE_string("json", None, "Also write the figures to this file.")
REPEATS = flags.DEFINE_integer("repeats", 5, "Measurements of each arm.")
ROWS, SEQ_LEN, N_BATCHES = 128, 512, 20


def main(_):
    with tempfile.TemporaryDirectory() as folder:
        arms = reading(pathlib.Path(folder)) | preparing(pathlib.Path(folder))
        for run, _, _ in arms.values():
            run()
        seconds = {name: [] for name in arms}
        for _ in range(REPEATS.value):
            for name, (run, _, _) in arms.items():
                begin = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - begin)
    rows = []
    print(f"{'arm':42} {'tokens/s':>12} {'MB/s of text':>13}")
    for name, (_, n_tokens, n_bytes) in arms.items():
        median = statistics.median(seconds[name])
        rows.append({"arm": name, "tokens_per_second": n_tokens / median, "mb_per_second": n_bytes / median / 1e6})
        print(f"{name:42} {n_tokens / median:12,.0f} {n_bytes / median / 1e6:13.1f}")
    if JSON.value:
        pathlib.Path(JSON.value).write_text(json.dumps({"cores": os.cpu_count(), "arms": rows}, indent=1))


def library() -> list[str]:
    folder = pathlib.Path(os.__file__).parent
    return [path.read_text("utf-8", "replace") for path in sorted(folder.glob("*.py"))]


def settings(path, tokenizer="bytes"):
    config = joint_moe.get_config()
    config.data.path, config.data.tokenizer = str(path), str(tokenizer)
    return config


def prepare(config, folder, shard_tokens=prepare_lib.SHARD_TOKENS):
    text = sources.find(config.data)
    made = prepare_lib.prepare(
        text, config.data, tokenizer.load(config.data.tokenizer), folder, shard_tokens=shard_tokens
    )
    return sum(made["tokens"].values()), sum(made["bytes"].values())


def reading(folder):
    """{arm: (function, tokens, bytes)} of N_BATCHES batches each."""
    (folder / "read.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in library()))
    config = settings(folder / "read.jsonl")
    config.data.seq_len, config.batch_tokens = SEQ_LEN, ((0, ROWS * SEQ_LEN),)
    mesh, schedule = sharding.make_mesh(config, jax.devices()[:1]), Schedule(config)
    arms, n_tokens = {}, N_BATCHES * ROWS * SEQ_LEN
    for name, shard_tokens in (("one shard", prepare_lib.SHARD_TOKENS), ("shards of 100,000 tokens", 100_000)):
        prepare(config, folder / name, shard_tokens)
        made = corpus.open_folder(folder / name)
        order = grain.MapDataset.range(supply.n_rows(made.train, SEQ_LEN)).shuffle(0).repeat()

        def read(made=made, order=order):
            for step in range(N_BATCHES):
                read_rows(made.train, SEQ_LEN, [order[i] for i in range(step * ROWS, (step + 1) * ROWS)])

        def arrive(made=made):
            segment = schedule.segments[0]
            for _, batch in zip(range(N_BATCHES), training_batches(made, config, schedule, mesh, segment, 0)):
                batch.block_until_ready()

        arms[f"read {name}"] = read, n_tokens, n_tokens
        arms[f"read {name}, on the device"] = arrive, n_tokens, n_tokens
    return arms


def preparing(folder):
    """{arm: (function, tokens, bytes)} of the same text as each kind of file, and by each tokenizer."""
    documents = library()[:60]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    pa.parquet.write_table(pa.table({"text": documents}), folder / "a.parquet")
    (folder / "txt").mkdir()
    for i, document in enumerate(documents):
        (folder / f"txt/{i:03}.txt").write_text(document)
    encoder = tokenizers.Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)
    encoder.train_from_iterator(documents, trainer)
    merges = json.loads(encoder.to_str())["model"]["merges"]
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in merges))
    encoder.add_special_tokens(["<|endoftext|>"])
    encoder.save(str(folder / "tokenizer.json"))
    cases = [(f"prepare {kind}, bytes", name, "bytes") for kind, name in
             ((".txt", "txt/*.txt"), (".jsonl", "a.jsonl"), (".parquet", "a.parquet"))]  # fmt: skip
    cases.append(("prepare .jsonl, GPT-2's way (8,000 tokens)", "a.jsonl", folder / "vocab.bpe"))
    cases.append(("prepare .jsonl, tokenizer.json (8,000)", "a.jsonl", folder / "tokenizer.json"))
    arms = {}
    for arm, name, by in cases:

        def run(config=settings(folder / name, by)):  # noqa: B008  of this case
            with tempfile.TemporaryDirectory(dir=folder) as out:
                return prepare(config, pathlib.Path(out))

        arms[arm] = run, *run()
    return arms


if __name__ == "__main__":
    app.run(main)
