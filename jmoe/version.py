"""The version of the code that trains: what makes two runs comparable."""

import ast
import hashlib
import importlib.metadata
import io
import pathlib
import tokenize

# What a run's numbers depend on: the model, its step, the text, and the parameter counts that set the learning rate.
SOURCES = ("train.py", "config", "model", "run", "text")


def code_version() -> str:
    """A hash of the code that trains, without its comments and docstrings, and jax's version."""
    folder = pathlib.Path(__file__).parent
    paths = [path for name in SOURCES for path in ([folder / name] if "." in name else (folder / name).rglob("*.py"))]
    code = "".join(f"{path.relative_to(folder)}\n{_code(path.read_text())}" for path in sorted(paths))
    return f"{hashlib.sha256(code.encode()).hexdigest()[:8]}-jax{importlib.metadata.version('jax')}"


def _code(source: str) -> str:
    """The source without comments, docstrings and empty lines. It stays text: each version of Python prints a syntax
    tree differently, and the hosts of a sweep may have different versions."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            for row in range(docstring.lineno, docstring.end_lineno + 1):
                lines[row - 1] = ""
    return "\n".join(filter(None, map(str.rstrip, lines)))
