"""Snapshots of a run in training: the same files as jmoe.export makes of the checkpoint of that step."""

import json
import math

import helpers
import pytest

SAYABLE = "--config.model.norm=rms", "--config.model.final_norm=True", "--config.model.n_experts=4"
EVERY = 16


@pytest.fixture(scope="module")
def run(tmp_path_factory, text_glob):
    """A run by two processes of two devices, an expert on each, that makes snapshots and keeps their checkpoints."""
    folder = tmp_path_factory.mktemp("snapshot")
    config = helpers.write_config(folder, text_glob)
    flags = [f"--config={config}", f"--workdir={folder / 'run'}", *SAYABLE, "--config.n_tokens=(8192,)"]
    flags += [f"--config.{name}={EVERY}" for name in ("snapshot_every", "keep_every", "eval_every")]
    flags += ["--config.model.group_tokens=64", "--config.mesh.expert=4"]
    flags.append(f"--config.data.validation_sets=same={text_glob}")
    processes = helpers.start("jmoe.train", *flags, n_processes=2, n_devices=2)
    said = [process.communicate(timeout=900)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    return folder / "run", said[0]


def test_a_snapshot_is_what_export_makes_of_that_checkpoint(run, tmp_path):
    workdir, said = run
    for segment, step in (("trunk", EVERY), ("branch-8192", 2 * EVERY)):
        folder = workdir / segment / "snapshots" / str(step)
        assert f"wrote the snapshot {folder} in " in said
        out = tmp_path / segment
        flags = f"--workdir={workdir}", f"--segment={segment}", f"--step={step}", f"--out={out}", "--dtype=float32"
        helpers.succeeds("jmoe.export", *flags)
        names = sorted(path.name for path in out.iterdir())
        assert names == sorted(path.name for path in folder.iterdir()) and "model.safetensors" in names
        for name in set(names) - {"README.md"}:  # it says where it lies, and of a finished branch its loss
            assert (folder / name).read_bytes() == (out / name).read_bytes(), name
        assert f"| checkpoint | step {step} |" in (folder / "README.md").read_text()


def test_perplexities_stand_beside_the_validation_losses(run):
    workdir, _ = run
    lines = [json.loads(line) for line in (workdir / "trunk" / "metrics.jsonl").read_text().splitlines()]
    (line,) = [line for line in lines if line["step"] == EVERY - 1]
    for name in ("", "/same"):
        assert line[f"perplexity{name}"] == pytest.approx(math.exp(line[f"validation_loss{name}"]), rel=1e-12)
    assert all("perplexity" not in line for line in lines if line["step"] != EVERY - 1)


def test_a_model_that_transformers_lacks_is_refused_before_it_trains(text_glob, tmp_path):
    config = helpers.write_config(tmp_path, text_glob)
    flags = f"--config={config}", f"--workdir={tmp_path / 'run'}", "--config.snapshot_every=8"
    assert "a model trained with --config.model.norm=rms" in helpers.fails("jmoe.train", *flags)
