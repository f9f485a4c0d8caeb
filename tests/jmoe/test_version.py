"""The version of the code that trains: what changes it, and what does not."""

import shutil
import sys

import pytest

from jmoe import version

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


def test_docstrings_comments_and_empty_lines_are_no_code():
    source = (
        '"""Module."""\n\nX = "# no comment"  # a comment\n\n\ndef f():\n    """Two\n    lines."""\n    return "text"\n'
    )
    assert version._code(source) == 'X = "# no comment"\ndef f():\n    return "text"'
