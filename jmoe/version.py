"""The version of the code that trains: what makes two runs comparable."""

import hashlib
import importlib.metadata
import io
import pathlib
import tokenize

# what a run's numbers depend on: the model, its step, the text, and the parameter counts that set the learning rate
SOURCES = ("train.py", "config", "model", "run", "text")


def code_version() -> str:
    """A hash of the code that trains, without its comments and docstrings, and jax's version."""
    folder = pathlib.Path(__file__).parent
    paths: list[pathlib.Path] = []
    for name in SOURCES:
        if name.endswith(".py"):
            paths.append(folder / name)
        else:
            paths += (folder / name).rglob("*.py")
    code = "".join(f"{path.relative_to(folder)}\n{_code(path.read_text())}" for path in sorted(paths))
    return f"{hashlib.sha256(code.encode()).hexdigest()[:8]}-jax{importlib.metadata.version('jax')}"


def _code(source: str) -> str:
    """The source without comments, docstrings and empty lines.

    It stays text: each version of Python prints a syntax tree differently, and the hosts of a sweep may have different
    versions.
    """
    lines = source.splitlines()
    begins_statement = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT:
            lines[row - 1] = lines[row - 1][:column]
        elif token.type == tokenize.STRING and begins_statement:  # a docstring
            lines[row - 1 : token.end[0]] = [""] * (token.end[0] - row + 1)
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            begins_statement = token.type == tokenize.NEWLINE
    return "\n".join(filter(None, map(str.rstrip, lines)))
