"""Training as a user sees it: killed and resumed, wrong inputs, full and read-only disks. Real processes throughout."""

import gc
import itertools
import json
import pathlib
import random
import re
import runpy
import shutil
import signal
import subprocess

import helpers
import jax
import numpy as np
import pytest
import soak
from etils import epath

from jmoe import evaluate as jmoe_evaluate
from jmoe import train as jmoe_train
from jmoe.errors import UserError
from jmoe.run import checkpoint

MIXTURE = dict(  # 2 of 16 narrow experts and a shared one, balanced by a bias, after a dense block; grouped queries
    n_blocks=2,
    n_dense_blocks=1,
    n_experts=16,
    top_k=2,
    d_expert=48,
    n_shared_experts=1,
    balance="bias",
    scores="sigmoid",
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    qk_norm="projection",
    tied_embeddings=True,
)


@pytest.fixture(scope="module")
def growing(tmp_path_factory, text_glob):
    """The config of `undisturbed`: the mixture, of which batches grow on the way."""
    path = helpers.write_config(tmp_path_factory.mktemp("growing"), text_glob, helpers.GROWING, checkpoint_every=5)
    changed = f"    config.model.update({MIXTURE!r})\n    config.model.group_tokens = 64\n    config.eval_every = 6\n"
    path.write_text(path.read_text().replace("    return config\n", f"{changed}    return config\n"))
    return path


@pytest.fixture(scope="module")
def config(tmp_path_factory, text_glob):
    return helpers.write_config(tmp_path_factory.mktemp("config"), text_glob, checkpoint_every=10)


SHORT = "--config.n_tokens=(8192,)"  # the first of the config's two budgets


def config_in(path):
    return runpy.run_path(str(path))["get_config"]()


def train(config, workdir, *flags, **options):
    done = helpers.succeeds("jmoe.train", f"--config={config}", f"--workdir={workdir}", *flags, **options)
    return done


