"""A command's first second: Ctrl-C, missing packages and devices, flags left out, --help."""

import gc
import json
import os
import pathlib
import signal
import subprocess
import sys

import helpers
import pytest

from configs import joint_moe
from jmoe import cli, startup
from jmoe.config import schema
from jmoe.config.check import check_config
from jmoe.errors import UserError, missing_package
from jmoe.run import distributed

ROOT = pathlib.Path(__file__).parents[2]
RECIPE = "from configs import quickstart\ndef get_config():\n    c = quickstart.get_config()\n"
COMMANDS = ["jmoe.train", "launch.sweep"]


def start(module, folder, *flags, **environment):
    """The command, with packages of our own in `folder` in place of the real ones."""
    env = helpers.environment() | {"PYTHONPATH": str(folder)} | environment
    return subprocess.Popen(helpers.command(module, *flags), env=env, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("module", COMMANDS)
def test_ctrl_c_while_packages_are_imported_is_one_line(module, tmp_path):
    (tmp_path / "absl").mkdir()
    blocked = f"import pathlib, time\npathlib.Path({str(tmp_path / 'there')!r}).touch()\ntime.sleep(600)\n"
    for package in ("absl", "jax"):
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / "__init__.py").write_text(blocked)
    process = start(module, tmp_path)
    helpers.wait_until((tmp_path / "there").exists, [process])
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=300)[1] == "interrupted\n"
    assert process.returncode == 130


@pytest.mark.parametrize("module", COMMANDS)
def test_a_missing_package_is_one_sentence_that_says_what_to_install(module, tmp_path):
    (tmp_path / "absl.py").write_text("raise ModuleNotFoundError(\"No module named 'absl'\", name='absl')\n")
    (tmp_path / "jax.py").write_text("import absl\n")
    process = start(module, tmp_path)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 2 and said.count("\n") == 1
    assert said.startswith("error: the Python package absl is missing: install it by `pip install absl-py`")
    assert "`pip install .[train]`" in said


def test_importing_a_command_as_a_library_leaves_python_as_it_was():
    program = (
        "import gc, os, signal, sys\n"
        "def state(): return sys.excepthook, gc.isenabled(), signal.getsignal(signal.SIGINT), dict(os.environ)\n"
        "before = state()\n"
        "import jmoe, launch\n"
        "assert state() == before\n"
        "import jmoe.compile, jmoe.prepare, launch.status, launch.sweep\n"
        "assert state()[:3] == before[:3] and 'JAX_PLATFORMS' not in os.environ\n"
    )
    environment = helpers.environment() | {"PYTHONPATH": str(ROOT)}
    environment.pop("JAX_PLATFORMS", None)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_our_own_modules_and_other_errors_are_no_missing_packages():
    assert missing_package(ModuleNotFoundError("no", name="jmoe.gone")) is None
    assert missing_package(ImportError("no", name="numpy")) is None


def test_devices_that_are_not_here_are_one_sentence(tmp_path):
    flags = "--config=configs/quickstart.py", f"--workdir={tmp_path}"
    process = start("jmoe.train", "", *flags, JAX_PLATFORMS="cuda")
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 2 and said.count("\n") == 1
    assert said.startswith("error: JAX_PLATFORMS=cuda: jax has no such device here") and "[cuda]" in said


def test_a_plain_run_on_a_cpu_says_nothing_of_tpus(tmp_path):
    pytest.importorskip("libtpu", reason="without libtpu: nothing to be heard (the [tpu] extra)")
    if os.path.exists("/dev/nvidia0") or os.path.exists("/dev/accel0"):
        pytest.skip("on an accelerator: libtpu finds one")
    flags = "--config=configs/quickstart.py", f"--workdir={tmp_path}", "--config.mesh.expert=3"
    process = start("jmoe.train", "", *flags, JAX_PLATFORMS="", XLA_FLAGS="")
    said = process.communicate(timeout=300)[1]
    assert said == "error: config.mesh.expert=3 times config.mesh.model=1 does not divide the 1 devices\n"


