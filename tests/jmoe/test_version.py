"""The version of the code that trains: what changes it, and what does not."""

import importlib.metadata
import pathlib
import shutil
import subprocess
import sys

import pytest

import jmoe
from jmoe import __main__, version

EDITS = [
    ("run/run.py", "\n# a comment\n", True),
    ("model/transformer.py", '\ndef more():\n    """A docstring."""\n', False),
    ("cost/report.py", "\nX = 1\n", True),
    ("cli.py", "\nX = 1\n", True),
    ("config/counts.py", "\nX = 1\n", False),
    ("text/batches.py", "\nX = 1\n", False),
]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    folder = tmp_path / "jmoe"
    shutil.copytree(sys.modules["jmoe"].__path__[0], folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(version, "__file__", str(folder / "version.py"))
    return folder


@pytest.mark.parametrize("path, addition, same", EDITS)
def test_only_code_that_changes_results_changes_the_version(copy, path, addition, same):
    before = version.code_version()
    (copy / path).write_text((copy / path).read_text() + addition)
    assert (version.code_version() == before) == same


def test_the_command_tells_the_version():
    for command in [sys.executable, "-m", "jmoe"], [str(pathlib.Path(sys.executable).with_name("jmoe"))]:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        jax = importlib.metadata.version("jax")
        assert done.stdout.startswith(f"jmoe {jmoe.__version__} with jax {jax} on Python 3."), done
    done = subprocess.run([sys.executable, "-m", "jmoe", "--vresion"], capture_output=True, text=True)
    assert done.returncode == 2 and "--vresion" in done.stderr and done.stderr.count("\n") == 1


def test_every_command_is_listed(capsys):
    assert __main__.main([]) == 0
    folder = pathlib.Path(jmoe.__file__).parent
    runnable = {path.stem for path in folder.glob("*.py") if "cli.run(" in path.read_text() and path.stem != "cli"}
    assert runnable == set(__main__.COMMANDS)
    assert ", ".join(__main__.COMMANDS) in capsys.readouterr().out


def test_docstrings_comments_and_empty_lines_are_no_code():
    source = (
        '"""Module."""\n\nX = "# no comment"  # a comment\n\n\ndef f():\n    """Two\n    lines."""\n    return "text"\n'
    )
    assert version._code(source) == 'X = "# no comment"\ndef f():\n    return "text"'
