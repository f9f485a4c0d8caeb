"""What a run shows: TensorBoard and JSONL tell the same, a kill leaves no step twice, a profile is written; validation
losses on the way, named validation sets, and Weights & Biases without a network."""

import importlib.util
import json
import os
import pathlib

import helpers
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jmoe.config import schema_types
from jmoe.errors import UserError
from jmoe.model import routing
from jmoe.run import log

EVERY = 8
HAS_WANDB = importlib.util.find_spec("wandb") is not None


@pytest.fixture(scope="module")
def watched(tmp_path_factory, text_glob):
    """The workdir of a run to one budget and, by a second start, to another: its trunk has two event files."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "more").mkdir()
    for source in sorted(pathlib.Path(os.__file__).parent.glob("json/*.py")):
        (folder / "more" / f"{source.stem}.txt").write_bytes(source.read_bytes())
    config = helpers.write_config(folder, text_glob)
    flags = [f"--config={config}", f"--workdir={folder / 'run'}"]
    flags += ["--config.model.n_experts=4", "--config.model.n_blocks=2"]
    flags += [f"--config.eval_every={EVERY}", f"--config.data.validation_sets=more={folder}/more/*.txt"]
    flags += ["--config.log_every=5"] + ["--config.wandb=tests"] * HAS_WANDB
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        for more in (["--config.n_tokens=(8192,)", "--config.profile_steps=(3,5)"], ["--config.n_tokens=(8192,16384)"]):
            helpers.succeeds("jmoe.train", *flags, *more)
    return folder / "run"


def scalars(folder) -> dict:
    """Tag -> {step: value} as TensorBoard shows them."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=True)
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_tensorboard_and_jsonl_tell_the_same(watched):
    for name in ("trunk", "branch-8192", "branch-16384"):
        metrics, speed = lines(watched / name / "metrics.jsonl"), lines(watched / name / "speed.jsonl")
        shown = scalars(watched / name)
        assert [line["step"] for line in metrics] == [line["step"] for line in speed]
        for field in ("loss", "cross_entropy", "load_balance", "router_z", "drop_rate", "router_entropy", "grad_norm"):
            assert shown[field] == pytest.approx({line["step"]: line[field] for line in metrics}, rel=1e-6)
        for field in ("tokens_per_second", "input_wait", "memory_bytes"):
            assert shown[f"speed/{field}"] == pytest.approx({line["step"]: line[field] for line in speed}, rel=1e-6)
        assert all(line["tokens_per_second"] > 0 and line["memory_bytes"] > 1e6 for line in speed)
        assert all(0 <= line["input_wait"] < 1 for line in speed)
        for field in routing.METRICS:
            assert all(len(line["layers"][field]) == 2 for line in metrics)
            for layer in range(2):
                expected = {line["step"]: line["layers"][field][layer] for line in metrics}
                assert shown[f"layers/{field}/{layer:02d}"] == pytest.approx(expected, rel=1e-6)
        for line in metrics:  # the whole is made of its layers, the loss of its parts
            layers = {field: np.array(values) for field, values in line["layers"].items()}
            assert line["drop_rate"] == pytest.approx(layers["drop_rate"].mean(), abs=1e-6)
            assert line["load_balance"] == pytest.approx(layers["load_balance"].sum(), rel=1e-6)
            total = line["cross_entropy"] + 0.01 * line["load_balance"] + 0.001 * line["router_z"]
            assert line["loss"] == pytest.approx(total, rel=1e-6)
            assert np.all(layers["max_load"] >= 1) and np.all(layers["min_load"] <= 1)
    traces = list((watched / "trunk" / "plugins" / "profile").rglob("*.xplane.pb"))
    assert traces and not list((watched / "branch-8192").rglob("*.xplane.pb"))


def test_damage_after_the_last_checkpoint_is_cut_off_and_before_it_is_named(tmp_path):
    """A loss of power keeps any part of what was not synced; what was is not cut off."""
    path = tmp_path / "metrics.jsonl"
    whole = [json.dumps({"step": step}) for step in range(20, 30, 2)]
    for damaged in range(5):
        text = [*whole[:damaged], "\0" * 14, *whole[damaged + 1 :]]
        path.write_text("\n".join(text) + "\n")
        for start in range(20, 31):
            needed = [20 + 2 * i for i in range(5) if 20 + 2 * i < start]
            if len(needed) > damaged:
                with pytest.raises(UserError, match=f"is damaged in line {damaged + 1} "):
                    log.lines_before(path, 20, start, 2)
            else:
                assert [line["step"] for line in log.lines_before(path, 20, start, 2)] == needed


def test_validation_losses_on_the_way(watched):
    """In the lines of their steps, in TensorBoard, and as the result has them at the end."""
    trunk, branch = (lines(watched / name / "metrics.jsonl") for name in ("trunk", "branch-16384"))
    result = json.loads((watched / "branch-16384" / "result.json").read_text())
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
    for segment in ("branch-8192", "branch-16384"):
        folders = list((watched / segment / "wandb").glob("offline-run-*"))
        assert len(folders) == 1
        (sent,) = folders[0].glob("*.wandb")
        content = sent.read_bytes()
        assert (
            b"validation_loss/more" in content and b"cross_entropy" in content and b"run/" + segment.encode() in content
        )
