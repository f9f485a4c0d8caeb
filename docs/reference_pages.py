"""Write the generated pages of docs/reference/generated/ from the code's own definitions.

The flags of `fit` come from its own --help. Those of jmoe and launch, and the fields of a config, are read from the
source and not imported, so that the site needs no trainer.
"""

import ast
import contextlib
import inspect
import io
import pathlib
import re

import fit
from fit.__main__ import COMMANDS
from fit.__main__ import run as run_fit

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference" / "generated"
JMOE = ("train", "prepare", "evaluate", "compile", "export", "load", "generate")
LAUNCH = ("sweep", "status", "logs", "cancel", "retry", "accept", "collect", "image", "task")
BACKENDS = {"slurm": "slurm.py", "gke": "manifest.py"}  # the file that defines each one's flags
TRAINER_FUNCTIONS = ("train", "evaluate", "generate", "export", "load")  # each in the module of its name


def write() -> None:
    """Write commands.md, config.md and python.md."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in (("commands", commands()), ("config", config_fields()), ("python", python_api())):
        path = FOLDER / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def commands() -> str:
    """All flags of all commands, in Markdown."""
    sections = ["# Commands and their flags", "Read from the code when this site was built."]
    for name in COMMANDS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run_fit([name, "--help"])
        sections += [f"## python -m fit {name}", f"```text\n{printed.getvalue().strip()}\n```"]
    for package, names in (("jmoe", JMOE), ("launch", LAUNCH)):
        for name in names:
            path = ROOT / package / f"{name}.py"
            summary = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            sections += [f"## python -m {package}.{name}", f"```text\n{summary}\n```", flag_table(flags_of(path))]
    for name, file in BACKENDS.items():
        sections += [f"## Flags of --backend={name}", flag_table(flags_of(ROOT / "launch" / file))]
    return "\n\n".join(sections) + "\n"


def flags_of(path: pathlib.Path) -> list[tuple[str, str, str]]:
    """(name, default, help) of each flag that the module defines, itself or by a shared `define_…` function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    flags = defined_flags(tree)
    for call in calls(tree):
        function = call.func
        if not isinstance(function, ast.Attribute) or not function.attr.startswith("define_"):
            continue
        module = ast.unparse(function.value)
        for folder in ("jmoe", "launch"):
            shared = ROOT / folder / f"{module}.py"
            if shared.exists():
                shared_tree = ast.parse(shared.read_text(encoding="utf-8"))
                bodies = [node for node in shared_tree.body if getattr(node, "name", "") == function.attr]
                for body in bodies:
                    flags += defined_flags(body)
    by_name = {}
    for flag in flags:
        if flag[0] not in by_name or flag[2]:
            by_name[flag[0]] = flag
    return sorted(by_name.values())


def calls(tree: ast.AST) -> list[ast.Call]:
    """All calls in the tree."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def defined_flags(tree: ast.AST) -> list[tuple[str, str, str]]:
    """(name, default, help) of each call of absl's DEFINE_… in the tree."""
    texts = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            texts[node.targets[0].id] = node.value
    flags = []
    for call in calls(tree):
        if not ast.unparse(call.func).rpartition(".")[2].startswith("DEFINE_"):
            continue
        arguments = [texts.get(getattr(value, "id", ""), value) for value in call.args]
        if len(arguments) < 3:
            continue
        name, default, *rest = arguments
        words = [literal(node) for node in rest if isinstance(node, ast.Constant | ast.JoinedStr)]
        sentences = [text for text in words if " " in text]
        flags.append((literal(name), literal(default), sentences[0] if sentences else ""))
    return flags


def literal(node: ast.AST) -> str:
    """A constant as its text, an f-string with "…" for what it computes, any other expression as its source."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.Constant):
        return str(node.value)
    return ast.unparse(node)


def flag_table(flags: list[tuple[str, str, str]]) -> str:
    """A Markdown table of the flags."""
    if not flags:
        return "It has no flags of its own."
    rows = [f"| `--{name}` | `{cell(default)}` | {cell(words, code=False)} |" for name, default, words in flags]
    return "\n".join(["| flag | default | |", "|---|---|---|", *rows])


def config_fields() -> str:
    """All fields of a config, in Markdown, from the table in configs/joint_moe.py."""
    tree = ast.parse((ROOT / "configs" / "joint_moe.py").read_text(encoding="utf-8"))
    tables = [n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "FIELDS"]
    rows = []
    for key, value in zip(tables[0].value.keys, tables[0].value.values, strict=True):
        default, allowed, *rest = [*value.args]
        texts = [node.value for node in rest if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        words = texts[0] if texts else ""
        marks = " ".join(ast.unparse(node) for node in rest if not isinstance(node, ast.Constant))
        free = "yes" if "FREE" in marks else ""
        column = "yes" if "COLUMN" in marks else ""
        cells = f"`config.{literal(key)}` | `{cell(ast.unparse(default))}` | `{cell(ast.unparse(allowed))}`"
        rows.append(f"| {cells} | {cell(words, code=False)} | {free} | {column} |")
    head = [
        "# Fields of a config",
        "",
        "Read from `configs/joint_moe.py` when this site was built.",
        "Set a field by a flag: `--config.model.n_experts=8`. A later start of the same run may change a free field.",
        "`runs.csv` has the column where some run's value is not the default.",
        "",
        "| field | default | allowed | meaning | free | column |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def python_api() -> str:
    """The functions of `fit` and the classes that they return, for autodoc; those of `jmoe`, from its source."""
    functions = [getattr(fit, name) for name in dir(fit) if inspect.isfunction(getattr(fit, name))]
    returned = [inspect.get_annotations(function, eval_str=True).get("return") for function in functions]
    classes = [fit.UserError, *(answer for answer in returned if inspect.isclass(answer))]
    own_classes = dict.fromkeys(answer for answer in classes if answer.__module__.startswith("fit"))
    entries = [f".. autofunction:: fit.{function.__name__}" for function in functions]
    entries += [f".. autoclass:: {answer.__module__}.{answer.__qualname__}\n   :members:" for answer in own_classes]
    listed = "\n\n".join(entries)
    head = "# Python API\n\nFrom the docstrings, read when this site was built.\n\n## fit"
    trainer = "\n\n".join(trainer_function(name) for name in TRAINER_FUNCTIONS)
    return f"{head}\n\n```{{eval-rst}}\n{listed}\n```\n\n## jmoe\n\n{trainer}\n"


def trainer_function(name: str) -> str:
    """The signature and docstring of jmoe.NAME.NAME, in Markdown."""
    tree = ast.parse((ROOT / "jmoe" / f"{name}.py").read_text(encoding="utf-8"))
    (function,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    docstring = ast.get_docstring(function) or ""
    return f"### jmoe.{name}.{name}\n\n```text\n{name}({ast.unparse(function.args)})\n\n{docstring}\n```"


def cell(text: str, code: bool = True) -> str:
    """The text as it may stand in a cell of a Markdown table."""
    text = " ".join(text.split()).replace("|", "\\|").replace("`", "'")
    if not code:
        text = re.sub(r"([<>*_\[\]{}$])", r"\\\1", text)
    return text


def escape_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Keep the characters of a docstring from being read as reStructuredText; sections of Google style remain."""
    lines[:] = [re.sub(r"(?<!\\)([*|])", r"\\\1", line).replace("`", "``").replace("````", "``") for line in lines]
