"""The script with which bash or zsh completes `jmoe`: its commands, their flags, and the values of some flags.

The flags of jmoe and launch are read from their source, because importing the trainer takes a second a command; those
of fit come from its --help.
"""

import ast
import contextlib
import dataclasses
import importlib.util
import io
import pathlib
import re
from collections.abc import Iterable

BACKENDS = ("slurm.py", "manifest.py")  # files of launch that define flags of single backends

BASH = """\
_jmoe() {
    local current="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" flag="" words=""
    if [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W "@COMMANDS@" -- "$current"))
        return
    fi
    if [[ $command == fit ]]; then
        if [[ $COMP_CWORD -eq 2 ]]; then
            COMPREPLY=($(compgen -W "@FIT@" -- "$current"))
            return
        fi
        command="fit ${COMP_WORDS[2]}"
    fi
    # bash splits --flag=value into three words
    if [[ $current == "=" ]]; then
        flag="${COMP_WORDS[COMP_CWORD-1]}" current=""
    elif [[ ${COMP_WORDS[COMP_CWORD-1]} == "=" ]]; then
        flag="${COMP_WORDS[COMP_CWORD-2]}"
    elif [[ $current == --*=* ]]; then
        flag="${current%%=*}"
    fi
    if [[ -n $flag ]]; then
        case "$command $flag" in
@VALUES@
        esac
        if [[ $current == "$flag="* ]]; then
            COMPREPLY=($(compgen -P "$flag=" -W "$words" -- "${current#*=}"))
        else
            COMPREPLY=($(compgen -W "$words" -- "$current"))
        fi
        return
    fi
    case "$command" in
@FLAGS@
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o nospace -o default -F _jmoe jmoe
"""
ZSH = "autoload -Uz compinit bashcompinit && compinit -u && bashcompinit\n"


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of a command, as its source defines it.

    Attributes:
      choices: The values that it may have; () for any.
      is_switch: Whether it is given without a value.
    """

    name: str
    default: str
    help: str
    choices: tuple[str, ...] = ()
    is_switch: bool = False

    @property
    def typed(self) -> str:
        """The flag as a user begins to type it."""
        return f"--{self.name}" if self.is_switch else f"--{self.name}="


def script(shell: str, trainer: Iterable[str], launcher: Iterable[str]) -> str:
    """The script for a shell.

    Args:
      shell: "bash" or "zsh".
      trainer: The commands of the package jmoe.
      launcher: The commands of the package launch.
    """
    flags = {name: flags_of("jmoe", name) for name in trainer}
    flags |= {name: flags_of("launch", name) for name in launcher}
    backends = [flag for file in BACKENDS for flag in defined_flags(_tree("launch", file))]
    flags["sweep"] = [*flags["sweep"], *backends]
    commands = [*flags, "fit", "completion"]
    fit = fit_flags()
    flags |= {f"fit {name}": of_command for name, of_command in fit.items()}

    fields = _config_fields()
    words = {"completion": "bash zsh"}
    values = {"sweep --backend": "local slurm gke"}
    for command, of_command in flags.items():
        names = [flag.typed for flag in of_command]
        if any(flag.name in ("config", "sweep") for flag in of_command):
            names += [f"--config.{field}=" for field in fields]
        words[command] = " ".join(["--help", *names])
        values |= {f"{command} --{flag.name}": " ".join(flag.choices) for flag in of_command if flag.choices}
    text = BASH.replace("@COMMANDS@", " ".join(commands)).replace("@FIT@", " ".join(fit))
    text = text.replace("@VALUES@", _cases(values)).replace("@FLAGS@", _cases(words))
    return ZSH + text if shell == "zsh" else text


def fit_flags() -> dict[str, list[Flag]]:
    """{command of fit: its flags}."""
    from fit.__main__ import COMMANDS, run
    from fit.fitted_law.law_files import NAMES

    flags = {}
    for command in COMMANDS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run([command, "--help"])
        flags[command] = []
        for name, text in re.findall(r"^  --(\w+): (.*)$", printed.getvalue(), re.MULTILINE):
            listed = re.match(r"<([^<>\s]+)>:", text)
            choices = tuple(listed[1].split("|")) if listed else ()
            if name == "law":
                choices = NAMES
            flags[command].append(Flag(name, "", text, choices, text.endswith("(default false)")))
    return flags


def flags_of(package: str, command: str) -> list[Flag]:
    """The flags of a command of jmoe or launch, by name: its module's own, and those of the shared functions
    `define_...` that it calls."""
    tree = _tree(package, f"{command}.py")
    flags = defined_flags(tree)
    for call in _calls(tree):
        function = call.func
        if not isinstance(function, ast.Attribute) or not function.attr.startswith("define_"):
            continue
        module = ast.unparse(function.value)
        for folder in ("jmoe", "launch"):
            if (_folder(folder) / f"{module}.py").exists():
                bodies = [n for n in _tree(folder, f"{module}.py").body if getattr(n, "name", "") == function.attr]
                flags += [flag for body in bodies for flag in defined_flags(body)]
    by_name: dict[str, Flag] = {}
    for flag in flags:
        if flag.name not in by_name or flag.help:
            by_name[flag.name] = flag
    return [by_name[name] for name in sorted(by_name)]


def defined_flags(tree: ast.AST) -> list[Flag]:
    """A Flag for each call of absl's DEFINE_... in the tree."""
    assigned = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id] = node.value
    flags = []
    for call in _calls(tree):
        function = ast.unparse(call.func).rpartition(".")[2]
        arguments = [assigned.get(getattr(value, "id", ""), value) for value in call.args]
        if not function.startswith("DEFINE_") or len(arguments) < 3:
            continue
        name, default, *rest = arguments
        texts = [literal(node) for node in rest if isinstance(node, ast.Constant | ast.JoinedStr)]
        sentences = [text for text in texts if " " in text]
        help_text = sentences[0] if sentences else ""
        is_switch = function in ("DEFINE_bool", "DEFINE_boolean")
        flags.append(Flag(literal(name), literal(default), help_text, _choices(function, rest), is_switch))
    return flags


def literal(node: ast.AST) -> str:
    """A constant as its text, an f-string with an ellipsis for what it computes, any other expression as its source."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.Constant):
        return str(node.value)
    return ast.unparse(node)


def _choices(function: str, arguments: list[ast.expr]) -> tuple[str, ...]:
    """The values of an enum, where its source lists them."""
    if function != "DEFINE_enum" or not isinstance(arguments[0], ast.List | ast.Tuple):
        return ()
    return tuple(literal(value) for value in arguments[0].elts if isinstance(value, ast.Constant))


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _config_fields() -> list[str]:
    """The fields of a config; none where the trainer's packages are not installed."""
    try:
        from jmoe.config.schema import FIELDS
    except ModuleNotFoundError:
        return []
    return list(FIELDS)


def _folder(package: str) -> pathlib.Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return pathlib.Path(spec.submodule_search_locations[0])


def _tree(package: str, file: str) -> ast.Module:
    return ast.parse((_folder(package) / file).read_text(encoding="utf-8"))


def _cases(words: dict[str, str]) -> str:
    """Branches of a shell's `case` which set `words`."""
    return "\n".join(f'        "{pattern}") words="{text}" ;;' for pattern, text in words.items())
