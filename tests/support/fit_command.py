"""Commands of `fit` in the process of a test."""

import contextlib
import io
import json

from fit import __main__ as command_line


def printed(*words) -> str:
    """What a command prints that ends well."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert command_line.run([*words]) == 0
    return out.getvalue()


def answer(*words):
    """The JSON that a command prints."""
    return json.loads(printed(*words, "--json"))


def refused(*words) -> str:
    """What is said of a command that is refused."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert command_line.run([*words]) == 2
    return err.getvalue()
