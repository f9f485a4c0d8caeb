"""Workdirs in object storage: real trainers against a real server of the GCS API on this machine."""

import json
import shutil
import signal

import helpers
import outage
import pytest
import soak
from etils import epath

from jmoe.errors import Damaged, UserError
from jmoe.run import checkpoint
from jmoe.storage import files as storage

FLAGS = ["--config.model.n_experts=4", "--config.n_tokens=(8192,)"]


@pytest.fixture(scope="module")
def config(tmp_path_factory, text_glob):
    return helpers.write_config(tmp_path_factory.mktemp("config"), text_glob, checkpoint_every=5)


def fetched(folder: epath.Path, target):
    """`target`, a copy of the folder here."""
    target.mkdir()
    for path in folder.iterdir():
        if path.is_dir():
            fetched(path, target / path.name)
        else:
            (target / path.name).write_bytes(path.read_bytes())
    return target


def damage(arrays: epath.Path) -> None:
    """Turns a bit of the largest array."""
    array = max(arrays.iterdir(), key=lambda path: path.stat().length)
    content = bytearray(array.read_bytes())
    content[len(content) // 2] ^= 4
    array.write_bytes(bytes(content))


def test_a_run_in_a_bucket_stopped_and_resumed_is_the_local_one(config, bucket, proxy, tmp_path):
    """Checkpoints, metrics and results; with the newest checkpoint damaged, one request in twenty failed, and outages
    at the start, in saves, at the resume and at the result."""
    workdir = epath.Path(f"{bucket}/runs/one")
    flags = [f"--config={config}", f"--workdir={workdir}", *FLAGS]
    proxy.fail_at_random(("503", "reset", "cut", "lost"))  # a 401 ends a save, and what started the trainer goes on
    proxy.fail("401", outage.SECONDS, at=".probe-")
    proxy.fail("lost", outage.SECONDS, at="name=runs/one/train.lock")
    proxy.fail("503", outage.SECONDS, at="uploadType=media&name=runs/one/trunk/checkpoints/5/params")  # by TensorStore
    proxy.fail("cut", outage.SECONDS, at="checkpoints/10/record")
    processes = helpers.start("jmoe.train", *flags)
    helpers.wait_until(lambda: len(checkpoint.steps_in(workdir / "trunk" / "checkpoints")) == 2, processes, 3000)
    processes[0].send_signal(signal.SIGTERM)
    said = processes[0].communicate(timeout=200)[1]
    assert processes[0].returncode == 128 + signal.SIGTERM and "saved step" in said, said
    before, newest = checkpoint.steps_in(workdir / "trunk" / "checkpoints")[-2:]
    damage(workdir / "trunk" / "checkpoints" / str(newest) / "params" / "ocdbt.process_0" / "d")
    assert proxy.over() and set(proxy.failed) == set(outage.FAULTS)
    for fault, at in (
        ("reset", "trunk/checkpoints"),
        ("401", f"trunk/checkpoints/{before}/record/metadata"),
        ("cut", f"trunk/checkpoints/{before}/params/d/"),
        ("503", "branch-8192/result.json&"),
        ("lost", "branch-8192/result.json"),
    ):
        proxy.fail(fault, outage.SECONDS, at)
    done = helpers.run("jmoe.train", *flags, timeout=3000)
    assert done.returncode == 0 and proxy.over(), done.stderr
    proxy.end()
    assert f"resuming from {workdir}/trunk/checkpoints/{before}" in done.stderr, done.stderr
    assert f"{newest} is damaged and skipped" in done.stderr and "bucket type" not in done.stderr, done.stderr

    local = tmp_path / "local"
    helpers.succeeds("jmoe.train", f"--config={config}", f"--workdir={local}", *FLAGS)
    soak.assert_same_run(fetched(workdir, tmp_path / "fetched"), local, "branch-8192")

    helpers.succeeds("jmoe.evaluate", f"--workdir={workdir}", f"--json={bucket}/runs/loss.json")
    loss = json.loads(epath.Path(f"{bucket}/runs/loss.json").read_text())["loss"]
    assert loss == json.loads((local / "branch-8192" / "result.json").read_text())["loss"]


def test_a_bucket_that_is_not_there(config, bucket):
    said = helpers.fails("jmoe.train", f"--config={config}", "--workdir=gs://no-such-bucket/run")
    assert "--workdir=gs://no-such-bucket/run cannot be written" in said and "no-such-bucket" in said
    said = helpers.fails("jmoe.evaluate", f"--workdir={bucket}/nothing")
    assert f"--workdir={bucket}/nothing holds no checkpoint" in said


def test_files_are_whole_or_absent_on_both_kinds(bucket, tmp_path):
    for folder in (storage.make_workdir(f"{bucket}/a b/'c'"), storage.make_workdir(f"{tmp_path}/a b/'c'")):
        assert storage.read_lines(folder / "lines.jsonl") == []
        storage.write_whole(folder / "lines.jsonl", '{"a": 1}\n{"a": 2}\n{"a"')
        assert storage.read_lines(folder / "lines.jsonl") == [{"a": 1}, {"a": 2}]
        storage.write_whole(folder / "lines.jsonl", "")
        assert [path.name for path in folder.iterdir()] == ["lines.jsonl"]


def test_a_damaged_line_is_named_and_a_sealed_file_is_what_was_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for bad in (b"\xff", b"nan", b'{"loss": 1'):
        path.write_bytes(b'{"loss": 2}\n' + bad + b"\n")
        with pytest.raises(UserError, match=f"{path} is damaged in line 2 .*; without that line it can be read"):
            storage.read_lines(path)

    values = {"loss": 2.5, "record": {"n_tokens": [1, 2], "name": "é"}}
    text = json.dumps(storage.sealed(values), indent=1)
    assert storage.read_sealed(path.with_name("none.json")) is None
    path.write_text(text)
    assert storage.read_sealed(path) == values
    path.write_text(json.dumps(values))  # as written before there were seals
    assert storage.read_sealed(path) == values
    for bad in (text[:-9], "", text.replace("2.5", "2.4"), "[]", "{}", text[:-1] + "\udcff"):
        path.write_bytes(bad.encode(errors="surrogateescape"))
        with pytest.raises(Damaged, match=f"{path} is damaged: "):
            storage.read_sealed(path)


def test_a_relative_workdir_is_where_the_command_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert storage.make_workdir("runs/one") == epath.Path(tmp_path / "runs" / "one")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--workdir=file/run cannot be written: Not a directory"):
        storage.make_workdir("file/run")
    shutil.rmtree(tmp_path / "runs")
