"""Batches by index; fresh tokens only, unless repeats are permitted; the bytes of the rows that are evaluated."""

import json
import pathlib

import jax
import numpy as np
import pytest
from etils import epath
from text_fixtures import reference, settings, tiny

from jmoe import train
from jmoe.config.schedule import Schedule
from jmoe.errors import UserError
from jmoe.model import sharding
from jmoe.text import corpus, mixture, training_text
from jmoe.text.batches import read_rows, training_batches, validation_bytes


def text_of(n_rows: int, n_held_out: int = 5_000) -> training_text.Corpus:
    return training_text.Corpus("abc", np.arange(16 * n_rows + 1), np.arange(16 * n_held_out + 1), {})


def test_batches_follow_from_the_step_alone():
    """Entered anywhere, on one device or eight, the data goes on as if it had run from the start; an epoch sees every
    row once, the next one in another order."""
    config = tiny()
    text = text_of(80)  # rows: the run is a little over three epochs
    plan = Schedule(config)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    trunk, branch = plan.segments
    whole = [np.asarray(b) for b in training_batches(text, config, plan, mesh, trunk, 0)]
    assert [len(b) for b in whole[:9]] == [8] * 8 + [16]
    for start, n_devices in ((0, 8), (3, 1), (8, 8), (11, 1)):  # batches grow at step 8
        mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
        again = [np.asarray(b) for b in training_batches(text, config, plan, mesh, trunk, start)]
        assert len(again) == len(whole) - start
        for one, other in zip(whole[start:], again, strict=True):
            np.testing.assert_array_equal(one, other)
    rows = np.concatenate(whole)[:, 0] // 16
    first, second = rows[:80], rows[80:160]
    assert sorted(first) == sorted(second) == list(range(80))
    assert list(first) != list(second) and list(first) != list(range(80))
    np.testing.assert_array_equal(np.concatenate(whole)[:, 1:], np.concatenate(whole)[:, :-1] + 1)


def test_rows_cover_the_tokens_and_share_one_at_the_seam():
    tokens = np.arange(100, dtype=np.uint16)
    assert mixture.n_rows(tokens, 10) == 9
    np.testing.assert_array_equal(read_rows([(tokens, 0), (tokens, 8)], 10), [np.arange(11), np.arange(80, 91)])


def check(config, text) -> str:
    plan = Schedule(config)
    return mixture.check(text, config, plan, plan.segments[-1])


def test_a_run_asks_for_fresh_tokens():
    """4,096 tokens are 256 rows."""
    assert not check(tiny(), text_of(256))
    with pytest.raises(UserError) as error:
        check(tiny(), text_of(255))
    for words in ("asks for 4,096 training tokens", "abc has 4,080", "config.data.max_epochs=1 ", "max_epochs=2"):
        assert words in str(error.value)
    with pytest.raises(UserError, match="abc has 1,280: 3.2 epochs.*permits 3,840.*max_epochs=4"):
        check(tiny(**{"data.max_epochs": 3}), text_of(80))
    assert not check(tiny(**{"data.max_epochs": 3.2}), text_of(80))


@pytest.mark.parametrize(
    "text, words",
    [
        (text_of(0), "training text has 1 tokens, less than one row of config.data.seq_len=16"),
        (text_of(15), "training text has 240 tokens in whole rows, less than one batch of 256"),
        (text_of(256, 0), "held-out text has 1 tokens, less than one row.*config.data.validation_path"),
    ],
)
def test_text_of_less_than_a_row_or_a_batch(text, words):
    with pytest.raises(UserError, match=words):
        check(tiny(**{"data.max_epochs": 1000}), text)


def test_the_tokens_of_a_result_and_the_refusal_of_repeats(tmp_path, own_cache, capfd):
    """Before anything is trained; what is done needs no permission."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"{i} " * 9}) + "\n" for i in range(400)))
    config = tiny(**{"data.path": f"{tmp_path}/a.jsonl", "n_tokens": (4096, 16_384), "batch_tokens": ((0, 512),)})
    found = corpus.load(config.data).manifest["tokens"]
    unique, held_out = ((found[split] - 1) // 16 * 16 for split in ("train", "validation"))
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(UserError, match=f"asks for 16,384 training tokens and corpus .* has {unique:,}:"):
        train.train(config, epath.Path(run))
    assert not list(run.iterdir())
    config.data.max_epochs = 2.5
    small, large = train.train(config, epath.Path(run))
    assert (small["unique_tokens"], small["epochs"], small["validation_tokens"]) == (4096, 4096 / unique, held_out)
    assert (large["unique_tokens"], large["epochs"]) == (unique, 16_384 / unique) and large["epochs"] > 1
    assert f"held-out text has {held_out} tokens, fewer than" in capfd.readouterr().err
    config.data.max_epochs = 1.0
    assert train.train(config, epath.Path(run)) == [small, large]


def byte_lengths(kind: str, path: str) -> dict[int, int]:
    """Bytes of each token, as its file spells it: a character for each byte."""
    content = pathlib.Path(path).read_text()
    if kind == "json":
        return {i: len(token) * (i > 0) for token, i in json.loads(content)["model"]["vocab"].items()}
    merges = content.split("\n")[1:-1]
    return dict.fromkeys(range(256), 1) | {256 + i: len(line) - 1 for i, line in enumerate([*merges, " "])}


@pytest.mark.parametrize("kind", ["gpt2", "json"])
def test_the_bytes_of_the_rows_that_are_evaluated(tmp_path, vocabularies, own_cache, kind):
    """Text that is easy in one half and hard in the other: the mean over the held-out text would be far off."""
    chance = np.random.default_rng(0)
    documents = ["def name(self): return self " * 90 + f"{i}" for i in range(10)]
    documents += ["".join(map(chr, chance.integers(0x4E00, 0x9FFF, 800))) for _ in range(10)]
    for name, found in (("held", documents), ("train", ["something else"])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in found))
    where = settings(tmp_path / "train.jsonl", vocabularies[kind], validation_path=f"{tmp_path}/held.jsonl")
    made = corpus.load(where)
    encode, n_bytes = reference(kind, vocabularies[kind]), byte_lengths(kind, vocabularies[kind])
    of_token = np.array([n_bytes[i] for d in documents for i in encode(d)])
    config = tiny(**{"data.validation_tokens": 160})
    rows = np.linspace(0, (len(of_token) - 1) // 16 - 1, 10).astype(int)
    wanted = sum(of_token[16 * row + 1 : 16 * row + 17].sum() for row in rows)
    assert validation_bytes(made, config) == wanted
    config.data.validation_tokens = 10**9  # all rows
    whole = (len(of_token) - 1) // 16 * 16
    assert validation_bytes(made, config) == of_token[1 : whole + 1].sum()
    assert made.token_bytes[made.validation[:]].sum() == sum(len(d.encode()) for d in documents)
