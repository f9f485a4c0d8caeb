"""Training as a user sees it: killed and resumed, wrong inputs, full and read-only disks. Real processes throughout."""

import json
import random
import signal
import socket
import subprocess
import time

import helpers
import numpy as np
import pytest


@pytest.fixture(scope="module")
def config(tmp_path_factory, text_glob):
    return helpers.write_config(tmp_path_factory.mktemp("config"), text_glob)


def train(config, workdir, *flags, **options):
    return helpers.run(
        "jmoe.train", f"--config={config}", f"--workdir={workdir}", "--config.model.n_experts=4", *flags, **options
    )


def outcome(workdir) -> dict:
    """Everything a run says of itself apart from times: results, every logged step, every byte of the last parameters."""
    said = {}
    for path in sorted(workdir.glob("*/*.json*")):
        if path.name == "result.json":
            result = json.loads(path.read_text())
            del result["seconds"]
            said[str(path.relative_to(workdir))] = result
        elif path.name == "metrics.jsonl":
            said[str(path.relative_to(workdir))] = path.read_text().splitlines()
    return said


def final_params(workdir) -> dict:
    import orbax.checkpoint as ocp

    manager = ocp.CheckpointManager(workdir / "branch-16384" / "checkpoints")
    try:
        return manager.restore(manager.latest_step(), args=ocp.args.Composite(params=ocp.args.StandardRestore())).params
    finally:
        manager.close()


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed")
    done = train(config, workdir)
    assert done.returncode == 0, done.stderr
    return workdir


def test_a_run_learns_and_says_what_it_was(undisturbed):
    said = outcome(undisturbed)
    small, large = said["branch-8192/result.json"], said["branch-16384/result.json"]
    assert (small["n_tokens"], large["n_tokens"]) == (8192, 16384)
    assert large["loss"] < small["loss"] < np.log(257)
    assert large["n_experts"] == 4 and large["n_active"] < large["n_total"]
    assert large["n_active"] == 2 * 32 * 257 + 13 * 32**2 and large["n_total"] == 2 * 32 * 257 + 40 * 32**2
    assert len(large["corpus_fingerprint"]) == 16
    first = json.loads(said["trunk/metrics.jsonl"][0])
    last = json.loads(said["branch-16384/metrics.jsonl"][-1])
    assert first["learning_rate"] == 0 and 0 < last["learning_rate"] < large["peak_learning_rate"] / 2
    assert abs(first["cross_entropy"] - np.log(257)) < 0.3
    trunk = [json.loads(line) for line in said["trunk/metrics.jsonl"]]
    assert [line["step"] for line in trunk] == list(range(len(trunk)))
    assert np.isclose(max(line["learning_rate"] for line in trunk), large["peak_learning_rate"])


def test_a_second_start_does_nothing_again(undisturbed, config):
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")}
    assert train(config, undisturbed).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }


def test_killed_at_random_it_ends_bit_identical(undisturbed, config, tmp_path):
    """SIGKILL at random moments, saves included, until a start is left alone."""
    chance = random.Random(0)
    command = helpers.command("jmoe.train", f"--config={config}", f"--workdir={tmp_path}", "--config.model.n_experts=4")
    kills = 0
    while kills < 6:
        process = subprocess.Popen(
            command, env=helpers.environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        # the moment is a place in the run rather than a time: after so many further logged steps
        target, deadline = progress(tmp_path) + chance.randint(1, 9), time.monotonic() + 120
        while process.poll() is None and progress(tmp_path) < target and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.05)
        process.kill()
        if process.wait() == 0:  # it was done before the signal came
            break
        kills += 1
    assert kills >= 4
    done = train(config, tmp_path)
    assert done.returncode == 0, done.stderr
    assert outcome(tmp_path) == outcome(undisturbed)
    one, other = final_params(undisturbed), final_params(tmp_path)
    assert one.keys() == other.keys()
    for name in ("embed", "head", "final_norm"):
        np.testing.assert_array_equal(one[name], other[name])
    for name in one["blocks"]:
        np.testing.assert_array_equal(one["blocks"][name], other["blocks"][name])


