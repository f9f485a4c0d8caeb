"""Watching a run: validation losses on the way, named validation sets, Weights & Biases without a network."""

import importlib.util
import json
import os
import pathlib

import helpers
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jmoe.config import schema_types

EVERY = 8
HAS_WANDB = importlib.util.find_spec("wandb") is not None


@pytest.fixture(scope="module")
def watched(tmp_path_factory, text_glob):
    folder = tmp_path_factory.mktemp("watched")
    (folder / "more").mkdir()
    for source in sorted(pathlib.Path(os.__file__).parent.glob("json/*.py")):
        (folder / "more" / f"{source.stem}.txt").write_bytes(source.read_bytes())
    config = helpers.write_config(folder, text_glob)
    flags = [f"--config.eval_every={EVERY}", f"--config.data.validation_sets=more={folder}/more/*.txt"]
    flags += ["--config.n_tokens=(8192,)", "--config.log_every=5"] + ["--config.wandb=tests"] * HAS_WANDB
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        done = helpers.run("jmoe.train", f"--config={config}", f"--workdir={folder / 'run'}", *flags)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_validation_losses_on_the_way(watched):
    """In the lines of their steps, in TensorBoard, and as the result has them at the end."""
    trunk, branch = lines(watched / "trunk"), lines(watched / "branch-8192")
    result = json.loads((watched / "branch-8192" / "result.json").read_text())
    evaluated = [line for line in trunk + branch if "validation_loss" in line]
    last = branch[-1]["step"]
    assert [line["step"] for line in evaluated] == list(range(EVERY - 1, last + 1, EVERY)) and len(evaluated) > 2
    assert {line["step"] for line in trunk} >= {0, 5, 10} and all("loss" in line for line in evaluated)
    assert evaluated[-1]["validation_loss"] < evaluated[0]["validation_loss"]
    assert evaluated[-1]["validation_loss/more"] != evaluated[-1]["validation_loss"]
    assert (last + 1) % EVERY == 0, "the last step is evaluated"
    for name, column in ("validation_loss", "loss"), ("validation_loss/more", "validation_loss/more"):
        assert evaluated[-1][name] == result[column]
    events = EventAccumulator(str(watched / "trunk")).Reload()
    for name in ("validation_loss", "validation_loss/more"):
        written = {event.step: event.value for event in events.Scalars(name)}
        assert written == pytest.approx({line["step"]: line[name] for line in trunk if name in line})


def test_the_config_names_each_set_once():
    assert schema_types.named_paths("") == {}
    assert schema_types.named_paths("a=x/*.txt;b=gs://y/z=1") == {"a": "x/*.txt", "b": "gs://y/z=1"}
    for wrong in ("a", "a=", "=x", "a=x;a=y", "a b=x"):
        assert schema_types.named_paths(wrong) is None


@pytest.mark.skipif(not HAS_WANDB, reason="without wandb: config.wandb is not tested (pip install -e '.[export]')")
def test_weights_and_biases_gets_the_metrics(watched):
    """Each segment is a run; offline, the library leaves what it would have sent in the segment's folder."""
    for segment in ("trunk", "branch-8192"):
        folders = list((watched / segment / "wandb").glob("offline-run-*"))
        assert len(folders) == 1
        (sent,) = folders[0].glob("*.wandb")
        content = sent.read_bytes()
        assert (
            b"validation_loss/more" in content and b"cross_entropy" in content and b"run/" + segment.encode() in content
        )
