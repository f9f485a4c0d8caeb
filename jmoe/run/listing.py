"""The fields of a config as --help lists them: value, what it may be, and the comment beside it in the recipe."""

import ast
import importlib.util
import io
import pathlib
import textwrap
import tokenize

from jmoe.run import check

RECIPE = pathlib.Path(__file__).parents[2] / "configs" / "joint_moe.py"


def fields(path: str | None, sections=("",)) -> str:
    """Lines on each field whose dotted name begins with one of `sections`, of the config file `path`, else the recipe.

    Raises:
      Exception: whatever the file raises.
    """
    file = pathlib.Path(path) if path else RECIPE
    spec = importlib.util.spec_from_file_location("config_to_list", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said = comments(RECIPE.read_text())
    lines = [f"config fields, with their values in {path or 'configs/joint_moe.py'}:"]
    for name, value in check.flat(module.get_config()).items():
        if not name.startswith(tuple(sections)):
            continue
        allowed = f"[{check.FIELDS[name][0]}]" if name in check.FIELDS else ""
        told = " ".join(filter(None, (said.get(name), allowed)))
        lines.append(f"  --config.{name}={value!r}" if not isinstance(value, str) else f"  --config.{name}={value}")
        lines += textwrap.wrap(told, 112, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


def comments(source: str) -> dict[str, str]:
    """The comment after each assignment to a field in get_config(), lines that it goes on in included."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comment = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    alone = {t.start[0] for t in tokens if t.type == tokenize.COMMENT and not t.line[: t.start[1]].strip()}
    body = next(node for node in ast.parse(source).body if getattr(node, "name", "") == "get_config").body
    names, found = {"config": ""}, {}
    for statement in body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Attribute):
            continue
        field = _dotted(statement.targets[0], names)
        for alias in statement.targets[1:]:
            names[alias.id] = field + "."
        lines = [n for n in range(statement.lineno, statement.end_lineno + 1) if n in comment]
        after = statement.end_lineno + 1
        while lines and after in alone:
            lines.append(after)
            after += 1
        if lines:
            found[field] = " ".join(comment[n] for n in lines)
    return found


def _dotted(node, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names[node.id]
    owner = _dotted(node.value, names)
    return f"{owner}{'.' if owner and not owner.endswith('.') else ''}{node.attr}"
