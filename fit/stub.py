"""The type stub of the package, fit/__init__.pyi, which editors and type checkers read.

python -m fit.stub        # writes it again
"""

import ast
import inspect
import pathlib
import re
import textwrap
from collections.abc import Callable
from typing import Any

from fit import __all__, functions

STUB = pathlib.Path(__file__).with_name("__init__.pyi")
SOURCE = pathlib.Path(__file__).with_name("functions.py")


def stub() -> str:
    """The type stub of the package: the signatures and docstrings of fit/functions.py."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.If)][0].body
    lines = [
        '"""Signatures of the package, written by `python -m fit.stub` from the options of its commands."""',
        "",
        "import os",
        "from collections.abc import Iterable, Mapping, Sequence",
        "from typing import Literal",
        "",
        *[ast.unparse(node) for node in imports],
        "from fit.errors import UserError as UserError",
        "",
        "__version__: str",
        f"__all__ = {list(__all__)}",
    ]
    for name in __all__:
        if name != "UserError":
            lines += ["", function_stub(name, getattr(functions, name))]
    return "\n".join(lines) + "\n"


def function_stub(name: str, function: Callable[..., Any]) -> str:
    """The signature and the docstring of one function."""
    signature = inspect.signature(function)
    lines = [f"def {name}("]
    has_keywords = False
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not has_keywords:
            lines.append("    *,")
            has_keywords = True
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {parameter.name}: {type_text(parameter.annotation)}{default},")
    lines.append(f") -> {type_text(signature.return_annotation)}:")
    docstring = inspect.cleandoc(function.__doc__ or "")
    lines += textwrap.indent(f'"""{docstring}\n"""', "    ").splitlines()
    return "\n".join(lines)


def type_text(annotation: Any) -> str:
    """An annotation as a stub writes it: classes without their modules, but for os.PathLike."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?!os\.)[a-z_]+(?:\.[a-z_]+)*\.(?=[A-Z])", "", text)
    return re.sub(r"Optional\[(Literal\[.*?\])\]", r"\1 | None", text)


def main() -> None:
    """Writes fit/__init__.pyi."""
    STUB.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
    main()
