"""How fast jmoe.prepare tokenises, beside the tokenizer alone:

    python -m benchmarks.prepare_speed [--rounds=3] [--megabytes=20] [--json=PATH]

Documents are modules of Python's standard library in one .jsonl file. The tokenizer is a byte-level BPE of 8,192 tokens
trained on them. Three arms take turns, each in one thread. The first two are `tokenizers` alone: a call for each
document, and one call for all. `jmoe.prepare` reads, checks, hashes, tokenises and deduplicates, and writes shards.
A rate is megabytes of text by second of the process's CPU time, which a busy machine changes little.
"""

import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
from absl import app, flags

from benchmarks import measure
from configs import joint_moe
from jmoe.text import prepare, sources
from jmoe.text import tokenizer as tokenizer_lib

MEGABYTES = flags.DEFINE_integer("megabytes", 20, "Megabytes of text.", 1)


def documents() -> list[str]:
    """Modules of the standard library, up to --megabytes."""
    texts = []
    n_bytes = 0
    for path in sources.find(joint_moe.get_config().data).train:
        text = pathlib.Path(path).read_bytes().decode("utf-8", "replace")
        texts.append(text)
        n_bytes += len(text.encode())
        if n_bytes > MEGABYTES.value * 1e6:
            break
    return texts


def train_tokenizer(texts: list[str], path: str) -> None:
    """Writes a tokenizer.json of 8,192 tokens."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=8_192, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts[::10], trainer)
    tokenizer.save(path)


def main(_: object) -> None:
    """Prints a row for each arm."""
    import tokenizers

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = documents()
    n_bytes = sum(len(text.encode()) for text in texts)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        train_tokenizer(texts, str(folder / "tokenizer.json"))
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        data = joint_moe.get_config().data
        data.path = str(folder / "text.jsonl")
        data.tokenizer = str(folder / "tokenizer.json")
        library = tokenizers.Tokenizer.from_file(data.tokenizer)
        encoder = tokenizer_lib.load(data.tokenizer)
        rounds = iter(range(10**6))

        def one_by_one() -> None:
            for text in texts:
                np.array(library.encode_batch_fast([text], add_special_tokens=False)[0].ids, np.uint32)

        def as_one_batch() -> None:
            library.encode_batch_fast(texts, add_special_tokens=False)

        def prepared() -> None:
            prepare.prepare(sources.find(data), data, encoder, folder / f"out-{next(rounds)}")

        arms: dict[str, Callable[[], None]] = {
            "tokenizers, a document a call": one_by_one,
            "tokenizers, one batch": as_one_batch,
            "jmoe.prepare": prepared,
        }
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(measure.ROUNDS.value):
            for name, arm in arms.items():
                begin = time.process_time()
                arm()
                seconds[name].append(time.process_time() - begin)
    base = "tokenizers, a document a call"
    rows = [
        {
            "arm": name,
            "MB/s and core": n_bytes / 1e6 / statistics.median(times),
            "of the tokenizer": measure.ratio(seconds, base, name),
        }
        for name, times in seconds.items()
    ]
    measure.show(rows, f"{len(texts):,} documents, {n_bytes / 1e6:.1f} MB", measure.JSON.value)


if __name__ == "__main__":
    app.run(main)