@pytest.mark.parametrize("named", [{"JAX_PLATFORMS": "tpu"}, {"TPU_NAME": "mine"}, {"JAX_FORCE_TPU_INIT": "1"}])
def test_whoever_names_a_tpu_is_left_alone(named, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for variable, value in named.items():
        monkeypatch.setenv(variable, value)
    startup.leave_absent_tpus_alone()
    assert os.environ.get("JAX_PLATFORMS") == named.get("JAX_PLATFORMS")


@pytest.mark.parametrize("module, flag", [("jmoe.train", "config"), ("launch.sweep", "sweep")])
def test_a_flag_left_out_is_told_in_words(module, flag):
    said = helpers.fails(module)
    assert said.startswith(f"error: --{flag} is missing: ") and "None" not in said


@pytest.mark.parametrize(
    "source, reason",
    [
        (None, "--config: '{path}' is no Python file"),
        ("def get_config(:", "--config: {path} fails: SyntaxError: "),
        (
            "import gone_package",
            "--config: {path} fails: the Python package gone_package is missing: install it by `pip",
        ),
        ("import sys; sys.exit(7)", "--config: {path} fails: SystemExit: 7"),
        ("config = 1", "{path} has no function get_config()"),
        ("def get_config(): raise ValueError('two\\nlines')", "{path}: get_config() fails: ValueError: two lines"),
        ("def get_config(): import gone_package", "{path}: get_config() fails: the Python package gone_package"),
        ("def get_config(): pass", "{path}: get_config() must return a ConfigDict, not None"),
        ("def get_config(): return {'seed': 3}", "{path}: get_config() must return a ConfigDict, not {{'seed': 3}}"),
        (
            RECIPE + "    c.batch_tokens = 1024\n    return c",
            "{path}: get_config() fails: TypeError: Could not",
        ),
    ],
)
def test_a_config_file_that_cannot_be_loaded_is_one_sentence(source, reason, tmp_path):
    path = tmp_path / "mine.py"
    if source:
        path.write_text(source)
    with pytest.raises(UserError) as told:
        cli.config_in(str(path))
    said = str(told.value)
    assert said.startswith(reason.format(path=path)) and "\n" not in said, said
    assert "[train]" not in said


@pytest.mark.parametrize(
    "line, meant",
    [
        (
            "c.modle = {'d_model': 3}",
            "config.modle.d_model is no field of a config: did you mean config.model.d",
        ),
        ("c.chip.teraflops_and_more = 1", "config.chip.teraflops_and_more is no field of a config"),
    ],
)
def test_a_misspelt_field_of_a_config_file_is_refused_with_what_was_meant(line, meant, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"{RECIPE}    {line}\n    return c\n")
    with pytest.raises(UserError) as told:
        check_config(cli.config_in(str(path)))
    assert str(told.value).startswith(meant)


def test_a_config_file_may_take_an_argument(tmp_path):
    (tmp_path / "mine.py").write_text(RECIPE.replace("()", "(seed)", 1) + "    c.seed = int(seed)\n    return c\n")
    assert cli.config_in(f"{tmp_path}/mine.py:7").seed == 7


def test_commands_are_importable_together_and_the_notebook_calls_them(tmp_path):
    cells = json.loads((ROOT / "examples/train.ipynb").read_text())["cells"]
    cells = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    text = repr(helpers.write_text(tmp_path))
    program = ["import jmoe.compile, jmoe.load, jmoe.prepare", *cells]
    program[1] = program[1].replace("(result,)", f"config.data.path = {text}\nconfig.log_every = 1\n(result,)")
    program[2] = "assert abs(" + program[2] + "['loss'] - result['loss']) < 1e-5"
    environment = helpers.environment()
    environment.pop("PYTHONPATH", None)  # as in Jupyter, which runs a notebook in its own folder
    command = [sys.executable, "-c", "\n".join(program)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("def ") and len(done.stdout) > len("def ")
    assert (tmp_path / "runs/notebook-hf/config.json").exists()


def test_a_reader_who_left_is_no_error():
    """As after `| head`, here gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    command, environment = helpers.command("launch.status", "--help"), helpers.environment(1)
    done = subprocess.run(command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_lists_the_config_fields():
    """Of the config that is named, with the recipe's comments, and what each may be."""
    done = helpers.run("jmoe.train", "--config=configs/quickstart.py", "--help")
    assert done.returncode == 0 and "--workdir" in done.stdout
    said = " ".join(done.stdout.split())
    assert "--config.data.seq_len=128 [a whole number, at least 1]" in said
    assert "--config.data.path= empty: Python's standard library; else a glob" in said
    for name in schema.FIELDS:
        assert f"--config.{name}=" in said
    some = schema.describe("configs/joint_moe.py", joint_moe.get_config(), ("data", "mesh"))
    assert "--config.data.seq_len=512" in some and "--config.mesh.model=1" in some and "optimizer" not in some


def test_garbage_is_looked_for_again_once_the_imports_are_done():
    gc.disable()
    try:
        startup.over()
        assert gc.isenabled() and gc.get_freeze_count()
    finally:
        gc.enable()
        gc.unfreeze()


def test_a_batch_script_of_several_tasks_waits_for_nobody(monkeypatch):
    """Slurm tells a batch script how many tasks it may start; srun alone makes this process one of them."""
    for variable, value in {"JOB_ID": "7", "NTASKS": "4", "PROCID": "0", "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{variable}", value)
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
    with distributed.joined():
        pass


def test_cores_where_the_system_does_not_say(monkeypatch):
    assert cli.cores() == sorted(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cli.cores() == list(range(os.cpu_count()))
