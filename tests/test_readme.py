"""README's shell blocks, typed as printed in a copy of the checkout whose configs are small, so that none can rot.

A block that starts with ```sh is a list of commands. What is small: the models, budgets and rows of every config, and
the text, at the paths that README names as the reader's own and in place of the built-in one. A shell runs the commands
themselves, letter by letter.
"""

import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import fit_runs
import helpers
import pytest

ROOT = pathlib.Path(__file__).parent.parent
ELSEWHERE = ("make demo", "make test")  # CI runs them, in this order
REHEARSAL = ("runs/rehearsal", "runs/undisturbed")  # what jmoe/test_rehearsal.py types with these in it

# Appended to the copy of each config: its mathematics at a size of seconds.
SMALL = """

_get_config = get_config


def get_config():
    config = _get_config()
    config.n_tokens = (4_096,)
    config.model.d_model = 32
    config.model.n_blocks = 2
    config.model.n_heads = 2
    config.model.vocab_size = 257
    config.model.group_tokens = 32  # eight groups a batch: one for each of eight devices
    config.data.path = "data/*.txt"
    config.data.fingerprint = ""
    config.data.tokenizer = "bytes"
    config.data.seq_len = 32
    config.data.validation_tokens = 1_024
    config.batch_tokens = ((0, 256),)
    config.microbatch_tokens = 0
    config.optimizer.warmup_tokens = 512
    config.remat = "full"
    return config
"""
# The model to compile for a pod: small too; jmoe/test_compile.py has it at its full size.
SMALL_FOR_A_POD = """

_get_config = get_config


def get_config():
    config = _get_config()
    config.model.d_model = 128
    config.model.n_blocks = 1
    config.model.n_heads = 4
    config.model.n_kv_heads = 2
    config.model.d_ff = 128
    config.model.vocab_size = 257
    config.model.group_tokens = 128
    config.data.seq_len = 128
    config.batch_tokens = ((0, 65_536),)
    return config
"""
SMALL_SWEEP = """

def get_sweep():
    jobs = [{"model.n_experts": e, "n_tokens": (2_048, 4_096)} for e in (1, 8)]  # shapes that other commands train
    return "configs/quickstart.py", jobs
"""


COMMANDS = helpers.typed_commands()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder as a fresh clone after `make demo`, where everything is small."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("jmoe", "fit", "launch", "benchmarks", "results", "examples"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "configs", folder / "configs", ignore=shutil.ignore_patterns("__pycache__"))
    for name, smaller in (("joint_moe", SMALL), ("quickstart", SMALL), ("mixtral", SMALL_FOR_A_POD)):
        path = folder / "configs" / f"{name}.py"
        path.write_text(path.read_text() + smaller)
    path = folder / "configs" / "sweeps" / "quickstart.py"
    path.write_text(path.read_text() + SMALL_SWEEP)
    for name in ("README.md", "docs"):  # the reader's own text
        (folder / name).symlink_to(ROOT / name)
    (folder / "data").mkdir()
    helpers.write_text(folder / "data")
    (folder / "runs" / "demo").mkdir(parents=True)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


@pytest.fixture(scope="module")
def shell(checkout):
    """run(command): as a reader types it in the activated environment."""
    environment = helpers.environment() | {
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(checkout),
    }

    def run(command):
        return subprocess.run(
            ["bash", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True, timeout=600
        )

    return run


@pytest.fixture(scope="module")
def demo(checkout, shell):
    """runs/demo as the demo leaves it: a table of runs of its models with a law's losses, and the law fitted to it; and
    runs/rates as a sweep of learning rates leaves it."""
    folder = checkout / "runs" / "demo"
    fit_runs.write_demo_csv(folder / "runs.csv")
    done = shell("python -m fit law --runs=runs/demo/runs.csv --out=runs/demo/law.json --bootstrap=20")
    assert done.returncode == 0, done.stderr
    (checkout / "runs" / "rates").mkdir()
    head, *lines = fit_runs.learning_rate_runs().splitlines()
    table = [f"{head},batch_tokens"]
    for n_tokens, batch in itertools.product((1e9, 2e9), (32_768, 65_536)):
        table += [f"{line.replace('2e9', str(n_tokens))},{batch}" for line in lines]
    (checkout / "runs" / "rates" / "runs.csv").write_text("\n".join(table) + "\n")
    return folder


def test_commands_elsewhere_are_what_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text()
    assert set(ELSEWHERE) <= set(COMMANDS)
    assert all(command in ci.splitlines() for command in ELSEWHERE)


def test_readmes_tables_come_with_the_checkout():
    """The commands before `make demo` has run read tables of runs that a fresh clone has."""
    typed = [command for block in helpers.blocks(ROOT / "README.md") for command in block]
    tables = [table for command in typed for table in re.findall(r"--runs=(\S+)", command)]
    assert len(tables) > 1
    for table in tables:
        assert table.startswith("examples/") and (ROOT / table).is_file(), table


def test_readmes_commands_succeed(checkout, shell, demo):
    """In their order, as some read what others wrote."""
    typed = [
        command
        for command in COMMANDS
        if not command.startswith(ELSEWHERE) and not any(folder in command for folder in REHEARSAL)
    ]
    assert len(typed) > 15
    failed = []
    for command in typed:
        for config in checkout.glob("*.py"):  # a plan's, which is to be trained
            if f"jmoe.train --config={config.name} " in command and SMALL not in config.read_text():
                config.write_text(config.read_text() + SMALL)
        done = shell(command)
        if done.returncode != 0 or "Traceback" in done.stderr:
            failed.append(f"$ {command}\n[exit {done.returncode}]\n{done.stdout[-500:]}{done.stderr[-1500:]}")
        if "launch.sweep" in command and "--workdir=runs/text " in command:  # as a sweep of the real size leaves it
            manifest = json.loads((checkout / "data" / "prepared" / "manifest.json").read_text())
            text = [manifest["fingerprint"]] * 36
            fit_runs.write_demo_csv(checkout / "runs" / "text" / "runs.csv", corpus_fingerprint=text)
    assert not failed, "\n\n".join(failed)


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/chips.md"])
def test_from_chips_and_days_to_an_accepted_dry_run(tmp_path, page):
    """The commands about 64 H100 as printed, at their real size, in an empty folder: the plan's config is started."""
    environment = helpers.environment() | {
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
    }
    typed = [command for block in helpers.blocks(ROOT / page) for command in block if "ten_days" in command]
    assert "fit plan" in typed[0] and "--chips=H100:64" in typed[0] and "--dry_run" in typed[-1]
    for command in typed:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    assert "refused" not in done.stderr and "1 job" in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".py"] == ["ten_days.py"]
