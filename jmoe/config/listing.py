"""The fields of a config as --help lists them: the value, the comment beside it in the recipe, what it may be."""

import ast
import importlib.util
import io
import pathlib
import textwrap
import tokenize

from jmoe.config.fields import FIELDS, flat, section

RECIPE = pathlib.Path(__file__).parents[2] / "configs" / "joint_moe.py"


def describe(path: str | None, sections=()) -> str:
    """Lines on each field of the config file `path`, else of the recipe, in `sections` or in all; raises what the file
    does."""
    file = pathlib.Path(path) if path else RECIPE
    spec = importlib.util.spec_from_file_location("config_to_list", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    comment_of = comments(RECIPE.read_text())
    lines = [f"config fields, with their values in {path or 'configs/joint_moe.py'}:"]
    for name, value in flat(module.get_config()).items():
        if sections and section(name) not in sections:
            continue
        allowed = f"[{FIELDS[name].allowed[0]}]" if name in FIELDS else ""
        words = " ".join(filter(None, (comment_of.get(name), allowed)))
        lines.append(f"  --config.{name}={value!r}" if not isinstance(value, str) else f"  --config.{name}={value}")
        lines += textwrap.wrap(words, 112, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


def comments(source: str) -> dict[str, str]:
    """The comment after each assignment to a field in get_config(), with the comment lines that continue it."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comment = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    alone = {t.start[0] for t in tokens if t.type == tokenize.COMMENT and not t.line[: t.start[1]].strip()}
    body = next(node for node in ast.parse(source).body if getattr(node, "name", "") == "get_config").body
    names, of_field = {"config": ""}, {}
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
            of_field[field] = " ".join(comment[n] for n in lines)
    return of_field


def _dotted(node, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names[node.id]
    owner = _dotted(node.value, names)
    return f"{owner}{'.' if owner and not owner.endswith('.') else ''}{node.attr}"
