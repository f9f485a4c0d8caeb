"""Text by weights: which source each row of a run comes from, how often each is read, what is held out and refused."""

import ast
import json

import helpers
import jax
import numpy as np
import pytest
from etils import epath
from text_fixtures import settings, tiny

from jmoe import evaluate, prepare, train
from jmoe.config import check
from jmoe.config.schedule import Schedule
from jmoe.errors import UserError
from jmoe.model import sharding
from jmoe.text import corpus, mixture, training_text
from jmoe.text.batches import training_batches, validation_batches, validation_bytes
from launch.varied import plain

pytestmark = pytest.mark.usefixtures("own_cache")


def write(folder, **texts: str):
    """One .jsonl for each name, of 400 documents that hold the letter of `texts` alone."""
    for name, letter in texts.items():
        lines = [json.dumps({"text": f"{letter * 60}{i}"}) + "\n" for i in range(400)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return [str(folder / f"{name}.jsonl") for name in texts]


def mixed(*weights, **fields):
    return tiny(**{"data.mixture": weights, "data.max_epochs": 10.0} | fields)


@pytest.mark.parametrize(
    "weights", [[0.7, 0.3], [1, 1, 1], [5], [0.0111, 0.9, 0.0889], [1, 2, 3, 5, 8, 13, 0.05], [1] * 99]
)
def test_any_thousand_rows_hold_the_shares_to_rounding(weights):
    parts = tuple(training_text.Part(str(i), rows, None) for i, rows in enumerate(mixture.shares(weights)))
    places = [mixture.locate_row(parts, row) for row in range(3_400)]
    whose = np.array([i for i, _ in places])
    for i, weight in enumerate(weights):
        share = weight / sum(weights)
        count = np.concatenate([[0], np.cumsum(whose == i)])
        assert np.abs(count[1000:] - count[:-1000] - 1000 * share).max() < 1
        assert np.abs(count[100:] - count[:-100] - 100 * share).max() <= 4  # spread out, not in runs
        assert [k for j, k in places if j == i] == list(range(count[-1]))  # its own rows, in order, each once
        assert [mixture.rows_by_part(parts, n)[i] for n in range(0, 3_400, 37)] == count[:-1:37].tolist()


def test_rows_follow_from_the_step_alone_on_any_mesh_and_each_source_keeps_its_order(tmp_path):
    a, b = write(tmp_path, a="a", b="b")
    config = mixed((a, 3), (b, 1))
    text, plan = corpus.load(config.data), Schedule(config)
    trunk = plan.segments[0]

    def batches(text, start, n):
        return [
            np.asarray(x)
            for x in training_batches(text, config, plan, sharding.make_mesh(config, jax.devices()[:n]), trunk, start)
        ]

    whole = batches(text, 0, 1)
    for start, n_devices in ((0, 4), (5, 1), (9, 8)):
        np.testing.assert_array_equal(np.concatenate(batches(text, start, n_devices)), np.concatenate(whole[start:]))
    rows = np.concatenate(whole)
    is_b = (rows == ord("b")).any(axis=1)
    assert abs(is_b.sum() - len(rows) / 4) <= 1
    for path, chosen in ((a, ~is_b), (b, is_b)):
        alone = np.concatenate(batches(corpus.load(settings(path)), 0, 1))
        np.testing.assert_array_equal(rows[chosen], alone[: chosen.sum()])


def test_a_run_on_a_file_and_a_tfds_dataset_counts_each_source(tmp_path, places):
    (a,) = write(tmp_path, a="a")
    config = mixed((a, 0.75), (places["tfds"], 0.25), **{"batch_tokens": ((0, 512),)})
    (result,) = train.train(config, epath.Path(tmp_path / "run"))
    has = {path: (len(corpus.load(settings(path)).train) - 1) // 16 * 16 for path in (a, places["tfds"])}
    assert result["share/a.jsonl"] == 0.75 and result[f"share/{places['tfds']}"] == 0.25
    assert (
        result["epochs/a.jsonl"] == 3072 / has[a] and result[f"epochs/{places['tfds']}"] == 1024 / has[places["tfds"]]
    )
    assert result["epochs"] == max(3072 / has[a], 1024 / has[places["tfds"]]) and result["unique_tokens"] == 4096
    again = evaluate.evaluate(tmp_path / "run")
    assert again["loss"] == result["loss"] and again["data_path"] == f"{a}; {places['tfds']}"
    alone = evaluate.evaluate(tmp_path / "run", overrides={"data.path": a})
    assert alone["corpus_fingerprint"] == corpus.load(settings(a)).fingerprint
    other = mixed((a, 0.5), (places["tfds"], 0.5), **{"batch_tokens": ((0, 512),)})
    with pytest.raises(UserError, match=f"the corpus was {result['corpus_fingerprint']}, is "):
        train.train(other, epath.Path(tmp_path / "run"))
    assert plain(result["record"]["config"]["data"]["mixture"]) == config.data.mixture


@pytest.mark.parametrize(
    "paths, names",
    [
        (["/data/web", "/data/code/"], ["web", "code"]),
        (["/data/web/tokens", "/data/code/tokens", "wiki"], ["web/tokens", "code/tokens", "wiki"]),
        (["web/*.jsonl", "/x/code/*.jsonl", "/y/code/*.jsonl"], ["web/*.jsonl", "x/code/*.jsonl", "y/code/*.jsonl"]),
        (["/data/*.jsonl", "tokens", "/a/tokens"], ["data/*.jsonl", "tokens", "a/tokens"]),
        (["gs://bucket/web", "tfds:lm1b/plain:train"], ["web", "tfds:lm1b/plain:train"]),
    ],
)
def test_sources_are_called_by_the_end_of_their_paths(paths, names):
    assert mixture.names(paths) == names and len(set(names)) == len(names)


def test_held_out_text_is_mixed_alike_and_a_given_one_is_taken_once(tmp_path):
    a, b, held = write(tmp_path, a="a", b="b", held="h")
    config = mixed((a, 3), (b, 1), **{"data.validation_tokens": 160})

    def rows(text):
        return np.concatenate([np.asarray(x)[np.asarray(w) > 0] for x, w in validation_batches(text, config, mesh)])

    mesh = sharding.make_mesh(config, jax.devices()[:1])
    text = corpus.load(config.data)
    evaluated = rows(text)
    assert len(evaluated) == 10 and (evaluated == ord("b")).any(axis=1).sum() == 2
    assert validation_bytes(text, config) == np.sum(evaluated[:, 1:] < 256)
    config.data.validation_tokens = 10**6
    most = min(mixture.n_rows(corpus.load(settings(p)).validation, 16) * 4 // w for p, w in ((a, 3), (b, 1)))
    assert len(rows(text)) == most and "held-out text has" in mixture.check_held_out(text, config)
    config.data.validation_path = held
    given = corpus.load(config.data)
    alone = corpus.load(settings(a, validation_path=held))
    np.testing.assert_array_equal(rows(given), rows(alone))
    assert mixture.n_validation_tokens(given, config) == mixture.n_rows(alone.validation, 16) * 16


def test_the_held_out_loss_of_each_source_is_measured_and_makes_up_that_of_all(tmp_path):
    """On the way, at the end, in runs.csv's columns and by jmoe.evaluate: the mean by rows is the loss of all."""
    a, b = write(tmp_path, a="a", b="bcdefghijk")
    config = mixed((a, 3), (b, 1), **{"data.validation_tokens": 320, "eval_every": 4})
    (result,) = train.train(config, epath.Path(tmp_path / "run"))
    names = ["validation_loss/a.jsonl", "validation_loss/b.jsonl"]
    of_a, of_b = (result[name] for name in names)
    assert result["loss"] == pytest.approx((3 * of_a + of_b) / 4, rel=1e-6) and abs(of_a - of_b) > 0.01
    (metrics,) = (tmp_path / "run").glob("branch-*/metrics.jsonl")
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert {name: last[name] for name in names} == {name: result[name] for name in names}
    again = evaluate.evaluate(tmp_path / "run")
    assert again["loss"] == pytest.approx(result["loss"], rel=1e-6)  # sums in another order, by another program
    assert again["loss_of_sources"] == pytest.approx({"a.jsonl": of_a, "b.jsonl": of_b}, rel=1e-6)
    alone = evaluate.evaluate(tmp_path / "run", overrides={"data.path": b, "data.validation_tokens": 80})
    assert alone["loss"] == pytest.approx(of_b, rel=1e-6) and alone["loss_of_sources"] == {}


def test_a_validation_set_that_is_trained_on_is_its_held_out_part(tmp_path):
    """By the source's path, by another path to its files, by a prepared folder of it; and of a single text."""
    a, b, other = write(tmp_path, a="a", b="b", other="o")
    (tmp_path / "linked.jsonl").symlink_to(a)
    prepare.prepare_folder(settings(a), tmp_path / "out", 1, 10**8)
    sets = f"a={a};linked={tmp_path}/linked.jsonl;prepared={tmp_path}/out;other={other}"
    for fields in ({"data.mixture": ((a, 3), (b, 1))}, {"data.path": a}):
        config = tiny(**fields | {"data.validation_sets": sets})
        found = corpus.validation_sets(config.data, config.model.vocab_size, corpus.load(config.data))
        held_out, whole = corpus.load(settings(a)), corpus.load(settings(other))
        for name in ("a", "linked", "prepared"):
            np.testing.assert_array_equal(found[name].validation[:], held_out.validation[:])
        np.testing.assert_array_equal(found["other"].validation[:], whole.train[:])


def test_validation_sets_that_would_be_training_text_are_refused(tmp_path):
    a, b, held, *_ = write(tmp_path, a="a", b="b", held="h", ax="x")
    both = str(tmp_path / "a*.jsonl")

    def refused(words: str, sets: str, **fields):
        config = mixed((a, 3), (b, 1), **{"data.validation_sets": sets} | fields)
        with pytest.raises(UserError, match=words):
            corpus.validation_sets(config.data, config.model.vocab_size, corpus.load(config.data))

    refused(r"validation_sets, some: .* has 1 of the files that the run trains on as .*first ", f"some={both}")
    given = {"data.validation_path": held}
    refused(r"validation_sets, a: .* is text that the run trains on, and none of it is held out", f"a={a}", **given)


def test_a_set_may_not_take_the_name_of_another_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b, other = write(tmp_path, a="a", b="b", other="o")
    prepare.prepare_folder(settings(b), tmp_path / "code", 1, 10**8)
    config = mixed((a, 3), ("code", 1), **{"data.validation_sets": f"code={other}"})
    with pytest.raises(UserError, match="validation_sets, code: 'code' is a source of config.data.mixture"):
        corpus.validation_sets(config.data, config.model.vocab_size, corpus.load(config.data))
    config.data.validation_sets = "code=code"
    found = corpus.validation_sets(config.data, config.model.vocab_size, corpus.load(config.data))
    np.testing.assert_array_equal(found["code"].validation[:], corpus.load(settings(b)).validation[:])


def test_each_source_has_its_own_limit_of_epochs(tmp_path):
    a, b = write(tmp_path, a="a", b="b")
    config = mixed((a, 1), (b, 99), **{"data.max_epochs": 1.0, "n_tokens": (32_768,)})
    has = mixture.n_rows(corpus.load(settings(b)).train, 16) * 16
    plan = Schedule(config)
    with pytest.raises(
        UserError, match=rf"asks for 32,\d\d\d training tokens of '{b}' and corpus .* has {has:,}: 1\..* weight"
    ):
        mixture.check(corpus.load(config.data), config, plan, plan.segments[-1])


def test_the_fingerprint_is_that_of_the_sources_and_their_shares(tmp_path):
    a, b, c = write(tmp_path, a="a", b="b", c="a")

    def of(*weights):
        return corpus.load(mixed(*weights).data).fingerprint

    first = of((a, 0.7), (b, 0.3))
    assert first == of((a, 7), (b, 3)) == of((c, 7), (b, 3))  # the same rows by another name
    assert len({first, of((a, 0.6), (b, 0.4)), of((b, 0.7), (a, 0.3)), of((a, 1.0)), of((b, 1.0))}) == 5
    assert corpus.load(mixed((a, 7), (b, 3), **{"data.fingerprint": first}).data).fingerprint == first
    with pytest.raises(UserError, match="config.data.mixture makes corpus"):
        corpus.load(mixed((a, 6), (b, 4), **{"data.fingerprint": first}).data)


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf"), "1"])
def test_a_weight_is_a_number_above_0(weight):
    with pytest.raises(UserError, match=r"config.data.mixture=.* must be .* each weight a number above 0"):
        check.check_config(mixed(("a.txt", 1.0), ("b.txt", weight)))


def test_what_cannot_be_mixed_is_named(tmp_path):
    a, b, same = write(tmp_path, a="a", b="b", same="a")
    with pytest.raises(UserError, match="config.data.path='x.txt' and config.data.mixture=.* are two texts"):
        check.check_config(mixed((a, 1.0), **{"data.path": "x.txt"}))
    for weights, words in (
        (((a, 1.0), (b, 0.0001)), f"the weight 0.0001 of '{b}' makes less than one row in 1000"),
        (((a, 1.0), (same, 1.0)), f"'{a}' and '{same}' are the same text"),
        (((a, 1.0), ("none/*.txt", 1.0)), "config.data.mixture, none/.*matches no file"),
    ):
        with pytest.raises(UserError, match=words):
            corpus.load(mixed(*weights).data)


def test_prepared_sources_make_the_same_corpus(tmp_path):
    """jmoe.prepare makes a folder of each source, names them for a config, and leaves one that is prepared as it is."""
    a, b = write(tmp_path, a="a", b="b")
    out, data = tmp_path / "out", f"--config.data.mixture={((a, 0.7), (b, 0.3))!r}"
    done = helpers.succeeds("jmoe.prepare", "--config=configs/quickstart.py", data, f"--out_dir={out}")
    said = done.stdout.splitlines()[-1].removeprefix("config.data.mixture = ")
    assert ast.literal_eval(said) == ((str(out / "source-000"), 0.7), (str(out / "source-001"), 0.3))
    made = corpus.load(mixed(*ast.literal_eval(said)).data)
    assert made.fingerprint == corpus.load(mixed((a, 0.7), (b, 0.3)).data).fingerprint
    checked = helpers.succeeds("jmoe.prepare", f"--out_dir={out}", "--verify")
    assert checked.stdout.count("corpus ") == 2
    data = f"--config.data.mixture={said}"
    again = helpers.succeeds("jmoe.prepare", "--config=configs/quickstart.py", data, f"--out_dir={out}")
    assert again.stdout.strip() == f"config.data.mixture = {said}"


def test_sources_prepared_by_other_tokenizers_are_not_mixed(tmp_path):
    a, b = write(tmp_path, a="a", b="b")
    one, other = (corpus.load(settings(path)) for path in (a, b))
    other.manifest["tokenizer"] |= {"sha256": "12" * 32}
    with pytest.raises(UserError, match="'a' and 'b' were prepared by different tokenizers, bytes of 257 tokens"):
        mixture.combine({"a": 1.0, "b": 1.0}, {"a": one, "b": other}, False)
