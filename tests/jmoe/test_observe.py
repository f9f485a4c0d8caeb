"""What a run shows: TensorBoard and JSONL tell the same, a kill leaves no step twice, a profile is written."""

import json

import helpers
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jmoe.errors import UserError
from jmoe.model import routing
from jmoe.run import log


@pytest.fixture(scope="module")
def config(tmp_path_factory, text_glob):
    return helpers.write_config(tmp_path_factory.mktemp("config"), text_glob)


def scalars(folder) -> dict:
    """Tag -> {step: value} as TensorBoard shows them."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=True)
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_tensorboard_and_jsonl_tell_the_same(config, tmp_path):
    flags = [f"--config={config}", f"--workdir={tmp_path}", "--config.model.n_experts=4", "--config.model.n_blocks=2"]
    done = helpers.run("jmoe.train", *flags, "--config.n_tokens=(8192,)", "--config.profile_steps=(3,5)")
    assert done.returncode == 0, done.stderr
    # a longer trunk goes on from the saved one: a second start, a second event file
    done = helpers.run("jmoe.train", *flags, "--config.n_tokens=(8192,16384)")
    assert done.returncode == 0, done.stderr

    for name in ("trunk", "branch-8192", "branch-16384"):
        metrics, speed = lines(tmp_path / name / "metrics.jsonl"), lines(tmp_path / name / "speed.jsonl")
        shown = scalars(tmp_path / name)
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
    traces = list((tmp_path / "trunk" / "plugins" / "profile").rglob("*.xplane.pb"))
    assert traces and not list((tmp_path / "branch-8192").rglob("*.xplane.pb"))


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
