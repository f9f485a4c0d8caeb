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
from fit.messages.catalogue import CATALOGUE, Kind
from fit.results import JSON_VERSION
from jmoe.completion import Flag, defined_flags, flags_of, literal

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference" / "generated"
JMOE = ("train", "prepare", "evaluate", "compile", "export", "load", "generate")
LAUNCH = ("sweep", "status", "report", "logs", "cancel", "retry", "accept", "collect", "image", "task")
BACKENDS = {"slurm": "slurm.py", "gke": "manifest.py"}  # the file that defines each one's flags
CLASSES = (
    "fit.UserError",
    "fit.fitted_law.law.Law",
    "fit.fitted_law.law_data.LawData",
    "fit.messages.finding.Finding",
    "fit.fitted_law.models.Models",
    "fit.fitted_law.parts.Bootstrap",
    "fit.fitted_law.settings.Settings",
    "fit.table.runs.Errors",
    "fit.planning.plan.Plan",
    "fit.planning.chosen.optimum.Optimum",
    "fit.planning.chosen.buildable.Buildable",
    "fit.planning.several_laws.comparison.Comparison",
    "fit.planning.several_laws.comparison.LawPlan",
    "fit.studies.speedup.results.Speedup",
    "fit.prediction.forecast.Forecast",
    "fit.studies.next_runs.results.NextRuns",
    "fit.studies.next_runs.results.ExpectedPlan",
    "fit.studies.next_runs.results.ExpectedCoefficients",
    "fit.studies.added_runs.results.AddedRuns",
    "fit.studies.surfaces.results.Surfaces",
    "fit.studies.surfaces.results.BudgetSurface",
    "fit.task_maps.maps.TaskMaps",
    "fit.task_maps.maps.TaskMap",
    "fit.studies.architecture_search.result.Holistic",
)
TRAINER_FUNCTIONS = ("train", "evaluate", "generate", "export", "load")  # each in the module of its name


def write() -> None:
    """Write commands.md, config.md, findings.md and python.md."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    pages = dict(commands=commands(), config=config_fields(), findings=findings(), python=python_api())
    for name, text in pages.items():
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
            sections += [
                f"## python -m {package}.{name}",
                f"```text\n{summary}\n```",
                flag_table(flags_of(package, name)),
            ]
    for name, file in BACKENDS.items():
        tree = ast.parse((ROOT / "launch" / file).read_text(encoding="utf-8"))
        flags = sorted(defined_flags(tree), key=lambda flag: flag.name)
        sections += [f"## Flags of --backend={name}", flag_table(flags)]
    return "\n\n".join(sections) + "\n"


def flag_table(flags: list[Flag]) -> str:
    """A Markdown table of the flags."""
    if not flags:
        return "It has no flags of its own."
    rows = [f"| `--{flag.name}` | `{cell(flag.default)}` | {cell(flag.help, code=False)} |" for flag in flags]
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


def findings() -> str:
    """The codes of all findings, in Markdown, from the catalogue."""
    head = [
        "# Findings: codes in JSON and Python",
        "",
        "What to know before trusting a result is a finding: a code, a severity and the values of its sentence.",
        "`--json` lists them as `findings`, each with `code`, `severity`, `values` and `text`, and their sentences as",
        "`warnings`. In Python they are `plan.findings` and `plan.warnings`. Codes stay, sentences may change.",
        "",
        f"Every `--json` states its `version`, now {JSON_VERSION}, at the top. It rises where a field goes or means",
        "something else, not where one is added.",
        "",
        "| code | severity | sentence |",
        "|---|---|---|",
    ]
    rows = [
        f"| `{code}` | {kind.severity} | {cell(with_clauses(kind), code=False)} |" for code, kind in CATALOGUE.items()
    ]
    return "\n".join([*head, *rows]) + "\n"


def with_clauses(kind: Kind) -> str:
    """The template of a finding, with its clauses in brackets: one of several is said, or none."""
    template = kind.template
    for name, clauses in kind.clauses.items():
        template = template.replace(f"{{{name}}}", f"[{' / '.join(clauses)}]")
    return template


def python_api() -> str:
    """The functions of `fit` and the classes that they return, for autodoc; those of `jmoe`, from its source."""
    tree = ast.parse((ROOT / "fit" / "functions.py").read_text(encoding="utf-8"))
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    entries = [f".. autofunction:: fit.{name}" for name in names]
    entries += [f".. autoclass:: {name}\n   :members:" for name in CLASSES]
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
