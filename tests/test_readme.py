"""README's shell blocks, typed as printed in a copy of the checkout whose configs are small, so that none can rot.

A block that starts with ```sh is a list of commands. What is small: the models, budgets and rows of every config, and
the text, at the paths that README names as the reader's own and in place of the built-in one. Of fit's commands, those
run here whose files a trainer's command reads; of the others the flags are read. .ci/package runs them all.
"""

import contextlib
import io
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import fit_runs
import helpers
import pytest

from fit import __main__ as command_line

ROOT = pathlib.Path(__file__).parent.parent
ELSEWHERE = ("make demo", "make test")  # CI runs them, in this order
FOR_A_POD = (
    "python -m jmoe.compile --config=configs/mixtral.py --topology=v5p:8x8x8"  # jmoe/cost/test_compile.py compiles it
)
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
SMALL_SWEEP = """

def get_sweep():
    jobs = [{"model.n_experts": e, "n_tokens": (2_048, 4_096)} for e in (8,)]  # a shape that other commands train
    return "configs/quickstart.py", jobs
"""


SIGNS = re.compile(r"[$`|;<>&~]")  # of a shell
COMMANDS = helpers.typed_commands()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder as a fresh clone after `make demo`, where everything is small."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("jmoe", "fit", "launch", "benchmarks", "results", "examples"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "configs", folder / "configs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("joint_moe", "quickstart"):
        path = folder / "configs" / f"{name}.py"
        path.write_text(path.read_text() + SMALL)
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
    """run(command) -> (exit code, stdout, stderr), as a reader types it in the activated environment.

    Commands of fit without a shell's own signs run in this process, those of jmoe in forks that begin with the imports
    done. .ci/package types each command of fit in a shell.
    """
    environment = helpers.environment()
    typed = environment | {"PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])}

    def run(command):
        words = shlex.split(command)
        if words[:2] != ["python", "-m"] or SIGNS.search(command):
            bash = ["bash", "-c", command]
            done = subprocess.run(bash, cwd=checkout, env=typed, capture_output=True, text=True, timeout=600)
            return done.returncode, done.stdout, done.stderr
        with contextlib.chdir(checkout):
            if words[2] == "fit":
                with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
                    code = command_line.run(words[3:])
                return code, out.getvalue(), err.getvalue()
            process = helpers.begin(words[2], words[3:], environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, err = process.communicate(timeout=600)
            return process.returncode, out, err

    return run


@pytest.fixture(scope="module")
def demo(checkout, shell):
    """runs/demo as the demo leaves it: a table of runs of its models with a law's losses, and the law fitted to it; and
    runs/rates as a sweep of learning rates leaves it."""
    folder = checkout / "runs" / "demo"
    fit_runs.write_demo_csv(folder / "runs.csv")
    code, _, err = shell("python -m fit law --runs=runs/demo/runs.csv --out=runs/demo/law.json --bootstrap=20")
    assert code == 0, err
    (checkout / "runs" / "rates").mkdir()
    head, *lines = fit_runs.learning_rate_runs().splitlines()
    table = [f"{head},batch_tokens"]
    for n_tokens, batch in itertools.product((1e9, 2e9), (32_768, 65_536)):
        table += [f"{line.replace('2e9', str(n_tokens))},{batch}" for line in lines]
    (checkout / "runs" / "rates" / "runs.csv").write_text("\n".join(table) + "\n")
    return folder


def is_of_fit(command: str) -> bool:
    """Whether it is a command of fit without a shell's own signs."""
    return command.startswith("python -m fit ") and not SIGNS.search(command)


def run_here(commands: list[str]) -> list[str]:
    """The commands without those of fit whose files no other command of the result reads."""
    chosen = []
    for command in reversed(commands):
        written = re.findall(r"--(?:out|out_dir|emit_\w+)=(\S+)", command)
        is_read = any(path in later for path in written for later in chosen)
        if is_read or not is_of_fit(command):
            chosen.insert(0, command)
    return chosen


def test_commands_elsewhere_are_what_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text()
    assert {*ELSEWHERE, FOR_A_POD} <= set(COMMANDS)
    assert all(command in ci.splitlines() for command in ELSEWHERE)


@pytest.mark.parametrize("command", [command for command in COMMANDS if is_of_fit(command)])
def test_flags_of_fit_that_readme_types_exist(command):
    _, _, _, name, *flags = shlex.split(command)
    command_line._flags_of(command_line.class_of(name))(["fit", *flags])


def test_readmes_tables_come_with_the_checkout():
    """The commands before `make demo` has run read tables of runs that a fresh clone has."""
    typed = [command for block in helpers.blocks(ROOT / "README.md") for command in block]
    tables = [table for command in typed for table in re.findall(r"--runs=(\S+)", command)]
    assert len(tables) > 1
    for table in tables:
        assert table.startswith("examples/") and (ROOT / table).is_file(), table


def test_readmes_commands_succeed(checkout, shell, demo):
    """In their order, as some read what others wrote."""
    elsewhere = (*ELSEWHERE, FOR_A_POD)
    typed = [
        command
        for command in COMMANDS
        if not command.startswith(elsewhere) and not any(folder in command for folder in REHEARSAL)
    ]
    typed = run_here(typed)
    assert len(typed) > 15
    failed = []
    for command in typed:
        for config in checkout.glob("*.py"):  # a plan's, which is to be trained
            if f"jmoe.train --config={config.name} " in command and SMALL not in config.read_text():
                config.write_text(config.read_text() + SMALL)
        code, out, err = shell(command)
        if code != 0 or "Traceback" in err:
            failed.append(f"$ {command}\n[exit {code}]\n{out[-500:]}{err[-1500:]}")
        if "launch.sweep" in command and "--workdir=runs/text " in command:  # as a sweep of the real size leaves it
            manifest = json.loads((checkout / "data" / "prepared" / "manifest.json").read_text())
            text = [manifest["fingerprint"]] * 36
            fit_runs.write_demo_csv(checkout / "runs" / "text" / "runs.csv", corpus_fingerprint=text)
    assert not failed, "\n\n".join(failed)