def progress(workdir) -> int:
    """Logged steps of all segments."""
    return sum(path.read_bytes().count(b"\n") for path in workdir.glob("*/metrics.jsonl"))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_so(undisturbed, config, tmp_path, signum):
    process = subprocess.Popen(
        helpers.command("jmoe.train", f"--config={config}", f"--workdir={tmp_path}", "--config.model.n_experts=4"),
        env=helpers.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    while progress(tmp_path) < 3 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signum)
    said = process.communicate()[1]
    assert process.returncode == 128 + signum, said
    assert "saved step" in said and "Traceback" not in said
    assert train(config, tmp_path).returncode == 0
    assert outcome(tmp_path) == outcome(undisturbed)


def test_it_goes_on_with_the_same_tokens_on_eight_devices(undisturbed, config, tmp_path):
    """Begun on one device, ended on eight with the experts spread: the same run to float accuracy."""
    process = subprocess.Popen(
        helpers.command(
            "jmoe.train",
            f"--config={config}",
            f"--workdir={tmp_path}",
            "--config.model.n_experts=4",
            "--config.model.group_tokens=32",
        ),
        env=helpers.environment(),
        stderr=subprocess.DEVNULL,
    )
    while progress(tmp_path) < 12 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    eight = train(config, tmp_path, "--config.model.group_tokens=32", "--config.mesh.expert=4", n_devices=8)
    assert eight.returncode == 0, eight.stderr
    alone = tmp_path / "alone"
    assert train(config, alone, "--config.model.group_tokens=32").returncode == 0
    for branch in ("branch-8192", "branch-16384"):
        one, other = (json.loads((folder / branch / "result.json").read_text()) for folder in (alone, tmp_path))
        assert abs(one["loss"] - other["loss"]) < 1e-3
        assert other["n_devices"] == 8 and one["n_devices"] == 1