@pytest.fixture(scope="module")
def undisturbed(growing, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed")
    train(growing, workdir)
    return workdir


@pytest.fixture(scope="module")
def short(config, tmp_path_factory):
    """A run of four experts, one to a token, to the first of its budgets."""
    workdir = tmp_path_factory.mktemp("short")
    train(config, workdir, *soak.FLAGS, SHORT)
    return workdir


@pytest.fixture(scope="module")
def pair(config, tmp_path_factory):
    """The run of `short` by two processes of two devices, joined by jax.distributed, an expert on each device."""
    workdir = tmp_path_factory.mktemp("pair") / "run"
    soak.kill_until_done(config, workdir, 0, 2, random.Random(0), SHORT)
    return workdir


def test_a_run_learns_and_says_what_it_was(undisturbed):
    said = soak.outcome(undisturbed)
    small, large = said["branch-8192", "result"], said["branch-16384", "result"]
    assert (small["n_tokens"], large["n_tokens"]) == (8192, 16384)
    assert small["batch_tokens"] == large["batch_tokens"] == 512  # at the end; each run began with 256
    assert large["loss"] < small["loss"] < np.log(257)
    columns = MIXTURE.keys() - {"n_heads"}  # what was there before has no column of its own
    assert {name: large[name] for name in columns} == {name: MIXTURE[name] for name in columns}
    expert, attention = 3 * 32 * 48, 2 * 32 * (4 + 2) * 16
    assert large["n_active"] == 257 * 32 + 2 * attention + 3 * 32 * 96 + (2 + 1) * expert
    assert large["n_total"] - large["n_active"] == 14 * expert
    assert len(large["corpus_fingerprint"]) == 16
    first, last = said["trunk", "metrics"][0], said["branch-16384", "metrics"][-1]
    assert first["learning_rate"] == 0 and 0 < last["learning_rate"] < large["peak_learning_rate"] / 2
    assert abs(first["cross_entropy"] - np.log(257)) < 0.3
    trunk = said["trunk", "metrics"]
    assert [line["step"] for line in trunk] == list(range(len(trunk)))
    assert np.isclose(max(line["learning_rate"] for line in trunk), large["peak_learning_rate"])


def test_killed_at_random_it_ends_bit_identical(undisturbed, growing, tmp_path):
    """SIGKILL at random moments, saves included, until a start is left alone; make soak does more of it."""
    hits = soak.kill_until_done(growing, tmp_path / "killed", 2, 1, random.Random(0), "--config.model.n_experts=16")
    assert hits
    soak.assert_same_run(undisturbed, tmp_path / "killed")


def test_two_processes_that_save_by_the_clock_end_bit_identical(pair, config, tmp_path):
    """One is killed in a save, and the other one ends as well. Saves are wherever the first process's clock puts them.
    Each sixteenth step's save is kept. make soak kills both too, and among saves by steps."""
    workdir = tmp_path / "run"
    flags = [SHORT, "--config.checkpoint_minutes=0.005", "--config.keep_every=16", "--config.keep_newest=1"]
    chance = random.Random(0)  # kills the second process in a save
    assert soak.kill_until_done(config, workdir, 1, 2, chance, *flags)
    outcomes = [soak.outcome(epath.Path(folder)) for folder in (workdir, pair)]
    for outcome in outcomes:
        outcome["branch-8192", "result"].pop("record")  # it holds the fields that differ
    assert outcomes[0] == outcomes[1]
    assert checkpoint.steps_in(epath.Path(workdir / "trunk" / "checkpoints")) == [16, 26]
    assert checkpoint.steps_in(epath.Path(workdir / "branch-8192" / "checkpoints")) == [32]
    speeds = [json.loads(line) for path in workdir.glob("*/speed.jsonl") for line in path.read_text().splitlines()]
    assert any(line.get("save_seconds", 0) > 0 for line in speeds)


def test_ctrl_c_saves_and_says_so(short, config, tmp_path):
    flags = [f"--config={config}", f"--workdir={tmp_path}", *soak.FLAGS, SHORT]
    (process,) = helpers.start("jmoe.train", *flags)
    helpers.wait_until(lambda: soak.progress(tmp_path) >= 3, [process])
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGINT, said
    assert "saved step" in said and "Traceback" not in said
    train(config, tmp_path, *soak.FLAGS, SHORT)
    soak.assert_same_run(tmp_path, short, "branch-8192")


def test_it_goes_on_with_as_many_cpu_threads_as_it_began_with(config, tmp_path, monkeypatch):
    """As XLA's own pool shows them, and not with one for each core; PJRT_NPROC sets others, which is said."""
    monkeypatch.setenv("PJRT_NPROC", "3")
    stopped_after_steps(config, tmp_path)
    monkeypatch.delenv("PJRT_NPROC")
    threads, said = stopped_after_steps(config, tmp_path)
    assert threads == 3 and "keeps 3 CPU threads" in said and "WARNING" not in said
    monkeypatch.setenv("PJRT_NPROC", "5")
    threads, said = stopped_after_steps(config, tmp_path)
    assert threads == 5 and "cpu_threads 3, now 5: the last bits may differ" in said


def stopped_after_steps(config, workdir) -> tuple[int, str]:
    """(threads that XLA computed with, stderr) of a start that is asked to stop after two steps."""
    target = soak.progress(workdir) + 2
    (process,) = helpers.start("jmoe.train", f"--config={config}", f"--workdir={workdir}", *soak.FLAGS, SHORT)
    helpers.wait_until(lambda: soak.progress(workdir) >= target, [process])
    names = [path.read_text() for path in pathlib.Path(f"/proc/{process.pid}/task").glob("*/comm")]
    process.send_signal(signal.SIGTERM)
    return sum("XLAEigen" in name for name in names), process.communicate()[1]


def result(workdir, branch="branch-8192"):
    return json.loads((workdir / branch / "result.json").read_text())


def test_it_goes_on_with_the_same_tokens_on_other_devices_and_hosts(undisturbed, growing, tmp_path):
    """One device, then two processes of two with four experts each, and four of which two share heads: the same run to
    float accuracy, and each stop by SIGTERM to one process alone saves and ends all of them with 143."""
    flags = [f"--config={growing}", f"--workdir={tmp_path}"]
    for n_processes, n_devices, spread in ((1, 1, 1), (2, 2, 4)):
        target = soak.progress(tmp_path) + 3
        processes = helpers.start(
            "jmoe.train", *flags, f"--config.mesh.expert={spread}", n_processes=n_processes, n_devices=n_devices
        )
        helpers.wait_until(lambda target=target: soak.progress(tmp_path) >= target, processes)
        processes[-1].send_signal(signal.SIGTERM)
        said = [process.communicate(timeout=200)[1] for process in processes]
        assert [process.returncode for process in processes] == [128 + signal.SIGTERM] * n_processes, said
        assert all("saved step" in text for text in said), said
        assert len({re.search(r"saved step \d+", text).group() for text in said}) == 1
    last = train(growing, tmp_path, "--config.mesh.expert=2", "--config.mesh.model=2", n_devices=4)
    for text in (said[0], last.stderr):  # begun again, it would come to the same losses
        assert "resuming from" in text and "damaged" not in text
    for name in ("branch-8192", "branch-16384"):
        one, other = (result(folder, name) for folder in (undisturbed, tmp_path))
        assert abs(one["loss"] - other["loss"]) < 1e-3
        assert (one["n_devices"], other["n_devices"]) == (1, 4)
    for segment in ("trunk", "branch-16384"):  # every step once, on the same tokens
        one, other = (soak.outcome(folder)[segment, "metrics"] for folder in (undisturbed, tmp_path))
        assert [(line["step"], line["n_tokens"]) for line in one] == [
            (line["step"], line["n_tokens"]) for line in other
        ]
        assert np.allclose([line["loss"] for line in one], [line["loss"] for line in other], atol=2e-3)


def test_two_processes_of_two_devices_equal_one_device(short, pair):
    """The same losses and drops."""
    one, other = result(short), result(pair)
    assert (one["n_devices"], other["n_devices"]) == (1, 4)
    for column in ("loss", "train_loss", "drop_rate"):
        assert abs(one[column] - other[column]) < 1e-4, column
    # the first steps agree to float accuracy, before rounding has had time to grow
    for one, other in list(zip(*(soak.outcome(folder)["trunk", "metrics"] for folder in (short, pair)), strict=True))[
        :5
    ]:
        assert abs(one["loss"] - other["loss"]) < 1e-5
        assert one["drop_rate"] == pytest.approx(other["drop_rate"], abs=1e-6)


def test_a_mistake_ends_every_process_with_its_sentence(config, tmp_path):
    flags = [f"--config={config}", f"--workdir={tmp_path}", "--config.data.path=/nowhere/*.txt"]
    for process in helpers.start("jmoe.train", *flags, n_processes=2):
        said = process.communicate(timeout=200)[1]
        assert process.returncode == 2 and "error: config.data.path='/nowhere/*.txt' matches no file" in said, said


def test_another_config_is_refused_by_results_and_by_unfinished_parts(undisturbed, growing, tmp_path, monkeypatch):
    """Before there is a result it is the checkpoint that knows what it was."""
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
    other = config_in(growing)
    other.model.n_experts = 8
    with pytest.raises(UserError, match="config.model.n_experts was 16, is 8"):
        jmoe_train.train(other, epath.Path(undisturbed))
    part = "branch-16384"
    shutil.copytree(undisturbed / part, tmp_path / part, ignore=shutil.ignore_patterns("result.json"))
    other = config_in(growing)
    other.n_tokens = (16_384,)  # with its own trunk done, the branch is looked at first
    other.seed = 1
    with pytest.raises(UserError, match=f"{tmp_path}/{part}/checkpoints/.*config.seed was 0, is 1"):
        jmoe_train.train(other, epath.Path(tmp_path))


def damage(checkpoint, how: str) -> None:
    """Spoils the largest file of a checkpoint's parameters, in which their arrays lie."""
    array = max((checkpoint / "params").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(array.read_bytes())
    assert len(content) > 10_000
    content[len(content) // 3] ^= 4
    left = {"cut": content[: len(content) // 2], "emptied": b"", "flipped": content}
    array.unlink() if how == "missing" else array.write_bytes(left[how])


def test_damaged_results_and_checkpoints_are_made_again(undisturbed, growing, tmp_path):
    """With the same bits: a result cut short from the sound checkpoint of its branch; one with another loss from the
    start, as all checkpoints of its branch and of the trunk are spoilt. test_checkpoint.py damages the newest alone."""
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    cut, altered = (workdir / name / "result.json" for name in ("branch-8192", "branch-16384"))
    cut.write_bytes(cut.read_bytes()[:500])
    loss = json.loads(altered.read_text())["loss"]
    altered.write_text(altered.read_text().replace(f'"loss": {loss}', f'"loss": {loss - 1}'))
    for segment in ("branch-16384", "trunk"):
        found = (workdir / segment / "checkpoints").glob("**/params")
        for params, how in zip(found, itertools.cycle(["cut", "emptied", "missing"])):
            damage(params.parent, how)
    done = train(growing, workdir)
    for path in (cut, altered):
        assert done.stderr.count(f"WARNING: {path} is damaged: ") == 1, done.stderr
    assert done.stderr.count("is damaged and skipped") == 5, done.stderr
    assert done.stderr.count("starting this part over") == 2, done.stderr
    assert "Traceback" not in done.stderr
    soak.assert_same_run(workdir, undisturbed)


@pytest.mark.parametrize("flag, word", [("--config.model.d_model=big", "config.model.d_model"), ("stray", "stray")])
def test_a_mistake_is_one_sentence(config, tmp_path, flag, word):
    assert word in helpers.fails("jmoe.train", f"--config={config}", f"--workdir={tmp_path / 'run'}", flag)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "fields, n_devices, words",
    [
        ({"model.vocab_size": 200}, 1, ["vocab_size=200", "257"]),
        ({"batch_tokens": ((0, 320),), "model.n_experts": 2}, 1, ["320", "group_tokens=256"]),
        # what does not divide over the mesh
        ({"model.n_experts": 4, "mesh.expert": 8}, 8, ["n_experts=4", "mesh.expert=8"]),
        ({"model.n_experts": 4}, 8, ["group_tokens=256", "8 devices"]),
        ({"batch_tokens": ((0, 128),)}, 8, ["4 rows", "8 devices"]),
    ],
)
def test_a_config_that_cannot_be_trained_is_refused(config, tmp_path, monkeypatch, fields, n_devices, words):
    config = config_in(config)
    config.update_from_flattened_dict(fields)
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:n_devices])
    with pytest.raises(UserError) as error:
        jmoe_train.train(config, epath.Path(tmp_path / "run"))
    for word in words:
        assert word in str(error.value)
    assert not list(tmp_path.rglob("result.json"))


def test_a_diverging_run_stops_with_the_step_and_keeps_a_good_checkpoint(config, tmp_path):
    """Saved after every step, the last that is kept is finite although the next parameters were not."""
    flags = [f"--config={config}", f"--workdir={tmp_path}", "--config.checkpoint_every=1"]
    said = helpers.fails("jmoe.train", *flags, "--config.optimizer.lr_law.constant=90.0")
    assert "not finite" in said or "non-finite loss at step" in said
    good = max(int(path.name) for path in (tmp_path / "trunk" / "checkpoints").iterdir() if path.name.isdigit())
    assert f"the last good checkpoint is {tmp_path}/trunk/checkpoints/{good}; try a lower" in said
    assert all(np.isfinite(x).all() for x in soak.final_params(tmp_path, "trunk").values())
    assert not list(tmp_path.rglob("result.json"))


def evaluate(workdir, *flags, **options) -> dict:
    helpers.succeeds("jmoe.evaluate", f"--workdir={workdir}", f"--json={workdir}/loss.json", *flags, **options)
    return json.loads((workdir / "loss.json").read_text())


def test_evaluate_tells_the_loss_of_any_checkpoint(undisturbed, tmp_path):
    """Without a config file: the run's own results bit for bit, the trunk, other devices, other text."""
    shutil.copytree(undisturbed, tmp_path / "run")
    last = evaluate(tmp_path / "run")
    assert (last["segment"], last["n_tokens"]) == ("branch-16384", 16384)
    assert last["loss"] == json.loads((undisturbed / "branch-16384" / "result.json").read_text())["loss"]
    first = evaluate(tmp_path / "run", "--segment=branch-8192")
    assert first["loss"] == json.loads((undisturbed / "branch-8192" / "result.json").read_text())["loss"]
    spread = evaluate(tmp_path / "run", "--step=34", "--config.mesh.expert=4", n_devices=8)
    assert spread["segment"] == "trunk" and last["loss"] < spread["loss"] < first["loss"]
    documents = [json.dumps({"text": f"{i} zebra quietly juggled vexing waltz nymphs " * 4}) for i in range(600)]
    (tmp_path / "zebra.jsonl").write_text("\n".join(documents))
    other = evaluate(tmp_path / "run", f"--config.data.path={tmp_path}/zebra.jsonl")
    assert other["loss"] > last["loss"] and other["corpus_fingerprint"] != last["corpus_fingerprint"]
    # bytes are tokens: a bit per byte is ln 2 nats, but for the few ends of text
    assert 1 < other["bits_per_byte"] * np.log(2) / other["loss"] < 1.01


@pytest.mark.parametrize(
    "options, words",
    [
        ({"step": 7}, "--step=7.*branch-16384: 35, 40.*trunk: 21, 30, 34"),
        ({"segment": "branch-1"}, "--segment=branch-1.*branch-8192: 24"),
        ({"overrides": {"model.d_model": 64}}, "--config.model.d_model is the checkpoint's own"),
    ],
)
def test_evaluate_names_what_is_there(undisturbed, options, words):
    with pytest.raises(UserError, match=words):
        jmoe_evaluate.evaluate(undisturbed, **options)


# as in test_checkpoint.py: what failed reads leave behind
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("module, how", [("evaluate", "cut"), (None, "flipped")])
def test_other_commands_name_a_damaged_checkpoint_and_the_one_before(undisturbed, tmp_path, module, how):
    """They take no other by themselves: a loss, a text or an export is of the checkpoint that was asked for."""
    shutil.copytree(undisturbed / "trunk", tmp_path / "trunk")
    damage(tmp_path / "trunk" / "checkpoints" / "34", how)
    words = (
        f"the checkpoint {tmp_path}/trunk/checkpoints/34 is damaged: .*; --segment=trunk --step=30 is the previous one"
    )
    if module:
        said = helpers.fails(f"jmoe.{module}", f"--workdir={tmp_path}")
        assert re.search(words, said), said
    else:  # as jmoe.export reads it too
        with pytest.raises(UserError, match=words):
            checkpoint.on_host(epath.Path(tmp_path), None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["trunk"]
    assert checkpoint.on_host(epath.Path(tmp_path), "trunk", 30)[0].name == "30"
    gc.collect()


def mount(folder, options):
    """A small file system of our own; skips loudly where the tests may not mount."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"without root: nothing can be mounted: {done.stderr.strip()}")


def test_a_read_only_workdir(config, tmp_path):
    folder = tmp_path / "disk"
    mount(folder, "ro,size=1m")
    try:
        said = helpers.fails("jmoe.train", f"--config={config}", f"--workdir={folder / 'run'}")
        assert str(folder) in said and "Read-only" in said
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_workdir(config, tmp_path, short):
    """No space in the beginning or in a save: one sentence, nothing that looks whole; room made, it goes on."""
    folder = tmp_path / "disk"
    mount(folder, "size=8k")
    try:
        for larger in ("200k", "64m"):
            said = helpers.fails("jmoe.train", f"--config={config}", f"--workdir={folder}", *soak.FLAGS, SHORT)
            assert "no space left" in said.lower()
            assert not (folder / "branch-8192" / "result.json").exists()
            subprocess.run(["mount", "-o", f"remount,size={larger}", folder], check=True)
        train(config, folder, *soak.FLAGS, SHORT)
        soak.assert_same_run(folder, short, "branch-8192")
    finally:
        subprocess.run(["umount", folder], check=True)
