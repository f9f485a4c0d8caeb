"""A disk that fails (EIO): one sentence names the file, exit code 1 says that another try may do, and it does."""

import json
import os
import pathlib
import shutil
import subprocess

import disk
import helpers
import pytest
import sweeps
from etils import epath

CHECKPOINT = "trunk/checkpoints/8.orbax-checkpoint-tmp"


def failing(call: str, path: str | os.PathLike, module: str, *flags, when: str = "1+") -> subprocess.CompletedProcess:
    """Runs a command, of which the calls `call` on the file `path` fail, those that `when` counts."""
    faults = ["-P", os.fspath(path), "-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when={when}"]
    command = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", *faults, *helpers.command(module, *flags)]
    return subprocess.run(command, env=helpers.environment(), capture_output=True, text=True, timeout=300)


def assert_names(done: subprocess.CompletedProcess, path: str | os.PathLike, code: int = 1) -> None:
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    sentence = done.stderr.splitlines()[-1]
    assert os.fspath(path) in sentence and "input/output error" in sentence.lower(), sentence


@pytest.fixture(scope="module", autouse=True)
def strace():
    if why := disk.missing():
        pytest.skip(why)


@pytest.fixture(scope="module")
def config(tmp_path_factory, text_glob):
    path = helpers.write_config(tmp_path_factory.mktemp("config"), text_glob, checkpoint_every=4)
    path.write_text(path.read_text().replace("n_tokens = (8_192, 16_384)", "n_tokens = (2_048, 4_096)"))  # 16 steps
    return path


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    helpers.succeeds("jmoe.train", f"--config={config}", f"--workdir={workdir}")
    return workdir


def metrics(workdir: pathlib.Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in workdir.glob("*/metrics.jsonl")}


WRITES = [
    ("write", "trunk/metrics.jsonl", "10", "trunk/metrics.jsonl"),
    ("writev", f"{CHECKPOINT}/params.orbax-checkpoint-tmp/manifest.ocdbt.__lock", "1", "manifest.ocdbt"),
]
if os.environ.get("JMOE_SOAK"):
    WRITES += [
        ("write", f"{CHECKPOINT}/record.orbax-checkpoint-tmp/metadata", "1", "trunk/checkpoints"),
        ("fsync", f"{CHECKPOINT}/record/metadata", "1", f"{CHECKPOINT}/record/metadata"),
    ]


@pytest.mark.parametrize(("call", "file", "when", "named"), WRITES)
def test_a_write_that_fails_in_training(call, file, when, named, config, undisturbed, tmp_path):
    flags = f"--config={config}", f"--workdir={tmp_path / 'run'}"
    assert_names(failing(call, tmp_path / "run" / file, "jmoe.train", *flags, when=when), named)
    helpers.succeeds("jmoe.train", *flags)
    assert metrics(tmp_path / "run") == metrics(undisturbed)


def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_damaged(config, undisturbed, tmp_path):
    file = "params/manifest.ocdbt"
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    (workdir / "branch-4096" / "result.json").unlink()
    checkpoint = workdir / "branch-4096" / "checkpoints" / "16"
    flags = f"--config={config}", f"--workdir={workdir}"
    assert_names(failing("read,pread64", checkpoint / file, "jmoe.train", *flags), checkpoint)
    assert checkpoint.exists() and not list(workdir.rglob("damaged-*"))
    helpers.succeeds("jmoe.train", *flags)
    assert metrics(workdir) == metrics(undisturbed)


def test_a_write_that_fails_in_preparing(config, tmp_path):
    file = "validation-00000.bin"
    flags = f"--config={config}", f"--out_dir={tmp_path / 'text'}", "--workers=1"
    assert_names(failing("fsync", tmp_path / "text" / file, "jmoe.prepare", *flags), tmp_path / "text" / file)
    helpers.succeeds("jmoe.prepare", *flags)
    helpers.succeeds("jmoe.prepare", *flags, "--verify")


@pytest.mark.parametrize(
    ("module", "file"),
    [("launch.status", "sweep.json"), ("launch.collect", "{job}/trunk")],
)
def test_a_sweep_that_cannot_be_read(module, file, config, tmp_path):
    sweep = sweeps.begin(sweeps.write_sweep(tmp_path, config, {"seed": (0,)}), tmp_path / "run")
    sweeps.train(sweep.jobs[0])
    path = tmp_path / "run" / file.format(job=f"jobs/{sweep.jobs[0].name}")
    call = "getdents64" if path.is_dir() else "read"
    assert_names(failing(call, path, module, f"--workdir={tmp_path / 'run'}"), path)


def test_a_table_that_cannot_be_read(tmp_path):
    """`fit` has one exit code for each mistake and failure: 2."""
    runs = helpers.ROOT / "examples" / "runs.csv"
    assert_names(failing("read", runs, "fit", "law", f"--runs={runs}", f"--out={tmp_path / 'law.json'}"), runs, code=2)
    assert not list(tmp_path.iterdir())


def test_a_workdir_of_many_levels(config, tmp_path):
    """Sixty are fine; a path that is too long for the system is refused before anything is trained."""
    deep = tmp_path.joinpath(*["level"] * 60)
    sweep = sweeps.begin(sweeps.write_sweep(tmp_path, config, {"seed": (0,)}), epath.Path(deep))
    assert json.loads((sweep.workdir / "sweep.json").read_text())
    long = tmp_path.joinpath(*["a level of sixty letters, of which not all of them are letters"] * 60)
    said = helpers.fails("jmoe.train", f"--config={config}", f"--workdir={long}")
    assert "--workdir is too long" in said
