"""Write the generated pages of docs/reference/generated/ from the code's own definitions.

The flags of `fit` come from its own --help. Those of jmoe and launch, and the fields of a config, are read from the
source and not imported, so that the site needs no trainer.
"""

import ast
import contextlib
import io
import pathlib
import re

from fit.__main__ import COMMANDS
from fit.__main__ import run as run_fit

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference" / "generated"
JMOE = ("train", "prepare", "evaluate", "compile", "export", "load", "generate")
LAUNCH = ("sweep", "status", "logs", "cancel", "retry", "accept", "collect", "image", "task")
BACKENDS = {"slurm": "slurm.py", "gke": "manifest.py"}  # the file that defines each one's flags
CLASSES = (
    "fit.UserError",
    "fit.fitted_law.law.Law",
    "fit.planning.results.Plan",
    "fit.planning.results.Optimum",
    "fit.planning.results.Buildable",
    "fit.planning.comparison.Comparison",
    "fit.planning.comparison.LawAnswer",
    "fit.planning.speedup.Speedup",
    "fit.fitted_law.forecast.Forecast",
    "fit.next_runs.suggest.NextRuns",
    "fit.next_runs.add.AddedRuns",
    "fit.equal_flops.surfaces.Surfaces",
    "fit.architecture_search.search.Holistic",
)


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
    found = defined_flags(tree)
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
                    found += defined_flags(body)
    by_name = {}
    for flag in found:
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
    found = []
    for call in calls(tree):
        if not ast.unparse(call.func).rpartition(".")[2].startswith("DEFINE_"):
            continue
        arguments = [texts.get(getattr(value, "id", ""), value) for value in call.args]
        if len(arguments) < 3:
            continue
        name, default, *rest = arguments
        words = [literal(node) for node in rest if isinstance(node, ast.Constant | ast.JoinedStr)]
        sentences = [text for text in words if " " in text]
        found.append((literal(name), literal(default), sentences[0] if sentences else ""))
    return found


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
    """The functions and classes of `fit`, for Sphinx's autodoc."""
    tree = ast.parse((ROOT / "fit" / "__init__.py").read_text(encoding="utf-8"))
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    entries = [f".. autofunction:: fit.{name}" for name in names]
    entries += [f".. autoclass:: {name}\n   :members:" for name in CLASSES]
    listed = "\n\n".join(entries)
    head = "# Python API of fit\n\nFrom the docstrings, read when this site was built."
    return f"{head}\n\n```{{eval-rst}}\n{listed}\n```\n"


def cell(text: str, code: bool = True) -> str:
    """The text as it may stand in a cell of a Markdown table."""
    text = " ".join(text.split()).replace("|", "\\|").replace("`", "'")
    if not code:
        text = re.sub(r"([<>*_\[\]{}$])", r"\\\1", text)
    return text


def escape_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Keep the characters of a docstring from being read as reStructuredText; sections of Google style remain."""
    lines[:] = [re.sub(r"(?<!\\)([*|])", r"\\\1", line).replace("`", "``").replace("````", "``") for line in lines]
