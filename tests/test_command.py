"""The command jmoe: what it starts, what it says, and what bash and zsh complete."""

import os
import pathlib
import pty
import select
import shutil
import subprocess
import sys
import time

import helpers
import pytest

import fit
import jmoe
from fit.__main__ import COMMANDS as FIT_COMMANDS
from jmoe import __main__ as command_line
from jmoe import completion

JMOE = pathlib.Path(sys.executable).with_name("jmoe")


def run(*arguments, cwd=helpers.ROOT):
    """The finished process of `jmoe ARGUMENTS`."""
    return subprocess.run([JMOE, *arguments], capture_output=True, text=True, cwd=cwd)


def test_the_version():
    for command in ([sys.executable, "-m", "jmoe"], [JMOE]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.startswith(f"jmoe {jmoe.__version__} with jax ")
    done = run("fit", "--version")
    assert (done.returncode, done.stdout) == (0, f"fit {fit.__version__}\n")


@pytest.mark.parametrize("package, listed", [("jmoe", command_line.TRAINER), ("launch", command_line.LAUNCHER)])
def test_every_runnable_module_is_a_command(package, listed):
    folder = helpers.ROOT / package
    runnable = {path.stem for path in folder.glob("*.py") if "cli.run(" in path.read_text()}
    assert runnable - {"cli", "task"} == set(listed)  # a scheduler starts launch.task, no user does
    usage = run("--help").stdout
    assert all(f"\n  {name} " in usage for name in listed)


@pytest.mark.parametrize(
    "words, module",
    [(["status"], "launch.status"), (["fit", "plan"], "fit plan")],
)
def test_help_is_that_of_the_module(words, module):
    theirs = subprocess.run(
        [sys.executable, "-m", *module.split(), "--help"], capture_output=True, text=True, cwd=helpers.ROOT
    )
    ours = run(*words, "--help")
    assert ours.returncode == theirs.returncode == 0 and len(ours.stdout) > 500
    # absl begins the list of flags with the name of the program
    assert ours.stdout.splitlines()[:3] == theirs.stdout.splitlines()[:3]
    assert [line for line in ours.stdout.splitlines() if line.lstrip().startswith("--")] == [
        line for line in theirs.stdout.splitlines() if line.lstrip().startswith("--")
    ]


def test_flags_and_exit_codes_pass_through(tmp_path):
    done = run("fit", "predict", "--law=joint-moe-2025", "--n_active=1e9", "--n_tokens=2e10", "--n_experts=8")
    assert (done.returncode, done.stdout.partition("\n")[0]) == (0, "2.508728")
    done = run("status", f"--workdir={tmp_path}")
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    done = run("fit", "plan", "--law=joint-moe-2025", "--flops=-1")
    assert done.returncode == 2 and "--flops" in done.stderr


@pytest.mark.parametrize(
    "words, named",
    [
        (["trian"], "did you mean train?"),
        (["--vresion"], "'--vresion'"),
        (["completion", "fish"], "expected one of bash, zsh, found 'fish'"),
        (["completion"], "expected one of bash, zsh"),
    ],
)
def test_mistakes_end_in_one_line(words, named):
    done = run(*words)
    assert done.returncode == 2 and named in done.stderr and done.stderr.count("\n") == 1


def test_python_m_launch_lists_and_runs_its_commands(tmp_path):
    def launch(*arguments):
        command = [sys.executable, "-m", "launch", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=helpers.ROOT)

    assert all(f"  {name} " in launch().stdout for name in command_line.LAUNCHER)
    done = launch("status", f"--workdir={tmp_path}")
    assert done.returncode == 2 and str(tmp_path) in done.stderr
    assert launch("stats").returncode == 2


def test_completion_knows_every_flag_that_help_lists():
    for name, package in (("train", "jmoe"), ("sweep", "launch"), ("cancel", "launch")):
        listed = run(name, "--help").stdout
        for flag in completion.flags_of(package, name):
            assert f"--{flag.name}:" in listed or f"--[no]{flag.name}:" in listed, (name, flag.name)
    assert set(completion.fit_flags()) == set(FIT_COMMANDS)


CASES = [
    ("jmoe tr", "train"),
    ("jmoe fit sp", "speedup"),
    ("jmoe fit plan --memory", "--memory_gb="),
    ("jmoe fit plan --law=joint-moe-2", "--law=joint-moe-2025"),
    ("jmoe compile --config.model.capacity", "--config.model.capacity_factor="),
    ("jmoe sweep --backend=sl", "--backend=slurm"),
    ("jmoe completion b", "bash"),
]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes(shell, tmp_path):
    """A person's keys, in a terminal: what is begun, a tab, and what the line then is."""
    if shutil.which(shell) is None:
        pytest.skip(f"without {shell}: its completion is not tested (apt-get install {shell})")
    script = tmp_path / "jmoe.sh"
    script.write_text(run("completion", shell).stdout)
    options = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}[shell]
    path = f"{JMOE.parent}:{os.environ['PATH']}"
    environment = os.environ | dict(HOME=str(tmp_path), PS1="READY ", TERM="dumb", PATH=path)
    main, side = pty.openpty()
    process = subprocess.Popen([shell, *options], stdin=side, stdout=side, stderr=side, env=environment, cwd=tmp_path)
    try:
        os.write(main, f"source {script}; echo LOA''DED\n".encode())
        read_until(main, "LOADED\r")
        for begun, completed in CASES:
            os.write(main, f"{begun}\t".encode())
            last = completed.rpartition(" ")[2]
            shown = read_until(main, last.rpartition("=")[2] or last)
            assert last.partition("=")[0] in shown
            os.write(main, b"\x15\n")  # clears the line
            read_until(main, "READY")
    finally:
        process.kill()
        process.wait()
        os.close(main)
        os.close(side)


def read_until(terminal: int, text: str, seconds: float = 300) -> str:
    """What the terminal shows until `text` is in it."""
    shown = ""
    deadline = time.time() + seconds
    while text not in shown:
        if time.time() > deadline:
            raise AssertionError(f"{text!r} is not shown: {shown!r}")
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace").replace("\a", "")
    return shown
