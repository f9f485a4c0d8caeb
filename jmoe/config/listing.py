"""The fields of a config as --help lists them: the value, the comment beside it in the recipe, what it may be."""

import pathlib
import re
import textwrap

from jmoe.config.fields import FIELDS, flat, section

RECIPE = pathlib.Path(__file__).parents[2] / "configs" / "joint_moe.py"
ASSIGNMENT = re.compile(r"    ([\w.]+) = (?:(\w+) = )?.*?(?:  # (.*))?$")


def describe(path: str, config, sections=()) -> str:
    """Describes each field of `config`, that of the file `path`, in `sections` or in all."""
    comment_of = comments(RECIPE.read_text())
    lines = [f"config fields, with their values in {path}:"]
    for name, value in flat(config).items():
        if sections and section(name) not in sections:
            continue
        allowed = f"[{FIELDS[name].allowed[0]}]" if name in FIELDS else ""
        words = " ".join(filter(None, (comment_of.get(name), allowed)))
        lines.append(f"  --config.{name}={value!r}" if not isinstance(value, str) else f"  --config.{name}={value}")
        lines += textwrap.wrap(words, 112, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


def comments(source: str) -> dict[str, str]:
    """The comment beside each field that the recipe's get_config() assigns, with the comment lines that continue it."""
    of_field, prefixes, field = {}, {"config": ""}, ""
    for line in source.splitlines():
        if assignment := ASSIGNMENT.match(line):
            name, alias, comment = assignment.groups()
            owner, _, rest = name.partition(".")
            field = prefixes[owner] + rest
            if alias:
                prefixes[alias] = f"{field}."
            if comment:
                of_field[field] = comment
        elif field in of_field and line.startswith("    # "):
            of_field[field] += " " + line.strip("# ")
        else:
            field = ""
    return of_field