def test_two_processes_of_four_devices_equal_one_device(config, tmp_path):
    """Real processes, joined by jax.distributed, experts spread over four devices: the same losses and drops."""
    flags = ["--config.model.group_tokens=32", "--config.mesh.expert=4", "--config.model.n_experts=4"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = tmp_path / "together"
    processes = [
        subprocess.Popen(
            helpers.command("jmoe.train", f"--config={config}", f"--workdir={together}", *flags),
            env=helpers.environment(4)
            | {
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": str(i),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    alone = tmp_path / "alone"
    assert train(config, alone, "--config.model.group_tokens=32").returncode == 0
    for name in ("branch-8192", "branch-16384"):
        one, other = (json.loads((folder / name / "result.json").read_text()) for folder in (alone, together))
        assert other["n_devices"] == 8
        for column in ("loss", "train_loss", "drop_rate"):
            assert abs(one[column] - other[column]) < 1e-4, column
    # the first steps agree to float accuracy, before rounding has had time to grow
    for one, other in list(zip(*(outcome(folder)["trunk/metrics.jsonl"] for folder in (alone, together))))[:5]:
        assert abs(json.loads(one)["loss"] - json.loads(other)["loss"]) < 1e-5
        assert json.loads(one)["drop_rate"] == pytest.approx(json.loads(other)["drop_rate"], abs=1e-6)


def test_another_config_is_refused_with_the_difference(undisturbed, config):
    said = helpers.fails("jmoe.train", f"--config={config}", f"--workdir={undisturbed}", "--config.model.n_experts=8")
    assert "config.model.n_experts was 4, is 8" in said


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--config.data.path=/nowhere/*.txt"], ["config.data.path='/nowhere/*.txt'", "no file"]),
        (["--config.modle.d_model=8"], ["modle", "model"]),
        (["--config.model.d_model=big"], ["config.model.d_model", "big"]),
        (["--unknown=1"], ["unknown"]),
        (["stray"], ["stray"]),
        (["--config.model.n_heads=3"], ["d_model=32", "n_heads=3"]),
        (["--config.model.n_experts=0"], ["n_experts=0", "at least 1"]),
        (["--config.model.vocab_size=200"], ["vocab_size=200", "257"]),
        (
            ["--config.model.n_experts=4", "--config.model.capacity_factor=0.001"],
            ["capacity_factor=0.001", "4 experts"],
        ),
        (["--config.batch_tokens=((0, 100),)"], ["100", "seq_len=32"]),
        (["--config.batch_tokens=((0, 320),)", "--config.model.n_experts=2"], ["320", "group_tokens=256"]),
        (["--config.n_tokens=(16384, 8192)"], ["n_tokens", "ascending"]),
        (["--config.n_tokens=(8192, 8193)"], ["8193", "wider"]),
        (["--config.optimizer.warmup_tokens=100000"], ["warmup_tokens=100000", "8192"]),
        (["--config.data.fingerprint=0123456789abcdef"], ["0123456789abcdef", "changed"]),
    ],
)
def test_a_mistake_is_told_in_one_sentence(config, tmp_path, flags, words):
    said = helpers.fails("jmoe.train", f"--config={config}", f"--workdir={tmp_path / 'run'}", *flags)
    for word in words:
        assert word in said
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--config.mesh.expert=3"], ["mesh.expert=3", "8 devices"]),
        (["--config.model.n_experts=4", "--config.mesh.expert=8"], ["n_experts=4", "mesh.expert=8"]),
        (["--config.model.n_experts=4"], ["group_tokens=256", "8 devices"]),
        (["--config.batch_tokens=((0, 128),)"], ["4 rows", "8 devices"]),
    ],
)
def test_what_does_not_divide_over_the_mesh_is_refused(config, tmp_path, flags, words):
    said = helpers.fails("jmoe.train", f"--config={config}", f"--workdir={tmp_path}", *flags, n_devices=8)
    for word in words:
        assert word in said


def test_missing_config_file(tmp_path):
    assert "nope.py" in helpers.fails("jmoe.train", "--config=nope.py", f"--workdir={tmp_path}")
    assert "config" in helpers.fails("jmoe.train", f"--workdir={tmp_path}")


def test_a_diverging_run_stops_with_the_step(config, tmp_path):
    said = helpers.fails(
        "jmoe.train", f"--config={config}", f"--workdir={tmp_path}", "--config.optimizer.lr_law.constant=90.0"
    )
    assert "non-finite loss at step" in said and "last good checkpoint" in said
    assert not list(tmp_path.rglob("result.json"))


def mount(folder, options):
    """A small file system of our own; skips loudly where the tests may not mount."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"NOT TESTED: mounting needs root: {done.stderr.strip()}")


def test_a_read_only_workdir(config, tmp_path):
    folder = tmp_path / "disk"
    mount(folder, "ro,size=1m")
    try:
        said = helpers.fails("jmoe.train", f"--config={config}", f"--workdir={folder / 'run'}")
        assert str(folder) in said and "Read-only" in said
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("size", ["8k", "200k", "1m"])
def test_a_full_workdir(config, tmp_path, size, undisturbed):
    """No space in the beginning or in the middle of a save: one sentence, nothing that looks whole; room made, it goes on."""
    folder = tmp_path / "disk"
    mount(folder, f"size={size}")
    try:
        said = helpers.fails("jmoe.train", f"--config={config}", f"--workdir={folder}", "--config.model.n_experts=4")
        assert "no space left" in said.lower()
        assert not (folder / "branch-16384" / "result.json").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
        done = train(config, folder)
        assert done.returncode == 0, done.stderr
        assert outcome(folder) == outcome(undisturbed)
    finally:
        subprocess.run(["umount", folder], check=True)
