"""What the loop leaves and says: one trainer to a workdir, budgets added later, metrics on disk, banner and lines."""

import contextlib
import io
import json
import os
import re
import shutil

import helpers
import jax
import pytest
from etils import epath
from text_fixtures import small_run

from jmoe.cost import memory
from jmoe.errors import Failure, UserError
from jmoe.model import sharding
from jmoe.run import checkpoint, progress
from jmoe.storage import ownership
from jmoe.storage.files import sealed
from jmoe.train import train


@pytest.fixture(scope="module")
def config(text_glob):
    fields = {"model.d_model": 8, "n_tokens": (8_192, 16_384), "log_every": 2, "checkpoint_every": 5}
    return small_run(text_glob, **fields)


def with_budgets(config, *n_tokens):
    config = config.copy_and_resolve_references()
    config.n_tokens = n_tokens
    return config


def run(config, folder) -> str:
    """Trains on one device in this process; returns what it said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "LINE_SECONDS", 0.0)  # a line a step
        patch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
        train(config, epath.Path(folder))
    return said.getvalue()


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory):
    """(folder, what it said, events): each fsync of metrics.jsonl with its size, each save with the size there then."""
    folder, events = tmp_path_factory.mktemp("run"), []
    fsync, save = os.fsync, checkpoint.Checkpoints.save

    def synced(fd):
        fsync(fd)
        events.append(("fsync", os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_size))

    def saved(self, step, *args):
        path = self.directory.parent / "metrics.jsonl"
        events.append(("save", str(path), path.stat().length))
        save(self, step, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(checkpoint.Checkpoints, "save", saved)
        said = run(config, folder)
    return folder, said, events


def test_a_run_that_nobody_interrupted_says_what_it_is_and_how_far(undisturbed):
    folder, said, _ = undisturbed
    lines = said.splitlines()
    assert lines[0].startswith(f"{folder}: 4,944 active of 4,944 parameters (dense, d_model 8, 1 blocks); trunk of 52 ")
    assert "13,312 tokens, and 2 of 2 branches, to 8,192, 16,384 tokens; corpus " in lines[0]
    assert lines[1] == "kernel: attention by XLA in float32, all positions at once"
    step = r"(trunk|branch-\d+): step \d+ of \d+, [\d,]+ tokens, loss \d\.\d{4}, [\d,]+ tokens/s, [\d:]+ left"
    steps = [line for line in lines if re.fullmatch(step, line)]
    assert len(steps) == 52 + 6 + 12 and steps[0].startswith("trunk: step 1 of 26, 256 tokens, loss 5.")
    assert steps[-1].endswith(" 00:00 left")
    others = [line for line in lines[2:] if line not in steps and "validation loss" not in line]
    assert [line.partition(" after")[0] for line in others] == ["first step"]


def test_the_training_loss_is_that_of_all_steps_whichever_are_logged(undisturbed, config, tmp_path):
    """One budget, logged at every step, against the same branch logged at every other one."""
    logged = config.copy_and_resolve_references()
    logged.log_every = 1
    run(with_budgets(logged, 8_192), tmp_path / "run")
    lines = (tmp_path / "run" / "branch-8192" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["cross_entropy"] for line in lines]
    results = [
        json.loads((folder / "branch-8192" / "result.json").read_text())
        for folder in (undisturbed[0], tmp_path / "run")
    ]
    assert results[0]["train_loss"] == results[1]["train_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-12)


def test_a_branch_whose_checkpoint_has_no_sums_has_no_training_loss(undisturbed, config, tmp_path):
    """Older code trained its steps, and kept no sums: the result lacks the columns, and all else is as before."""
    folder = shutil.copytree(undisturbed[0], tmp_path / "run")
    path = folder / "branch-8192" / "result.json"
    before = json.loads(path.read_text())
    path.unlink()
    newest = max((folder / "branch-8192" / "checkpoints").iterdir(), key=lambda step: int(step.name))
    (metadata,) = (newest / "record").glob("metadata")
    record = json.loads(metadata.read_text())
    del record["token_means"]
    metadata.write_text(json.dumps(sealed(record)))
    run(config, folder)
    after = json.loads(path.read_text())
    assert after["loss"] == before["loss"]
    assert before.keys() - after.keys() == {"train_loss", "drop_rate"}


def test_metrics_are_on_disk_before_the_checkpoint_of_their_steps(undisturbed):
    _, _, events = undisturbed
    synced, saves = {}, 0
    for kind, path, size in events:
        if kind == "fsync":
            synced[path] = size
        else:
            assert synced[path] == size > 0
            saves += 1
    assert saves >= 2 + 10


def test_a_shorter_budget_added_later_keeps_the_lines_of_the_trunk(undisturbed, config, tmp_path):
    shutil.copytree(undisturbed[0], tmp_path / "run")
    trunk = tmp_path / "run" / "trunk"
    before = {path.name: path.read_bytes() for path in trunk.iterdir() if path.is_file()}
    assert len(before["metrics.jsonl"].splitlines()) == 28
    said = run(with_budgets(config, 4_096, 8_192, 16_384), tmp_path / "run")
    assert {path.name: path.read_bytes() for path in trunk.iterdir() if path.is_file()} == before
    assert json.loads((tmp_path / "run" / "branch-4096" / "result.json").read_text())["n_tokens"] == 4_096
    assert "1 of 3 branches, to 4,096 tokens" in said
    # and a larger one goes on from the end, which is a resume
    said = run(with_budgets(config, 4_096, 8_192, 16_384, 20_480), tmp_path / "run")
    assert f"resuming from {trunk}/checkpoints/52" in said
    steps = [json.loads(line)["step"] for line in (trunk / "metrics.jsonl").read_text().splitlines()]
    assert steps[:28] == [json.loads(line)["step"] for line in before["metrics.jsonl"].splitlines()]
    assert steps == sorted({*steps}) and steps[-1] == 63


def test_what_is_done_is_said_and_left_alone(undisturbed, config):
    folder, said, _ = undisturbed
    assert run(config, folder) == f"{folder}: all 2 branches are done\n"


def test_a_second_trainer_is_refused_by_all_its_processes(config, text_glob, tmp_path):
    """In this process, and in two that are one run: a sentence that names the owner, and nothing is touched."""
    workdir = tmp_path / "run"
    flags = f"--config={helpers.write_config(tmp_path, text_glob)}", f"--workdir={workdir}"
    with ownership.hold(epath.Path(workdir / "train.lock"), "jmoe.train"):
        owner = f"another trainer is at work in {workdir}, jmoe.train (process {os.getpid()} on "
        with pytest.raises(UserError) as told:
            run(config, workdir)
        assert owner in str(told.value)
        for process in helpers.start("jmoe.train", *flags, n_processes=2):
            said = process.communicate(timeout=200)[1]
            assert process.returncode == 2 and owner in said and "Traceback" not in said, said
        assert [path.name for path in workdir.iterdir()] == ["train.lock"]
    assert "validation loss" in run(with_budgets(config, 2_048), workdir)


def test_out_of_memory_is_a_sentence_that_says_what_would_help(config, tmp_path):
    """A state that fits nowhere, for real; and a step, by the words of a GPU's allocator."""
    vast = config.copy_and_resolve_references()
    vast.model.d_ff = 2_000_000_000
    with pytest.raises(Failure) as told:
        run(vast, tmp_path)
    said = str(told.value)
    assert said.startswith("out of memory allocating ") and "parameters and optimizer state alone take " in said

    config = config.copy_and_resolve_references()
    config.remat = "none"
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    peak = memory.gib(memory.of_step(memory.compile_step(config, jax.devices()[:1])[1])["peak"])
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12.00GiB.")
    with pytest.raises(Failure) as told, memory.explained(config, mesh):
        raise error
    said = str(told.value)
    assert said.startswith(f"out of memory allocating 12.00GiB on cpu: by jmoe.compile the step takes {peak} of ")
    assert "--config.remat=full, --config.microbatch_tokens=128 or a mesh of more devices would take less" in said
    with pytest.raises(jax.errors.JaxRuntimeError, match="another"), memory.explained(config, mesh):
        raise jax.errors.JaxRuntimeError("INTERNAL: another")
